"""The interface of simulators: a batch of environments of one kind that step together."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


class Step(NamedTuple):
    """The result of one action in each environment. The caller enforces the time limit, see `Env.horizon`."""

    obs: Floats  # [N, O], after the action and before any reset
    rew: Floats  # [N]
    terminated: NDArray[np.bool_]  # [N], the environment ended the episode; `Env.cut` marks truncations among these


class Env(Protocol):
    """A batch of `n_envs` independent copies of one environment."""

    name: str
    n_envs: int
    n_obs: int
    n_act: int
    act_low: Floats  # [A]
    act_high: Floats  # [A]
    horizon: int  # steps after which the caller should truncate an episode
    cut: NDArray[np.bool_]  # [N], whether the last step was truncated by the environment's own limit; [1] if never

    def reset(self, rng: np.random.Generator, mask: NDArray[np.bool_] | None = None) -> Floats:
        """Start new episodes.

        Args:
            rng: source of the initial states.
            mask: environments [N] to reset; all by default.

        Returns:
            The observations of all environments [N, O].
        """
        ...

    def step(self, act: Floats) -> Step:
        """Apply `act[N, A]`; ended episodes are not reset."""
        ...

    def save(self) -> Floats | None:
        """Return the state of the simulator [N, ...] for `load`, or None if the simulator cannot save it."""
        ...

    def load(self, state: Floats) -> Floats:
        """Restore a state that `save` returned, and return the observations [N, O]."""
        ...
