"""Soft actor-critic for several seeds in one program, with the replay buffers on the device.

One call of `iterate` stores the environments' last transitions, does the updates and chooses the next actions. `init`
and `iterate` have a leading axis of seeds, which they `vmap` over; the other functions are for one seed.
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
    # Layer norm in the critics. After 1M steps, the best seed had returns of 2,442 on hopper and 3,627 on walker2d with
    # it, and 3,376 and 5,172 without.
    critic_norm: bool = False
    lr: float = 3e-4  # learning rate of actor, critics and temperature
    batch: int = 256  # transitions per update
    gamma: float = 0.99  # discount
    tau: float = 0.005  # step size of the target critics
    capacity: int = 1_000_000  # size of the replay buffer, a multiple of the number of environments per seed

    @property
    def target_entropy(self) -> float:
        """Target of the entropy: -dim(A), as in section 5 of the paper."""
        return -float(self.n_act)


class Batch(NamedTuple):
    """Transitions; `cont` is 0 where the task ended, and 1 otherwise, also at time limits."""

    obs: jax.Array
    act: jax.Array
    rew: jax.Array
    cont: jax.Array
    next_obs: jax.Array


class Learner(NamedTuple):
    """Weights and optimiser states. The critics have a leading axis of two."""

    actor: Params
    critic: Params
    target: Params
    log_alpha: jax.Array
    opt_actor: Adam
    opt_critic: Adam
    opt_alpha: Adam


class State(NamedTuple):
    """State of one seed: the learner, its buffer with one transition per row, and its random key."""

    learner: Learner
    buffer: jax.Array
    key: jax.Array


# Networks --------------------------------------------------------------------------------------------------


def init_learner(config: SacConfig, key: jax.Array) -> Learner:
    """Return initial weights and optimiser states.

    Args:
        config: settings.
        key: random key.
    """
    k_actor, k_critic = jax.random.split(key)
    actor = init_mlp(k_actor, (config.n_obs, *config.hidden, 2 * config.n_act))
    sizes = (config.n_obs + config.n_act, *config.hidden, 1)
    critic = jax.vmap(lambda k: init_mlp(k, sizes))(jax.random.split(k_critic, 2))
    log_alpha = jnp.zeros(())
    opts = init_adam(actor), init_adam(critic), init_adam(log_alpha)
    return Learner(actor, critic, jax.tree.map(jnp.copy, critic), log_alpha, *opts)


def policy(actor: Params, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return mean and standard deviation [..., A] before the tanh, for observations [..., O]."""
    mean, log_std = jnp.split(mlp(actor, obs), 2, axis=-1)
    return mean, jnp.exp(jnp.clip(log_std, *LOG_STD))


def sample(actor: Params, obs: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sample actions by reparametrisation.

    Args:
        actor: weights of the actor.
        obs: observations [..., O].
        noise: standard normal noise [..., A].

    Returns:
        Actions [..., A] in (-1, 1) and their log densities [...].
    """
    mean, std = policy(actor, obs)
    raw = mean + std * noise
    log_normal = -0.5 * jnp.square(noise) - jnp.log(std) - 0.5 * jnp.log(2 * jnp.pi)
    # log(1 - tanh(x)^2), in a form that stays accurate for large |x|
    log_slope = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
    return jnp.tanh(raw), (log_normal - log_slope).sum(-1)


def q_values(config: SacConfig, critic: Params, obs: jax.Array, act: jax.Array) -> jax.Array:
    """Return the values of both critics, [2, ...].

    Args:
        config: settings.
        critic: weights of both critics.
        obs: observations [..., O].
        act: actions [..., A].
    """
    x = jnp.concatenate([obs, act], axis=-1)
    return jax.vmap(lambda c: mlp(c, x, norm=config.critic_norm)[..., 0])(critic)


# Losses ----------------------------------------------------------------------------------------------------


def critic_target(config: SacConfig, learner: Learner, batch: Batch, noise: jax.Array) -> jax.Array:
    """Return the soft Bellman target r + gamma * cont * (min Q'(s', a') - alpha log pi(a' | s')), [B].

    Args:
        config: settings.
        learner: weights.
        batch: B transitions.
        noise: standard normal noise of a' [B, A].
    """
    act, log_prob = sample(learner.actor, batch.next_obs, noise)
    q = q_values(config, learner.target, batch.next_obs, act).min(axis=0)
    return batch.rew + config.gamma * batch.cont * (q - jnp.exp(learner.log_alpha) * log_prob)


def critic_loss(config: SacConfig, critic: Params, batch: Batch, target: jax.Array) -> jax.Array:
    """Return the mean squared Bellman error, summed over the two critics.

    Args:
        config: settings.
        critic: weights of both critics.
        batch: B transitions.
        target: Bellman target [B].
    """
    return jnp.square(q_values(config, critic, batch.obs, batch.act) - target).mean(axis=1).sum()


def actor_loss(config: SacConfig, actor: Params, learner: Learner, obs: jax.Array, noise: jax.Array):
    """Return the mean of alpha log pi - min Q, and the estimated entropy.

    Args:
        config: settings.
        actor: weights of the actor.
        learner: other weights.
        obs: observations [B, O].
        noise: standard normal noise [B, A].
    """
    act, log_prob = sample(actor, obs, noise)
    q = q_values(config, learner.critic, obs, act).min(axis=0)
    return (jnp.exp(learner.log_alpha) * log_prob - q).mean(), -log_prob.mean()


# Update ----------------------------------------------------------------------------------------------------


def update(config: SacConfig, learner: Learner, batch: Batch, noise: jax.Array):
    """Do one gradient step of critics, actor and temperature.

    Args:
        config: settings.
        learner: weights and optimiser states.
        batch: B transitions.
        noise: standard normal noise [2, B, A].

    Returns:
        The new learner and metrics by name.
    """
    target = critic_target(config, learner, batch, noise[0])
    q_loss, grad = jax.value_and_grad(lambda c: critic_loss(config, c, batch, target))(learner.critic)
    critic, opt_critic = adam(learner.critic, grad, learner.opt_critic, config.lr)
    learner = learner._replace(critic=critic, opt_critic=opt_critic)

    loss = partial(actor_loss, config, learner=learner, obs=batch.obs, noise=noise[1])
    (pi_loss, entropy), grad = jax.value_and_grad(loss, has_aux=True)(learner.actor)
    actor, opt_actor = adam(learner.actor, grad, learner.opt_actor, config.lr)

    # As common implementations do, apply the gradient of alpha * (entropy - target) for alpha to log alpha.
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


# Replay buffer and training loop on the device --------------------------------------------------------------


def pack(batch: Batch) -> jax.Array:
    """Return transitions as rows [..., 2 O + A + 2], so that sampling needs a single gather."""
    columns = (batch.obs, batch.act, batch.rew[..., None], batch.cont[..., None], batch.next_obs)
    return jnp.concatenate(columns, axis=-1)


def unpack(config: SacConfig, rows: jax.Array) -> Batch:
    """Return the transitions in rows that `pack` made."""
    o, a = config.n_obs, config.n_act
    obs, act, rew, cont, next_obs = jnp.split(rows, (o, o + a, o + a + 1, o + a + 2), axis=-1)
    return Batch(obs, act, rew[..., 0], cont[..., 0], next_obs)


@partial(jax.jit, static_argnames=("config", "seeds"))
def init(config: SacConfig, seeds: tuple[int, ...]) -> State:
    """Return initial states with a leading axis of seeds.

    Args:
        config: settings.
        seeds: S seeds.
    """

    def init_seed(seed: jax.Array) -> State:
        key = jax.random.key_data(jax.random.key(seed))
        width = 2 * config.n_obs + config.n_act + 2
        learner = init_learner(config, jax.random.fold_in(jax.random.wrap_key_data(key), 2**31 - 1))
        return State(learner, jnp.zeros((config.capacity, width)), key)

    return jax.vmap(init_seed)(jnp.array(seeds, jnp.uint32))


@partial(jax.jit, static_argnames=("config", "n_updates"), donate_argnames=("state",))
def iterate(config: SacConfig, n_updates: int, state: State, new: Batch, obs: jax.Array, iteration: jax.Array):
    """Store new transitions, do the updates, and choose the next actions.

    Args:
        config: settings.
        n_updates: number of updates.
        state: states of S seeds.
        new: transitions of N environments per seed [S, N, ...].
        obs: current observations [S, N, O].
        iteration: number of earlier calls; it determines the position in the buffer and the noise.

    Returns:
        The new states, actions [S, N, A] in (-1, 1), and metrics [S], averaged over the updates.
    """
    n_envs = new.rew.shape[1]
    cursor = (iteration * n_envs) % config.capacity
    filled = jnp.minimum((iteration + 1) * n_envs, config.capacity)

    def iterate_seed(state: State, new: Batch, obs: jax.Array):
        buffer = jax.lax.dynamic_update_slice(state.buffer, pack(new), (cursor, 0))
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), iteration)
        k_index, k_noise, k_act = jax.random.split(key, 3)
        # Draw batches and noise of all updates at once: inside the scan, each small kernel would add overhead.
        index = jax.random.randint(k_index, (n_updates, config.batch), 0, filled)
        noise = jax.random.normal(k_noise, (n_updates, 2, config.batch, config.n_act))
        batches = unpack(config, buffer[index])
        learner, metrics = jax.lax.scan(
            lambda learner, xs: update(config, learner, *xs), state.learner, (batches, noise)
        )
        act, _ = sample(learner.actor, obs, jax.random.normal(k_act, (n_envs, config.n_act)))
        return State(learner, buffer, state.key), act, jax.tree.map(jnp.mean, metrics)

    return jax.vmap(iterate_seed)(state, new, obs)
