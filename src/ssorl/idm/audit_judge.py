"""The search for the hypothesis under which each trajectory agrees with the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from ssorl.idm.audit_gauge import centre_lags, guess_factors, initial_turns, relate_factors
from ssorl.idm.audit_model import Hypothesis, Judged, Models, Windows, repaired

ROUNDS = 4
NATS = 1.0  # by which an order must explain a dimension better


def judge(data: Windows, suspect: np.ndarray) -> Judged:
    """Find the hypothesis under which each trajectory agrees with the others.

    Args:
        data: the windows.
        suspect: [E] bool: trajectories with a known fault, from which nothing is learnt if enough others are left.
    """
    models, n, n_act = Models(data), len(data.episodes), data.act.shape[1]
    allowed = ~suspect if (~suspect).sum() >= max(4, 0.2 * n) else np.ones(n, bool)
    guess = guess_factors(data)
    chosen = initial_turns(data, models) or [Hypothesis.none(n_act)] * n
    chosen = [Hypothesis(h.lag, h.order, tuple(np.array(h.factor) * g)) for h, g in zip(chosen, guess, strict=True)]
    weight = allowed.astype(np.float64)
    models.weigh(weight)
    fit = _fit(data, models, chosen, allowed)
    for number in range(ROUNDS):
        results = [_best(data, e, fit.predicted[data.rows(e)], fit.usual) for e in range(n)]
        chosen = relate_factors(data, results, fit.usual, allowed, guess)
        share = (1 - fit.error / np.maximum(fit.spread, 1e-12)).mean(1)
        now = (allowed & (share >= 0.4 * np.quantile(share[allowed], 0.7))).astype(np.float64)
        if (now != weight).any() and now.sum() >= 2:
            models.weigh(weight := now)
        if number in (ROUNDS // 2, ROUNDS - 1):
            chosen = centre_lags(data, models, chosen, weight)
        fit = _fit(data, models, chosen, allowed)
    return replace(fit, unlike=models.leverage())


def _fit(data: Windows, models: Models, chosen: list[Hypothesis], allowed: np.ndarray) -> Judged:
    """Fit the models to the actions repaired by these hypotheses."""
    size, first = np.diff(data.first)[:, None], data.first[:-1]
    target = np.concatenate([repaired(data, e, h) for e, h in enumerate(chosen)])
    predicted = models.predict(target)
    error = np.add.reduceat((target - predicted) ** 2, first) / size
    spread = np.add.reduceat(target**2, first) / size - (np.add.reduceat(target, first) / size) ** 2
    noise = np.quantile(error[allowed], 0.3, axis=0) + 1e-4 * np.median(spread[allowed], 0) + 1e-12
    share = 1 - error / np.maximum(spread, 1e-12)
    usual = np.quantile(share[allowed], 0.7, axis=0).clip(0.05, 1) ** 0.5
    return Judged(chosen, predicted, noise, error, spread, usual, np.zeros(len(target)))


def correlations(predicted: np.ndarray, recorded: np.ndarray) -> np.ndarray:
    """Return the correlation of each predicted with each recorded dimension, [A, A]."""
    p, r = predicted - predicted.mean(0), recorded - recorded.mean(0)
    size = np.sqrt(np.outer((p**2).sum(0), (r**2).sum(0)))
    return (p.T @ r) / np.where(size > 1e-12, size, np.inf)


def _information(correlation: np.ndarray) -> float:
    """Return how much the predictions say of the actions, in nats; a negative correlation says nothing."""
    return float(-np.log(1 - np.minimum(np.maximum(correlation, 0) ** 2, 0.99999)).sum() / 2)


def _best(data: Windows, e: int, predicted: np.ndarray, usual: np.ndarray) -> tuple[Hypothesis, np.ndarray]:
    """Return the hypothesis under which the prediction fits one trajectory best, and the size of its factors."""
    n_act = predicted.shape[1]
    lags = {k: correlations(predicted, data.recorded(e, k)).diagonal() for k in data.lags}
    information = {k: _information(c) for k, c in lags.items()}
    lag = max(information, key=lambda k: information[k] + (1e-9 if k == 0 else 0))
    now = correlations(predicted, data.recorded(e))
    _, order = linear_sum_assignment(-np.abs(now) * usual[:, None])
    present = now[np.arange(n_act), order]
    order = np.where(_cycles_hold(order, present, now.diagonal(), usual), order, np.arange(n_act))
    present = now[np.arange(n_act), order]
    sign = np.where((present < 0) & (-present > 0.5 * usual), -1.0, 1.0)
    if lag and information[lag] > max(_information(present * sign), information[0] + 0.05 * n_act):
        order, sign = np.arange(n_act), np.ones(n_act)
    else:
        lag = 0
    held = data.recorded(e, lag)[:, order] * sign
    return Hypothesis(lag, tuple(map(int, order)), tuple(sign.tolist())), _gains(predicted, held, usual)


def _cycles_hold(order: np.ndarray, present: np.ndarray, own: np.ndarray, usual: np.ndarray) -> np.ndarray:
    """Return for each dimension whether the cycle of the permutation that it is in explains all its dimensions."""
    clearer = np.abs(present) > np.abs(own) + 0.15 * usual
    clearer |= np.log1p(-np.minimum(own**2, 0.99999)) > np.log1p(-np.minimum(present**2, 0.99999)) + 2 * NATS
    good = clearer & (np.abs(present) > 0.6 * usual)
    good |= order == np.arange(len(order))
    out = np.zeros(len(order), bool)
    for d in range(len(order)):
        cycle = [d]
        while (nxt := int(order[cycle[-1]])) != d:
            cycle.append(nxt)
        out[d] = good[cycle].all()
    return out


def _gains(predicted: np.ndarray, held: np.ndarray, usual: np.ndarray) -> np.ndarray:
    """Return the factor of each dimension, [A]; NaN where the prediction explains too little to tell."""
    p, r = predicted - predicted.mean(0), held - held.mean(0)
    power = (p**2).sum(0)
    gain = (p * r).sum(0) / np.where(power > 1e-12, power, np.inf)
    ok = correlations(predicted, held).diagonal() > 0.6 * usual
    return np.where(ok & (gain > 0), gain, np.nan)
