"""Train behaviour policies with soft actor-critic: simulation on the CPU, updates on the device, several seeds at once.

A run folder contains
- curve.jsonl: the learning curve, one line for each evaluation and seed,
- checkpoint.npz: the complete state, to resume the run,
- seed-K/snapshots.npz: the actor at several training steps, in float16,
- seed-K/snapshots.json: returns of the last training episodes before each snapshot.
"""

import argparse
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ssorl import envs
from ssorl.data.sim import sac
from ssorl.data.sim.checkpoint import load_checkpoint, save_checkpoint
from ssorl.data.sim.outputs import crossed, evaluate, snapshot_every, take_snapshot, write_outputs
from ssorl.envs.registry import simulator
from ssorl.utils.errors import SsorlError
from ssorl.utils.locks import locked
from ssorl.utils.progress import Progress
from ssorl.utils.validation import check_seed

SAVE_SECONDS = 60.0  # seconds between checkpoints; longer if writing one takes more than 3 seconds


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run: one environment and several seeds. Steps are counted for each seed."""

    env: str = "hopper"  # name of the environment, see envs.make
    seeds: tuple[int, ...] = (0,)
    steps: int = 1_000_000  # environment steps per seed
    n_envs: int = 16  # environments per seed
    utd: float = 1.0  # updates per environment step
    warmup: int = 5_000  # steps with uniformly random actions before the first update
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers of actor and critics
    batch: int = 256  # transitions per update
    lr: float = 3e-4  # learning rate
    critic_norm: bool = False  # layer norm in the critics
    capacity: int = 1_000_000  # size of the replay buffer per seed
    eval_every: int = 100_000  # steps between evaluations of the stochastic policy
    eval_episodes: int = 16  # episodes per evaluation and seed
    checkpoint_every: int = 1_000_000  # steps between checkpoints; others are written each minute and at the end
    threads: int | None = None  # simulator threads; None: all cores


@dataclass
class Loop:
    """State of the training loop on the host. It is changed in place and saved completely in checkpoints."""

    iteration: int  # number of batched environment steps
    act: np.ndarray  # [S * N, A] in (-1, 1), the next actions
    ep_ret: np.ndarray  # [S * N], returns of the current episodes so far
    ep_len: np.ndarray  # [S * N], lengths of the current episodes so far
    recent: list[deque[float]]  # returns of the last training episodes of each seed
    rngs: list[np.random.Generator]  # one for each seed
    curve: list[dict[str, Any]] = field(default_factory=list)  # lines of curve.jsonl
    snaps: list[dict[str, Any]] = field(default_factory=list)  # snapshots: step, weights of all seeds, returns


def train(config: TrainConfig, out: Path, resume: bool = True, max_seconds: float | None = None) -> bool:
    """Train behaviour policies, or resume their training.

    Args:
        config: settings.
        out: run folder.
        resume: continue from the checkpoint in the folder, if it has one.
        max_seconds: stop and write a checkpoint after this time.

    Returns:
        Whether the training is finished.

    Raises:
        SsorlError: a setting is invalid, the checkpoint is damaged or of another run, or the folder is in use.
    """
    check(config)
    env = simulator(envs.TrustedName(config.env), len(config.seeds) * config.n_envs, config.threads)
    with locked(out):
        return _train(config, env, out, resume, max_seconds)


def check(config: TrainConfig) -> None:
    """Raise SsorlError if the number of steps or the seeds are invalid."""
    if config.steps < 1:
        raise SsorlError(f"steps is {config.steps}; give a whole number from 1 up")
    if not config.seeds or len(set(config.seeds)) < len(config.seeds):
        seeds = " ".join(map(str, config.seeds)) or "none"
        raise SsorlError(f"the seeds are {seeds}; give at least one, without repeats")
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
            return True  # the run has all its files already

    def save() -> float:
        """Write all files, and return the time of the next checkpoint."""
        began = time.perf_counter()
        write_outputs(config, loop, env, out)
        save_checkpoint(out / "checkpoint.npz", config, state, loop, env, obs)
        ended = time.perf_counter()
        return ended + max(SAVE_SECONDS, 20 * (ended - began))

    def by_seed(x: np.ndarray) -> jax.Array:
        return jnp.asarray(x, jnp.float32).reshape(n_seeds, n_envs, *x.shape[1:])

    metrics: dict[str, jax.Array] = {}
    next_save = started + SAVE_SECONDS
    with Reporter(config, loop.iteration * n_envs) as report:
        while (step := loop.iteration * n_envs) < config.steps:
            if max_seconds is not None and time.perf_counter() - started > max_seconds:
                break
            result = env.step(to_box(env, loop.act))
            # `result.obs` is the observation before any reset, and `cont` is 1 at time limits of the run or the
            # environment, so the critics bootstrap there.
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
            if crossed(step, now, config.checkpoint_every) or time.perf_counter() > next_save:
                next_save = save()
            report.advance(now, loop)
    save()
    return loop.iteration * n_envs >= config.steps


def sac_config(config: TrainConfig, env: envs.Env) -> sac.SacConfig:
    """Return the settings of the learner; the buffer is not larger than the run, and a multiple of `n_envs`."""
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
    """Return the initial state of a run.

    Args:
        config: settings of the run.
        cfg: settings of the learner.
        env: simulator of S * N environments.

    Returns:
        State of all seeds, state of the loop, and first observations [S * N, O].
    """
    n = env.n_envs
    rngs = [np.random.default_rng([seed, 0]) for seed in config.seeds]
    obs = reset(env, rngs, np.ones(n, bool), config.n_envs)
    act = uniform(rngs, config.n_envs, env.n_act)
    recent = [deque[float](maxlen=32) for _ in rngs]
    return sac.init(cfg, config.seeds), Loop(0, act, np.zeros(n), np.zeros(n, int), recent, rngs), obs


def uniform(rngs: list[np.random.Generator], n_envs: int, n_act: int) -> np.ndarray:
    """Return uniformly random actions [S * N, A]; each seed has its own generator."""
    return np.concatenate([rng.uniform(-1, 1, (n_envs, n_act)) for rng in rngs]).astype(np.float32)


def to_box(env: envs.Env, act: np.ndarray) -> np.ndarray:
    """Return actions [..., A] scaled from (-1, 1) to the environment's range."""
    return env.act_low + (act + 1.0) * 0.5 * (env.act_high - env.act_low)


def reset(env: envs.Env, rngs: list[np.random.Generator], mask: np.ndarray, n_envs: int) -> np.ndarray:
    """Reset environments, those of each seed with its own generator.

    Args:
        env: simulator of S * N environments.
        rngs: one generator for each seed.
        mask: environments to reset [S * N]; at least one.
        n_envs: environments per seed, N.

    Returns:
        The observations of all environments [S * N, O].
    """
    obs = None
    for k, rng in enumerate(rngs):
        own = mask & (np.arange(mask.size) // n_envs == k)
        if own.any():
            obs = env.reset(rng, own)
    assert obs is not None
    return obs


def end_episodes(loop: Loop, env: envs.Env, result: envs.Step, n_envs: int) -> np.ndarray:
    """Record the returns of finished episodes and restart their environments.

    Args:
        loop: state of the loop, which is updated.
        env: simulator.
        result: the last step.
        n_envs: environments per seed.

    Returns:
        The observations for the next actions [S * N, O].
    """
    loop.ep_ret += result.rew
    loop.ep_len += 1
    done = result.terminated | (loop.ep_len >= env.horizon)
    if not done.any():
        return result.obs
    for i in np.flatnonzero(done):
        loop.recent[i // n_envs].append(float(loop.ep_ret[i]))
    loop.ep_ret[done], loop.ep_len[done] = 0.0, 0
    return reset(env, loop.rngs, done, n_envs)


# Progress ----------------------------------------------------------------------------------------------------


class Reporter:
    """A progress bar with the mean return of recent training episodes, and one line for each evaluation."""

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
        """Advance the bar to this step."""
        if loop.iteration % 16 == 0 or step >= self.config.steps:
            means = " ".join(f"{np.mean(r):.0f}" for r in loop.recent if r)
            self.progress(self.config.env, step - self.done, f"training return {means}" if means else "")
            self.done = step

    def evaluated(self, lines: list[dict[str, Any]]) -> None:
        """Print the mean returns of an evaluation, one for each seed."""
        text = "  ".join(f"{x['eval']['mean']:.0f}±{x['eval']['std']:.0f}" for x in lines)
        self.progress.say(f"{self.config.env} after {lines[0]['step']:,} steps: return {text}")


def main(argv: list[str] | None = None) -> None:
    """Train behaviour policies, such as with --env hopper --steps 3000000 --seeds 0 1 2 --out runs/hopper."""
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
    print("finished" if finished else f"stopped; run the same command to resume from {out}")


if __name__ == "__main__":
    main()
