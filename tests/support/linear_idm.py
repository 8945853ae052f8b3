"""A family of inverse dynamics models that is not the network: ridge regression on s_t and s_{t+1} - s_t."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ssorl.idm import IDMS
from ssorl.idm.base import FittedIdm, IdmSpec, Prediction
from ssorl.idm.holdout import hold_out


def _features(eps, steps):
    state = eps.obs[eps.obs_row[steps]]
    return np.concatenate(
        [state, eps.obs[eps.obs_row[steps] + 1] - state, np.ones((len(steps), 1))], 1, dtype=np.float64
    )


@dataclass(frozen=True)
class LinearIdm(IdmSpec):
    FAMILY = "linear"

    ridge: float = 1e-6
    validation: float = 0.1

    @property
    def work(self):
        return 1

    def fit(self, eps, seed=0, progress=None, statistics=None):
        train, held, trajectories = hold_out(eps, self.validation, seed)
        x, y = _features(eps, train), eps.scaled_actions()[train]
        weights = np.linalg.solve(x.T @ x + self.ridge * np.eye(x.shape[1]), x.T @ y).astype(np.float32)
        error = _features(eps, held) @ weights - eps.scaled_actions()[held]
        if progress:
            progress(1, "solved")
        return FittedLinear(self, weights, error.std(0).astype(np.float32) + 1e-6, trajectories)

    def restore(self, n_obs, n_act, read, about):
        if about != {"solver": "normal equations"}:
            raise ValueError(f"an unknown solver {about}")
        weights = read("weights", (2 * n_obs + 1, n_act))
        return FittedLinear(self, weights, read("std", (n_act,)), read("validation", (None,), None))


@dataclass(frozen=True)
class FittedLinear(FittedIdm):
    config: LinearIdm
    weights: np.ndarray
    std: np.ndarray
    validation: np.ndarray

    @property
    def n_obs(self):
        return (len(self.weights) - 1) // 2

    @property
    def n_act(self):
        return len(self.std)

    def predict(self, eps, steps, block=None) -> Iterator[Prediction]:
        for a in range(0, len(steps), block or 1000):
            chosen = steps[a : a + (block or 1000)]
            mean = np.einsum("nf,fa->na", _features(eps, chosen), self.weights)
            yield Prediction(chosen, mean.astype(np.float32), np.broadcast_to(self.std, mean.shape))

    def arrays(self):
        return {"weights": self.weights, "std": self.std, "validation": self.validation}

    def about(self):
        return {"solver": "normal equations"}


@contextmanager
def registered():
    IDMS["linear"] = LinearIdm()
    try:
        yield
    finally:
        del IDMS["linear"]
