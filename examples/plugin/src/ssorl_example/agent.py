"""Behaviour cloning weighted by a one-step advantage, as in docs/your-own-agent.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from ssorl.agents.base import Batch, Metrics, Transitions, soft
from ssorl.utils.networks import Adam, Params, adam, init_adam, init_mlp, mlp


class State(NamedTuple):
    """The training state."""

    actor: Params
    value: Params
    target: Params
    opt: Adam


@dataclass(frozen=True)
class WeightedBC:
    """Fit V by E (r + gamma V'(s') - V(s))^2 and pi by E exp(beta (r + gamma V'(s') - V(s))) (pi(s) - a)^2."""

    gamma: float = 0.99  # discount
    beta: float = 1.0  # inverse temperature of the weights; 0 is behaviour cloning
    lr: float = 3e-4  # learning rate, Adam
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers
    batch: int = 1024  # transitions in an update
    updates: int = 100_000  # updates of a training

    revision: ClassVar[int] = 0  # raise it when a change alters results at unchanged settings
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"paper": {}, "quick": {"batch": 256, "updates": 20_000}}
    period: ClassVar[int] = 1  # all updates are of the same kind

    @property
    def view(self) -> Transitions:
        """A sampler of single transitions."""
        return Transitions(self.batch)

    def init(self, key: jax.Array, n_obs: int, n_act: int) -> State:
        """Return initial weights."""
        k_actor, k_value = jax.random.split(key)
        actor = init_mlp(k_actor, (n_obs, *self.hidden, n_act))
        value = init_mlp(k_value, (n_obs, *self.hidden, 1))
        return State(actor, value, value, init_adam((actor, value)))

    def update(self, state: State, batch: Batch, key: jax.Array, phase: int = 0) -> tuple[State, Metrics]:
        """Do one Adam step on both losses."""
        target = batch.rew + self.gamma * batch.cont * mlp(state.target, batch.next_obs)[:, 0]

        def loss(nets: Params) -> tuple[jax.Array, Metrics]:
            actor, value = nets
            advantage = target - mlp(value, batch.obs)[:, 0]
            weight = jnp.minimum(jnp.exp(self.beta * jax.lax.stop_gradient(advantage)), 100)
            imitation = (weight * jnp.square(jnp.tanh(mlp(actor, batch.obs)) - batch.act).mean(-1)).mean()
            return imitation + jnp.square(advantage).mean(), {"actor_loss": imitation, "weight": weight.mean()}

        grad, metrics = jax.grad(loss, has_aux=True)((state.actor, state.value))
        (actor, value), opt = adam((state.actor, state.value), grad, state.opt, self.lr)
        return State(actor, value, soft(state.target, value, 0.005), opt), metrics

    def policy(self, state: State) -> Params:
        """Return what acting needs: the actor's weights."""
        return state.actor

    def begin(self, n_obs: int, n_act: int) -> None:
        """Return None: the agent has no memory."""

    def act(self, params: Params, carry: Any, obs: jax.Array, rew: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
        """Return an action [A] in [-1, 1] for one standardised observation [O]."""
        return jnp.tanh(mlp(params, obs)), carry
