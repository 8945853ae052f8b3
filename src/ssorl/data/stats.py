"""Numbers about trajectories: standardisation, profiles and what looks odd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes, Meta

TINY = 1e-30  # a deviation that float32 can no longer divide by with its full precision is none
FEW = 20  # as many whole numbers may be the names of choices
SMALL = 0.03  # rewards that are all smaller are unlike those that agents are made for,
LARGE = 100.0  # and those that are larger in the mean
CLOSE = 1e-5  # two states nearer than this, relative (or a tenth of it, absolute), differ by rounding


class Standardiser(NamedTuple):
    """Mean and deviation of the states; a constant dimension is centred and left unscaled."""

    mean: np.ndarray  # [O]
    std: np.ndarray  # [O]

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """Standardised states, [..., O]."""
        return (obs - self.mean) / self.std


def standardiser(eps: Episodes) -> Standardiser:
    """From all states, labelled or not: states are never hidden."""
    return standardiser_from_moments(eps.obs.mean(0, dtype=np.float64), eps.obs.std(0, dtype=np.float64))


def standardiser_from_moments(mean: np.ndarray, std: np.ndarray) -> Standardiser:
    """From the moments of all states, [O] float64. The unit that a state is told in makes no difference."""
    constant = std <= np.maximum(1e-6 * np.abs(mean), TINY)
    return Standardiser(mean.astype(np.float32), np.where(constant, 1, std).astype(np.float32))


def moments_and_range(values: np.ndarray) -> dict[str, float]:
    """Mean, standard deviation, min and max."""
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": float(values.min()),
        "max": float(values.max()),
    }


def profile(eps: Episodes) -> dict:
    """What `ssorl data show` tells, as plain values."""
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
        "return": moments_and_range(eps.returns),
        "normalised_return": None if norm is None else moments_and_range(norm),
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
    """The rows at which [N, …] and [N, …] differ by more than rounding; NaN differs from nothing."""
    axes = tuple(range(1, a.ndim))
    rows = np.flatnonzero((a != b).any(axes))
    x, y = a[rows].astype(np.float64), b[rows].astype(np.float64)
    return rows[(np.abs(x - y) > CLOSE * (np.abs(y) + 0.1)).any(axes)]


def exceeds_float32(kind: np.dtype) -> bool:
    """Whether a type tells numbers apart that float32 does not: float64, and integers of more than 16 bits."""
    return kind.char == "d" or (kind.kind in "iu" and kind.itemsize > 2)


def precision_warnings(obs: np.ndarray) -> list[str]:
    """What to say of states, [N, O], with a column that float32 holds still, such as a clock or a counter."""
    if not exceeds_float32(obs.dtype) or not len(obs):
        return []
    found = []
    with np.errstate(all="ignore"):
        low, high = obs.min(0).astype(np.float64), obs.max(0).astype(np.float64)
        size = np.maximum(np.abs(low), np.abs(high))
        # Far from zero for its spread, which is more than what rounding does to a constant.
        for dim in np.flatnonzero((high - low < size / 8) & (high - low > 1e-11 * size)):
            moved = np.diff(obs[:, dim]) != 0
            lost = np.diff(obs[:, dim].astype(np.float32))[moved] == 0
            if lost.mean() > 0.5:
                found.append(
                    f"observation dimension {dim} is so far from zero that float32, in which values are kept, loses "
                    "most of its changes: subtract its first value before saving"
                )
    return found


def data_warnings(eps: Episodes) -> list[str]:
    """Sentences about what a user may want to know before training."""
    found = []
    low, high = eps.obs.min(0), eps.obs.max(0)
    constant = np.flatnonzero(low == high)
    if len(constant):
        found.append(f"observation dimensions {join_names(constant)} never change")
    act = eps.act[eps.labelled]
    if len(act):
        stuck = np.flatnonzero(act.min(0) == act.max(0))
        if len(stuck):
            found.append(f"action dimensions {join_names(stuck)} never change")
        found += _of_range(act, eps.meta) + _of_choices(act)
    elif eps.n_steps:
        found.append("no step has an action: nothing can teach an inverse dynamics model")
    if (eps.rew == eps.rew[0]).all():
        found.append(f"every reward is {eps.rew[0]:g}")
    most, mean = np.abs(eps.rew).max(), np.abs(eps.rew).mean(dtype=np.float64)
    if 0 < most < SMALL or mean > LARGE:
        found.append(
            f"rewards are {mean:.2g} in size and at most {most:.2g}: td3bc, cql and iql are made for about 1 a step; "
            "multiply them before saving"
        )
    twins = duplicates(eps)
    if len(twins):
        found.append(f"{len(twins)} trajectories repeat an earlier one (first: trajectory {twins[0]})")
    return found


def _of_range(act: np.ndarray, meta: Meta) -> list[str]:
    """What to say of the range that actions, [N, A], are in."""
    found, low, high = [], meta.low, meta.high
    seen = (meta.act_range == "inferred") & ~((low == -1) & (high == 1))  # touched by construction
    slack = 1e-3 * (high - low)
    at_bound = ((act <= low + slack) | (act >= high - slack))[:, ~seen]
    if at_bound.size and at_bound.mean() > 0.05:
        found.append(f"{at_bound.mean():.0%} of the action values sit at a bound of their range")
    if seen.any():
        where = "" if seen.all() else f" in dimensions {join_names(np.flatnonzero(seen))}, and [-1, 1] in the others"
        found.append(
            f"no action range is declared: the range seen is taken for it{where}; if the robot can do more, declare it "
            "with `ssorl data convert --action-range`"
        )
    return found


def _of_choices(act: np.ndarray) -> list[str]:
    """What to say of actions, [N, A], that look like the numbers of choices."""
    if (act.min(0) == act.max(0)).all() or (act != np.rint(act)).any():
        return []
    n = max(len(np.unique(column)) for column in act.T)
    if n > FEW:
        return []
    return [
        f"actions are whole numbers with at most {n} values a dimension: ssorl takes them for amounts, so if they are "
        "choices, such as buttons, its labels and policies lie between them"
    ]


def duplicates(eps: Episodes) -> np.ndarray:
    """Trajectories whose observations and rewards equal, bit for bit, those of an earlier one."""
    _, first = np.unique(digests(eps), axis=0, return_index=True)
    return np.setdiff1d(np.arange(len(eps)), first)


def digests(eps: Episodes) -> np.ndarray:
    """What tells the observations and rewards of one trajectory from those of another, bit for bit, [E, 3] uint64."""
    rng = np.random.default_rng(0)

    def digest(values: np.ndarray, start: np.ndarray) -> np.ndarray:
        # A sum of bits times random odd weights, modulo 2^64: exact, so equal trajectories always agree.
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32).reshape(len(values), -1)
        row = np.zeros(len(values), np.uint64)
        for dim in range(bits.shape[1]):
            row += bits[:, dim].astype(np.uint64) * rng.integers(1, 2**63, dtype=np.uint64)
        place = np.arange(len(values)) - np.repeat(start[:-1], np.diff(start))
        mixed = (row ^ (row >> np.uint64(29))) * (
            np.uint64(0x9E3779B97F4A7C15) + np.uint64(2) * place.astype(np.uint64)
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
    """The first of some names or numbers, and how many more there are."""
    text = ", ".join(str(name) for name in names[:n])
    return text + (f" and {len(names) - n} more" if len(names) > n else "")
