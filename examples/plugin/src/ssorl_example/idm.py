"""A family of inverse dynamics models: ridge regression on s_t and s_{t+1} - s_t."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.idm.base import ArrayReader, FitProgress, FittedIdm, IdmSpec, Prediction
from ssorl.idm.holdout import hold_out


def features(eps: Episodes, steps: np.ndarray) -> np.ndarray:
    """Return the inputs of the regression [N, 2 O + 1]."""
    obs, next_obs = eps.obs[eps.obs_row[steps]], eps.obs[eps.obs_row[steps] + 1]
    return np.concatenate([obs, next_obs - obs, np.ones((len(steps), 1))], 1, dtype=np.float64)


@dataclass(frozen=True)
class RidgeIdm(IdmSpec):
    """Settings of the regression."""

    FAMILY: ClassVar[str] = "ssorl-example-ridge"

    ridge: float = 1e-6  # weight of the penalty
    validation: float = 0.1  # share of the labelled trajectories held out

    @property
    def work(self) -> int:
        """One solution."""
        return 1

    def fit(
        self, eps: Episodes, seed: int = 0, progress: FitProgress | None = None, statistics: Any = None
    ) -> FittedRidge:
        """Solve the normal equations; the predicted std is that of the residuals of the held-out steps."""
        train, held, trajectories = hold_out(eps, self.validation, seed)
        x, y = features(eps, train), eps.scaled_actions()
        weights = np.linalg.solve(x.T @ x + self.ridge * np.eye(x.shape[1]), x.T @ y[train]).astype(np.float32)
        residual = features(eps, held) @ weights - y[held]
        if progress:
            progress(1, "")
        return FittedRidge(self, weights, residual.std(0).astype(np.float32) + 1e-6, trajectories)

    def restore(self, n_obs: int, n_act: int, read: ArrayReader, about: Mapping[str, Any]) -> FittedRidge:
        """Rebuild a saved model."""
        weights = read("weights", (2 * n_obs + 1, n_act))
        return FittedRidge(self, weights, read("std", (n_act,)), read("validation", (None,), None))


@dataclass(frozen=True)
class FittedRidge(FittedIdm):
    """A solution."""

    config: RidgeIdm
    weights: np.ndarray  # [2 O + 1, A]
    std: np.ndarray  # [A]
    validation: np.ndarray  # numbers of the held-out trajectories

    @property
    def n_obs(self) -> int:
        """Numbers in a state."""
        return (len(self.weights) - 1) // 2

    @property
    def n_act(self) -> int:
        """Numbers in an action."""
        return len(self.std)

    def predict(self, eps: Episodes, steps: np.ndarray, block: int | None = None) -> Iterator[Prediction]:
        """Yield the predicted actions block by block."""
        size = block or 10_000
        for chosen in (steps[a : a + size] for a in range(0, len(steps), size)):
            mean = np.einsum("nf,fa->na", features(eps, chosen), self.weights).astype(np.float32)
            yield Prediction(chosen, mean, np.broadcast_to(self.std, mean.shape))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by name."""
        return {"weights": self.weights, "std": self.std, "validation": self.validation}
