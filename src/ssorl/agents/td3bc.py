"""TD3+BC: a twin-critic policy gradient held to the data by a squared error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from ssorl.agents.base import Batch, Metrics, Transitions, init_twins, soft, squared
from ssorl.utils.networks import Adam, Params, adam, init_adam, init_mlp, mlp


@dataclass(frozen=True)
class TD3BC:
    """TD3+BC (arXiv 2106.06860, eq. 5) on TD3 (arXiv 1802.09477).

    pi = argmax E[lambda Q(s, pi(s)) - (pi(s) - a)^2] with lambda = alpha / mean |Q(s, pi(s))|.
    """

    gamma: float = 0.99  # discount
    tau: float = 0.005  # step of the target networks, taken when the policy is updated
    noise: float = 0.2  # deviation of the noise on the target policy's actions
    noise_clip: float = 0.5  # and how large it may get
    policy_every: int = 2  # critic updates a policy update
    critic_lr: float = 3e-4
    actor_lr: float = 3e-4
    hidden: tuple[int, ...] = (256, 256)  # widths of actor and critics, ReLU
    norm: bool = False  # layer norm in the critics: they exaggerate less where there is little data
    alpha: float = 2.5  # weight of Q against imitation; 0 is behaviour cloning
    batch: int = 5120  # transitions an update
    updates: int = 200_000  # in a whole training
    half: bool | None = None  # hidden layers in bfloat16; None: on a GPU

    revision: ClassVar[int] = 0  # raised when a change alters results at unchanged settings: docs/architecture.md

    # quick: ten seconds on one core. The batch of arXiv 2106.06860, narrower networks that learn faster, few updates.
    # Noisy: what ten seeds came to on sim/hopper-medium-expert is in docs/run.md.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "quick": {"hidden": (128, 128), "critic_lr": 1e-3, "actor_lr": 1e-3, "batch": 256, "updates": 5000},
        "maze2d": {"critic_lr": 1e-4, "actor_lr": 1e-4},
    }

    @property
    def period(self) -> int:
        """The policy is updated at the end of each period."""
        return self.policy_every

    @property
    def view(self) -> Transitions:
        """Single transitions."""
        return Transitions(self.batch)

    def init(self, key: jax.Array, n_obs: int, n_act: int) -> State:
        """Fresh weights; targets start equal."""
        k_actor, k_critics = jax.random.split(key, 2)
        actor = init_mlp(k_actor, (n_obs, *self.hidden, n_act))
        critics = init_twins(k_critics, (n_obs + n_act, *self.hidden, 1))
        return State(actor, critics, actor, critics, init_adam(actor), init_adam(critics))

    def update(self, state: State, batch: Batch, key: jax.Array, phase: int = 0) -> tuple[State, Metrics]:
        """The critics, and in the last phase of a period the actor and the targets."""
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
        """The actor alone."""
        return state.actor

    def begin(self, n_obs: int, n_act: int) -> Any:
        """Nothing to remember."""
        return None

    def act(self, params: Params, carry: Any, obs: jax.Array, rew: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
        """The actor's action; without noise and memory."""
        return policy(params, obs), carry


class State(NamedTuple):
    """Everything that learns. Critics are a list of two."""

    actor: Params
    critics: list[Params]
    target_actor: Params
    target_critics: list[Params]
    opt_actor: Adam
    opt_critics: Adam


# Networks --------------------------------------------------------------------------------------------------


def policy(actor: Params, obs: jax.Array, half: bool | None = None) -> jax.Array:
    """Actions [..., A] in (-1, 1)."""
    return jnp.tanh(mlp(actor, obs, half=half))


def q_value(config: TD3BC, critic: Params, obs: jax.Array, act: jax.Array) -> jax.Array:
    """One critic's value [...]."""
    return mlp(critic, jnp.concatenate([obs, act], axis=-1), norm=config.norm, half=config.half)[..., 0]


# Losses ----------------------------------------------------------------------------------------------------


def critic_target(config: TD3BC, state: State, batch: Batch, noise: jax.Array) -> jax.Array:
    """R + gamma cont min Q'(s', a'), [B]; a' is the target policy's action with clipped noise."""
    noise = jnp.clip(config.noise * noise, -config.noise_clip, config.noise_clip)
    act = jnp.clip(policy(state.target_actor, batch.next_obs, config.half) + noise, -1, 1)
    one, two = (q_value(config, c, batch.next_obs, act) for c in state.target_critics)
    return batch.rew + config.gamma * batch.cont * jnp.minimum(one, two)


def critic_loss(config: TD3BC, critics: list[Params], batch: Batch, target: jax.Array) -> tuple[jax.Array, Metrics]:
    """Squared Bellman error, summed over the two critics."""
    values = [q_value(config, c, batch.obs, batch.act) for c in critics]
    loss = sum((squared(q - target) for q in values), jnp.zeros(()))
    return loss, {"critic_loss": loss, "q": values[0].mean()}


def actor_loss(config: TD3BC, actor: Params, critics: list[Params], batch: Batch) -> tuple[jax.Array, Metrics]:
    """Imitation less lambda times the first critic's value; lambda is not differentiated."""
    act = policy(actor, batch.obs, config.half)
    q = q_value(config, critics[0], batch.obs, act)
    imitation = squared(act - batch.act)
    loss = imitation - config.alpha * q.mean() / jax.lax.stop_gradient(jnp.abs(q).mean())
    return loss, {"actor_loss": loss, "imitation": imitation}
