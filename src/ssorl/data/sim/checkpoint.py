"""Checkpoints of behaviour policy training: one file from which a run resumes with identical results."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from ssorl import envs
from ssorl.data.sim import sac
from ssorl.data.sim.outputs import stack_snaps
from ssorl.utils.errors import SsorlError
from ssorl.utils.files import DamagedError
from ssorl.utils.sealed import sealed_or_npz, write_sealed
from ssorl.utils.trees import flat

if TYPE_CHECKING:
    from ssorl.data.sim.train import Loop, TrainConfig


def save_checkpoint(
    path: Path, config: TrainConfig, state: sac.State, loop: Loop, env: envs.Env, obs: np.ndarray
) -> None:
    """Write the complete state of a run to a sealed file.

    Args:
        path: the file.
        config: settings of the run.
        state: weights, replay buffer and keys of all seeds.
        loop: state of the training loop.
        env: simulator, whose state is saved if it can be.
        obs: current observations [S * N, O].

    Raises:
        SsorlError: the file cannot be written.
    """
    filled = min(loop.iteration * config.n_envs, state.buffer.shape[1])
    arrays = {k: np.asarray(v) for k, v in flat(state._replace(buffer=state.buffer[:, :filled]), "state").items()}
    arrays |= {f"snap_{k}": v for k, v in stack_snaps(loop.snaps).items()}
    arrays |= {"act": loop.act, "ep_ret": loop.ep_ret, "ep_len": loop.ep_len, "obs": obs}
    if (sim := env.save()) is not None:
        arrays["sim"] = sim
    meta = {
        "config": asdict(config),
        "iteration": loop.iteration,
        "recent": [list(r) for r in loop.recent],
        "rngs": [rng.bit_generator.state for rng in loop.rngs],
        "curve": loop.curve,
        "snap_returns": [s["returns"] for s in loop.snaps],
    }
    arrays["meta"] = np.array(json.dumps(meta))
    write_sealed(path, {"kind": KIND}, arrays)


KIND = "ssorl collector"
# Settings that may change when a run is resumed.
MAY_CHANGE = ("steps", "threads", "eval_every", "eval_episodes", "checkpoint_every")


def load_checkpoint(
    path: Path, config: TrainConfig, state: sac.State, loop: Loop, env: envs.Env, obs: np.ndarray
) -> tuple[sac.State, np.ndarray]:
    """Read a checkpoint; `loop` and `env` are changed in place.

    Args:
        path: the file.
        config: settings of the run, which must match those of the checkpoint.
        state: a new state, for its shapes.
        loop: state of the training loop, to be filled.
        env: simulator, whose state is restored if it was saved.
        obs: observations of new episodes, for a simulator whose state was not saved.

    Returns:
        The state of all seeds and the current observations [S * N, O].

    Raises:
        SsorlError: the file is damaged or of a run with other settings.
    """
    try:
        return _load(path, config, state, loop, env, obs)
    except Exception as err:  # untrusted bytes: every error here means that the file is unusable
        if isinstance(err, SsorlError) and not isinstance(err, DamagedError):
            raise
        reason = f"{type(err).__name__}: {err}".encode("unicode_escape").decode()[:200]
        raise SsorlError(f"{path}: is damaged or no checkpoint ({reason}); delete it to train from the start") from err


def _load(
    path: Path, config: TrainConfig, state: sac.State, loop: Loop, env: envs.Env, obs: np.ndarray
) -> tuple[sac.State, np.ndarray]:
    with sealed_or_npz(path) as file:
        data = {name: file.array(name) for name in file.names}
    meta = json.loads(str(data["meta"]))
    want = json.loads(json.dumps(asdict(config)))
    changed = [k for k in want if k not in MAY_CHANGE and want[k] != meta["config"].get(k)]
    if changed:
        was = ", ".join(f"{k} was {meta['config'].get(k)!r}" for k in changed)
        raise SsorlError(f"{path}: is of another run ({was}); choose another --out")
    leaves, tree = jax.tree.flatten(state)
    # Version 0.1 numbered the leaves of the state.
    names = [f"state{i}" for i in range(len(leaves))] if "state0" in data else list(flat(state, "state"))
    saved = [data[name] for name in names]
    # Only the filled part of the buffer is saved. A buffer longer than this run's comes from a run with more steps.
    leaves = [
        jnp.asarray(s) if s.shape == old.shape or s.shape[1] > old.shape[1] else old.at[:, : s.shape[1]].set(s)
        for s, old in zip(saved, leaves, strict=True)
    ]
    loop.iteration, loop.act, loop.curve = meta["iteration"], data["act"], meta["curve"]
    for recent, values in zip(loop.recent, meta["recent"], strict=True):
        recent.extend(values)
    for rng, saved_state in zip(loop.rngs, meta["rngs"], strict=True):
        rng.bit_generator.state = saved_state
    names = [f"snap_{kind}{j}" for j in range(len(config.hidden) + 1) for kind in "wb"]
    weights = [data[name] for name in names if name in data]
    loop.snaps[:] = [
        {"step": int(step), "weights": [w[i] for w in weights], "returns": meta["snap_returns"][i]}
        for i, step in enumerate(data["snap_step"])
    ]
    if "sim" in data:
        env.load(data["sim"])
        loop.ep_ret, loop.ep_len, obs = data["ep_ret"], data["ep_len"], data["obs"]
    # Otherwise the simulator cannot be saved, and new episodes start with the observations in `obs`.
    return jax.tree.unflatten(tree, leaves), obs
