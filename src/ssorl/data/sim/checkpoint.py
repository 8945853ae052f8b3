"""All of a collector's training run in one file, to go on as if it had not stopped."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ssorl import envs
from ssorl.data.sim import sac
from ssorl.utils.errors import SsorlError
from ssorl.utils.files import DamagedError
from ssorl.utils.sealed import sealed_or_npz, write_sealed
from ssorl.utils.trees import flat

if TYPE_CHECKING:
    from ssorl.data.sim.train import Loop, TrainConfig


def save_checkpoint(
    path: Path, config: TrainConfig, state: sac.State, loop: Loop, env: envs.Env, obs: np.ndarray
) -> None:
    """All that the run needs to go on as if it had not stopped; no pickles."""
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
# What may change between a stop and a resume without making it another run.
FREE = ("steps", "threads", "eval_every", "eval_episodes", "checkpoint_every")


def load_checkpoint(
    path: Path, config: TrainConfig, state: sac.State, loop: Loop, env: envs.Env, obs: np.ndarray
) -> tuple[sac.State, np.ndarray]:
    """Fill `loop`, the simulator and the device from a checkpoint; returns the state and observations."""
    try:
        return _load(path, config, state, loop, env, obs)
    except Exception as err:  # the boundary to foreign bytes: any error there means the same to the user
        if isinstance(err, SsorlError) and not isinstance(err, DamagedError):
            raise
        reason = f"{type(err).__name__}: {err}".encode("unicode_escape").decode()[:200]
        raise SsorlError(f"{path}: is no checkpoint or damaged ({reason}); remove it to train from the start") from err


def _load(
    path: Path, config: TrainConfig, state: sac.State, loop: Loop, env: envs.Env, obs: np.ndarray
) -> tuple[sac.State, np.ndarray]:
    with sealed_or_npz(path) as file:
        data = {name: file.array(name) for name in file.names}
    meta = json.loads(str(data["meta"]))
    want = json.loads(json.dumps(asdict(config)))
    changed = [k for k in want if k not in FREE and want[k] != meta["config"].get(k)]
    if changed:
        was = ", ".join(f"{k} was {meta['config'].get(k)!r}" for k in changed)
        raise SsorlError(f"{path} is of another run ({was}); train into another folder, or without resuming")
    leaves, tree = jax.tree.flatten(state)
    # Version 0.1 numbered the leaves.
    names = [f"state{i}" for i in range(len(leaves))] if "state0" in data else list(flat(state, "state"))
    saved = [data[name] for name in names]
    # The buffer is saved only as far as it is filled; one longer than this run's is of a run with all its steps done.
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
    # else: a simulator that cannot be saved starts new episodes, whose observations `begin` made
    return jax.tree.unflatten(tree, leaves), obs


def stack_snaps(snaps: list[dict[str, Any]], k: int | None = None) -> dict[str, np.ndarray]:
    """Snapshots as arrays [T, ...], of seed number `k` or of all seeds [T, S, ...]."""
    arrays = {"step": np.array([s["step"] for s in snaps])}
    for j in range(len(snaps[0]["weights"]) if snaps else 0):
        every = np.stack([s["weights"][j] for s in snaps])
        arrays[f"{'wb'[j % 2]}{j // 2}"] = every if k is None else every[:, k]
    return arrays
