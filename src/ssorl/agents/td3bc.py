"""TD3+BC: TD3 with a behaviour cloning term in the actor's loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from ssorl.agents.base import Batch, Metrics, Transitions, init_twins, mean_square, soft
from ssorl.utils.networks import Adam, Params, adam, init_adam, init_mlp, mlp


@dataclass(frozen=True)
class TD3BC:
    """TD3+BC (arXiv 2106.06860, eq. 5) on TD3 (arXiv 1802.09477).

    pi = argmax E[lambda Q(s, pi(s)) - (pi(s) - a)^2] with lambda = alpha / mean |Q(s, pi(s))|.
    """

    gamma: float = 0.99  # discount
    tau: float = 0.005  # step of the target networks, taken at each policy update
    noise: float = 0.2  # standard deviation of the noise on the target policy's actions
    noise_clip: float = 0.5  # bound of this noise
    policy_every: int = 2  # critic updates for each policy update
    critic_lr: float = 3e-4  # learning rate of the critics, Adam
    actor_lr: float = 3e-4  # learning rate of the actor, Adam
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers of actor and critics, ReLU
    norm: bool = False  # layer norm in the critics, which reduces overestimation on little data
    alpha: float = 2.5  # weight of Q relative to imitation; 0 is behaviour cloning
    batch: int = 5120  # transitions in an update
    updates: int = 200_000  # updates of a training
    half: bool | None = None  # hidden layers in bfloat16; None: on a GPU

    revision: ClassVar[int] = 0  # raised when a change alters results at unchanged settings: docs/architecture.md

    # quick: ten seconds on one core: the batch size of arXiv 2106.06860, narrower networks, higher learning rates and
    # fewer updates. Scores are noisy: docs/run.md has those of ten seeds on sim/hopper-medium-expert.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "quick": {"hidden": (128, 128), "critic_lr": 1e-3, "actor_lr": 1e-3, "batch": 256, "updates": 5000},
        "maze2d": {"critic_lr": 1e-4, "actor_lr": 1e-4},
    }

    @property
    def period(self) -> int:
        """The actor and the targets are updated at the end of each period."""
        return self.policy_every

    @property
    def view(self) -> Transitions:
        """A sampler of single transitions."""
        return Transitions(self.batch)

    def init(self, key: jax.Array, n_obs: int, n_act: int) -> State:
        """Return initial weights; the targets start equal to the networks."""
        k_actor, k_critics = jax.random.split(key, 2)
        actor = init_mlp(k_actor, (n_obs, *self.hidden, n_act))
        critics = init_twins(k_critics, (n_obs + n_act, *self.hidden, 1))
        return State(actor, critics, actor, critics, init_adam(actor), init_adam(critics))

    def update(self, state: State, batch: Batch, key: jax.Array, phase: int = 0) -> tuple[State, Metrics]:
        """Update the critics and, in the last phase of a period, the actor and the targets."""
        target = critic_target(self, state, batch, jax.random.normal(key, batch.act.shape))
        grad, metrics = jax.grad(critic_loss, argnums=1, has_aux=True)(self, state.critics, batch, target)
        critics, opt_critics = adam(state.critics, grad, state.opt_critics, self.critic_lr)
        state = state._replace(critics=critics, opt_critics=opt_critics)
        if phase % self.policy_every != self.policy_every - 1:
            return state, metrics

        grad, more = jax.grad(actor_loss, argnums=1, has_aux=True)(self, state.actor, critics, batch)
        actor, opt_actor = adam(state.actor, grad, state.opt_actor, self.actor_lr)
        target_actor = soft(state.target_actor, actor, self.tau)
        target_critics = soft(state.target_critics, critics, self.tau)
        return State(actor, critics, target_actor, target_critics, opt_actor, opt_critics), metrics | more

    def policy(self, state: State) -> Params:
        """Return the actor's weights."""
        return state.actor

    def begin(self, n_obs: int, n_act: int) -> Any:
        """Return None: the agent has no memory."""
        return None

    def act(self, params: Params, carry: Any, obs: jax.Array, rew: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
        """Return the actor's action; TD3+BC acts without noise and memory."""
        return policy(params, obs), carry


class State(NamedTuple):
    """The training state of TD3+BC; `critics` is a list of two networks."""

    actor: Params
    critics: list[Params]
    target_actor: Params
    target_critics: list[Params]
    opt_actor: Adam
    opt_critics: Adam


# Networks --------------------------------------------------------------------------------------------------


def policy(actor: Params, obs: jax.Array, half: bool | None = None) -> jax.Array:
    """Return actions [..., A] in (-1, 1).

    Args:
        actor: weights.
        obs: standardised observations [..., O].
        half: compute hidden layers in bfloat16.
    """
    return jnp.tanh(mlp(actor, obs, half=half))


def q_value(config: TD3BC, critic: Params, obs: jax.Array, act: jax.Array) -> jax.Array:
    """Return the values [...] of one critic.

    Args:
        config: the agent.
        critic: weights.
        obs: standardised observations [..., O].
        act: actions [..., A].
    """
    return mlp(critic, jnp.concatenate([obs, act], axis=-1), norm=config.norm, half=config.half)[..., 0]


# Losses ----------------------------------------------------------------------------------------------------


def critic_target(config: TD3BC, state: State, batch: Batch, noise: jax.Array) -> jax.Array:
    """Return r + gamma cont min Q'(s', a'), [B]; a' is the target policy's action plus clipped noise.

    Args:
        config: the agent.
        state: training state.
        batch: B transitions.
        noise: standard normal noise [B, A].
    """
    noise = jnp.clip(config.noise * noise, -config.noise_clip, config.noise_clip)
    act = jnp.clip(policy(state.target_actor, batch.next_obs, config.half) + noise, -1, 1)
    q1, q2 = (q_value(config, c, batch.next_obs, act) for c in state.target_critics)
    return batch.rew + config.gamma * batch.cont * jnp.minimum(q1, q2)


def critic_loss(config: TD3BC, critics: list[Params], batch: Batch, target: jax.Array) -> tuple[jax.Array, Metrics]:
    """Return the squared Bellman error, summed over the two critics, and metrics.

    Args:
        config: the agent.
        critics: weights of the two critics.
        batch: B transitions.
        target: Bellman targets [B].
    """
    values = [q_value(config, c, batch.obs, batch.act) for c in critics]
    loss = sum((mean_square(q - target) for q in values), jnp.zeros(()))
    return loss, {"critic_loss": loss, "q": values[0].mean()}


def actor_loss(config: TD3BC, actor: Params, critics: list[Params], batch: Batch) -> tuple[jax.Array, Metrics]:
    """Return the squared imitation error minus lambda times the first critic's value, and metrics.

    The gradient does not flow through lambda.

    Args:
        config: the agent.
        actor: weights of the actor.
        critics: weights of the two critics.
        batch: B transitions.
    """
    act = policy(actor, batch.obs, config.half)
    q = q_value(config, critics[0], batch.obs, act)
    imitation = mean_square(act - batch.act)
    loss = imitation - config.alpha * q.mean() / jax.lax.stop_gradient(jnp.abs(q).mean())
    return loss, {"actor_loss": loss, "imitation": imitation}
