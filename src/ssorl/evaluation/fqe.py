"""Fitted-Q evaluation: what a policy is worth, told from data alone, where there is no environment to try it in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.agents.base import Agent, soft, squared
from ssorl.data.episodes import Episodes, scale
from ssorl.data.stats import standardiser
from ssorl.evaluation.policy import TrainedPolicy, Weights, advance, weights
from ssorl.evaluation.rollout import ROWS, bootstrap
from ssorl.utils.errors import DataError, SsorlError
from ssorl.utils.networks import Adam, Params, adam, init_adam, init_mlp, mlp

CHUNK = 1000  # updates in one call of the device
LANES = 256  # trajectories that a policy is taken along at a time


class Estimate(NamedTuple):
    """A discounted return, sum of gamma^t r_t, from the starts of the data; an estimate, not a measurement."""

    mean: float
    low: float  # with `high`: 95 %, by the bootstrap over the starts alone; the fit's own error is not in it
    high: float
    values: np.ndarray  # [E], Q(s_0, pi(s_0)) of each trajectory


class Learner(NamedTuple):
    """Everything that learns."""

    q: Params
    target: Params
    opt: Adam


def fqe(
    player: TrainedPolicy,
    eps: Episodes,
    updates: int = 10_000,
    seed: int = 0,
    gamma: float = 0.99,
    batch: int = 256,
    lr: float = 1e-3,
    tau: float = 0.05,
    hidden: tuple[int, ...] = (256, 256),
    progress: Callable[[int, str], None] | None = None,
) -> Estimate:
    """Fit Q(s, a) = r + gamma Q(s', pi(s')) to the steps that have an action (arXiv 1903.08738) and read it at s_0.

    Steps without an action are not learnt from; whether those with a proxy are, is the caller's choice of `eps`. The
    policy's actions along the data are worked out first, each trajectory from its beginning, so that an agent with
    memory has the one it would have had. Rewards are scaled to fit and back. No value may leave what the data's rewards
    could ever add up to.
    """
    for name, value, fine in (("updates", updates, updates >= 1), ("gamma", gamma, 0 <= gamma < 1)):
        if not fine:
            raise SsorlError(f"{name} is {value}; it must be {'1 or more' if name == 'updates' else 'in [0, 1)'}")
    steps = np.flatnonzero(eps.labelled)
    if not len(steps):
        raise DataError(f"{eps.meta.source}: no step has an action, so there is nothing to fit a value to")
    if (player.n_obs, player.n_act) != (eps.n_obs, eps.n_act):
        raise SsorlError(
            f"the policy was trained on observations and actions of {player.n_obs} and {player.n_act} numbers, "
            f"{eps.meta.source} has {eps.n_obs} and {eps.n_act}; give the data it belongs to"
        )
    acts = _scaled(actions(player, eps), eps)
    # Values of about 1 are quick to fit; this is what the mean reward for ever would be worth.
    unit = (float(np.abs(eps.rew[steps]).mean()) or 1.0) / (1 - gamma)
    row = eps.obs_row[steps]
    low, high = (float(x) / unit for x in (eps.rew[steps].min(), eps.rew[steps].max()))
    bounds = np.float32(min(low, low / (1 - gamma))), np.float32(max(high, high / (1 - gamma)))  # for a step, for ever
    table = jax.device_put(
        {
            "obs": standardiser(eps)(eps.obs),
            "pi": acts,
            "row": row.astype(np.int32),
            "act": _scaled(eps.act[steps], eps),
            "rew": (eps.rew[steps] / unit).astype(np.float32),
            "cont": gamma * (1 - eps.terminated[steps].astype(np.float32)),
            "bounds": bounds,
        }
    )
    key = jax.random.key(seed)
    learner = _begin(key, eps.n_obs + eps.n_act, hidden)
    for at in range(0, updates, CHUNK):
        n = min(CHUNK, updates - at)
        learner = _chunk(n, batch, lr, tau, table, learner, key, at)
        if progress:
            jax.block_until_ready(learner)
            progress(n, "")
    first = eps.start[:-1] + np.arange(len(eps))
    values = unit * np.asarray(_value(learner.q, table["obs"][first], table["pi"][first]), np.float64)
    values = np.clip(values, unit * float(bounds[0]), unit * float(bounds[1]))  # NaN stays
    if not np.isfinite(values).all():
        raise SsorlError("the fitted values are not finite; try a smaller lr or gamma")
    mean, low, high = (float(x) for x in bootstrap(values, seed))
    return Estimate(mean, low, high, values)


def _scaled(act: np.ndarray, eps: Episodes) -> np.ndarray:
    return scale(act, eps.meta).astype(np.float32)


# The policy along the data ---------------------------------------------------------------------------------


def actions(player: TrainedPolicy, eps: Episodes) -> np.ndarray:
    """What the player does in each state of the data, [S+E, A] in the environment's range; memory and all."""
    own, begin = jax.device_put(weights(player)), player.begin()
    out = np.empty((len(eps.obs), player.n_act), np.float32)
    order = np.argsort(eps.lengths, kind="stable")  # so that those of one call are of about one length
    for first in range(0, len(eps), LANES):
        which = order[first : first + LANES]
        # A power of two, so that few lengths are compiled; every trajectory has one more state than steps.
        length = 1 << int(eps.lengths[which].max()).bit_length()
        lanes = np.resize(which, min(LANES, max(ROWS, 1 << (len(which) - 1).bit_length())))
        place = np.minimum(np.arange(length), eps.lengths[lanes][:, None])  # the padding repeats the last state
        row = (eps.start[lanes] + lanes)[:, None] + place
        earned = eps.rew[np.maximum(eps.start[lanes][:, None] + place - 1, 0)] * (place > 0)
        acts = np.asarray(_along(player.agent, own, begin, eps.obs[row], earned.astype(np.float32)))
        real = np.arange(length) <= eps.lengths[which][:, None]
        out[row[: len(which)][real]] = acts[: len(which)][real]
    if not np.isfinite(out).all():
        raise SsorlError(f"{type(player.agent).__name__} gave an action that is not finite; its training has diverged")
    return out


@partial(jax.jit, static_argnames="agent")
def _along(agent: Agent, own: Weights, begin: Any, obs: jax.Array, rew: jax.Array) -> jax.Array:
    """Actions [B, T, A] for obs[B, T, O] and the rewards [B, T] that came with them."""
    key = jax.random.key(0)

    def one(obs: jax.Array, rew: jax.Array) -> jax.Array:
        def turn(carry: Any, now: tuple) -> tuple[Any, jax.Array]:
            time, obs, rew = now
            act, carry = advance(agent, own, carry, obs, rew, jax.random.fold_in(key, time))
            return carry, act

        return jax.lax.scan(turn, begin, (jnp.arange(len(obs)), obs, rew))[1]

    return jax.vmap(one)(obs, rew)


# The fit ---------------------------------------------------------------------------------------------------


def _value(q: Params, obs: jax.Array, act: jax.Array) -> jax.Array:
    return mlp(q, jnp.concatenate([obs, act], axis=-1))[..., 0]


@partial(jax.jit, static_argnames=("n_in", "hidden"))
def _begin(key: jax.Array, n_in: int, hidden: tuple[int, ...]) -> Learner:
    q = init_mlp(key, (n_in, *hidden, 1))
    return Learner(q, q, init_adam(q))


@partial(jax.jit, static_argnames=("n", "batch"))
def _chunk(
    n: int, batch: int, lr: float, tau: float, table: dict, learner: Learner, key: jax.Array, at: int
) -> Learner:
    """`n` updates from update `at` on."""

    def update(learner: Learner, number: jax.Array) -> tuple[Learner, None]:
        step = jax.random.randint(jax.random.fold_in(key, number + 1), (batch,), 0, len(table["row"]))
        row, act, rew, cont = (table[name][step] for name in ("row", "act", "rew", "cont"))
        ahead = _value(learner.target, table["obs"][row + 1], table["pi"][row + 1])
        target = rew + cont * jnp.clip(ahead, *table["bounds"])
        grad = jax.grad(lambda q: squared(_value(q, table["obs"][row], act) - target))(learner.q)
        q, opt = adam(learner.q, grad, learner.opt, lr)
        return Learner(q, soft(learner.target, q, tau), opt), None

    return jax.lax.scan(update, learner, at + jnp.arange(n))[0]
