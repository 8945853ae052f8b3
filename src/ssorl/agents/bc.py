"""Behaviour cloning: the policy of TD3+BC without its critics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from ssorl.agents.base import Batch, Metrics, Transitions, squared
from ssorl.utils.networks import Adam, Params, adam, init_adam, init_mlp, mlp


@dataclass(frozen=True)
class BC:
    """Behaviour cloning: a deterministic policy fitted by least squares, min E (pi(s) - a)^2.

    The network and its learning are those of TD3+BC's actor, so that the two differ by the critic alone.
    """

    lr: float = 3e-4
    hidden: tuple[int, ...] = (256, 256)  # widths, ReLU
    batch: int = 5120  # transitions an update
    updates: int = 200_000  # in a whole training
    half: bool | None = None  # hidden layers in bfloat16; None: on a GPU

    revision: ClassVar[int] = 0  # raised when a change alters results at unchanged settings: docs/architecture.md

    # quick: a twentieth of the work an update, and a quarter of the updates.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"paper": {}, "quick": {"batch": 256, "updates": 50_000}}

    @property
    def period(self) -> int:
        """All updates are alike."""
        return 1

    @property
    def view(self) -> Transitions:
        """Single transitions."""
        return Transitions(self.batch)

    def init(self, key: jax.Array, n_obs: int, n_act: int) -> State:
        """Fresh weights."""
        actor = init_mlp(key, (n_obs, *self.hidden, n_act))
        return State(actor, init_adam(actor))

    def update(self, state: State, batch: Batch, key: jax.Array, phase: int = 0) -> tuple[State, Metrics]:
        """One step down the squared error."""
        grad, metrics = jax.grad(actor_loss, has_aux=True)(state.actor, batch, self.half)
        return State(*adam(state.actor, grad, state.opt, self.lr)), metrics

    def policy(self, state: State) -> Params:
        """The actor alone."""
        return state.actor

    def begin(self, n_obs: int, n_act: int) -> Any:
        """Nothing to remember."""
        return None

    def act(self, params: Params, carry: Any, obs: jax.Array, rew: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
        """The policy's action; without noise and memory."""
        return policy(params, obs), carry


class State(NamedTuple):
    """Everything that learns."""

    actor: Params
    opt: Adam


def policy(actor: Params, obs: jax.Array, half: bool | None = None) -> jax.Array:
    """Actions [..., A] in (-1, 1)."""
    return jnp.tanh(mlp(actor, obs, half=half))


def actor_loss(actor: Params, batch: Batch, half: bool | None = None) -> tuple[jax.Array, Metrics]:
    """Mean squared error over batch and dimensions."""
    loss = squared(policy(actor, batch.obs, half) - batch.act)
    return loss, {"actor_loss": loss}
