"""Choose trajectories, or parts of them, whose labels would cover the unlabelled states: the criterion `cover`.

Each transition is a point: the standardised s_t and s_{t+1}, in their principal components. A target is a sampled
unlabelled transition, and its distance is that to the nearest labelled one. Greedily, the candidate is chosen that
lowers the sum of the targets' distances most. Only states are read, so hidden actions cannot leak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.data.split import Split, fingerprint
from ssorl.data.stats import standardiser
from ssorl.utils.errors import DataError

N_SAMPLES = 20_000  # transitions, at one stride for all trajectories
N_TARGETS = 3_000
COMPONENTS = 12
LARGEST = 60_000_000  # entries of the table of distances
BLOCK = 4_000_000
LEAST_SAMPLES = 2  # of each candidate


class Candidate(NamedTuple):
    """A trajectory or a part of it."""

    trajectory: int
    first_step: int  # in the trajectory
    last_step: int  # inclusive


class Pick(NamedTuple):
    """A candidate that was chosen, and what changes with it."""

    candidate: Candidate
    covers: float  # share of the targets that are nearer to it than to any label before
    distance: float  # mean distance of the other unlabelled targets to the nearest label afterwards


class Cover(NamedTuple):
    """Result of `cover`."""

    picks: list[Pick]
    distance: float  # mean distance of the targets to the nearest label before; without labels, a guess
    targets: np.ndarray  # [T, C] points of the targets, most important component first
    labelled: np.ndarray  # [N, C] points of labelled transitions
    chosen: list[np.ndarray]  # of each pick, its points, [n, C]


def candidates(eps: Episodes, length: int | None = None) -> list[Candidate]:
    """Return the trajectories that lack actions, or their parts.

    Args:
        eps: the trajectories.
        length: steps of a part; by default, whole trajectories. The last part of a trajectory may be shorter.
    """
    result = []
    lacking = ~eps.labelled
    for e in np.flatnonzero(eps.labelled_share < 1):
        steps, n = lacking[eps.start[e] : eps.start[e + 1]], int(eps.lengths[e])
        size = n if length is None else length
        result += [
            Candidate(int(e), first, min(first + size, n) - 1)
            for first in range(0, n, size)
            if steps[first : first + size].any()
        ]
    return result


def cover(
    eps: Episodes,
    units: Sequence[Candidate],
    budget: float,
    costs: np.ndarray | None = None,
    seed: int = 0,
) -> Cover:
    """Choose candidates until the budget is used up.

    Args:
        eps: the trajectories; only states, and which actions are missing, are read.
        units: the candidates, in the order of their steps.
        budget: number of candidates, or their cost in all.
        costs: cost of each candidate, [U], above 0; then the gain for each unit of cost decides.
        seed: of the sample of targets.

    Returns:
        The chosen candidates in order, with what they cover.
    """
    rng = np.random.default_rng(seed)
    step, unit = _sample(eps, units)
    known = np.flatnonzero(eps.labelled)
    known = known[:: max(1, len(known) * 2 // N_SAMPLES)]
    points, spread = _points(eps, np.concatenate([step, known]))
    samples, labelled = points[: len(step)], points[len(step) :]
    pool = np.flatnonzero(~eps.labelled[step])
    weight = _steps_of(units)[unit] / np.bincount(unit, minlength=len(units))[unit]
    n_targets = max(100, min(N_TARGETS, LARGEST // max(len(units), 1)))
    share = weight[pool] / weight[pool].sum()
    drawn = rng.choice(pool, min(n_targets, len(pool)), replace=False, p=share) if len(pool) > n_targets else pool
    targets, owner = samples[drawn], unit[drawn]
    table = _distances(targets, samples, unit, len(units))
    if len(labelled):
        now = _distances(targets, labelled, np.zeros(len(labelled), np.int64), 1)[:, 0]
    else:
        now = np.full(len(targets), 2 * spread, np.float32)
    before, left, picks, chosen = float(now.mean()), float(budget), [], []
    open_ = np.ones(len(units), bool)
    price = np.ones(len(units)) if costs is None else np.asarray(costs, np.float64)
    while (fits := open_ & (price <= left + 1e-9)).any():
        gain = np.maximum(now[:, None] - table, 0).sum(0) if len(units) * len(targets) < BLOCK else _gains(now, table)
        best = int(np.argmax(np.where(fits, gain / price, -1.0)))
        nearer = float((table[:, best] < now).mean())
        now = np.minimum(now, table[:, best])
        open_[best], left = False, left - price[best]
        others = open_[owner]
        rest = float(now[others].mean()) if others.any() else 0.0
        picks.append(Pick(units[best], nearer, rest))
        chosen.append(samples[unit == best])
    return Cover(picks, before, targets, labelled, chosen)


def suggested(eps: Episodes, fraction: float = 0.1, seed: int = 0) -> Split:
    """Return a split whose labelled trajectories are those that cover the states of all best.

    Args:
        eps: the dataset, with all actions; only its states are read.
        fraction: share of the trajectories to label.
        seed: of the sample of states.

    Raises:
        DataError: an action is missing, or `fraction` is out of range or selects no trajectory.
    """
    source = eps.meta.source
    if not hasattr(eps, "obs"):
        raise DataError(f"{source}: the setup suggested reads all states, so it cannot be used with --stream")
    if (eps.labelled_share < 1).any():
        raise DataError(f"{source}: lacks actions already; use `ssorl suggest`, or the data as it is without a split")
    n = round(fraction * len(eps)) if 0 < fraction <= 1 else 0
    if n == 0:
        raise DataError(f"{source}: --fraction {fraction:g} of {len(eps)} trajectories is none; give a larger share")
    bare = replace(eps, act=np.full_like(eps.act, np.nan))
    picks = cover(bare, candidates(bare), n, seed=seed).picks
    labelled = np.sort(np.array([pick.candidate.trajectory for pick in picks], np.int64))
    rest = np.setdiff1d(np.arange(len(eps)), labelled)
    recipe = {"kind": "suggested", "fraction": fraction, "seed": seed}
    return Split(labelled, rest, recipe, len(eps), fingerprint(eps))


def _steps_of(units: Sequence[Candidate]) -> np.ndarray:
    return np.array([u.last_step - u.first_step + 1 for u in units], np.int64)


def _sample(eps: Episodes, units: Sequence[Candidate]) -> tuple[np.ndarray, np.ndarray]:
    """Return steps of the dataset at one stride, at least two of each candidate, and whose they are."""
    sizes = _steps_of(units)
    stride = max(1, int(sizes.sum()) // N_SAMPLES)
    steps, owners = [], []
    for i, (u, n) in enumerate(zip(units, sizes, strict=True)):
        first = int(eps.start[u.trajectory]) + u.first_step
        own = np.arange(first + min(stride // 2, n - 1), first + n, stride)
        if len(own) < LEAST_SAMPLES <= n:
            own = first + np.array([n // 4, 3 * n // 4])
        steps.append(own)
        owners.append(np.full(len(own), i))
    return np.concatenate(steps), np.concatenate(owners)


def _points(eps: Episodes, steps: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the principal components of transitions, [N, C], and the median distance of two of them."""
    scale, row = standardiser(eps), eps.obs_row[steps]
    x = np.concatenate([scale(eps.obs[row]), scale(eps.obs[row + 1])], 1, dtype=np.float32)
    x -= x.mean(0)
    _, vectors = np.linalg.eigh((x.T @ x).astype(np.float64))
    points = (x @ vectors[:, ::-1][:, :COMPONENTS]).astype(np.float32)
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, len(points), (2, 2000))
    return points, float(np.median(np.linalg.norm(points[a] - points[b], axis=1)))


def _distances(targets: np.ndarray, samples: np.ndarray, owner: np.ndarray, n: int) -> np.ndarray:
    """Return the least distance of each target to the samples of each owner, [T, n]; owners ascend."""
    first = np.searchsorted(owner, np.arange(n))
    out = np.empty((len(targets), n), np.float32)
    squares, size = (samples**2).sum(1), max(1, BLOCK // max(len(samples), 1))
    for a in range(0, len(targets), size):
        part = targets[a : a + size]
        near = (part**2).sum(1)[:, None] + squares - 2 * part @ samples.T
        out[a : a + size] = np.sqrt(np.maximum(np.minimum.reduceat(near, first, axis=1), 0))
    return out


def _gains(now: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return by how much each candidate lowers the sum of the distances, [U], a block of targets at a time."""
    total, size = np.zeros(table.shape[1]), max(1, BLOCK // table.shape[1])
    for a in range(0, len(table), size):
        total += np.maximum(now[a : a + size, None] - table[a : a + size], 0).sum(0)
    return total
