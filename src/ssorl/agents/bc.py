"""Behaviour cloning (BC): the actor of TD3+BC, without critics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from ssorl.agents.base import Batch, Metrics, Transitions, mean_square
from ssorl.utils.networks import Adam, Params, adam, init_adam, init_mlp, mlp


@dataclass(frozen=True)
class BC:
    """Behaviour cloning: a deterministic policy fitted by least squares, min E (pi(s) - a)^2.

    Network and optimiser equal those of TD3+BC's actor, so the two agents differ only in the critics.
    """

    lr: float = 3e-4  # learning rate, Adam
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers, ReLU
    batch: int = 5120  # transitions in an update
    updates: int = 200_000  # updates of a training
    half: bool | None = None  # hidden layers in bfloat16; None: on a GPU

    revision: ClassVar[int] = 0  # raised when a change alters results at unchanged settings: docs/architecture.md

    needs_rewards: ClassVar[bool] = False

    # quick: a twentieth of the work of an update, and a quarter of the updates.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"paper": {}, "quick": {"batch": 256, "updates": 50_000}}

    @property
    def period(self) -> int:
        """All updates are of the same kind."""
        return 1

    @property
    def view(self) -> Transitions:
        """A sampler of single transitions."""
        return Transitions(self.batch)

    def init(self, key: jax.Array, n_obs: int, n_act: int) -> State:
        """Return initial weights."""
        actor = init_mlp(key, (n_obs, *self.hidden, n_act))
        return State(actor, init_adam(actor))

    def update(self, state: State, batch: Batch, key: jax.Array, phase: int = 0) -> tuple[State, Metrics]:
        """Do one Adam step on the squared error."""
        grad, metrics = jax.grad(actor_loss, has_aux=True)(state.actor, batch, self.half)
        return State(*adam(state.actor, grad, state.opt, self.lr)), metrics

    def policy(self, state: State) -> Params:
        """Return the actor's weights."""
        return state.actor

    def begin(self, n_obs: int, n_act: int) -> Any:
        """Return None: the agent has no memory."""
        return None

    def act(self, params: Params, carry: Any, obs: jax.Array, rew: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
        """Return the policy's action; BC has neither noise nor memory."""
        return policy(params, obs), carry


class State(NamedTuple):
    """The training state of BC."""

    actor: Params
    opt: Adam


def policy(actor: Params, obs: jax.Array, half: bool | None = None) -> jax.Array:
    """Return actions [..., A] in (-1, 1).

    Args:
        actor: weights.
        obs: standardised observations [..., O].
        half: compute hidden layers in bfloat16.
    """
    return jnp.tanh(mlp(actor, obs, half=half))


def actor_loss(actor: Params, batch: Batch, half: bool | None = None) -> tuple[jax.Array, Metrics]:
    """Return the mean squared error over batch and dimensions, and metrics.

    Args:
        actor: weights.
        batch: B transitions.
        half: compute hidden layers in bfloat16.
    """
    loss = mean_square(policy(actor, batch.obs, half) - batch.act)
    return loss, {"actor_loss": loss}
