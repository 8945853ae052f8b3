"""What an agent is: pure functions of pytrees, and how it wants to see the data.

An agent is a frozen dataclass of its hyperparameters, so that equal settings are equal (and hash alike) and a compiled
program is found again by them. It holds no weights: those are in the state that goes in and comes out.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.utils.networks import Params, init_mlp

State = Any  # a pytree of arrays: weights, targets, optimiser moments
Rows = jax.Array | np.ndarray
Metrics = dict[str, jax.Array]  # name -> scalar


class Table(NamedTuple):
    """What all runs share, on the device once; several datasets lie end to end."""

    obs: jax.Array  # [R, O] standardised; a step's s_{t+1} is the row after its s_t
    row: jax.Array  # [S] int32, the row of s_t
    rew: jax.Array  # [S], unscaled
    cont: jax.Array  # [S], 0 where the task ended and 1 elsewhere, time limits included
    rtg: jax.Array  # [S], the rewards from this step to the end of its trajectory, summed
    time: jax.Array  # [S] int32, the step's number in its trajectory
    left: jax.Array  # [S] int32, steps to the end of its trajectory, this one included


class Pool(NamedTuple):
    """What one run has for itself: its actions and the steps it may learn from."""

    act: Rows  # [T, A] in [-1, 1], of the steps of the run's own dataset; NaN where missing
    steps: Rows  # [P] int32, numbers in the table; only the first `n` count, the rest is padding
    n: Rows | np.int32  # scalar int32
    base: Rows | np.int32 = np.int32(0)  # scalar int32, where in the table the run's dataset begins
    known: Rows | np.int32 = np.int32(0)  # scalar int32: so many of the steps have an action, and they are the first

    def actions(self, step: jax.Array) -> jax.Array:
        """Those of some steps of the table, [..., A]."""
        return self.act[step - self.base]  # type: ignore[return-value]


class Batch(NamedTuple):
    """Transitions, [B, ...]."""

    obs: jax.Array  # [B, O] standardised
    act: jax.Array  # [B, A] in [-1, 1]
    rew: jax.Array  # [B]
    cont: jax.Array  # [B], 0 at true endings
    next_obs: jax.Array  # [B, O]


class View(Protocol):
    """How batches are drawn from the tables."""

    @property
    def needs_actions(self) -> bool:
        """Whether a step without an action is no use, so that a run may not name one."""
        ...

    def draw(self, table: Table, pool: Pool, key: jax.Array) -> Any:
        """One batch for one run."""
        ...


class Transitions(NamedTuple):
    """Single transitions, uniform over the pool with replacement."""

    batch: int

    needs_actions = True

    def draw(self, table: Table, pool: Pool, key: jax.Array) -> Batch:
        """B transitions."""
        step = pool.steps[below(pool.n, self.batch, key)]
        row = table.row[step]
        return Batch(table.obs[row], pool.actions(step), table.rew[step], table.cont[step], table.obs[row + 1])


def below(n: Any, count: int, key: jax.Array) -> jax.Array:
    """That many numbers, uniform from 0 to n - 1; [count] uint32."""
    # The remainder of 32 random bits favours no number by more than n / 2^32; `randint` would draw twice.
    return jax.random.bits(key, (count,), jnp.uint32) % n.astype(jnp.uint32)


class Agent(Protocol):
    """An offline RL algorithm with its settings. Adding one is one file and one line in `AGENTS`.

    A class attribute `revision: ClassVar[int]` (0 where there is none) is raised by a change that alters results at
    unchanged settings; `ssorl.utils.identity.since` declares settings that are added later.
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]]  # name -> settings that differ from the defaults; `paper` and `quick`

    @property
    def updates(self) -> int:
        """Updates in a whole training."""
        ...

    @property
    def period(self) -> int:
        """Updates after which the kind of update repeats; see `update`."""
        ...

    @property
    def view(self) -> View:
        """How it wants its batches."""
        ...

    def init(self, key: jax.Array, n_obs: int, n_act: int) -> State:
        """Fresh weights."""
        ...

    def update(self, state: State, batch: Any, key: jax.Array, phase: int = 0) -> tuple[State, Metrics]:
        """One update.

        `phase`, a plain number below `period`, is the update's number modulo `period`. It is known while compiling, so
        that work done every other update costs nothing in between: a branch on a traced number would be computed on
        both sides as soon as several runs are one program. Metrics may differ between phases.
        """
        ...

    def policy(self, state: State) -> Params:
        """What acting needs of the state; this is averaged, saved and shipped."""
        ...

    def begin(self, n_obs: int, n_act: int) -> Any:
        """The memory `act` has before the first step of an episode; None for an agent without."""
        ...

    def act(self, params: Params, carry: Any, obs: jax.Array, rew: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
        """The action [A] in [-1, 1] for one standardised obs[O], as an evaluation wants it, and the new memory.

        `rew` is what the previous action earned, unscaled, 0 before the first. For one policy in one environment;
        callers vmap over both.
        """
        ...


def init_twins(key: jax.Array, sizes: tuple[int, ...]) -> list[Params]:
    """Weights of two networks alike, from one draw."""
    both = jax.vmap(lambda k: init_mlp(k, sizes))(jax.random.split(key))
    return [jax.tree.map(lambda x, i=i: x[i], both) for i in range(2)]


def soft(target: Any, params: Any, tau: float) -> Any:
    """`target` moved by the share `tau` towards `params`, leaf by leaf."""
    return jax.tree.map(lambda t, p: t + tau * (p - t), target, params)


def squared(x: jax.Array) -> jax.Array:
    """Mean of the squares of all elements."""
    return jnp.square(x).mean()
