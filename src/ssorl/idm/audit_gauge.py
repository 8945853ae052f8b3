"""What hypotheses are relative to: the usual lag, order, sign and factor of the trajectories."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, solve_triangular
from scipy.optimize import linear_sum_assignment

from ssorl.idm.audit_model import Hypothesis, Models, Windows, repaired

AMPLITUDE = 4.0  # ratio of standard deviations that is taken for a factor before any model is fitted
UNITS = 6.0  # factors that differ by more are units
N_ANCHORS = 6
TURNED = 400  # trajectories whose signs and orders are compared before a model is fitted


def centre_lags(data: Windows, models: Models, chosen: list[Hypothesis], weight: np.ndarray) -> list[Hypothesis]:
    """Return the hypotheses with the lags moved together to where the states explain the actions best.

    Models can learn actions that are all a step off, so the lags are known only relative to each other until then.
    """
    lags = np.array([h.lag for h in chosen])
    if not (lags[weight > 0] != 0).any():
        return chosen
    learnt = weight > 0
    low, high = data.lags[0] - lags[learnt].min(), data.lags[-1] - lags[learnt].max()
    rows, errors = np.repeat(learnt, np.diff(data.first)), {}
    for move in range(max(low, -3), min(high, 3) + 1):
        moved = [Hypothesis(int(np.clip(h.lag + move, *_ends(data))), h.order, h.factor) for h in chosen]
        target = np.concatenate([repaired(data, e, h) for e, h in enumerate(moved)])
        gap = (models.predict(target) - target)[rows]
        errors[move] = float(np.log((gap**2).mean(0) / target[rows].var(0) + 1e-9).sum())
    best = min(errors, key=lambda m: errors[m] + (0 if m else -0.02 * data.act.shape[1]))
    return [Hypothesis(int(np.clip(h.lag + best, *_ends(data))), h.order, h.factor) for h in chosen]


def _ends(data: Windows) -> tuple[int, int]:
    return data.lags[0], data.lags[-1]


def relate_factors(
    data: Windows,
    results: list[tuple[Hypothesis, np.ndarray]],
    usual: np.ndarray,
    allowed: np.ndarray,
    guess: np.ndarray,
) -> list[Hypothesis]:
    """Return the hypotheses with factors relative to those of the usual group; those near 1 are 1.

    Dimensions that tell nothing take the factor of the others, and trajectories that tell nothing the guess.

    Args:
        data: the windows.
        results: of each trajectory, its hypothesis and the size of its factors, [A].
        usual: usual correlation of prediction and action, [A].
        allowed: [E] bool: the trajectories that say what is usual.
        guess: factor of each trajectory as far as its spread tells, [E].
    """
    size, gain = np.diff(data.first), np.array([g for _, g in results])
    worth = np.where(np.isnan(gain), 0, usual**2 / (1 - np.minimum(usual**2, 0.98)))
    known = allowed & (worth.sum(1) > 0)
    if not known.any():
        return [h for h, _ in results]
    common = np.exp((worth * np.nan_to_num(np.log(gain))).sum(1) / np.maximum(worth.sum(1), 1e-12))
    middle = _mode(common[known], size[known])
    group = known & (np.abs(np.log(common / middle)) < np.log(1.35))
    level = np.ones(gain.shape[1])
    for d in range(len(level)):
        known_gains = gain[group & ~np.isnan(gain[:, d]), d]
        level[d] = np.median(known_gains) if len(known_gains) else middle
    unknown = np.where(worth.sum(1) > 0, common / middle, guess / np.median(guess[group]))
    out = []
    for (h, _), g, other in zip(results, gain / level, unknown, strict=True):
        g = np.where(np.isnan(g), other if max(other, 1 / other) > AMPLITUDE else 1.0, g)
        g = np.where(np.abs(np.log(g)) < np.log(1.08), 1.0, g)
        out.append(Hypothesis(h.lag, h.order, tuple((np.sign(h.factor) * g).tolist())))
    return out


def _mode(gain: np.ndarray, size: np.ndarray) -> float:
    """Return the usual one of some factors.

    Of two groups of equal size it is the larger factor, or the smaller one where they differ as units do.
    """
    if not len(gain):
        return 1.0
    near = np.abs(np.log(gain[:, None] / gain[None, :])) < np.log(1.35)
    held = near @ size
    groups = gain[held >= 0.95 * held.max()]
    if groups.max() > UNITS * groups.min():
        return float(np.median(groups[groups < 1.35 * groups.min()]))
    return float(np.median(groups[groups > groups.max() / 1.35]))


def guess_factors(data: Windows) -> np.ndarray:
    """Return a guess of the factor of each trajectory, [E], where it is so far from 1 that it would dominate a fit."""
    size = np.array([data.recorded(e).std(0) for e in range(len(data.episodes))])
    usual = np.median(size, 0)
    common = np.exp(np.median(np.log(np.maximum(size / np.where(usual > 0, usual, 1), 1e-6)), 1))
    return np.where((common > AMPLITUDE) | (common < 1 / AMPLITUDE), common, 1.0)


def initial_turns(data: Windows, models: Models) -> list[Hypothesis] | None:
    """Return signs and orders to begin with where the trajectories contradict each other; None where they agree.

    With a fault in half of the trajectories a model of all of them predicts nothing. So the moments of single
    trajectories are compared: from each of a few trajectories a template grows to which the others are turned.
    """
    n, n_act = len(data.episodes), data.act.shape[1]
    sample = np.linspace(0, n - 1, min(n, TURNED)).astype(int)
    gram = cho_factor(models.gram, lower=True)[0]
    moments = []
    for e in sample:
        act = data.recorded(e)
        size = act.std(0)
        act = (act - act.mean(0)) / np.where(size > 1e-9, size, 1)
        moments.append(solve_triangular(gram, models.x[data.rows(e)].T @ act, lower=True))
    u = np.array(moments)  # [E, F, A]
    pooled, own = u.sum(0), np.linalg.norm(u, axis=(1, 2))
    best, turned = 1.1 * float((pooled**2).sum()), None
    for anchor in np.argsort(-own, kind="stable")[:: max(1, len(sample) // N_ANCHORS)][:N_ANCHORS]:
        turns, value = _turn(u, int(anchor))
        if value > best:
            best, turned = value, turns
    if turned is None:
        return None
    weight = np.diff(data.first)[sample]
    keys = [(tuple(o), tuple(s)) for o, s in turned]
    share = {key: sum(w for k, w in zip(keys, weight, strict=True) if k == key) for key in keys}
    order0, sign0 = max(share, key=lambda key: share[key])
    out = []
    for e in range(n):
        at = np.searchsorted(sample, e)
        if at < len(sample) and sample[at] == e:
            order, sign = turned[at]
        else:
            order, sign = np.arange(n_act), np.ones(n_act)
        new_order, factor = np.empty(n_act, int), np.empty(n_act)
        new_order[list(order0)], factor[list(order0)] = order, sign * np.array(sign0)
        out.append(Hypothesis(0, tuple(map(int, new_order)), tuple(factor.tolist())))
    return out


def _turn(u: np.ndarray, anchor: int) -> tuple[list[tuple[np.ndarray, np.ndarray]], float]:
    """Turn the moments of all trajectories, [E, F, A], to those of one; return orders, signs and their agreement."""
    n, _, n_act = u.shape
    same = (np.arange(n_act), np.ones(n_act))
    turns, total = [same] * n, u[anchor].copy()
    included = np.zeros(n, bool)
    included[anchor] = True
    for _ in range(6):
        for e in range(n):
            order, sign = turns[e]
            rest = total - u[e][:, order] * sign if included[e] else total
            cross = rest.T @ u[e]
            _, order = linear_sum_assignment(-np.abs(cross))
            if np.abs(cross[np.arange(n_act), order]).sum() < 1.2 * np.abs(cross.diagonal()).sum():
                order = np.arange(n_act)
            sign = np.where(cross[np.arange(n_act), order] < 0, -1.0, 1.0)
            total = rest + u[e][:, order] * sign
            turns[e], included[e] = (order, sign), True
    return turns, float((total**2).sum())
