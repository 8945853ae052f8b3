"""Predict the squared error of each proxy action from three numbers that need no true action.

They are the variance between the members, the variance that the networks predict, and the distance to the nearest
labelled step. A gamma regression on held-out trajectories fits their weights. So the predicted std is larger at states
far from the labelled ones.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.idm.base import ArrayReader

REFERENCES = 2048  # labelled steps to which distances are measured
COMPONENTS = 12  # principal components of (s_t, s_{t+1})
FLOOR = 1e-8  # smallest squared error and variance before a logarithm
BLOCK = 1 << 12  # steps processed together


class Nearness(NamedTuple):
    """The distance of transitions to a sample of the labelled ones."""

    mean: np.ndarray  # [2 O]
    basis: np.ndarray  # [2 O, C], principal components divided by the standard deviations
    points: np.ndarray  # [R, C], the sample

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Return the distance of (s_t, s_{t+1}) [N, 2 O] to the nearest reference, [N]."""
        out = np.empty(len(states), np.float32)
        for first in range(0, len(states), BLOCK):
            block = states[first : first + BLOCK]
            padded = np.zeros((BLOCK, states.shape[1]), np.float32)
            padded[: len(block)] = block
            out[first : first + BLOCK] = np.asarray(_nearest(*self, padded))[: len(block)]
        return out


@jax.jit
def _nearest(mean: jax.Array, basis: jax.Array, points: jax.Array, states: jax.Array) -> jax.Array:
    at = (states - mean) @ basis
    square = (at**2).sum(1)[:, None] + (points**2).sum(1)[None] - 2 * at @ points.T
    return jnp.sqrt(jnp.maximum(square.min(1), 0))


def fit_nearness(states: np.ndarray, seed: int) -> Nearness:
    """Sample the references from labelled transitions.

    Args:
        states: (s_t, s_{t+1}), [N, 2 O].
        seed: seed of the sample.
    """
    rng = np.random.default_rng(seed)
    mean, std = states.mean(0, np.float64), np.maximum(states.std(0, dtype=np.float64), 1e-6)
    sample = states[rng.permutation(len(states))[: 4 * REFERENCES]]
    z = (sample - mean) / std
    _, vectors = np.linalg.eigh(z.T @ z)
    basis = (vectors[:, ::-1][:, :COMPONENTS] / std[:, None]).astype(np.float32)
    points = ((sample[:REFERENCES] - mean) @ basis).astype(np.float32)
    return Nearness(mean.astype(np.float32), basis, points)


class Spread(NamedTuple):
    """The regression of the squared error of each target."""

    weights: np.ndarray  # [K, 4], of 1, log variance between members, log predicted variance and log distance
    cap: np.ndarray  # [K], upper bound of the squared error: the variance of the labelled targets

    def __call__(self, between: np.ndarray, predicted: np.ndarray, distance: np.ndarray) -> np.ndarray:
        """Return the expected squared errors [N, K].

        Args:
            between: variance between the members, [N, K].
            predicted: variance that the networks predict, [N, K].
            distance: distance to the nearest labelled step, [N].
        """
        inputs = _inputs(between, predicted, distance)
        log = sum(self.weights[:, i] * values for i, values in enumerate(inputs))
        return np.minimum(np.exp(np.clip(log, -40, 40)), self.cap).astype(np.float32)


def _inputs(between: np.ndarray, predicted: np.ndarray, distance: np.ndarray) -> tuple[np.ndarray, ...]:
    logs = [np.log(np.maximum(x, FLOOR)) for x in (between, predicted)]
    far = np.log(np.maximum(distance, 1e-3))[:, None]
    return np.ones_like(logs[0]), *logs, np.broadcast_to(far, logs[0].shape)


def fit_spread(
    error: np.ndarray, between: np.ndarray, predicted: np.ndarray, distance: np.ndarray, cap: np.ndarray
) -> Spread:
    """Fit the regression to held-out steps.

    Args:
        error: errors of the blend, [N, K].
        between: variance between the members, [N, K].
        predicted: variance that the networks predict, [N, K].
        distance: distance to the nearest step that the members were fitted to, [N].
        cap: variance of the labelled targets, [K].
    """
    weights = np.zeros((error.shape[1], 4), np.float32)
    inputs = _inputs(between, predicted, distance)
    for k in range(error.shape[1]):
        x = np.stack([values[:, k] for values in inputs[1:]], 1).astype(np.float64)
        weights[k] = _gamma_regression(x, error[:, k].astype(np.float64) ** 2)
    return Spread(weights, np.maximum(cap, FLOOR).astype(np.float32))


def _gamma_regression(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the intercept and the slopes [4] of log E[y]; the slopes are non-negative and shrunk to a prior."""
    level = float(np.log(max(float(y.mean()), FLOOR)))
    centre, scale = x.mean(0), np.maximum(x.std(0), 1e-3)
    z, wanted = (x - centre) / scale, np.maximum(y, FLOOR) / np.exp(level)
    prior = np.array([0.25, 0.25, 0.5]) * scale
    slopes, intercept, strength = prior.copy(), 0.0, 0.02
    for _ in range(100):  # Fisher scoring: with a log link, the information of a gamma model is that of least squares
        linear = np.clip(intercept + z @ slopes, -20, 20)
        residual = np.minimum(wanted * np.exp(-linear), 1e4) - 1
        step = np.linalg.solve(
            z.T @ z / len(z) + strength * np.eye(3), z.T @ residual / len(z) - strength * (slopes - prior)
        )
        slopes = np.maximum(slopes + 0.5 * np.clip(step, -1, 1), 0)
        intercept = float(np.log(max(float((wanted * np.exp(-np.clip(z @ slopes, -20, 20))).mean()), 1e-12)))
    slopes = slopes / scale
    return np.array([level + intercept - centre @ slopes, *slopes])


def read_nearness(read: ArrayReader, name: str, n_obs: int) -> Nearness:
    """Rebuild saved references; raise ValueError if an array has another shape."""
    mean = read(f"{name}/mean", (2 * n_obs,))
    basis = read(f"{name}/basis", (2 * n_obs, None))
    return Nearness(mean, basis, read(f"{name}/points", (None, basis.shape[1])))


def read_spread(read: ArrayReader, name: str, n_targets: int) -> Spread:
    """Rebuild a saved regression; raise ValueError if an array has another shape."""
    return Spread(read(f"{name}/weights", (n_targets, 4)), read(f"{name}/cap", (n_targets,)))
