"""Any other Gymnasium environment behind the same interface, through Gymnasium's own vector API."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssorl.envs.base import Floats, Step
from ssorl.envs.trust import require_trusted
from ssorl.utils.extras import require


class VectorEnv:
    """`n_envs` copies of a Gymnasium environment with box actions; dict observations are flattened, keys by name.

    Args:
        name: a Gymnasium id, or what `make` is called.
        n_envs: how many copies.
        make: returns one environment; by default `gymnasium.make` does, by its id and without a time limit.
    """

    def __init__(self, name: str, n_envs: int, make: Callable[[], Any] | None = None):
        if make is None:
            require_trusted(name)
        require("sim", "gymnasium")
        import gymnasium as gym  # slow to import, and the fast path never needs it
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        def one() -> "gym.Env":
            # -1: no time limit inside, because truncation is the caller's here.
            env = gym.make(name, max_episode_steps=-1, disable_env_checker=True) if make is None else make()
            flat = isinstance(env.observation_space, gym.spaces.Box) and len(env.observation_space.shape) == 1
            if flat:
                return env
            space = _by_name(env.observation_space)
            wide = gym.spaces.flatten_space(space)
            return gym.wrappers.TransformObservation(env, lambda obs: gym.spaces.flatten(space, obs), wide)

        self._envs = SyncVectorEnv([one] * n_envs, autoreset_mode=AutoresetMode.DISABLED)
        obs_space, act_space = self._envs.single_observation_space, self._envs.single_action_space
        if not isinstance(obs_space, gym.spaces.Box) or not isinstance(act_space, gym.spaces.Box):
            raise ValueError(f"{name}: needs box observations and actions, has {obs_space} and {act_space}")
        if len(act_space.shape) != 1 or not np.isfinite([act_space.low, act_space.high]).all():
            raise ValueError(f"{name}: needs a bounded action vector, has {act_space}")
        self.name, self.n_envs = name, n_envs
        self.n_obs, self.n_act = int(np.prod(obs_space.shape)), act_space.shape[0]
        self.act_low, self.act_high = act_space.low.astype(float), act_space.high.astype(float)
        # The registry knows an id without the module that `module:id` had it imported from.
        spec = gym.spec(name.rpartition(":")[2]) if make is None else None
        self.horizon = (spec.max_episode_steps if spec else _time_limit(self._envs.envs[0])) or 1000
        self._dtype = act_space.dtype
        self._obs = np.zeros((n_envs, self.n_obs))
        self.cut = np.zeros(n_envs, bool)

    def reset(self, rng: np.random.Generator, mask: NDArray[np.bool_] | None = None) -> Floats:
        """New episodes where `mask`, each seeded from `rng`."""
        mask = np.ones(self.n_envs, bool) if mask is None else np.asarray(mask, bool)
        if mask.any():
            seeds: list[int | None] = [None] * self.n_envs
            for i in np.flatnonzero(mask):
                seeds[i] = int(rng.integers(2**31))
            obs, _ = self._envs.reset(seed=seeds, options={"reset_mask": mask})
            self._obs = np.where(mask[:, None], obs, self._obs)
        return self._obs.copy()

    def step(self, act: Floats) -> Step:
        """Apply `act[N, A]`; an episode that the environment cuts of its own accord counts as ended, see `cut`."""
        act = np.rint(act) if np.issubdtype(self._dtype, np.integer) else act
        obs, rew, terminated, truncated, _ = self._envs.step(np.asarray(act, self._dtype))
        self._obs, self.cut = obs.astype(float), truncated & ~terminated
        return Step(self._obs.copy(), rew, terminated | truncated)

    def save(self) -> None:
        """Gymnasium has no general way to save a simulator."""
        return None

    def load(self, state: Floats) -> Floats:
        """Not possible, see `save`."""
        raise NotImplementedError(f"{self.name}: Gymnasium environments cannot be put back to a saved state")


def _time_limit(env: Any) -> int | None:
    """The steps after which an environment cuts an episode: a wrapper's limit, or its own attribute `horizon`."""
    while env is not None:
        if limit := getattr(env, "_max_episode_steps", None) or getattr(env, "horizon", None):
            return int(limit)
        env = getattr(env, "env", None)
    return None


def _by_name(space: Any) -> Any:
    """A space with the keys of its dicts in alphabetical order, as data is read: Gymnasium keeps a given order."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _by_name(space[key]) for key in sorted(space)})
    return spaces.Tuple([_by_name(one) for one in space]) if isinstance(space, spaces.Tuple) else space
