"""Any other Gymnasium environment behind the same interface, through Gymnasium's own vector API."""

import numpy as np
from numpy.typing import NDArray

from ssorl.envs.base import Floats, Step


class VectorEnv:
    """`n_envs` copies of a Gymnasium environment with box actions; dict observations are flattened."""

    def __init__(self, name: str, n_envs: int):
        import gymnasium as gym  # slow to import, and the fast path never needs it
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        def one() -> "gym.Env":
            # -1: no time limit inside, because truncation is the caller's here.
            env = gym.make(name, max_episode_steps=-1, disable_env_checker=True)
            flat = isinstance(env.observation_space, gym.spaces.Box) and len(env.observation_space.shape) == 1
            return env if flat else gym.wrappers.FlattenObservation(env)

        self._envs = SyncVectorEnv([one] * n_envs, autoreset_mode=AutoresetMode.DISABLED)
        obs_space, act_space = self._envs.single_observation_space, self._envs.single_action_space
        if not isinstance(obs_space, gym.spaces.Box) or not isinstance(act_space, gym.spaces.Box):
            raise ValueError(f"{name}: needs box observations and actions, has {obs_space} and {act_space}")
        if len(act_space.shape) != 1 or not np.isfinite([act_space.low, act_space.high]).all():
            raise ValueError(f"{name}: needs a bounded action vector, has {act_space}")
        self.name, self.n_envs = name, n_envs
        self.n_obs, self.n_act = int(np.prod(obs_space.shape)), act_space.shape[0]
        self.act_low, self.act_high = act_space.low.astype(float), act_space.high.astype(float)
        self.horizon = gym.spec(name).max_episode_steps or 1000
        self._dtype = act_space.dtype
        self._obs = np.zeros((n_envs, self.n_obs))

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
        """Apply `act[N, A]`."""
        obs, rew, terminated, _, _ = self._envs.step(np.asarray(act, self._dtype))
        self._obs = obs.astype(float)
        return Step(self._obs.copy(), rew, terminated)

    def save(self) -> None:
        """Gymnasium has no general way to save a simulator."""
        return None

    def load(self, state: Floats) -> Floats:
        """Not possible, see `save`."""
        raise NotImplementedError(f"{self.name}: Gymnasium environments cannot be put back to a saved state")
