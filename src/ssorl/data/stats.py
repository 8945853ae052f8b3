"""Dataset statistics: standardisation, profiles, warnings about unusual data, and duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes, Meta

TINY = 1e-30  # below this std, float32 cannot divide with full precision: the dimension counts as constant
MAX_CHOICES = 20  # whole-number actions with at most this many values per dimension may be categories
MIN_REWARD = 0.03  # warn if no reward is larger in magnitude than this
MAX_REWARD = 100.0  # warn if the mean magnitude of rewards is above this
ROUNDING = 1e-5  # numbers that differ by less than this share (or a tenth of it, absolute) differ by rounding only


class Standardiser(NamedTuple):
    """Mean and standard deviation of the observations; the std of a constant dimension is 1."""

    mean: np.ndarray  # [O] float32
    std: np.ndarray  # [O] float32

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """Return standardised observations of the same shape.

        Args:
            obs: observations [..., O].
        """
        return (obs - self.mean) / self.std


def standardiser(eps: Episodes) -> Standardiser:
    """Return the standardiser of all observations, of labelled and unlabelled trajectories alike."""
    return standardiser_from_moments(eps.obs.mean(0, dtype=np.float64), eps.obs.std(0, dtype=np.float64))


def standardiser_from_moments(mean: np.ndarray, std: np.ndarray) -> Standardiser:
    """Return the standardiser with these moments; the result does not depend on the unit of the observations.

    Args:
        mean: mean of the observations [O] float64.
        std: standard deviation of the observations [O] float64.
    """
    constant = std <= np.maximum(1e-6 * np.abs(mean), TINY)
    return Standardiser(mean.astype(np.float32), np.where(constant, 1, std).astype(np.float32))


def moments_and_range(values: np.ndarray) -> dict[str, float]:
    """Return `mean`, `std`, `min` and `max` of an array."""
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": float(values.min()),
        "max": float(values.max()),
    }


def profile(eps: Episodes) -> dict:
    """Return the summary that `ssorl data show` prints: sizes, returns, ranges, warnings and notes, as plain values."""
    norm = eps.normalised_returns()
    act = eps.act[eps.labelled]
    return {
        "source": eps.meta.source,
        "env": eps.meta.env,
        "trajectories": eps.n_episodes,
        "steps": eps.n_steps,
        "observation_size": eps.n_obs,
        "action_size": eps.n_act,
        "labelled_share": float(eps.labelled.mean()),
        "labelled_trajectories": int((eps.labelled_share == 1).sum()),
        "partly_labelled_trajectories": int(((eps.labelled_share > 0) & (eps.labelled_share < 1)).sum()),
        "terminated_share": float(eps.terminated[eps.start[1:] - 1].mean()),
        "length": moments_and_range(eps.lengths),
        "return": moments_and_range(eps.returns[eps.rewarded]) if eps.rewarded.any() else None,
        "normalised_return": None if norm is None or not eps.rewarded.any() else moments_and_range(norm[eps.rewarded]),
        "action_range": {
            "low": list(eps.meta.act_low),
            "high": list(eps.meta.act_high),
            "known": eps.meta.act_range,
            "seen_low": act.min(0).tolist() if len(act) else None,
            "seen_high": act.max(0).tolist() if len(act) else None,
        },
        "observation_range": {"low": eps.obs.min(0).tolist(), "high": eps.obs.max(0).tolist()},
        "warnings": data_warnings(eps),
        "notes": list(eps.meta.notes),
    }


def differing_rows(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the indices of rows in which two arrays differ by more than rounding errors.

    Args:
        a: array [N, ...].
        b: array of the same shape. Differences from or to NaN do not count.
    """
    axes = tuple(range(1, a.ndim))
    rows = np.flatnonzero((a != b).any(axes))
    x, y = a[rows].astype(np.float64), b[rows].astype(np.float64)
    return rows[(np.abs(x - y) > ROUNDING * (np.abs(y) + 0.1)).any(axes)]


def exceeds_float32(kind: np.dtype) -> bool:
    """Return whether float32 may lose precision: for float64 and for integers of more than 16 bits."""
    return kind.char == "d" or (kind.kind in "iu" and kind.itemsize > 2)


def precision_warnings(obs: np.ndarray) -> list[str]:
    """Return a warning for each observation dimension whose changes float32 mostly loses, such as a clock.

    Args:
        obs: observations [N, O] in the precision of the file.
    """
    if not exceeds_float32(obs.dtype) or not len(obs):
        return []
    out = []
    with np.errstate(all="ignore"):
        low, high = obs.min(0).astype(np.float64), obs.max(0).astype(np.float64)
        size = np.maximum(np.abs(low), np.abs(high))
        # Candidates are far from zero compared with their spread, which is larger than a rounding error.
        for dim in np.flatnonzero((high - low < size / 8) & (high - low > 1e-11 * size)):
            changes = np.diff(obs[:, dim]) != 0
            lost = np.diff(obs[:, dim].astype(np.float32))[changes] == 0
            if lost.mean() > 0.5:
                out.append(
                    f"observation dimension {dim} is so far from zero that most of its changes are lost in float32, "
                    "which ssorl stores: subtract its first value before saving"
                )
    return out


def data_warnings(eps: Episodes) -> list[str]:
    """Return sentences about properties of the data that may harm training."""
    out = []
    low, high = eps.obs.min(0), eps.obs.max(0)
    constant = np.flatnonzero(low == high)
    if len(constant):
        out.append(f"observation dimensions {join_names(constant)} never change")
    act = eps.act[eps.labelled]
    if len(act):
        constant = np.flatnonzero(act.min(0) == act.max(0))
        if len(constant):
            out.append(f"action dimensions {join_names(constant)} never change")
        out += _range_warnings(act, eps.meta) + _category_warnings(act)
    elif eps.n_steps:
        out.append("no step has an action, so no inverse dynamics model can be trained on this data")
    if not eps.rewarded.all():
        subject = f"{(~eps.rewarded).sum()} trajectories have no" if eps.rewarded.any() else "no trajectory has"
        out.append(
            f"{subject} rewards: labelling and behaviour cloning need none, but other agents and splits by return do"
        )
    rew = eps.rew if eps.rewarded.all() else eps.rew[~np.isnan(eps.rew)]
    if len(rew) and (rew == rew[0]).all():
        out.append(f"every reward is {rew[0]:g}")
    largest, mean = np.abs(rew).max(initial=0), np.abs(rew).mean(dtype=np.float64) if len(rew) else 0.0
    if 0 < largest < MIN_REWARD or mean > MAX_REWARD:
        out.append(
            f"rewards have a mean magnitude of {mean:.2g} and at most {largest:.2g}, but td3bc, cql and iql are tuned "
            "for about 1 per step: scale them before saving"
        )
    copies = duplicates(eps)
    if len(copies):
        out.append(f"{len(copies)} trajectories are copies of an earlier one (first: trajectory {copies[0]})")
    return out


def _range_warnings(act: np.ndarray, meta: Meta) -> list[str]:
    """Return warnings about the range of actions [N, A]."""
    out, low, high = [], meta.low, meta.high
    inferred = (meta.act_range == "inferred") & ~((low == -1) & (high == 1))  # such bounds are reached by construction
    slack = 1e-3 * (high - low)
    at_bound = ((act <= low + slack) | (act >= high - slack))[:, ~inferred]
    if at_bound.size and at_bound.mean() > 0.05:
        out.append(f"{at_bound.mean():.0%} of the action values are at a bound of their range")
    if inferred.any():
        dims = join_names(np.flatnonzero(inferred))
        where = "" if inferred.all() else f" in dimensions {dims}, and [-1, 1] in the others"
        out.append(
            f"the data declares no action range, so the observed range is used{where}; if the robot can do more, "
            "declare its range with `ssorl data convert --action-range`"
        )
    return out


def _category_warnings(act: np.ndarray) -> list[str]:
    """Return a warning if actions [N, A] may be categories that are stored as whole numbers."""
    if (act.min(0) == act.max(0)).all() or (act != np.rint(act)).any():
        return []
    n = max(len(np.unique(column)) for column in act.T)
    if n > MAX_CHOICES:
        return []
    return [
        f"actions are whole numbers with at most {n} values per dimension: ssorl treats them as continuous, so if they "
        "are categories, such as buttons, its labels and policies lie between them"
    ]


def duplicates(eps: Episodes) -> np.ndarray:
    """Return the indices of trajectories whose observations and rewards equal those of an earlier one exactly."""
    _, first = np.unique(digests(eps), axis=0, return_index=True)
    return np.setdiff1d(np.arange(len(eps)), first)


def digests(eps: Episodes) -> np.ndarray:
    """Return a digest of the observations and rewards of each trajectory, [E, 3] uint64; equal data, equal digest."""
    rng = np.random.default_rng(0)

    def digest(values: np.ndarray, start: np.ndarray) -> np.ndarray:
        # Sums of integers modulo 2^64 are exact in any order, so equal trajectories have equal digests.
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32).reshape(len(values), -1)
        row = np.zeros(len(values), np.uint64)
        for dim in range(bits.shape[1]):
            row += bits[:, dim].astype(np.uint64) * rng.integers(1, 2**63, dtype=np.uint64)
        position = np.arange(len(values)) - np.repeat(start[:-1], np.diff(start))
        mixed = (row ^ (row >> np.uint64(29))) * (
            np.uint64(0x9E3779B97F4A7C15) + np.uint64(2) * position.astype(np.uint64)
        )
        return np.add.reduceat(mixed, start[:-1])

    return np.stack(
        [
            eps.lengths.astype(np.uint64),
            digest(eps.obs, eps.start + np.arange(len(eps.start))),
            digest(eps.rew, eps.start),
        ],
        axis=1,
    )


def join_names(names: Sequence | np.ndarray, n: int = 8) -> str:
    """Return names as a list in words, such as "a, b and 3 more".

    Args:
        names: names or numbers.
        n: how many of them to write.
    """
    text = ", ".join(str(name) for name in names[:n])
    return text + (f" and {len(names) - n} more" if len(names) > n else "")
