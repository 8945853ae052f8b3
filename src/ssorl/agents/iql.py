"""IQL: values by expectile regression on the dataset's actions, and a policy by advantage-weighted imitation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from ssorl.agents.base import Batch, Metrics, Transitions, init_twins, mean_square, soft
from ssorl.utils.networks import Adam, Params, adam, init_adam, init_mlp, mlp

LOG_STD = (-5.0, 2.0)  # range of the policy's log standard deviation
MAX_WEIGHT = 100.0  # largest weight of one transition in the actor's loss


@dataclass(frozen=True)
class IQL:
    """Implicit Q-learning (arXiv 2110.06169, eq. 5-7), with the settings of its locomotion experiments.

    V: E L2_expectile(Q'(s, a) - V(s)); Q: E (r + gamma V(s') - Q(s, a))^2; pi: E exp(temperature (Q' - V)) log pi(a|s).
    As published for locomotion, the policy is a normal distribution that is not squashed: its mean is the tanh of a
    network of the state, its standard deviation is one learned number per dimension. The agent acts by the mean. The
    actor's learning rate falls to 0 along a cosine. Rewards are not scaled; the published locomotion runs scale them so
    that the returns of a dataset span 1000, so to match those runs the temperature must be adapted.
    """

    gamma: float = 0.99  # discount
    tau: float = 0.005  # step of the target critics
    expectile: float = 0.7  # at 0.5 V is the mean of Q over the data's actions, at 1 the maximum
    temperature: float = 3.0  # weight of the advantage; 0 is behaviour cloning
    lr: float = 3e-4  # learning rate of actor, critics and value, Adam
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers of actor, critics and value, ReLU
    batch: int = 256  # transitions in an update
    updates: int = 1_000_000  # updates of a training, and of the actor's cosine schedule
    half: bool | None = None  # hidden layers in bfloat16; None: on a GPU

    revision: ClassVar[int] = 0  # raised when a change alters results at unchanged settings: docs/architecture.md

    # quick: about a minute on two idle cores. After so few updates the critics are inaccurate, and at the published
    # temperature the returns of some seeds collapse (results/quick-iql.jsonl); a low temperature avoids this.
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
        """Return initial weights; the targets start equal to the critics, the policy's standard deviation is 1."""
        k_actor, k_value, k_critics = jax.random.split(key, 3)
        actor = {"mean": init_mlp(k_actor, (n_obs, *self.hidden, n_act)), "log_std": jnp.zeros(n_act)}
        value = init_mlp(k_value, (n_obs, *self.hidden, 1))
        critics = init_twins(k_critics, (n_obs + n_act, *self.hidden, 1))
        return State(actor, value, critics, critics, init_adam(actor), init_adam(value), init_adam(critics))

    def update(self, state: State, batch: Batch, key: jax.Array, phase: int = 0) -> tuple[State, Metrics]:
        """Update the value, then with it the actor and the critics, then the targets."""
        q1, q2 = (q_value(c, batch.obs, batch.act, self.half) for c in state.target_critics)
        q = jnp.minimum(q1, q2)
        grad, metrics = jax.grad(value_loss, argnums=1, has_aux=True)(self, state.value, batch, q)
        value, opt_value = adam(state.value, grad, state.opt_value, self.lr)

        advantage = q - v_value(value, batch.obs, self.half)
        grad, actor_metrics = jax.grad(actor_loss, argnums=1, has_aux=True)(self, state.actor, batch, advantage)
        progress = jnp.minimum(state.opt_actor.step / self.updates, 1)
        lr = self.lr * 0.5 * (1 + jnp.cos(jnp.pi * progress))
        actor, opt_actor = adam(state.actor, grad, state.opt_actor, lr)

        target = batch.rew + self.gamma * batch.cont * v_value(value, batch.next_obs, self.half)
        grad, critic_metrics = jax.grad(critic_loss, has_aux=True)(state.critics, batch, target, self.half)
        critics, opt_critics = adam(state.critics, grad, state.opt_critics, self.lr)
        target_critics = soft(state.target_critics, critics, self.tau)
        state = State(actor, value, critics, target_critics, opt_actor, opt_value, opt_critics)
        return state, metrics | actor_metrics | critic_metrics

    def policy(self, state: State) -> Params:
        """Return the actor's weights."""
        return state.actor

    def begin(self, n_obs: int, n_act: int) -> Any:
        """Return None: the agent has no memory."""
        return None

    def act(self, params: Params, carry: Any, obs: jax.Array, rew: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
        """Return the policy's mean; IQL acts without noise and memory."""
        return policy(params, obs), carry


class State(NamedTuple):
    """The training state of IQL; `critics` is a list of two networks."""

    actor: Params
    value: Params
    critics: list[Params]
    target_critics: list[Params]
    opt_actor: Adam
    opt_value: Adam
    opt_critics: Adam


# Networks --------------------------------------------------------------------------------------------------


def policy(actor: Params, obs: jax.Array, half: bool | None = None) -> jax.Array:
    """Return the policy's mean actions [..., A] in (-1, 1).

    Args:
        actor: weights.
        obs: standardised observations [..., O].
        half: compute hidden layers in bfloat16.
    """
    return jnp.tanh(mlp(actor["mean"], obs, half=half))


def log_prob(actor: Params, obs: jax.Array, act: jax.Array, half: bool | None = None) -> jax.Array:
    """Return the log densities [...] of actions under the policy.

    Args:
        actor: weights.
        obs: standardised observations [..., O].
        act: actions [..., A].
        half: compute hidden layers in bfloat16.
    """
    log_std = jnp.clip(actor["log_std"], *LOG_STD)
    noise = (act - policy(actor, obs, half)) / jnp.exp(log_std)
    return (-0.5 * jnp.square(noise) - log_std - 0.5 * jnp.log(2 * jnp.pi)).sum(-1)


def q_value(critic: Params, obs: jax.Array, act: jax.Array, half: bool | None = None) -> jax.Array:
    """Return the values [...] of one critic.

    Args:
        critic: weights.
        obs: standardised observations [..., O].
        act: actions [..., A].
        half: compute hidden layers in bfloat16.
    """
    return mlp(critic, jnp.concatenate([obs, act], axis=-1), half=half)[..., 0]


def v_value(value: Params, obs: jax.Array, half: bool | None = None) -> jax.Array:
    """Return the values [...] of states.

    Args:
        value: weights of the value network.
        obs: standardised observations [..., O].
        half: compute hidden layers in bfloat16.
    """
    return mlp(value, obs, half=half)[..., 0]


# Losses ----------------------------------------------------------------------------------------------------


def value_loss(config: IQL, value: Params, batch: Batch, q: jax.Array) -> tuple[jax.Array, Metrics]:
    """Return the expectile loss of the value (eq. 5), and metrics.

    A squared error q - v has the weight `expectile` where it is positive and 1 - `expectile` elsewhere.

    Args:
        config: the agent.
        value: weights of the value network.
        batch: B transitions.
        q: values of the batch's actions [B].
    """
    error = q - v_value(value, batch.obs, config.half)
    weight = jnp.where(error > 0, config.expectile, 1 - config.expectile)
    loss = (weight * jnp.square(error)).mean()
    return loss, {"value_loss": loss, "v": (q - error).mean()}


def actor_loss(config: IQL, actor: Params, batch: Batch, advantage: jax.Array) -> tuple[jax.Array, Metrics]:
    """Return the negative log-likelihood of the data's actions, weighted by exp(temperature A) (eq. 7), and metrics.

    Args:
        config: the agent.
        actor: weights of the actor.
        batch: B transitions.
        advantage: advantages A of the batch's actions [B].
    """
    weight = jnp.minimum(jnp.exp(config.temperature * advantage), MAX_WEIGHT)
    loss = -(weight * log_prob(actor, batch.obs, batch.act, config.half)).mean()
    return loss, {"actor_loss": loss, "weight": weight.mean()}


def critic_loss(
    critics: list[Params], batch: Batch, target: jax.Array, half: bool | None = None
) -> tuple[jax.Array, Metrics]:
    """Return the squared Bellman error (eq. 6), summed over the two critics, and metrics.

    Args:
        critics: weights of the two critics.
        batch: B transitions.
        target: Bellman targets [B].
        half: compute hidden layers in bfloat16.
    """
    values = [q_value(c, batch.obs, batch.act, half) for c in critics]
    loss = sum((mean_square(q - target) for q in values), jnp.zeros(()))
    return loss, {"critic_loss": loss, "q": values[0].mean()}
