"""IQL: values by expectile regression, which never asks for an action outside the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from ssorl.agents.base import Batch, Metrics, Transitions, init_twins, mean_square, soft
from ssorl.utils.networks import Adam, Params, adam, init_adam, init_mlp, mlp

LOG_STD = (-5.0, 2.0)  # range of the policy's log standard deviation
MAX_WEIGHT = 100.0  # of one transition in the policy's loss


@dataclass(frozen=True)
class IQL:
    """Implicit Q-learning (arXiv 2110.06169, eq. 5-7), with the settings of its locomotion experiments.

    V: E L2_expectile(Q'(s, a) - V(s)); Q: E (r + gamma V(s') - Q(s, a))^2; pi: E exp(temperature (Q' - V)) log pi(a|s).
    The policy is, as published for locomotion, a normal whose mean is the tanh of a network of the state and whose
    deviation is one learned number a dimension, not squashed; it acts by its mean. Its learning rate falls to 0 along a
    cosine. Rewards are taken as they are: the published runs scale those of locomotion so that the returns of a dataset
    span 1000, which the temperature would have to make up for.
    """

    gamma: float = 0.99  # discount
    tau: float = 0.005  # step of the target critics
    expectile: float = 0.7  # 0.5 is the mean of Q over the data's actions, 1 its maximum
    temperature: float = 3.0  # 0 is behaviour cloning, large values follow the advantage
    lr: float = 3e-4  # of actor, critics and value
    hidden: tuple[int, ...] = (256, 256)  # widths of actor, critics and value, ReLU
    batch: int = 256  # transitions an update
    updates: int = 1_000_000  # in a whole training, and the length of the actor's cosine
    half: bool | None = None  # hidden layers in bfloat16; None: on a GPU

    revision: ClassVar[int] = 0  # raised when a change alters results at unchanged settings: docs/architecture.md

    # quick: about a minute on two idle cores. After so few updates the critics are too rough to be followed closely: at
    # the published temperature some seeds collapse (results/quick-iql.jsonl).
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "quick": {"hidden": (128, 128), "lr": 1e-3, "temperature": 0.3, "updates": 20_000},
    }

    @property
    def period(self) -> int:
        """All updates are of the same kind."""
        return 1

    @property
    def view(self) -> Transitions:
        """A sampler of single transitions."""
        return Transitions(self.batch)

    def init(self, key: jax.Array, n_obs: int, n_act: int) -> State:
        """Fresh weights; the target critics start equal, the deviation at 1."""
        k_actor, k_value, k_critics = jax.random.split(key, 3)
        actor = {"mean": init_mlp(k_actor, (n_obs, *self.hidden, n_act)), "log_std": jnp.zeros(n_act)}
        value = init_mlp(k_value, (n_obs, *self.hidden, 1))
        critics = init_twins(k_critics, (n_obs + n_act, *self.hidden, 1))
        return State(actor, value, critics, critics, init_adam(actor), init_adam(value), init_adam(critics))

    def update(self, state: State, batch: Batch, key: jax.Array, phase: int = 0) -> tuple[State, Metrics]:
        """The value, then with it the policy and the critics, then the targets."""
        one, two = (q_value(c, batch.obs, batch.act, self.half) for c in state.target_critics)
        q = jnp.minimum(one, two)
        grad, metrics = jax.grad(value_loss, argnums=1, has_aux=True)(self, state.value, batch, q)
        value, opt_value = adam(state.value, grad, state.opt_value, self.lr)

        advantage = q - v_value(value, batch.obs, self.half)
        grad, more = jax.grad(actor_loss, argnums=1, has_aux=True)(self, state.actor, batch, advantage)
        done = jnp.minimum(state.opt_actor.step / self.updates, 1)
        lr = self.lr * 0.5 * (1 + jnp.cos(jnp.pi * done))
        actor, opt_actor = adam(state.actor, grad, state.opt_actor, lr)

        target = batch.rew + self.gamma * batch.cont * v_value(value, batch.next_obs, self.half)
        grad, most = jax.grad(critic_loss, has_aux=True)(state.critics, batch, target, self.half)
        critics, opt_critics = adam(state.critics, grad, state.opt_critics, self.lr)
        target_critics = soft(state.target_critics, critics, self.tau)
        state = State(actor, value, critics, target_critics, opt_actor, opt_value, opt_critics)
        return state, metrics | more | most

    def policy(self, state: State) -> Params:
        """Return the actor's weights."""
        return state.actor

    def begin(self, n_obs: int, n_act: int) -> Any:
        """Return None: the agent has no memory."""
        return None

    def act(self, params: Params, carry: Any, obs: jax.Array, rew: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
        """The policy's mean; without memory."""
        return policy(params, obs), carry


class State(NamedTuple):
    """Everything that learns. Critics are a list of two."""

    actor: Params
    value: Params
    critics: list[Params]
    target_critics: list[Params]
    opt_actor: Adam
    opt_value: Adam
    opt_critics: Adam


# Networks --------------------------------------------------------------------------------------------------


def policy(actor: Params, obs: jax.Array, half: bool | None = None) -> jax.Array:
    """Mean actions [..., A] in (-1, 1)."""
    return jnp.tanh(mlp(actor["mean"], obs, half=half))


def log_prob(actor: Params, obs: jax.Array, act: jax.Array, half: bool | None = None) -> jax.Array:
    """Log density of actions, [...]."""
    log_std = jnp.clip(actor["log_std"], *LOG_STD)
    normal = (act - policy(actor, obs, half)) / jnp.exp(log_std)
    return (-0.5 * jnp.square(normal) - log_std - 0.5 * jnp.log(2 * jnp.pi)).sum(-1)


def q_value(critic: Params, obs: jax.Array, act: jax.Array, half: bool | None = None) -> jax.Array:
    """One critic's value [...]."""
    return mlp(critic, jnp.concatenate([obs, act], axis=-1), half=half)[..., 0]


def v_value(value: Params, obs: jax.Array, half: bool | None = None) -> jax.Array:
    """The value of states, [...]."""
    return mlp(value, obs, half=half)[..., 0]


# Losses ----------------------------------------------------------------------------------------------------


def value_loss(config: IQL, value: Params, batch: Batch, q: jax.Array) -> tuple[jax.Array, Metrics]:
    """Expectile regression of q[B] (eq. 5): errors below count 1 - expectile, those above `expectile`."""
    error = q - v_value(value, batch.obs, config.half)
    weight = jnp.where(error > 0, config.expectile, 1 - config.expectile)
    loss = (weight * jnp.square(error)).mean()
    return loss, {"value_loss": loss, "v": (q - error).mean()}


def actor_loss(config: IQL, actor: Params, batch: Batch, advantage: jax.Array) -> tuple[jax.Array, Metrics]:
    """Log-likelihood of the data's actions, weighted by the exponential of advantage[B] (eq. 7)."""
    weight = jnp.minimum(jnp.exp(config.temperature * advantage), MAX_WEIGHT)
    loss = -(weight * log_prob(actor, batch.obs, batch.act, config.half)).mean()
    return loss, {"actor_loss": loss, "weight": weight.mean()}


def critic_loss(
    critics: list[Params], batch: Batch, target: jax.Array, half: bool | None = None
) -> tuple[jax.Array, Metrics]:
    """Squared Bellman error (eq. 6), summed over the two critics."""
    values = [q_value(c, batch.obs, batch.act, half) for c in critics]
    loss = sum((mean_square(q - target) for q in values), jnp.zeros(()))
    return loss, {"critic_loss": loss, "q": values[0].mean()}
