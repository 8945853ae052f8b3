"""Fit trees to the residuals of a model affine in the change of state: for robots with smooth inverse dynamics.

Without contacts the action is M(s) Δs / dt + c(s). Least squares on the products of state and change has this form, and
the trees correct it. Trees alone would approximate every slope by a staircase.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ssorl.idm.base import ArrayReader
from ssorl.idm.blend.rows import multiply
from ssorl.idm.blend.trees import Forest, fit_forest, read_forest
from ssorl.idm.blend.windows import flat

CHUNK = 1 << 13  # rows whose products are computed together
LARGEST = 40  # largest number of state dimensions; products of more take too long
BOUND = 5.0  # standardised states and changes are clipped here, because products of outliers are very large
PENALTY = 3.0  # ridge penalty


class Affine(NamedTuple):
    """Least squares on the products of s_t and s_{t+1} - s_t."""

    centre: np.ndarray  # [2 O], mean of s_t and of the change
    scale: np.ndarray  # [2 O], their standard deviation
    weights: np.ndarray  # [F, K] float32, the last row is the constant
    low: np.ndarray  # [K], smallest target of the fit
    high: np.ndarray  # [K], largest target of the fit

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Return the predicted targets [N, K] of (s_t, s_{t+1}) [N, 2 O], clipped to the range of the fit."""
        out = np.empty((len(states), self.weights.shape[1]), np.float32)
        for first in range(0, len(states), CHUNK):
            rows = _products(states[first : first + CHUNK], self.centre, self.scale)
            out[first : first + CHUNK] = multiply(rows, self.weights)
        return np.clip(out, self.low, self.high)


class Products(NamedTuple):
    """An affine model, and trees that predict its residuals."""

    affine: Affine
    forest: Forest

    def __call__(self, states: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Return the predicted targets [N, K].

        Args:
            states: (s_t, s_{t+1}), [N, 2 O].
            features: inputs of the trees, [N, F].
        """
        return self.affine(states) + self.forest(features)

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Return the weights and tables by name, for a file."""
        own = {f"{name}/{field}": array for field, array in self.affine._asdict().items()}
        return {**own, **self.forest.arrays(f"{name}/trees")}


def fit_affine(states: np.ndarray, targets: np.ndarray) -> Affine:
    """Fit the affine model.

    Args:
        states: (s_t, s_{t+1}) of the labelled steps, [N, 2 O].
        targets: [N, K].
    """
    inputs = _split(states)
    centre = inputs.mean(0, np.float64).astype(np.float32)
    scale = np.maximum(inputs.std(0, dtype=np.float64), 1e-6).astype(np.float32)
    gram = cross = np.zeros(1)
    for first in range(0, len(states), CHUNK):
        rows = _products(states[first : first + CHUNK], centre, scale).astype(np.float64)
        gram, cross = gram + rows.T @ rows, cross + rows.T @ targets[first : first + CHUNK].astype(np.float64)
    penalty = np.full(len(gram), PENALTY)
    penalty[-1] = 1e-6
    weights = np.linalg.solve(gram + np.diag(penalty), cross).astype(np.float32)
    return Affine(centre, scale, weights, targets.min(0), targets.max(0))


def fit_products(states: np.ndarray, features: np.ndarray, targets: np.ndarray, rounds: int, seed: int) -> Products:
    """Fit the affine model, then the trees.

    Args:
        states: (s_t, s_{t+1}) of the labelled steps, [N, 2 O].
        features: inputs of the trees, [N, F].
        targets: [N, K].
        rounds: trees for each target.
        seed: decides which features the nodes may use.
    """
    affine = fit_affine(states, targets)
    return Products(affine, fit_forest(features, targets - affine(states), rounds, seed))


def read_products(read: ArrayReader, name: str, n_obs: int, n_features: int, n_targets: int) -> Products:
    """Rebuild a saved model; raise ValueError if an array has another shape."""
    size = 2 * n_obs + n_obs**2 + 1
    affine = Affine(
        read(f"{name}/centre", (2 * n_obs,)),
        read(f"{name}/scale", (2 * n_obs,)),
        read(f"{name}/weights", (size, n_targets)),
        read(f"{name}/low", (n_targets,)),
        read(f"{name}/high", (n_targets,)),
    )
    return Products(affine, read_forest(read, f"{name}/trees", n_features, n_targets))


def _split(states: np.ndarray) -> np.ndarray:
    """Return s_t and s_{t+1} - s_t, [N, 2 O]."""
    n_obs = states.shape[1] // 2
    return np.concatenate([states[:, :n_obs], states[:, n_obs:] - states[:, :n_obs]], 1)


def _products(states: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the standardised state and change, their products, and 1, [N, 2 O + O² + 1]."""
    n, n_obs = len(states), states.shape[1] // 2
    z = np.clip((_split(states) - centre) / scale, -BOUND, BOUND)
    products = z[:, :n_obs, None] * z[:, None, n_obs:]
    return np.concatenate([z, flat(products), np.ones((n, 1), np.float32)], 1, dtype=np.float32)
