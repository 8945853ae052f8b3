"""Fit a blend: choose the window, fit the members without a holdout, weight them on it, and fit them to all steps."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from ssorl.data.episodes import Episodes
from ssorl.data.split import first_copies
from ssorl.idm.base import FitProgress, HeldOut
from ssorl.idm.blend.config import BlendConfig
from ssorl.idm.blend.linear import choose_penalty, find_delay, fit_linear, longest_window, moments
from ssorl.idm.blend.model import Blend, MemberPredictions, Members, Window, mix
from ssorl.idm.blend.products import LARGEST, fit_products
from ssorl.idm.blend.targets import Targets, find_targets
from ssorl.idm.blend.trees import fit_forest
from ssorl.idm.blend.uncertainty import fit_nearness, fit_spread
from ssorl.idm.blend.windows import cut, find_angles, flat, gather, tree_features, unwrapped
from ssorl.idm.fit import fit as fit_network
from ssorl.idm.holdout import last_part
from ssorl.idm.model import IdmConfig
from ssorl.idm.network import Idm
from ssorl.idm.statistics import Statistics
from ssorl.utils.errors import DataError

MAX_HELD_OUT = 6000  # steps of the holdout that are used; more give the same weights
CUT_SHARE = 0.1  # share of the training rows that is added once more for each kind of shortened window
MAX_STEPS = 400_000  # labelled steps that trees and products are fitted to; of more, a random sample


class Lesson(NamedTuple):
    """Labelled steps to fit to."""

    steps: np.ndarray  # [N]
    targets: np.ndarray  # [N, K]


def fit(
    eps: Episodes,
    config: BlendConfig,
    seed: int = 0,
    progress: FitProgress | None = None,
    statistics: Statistics | None = None,
) -> Blend:
    """Fit a blend to the labelled steps of `eps`.

    Args:
        eps: trajectories, some steps labelled.
        config: the model.
        seed: of the initial weights, the batches and the features that trees may use.
        progress: called with the units of work done since the last call, and a note.
        statistics: of all states, if `eps` is only the labelled part of the data; by default those of `eps`.

    Raises:
        DataError: fewer than two labelled steps differ, or the fit of a network diverged.
    """
    report = progress or (lambda n, note: None)
    steps = np.flatnonzero(eps.labelled)
    held = choose_holdout(eps, config.validation)
    act = eps.scaled_actions()[steps]
    follows = np.r_[False, (np.diff(steps) == 1) & (np.diff(eps.episode_of_step[steps]) == 0)]
    targets = find_targets(act, follows, (eps.meta.high - eps.meta.low) / 2)
    encoded = targets.encode(act)
    angles = find_angles(eps)
    seen = unwrapped(eps, angles)
    known = None if angles else statistics  # statistics are of the states as they are
    moving = encoded[:, targets.is_continuous] if targets.is_continuous.any() else encoded
    delay, delays = find_delay(seen, steps, moving, _halves(seen, steps))
    window = Window(
        max(1, 1 - delay) if config.past is None else config.past,
        max(1, 1 + delay) if config.future is None else config.future,
        delay,
    )
    lesson = Lesson(steps, encoded)
    train, rest = _take(lesson, ~held), _take(lesson, held, MAX_HELD_OUT)
    early = _fit_members(seen, train, rest, config, window, True, seed, report, known)
    weights, predicted = _weigh(early, seen, rest, window, config)
    cap = encoded.var(0) if targets.width else np.zeros(0)
    near = fit_nearness(_transitions(seen, train.steps), seed)
    mean, between = mix(predicted, weights, near, None)
    spread = fit_spread(mean - rest.targets, between, predicted.variance, near(predicted.states), cap)
    members = _fit_members(seen, lesson, rest, config, window, False, seed, report, known)
    variance = spread(between, predicted.variance, near(predicted.states))
    checked = HeldOut(rest.steps, *_decode(targets, mean, variance))
    return Blend(
        config,
        np.unique(eps.episode_of_step[steps[held]]),
        window,
        targets,
        angles,
        members,
        weights,
        fit_nearness(_transitions(seen, steps), seed),
        spread,
        eps.n_obs,
        delays,
        checked,
    )


def choose_holdout(eps: Episodes, share: float) -> np.ndarray:
    """Mark the labelled steps [N] bool to hold out: those of the trajectories with the highest returns.

    These resemble the unlabelled trajectories most. Copies of one trajectory are held out together. Without rewards,
    the longest trajectories are held out. If there is only one labelled trajectory, its last part is held out.

    Args:
        eps: trajectories, some steps labelled.
        share: share of the labelled trajectories to hold out.

    Raises:
        DataError: fewer than two labelled steps differ.
    """
    steps = np.flatnonzero(eps.labelled)
    episode = eps.episode_of_step[steps]
    labelled = np.unique(episode)
    first = first_copies(eps)[labelled]
    distinct = np.unique(first)
    if len(distinct) == 1:
        places = len(np.unique(steps - eps.start[episode]))
        if places < 2:
            raise DataError(
                f"{eps.meta.source}: {places} steps have an action and at least 2 are needed to fit an inverse "
                "dynamics model; add more labelled trajectories"
            )
        return last_part(eps, steps, share)
    worth = np.nan_to_num(eps.returns[distinct], nan=0.0)
    if np.ptp(worth) <= 1e-9 * max(1.0, float(np.abs(worth).max())):
        worth = eps.lengths[distinct].astype(float)
    n = min(len(distinct) - 1, max(1, round(share * len(distinct))))
    best = distinct[np.argsort(-worth, kind="stable")[:n]]
    return np.isin(episode, labelled[np.isin(first, best)])


def _halves(eps: Episodes, steps: np.ndarray) -> np.ndarray:
    """Mark the steps [N] bool of every second labelled trajectory, or the first half of a single trajectory."""
    number = np.unique(eps.episode_of_step[steps], return_inverse=True)[1]
    return number % 2 == 0 if number.max() > 0 else np.arange(len(steps)) < len(steps) // 2


def _take(lesson: Lesson, marked: np.ndarray, most: int | None = None) -> Lesson:
    """Return the marked steps, or a random sample of `most` of them."""
    chosen = np.flatnonzero(marked)
    chosen = chosen if most is None else chosen[_sample(len(chosen), most)]
    return Lesson(lesson.steps[chosen], lesson.targets[chosen])


def _sample(n: int, most: int) -> np.ndarray:
    """Return at most `most` random indices below `n`. Every k-th step could miss the same phase of each stride."""
    return np.arange(n) if n <= most else np.sort(np.random.default_rng(0).choice(n, most, replace=False))


def _transitions(eps: Episodes, steps: np.ndarray) -> np.ndarray:
    """Return s_t and s_{t+1}, [N, 2 O], of at most 20,000 steps."""
    chosen = steps[_sample(len(steps), 20_000)]
    states, _ = gather(eps, chosen, 0, 0)
    return flat(states)


def _fit_members(
    eps: Episodes,
    lesson: Lesson,
    rest: Lesson,
    config: BlendConfig,
    window: Window,
    early: bool,
    seed: int,
    report: FitProgress,
    statistics: Statistics | None,
) -> Members:
    """Fit all members to some steps; the held-out steps `rest` choose the penalty of the linear member."""
    _, rounds = config.length(early)
    stage = "fitting the members without the holdout" if early else "fitting the members to all steps"
    size = longest_window(eps.n_obs, max(0, window.delay))
    sums = moments(eps, lesson.steps, lesson.targets, *size)
    while sums.n < len(lesson.steps) // 2 and max(size) > 0:  # trajectories shorter than the window
        size = (max(0, size[0] - 1), max(0, size[1] - 1))
        sums = moments(eps, lesson.steps, lesson.targets, *size)
    other = moments(eps, rest.steps, rest.targets, *size)
    penalty = choose_penalty(sums if early else sums.less(other), other, eps.n_obs, size)
    linear = fit_linear(sums, eps.n_obs, size, penalty)

    sample = _take(lesson, np.ones(len(lesson.steps), bool), MAX_STEPS)
    rows, wanted, now = _tree_rows(eps, sample, window, seed)
    width = wanted.shape[1]
    forest = fit_forest(rows, wanted, rounds, seed)
    report(rounds, stage)
    products = fit_products(now, rows, wanted, rounds, seed) if width and eps.n_obs <= LARGEST else None
    report(rounds, stage)
    networks = []
    for i in range(config.members if width else 0):
        network = config.network(window.past, window.future, early)
        networks.append(
            _fit_network(eps, lesson, network, seed + 7919 * i, lambda n, note: report(n, stage), statistics)
        )
    return Members(linear, forest, products, tuple(networks))


def _tree_rows(eps: Episodes, lesson: Lesson, window: Window, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features [N, F], targets [N, K] and (s_t, s_{t+1}) [N, 2 O] of whole windows and of shortened ones."""
    states, inside = gather(eps, lesson.steps, window.past, window.future)
    now = flat(states[:, window.past : window.past + 2])
    rows, wanted, where = [tree_features(states, inside, window.past)], [lesson.targets], [now]
    rng = np.random.default_rng(seed)
    for keep in _cuts(window):
        chosen = rng.choice(len(states), round(CUT_SHARE * len(states)), replace=False)
        short = cut(states[chosen], inside[chosen], window.past, keep)
        rows.append(tree_features(*short, window.past))
        wanted.append(lesson.targets[chosen])
        where.append(now[chosen])
    return np.concatenate(rows), np.concatenate(wanted), np.concatenate(where)


def _cuts(window: Window) -> list[tuple[int, int]]:
    """Return the numbers of states before s_t and after s_{t+1} of each kind of shortened window."""
    ends = [(window.past, after) for after in range(window.future)]
    return [*ends, (0, window.future)] if window.past else ends


def _fit_network(
    eps: Episodes, lesson: Lesson, config: IdmConfig, seed: int, report: FitProgress, statistics: Statistics | None
) -> Idm:
    """Fit a network to targets instead of actions."""
    act = np.full((eps.n_steps, lesson.targets.shape[1]), np.nan, np.float32)
    act[lesson.steps] = lesson.targets
    unit = (1.0,) * act.shape[1]
    meta = replace(eps.meta, act_low=tuple(-x for x in unit), act_high=unit, act_range="declared")
    idm = fit_network(replace(eps, act=act, meta=meta), config, seed, lambda n, _: report(n, ""), statistics)
    return replace(idm, validation=np.zeros(0, np.int64))  # the blend has a holdout of its own


def _weigh(
    members: Members, eps: Episodes, rest: Lesson, window: Window, config: BlendConfig
) -> tuple[np.ndarray, MemberPredictions]:
    """Return the weights [parts, M, K] and the members' predictions at the held-out steps."""
    predicted = members.predict(eps, rest.steps, window)
    n_members, _, width = predicted.means.shape
    weights = np.zeros((window.n_parts, n_members, width), np.float32)
    if not width:
        return weights, predicted
    whole = predicted.part == 0
    chosen = whole if whole.any() else np.ones(len(whole), bool)
    weights[:] = _least_squares(predicted.means[:, chosen], rest.targets[chosen], config)[:, None]
    sample = np.flatnonzero(chosen)[_sample(int(chosen.sum()), 2000)]
    for part, keep in enumerate(_cuts(window), start=1):
        short, steps = _shortened(eps, rest.steps[sample], keep, max(window.past, members.linear.past))
        cut_off = members.predict(short, steps, window)
        weights[part] = _least_squares(cut_off.means, rest.targets[sample], config)[:, None]
    return weights, predicted


def _least_squares(means: np.ndarray, targets: np.ndarray, config: BlendConfig) -> np.ndarray:
    """Return non-negative weights [M] that sum to 1, from predictions [M, N, K] at held-out steps."""
    error = ((means - targets) ** 2).mean((1, 2))
    good = np.flatnonzero(error <= config.worst * error.min() + 1e-12)
    columns = means[good].reshape(len(good), -1).T.astype(np.float64)
    wanted = targets.ravel().astype(np.float64)
    tie = 1e3 * np.sqrt(np.square(columns).sum() + 1)  # a heavy row makes the weights sum to 1
    solved, _ = nnls(np.vstack([columns, np.full((1, len(good)), tie)]), np.append(wanted, tie))
    total = solved.sum()
    share = solved / total if total > 0 else np.full(len(good), 1 / len(good))
    weights = np.zeros(len(means))
    weights[good] = (1 - config.equal) * share + config.equal / len(good)
    return weights


def _shortened(eps: Episodes, steps: np.ndarray, keep: tuple[int, int], past: int) -> tuple[Episodes, np.ndarray]:
    """Return a trajectory for each step that holds only its shortened window, and the steps' numbers in these.

    Args:
        eps: trajectories.
        steps: [N] step numbers.
        keep: states before s_t and after s_{t+1} that remain; if the first is above 0, all states before s_t remain.
        past: states before s_t that any member uses.
    """
    before = min(past, keep[0]) if keep[0] == 0 else past
    episode = eps.episode_of_step[steps]
    row, first = steps + episode, eps.start[episode] + episode
    last = eps.start[episode + 1] + episode
    begin = np.maximum(row - before, first)
    end = np.minimum(row + 1 + (keep[1] if keep[0] else 10**6), last)
    end = np.minimum(end, row + 16)
    length = end - begin
    start = np.concatenate([[0], np.cumsum(length)])
    rows = np.repeat(begin - (start[:-1] + np.arange(len(steps))), length + 1) + np.arange(int((length + 1).sum()))
    n = int(start[-1])
    blank = np.full((n, max(1, eps.n_act)), np.nan, np.float32)
    short = Episodes(eps.obs[rows], blank, np.zeros(n, np.float32), np.zeros(n, bool), start, eps.meta)
    return short, start[:-1] + (row - begin)


def _decode(targets: Targets, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return scaled actions [N, A] and their std [N, A] from predictions of the targets."""
    act, spread = targets.decode(mean, variance)
    return act, np.sqrt(spread)
