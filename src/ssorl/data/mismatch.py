"""Numeric evidence that two sets of states differ in units, offset, order or rate, or hardly overlap.

Every threshold lies between what the simulated datasets show, where only the policy differs between labelled and
unlabelled trajectories, and what a fault shows; `benchmarks/compare_table.py` measures both.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import CONSTANT_TOL, Episodes

SAMPLE = 10_000  # steps that are compared of each side
FEW = 200  # with fewer steps, order, rate and overlap are not judged
LEVELS = np.linspace(0.01, 0.99, 41)  # quantiles that describe the distribution of a dimension
STEP_FACTOR, SPREAD_FACTOR = 8.0, 4.0  # units differ if steps and spread differ by these; policies: at most 3.7 and 13
ENOUGH = 3  # with fewer trajectories, a difference in units needs more evidence
GAP = 0.1  # ranges are apart if the gap between them exceeds this share of the wider one; policies: they overlap
SWAPPED = 0.6  # dimensions are swapped if swapping them leaves this share of their mismatch; policies: at least 0.86
IGNORED = 0.2  # differences between correlations that do not count, as few trajectories leave that much to chance
FLOOR = 0.3  # added to both mismatches, so that a ratio of small ones does not count
MANY = 40  # with more dimensions, only swaps that make distributions more alike are tried
PAIRED = 0.6  # R² of the change of one dimension given another, from which the other counts as its velocity
RATE = 1.35  # rates differ if changes per velocity differ by this; policies: at most 1.2
RATE_UNPAIRED = 1.8  # likewise, without velocities, if changes and changes of changes both differ by this
RATE_LOST = 1.3  # likewise, if velocities explain changes in one set only
UNLIKE, UNLIKE_SHARE = 3.0, 0.5  # see `unlike_share`; policies: at most 0.34 of the states
NEAREST = 2000  # states whose nearest neighbours are searched, among twice as many


class States(NamedTuple):
    """Sampled states of successive steps."""

    now: np.ndarray  # [N, O] float64
    next: np.ndarray  # [N, O]
    after: np.ndarray  # [N, O], two steps after `now`
    episode: np.ndarray  # [N], the trajectory of each

    def permuted(self, order: np.ndarray) -> States:
        """Return the states with their dimensions in another order."""
        return States(self.now[:, order], self.next[:, order], self.after[:, order], self.episode)


def sample(eps: Episodes, steps: np.ndarray) -> States:
    """Return states of at most `SAMPLE` of these steps [N]; the last step of a trajectory is left out."""
    if len(steps) > SAMPLE:
        steps = np.sort(np.random.default_rng(0).choice(steps, SAMPLE, replace=False))
    episode = np.searchsorted(eps.start, steps, side="right") - 1
    inner = steps + 2 <= eps.start[episode + 1]
    row = (steps + episode)[inner]
    now, following, after = (eps.obs[row + i].astype(np.float64) for i in range(3))
    return States(now, following, after, episode[inner])


def moving(states: States) -> np.ndarray:
    """Return which dimensions vary, [O] bool."""
    if not len(states.now):
        return np.zeros(states.now.shape[1], bool)
    return np.ptp(states.now, axis=0) > CONSTANT_TOL * np.abs(states.now).max(0)


def scale_factors(a: States, b: States) -> np.ndarray:
    """Return by how much larger each dimension is in `b`, [O]; 1 where policies may explain the difference.

    Units scale the spread of a dimension and its change in a step alike. Of fewer than `ENOUGH` trajectories, each must
    vary less than every other one, because a dimension may happen to be almost still in one of them.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = b.now.std(0) / a.now.std(0)
        step = (b.next - b.now).std(0) / (a.next - a.now).std(0)
    known = moving(a) & moving(b) & np.isfinite(spread * step) & (spread * step > 0)
    larger = known & (spread >= SPREAD_FACTOR) & (step >= STEP_FACTOR)
    smaller = known & (spread <= 1 / SPREAD_FACTOR) & (step <= 1 / STEP_FACTOR)
    if min(len(np.unique(s.episode)) for s in (a, b)) < ENOUGH:
        (low, high), (low_b, high_b) = _spreads(a), _spreads(b)
        larger &= low_b >= SPREAD_FACTOR * high
        smaller &= high_b <= low / SPREAD_FACTOR
    return np.where(larger | smaller, np.sqrt(np.where(known, spread * step, 1)), 1.0)


def _spreads(states: States) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and the largest spread of each dimension within a trajectory, [O] each."""
    first = np.flatnonzero(np.diff(states.episode, prepend=-1))
    n = np.diff(first, append=len(states.episode))[:, None]
    mean = np.add.reduceat(states.now, first) / n
    square = np.add.reduceat((states.now - np.repeat(mean, n[:, 0], axis=0)) ** 2, first) / n
    within = np.sqrt(square[n[:, 0] >= min(10, n.max())])
    return within.min(0), within.max(0)


def gaps(a: States, b: States) -> np.ndarray:
    """Return by how much each dimension is shifted in `b`, [O]: the difference of medians where ranges are apart."""
    (low, high), (low_b, high_b) = (np.quantile(s.now, [0.01, 0.99], axis=0) for s in (a, b))
    apart = np.maximum(low - high_b, low_b - high)
    size = np.maximum(np.abs(np.median(a.now, 0)), np.abs(np.median(b.now, 0)))
    wide = np.maximum(high - low, high_b - low_b)
    found = apart > np.maximum(GAP * wide, 1e-4 * size)
    return np.where(found, np.median(b.now, 0) - np.median(a.now, 0), 0.0)


# --- order of dimensions


class _Profile(NamedTuple):
    """What identifies the dimensions of states."""

    levels: np.ndarray  # [Q, O], quantiles of the states
    step_levels: np.ndarray  # [Q, O], quantiles of their changes in a step
    spread: np.ndarray  # [O]
    step: np.ndarray  # [O], standard deviation of the changes
    relations: np.ndarray  # [3, O, O], correlations: of states, of changes with states, and of changes

    def permuted(self, order: np.ndarray) -> _Profile:
        relations = self.relations[:, order][:, :, order]
        return _Profile(
            self.levels[:, order], self.step_levels[:, order], self.spread[order], self.step[order], relations
        )


def _profile(states: States) -> _Profile:
    step, middle = states.next - states.now, (states.next + states.now) / 2
    relations = np.stack([_correlation(states.now, states.now), _correlation(step, middle), _correlation(step, step)])
    levels, step_levels = (np.quantile(x, LEVELS, axis=0) for x in (states.now, step))
    return _Profile(levels, step_levels, states.now.std(0), step.std(0), relations)


def _correlation(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the correlation of each dimension of `x` with each of `y`, [O, O]."""
    x, y = x - x.mean(0), y - y.mean(0)
    return x.T @ y / len(x) / np.maximum(np.outer(x.std(0), y.std(0)), 1e-30)


def _distances(a: _Profile, b: _Profile) -> np.ndarray:
    """Return the distance of each dimension of `a` from each of `b`, by their distributions alone, [O, O]."""
    found = np.zeros((len(a.spread), len(b.spread)))
    for x, y, s, u in ((a.levels, b.levels, a.spread, b.spread), (a.step_levels, b.step_levels, a.step, b.step)):
        size = np.sqrt(np.maximum(np.outer(s, u), 1e-30))
        found += np.stack([np.abs(x - column[:, None]).mean(0) for column in y.T], axis=1) / size
    return found


def swaps(a: States, b: States) -> list[tuple[int, int]]:
    """Return the pairs of dimensions of `b` that must be swapped so that they are those of `a`.

    Dimensions are known by their distributions and by how they and their changes correlate with the others. A pair is
    returned only if swapping it removes most of its mismatch, so pairs that resemble each other are not found.
    """
    usable = np.flatnonzero(moving(a) & moving(b))
    first, second = (_profile(s.permuted(usable)) for s in (a, b))
    n, partner, found = len(usable), _velocities(first), []
    for _ in range(n // 2):
        distance, gain, best = _distances(first, second), 0.0, ()
        used = {i for pair in found for i in pair}
        for i, j in combinations(range(n), 2):
            if n > MANY and distance[i, j] + distance[j, i] >= distance[i, i] + distance[j, j]:
                continue
            for pairs in _moves(i, j, partner):
                if used & {k for pair in pairs for k in pair}:
                    continue
                before, after = _mismatch(first, second, distance, pairs)
                ratio = (after + FLOOR) / (before + FLOOR)
                if ratio <= SWAPPED and before - after > gain:
                    gain, best = before - after, pairs
        if not best:
            break
        found += best
        second = second.permuted(swapped_order(n, best))
    return sorted((int(usable[i]), int(usable[j])) for i, j in found)


def _velocities(profile: _Profile) -> list[int | None]:
    """Return for each dimension the one that is its velocity, None if there is none."""
    strength = profile.relations[1] ** 2
    np.fill_diagonal(strength, 0)
    return [int(row.argmax()) if row.max() > PAIRED else None for row in strength] if len(strength) else []


def _moves(i: int, j: int, partner: list[int | None]) -> list[tuple[tuple[int, int], ...]]:
    """Return the swaps to try of dimensions `i` and `j`: alone, and together with their velocities."""
    k, m = partner[i], partner[j]
    alone = ((i, j),)
    return [alone] if k is None or m is None or len({i, j, k, m}) < 4 else [alone, (*alone, (min(k, m), max(k, m)))]


def swapped_order(n: int, pairs: Iterable[tuple[int, int]]) -> np.ndarray:
    """Return the order of `n` dimensions once these pairs are swapped, [n]."""
    order = np.arange(n)
    for i, j in pairs:
        order[[i, j]] = order[[j, i]]
    return order


def _mismatch(
    a: _Profile, b: _Profile, distance: np.ndarray, pairs: tuple[tuple[int, int], ...]
) -> tuple[float, float]:
    """Return how badly the dimensions of these pairs fit before and after the swap."""
    chosen = np.array([i for pair in pairs for i in pair])
    identity, order, out = np.arange(len(distance)), swapped_order(len(distance), pairs), []
    for p in (identity, order):
        rows = a.relations[:, chosen] - b.relations[:, p[chosen]][:, :, p]
        columns = a.relations[:, :, chosen] - b.relations[:, p][:, :, p[chosen]]
        related = sum(np.maximum(np.abs(x) - IGNORED, 0).sum() for x in (rows, columns))
        out.append(float(distance[chosen, p[chosen]].sum() + related))
    return out[0], out[1]


# --- rate and overlap


def rate_factor(a: States, b: States) -> float:
    """Return how many times as long a step of `b` lasts, 1 where policies may explain the difference.

    A position changes by its velocity times the duration of a step, whatever the policy. Without velocities, a longer
    step shows only in larger changes, and changes of changes, at an equal spread.
    """
    (slope, fit), (slope_b, fit_b) = (_slopes(s) for s in (a, b))
    if not len(fit):
        return 1.0
    i, j = np.arange(len(fit)), fit.argmax(1)
    paired, paired_b = fit[i, j] > PAIRED, fit_b[i, j] > PAIRED
    both = paired & paired_b
    if both.any():
        factor = float(np.median(slope_b[i, j][both] / slope[i, j][both]))
        return factor if factor >= RATE or 0 < factor <= 1 / RATE else 1.0
    changes, bends = _roughness(a, b)
    threshold = RATE_LOST if paired.any() or (fit_b > PAIRED).any() else RATE_UNPAIRED
    same = min(changes, bends) >= threshold or max(changes, bends) <= 1 / threshold
    return changes if same else 1.0


def _slopes(states: States) -> tuple[np.ndarray, np.ndarray]:
    """Return slope and R² of the change of each dimension given each other one, [O, O] each."""
    step, middle = states.next - states.now, (states.next + states.now) / 2
    step, middle = step - step.mean(0), middle - middle.mean(0)
    slope = step.T @ middle / len(step) / np.maximum(middle.var(0), 1e-30)
    fit = _correlation(step, middle) ** 2
    np.fill_diagonal(fit, 0)
    return slope, fit


def _roughness(a: States, b: States) -> tuple[float, float]:
    """Return how many times larger changes are in `b` relative to the spread, and changes of changes to changes."""
    use = moving(a) & moving(b)
    if not use.any():
        return 1.0, 1.0
    sizes = []
    for s in (a, b):
        step, bend = s.next - s.now, s.now - 2 * s.next + s.after
        sizes.append([np.maximum(x.std(0)[use], 1e-30) for x in (s.now, step, bend)])
    (spread, step, bend), (spread_b, step_b, bend_b) = sizes
    return float(np.median(step_b / spread_b * spread / step)), float(np.median(bend_b / step_b * step / bend))


def unlike_share(a: States, b: States) -> float:
    """Return the share of the states of `b` that are unlike every state of `a`.

    Such a state is more than `UNLIKE` times as far from the nearest state of `a` as almost all (99 %) of these are from
    the nearest one of another trajectory.
    """
    use = moving(a)
    if len(np.unique(a.episode)) < 2 or not use.any():
        return 0.0
    mean, std = a.now[:, use].mean(0), a.now[:, use].std(0)
    picked = np.linspace(0, len(a.now) - 1, min(len(a.now), 2 * NEAREST)).astype(int)
    others = np.linspace(0, len(b.now) - 1, min(len(b.now), NEAREST)).astype(int)
    known, new = (np.clip((s.now[k][:, use] - mean) / std, -5, 5) for s, k in ((a, picked), (b, others)))
    episode = a.episode[picked]
    usual = np.quantile(_nearest(known[::2], known, episode[::2], episode), 0.99)
    return float((_nearest(new, known) > UNLIKE * usual).mean())


def _nearest(
    x: np.ndarray, known: np.ndarray, episode: np.ndarray | None = None, known_episode: np.ndarray | None = None
) -> np.ndarray:
    """Return the distance of each row of `x` to the nearest known one, [N]; with episodes, of another episode."""
    found = np.empty(len(x))
    for k in range(0, len(x), 500):
        rows = x[k : k + 500]
        squares = (rows**2).sum(1)[:, None] + (known**2).sum(1) - 2 * rows @ known.T
        if episode is not None and known_episode is not None:
            squares[episode[k : k + 500, None] == known_episode] = np.inf
        found[k : k + 500] = np.sqrt(np.maximum(squares.min(1), 0))
    return found
