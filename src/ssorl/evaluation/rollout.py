"""What policies earn: every player and episode a lane of one batched simulator, each run to its own end."""

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
from ssorl.utils.errors import SsorlError

__all__ = ["Interval", "Scores", "bootstrap", "evaluate"]

ROWS = 8  # lanes a player has are a multiple of this: below, XLA multiplies by other kernels, whose last bits differ
DRAWS = 10_000  # resamples of a bootstrap


class Interval(NamedTuple):
    """A mean and where it lies with 95 % confidence; scalars, or arrays of one value a player."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Scores(NamedTuple):
    """What P players earned in E episodes each. Episode e starts in the same state for all of them."""

    env: str
    returns: np.ndarray  # [P, E], undiscounted sums of the rewards
    normalised: np.ndarray | None  # [P, E], 0 is a random policy and 100 an expert (D4RL); None: no reference
    lengths: np.ndarray  # [P, E], steps
    starts: np.ndarray  # [E, O], the first observations

    def summary(self, seed: int = 0) -> Interval:
        """Each player's mean score, normalised where that is known, with its interval over episodes; arrays [P]."""
        return bootstrap(self.returns if self.normalised is None else self.normalised, seed)


def bootstrap(values: np.ndarray, seed: int = 0, draws: int = DRAWS) -> Interval:
    """The mean over the last axis of values[..., N], and the middle 95 % of the means of samples drawn from them."""
    n = values.shape[-1]
    rng, means = np.random.default_rng(seed), []
    flat = values.reshape(-1, n).T.astype(np.float64)
    size = max(1, min(draws, 4_000_000 // n))  # how often each value was drawn, for so many resamples at a time
    for first in range(0, draws, size):
        counts = rng.multinomial(n, np.full(n, 1 / n), min(size, draws - first))
        means.append(counts @ flat / n)
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975], axis=0).reshape(2, *values.shape[:-1])
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
    """Let every player play `episodes` episodes of `env`, a name as for `envs.make` (`module:Id` as a `TrustedName`).

    The seed decides the starting states, which are the same for every player. A player's result depends neither on
    the others nor on the number of simulator threads (on a CPU to the bit; a GPU may round otherwise for other shapes).
    `progress` hears of steps, players x episodes x `horizon(env)` in all; those an episode did not need count as done.
    `watch` is shown the simulator at the start and after each step; its lane p * episodes + e is player p's episode e.
    """
    if episodes < 1:
        raise SsorlError(f"episodes is {episodes}; at least 1 is needed")
    if seed < 0:
        raise SsorlError(f"the seed is {seed}; give a whole number from 0 up")
    if not players:
        raise SsorlError("there is no policy to evaluate; give at least one")
    sim = envs.simulator(env, len(players) * episodes, threads)
    _check(players, sim)
    obs, first = _starts(sim, len(players), episodes, seed)
    groups = [Group(players, who, episodes, seed) for who in _alike(players)]
    act = np.zeros((sim.n_envs, sim.n_act))
    rew, total, length = (np.zeros(sim.n_envs) for _ in range(3))
    running = np.arange(sim.n_envs)
    if watch:
        watch(sim)
    for time in range(sim.horizon):
        for group in groups:
            group.ask(obs, rew, time)
        for group in groups:
            group.answer(act)
        _check_finite(players, episodes, obs, act, running, time)
        np.clip(act, sim.act_low, sim.act_high, out=act)
        obs, rew, ended = sim.step(act, running) if isinstance(sim, envs.Locomotion) else sim.step(act)
        if watch:
            watch(sim)
        if ended.any() and not isinstance(sim, envs.Locomotion):
            # Gymnasium refuses to step an episode that has ended, so another takes its place.
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


# The lanes of one kind of player ---------------------------------------------------------------------------


class Group:
    """Players of one agent and one set of shapes, for whom one call acts.

    Its lanes are a table of players by episodes, [B, W], which shrinks by halves as episodes end, so that few programs
    are compiled. Where nobody is left to fill a row or a place, the first one fills it again; its action is not used.
    """

    def __init__(self, players: Sequence[TrainedPolicy], who: list[int], episodes: int, seed: int) -> None:
        self.agent, self.episodes, self.key = players[who[0]].agent, episodes, jax.random.key(seed)
        self.own: Weights = jax.device_put(jax.tree.map(lambda *x: np.stack(x), *(weights(players[p]) for p in who)))
        lanes = [np.arange(p * episodes, (p + 1) * episodes) for p in who]
        self.lane, self.real = _table(lanes, len(lanes), -(-episodes // ROWS) * ROWS)
        self.carry = jax.tree.map(
            lambda x: jnp.tile(x, (*self.lane.shape, *[1] * jnp.ndim(x))), players[who[0]].begin()
        )

    def ask(self, obs: np.ndarray, rew: np.ndarray, time: int) -> None:
        """Let the device compute the action of each lane."""
        seen, earned = obs[self.lane].astype(np.float32), rew[self.lane].astype(np.float32)
        episode = (self.lane % self.episodes).astype(np.int32)
        self.said, self.carry = _act(self.agent, self.own, self.carry, seen, earned, episode, time, self.key)

    def answer(self, out: np.ndarray) -> None:
        """Wait for the actions and write them into out[N, A]."""
        out[self.lane[self.real]] = np.asarray(self.said)[self.real]

    def without_ended(self, running: np.ndarray) -> Group | None:
        """The same with the lanes that still run, if that at least halves it; None if none does."""
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
    """Lists of lanes as a full table, and which of its places are no repetition."""
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
    episode: jax.Array,  # [B, W], which with the time decides an agent's random draws, if it makes any
    time: int,
    key: jax.Array,
) -> tuple[jax.Array, Any]:
    def one(own: Weights, carry: Any, obs: jax.Array, rew: jax.Array, episode: jax.Array) -> tuple[jax.Array, Any]:
        return advance(agent, own, carry, obs, rew, jax.random.fold_in(jax.random.fold_in(key, episode), time))

    return jax.vmap(jax.vmap(one, (None, 0, 0, 0, 0)))(own, carry, obs, rew, episode)


def _alike(players: Sequence[TrainedPolicy]) -> list[list[int]]:
    """The players' numbers, those together that act in one call.

    On a CPU each player acts in a call of its own: to join them gains little there, and a matrix product may round
    otherwise in a larger batch, so that a result would depend on the others.
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
        for what, own, theirs in (("observations", player.n_obs, sim.n_obs), ("actions", player.n_act, sim.n_act)):
            if own != theirs:
                raise SsorlError(
                    f"policy {number} ({type(player.agent).__name__}) was trained on {what} of {own} numbers and "
                    f"{sim.name} has {theirs}; name the environment its data came from"
                )


def _starts(sim: envs.Env, players: int, episodes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """All first observations [N, O], and those of one player [E, O]: each player begins with the same draws."""
    obs = sim.reset(np.random.default_rng(seed))  # Gymnasium wants a first reset of all
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
    who = f"policy {number} ({type(players[number].agent).__name__})"
    if np.isfinite(obs[bad[0]]).all():
        raise SsorlError(
            f"{who} gave an action that is not finite in step {time} of episode {episode}; its training has diverged"
        )
    raise SsorlError(f"{who} drove the simulator to a state that is not finite by step {time} of episode {episode}")


def _normalised(env: str, returns: np.ndarray) -> np.ndarray | None:
    """On D4RL's scale; an environment of Gymnasium, Hopper-v5, has the references of ours, hopper."""
    name = env if env in envs.SCORES else env.split("-v")[0].lower()
    return 100 * envs.normalise(name, returns) if name in envs.SCORES else None
