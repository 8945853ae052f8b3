"""Train the collectors: simulation on the CPU, soft actor-critic on the device, several seeds at once.

A run folder holds curve.jsonl (a line for each evaluation and seed), checkpoint.npz (everything, to resume)
and for each seed seed-K/snapshots.npz (the actor through training, float16) with seed-K/snapshots.json (what
its training episodes earned around then).
"""

import argparse
import json
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ssorl import envs
from ssorl.data.sim import sac
from ssorl.data.sim.checkpoint import load_checkpoint, save_checkpoint, stack_snaps
from ssorl.data.sim.policy import Policy, from_weights
from ssorl.envs.registry import simulator
from ssorl.utils.errors import SsorlError
from ssorl.utils.files import write_npz, write_text
from ssorl.utils.locks import locked
from ssorl.utils.progress import Progress
from ssorl.utils.validation import check_seed

SAVE = 60.0  # seconds between checkpoints, so that whoever stops it loses no more; more where writing one takes long


@dataclass(frozen=True)
class TrainConfig:
    """One environment, several seeds trained side by side. Steps are counted for each seed."""

    env: str = "hopper"  # as for envs.make
    seeds: tuple[int, ...] = (0,)
    steps: int = 1_000_000  # environment steps a seed
    n_envs: int = 16  # environments a seed
    utd: float = 1.0  # updates an environment step
    warmup: int = 5_000  # steps of uniform actions, before the first update
    hidden: tuple[int, ...] = (256, 256)
    batch: int = 256
    lr: float = 3e-4
    critic_norm: bool = False  # layer norm in the critics
    capacity: int = 1_000_000  # transitions kept a seed
    eval_every: int = 100_000  # steps between evaluations of the stochastic policy
    eval_episodes: int = 16
    checkpoint_every: int = 1_000_000  # steps between checkpoints; also one each minute, and the last
    threads: int | None = None  # simulator threads; None: all cores


@dataclass
class Loop:
    """The host's side of a run: the only mutable thing here, and all of it goes into a checkpoint."""

    iteration: int
    act: np.ndarray  # [S * N, A] in (-1, 1), to be applied next
    ep_ret: np.ndarray  # [S * N], return of the running episodes
    ep_len: np.ndarray  # [S * N]
    recent: list[deque[float]]  # returns of the last finished training episodes, a deque a seed
    rngs: list[np.random.Generator]
    curve: list[dict[str, Any]] = field(default_factory=list)
    snaps: list[dict[str, Any]] = field(default_factory=list)  # {step, weights of all seeds, returns}


def train(config: TrainConfig, out: Path, resume: bool = True, max_seconds: float | None = None) -> bool:
    """Train into `out`; stop cleanly after `max_seconds` and go on at the next call. True when finished."""
    check(config)
    env = simulator(envs.TrustedName(config.env), len(config.seeds) * config.n_envs, config.threads)
    with locked(out):
        return _train(config, env, out, resume, max_seconds)


def check(config: TrainConfig) -> None:
    """Refuse what cannot be trained."""
    if config.steps < 1:
        raise SsorlError(f"steps is {config.steps}; give a whole number from 1 up")
    if not config.seeds or len(set(config.seeds)) < len(config.seeds):
        told = " ".join(map(str, config.seeds)) or "none"
        raise SsorlError(f"the seeds are {told}; give at least one, and each once")
    for seed in config.seeds:
        check_seed(seed)


def _train(config: TrainConfig, env: envs.Env, out: Path, resume: bool, max_seconds: float | None) -> bool:
    started = time.perf_counter()
    n_seeds, n_envs = len(config.seeds), config.n_envs
    eval_env = envs.make(envs.TrustedName(config.env), config.eval_episodes, config.threads)
    cfg = sac_config(config, env)
    state, loop, obs = begin(config, cfg, env)
    if resume and (out / "checkpoint.npz").exists():
        state, obs = load_checkpoint(out / "checkpoint.npz", config, state, loop, env, obs)
        if loop.iteration * n_envs >= config.steps:
            return True  # its files are there, of as many steps or more

    def save() -> float:
        """Write all files; returns when the next are due."""
        began = time.perf_counter()
        write_outputs(config, loop, env, out)
        save_checkpoint(out / "checkpoint.npz", config, state, loop, env, obs)
        ended = time.perf_counter()
        return ended + max(SAVE, 20 * (ended - began))

    def by_seed(x: np.ndarray) -> jax.Array:
        return jnp.asarray(x, jnp.float32).reshape(n_seeds, n_envs, *x.shape[1:])

    metrics: dict[str, jax.Array] = {}
    due = started + SAVE
    with Reporter(config, loop.iteration * n_envs) as report:
        while (step := loop.iteration * n_envs) < config.steps:
            if max_seconds is not None and time.perf_counter() - started > max_seconds:
                break
            result = env.step(to_box(env, loop.act))
            # `result.obs` is from before any reset, and a time limit, ours or the environment's, leaves `cont` at 1:
            # both bootstrap.
            columns = (obs, loop.act, result.rew, 1.0 - (result.terminated & ~env.cut), result.obs)
            new = sac.Batch(*map(by_seed, columns))
            obs = end_episodes(loop, env, result, n_envs)
            warm = step + n_envs < config.warmup
            n_updates = 0 if warm else max(1, round(config.utd * n_envs))
            state, act, new_metrics = sac.iterate(cfg, n_updates, state, new, by_seed(obs), np.int32(loop.iteration))
            loop.iteration += 1
            if warm:
                loop.act = uniform(loop.rngs, n_envs, env.n_act)
            else:
                loop.act, metrics = np.array(act).reshape(-1, env.n_act), new_metrics
            now = loop.iteration * n_envs
            if crossed(step, now, snapshot_every(now)):
                take_snapshot(loop, state, now)
            if crossed(step, now, config.eval_every) and metrics:
                evaluate(config, loop, state, eval_env, metrics)
                write_outputs(config, loop, env, out)
                report.evaluated(loop.curve[-n_seeds:])
            if crossed(step, now, config.checkpoint_every) or time.perf_counter() > due:
                due = save()
            report.advance(now, loop)
    save()
    return loop.iteration * n_envs >= config.steps


def sac_config(config: TrainConfig, env: envs.Env) -> sac.SacConfig:
    """The learner's part of a config; the buffer never larger than the run, and whole writes fit into it."""
    capacity = min(config.capacity, config.steps + config.n_envs) // config.n_envs * config.n_envs
    return sac.SacConfig(
        env.n_obs,
        env.n_act,
        hidden=config.hidden,
        critic_norm=config.critic_norm,
        lr=config.lr,
        batch=config.batch,
        capacity=capacity,
    )


def begin(config: TrainConfig, cfg: sac.SacConfig, env: envs.Env) -> tuple[sac.State, Loop, np.ndarray]:
    """A fresh run: weights, counters, first observations. Each seed has its own generator."""
    n = env.n_envs
    rngs = [np.random.default_rng([seed, 0]) for seed in config.seeds]
    obs = reset(env, rngs, np.ones(n, bool), config.n_envs)
    act = uniform(rngs, config.n_envs, env.n_act)
    recent = [deque[float](maxlen=32) for _ in rngs]
    return sac.init(cfg, config.seeds), Loop(0, act, np.zeros(n), np.zeros(n, int), recent, rngs), obs


def uniform(rngs: list[np.random.Generator], n_envs: int, n_act: int) -> np.ndarray:
    """Random actions [S * N, A], each seed from its own generator."""
    return np.concatenate([rng.uniform(-1, 1, (n_envs, n_act)) for rng in rngs]).astype(np.float32)


def to_box(env: envs.Env, act: np.ndarray) -> np.ndarray:
    """From (-1, 1) to the environment's action range."""
    return env.act_low + (act + 1.0) * 0.5 * (env.act_high - env.act_low)


def reset(env: envs.Env, rngs: list[np.random.Generator], mask: np.ndarray, n_envs: int) -> np.ndarray:
    """Reset where `mask`, each seed's environments from its own generator. Returns all observations."""
    obs = None
    for k, rng in enumerate(rngs):
        own = mask & (np.arange(mask.size) // n_envs == k)
        if own.any():
            obs = env.reset(rng, own)
    assert obs is not None
    return obs


def end_episodes(loop: Loop, env: envs.Env, result: envs.Step, n_envs: int) -> np.ndarray:
    """Count, note the returns of finished episodes, restart them; returns the observations to act on."""
    loop.ep_ret += result.rew
    loop.ep_len += 1
    done = result.terminated | (loop.ep_len >= env.horizon)
    if not done.any():
        return result.obs
    for i in np.flatnonzero(done):
        loop.recent[i // n_envs].append(float(loop.ep_ret[i]))
    loop.ep_ret[done], loop.ep_len[done] = 0.0, 0
    return reset(env, loop.rngs, done, n_envs)


# Evaluation and snapshots ----------------------------------------------------------------------------------


def crossed(before: int, now: int, every: int) -> bool:
    """Whether a multiple of `every` lies in (before, now]."""
    return now // every > before // every


def snapshot_every(step: int) -> int:
    """Dense while the policy changes fast; thinner later, so that 2.5M steps stay under 15 MB a seed."""
    return 10_000 if step <= 500_000 else 25_000 if step <= 1_000_000 else 50_000


def actor_weights(state: sac.State) -> list[np.ndarray]:
    """w0, b0, w1, b1, ... of all seeds, each [S, ...]."""
    return [np.array(layer[kind]) for layer in state.learner.actor for kind in "wb"]


def take_snapshot(loop: Loop, state: sac.State, step: int) -> None:
    """Keep the actors of this step and what their recent training episodes earned."""
    loop.snaps.append(
        {
            "step": step,
            "weights": [w.astype(np.float16) for w in actor_weights(state)],
            "returns": [summary(np.array(r)) for r in loop.recent],
        }
    )


def summary(returns: np.ndarray) -> dict[str, Any]:
    """Count, mean and spread of some returns."""
    if not returns.size:
        return {"n": 0, "mean": None, "std": None}
    return {"n": returns.size, "mean": round(float(returns.mean()), 2), "std": round(float(returns.std()), 2)}


def rollout(env: envs.Env, policy: Policy, rng: np.random.Generator) -> np.ndarray:
    """Returns [N] of one stochastic episode in each environment."""
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
    """Add a curve line for each seed: fresh episodes of the stochastic policy, and the training's."""
    step, weights = loop.iteration * config.n_envs, actor_weights(state)
    for k, seed in enumerate(config.seeds):
        policy = from_weights([w[k] for w in weights], env.act_low, env.act_high)
        returns = rollout(env, policy, np.random.default_rng([seed, 1, step]))
        line = {"step": step, "seed": seed, "eval": summary(returns)}
        line["train"] = summary(np.array(loop.recent[k]))
        line |= {name: round(float(np.asarray(value)[k]), 4) for name, value in metrics.items()}
        loop.curve.append(line)


def write_outputs(config: TrainConfig, loop: Loop, env: envs.Env, out: Path) -> None:
    """The files a reader wants: config, curve, snapshots."""
    write_text(out / "config.json", json.dumps(asdict(config), indent=2) + "\n")
    write_text(out / "curve.jsonl", "".join(json.dumps(line) + "\n" for line in loop.curve))
    for k, seed in enumerate(config.seeds):
        table = [{"step": s["step"], **s["returns"][k]} for s in loop.snaps]
        write_text(out / f"seed-{seed}" / "snapshots.json", json.dumps(table, indent=0) + "\n")
        if loop.snaps:
            arrays = {"act_low": env.act_low, "act_high": env.act_high}
            write_npz(out / f"seed-{seed}" / "snapshots.npz", arrays | stack_snaps(loop.snaps, k))


# Telling the user ------------------------------------------------------------------------------------------


class Reporter:
    """Rate, time left and the returns of recent training episodes; a line of its own for each evaluation."""

    def __init__(self, config: TrainConfig, done: int):
        self.config, self.done = config, done
        self.progress = Progress({config.env: (config.steps, "steps")})
        self.progress(config.env, done)

    def __enter__(self) -> "Reporter":
        self.progress.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.__exit__(None, None, None)

    def advance(self, step: int, loop: Loop) -> None:
        """Count the steps since the last call."""
        if loop.iteration % 16 == 0 or step >= self.config.steps:
            means = " ".join(f"{np.mean(r):.0f}" for r in loop.recent if r)
            self.progress(self.config.env, step - self.done, f"training return {means}" if means else "")
            self.done = step

    def evaluated(self, lines: list[dict[str, Any]]) -> None:
        """One line for all seeds."""
        text = "  ".join(f"{x['eval']['mean']:.0f}±{x['eval']['std']:.0f}" for x in lines)
        self.progress.say(f"{self.config.env} after {lines[0]['step']:,} steps: return {text}")


def main(argv: list[str] | None = None) -> None:
    """Train from the command line: --env hopper --steps 3000000 --seeds 0 1 2 --out runs/hopper."""
    default = TrainConfig()
    p = argparse.ArgumentParser(description=main.__doc__)
    p.add_argument("--env", default=default.env)
    p.add_argument("--seeds", type=int, nargs="+", default=default.seeds)
    for name in ("steps", "n_envs", "warmup", "batch", "capacity", "eval_every", "eval_episodes"):
        p.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(default, name))
    p.add_argument("--checkpoint-every", type=int, default=default.checkpoint_every)
    p.add_argument("--threads", type=int, default=None)
    p.add_argument("--utd", type=float, default=default.utd)
    p.add_argument("--lr", type=float, default=default.lr)
    p.add_argument("--critic-norm", action=argparse.BooleanOptionalAction, default=default.critic_norm)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--resume", action=argparse.BooleanOptionalAction, default=True)
    p.add_argument("--max-seconds", type=float, default=None)
    args = vars(p.parse_args(argv))
    out, resume, limit = args.pop("out"), args.pop("resume"), args.pop("max_seconds")
    finished = train(TrainConfig(**{**args, "seeds": tuple(args["seeds"])}), out, resume, limit)
    print("finished" if finished else f"stopped; the same command goes on from {out}")


if __name__ == "__main__":
    main()
