"""Checks of an action column that need no model: equal values, limits, copies of states, repeated frames."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes

FEW_VALUES = 20  # a dimension with no more values than this is a choice, such as a gripper: it may well stand still
LEAST_RUN = 8  # steps that a dimension must stand still
CLOSE = 1e-6  # unexplained share of the variance at which one column is taken for a copy of another


class Suspect(NamedTuple):
    """One fault of one trajectory, before those of all trajectories are put together."""

    kind: str
    trajectory: int
    dimension: int | None
    value: float | tuple[int, ...]
    confidence: float
    column: int | None = None  # of the state, for copies


def runs_of_equal(values: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first step and the length of each run of equal values, [N], that lies in one trajectory."""
    first = np.ones(len(values), bool)
    first[1:] = values[1:] != values[:-1]
    first[start[:-1]] = True
    begin = np.flatnonzero(first)
    return begin, np.diff(np.append(begin, len(values)))


def clipped(eps: Episodes, skip: np.ndarray, judged: np.ndarray | None = None) -> tuple[list[Suspect], np.ndarray]:
    """Find dimensions that end at a limit inside the range that others fill.

    Args:
        eps: the trajectories.
        skip: entries of the actions to leave out, [S, A] bool.
        judged: [E] bool: the trajectories to look at; all by default.

    Returns:
        The suspects, and which entries of the actions lie at such a limit, [S, A] bool.
    """
    suspects, where = [], np.zeros(eps.act.shape, bool)
    if judged is not None:
        skip = skip | ~np.repeat(judged, eps.lengths)[:, None]
    for d in range(eps.n_act):
        column = np.where(skip[:, d], np.nan, eps.act[:, d])
        known = column[~np.isnan(column)]
        if len(known) < 2 or _has_few_values(known):
            continue
        near, far = float(known.min()), float(known.max())
        begin, _ = runs_of_equal(column, eps.start)
        episode, values = eps.episode_of_step[begin], column[begin]
        for sign, edge in ((1, far), (-1, near)):
            top = np.full(len(eps), -np.inf)
            np.fmax.at(top, episode, sign * values)
            hits = np.bincount(episode[sign * values >= top[episode] - 1e-6 * (far - near)], minlength=len(eps))
            inside = np.isfinite(top) & (top < sign * edge - 0.04 * (far - near))
            shared = np.round(top / max(1e-6 * (far - near), 1e-12))
            _, which, count = np.unique(shared, return_inverse=True, return_counts=True)
            many = (hits >= np.maximum(4, 0.005 * eps.lengths)) | (count[which] >= 3)
            for e in np.flatnonzero(inside & many):
                steps = slice(eps.start[e], eps.start[e + 1])
                where[steps, d] |= sign * column[steps] >= top[e] - 1e-6 * (far - near)
                suspects.append(Suspect("clipped", int(e), d, float(sign * top[e]), 0.95))
    return suspects, where


def frozen(eps: Episodes, skip: np.ndarray) -> tuple[list[Suspect], np.ndarray]:
    """Find dimensions that stand still for longer than in other trajectories.

    Args:
        eps: the trajectories.
        skip: entries of the actions to leave out, [S, A] bool.

    Returns:
        The suspects, and which entries of the actions they concern, [S, A] bool.
    """
    suspects, where = [], np.zeros(eps.act.shape, bool)
    low, high = eps.meta.low, eps.meta.high
    for d in range(eps.n_act):
        column = eps.act[:, d]
        known = column[~np.isnan(column)]
        if not len(known) or _has_few_values(known):
            continue
        begin, length = runs_of_equal(column, eps.start)
        episode, slack = eps.episode_of_step[begin], 1e-3 * (high[d] - low[d])
        bound = (column[begin] <= low[d] + slack) | (column[begin] >= high[d] - slack)
        for at_bound, least, factor in ((False, LEAST_RUN, 3), (True, 30, 5)):
            longest = np.ones(len(eps), np.int64)
            eligible = (bound == at_bound) & ~skip[begin, d]
            np.maximum.at(longest, episode[eligible], length[eligible])
            limit = max(least, factor * int(np.sort(longest)[: max(1, len(eps) // 2)].max()) + 5)
            bad = longest >= limit
            if at_bound:  # a saturated actuator is no fault unless it hardly moves at all
                bad &= longest >= 0.5 * eps.lengths
            for e in np.flatnonzero(bad):
                long = eligible & (episode == e) & (length >= limit)
                steps = np.concatenate([np.arange(b, b + n) for b, n in zip(begin[long], length[long], strict=True)])
                where[steps, d] = True
                suspects.append(Suspect("frozen", int(e), d, len(steps) / int(eps.lengths[e]), 0.99))
    return suspects, where


def _has_few_values(known: np.ndarray) -> bool:
    """Return whether a column is a choice or a constant rather than an amount."""
    return len(np.unique(known[:: max(1, len(known) // 20_000)])) <= FEW_VALUES


class Copies(NamedTuple):
    """How well columns of the states repeat the actions."""

    unexplained: np.ndarray  # [E, 2, O, A]: 1 - R² of an action on a column of s_t, and of s_{t+1}
    suspects: list[Suspect]


def copies(eps: Episodes, skip: np.ndarray) -> Copies:
    """Find actions that one column of the state repeats, up to offset and scale.

    Args:
        eps: the trajectories.
        skip: entries of the actions to leave out when computing what is usual, [S, A] bool.
    """
    n, o, a = len(eps), eps.n_obs, eps.n_act
    lack = np.ones((n, 2, o, a), np.float32)
    for e in range(n):
        act = eps.act[eps.start[e] : eps.start[e + 1]].astype(np.float64)
        known = ~np.isnan(act[:, 0])
        if known.sum() < 10:
            continue
        obs = eps.obs[eps.start[e] + e : eps.start[e + 1] + e + 1].astype(np.float64)
        y = _centred(act[known])
        for k in (0, 1):
            x = _centred(obs[k : len(act) + k][known])
            lack[e, k] = 1 - (x.T @ y) ** 2
    best = lack.reshape(n, -1, a).min(1)  # of each trajectory and dimension
    sound = np.add.reduceat(skip, eps.start[:-1], dtype=np.int64) == 0  # [E, A]
    rest = [best[sound[:, d], d] if sound[:, d].mean() > 0.2 else best[:, d] for d in range(a)]
    many, few = (np.array([np.quantile(r, q) for r in rest]) for q in (0.7, 0.3))
    # Where a joint follows its command closely, every trajectory nearly repeats its actions.
    copy = (best < CLOSE) | ((best < 0.003) & (best < 0.1 * many)) | ((best < 0.05) & (best < 0.1 * few))
    suspects = []
    for e, d in np.argwhere(copy):
        k, j = np.unravel_index(np.argmin(lack[e, :, :, d]), (2, o))
        kind = "next_state" if k else "copies_state"
        suspects.append(Suspect(kind, int(e), int(d), int(j), float(1 - best[e, d]), int(j)))
    return Copies(lack, suspects)


def _centred(values: np.ndarray) -> np.ndarray:
    """Return columns of mean 0 and length 1; constant ones are 0."""
    values = values - values.mean(0)
    size = np.sqrt((values**2).sum(0))
    return values / np.where(size > 1e-9 * np.sqrt(len(values)), size, np.inf)


def repeated_frames(eps: Episodes) -> np.ndarray:
    """Return which steps end in the state that they began with although the steps around them move, [S] bool.

    A robot at rest repeats no frame: the nearest steps before and after that move must do so at a usual speed.
    """
    row, spread = eps.obs_row, eps.obs.std(0)
    move = np.abs((eps.obs[row + 1] - eps.obs[row]) / np.where(spread > 0, spread, 1)).max(1)
    repeated, moving = np.zeros(eps.n_steps, bool), np.flatnonzero(move > 0)
    if not len(moving):
        return repeated
    still, usual = np.flatnonzero(move == 0), 0.2 * np.median(move[moving])
    after = np.searchsorted(moving, still)
    inside = (after > 0) & (after < len(moving))
    before, behind = moving[np.maximum(after - 1, 0)], moving[np.minimum(after, len(moving) - 1)]
    episode = eps.episode_of_step
    inside &= (episode[before] == episode[still]) & (episode[behind] == episode[still])
    repeated[still[inside & (np.minimum(move[before], move[behind]) > usual)]] = True
    return repeated


def duplicated(eps: Episodes) -> tuple[list[Suspect], float]:
    """Find repeated frames.

    Args:
        eps: the trajectories.

    Returns:
        The suspects, and the share of repeated frames that is usual in this dataset.
    """
    count = np.add.reduceat(repeated_frames(eps), eps.start[:-1], dtype=np.int64)
    share = count / eps.lengths
    usual = float(np.quantile(share, 0.25))
    bad = (count >= 2) & (share > 3 * usual + (0.02 if usual else 0.0))
    return [Suspect("duplicated", int(e), None, float(share[e]), 0.99) for e in np.flatnonzero(bad)], usual
