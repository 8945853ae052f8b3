"""What every simulator offers: many environments of one kind, stepped together."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


class Step(NamedTuple):
    """The outcome of one action in each environment. Time limits are the caller's, see `horizon`."""

    obs: Floats  # [N, O], after the action and before any reset
    rew: Floats  # [N]
    terminated: NDArray[np.bool_]  # [N], ended by the environment; `Env.cut` tells which of them are no true endings


class Env(Protocol):
    """A batch of `n_envs` independent copies of one environment."""

    name: str
    n_envs: int
    n_obs: int
    n_act: int
    act_low: Floats  # [A]
    act_high: Floats  # [A]
    horizon: int  # steps after which the caller should cut an episode
    cut: NDArray[np.bool_]  # [N], where the last step's ending was a limit of the environment's own; [1] if it has none

    def reset(self, rng: np.random.Generator, mask: NDArray[np.bool_] | None = None) -> Floats:
        """Start new episodes where `mask` (default: everywhere) and return all observations [N, O]."""
        ...

    def step(self, act: Floats) -> Step:
        """Apply `act[N, A]`; nothing is reset."""
        ...

    def save(self) -> Floats | None:
        """The simulator's state as an array [N, ...] for `load`, or None where it cannot be had."""
        ...

    def load(self, state: Floats) -> Floats:
        """Put back what `save` gave and return the observations."""
        ...
