"""Small datasets from the built-in simulators, and models with other masses."""

from dataclasses import replace

import numpy as np

from ssorl import envs
from ssorl.data.episodes import Episodes, Meta, offsets
from ssorl.envs.models import known_model


def rollouts(name: str, n_episodes: int = 8, n_steps: int = 60, seed: int = 0, smooth: float = 0.7) -> Episodes:
    """Return trajectories of smooth random actions; all of them have `n_steps` steps, also after a fall."""
    env, rng = envs.make(name, n_episodes, 1), np.random.default_rng(seed)
    obs, act = [env.reset(rng)], []
    force = np.zeros((n_episodes, env.n_act))
    for _ in range(n_steps):
        force = smooth * force + (1 - smooth) * rng.uniform(-3, 3, force.shape)
        act.append(np.clip(force, -1, 1).astype(np.float32))
        obs.append(env.step(act[-1]).obs)
    n = n_episodes * n_steps
    return Episodes(
        np.stack(obs, 1).reshape(n + n_episodes, -1).astype(np.float32),
        np.stack(act, 1).reshape(n, -1),
        np.zeros(n, np.float32),
        np.zeros(n, bool),
        offsets(np.full(n_episodes, n_steps)),
        Meta(name, name, (-1.0,) * env.n_act, (1.0,) * env.n_act, "declared"),
    )


def hide(eps: Episodes, from_trajectory: int) -> Episodes:
    """Return the trajectories without the actions of the later ones."""
    act = eps.act.copy()
    act[eps.start[from_trajectory] :] = np.nan
    return eps.with_actions(act)


def with_masses(name: str, factor: float):
    """Return a built-in model whose masses and inertias are multiplied by a factor."""
    import mujoco

    known = known_model(name)
    known.model.body_mass[:] *= factor
    known.model.body_inertia[:] *= factor
    mujoco.mj_setConst(known.model, mujoco.MjData(known.model))
    return replace(known, name=f"{name} with other masses")
