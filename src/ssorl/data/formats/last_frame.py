"""The action of the last frame of an episode, estimated from what came before: no state follows it."""

from __future__ import annotations

import numpy as np

from ssorl.data.episodes import Episodes

SAMPLE = 100_000  # steps that the regression is fitted to
RIDGE = 1e-3  # relative to the variance of the inputs
HELD_OUT = 5  # every fifth trajectory measures the error


def predict_last(eps: Episodes, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return an action for the last state of each trajectory, [E, A], and its deviation, [E, A].

    A ridge regression predicts an action from its state, the state before and the action before. Its error on held-out
    trajectories is added to the deviation of the action before, so the deviation is wider than that of other labels.

    Args:
        eps: trajectories with all actions.
        std: [S, A], the deviations of the actions, 0 where an action is known.
    """
    rng = np.random.default_rng(0)
    first = np.zeros(eps.n_steps, bool)
    first[eps.start[:-1]] = True
    steps = np.flatnonzero(~first)
    if len(steps) > SAMPLE:
        steps = np.sort(rng.choice(steps, SAMPLE, replace=False))
    ends = eps.start[1:] - 1
    if not len(steps):
        return eps.act[ends].copy(), np.sqrt(std[ends] ** 2 + eps.act.var(0))
    row = eps.obs_row[steps]
    inputs = np.concatenate([eps.obs[row], eps.obs[row - 1], eps.act[steps - 1]], axis=1).astype(np.float64)
    mean, scale = inputs.mean(0), inputs.std(0)
    scale[scale <= 1e-6 * np.abs(mean) + 1e-30] = 1
    target = eps.act[steps].astype(np.float64)
    held = eps.episode_of_step[steps] % HELD_OUT == 0
    if held.all() or not held.any():  # too few trajectories: hold out steps
        held = np.arange(len(steps)) % HELD_OUT == 0
    z = (inputs - mean) / scale
    train = ~held if (~held).any() else held
    error = target[held] - _apply(_fit(z[train], target[train]), z[held])
    row = eps.obs_row[ends] + 1
    last = np.concatenate([eps.obs[row], eps.obs[row - 1], eps.act[ends]], axis=1)
    act = _apply(_fit(z, target), (last - mean) / scale)
    return np.clip(act, eps.meta.low, eps.meta.high), np.sqrt((error**2).mean(0) + std[ends].astype(np.float64) ** 2)


def _fit(z: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the weights [I + 1, A] of a ridge regression; the last row is the offset."""
    z = np.concatenate([z, np.ones((len(z), 1))], axis=1)
    penalty = RIDGE * len(z) * np.eye(z.shape[1])
    penalty[-1, -1] = 0
    return np.linalg.solve(z.T @ z + penalty, z.T @ target)


def _apply(weights: np.ndarray, z: np.ndarray) -> np.ndarray:
    return z @ weights[:-1] + weights[-1]
