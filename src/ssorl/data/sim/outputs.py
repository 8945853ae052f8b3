"""Evaluations, snapshots and result files of the training of behaviour policies."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ssorl import envs
from ssorl.data.sim import sac
from ssorl.data.sim.policy import Policy, from_weights
from ssorl.utils.files import write_npz, write_text

if TYPE_CHECKING:
    from ssorl.data.sim.train import Loop, TrainConfig


def crossed(before: int, now: int, every: int) -> bool:
    """Return whether a multiple of `every` is in (before, now]."""
    return now // every > before // every


def snapshot_every(step: int) -> int:
    """Return the steps between snapshots; they grow with `step`, so that 2.5M steps take less than 15 MB per seed."""
    return 10_000 if step <= 500_000 else 25_000 if step <= 1_000_000 else 50_000


def actor_weights(state: sac.State) -> list[np.ndarray]:
    """Return w0, b0, w1, b1, ... of all seeds, each [S, ...]."""
    return [np.array(layer[kind]) for layer in state.learner.actor for kind in "wb"]


def take_snapshot(loop: Loop, state: sac.State, step: int) -> None:
    """Store the current actors and the returns of their last training episodes in `loop.snaps`."""
    loop.snaps.append(
        {
            "step": step,
            "weights": [w.astype(np.float16) for w in actor_weights(state)],
            "returns": [summary(np.array(r)) for r in loop.recent],
        }
    )


def summary(returns: np.ndarray) -> dict[str, Any]:
    """Return number, mean and standard deviation of returns."""
    if not returns.size:
        return {"n": 0, "mean": None, "std": None}
    return {"n": returns.size, "mean": round(float(returns.mean()), 2), "std": round(float(returns.std()), 2)}


def rollout(env: envs.Env, policy: Policy, rng: np.random.Generator) -> np.ndarray:
    """Return the undiscounted returns [N] of one stochastic episode in each environment.

    Args:
        env: simulator of N environments.
        policy: the policy.
        rng: source of initial states and action noise.
    """
    obs, total, alive = env.reset(rng), np.zeros(env.n_envs), np.ones(env.n_envs, bool)
    for _ in range(env.horizon):
        result = env.step(policy.act(obs, rng))
        total += result.rew * alive
        alive &= ~result.terminated
        if not alive.any():
            break
        obs = env.reset(rng, result.terminated)
    return total


def evaluate(config: TrainConfig, loop: Loop, state: sac.State, env: envs.Env, metrics: dict) -> None:
    """Evaluate the stochastic policies in new episodes, and add a line for each seed to `loop.curve`.

    Args:
        config: settings of the run.
        loop: state of the loop.
        state: states of all seeds.
        env: simulator for evaluation.
        metrics: last training metrics, [S] by name.
    """
    step, weights = loop.iteration * config.n_envs, actor_weights(state)
    for k, seed in enumerate(config.seeds):
        policy = from_weights([w[k] for w in weights], env.act_low, env.act_high)
        returns = rollout(env, policy, np.random.default_rng([seed, 1, step]))
        line = {"step": step, "seed": seed, "eval": summary(returns)}
        line["train"] = summary(np.array(loop.recent[k]))
        line |= {name: round(float(np.asarray(value)[k]), 4) for name, value in metrics.items()}
        loop.curve.append(line)


def write_outputs(config: TrainConfig, loop: Loop, env: envs.Env, out: Path) -> None:
    """Write the config, learning curves and snapshots to the run folder."""
    write_text(out / "config.json", json.dumps(asdict(config), indent=2) + "\n")
    write_text(out / "curve.jsonl", "".join(json.dumps(line) + "\n" for line in loop.curve))
    for k, seed in enumerate(config.seeds):
        table = [{"step": s["step"], **s["returns"][k]} for s in loop.snaps]
        write_text(out / f"seed-{seed}" / "snapshots.json", json.dumps(table, indent=0) + "\n")
        if loop.snaps:
            arrays = {"act_low": env.act_low, "act_high": env.act_high}
            write_npz(out / f"seed-{seed}" / "snapshots.npz", arrays | stack_snaps(loop.snaps, k))


def stack_snaps(snaps: list[dict[str, Any]], k: int | None = None) -> dict[str, np.ndarray]:
    """Return T snapshots as arrays.

    Args:
        snaps: snapshots of all seeds, see `Loop.snaps`.
        k: index of a seed; None for all seeds.

    Returns:
        `step` [T], and weights `w0`, `b0`, `w1`, ... of shape [T, ...] for one seed or [T, S, ...] for all.
    """
    arrays = {"step": np.array([s["step"] for s in snaps])}
    for j in range(len(snaps[0]["weights"]) if snaps else 0):
        weights = np.stack([s["weights"][j] for s in snaps])
        arrays[f"{'wb'[j % 2]}{j // 2}"] = weights if k is None else weights[:, k]
    return arrays
