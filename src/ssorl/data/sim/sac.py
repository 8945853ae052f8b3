"""Soft actor-critic, several seeds in one program, with the replay buffer on the device.

One call of `iterate` is one turn of the loop: store what the environments just did, update, choose actions.
All functions below `iterate` are for one seed; the seeds are a leading axis and one `vmap`.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ssorl.utils.networks import Adam, Params, adam, init_adam, init_mlp, mlp

LOG_STD = (-5.0, 2.0)  # range of the actor's log standard deviation


@dataclass(frozen=True)
class SacConfig:
    """Soft actor-critic with automatic temperature (arXiv 1812.05905)."""

    n_obs: int
    n_act: int
    hidden: tuple[int, ...] = (256, 256)  # widths of actor and critics
    # Layer norm in the critics. Off: after 1M steps the best seed had 2,442 on hopper and 3,627 on walker2d
    # with it, 3,376 and 5,172 without.
    critic_norm: bool = False
    lr: float = 3e-4  # for actor, critics and temperature
    batch: int = 256  # transitions an update
    gamma: float = 0.99  # discount
    tau: float = 0.005  # step of the target critics
    capacity: int = 1_000_000  # transitions kept; a multiple of the environments a seed

    @property
    def target_entropy(self) -> float:
        """-dim(A), section 5 of the paper."""
        return -float(self.n_act)


class Batch(NamedTuple):
    """Transitions; `cont` is 0 after a true ending and 1 otherwise, time limits included."""

    obs: jax.Array
    act: jax.Array
    rew: jax.Array
    cont: jax.Array
    next_obs: jax.Array


class Learner(NamedTuple):
    """Everything that learns. Critics have a leading axis of two."""

    actor: Params
    critic: Params
    target: Params
    log_alpha: jax.Array
    opt_actor: Adam
    opt_critic: Adam
    opt_alpha: Adam


class State(NamedTuple):
    """One seed: the learner, its buffer with a transition a row, and its key, folded by iteration."""

    learner: Learner
    buffer: jax.Array
    key: jax.Array


# Networks --------------------------------------------------------------------------------------------------


def init_learner(config: SacConfig, key: jax.Array) -> Learner:
    """Fresh weights."""
    k_actor, k_critic = jax.random.split(key)
    actor = init_mlp(k_actor, (config.n_obs, *config.hidden, 2 * config.n_act))
    sizes = (config.n_obs + config.n_act, *config.hidden, 1)
    critic = jax.vmap(lambda k: init_mlp(k, sizes))(jax.random.split(k_critic, 2))
    log_alpha = jnp.zeros(())
    opts = init_adam(actor), init_adam(critic), init_adam(log_alpha)
    return Learner(actor, critic, jax.tree.map(jnp.copy, critic), log_alpha, *opts)


def policy(actor: Params, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and standard deviation [..., A] of the Gaussian under the tanh."""
    mean, log_std = jnp.split(mlp(actor, obs), 2, axis=-1)
    return mean, jnp.exp(jnp.clip(log_std, *LOG_STD))


def sample(actor: Params, obs: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Actions in (-1, 1) made from standard normal `noise[..., A]`, and their log densities [...]."""
    mean, std = policy(actor, obs)
    raw = mean + std * noise
    log_normal = -0.5 * jnp.square(noise) - jnp.log(std) - 0.5 * jnp.log(2 * jnp.pi)
    # log(1 - tanh(x)^2), in the form that does not lose digits for large |x|
    log_slope = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
    return jnp.tanh(raw), (log_normal - log_slope).sum(-1)


def q_values(config: SacConfig, critic: Params, obs: jax.Array, act: jax.Array) -> jax.Array:
    """Both critics' values [2, ...]."""
    x = jnp.concatenate([obs, act], axis=-1)
    return jax.vmap(lambda c: mlp(c, x, norm=config.critic_norm)[..., 0])(critic)


# Losses ----------------------------------------------------------------------------------------------------


def critic_target(config: SacConfig, learner: Learner, batch: Batch, noise: jax.Array) -> jax.Array:
    """The soft Bellman target r + gamma * cont * (min Q'(s', a') - alpha log pi(a' | s')), [B]."""
    act, log_prob = sample(learner.actor, batch.next_obs, noise)
    q = q_values(config, learner.target, batch.next_obs, act).min(axis=0)
    return batch.rew + config.gamma * batch.cont * (q - jnp.exp(learner.log_alpha) * log_prob)


def critic_loss(config: SacConfig, critic: Params, batch: Batch, target: jax.Array) -> jax.Array:
    """Squared Bellman error, summed over the two critics."""
    return jnp.square(q_values(config, critic, batch.obs, batch.act) - target).mean(axis=1).sum()


def actor_loss(config: SacConfig, actor: Params, learner: Learner, obs: jax.Array, noise: jax.Array):
    """The mean of alpha log pi - min Q, and the entropy estimate."""
    act, log_prob = sample(actor, obs, noise)
    q = q_values(config, learner.critic, obs, act).min(axis=0)
    return (jnp.exp(learner.log_alpha) * log_prob - q).mean(), -log_prob.mean()


# Update ----------------------------------------------------------------------------------------------------


def update(config: SacConfig, learner: Learner, batch: Batch, noise: jax.Array):
    """One gradient step on critics, actor and temperature, given normal `noise[2, B, A]`."""
    target = critic_target(config, learner, batch, noise[0])
    q_loss, grad = jax.value_and_grad(lambda c: critic_loss(config, c, batch, target))(learner.critic)
    critic, opt_critic = adam(learner.critic, grad, learner.opt_critic, config.lr)
    learner = learner._replace(critic=critic, opt_critic=opt_critic)

    loss = partial(actor_loss, config, learner=learner, obs=batch.obs, noise=noise[1])
    (pi_loss, entropy), grad = jax.value_and_grad(loss, has_aux=True)(learner.actor)
    actor, opt_actor = adam(learner.actor, grad, learner.opt_actor, config.lr)

    # The gradient of alpha * (entropy - target) in alpha, taken in log alpha as common implementations do.
    log_alpha, opt_alpha = adam(learner.log_alpha, entropy - config.target_entropy, learner.opt_alpha, config.lr)
    soft = jax.tree.map(lambda t, c: t + config.tau * (c - t), learner.target, critic)
    learner = Learner(actor, critic, soft, log_alpha, opt_actor, opt_critic, opt_alpha)
    metrics = {
        "critic_loss": q_loss,
        "actor_loss": pi_loss,
        "entropy": entropy,
        "alpha": jnp.exp(log_alpha),
        "q_target": target.mean(),
    }
    return learner, metrics


# The device's side of the loop -----------------------------------------------------------------------------


def pack(batch: Batch) -> jax.Array:
    """A transition a row, so that sampling is one gather."""
    columns = (batch.obs, batch.act, batch.rew[..., None], batch.cont[..., None], batch.next_obs)
    return jnp.concatenate(columns, axis=-1)


def unpack(config: SacConfig, rows: jax.Array) -> Batch:
    """The inverse of `pack`."""
    o, a = config.n_obs, config.n_act
    obs, act, rew, cont, next_obs = jnp.split(rows, (o, o + a, o + a + 1, o + a + 2), axis=-1)
    return Batch(obs, act, rew[..., 0], cont[..., 0], next_obs)


@partial(jax.jit, static_argnames=("config", "seeds"))
def init(config: SacConfig, seeds: tuple[int, ...]) -> State:
    """Fresh state for each seed, stacked."""

    def one(seed: jax.Array) -> State:
        key = jax.random.key_data(jax.random.key(seed))
        width = 2 * config.n_obs + config.n_act + 2
        learner = init_learner(config, jax.random.fold_in(jax.random.wrap_key_data(key), 2**31 - 1))
        return State(learner, jnp.zeros((config.capacity, width)), key)

    return jax.vmap(one)(jnp.array(seeds, jnp.uint32))


@partial(jax.jit, static_argnames=("config", "n_updates"), donate_argnames=("state",))
def iterate(config: SacConfig, n_updates: int, state: State, new: Batch, obs: jax.Array, iteration: jax.Array):
    """Store `new[S, N, ...]`, make `n_updates` updates, and choose actions for `obs[S, N, O]`.

    `iteration` counts the calls from 0: it says where to write, what is filled, and which noise to draw.
    Returns (state, actions [S, N, A] in (-1, 1), metrics [S] averaged over the updates).
    """
    n_envs = new.rew.shape[1]
    cursor = (iteration * n_envs) % config.capacity
    filled = jnp.minimum((iteration + 1) * n_envs, config.capacity)

    def one(state: State, new: Batch, obs: jax.Array):
        buffer = jax.lax.dynamic_update_slice(state.buffer, pack(new), (cursor, 0))
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), iteration)
        k_index, k_noise, k_act = jax.random.split(key, 3)
        # Batches and noise of all updates are drawn at once: inside the scan each small kernel costs time.
        index = jax.random.randint(k_index, (n_updates, config.batch), 0, filled)
        noise = jax.random.normal(k_noise, (n_updates, 2, config.batch, config.n_act))
        batches = unpack(config, buffer[index])
        learner, metrics = jax.lax.scan(
            lambda learner, xs: update(config, learner, *xs), state.learner, (batches, noise)
        )
        act, _ = sample(learner.actor, obs, jax.random.normal(k_act, (n_envs, config.n_act)))
        return State(learner, buffer, state.key), act, jax.tree.map(jnp.mean, metrics)

    return jax.vmap(one)(state, new, obs)
