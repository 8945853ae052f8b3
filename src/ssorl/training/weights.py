"""Weights of training steps: a step of weight 2 is drawn twice as often as a step of weight 1.

Drawing in proportion to a weight has the same expected gradient as weighting each step's loss and dividing by the mean
weight, for every agent and without a change of its losses. The pool of a run holds each step a number of times.
"""

from __future__ import annotations

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.training.engine import TrainingRun
from ssorl.utils.errors import SsorlError

COPIES = (
    4  # entries of the pool per step; weights are exact to this fraction of their mean, sums of weights to one entry
)


def weighted_run(eps: Episodes, seed: int, weights: np.ndarray, length: int = 1) -> TrainingRun:
    """Return a training whose steps are drawn in proportion to weights.

    Args:
        eps: the trajectories; steps without an action have weight 0.
        seed: seed of the training.
        weights: weights [S], not negative; a step of weight 0 is removed: its action becomes NaN.
        length: steps of the agent's windows K. A window is drawn in proportion to the mean weight of its steps.

    Raises:
        SsorlError: the weights have another shape, a negative or infinite value, or leave nothing to train on.
    """
    weights = np.asarray(weights, np.float64)
    if weights.shape != (eps.n_steps,):
        raise SsorlError(f"the weights have shape {weights.shape}; give one number for each of the {eps.n_steps} steps")
    if not np.isfinite(weights).all() or (weights < 0).any():
        wrong = int(np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))[0])
        raise SsorlError(f"the weight of step {wrong} is {weights[wrong]:g}; give finite numbers from 0 up")
    weights = np.where(eps.labelled, weights, 0)
    if not weights.any():
        raise SsorlError("no step with an action has a weight above 0, so there is nothing to train on")
    removed = eps.labelled & (weights == 0)
    if removed.any():
        act = eps.act.copy()
        act[removed] = np.nan
        eps = eps.with_actions(act)
    return TrainingRun(eps, seed, draw_in_proportion(np.where(eps.labelled, window_means(eps, weights, length), 0)))


def window_means(eps: Episodes, values: np.ndarray, length: int) -> np.ndarray:
    """Return for each step the mean [S] over the window of at most `length` steps of its trajectory that starts there.

    Args:
        eps: the trajectories.
        values: values of the steps [S].
        length: steps of a window.
    """
    if length == 1:
        return values
    steps = np.arange(eps.n_steps)
    end = np.minimum(steps + length, eps.start[eps.episode_of_step + 1])
    # Sums of neighbours, not differences of a cumulative sum, so that a window of zeros has exactly the mean 0.
    total = np.zeros(eps.n_steps)
    for offset in range(length):
        inside = steps + offset < end
        total[inside] += values[steps[inside] + offset]
    return total / (end - steps)


def draw_in_proportion(weights: np.ndarray) -> np.ndarray:
    """Return indices of steps, each about as often as its weight says; equal weights give equal counts.

    Args:
        weights: weights [S], not all 0.

    Returns:
        Indices [COPIES * number of weights above 0], int32, ascending.
    """
    entries = COPIES * np.count_nonzero(weights)
    ends = np.floor(np.cumsum(weights) / weights.sum() * entries + 0.5).astype(np.int64)
    return np.repeat(np.arange(len(weights), dtype=np.int32), np.diff(ends, prepend=0))
