"""Other Gymnasium environments behind the same interface, through Gymnasium's vector API."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssorl.envs.base import Floats, Step
from ssorl.envs.trust import require_trusted
from ssorl.utils.extras import require


class VectorEnv:
    """A batch of a Gymnasium environment with box actions; dict observations are flattened, keys sorted by name.

    Args:
        name: a Gymnasium id, or a name for what `make` creates.
        n_envs: number of copies N.
        make: creates one environment; by default `gymnasium.make` does, without a time limit.
    """

    def __init__(self, name: str, n_envs: int, make: Callable[[], Any] | None = None):
        if make is None:
            require_trusted(name)
        require("sim", "gymnasium")
        import gymnasium as gym  # slow to import, and the batched simulators do not need it
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        def make_env() -> "gym.Env":
            # -1: no time limit in Gymnasium, because the caller truncates.
            env = gym.make(name, max_episode_steps=-1, disable_env_checker=True) if make is None else make()
            flat = isinstance(env.observation_space, gym.spaces.Box) and len(env.observation_space.shape) == 1
            if flat:
                return env
            space = _sort_keys(env.observation_space)
            flat_space = gym.spaces.flatten_space(space)
            return gym.wrappers.TransformObservation(env, lambda obs: gym.spaces.flatten(space, obs), flat_space)

        self._envs = SyncVectorEnv([make_env] * n_envs, autoreset_mode=AutoresetMode.DISABLED)
        obs_space, act_space = self._envs.single_observation_space, self._envs.single_action_space
        if not isinstance(obs_space, gym.spaces.Box) or not isinstance(act_space, gym.spaces.Box):
            raise ValueError(f"{name}: needs box observations and actions, has {obs_space} and {act_space}")
        if len(act_space.shape) != 1 or not np.isfinite([act_space.low, act_space.high]).all():
            raise ValueError(f"{name}: needs a bounded action vector, has {act_space}")
        self.name, self.n_envs = name, n_envs
        self.n_obs, self.n_act = int(np.prod(obs_space.shape)), act_space.shape[0]
        self.act_low, self.act_high = act_space.low.astype(float), act_space.high.astype(float)
        # Gymnasium registers the id without the module of `module:id`.
        spec = gym.spec(name.rpartition(":")[2]) if make is None else None
        self.horizon = (spec.max_episode_steps if spec else _time_limit(self._envs.envs[0])) or 1000
        self._dtype = act_space.dtype
        self._obs = np.zeros((n_envs, self.n_obs))
        self.cut = np.zeros(n_envs, bool)

    def reset(self, rng: np.random.Generator, mask: NDArray[np.bool_] | None = None) -> Floats:
        """Start new episodes where `mask` is True, each seeded from `rng`."""
        mask = np.ones(self.n_envs, bool) if mask is None else np.asarray(mask, bool)
        if mask.any():
            seeds: list[int | None] = [None] * self.n_envs
            for i in np.flatnonzero(mask):
                seeds[i] = int(rng.integers(2**31))
            obs, _ = self._envs.reset(seed=seeds, options={"reset_mask": mask})
            self._obs = np.where(mask[:, None], obs, self._obs)
        return self._obs.copy()

    def step(self, act: Floats) -> Step:
        """Apply `act[N, A]`; an episode that the environment truncates counts as terminated and is marked in `cut`."""
        act = np.rint(act) if np.issubdtype(self._dtype, np.integer) else act
        obs, rew, terminated, truncated, _ = self._envs.step(np.asarray(act, self._dtype))
        self._obs, self.cut = obs.astype(float), truncated & ~terminated
        return Step(self._obs.copy(), rew, terminated | truncated)

    def save(self) -> None:
        """Return None: Gymnasium has no general way to save a simulator."""
        return None

    def load(self, state: Floats) -> Floats:
        """Raise NotImplementedError, see `save`."""
        raise NotImplementedError(f"{self.name}: the state of a Gymnasium environment cannot be restored")


def _time_limit(env: Any) -> int | None:
    """Return the steps after which an environment truncates: a wrapper's limit, or its attribute `horizon`."""
    while env is not None:
        if limit := getattr(env, "_max_episode_steps", None) or getattr(env, "horizon", None):
            return int(limit)
        env = getattr(env, "env", None)
    return None


def _sort_keys(space: Any) -> Any:
    """Sort the keys of dict spaces, because the readers of datasets sort them too; Gymnasium keeps their order."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _sort_keys(space[key]) for key in sorted(space)})
    return spaces.Tuple([_sort_keys(part) for part in space]) if isinstance(space, spaces.Tuple) else space
