"""Splits: which trajectories keep their actions (the coupled, decoupled and wide-subsample setups of the paper).

A split depends on returns and observations, never on actions, and can be saved as JSON. `apply` replaces hidden
actions by NaN, so nothing that uses its result can read them. `truth` returns them for diagnostics only.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ssorl.data.episodes import Episodes, action_range
from ssorl.data.stats import digests
from ssorl.data.validate import escaped
from ssorl.utils.display import html_table, short_repr
from ssorl.utils.errors import DataError
from ssorl.utils.files import DamagedError, read_json, write_json

Third = Literal["low", "med", "high"]
THIRDS: tuple[Third, ...] = ("low", "med", "high")


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Labelled and unlabelled trajectories of one dataset, as indices. An index may repeat."""

    labelled: np.ndarray  # [L] int64, ascending
    unlabelled: np.ndarray  # [U] int64, ascending
    recipe: dict  # kind, parameters and seed of the draw
    n_episodes: int  # number of trajectories in the dataset
    fingerprint: int  # checksum of the dataset's lengths and rewards, see `fingerprint`

    def __repr__(self) -> str:
        return short_repr("Split", self._facts())

    def _repr_html_(self) -> str:
        return html_table("Split", self._facts())

    def _facts(self) -> dict[str, Any]:
        sizes = {"n_labelled": len(self.labelled), "n_unlabelled": len(self.unlabelled), "n_episodes": self.n_episodes}
        return {**sizes, "recipe": self.recipe}

    def save(self, path: Path | str) -> None:
        """Write the split to a JSON file.

        Args:
            path: the file.

        Raises:
            DataError: the path is a folder.
        """
        body = {**vars(self), "labelled": self.labelled.tolist(), "unlabelled": self.unlabelled.tolist()}
        if Path(path).is_dir():
            raise DataError(f"{path}: is a folder; give the name of a file")
        write_json(path, body)

    @classmethod
    def load(cls, path: Path | str) -> Split:
        """Return the split in a file that `save` wrote.

        Args:
            path: the file.

        Raises:
            DataError: the file is missing, damaged or of another kind.
        """
        try:
            body = read_json(path)
            for name in ("labelled", "unlabelled"):
                body[name] = np.asarray(body[name], np.int64).reshape(-1)
            return cls(**body)
        except (OSError, ValueError, TypeError, KeyError, OverflowError, DamagedError) as err:
            reason = escaped(err)
            raise DataError(f"{path}: cannot be read as a split ({reason}); make it with `ssorl data split`") from err


def coupled(eps: Episodes, fraction: float = 0.1, quality: float = 50, seed: int = 0) -> Split:
    """Return a coupled split: labelled trajectories come from the worst ones by return, the rest is unlabelled.

    Copies of a trajectory (the wide subsample has them) are all labelled or all unlabelled; otherwise a labelled copy
    would reveal the hidden actions of the others.

    Args:
        eps: the dataset, with all actions.
        fraction: share of the trajectories to label. With copies, slightly more may be labelled.
        quality: percentage of the trajectories, from the lowest return up, that labelled ones are drawn from.
        seed: seed of the draw.

    Raises:
        DataError: an action is missing, an argument is out of range, or there are too few trajectories.
    """
    _check_all_labelled(eps)
    n_labelled = _count(eps, fraction, "--fraction")
    if not 0 < quality <= 100:
        raise DataError(f"--quality is {quality:g}; give a percentage above 0 and at most 100")
    by_return = quality < 100 or not np.isnan(eps.returns).any()  # all trajectories need no order
    pool = order_by_return(eps)[: _round(quality / 100 * len(eps))] if by_return else np.arange(len(eps))
    if len(pool) < n_labelled:
        raise DataError(
            f"{eps.meta.source}: the bottom {quality:g} % has {len(pool)} of {len(eps)} trajectories, but {n_labelled} "
            f"are to be labelled; raise --quality to {100 * fraction:g} or more, or lower --fraction"
        )
    rng, first = _rng(seed), first_copies(eps)
    if np.array_equal(first, np.arange(len(eps))):
        labelled = np.sort(rng.choice(pool, n_labelled, replace=False))
    else:
        originals = rng.permutation(np.unique(first[pool]))
        n_originals = np.searchsorted(np.cumsum(np.bincount(first)[originals]), n_labelled) + 1
        labelled = np.flatnonzero(np.isin(first, originals[:n_originals]))
    unlabelled = np.setdiff1d(np.arange(len(eps)), labelled)
    return _split(eps, labelled, unlabelled, kind="coupled", fraction=fraction, quality=quality, seed=seed)


def decoupled(
    eps: Episodes,
    labelled: Third = "low",
    labelled_fraction: float = 0.1,
    unlabelled: Third = "high",
    unlabelled_fraction: float = 0.1,
    seed: int = 0,
) -> Split:
    """Return a decoupled split: labelled and unlabelled trajectories each come from one third of the data by return.

    No trajectory is both labelled and unlabelled, except if both come from a third with a single trajectory. If both
    come from one third that is too small, it is divided in proportion to the two sizes. If a pool is smaller than the
    size asked for (the paper asks for half of the dataset from a third of it), its trajectories repeat, equally often
    up to one.

    Args:
        eps: the dataset, with all actions.
        labelled: third that labelled trajectories are drawn from.
        labelled_fraction: number of labelled trajectories, as a share of the whole dataset.
        unlabelled: third that unlabelled trajectories are drawn from.
        unlabelled_fraction: number of unlabelled trajectories, as a share of the whole dataset.
        seed: seed of the draw.

    Raises:
        DataError: an action is missing, an argument is invalid, or there are fewer than 3 trajectories.
    """
    _check_all_labelled(eps)
    for third in (labelled, unlabelled):
        if third not in THIRDS:
            raise DataError(f"{third!r} is not a third of the data; choose one of {', '.join(THIRDS)}")
    n_labelled = _count(eps, labelled_fraction, "--labelled-fraction")
    n_unlabelled = _count(eps, unlabelled_fraction, "--unlabelled-fraction")
    cuts = [_round(len(eps) * i / 3) for i in range(4)]
    order, rng = order_by_return(eps), _rng(seed)
    thirds = {name: order[a:b] for name, a, b in zip(THIRDS, cuts[:-1], cuts[1:], strict=True)}
    if not all(len(third) for third in thirds.values()):
        raise DataError(f"{eps.meta.source}: {len(eps)} trajectories cannot be cut into thirds; at least 3 are needed")
    pool, rest, n_both = thirds[labelled], thirds[unlabelled], n_labelled + n_unlabelled
    if labelled == unlabelled and n_both > len(pool) > 1:
        cut = min(max(_round(len(pool) * n_labelled / n_both), 1), len(pool) - 1)
        pool, rest = np.split(rng.permutation(pool), [cut])
    keep = _draw(pool, n_labelled, rng)
    left = np.setdiff1d(rest, keep) if labelled == unlabelled else rest
    hide = _draw(left if len(left) else rest, n_unlabelled, rng)
    recipe = {
        "labelled": labelled,
        "labelled_fraction": labelled_fraction,
        "unlabelled": unlabelled,
        "unlabelled_fraction": unlabelled_fraction,
    }
    return _split(eps, keep, hide, kind="decoupled", **recipe, seed=seed)


def wide(eps: Episodes, n_draws: int = 1000, n_bins: int = 40, seed: int = 0) -> Split:
    """Return the wide subsample: a draw with replacement that favours rare returns; all trajectories are labelled.

    Bins of equal width divide the range of returns. Each draw picks a non-empty bin with a weight of 1/n_i, where n_i
    is the number of its trajectories, then one of these uniformly. The result can be split further.

    Args:
        eps: the dataset.
        n_draws: number of trajectories to draw.
        n_bins: number of bins.
        seed: seed of the draw.
    """
    _check_all_rewarded(eps)
    upper = np.linspace(eps.returns.min(), eps.returns.max(), n_bins + 1)[1:]
    upper[-1] = eps.returns.max()  # linspace may round it down, which would exclude the best trajectory
    bin_of = np.searchsorted(upper, eps.returns, side="left")
    size = np.bincount(bin_of, minlength=n_bins)
    # Picking bin i with weight 1/n_i, then one of n_i, gives each of its trajectories the weight 1/n_i².
    weight = 1.0 / size[bin_of].astype(np.float64) ** 2
    rng = _rng(seed)
    drawn = np.sort(rng.choice(len(eps), n_draws, p=weight / weight.sum()))
    return _split(eps, drawn, drawn[:0], kind="wide", n_draws=n_draws, n_bins=n_bins, seed=seed)


def apply(split: Split, eps: Episodes) -> Episodes:
    """Return the trajectories of a split, in the dataset's order, with NaN in place of every hidden action.

    An action range that the file does not declare is inferred again from the actions that are left.

    Args:
        split: the split.
        eps: the dataset that the split was drawn from.

    Raises:
        DataError: the split was drawn from another dataset.
    """
    chosen, hidden = split_members(split, eps)
    if np.array_equal(chosen, np.arange(len(eps))):
        act = eps.act.copy()  # the other arrays are shared with the dataset
        out = eps
    else:
        out = eps.take(chosen)
        act = out.act
    act[np.repeat(hidden, out.lengths)] = np.nan
    meta = out.meta
    if meta.act_range != "declared":  # a range inferred from all actions would leak the hidden ones
        meta = replace(meta, **action_range(act))
    return replace(out, act=act, meta=meta)


def truth(split: Split, eps: Episodes) -> np.ndarray:
    """Return the actions that `apply` hides, for diagnostics, never for training.

    Args:
        split: the split.
        eps: the dataset that the split was drawn from.

    Returns:
        Actions [S, A] of the steps of `apply(split, eps)`; NaN where `apply` keeps the action.

    Raises:
        DataError: the split was drawn from another dataset.
    """
    chosen, hidden = split_members(split, eps)
    full = eps.take(chosen)
    full.act[~np.repeat(hidden, full.lengths)] = np.nan
    return full.act


def order_by_return(eps: Episodes) -> np.ndarray:
    """Return the indices of trajectories from the lowest return to the highest, [E]; ties keep their order."""
    _check_all_rewarded(eps)
    return np.argsort(eps.returns, kind="stable")


def split_members(split: Split, eps: Episodes) -> tuple[np.ndarray, np.ndarray]:
    """Return the trajectories of a split.

    Args:
        split: the split.
        eps: the dataset that the split was drawn from.

    Returns:
        Indices in ascending order [L+U], and whether each trajectory is unlabelled [L+U] bool.

    Raises:
        DataError: the split was drawn from another dataset or has invalid indices.
    """
    if len(eps) != split.n_episodes or fingerprint(eps) != split.fingerprint:
        raise DataError(
            f"{eps.meta.source}: the split was drawn from another dataset (it has {split.n_episodes} trajectories, "
            f"this one has {len(eps)}); draw it again"
        )
    both = np.concatenate([split.labelled, split.unlabelled])
    hidden = np.repeat([False, True], [len(split.labelled), len(split.unlabelled)])
    if len(both) == 0 or both.min() < 0 or both.max() >= len(eps):
        raise DataError(f"{eps.meta.source}: the split has indices of trajectories that do not exist; draw it again")
    order = np.argsort(both, kind="stable")
    return both[order], hidden[order]


def first_copies(eps: Episodes) -> np.ndarray:
    """Return the index of the first trajectory with the same observations and rewards as each trajectory, [E].

    Args:
        eps: the trajectories. A stream does not hold the observations, so each of its trajectories counts as unique.
    """
    if not hasattr(eps, "obs"):
        return np.arange(len(eps))
    ends = (eps.obs[eps.start[:-1] + np.arange(len(eps))], eps.obs[eps.start[1:] + np.arange(len(eps))])
    summary = np.column_stack([eps.lengths, np.nan_to_num(eps.returns), *ends])  # NaN never equals NaN
    _, first, group, n = np.unique(summary, axis=0, return_index=True, return_inverse=True, return_counts=True)
    out, alike = first[group.reshape(-1)], np.flatnonzero(n[group.reshape(-1)] > 1)
    if len(alike):  # different paths may share length, return and both ends, so compare their digests
        _, first, group = np.unique(digests(eps.take(alike)), axis=0, return_index=True, return_inverse=True)
        out[alike] = alike[first[group.reshape(-1)]]
    return out


def fingerprint(eps: Episodes) -> int:
    """Return a checksum of lengths and rewards; it does not depend on actions."""
    return zlib.crc32(np.ascontiguousarray(eps.rew).tobytes(), zlib.crc32(eps.start.tobytes()))


def _split(eps: Episodes, keep: np.ndarray, hide: np.ndarray, **recipe) -> Split:
    return Split(keep.astype(np.int64), hide.astype(np.int64), recipe, len(eps), fingerprint(eps))


def _draw(pool: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `n` elements of the pool; if `n` exceeds its size, each element is drawn equally often, up to one."""
    whole, rest = divmod(n, len(pool))
    return np.sort(np.concatenate([np.tile(pool, whole), rng.choice(pool, rest, replace=False)]))


def _rng(seed: int) -> np.random.Generator:
    if seed < 0:
        raise DataError(f"--seed is {seed}; give a whole number from 0 up")
    return np.random.default_rng(seed)


def _round(x: float) -> int:
    """Round half up; values that are below a half only by a rounding error count as a half."""
    return math.floor(x + 0.5 + 1e-9)


def _count(eps: Episodes, fraction: float, flag: str) -> int:
    """Return how many trajectories a share of the dataset is, at least 1."""
    if not 0 < fraction <= 1:
        raise DataError(f"{flag} is {fraction:g}; give a share above 0 and at most 1")
    n = _round(fraction * len(eps))
    if n == 0:
        need = math.ceil(0.5 / fraction)
        raise DataError(
            f"{eps.meta.source}: {fraction:g} of {len(eps)} trajectories rounds to none; give at least {need} "
            f"trajectories or {flag} {math.ceil(100 / len(eps)) / 100:g}"
        )
    return n


def _check_all_labelled(eps: Episodes) -> None:
    """Raise DataError if an action is missing."""
    partial = np.flatnonzero(eps.labelled_share < 1)
    if len(partial):
        raise DataError(
            f"{eps.meta.source}: {len(partial)} of {len(eps)} trajectories already lack actions (the first is number "
            f"{partial[0]}); use the data as it is, without a split"
        )


def _check_all_rewarded(eps: Episodes) -> None:
    """Raise DataError if a trajectory has no rewards."""
    missing = np.flatnonzero(np.isnan(eps.returns))
    if len(missing):
        raise DataError(
            f"{eps.meta.source}: {len(missing)} of {len(eps)} trajectories have no rewards (the first is number "
            f"{missing[0]}), so they cannot be ordered by return; add rewards, or draw from all trajectories with "
            "--quality 100"
        )
