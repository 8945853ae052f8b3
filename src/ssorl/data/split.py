"""Which trajectories keep their actions: the coupled, decoupled and wide-subsample setups of the paper.

A split is drawn from returns alone, is a small value that can be saved, and `apply` writes NaN over every action it
hides. What leaves `apply` depends on no hidden action; `truth` hands those out apart, for diagnostics only.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from ssorl.data.episodes import Episodes, action_range
from ssorl.data.stats import digests
from ssorl.data.validate import escaped
from ssorl.utils.errors import DataError
from ssorl.utils.files import DamagedError, read_json, write_json

Third = Literal["low", "med", "high"]
THIRDS: tuple[Third, ...] = ("low", "med", "high")


@dataclass(frozen=True, eq=False)
class Split:
    """Numbers of trajectories, drawn from one dataset. A trajectory may stand in it more than once."""

    labelled: np.ndarray  # [L] int64, ascending
    unlabelled: np.ndarray  # [U] int64, ascending
    recipe: dict  # kind, parameters and seed: how it was made
    n_episodes: int  # trajectories of the dataset it was drawn from
    fingerprint: int  # of that dataset's lengths and rewards, never of its actions

    def save(self, path: Path | str) -> None:
        """Write it as JSON."""
        body = {**vars(self), "labelled": self.labelled.tolist(), "unlabelled": self.unlabelled.tolist()}
        if Path(path).is_dir():
            raise DataError(f"{path}: is a folder; name the file that the split is to be written to")
        write_json(path, body)

    @classmethod
    def load(cls, path: Path | str) -> Split:
        """Read what `save` wrote."""
        try:
            body = read_json(path)
            for name in ("labelled", "unlabelled"):
                body[name] = np.asarray(body[name], np.int64).reshape(-1)
            return cls(**body)
        except (OSError, ValueError, TypeError, KeyError, OverflowError, DamagedError) as err:
            reason = escaped(err)
            raise DataError(f"{path}: cannot be read as a split ({reason}); make it with `ssorl data split`") from err


def coupled(eps: Episodes, fraction: float = 0.1, quality: float = 50, seed: int = 0) -> Split:
    """`fraction` of all trajectories, drawn from the bottom `quality` % by return, keep their actions.

    Copies of one trajectory, as the wide subsample has them, stay together: what one shows is not hidden in another.
    """
    _all_have_actions(eps)
    n_labelled = _count(eps, fraction, "--fraction")
    if not 0 < quality <= 100:
        raise DataError(f"quality is {quality:g}; it is a percentage above 0 and at most 100")
    pool = order_by_return(eps)[: _round(quality / 100 * len(eps))]
    if len(pool) < n_labelled:
        raise DataError(
            f"{eps.meta.source}: the bottom {quality:g} % has {len(pool)} of {len(eps)} trajectories but {n_labelled} "
            f"are to keep their actions; raise --quality to {100 * fraction:g} or more, or lower --fraction"
        )
    rng, first = _rng(seed), first_copies(eps)
    if np.array_equal(first, np.arange(len(eps))):
        labelled = np.sort(rng.choice(pool, n_labelled, replace=False))
    else:
        chosen = rng.permutation(np.unique(first[pool]))
        enough = np.searchsorted(np.cumsum(np.bincount(first)[chosen]), n_labelled) + 1
        labelled = np.flatnonzero(np.isin(first, chosen[:enough]))
    rest = np.setdiff1d(np.arange(len(eps)), labelled)
    return _split(eps, labelled, rest, kind="coupled", fraction=fraction, quality=quality, seed=seed)


def decoupled(
    eps: Episodes,
    labelled: Third = "low",
    labelled_fraction: float = 0.1,
    unlabelled: Third = "high",
    unlabelled_fraction: float = 0.1,
    seed: int = 0,
) -> Split:
    """Labelled trajectories from one third by return, unlabelled ones from one third; sizes as shares of the dataset.

    Where one third serves both, no trajectory is in both; if it has too few, they are shared out in proportion. Where
    there are fewer than are asked for (the paper asks for half of the dataset from a third of it), each stands in the
    split equally often, up to one.
    """
    _all_have_actions(eps)
    for third in (labelled, unlabelled):
        if third not in THIRDS:
            raise DataError(f"{third!r} is no third of the data; choose one of {', '.join(THIRDS)}")
    n_labelled = _count(eps, labelled_fraction, "--labelled-fraction")
    n_unlabelled = _count(eps, unlabelled_fraction, "--unlabelled-fraction")
    cuts = [_round(len(eps) * i / 3) for i in range(4)]
    order, rng = order_by_return(eps), _rng(seed)
    pools = {name: order[a:b] for name, a, b in zip(THIRDS, cuts[:-1], cuts[1:], strict=True)}
    if not all(len(p) for p in pools.values()):
        raise DataError(f"{eps.meta.source}: {len(eps)} trajectories cannot be cut into thirds; at least 3 are needed")
    pool, rest, both = pools[labelled], pools[unlabelled], n_labelled + n_unlabelled
    if labelled == unlabelled and both > len(pool) > 1:
        cut = min(max(_round(len(pool) * n_labelled / both), 1), len(pool) - 1)
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
    """The wide subsample: draws that favour rare returns, all with their actions; split the result further as you like.

    The bins are equally wide, so their upper returns are linearly spaced up to the highest; each draw picks a bin with
    weight 1/n_i among those that hold any trajectory, then one of its trajectories uniformly. Draws may repeat.
    """
    upper = np.linspace(eps.returns.min(), eps.returns.max(), n_bins + 1)[1:]
    upper[-1] = eps.returns.max()  # against rounding: the best trajectory is in the last bin
    bin_of = np.searchsorted(upper, eps.returns, side="left")
    size = np.bincount(bin_of, minlength=n_bins)
    # Picking bin i with weight 1/n_i, then one of n_i, gives each of its trajectories the weight 1/n_i².
    weight = 1.0 / size[bin_of].astype(np.float64) ** 2
    rng = _rng(seed)
    drawn = np.sort(rng.choice(len(eps), n_draws, p=weight / weight.sum()))
    return _split(eps, drawn, drawn[:0], kind="wide", n_draws=n_draws, n_bins=n_bins, seed=seed)


def apply(split: Split, eps: Episodes) -> Episodes:
    """The trajectories of the split, in the dataset's order, NaN over every hidden action."""
    chosen, hidden = split_members(split, eps)
    if np.array_equal(chosen, np.arange(len(eps))):
        act = eps.act.copy()  # the rest is shared: a split costs one action table
        out = eps
    else:
        out = eps.take(chosen)
        act = out.act
    act[np.repeat(hidden, out.lengths)] = np.nan
    meta = out.meta
    if meta.act_range != "declared":
        # A range guessed from all actions would tell of the hidden ones, so it is guessed again from the rest.
        meta = replace(meta, **action_range(act))
    return replace(out, act=act, meta=meta)


def truth(split: Split, eps: Episodes) -> np.ndarray:
    """The true actions of the steps that `apply` hides, NaN elsewhere, [S, A]. For diagnostics, never for training."""
    chosen, hidden = split_members(split, eps)
    full = eps.take(chosen)
    full.act[~np.repeat(hidden, full.lengths)] = np.nan
    return full.act


def order_by_return(eps: Episodes) -> np.ndarray:
    """Trajectories from the lowest return to the highest, ties in the dataset's order."""
    return np.argsort(eps.returns, kind="stable")


def split_members(split: Split, eps: Episodes) -> tuple[np.ndarray, np.ndarray]:
    """Trajectory numbers in ascending order, and which of them are hidden."""
    if len(eps) != split.n_episodes or fingerprint(eps) != split.fingerprint:
        raise DataError(
            f"{eps.meta.source}: the split was drawn from another dataset ({split.n_episodes} trajectories, these are "
            f"{len(eps)}); draw it again"
        )
    both = np.concatenate([split.labelled, split.unlabelled])
    hidden = np.repeat([False, True], [len(split.labelled), len(split.unlabelled)])
    if len(both) == 0 or both.min() < 0 or both.max() >= len(eps):
        raise DataError("the split names trajectories that are not there; draw it again")
    order = np.argsort(both, kind="stable")
    return both[order], hidden[order]


def first_copies(eps: Episodes) -> np.ndarray:
    """For each trajectory the number of the first with its states and rewards: its own, where it is no copy, [E].

    A stream does not hold the states that would tell; its trajectories are taken to be no copies.
    """
    if not hasattr(eps, "obs"):
        return np.arange(len(eps))
    ends = (eps.obs[eps.start[:-1] + np.arange(len(eps))], eps.obs[eps.start[1:] + np.arange(len(eps))])
    told = np.column_stack([eps.lengths, eps.returns, *ends])
    _, first, which, n = np.unique(told, axis=0, return_index=True, return_inverse=True, return_counts=True)
    out, alike = first[which.reshape(-1)], np.flatnonzero(n[which.reshape(-1)] > 1)
    if len(alike):  # with one start and one goal, different ways between them may have as many steps and one return
        _, first, which = np.unique(digests(eps.take(alike)), axis=0, return_index=True, return_inverse=True)
        out[alike] = alike[first[which.reshape(-1)]]
    return out


def fingerprint(eps: Episodes) -> int:
    """A checksum of lengths and rewards: the same data has the same one whatever its actions."""
    return zlib.crc32(np.ascontiguousarray(eps.rew).tobytes(), zlib.crc32(eps.start.tobytes()))


def _split(eps: Episodes, keep: np.ndarray, hide: np.ndarray, **recipe) -> Split:
    return Split(keep.astype(np.int64), hide.astype(np.int64), recipe, len(eps), fingerprint(eps))


def _draw(pool: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """`n` of the pool; past its size every member comes as often as any other, up to one."""
    whole, rest = divmod(n, len(pool))
    return np.sort(np.concatenate([np.tile(pool, whole), rng.choice(pool, rest, replace=False)]))


def _rng(seed: int) -> np.random.Generator:
    if seed < 0:
        raise DataError(f"--seed is {seed}; give a whole number from 0 up")
    return np.random.default_rng(seed)


def _round(x: float) -> int:
    return math.floor(x + 0.5 + 1e-9)


def _count(eps: Episodes, fraction: float, flag: str) -> int:
    if not 0 < fraction <= 1:
        raise DataError(f"{flag} is {fraction:g}; it is a share above 0 and at most 1")
    n = _round(fraction * len(eps))
    if n == 0:
        need = math.ceil(0.5 / fraction)
        raise DataError(
            f"{eps.meta.source}: {fraction:g} of {len(eps)} trajectories is none; give at least {need} trajectories or "
            f"{flag} {math.ceil(100 / len(eps)) / 100:g}"
        )
    return n


def _all_have_actions(eps: Episodes) -> None:
    lacking = np.flatnonzero(eps.labelled_share < 1)
    if len(lacking):
        raise DataError(
            f"{eps.meta.source}: {len(lacking)} of {len(eps)} trajectories lack actions already (the first is number "
            f"{lacking[0]}), so there is no truth to hide; use the data as it is, without a split"
        )
