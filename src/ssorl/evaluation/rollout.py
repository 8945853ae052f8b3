"""Evaluation by rollouts: each episode of each policy is a lane of one batched simulator and runs until its own end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl import envs
from ssorl.agents.base import Agent
from ssorl.evaluation import EPISODES
from ssorl.evaluation.policy import TrainedPolicy, Weights, advance, weights
from ssorl.utils.bootstrap import resample_means
from ssorl.utils.display import html_table, short_repr
from ssorl.utils.errors import SsorlError

__all__ = ["Interval", "Scores", "bootstrap", "evaluate"]

ROWS = 8  # lanes of a policy are padded to a multiple of this; with fewer rows XLA uses kernels that round differently
DRAWS = 10_000  # bootstrap resamples


class Interval(NamedTuple):
    """A mean with its 95 % confidence interval; scalars, or arrays with one value for each policy."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Scores(NamedTuple):
    """Scores of P policies in E episodes each. Episode e has the same initial state for all policies."""

    env: str
    returns: np.ndarray  # [P, E], undiscounted
    normalised: np.ndarray | None  # [P, E], 0 is a random policy and 100 an expert (D4RL); None: no reference
    lengths: np.ndarray  # [P, E], steps
    starts: np.ndarray  # [E, O], initial observations

    def summary(self, seed: int = 0) -> Interval:
        """Return the mean score of each policy with its interval over episodes.

        Args:
            seed: seed of the bootstrap.

        Returns:
            Arrays [P]; normalised scores if the environment has reference scores, returns otherwise.
        """
        return bootstrap(self.returns if self.normalised is None else self.normalised, seed)

    def __repr__(self) -> str:
        n_policies, n_episodes = self.returns.shape
        scores = self.returns if self.normalised is None else self.normalised
        means = [float(f"{x:.4g}") for x in scores.mean(-1)]
        name = "mean_return" if self.normalised is None else "mean_normalised_score"
        return short_repr("Scores", {"env": self.env, "policies": n_policies, "episodes": n_episodes, name: means})

    def _repr_html_(self) -> str:
        name = "return" if self.normalised is None else "normalised score"
        rows = {
            f"policy {i}, mean {name} (95 % interval)": f"{mean:.4g} ({low:.4g} to {high:.4g})"
            for i, (mean, low, high) in enumerate(zip(*self.summary(), strict=True))
        }
        return html_table("Scores", {"environment": self.env, "episodes": self.returns.shape[1], **rows})


def bootstrap(values: np.ndarray, seed: int = 0, draws: int = DRAWS) -> Interval:
    """Return the mean over the last axis with its 95 % percentile-bootstrap interval.

    Args:
        values: samples [..., N].
        seed: seed of the resamples.
        draws: number of resamples.

    Returns:
        Mean, low and high end, each [...].
    """
    n = values.shape[-1]
    flat = values.reshape(-1, n).T.astype(np.float64)
    means = resample_means(flat, draws, np.random.default_rng(seed))
    low, high = np.quantile(means, [0.025, 0.975], axis=0).reshape(2, *values.shape[:-1])
    return Interval(values.mean(-1), low, high)


def evaluate(
    players: Sequence[TrainedPolicy],
    env: str,
    episodes: int = EPISODES,
    seed: int = 0,
    progress: Callable[[int, str], None] | None = None,
    threads: int | None = None,
    watch: Callable[[envs.Env], None] | None = None,
) -> Scores:
    """Play episodes with several policies in one batched simulator.

    The score of a policy depends neither on the other policies nor on the number of simulator threads. On a CPU this
    holds to the bit; a GPU may round differently for other batch shapes.

    Args:
        players: P policies.
        env: name of the environment, as for `envs.make`; a `module:Id` must be a `TrustedName`.
        episodes: episodes E of each policy.
        seed: seed of the initial states, which are the same for every policy.
        progress: called as `progress(steps, note)`; the steps sum to P * E * `horizon(env)`, since the steps that an
            episode did not need count as done when it ends.
        threads: threads of the simulator; by default, all cores.
        watch: called with the simulator at the start and after each step; lane p * E + e is episode e of policy p.

    Raises:
        SsorlError: the environment is unknown, a policy does not fit it, or an action or state is not finite.
    """
    if episodes < 1:
        raise SsorlError(f"episodes is {episodes}; give a whole number from 1 up")
    if seed < 0:
        raise SsorlError(f"the seed is {seed}; give a whole number from 0 up")
    if not players:
        raise SsorlError("the list of policies to evaluate is empty; give at least one policy")
    sim = envs.simulator(env, len(players) * episodes, threads)
    _check(players, sim)
    obs, first = _starts(sim, len(players), episodes, seed)
    groups = [_Group(players, members, episodes, seed) for members in _batches(players)]
    act = np.zeros((sim.n_envs, sim.n_act))
    rew, total, length = (np.zeros(sim.n_envs) for _ in range(3))
    running = np.arange(sim.n_envs)
    if watch:
        watch(sim)
    for time in range(sim.horizon):
        for group in groups:
            group.start(obs, rew, time)
        for group in groups:
            group.collect(act)
        _check_finite(players, episodes, obs, act, running, time)
        np.clip(act, sim.act_low, sim.act_high, out=act)
        obs, rew, ended = sim.step(act, running) if isinstance(sim, envs.Locomotion) else sim.step(act)
        if watch:
            watch(sim)
        if ended.any() and not isinstance(sim, envs.Locomotion):
            # Gymnasium raises when an ended episode is stepped, so start a new one, which does not count.
            sim.reset(np.random.default_rng(0), ended)
        total[running] += rew[running]
        length[running] += 1
        left = running[~ended[running]]
        if progress:
            progress(len(running) + (len(running) - len(left)) * (sim.horizon - time - 1), "")
        if not len(left):
            break
        if len(left) < len(running):
            groups = [smaller for group in groups if (smaller := group.without_ended(left)) is not None]
        running = left
    returns = total.reshape(len(players), episodes)
    return Scores(env, returns, _normalised(env, returns), length.reshape(returns.shape).astype(np.int64), first)


# Batches of policies ---------------------------------------------------------------------------------------


class _Group:
    """Policies with the same agent and array shapes, which act in one call.

    Their lanes form a table of policies by episodes, [B, W]. It shrinks by halves as episodes end, so that few programs
    are compiled. Free places of the table repeat the first lane of their row, free rows the first row; the actions of
    repeated lanes are not used.
    """

    def __init__(self, players: Sequence[TrainedPolicy], members: list[int], episodes: int, seed: int) -> None:
        first = players[members[0]]
        self.agent, self.episodes, self.key = first.agent, episodes, jax.random.key(seed)
        self.own: Weights = jax.device_put(
            jax.tree.map(lambda *x: np.stack(x), *(weights(players[p]) for p in members))
        )
        lanes = [np.arange(p * episodes, (p + 1) * episodes) for p in members]
        self.lane, self.real = _table(lanes, len(lanes), -(-episodes // ROWS) * ROWS)
        self.carry = jax.tree.map(lambda x: jnp.tile(x, (*self.lane.shape, *[1] * jnp.ndim(x))), first.begin())

    def start(self, obs: np.ndarray, rew: np.ndarray, time: int) -> None:
        """Start to compute the action of each lane on the device.

        Args:
            obs: observations of all lanes [N, O].
            rew: rewards of the last step [N].
            time: steps since the start of the episodes.
        """
        obs, rew = obs[self.lane].astype(np.float32), rew[self.lane].astype(np.float32)
        episode = (self.lane % self.episodes).astype(np.int32)
        self.act, self.carry = _act(self.agent, self.own, self.carry, obs, rew, episode, time, self.key)

    def collect(self, out: np.ndarray) -> None:
        """Wait for the actions and write them to out[N, A]."""
        out[self.lane[self.real]] = np.asarray(self.act)[self.real]

    def without_ended(self, running: np.ndarray) -> _Group | None:
        """Drop the lanes that have ended, if that at least halves the table; return None if no lane is left."""
        keep = self.real & np.isin(self.lane, running)
        rows = np.flatnonzero(keep.any(1))
        if not len(rows):
            return None
        n_rows = min(_power(len(rows)), len(self.lane))
        width = min(max(ROWS, _power(int(keep.sum(1).max()))), self.lane.shape[1])
        if n_rows * width > self.lane.size // 2:
            return self
        row = np.concatenate([rows, np.full(n_rows - len(rows), rows[0])])
        place, _ = _table([np.flatnonzero(keep[r]) for r in rows], n_rows, width)
        lanes = [self.lane[r, keep[r]] for r in rows]
        self.lane, self.real = _table(lanes, n_rows, width)
        self.own = jax.tree.map(lambda x: x[row], self.own)
        self.carry = jax.tree.map(lambda x: x[row[:, None], place], self.carry)
        return self


def _table(lanes: list[np.ndarray], n_rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Arrange lists of lanes as a table [n_rows, width]; also return which of its places are not repetitions."""
    lengths = np.array([len(x) for x in lanes] + [0] * (n_rows - len(lanes)))
    real = np.arange(width) < lengths[:, None]
    table = np.repeat([x[0] for x in lanes] + [lanes[0][0]] * (n_rows - len(lanes)), width).reshape(n_rows, width)
    table[real] = np.concatenate(lanes)
    return table, real


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


@partial(jax.jit, static_argnames="agent", donate_argnames="carry")
def _act(
    agent: Agent,
    own: Weights,
    carry: Any,
    obs: jax.Array,  # [B, W, O]
    rew: jax.Array,  # [B, W]
    episode: jax.Array,  # [B, W]; with the time it determines the random key of a lane
    time: int,
    key: jax.Array,
) -> tuple[jax.Array, Any]:
    def lane(own: Weights, carry: Any, obs: jax.Array, rew: jax.Array, episode: jax.Array) -> tuple[jax.Array, Any]:
        return advance(agent, own, carry, obs, rew, jax.random.fold_in(jax.random.fold_in(key, episode), time))

    return jax.vmap(jax.vmap(lane, (None, 0, 0, 0, 0)))(own, carry, obs, rew, episode)


def _batches(players: Sequence[TrainedPolicy]) -> list[list[int]]:
    """Group the indices of policies that can act in one call.

    On a CPU each policy acts in its own call: batching gains little there, and a matrix product may round differently
    in a larger batch, so that a score would depend on the other policies.
    """
    if jax.default_backend() == "cpu":
        return [[number] for number in range(len(players))]
    kinds: dict[Any, list[int]] = {}
    for number, player in enumerate(players):
        leaves, tree = jax.tree.flatten(weights(player))
        shapes = tuple((np.shape(x), np.asarray(x).dtype.name) for x in leaves)
        kinds.setdefault((player.agent, tree, shapes), []).append(number)
    return list(kinds.values())


# Checks --------------------------------------------------------------------------------------------------


def _check(players: Sequence[TrainedPolicy], sim: envs.Env) -> None:
    for number, player in enumerate(players):
        for name, size, expected in (("observations", player.n_obs, sim.n_obs), ("actions", player.n_act, sim.n_act)):
            if size != expected:
                raise SsorlError(
                    f"policy {number} ({type(player.agent).__name__}) was trained on {name} of size {size}, but "
                    f"{sim.name} has size {expected}; name the environment that its data came from"
                )


def _starts(sim: envs.Env, players: int, episodes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all initial observations [N, O] and those of one policy [E, O]; every policy has the same draws."""
    obs = sim.reset(np.random.default_rng(seed))  # Gymnasium requires that all are reset at first
    player = np.arange(sim.n_envs) // episodes
    for number in range(players):
        obs = sim.reset(np.random.default_rng(seed), player == number)
    return obs, obs[:episodes].copy()


def _check_finite(
    players: Sequence[TrainedPolicy], episodes: int, obs: np.ndarray, act: np.ndarray, running: np.ndarray, time: int
) -> None:
    bad = running[~np.isfinite(act[running]).all(1)]
    if not len(bad):
        return
    number, episode = divmod(int(bad[0]), episodes)
    name = f"policy {number} ({type(players[number].agent).__name__})"
    if np.isfinite(obs[bad[0]]).all():
        raise SsorlError(
            f"{name} gave an action that is not finite in step {time} of episode {episode}, so its training diverged"
        )
    raise SsorlError(
        f"{name} brought the simulator to a state that is not finite by step {time} of episode {episode}; "
        "evaluate another policy"
    )


def _normalised(env: str, returns: np.ndarray) -> np.ndarray | None:
    """Normalise by D4RL's reference scores; Gymnasium's Hopper-v5 has the references of hopper."""
    name = env if env in envs.SCORES else env.split("-v")[0].lower()
    return 100 * envs.normalise(name, returns) if name in envs.SCORES else None
