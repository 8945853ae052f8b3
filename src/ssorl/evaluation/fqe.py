"""Fitted-Q evaluation (FQE): estimate the return of a policy from data alone, without an environment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.agents.base import Agent, mean_square, soft
from ssorl.data.episodes import Episodes, scale
from ssorl.data.stats import standardiser
from ssorl.evaluation.policy import TrainedPolicy, Weights, advance, weights
from ssorl.evaluation.rollout import ROWS, bootstrap
from ssorl.utils.display import short_repr
from ssorl.utils.errors import DataError, SsorlError
from ssorl.utils.networks import Adam, Params, adam, init_adam, init_mlp, mlp

CHUNK = 1000  # updates in one call of the device
LANES = 256  # trajectories in one call of the policy


class Estimate(NamedTuple):
    """An estimate of the discounted return, sum of gamma^t r_t, from the initial states of the data."""

    mean: float
    low: float  # 95 % interval by a bootstrap over the initial states; it does not cover the error of the fit
    high: float
    values: np.ndarray  # [E], Q(s_0, pi(s_0)) of each trajectory

    def __repr__(self) -> str:
        return short_repr("Estimate", self._asdict())


class _Learner(NamedTuple):
    """The state of the fit."""

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

    Steps without an action are not used; to use proxy actions, pass an `eps` that contains them. The actions of the
    policy along the data are computed first, each trajectory from its start, so that an agent with memory acts as in a
    rollout. Rewards are scaled for the fit and values are scaled back. Values are clipped to the range of returns that
    the rewards of the data allow.

    Args:
        player: the policy to evaluate.
        eps: the data.
        updates: gradient updates of Q.
        seed: seed of the fit and of the bootstrap.
        gamma: discount.
        batch: transitions in an update.
        lr: learning rate of Adam.
        tau: step of the target network.
        hidden: widths of the hidden layers.
        progress: called as `progress(updates, note)` after each chunk of updates.

    Raises:
        DataError: no step has an action, or a trajectory has no rewards.
        SsorlError: a setting is invalid, the policy does not fit the data, or the values diverged.
    """
    if updates < 1:
        raise SsorlError(f"updates is {updates}; give a whole number from 1 up")
    if not 0 <= gamma < 1:
        raise SsorlError(f"gamma is {gamma}; give a number from 0 up and below 1")
    steps = np.flatnonzero(eps.labelled)
    if not len(steps):
        raise DataError(f"{eps.meta.source}: no step has an action, so FQE cannot fit a value; label the steps first")
    if not eps.rewarded.all():
        raise DataError(
            f"{eps.meta.source}: {(~eps.rewarded).sum()} of {len(eps)} trajectories have no rewards, so policies "
            "cannot be evaluated on the data; add rewards, or name an environment to evaluate in (--env)"
        )
    if (player.n_obs, player.n_act) != (eps.n_obs, eps.n_act):
        raise SsorlError(
            f"the policy was trained on observations of size {player.n_obs} and actions of size {player.n_act}, but "
            f"{eps.meta.source} has sizes {eps.n_obs} and {eps.n_act}; give the policy's own data"
        )
    acts = _scaled(actions(player, eps), eps)
    # Scale values to about 1, which is quick to fit: the unit is the discounted sum of the mean absolute reward.
    unit = (float(np.abs(eps.rew[steps]).mean()) or 1.0) / (1 - gamma)
    row = eps.obs_row[steps]
    low, high = (float(x) / unit for x in (eps.rew[steps].min(), eps.rew[steps].max()))
    # An episode lasts between one step and infinitely many.
    bounds = np.float32(min(low, low / (1 - gamma))), np.float32(max(high, high / (1 - gamma)))
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
        raise SsorlError("the fitted values are not finite; use a smaller lr or gamma")
    mean, low, high = (float(x) for x in bootstrap(values, seed))
    return Estimate(mean, low, high, values)


def _scaled(act: np.ndarray, eps: Episodes) -> np.ndarray:
    return scale(act, eps.meta).astype(np.float32)


# The policy's actions on the data --------------------------------------------------------------------------


def actions(player: TrainedPolicy, eps: Episodes) -> np.ndarray:
    """Compute the policy's action in each state of the data, with the memory that it has there.

    Args:
        player: the policy.
        eps: E trajectories of S steps together.

    Returns:
        Actions [S+E, A] in the environment's range, one for each row of `eps.obs`.

    Raises:
        SsorlError: an action is not finite.
    """
    own, begin = jax.device_put(weights(player)), player.begin()
    out = np.empty((len(eps.obs), player.n_act), np.float32)
    order = np.argsort(eps.lengths, kind="stable")  # so that trajectories of one call have similar lengths
    for first in range(0, len(eps), LANES):
        episodes = order[first : first + LANES]
        # A power of two, so that few lengths are compiled; every trajectory has one more state than steps.
        length = 1 << int(eps.lengths[episodes].max()).bit_length()
        lanes = np.resize(episodes, min(LANES, max(ROWS, 1 << (len(episodes) - 1).bit_length())))
        time = np.minimum(np.arange(length), eps.lengths[lanes][:, None])  # the padding repeats the last state
        row = (eps.start[lanes] + lanes)[:, None] + time
        last_rew = eps.rew[np.maximum(eps.start[lanes][:, None] + time - 1, 0)] * (time > 0)
        acts = np.asarray(_act_along(player.agent, own, begin, eps.obs[row], last_rew.astype(np.float32)))
        real = np.arange(length) <= eps.lengths[episodes][:, None]
        out[row[: len(episodes)][real]] = acts[: len(episodes)][real]
    if not np.isfinite(out).all():
        raise SsorlError(f"{type(player.agent).__name__} gave an action that is not finite, so its training diverged")
    return out


@partial(jax.jit, static_argnames="agent")
def _act_along(agent: Agent, own: Weights, begin: Any, obs: jax.Array, rew: jax.Array) -> jax.Array:
    """Return actions [B, T, A] for obs[B, T, O] and the rewards [B, T] of the actions before them."""
    key = jax.random.key(0)

    def trajectory(obs: jax.Array, rew: jax.Array) -> jax.Array:
        def step(carry: Any, inputs: tuple) -> tuple[Any, jax.Array]:
            time, obs, rew = inputs
            act, carry = advance(agent, own, carry, obs, rew, jax.random.fold_in(key, time))
            return carry, act

        return jax.lax.scan(step, begin, (jnp.arange(len(obs)), obs, rew))[1]

    return jax.vmap(trajectory)(obs, rew)


# The fit ---------------------------------------------------------------------------------------------------


def _value(q: Params, obs: jax.Array, act: jax.Array) -> jax.Array:
    return mlp(q, jnp.concatenate([obs, act], axis=-1))[..., 0]


@partial(jax.jit, static_argnames=("n_in", "hidden"))
def _begin(key: jax.Array, n_in: int, hidden: tuple[int, ...]) -> _Learner:
    q = init_mlp(key, (n_in, *hidden, 1))
    return _Learner(q, q, init_adam(q))


@partial(jax.jit, static_argnames=("n", "batch"))
def _chunk(
    n: int, batch: int, lr: float, tau: float, table: dict, learner: _Learner, key: jax.Array, at: int
) -> _Learner:
    """Do `n` updates, starting with update number `at`."""

    def update(learner: _Learner, number: jax.Array) -> tuple[_Learner, None]:
        step = jax.random.randint(jax.random.fold_in(key, number + 1), (batch,), 0, len(table["row"]))
        row, act, rew, cont = (table[name][step] for name in ("row", "act", "rew", "cont"))
        next_value = _value(learner.target, table["obs"][row + 1], table["pi"][row + 1])
        target = rew + cont * jnp.clip(next_value, *table["bounds"])
        grad = jax.grad(lambda q: mean_square(_value(q, table["obs"][row], act) - target))(learner.q)
        q, opt = adam(learner.q, grad, learner.opt, lr)
        return _Learner(q, soft(learner.target, q, tau), opt), None

    return jax.lax.scan(update, learner, at + jnp.arange(n))[0]
