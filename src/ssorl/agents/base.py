"""The interface of agents: pure functions of pytrees, and a view that draws their batches.

An agent is a frozen dataclass of its hyperparameters. Agents with equal settings are equal and have equal hashes, so
JAX reuses their compiled programs. The weights are not in the agent but in the state, which every update takes and
returns.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.utils.errors import DataError
from ssorl.utils.networks import Params, init_mlp

State = Any  # a pytree of arrays: weights, targets, optimiser moments
Rows = jax.Array | np.ndarray
Metrics = dict[str, jax.Array]  # name -> scalar


class Table(NamedTuple):
    """The data that all runs share on the device; several datasets are concatenated."""

    obs: jax.Array  # [R, O] standardised; the row after that of s_t holds s_{t+1}
    row: jax.Array  # [S] int32, the row of s_t
    rew: jax.Array  # [S], unscaled
    cont: jax.Array  # [S], 0 where the episode terminated, 1 elsewhere and at time limits
    rtg: jax.Array  # [S], return-to-go: sum of the rewards from this step to the end of its trajectory
    time: jax.Array  # [S] int32, index of the step in its trajectory
    left: jax.Array  # [S] int32, number of steps to the end of its trajectory, including this step


class Pool(NamedTuple):
    """The data of one run: its actions, and the steps that it trains on."""

    act: Rows  # [T, A] in [-1, 1], for the steps of the run's dataset; NaN where missing
    steps: Rows  # [P] int32, indices into the table; the first `n` are valid, the rest is padding
    n: Rows | np.int32  # scalar int32
    base: Rows | np.int32 = np.int32(0)  # scalar int32, index in the table of the first step of the run's dataset
    known: Rows | np.int32 = np.int32(0)  # scalar int32: the first `known` steps have an action

    def actions(self, step: jax.Array) -> jax.Array:
        """Return the actions [..., A] of steps of the table."""
        return self.act[step - self.base]  # type: ignore[return-value]


class Batch(NamedTuple):
    """A batch of B transitions."""

    obs: jax.Array  # [B, O] standardised
    act: jax.Array  # [B, A] in [-1, 1]
    rew: jax.Array  # [B]
    cont: jax.Array  # [B], 0 where the episode terminated
    next_obs: jax.Array  # [B, O]


class View(Protocol):
    """A sampler of batches."""

    @property
    def needs_actions(self) -> bool:
        """Whether every step that a run trains on must have an action."""
        ...

    def draw(self, table: Table, pool: Pool, key: jax.Array) -> Any:
        """Draw one batch for one run.

        Args:
            table: the data that all runs share.
            pool: the run's actions and steps.
            key: random key.
        """
        ...


class Transitions(NamedTuple):
    """A view that draws single transitions, uniformly over the pool with replacement."""

    batch: int

    needs_actions = True

    def draw(self, table: Table, pool: Pool, key: jax.Array) -> Batch:
        """Draw B transitions."""
        step = pool.steps[random_below(pool.n, self.batch, key)]
        row = table.row[step]
        return Batch(table.obs[row], pool.actions(step), table.rew[step], table.cont[step], table.obs[row + 1])


def random_below(n: Any, count: int, key: jax.Array) -> jax.Array:
    """Draw [count] uint32 numbers uniformly from 0 to n - 1.

    Args:
        n: exclusive upper end, a scalar that may be traced.
        count: how many numbers.
        key: random key.
    """
    # The remainder of 32 random bits is biased by at most n / 2^32; `randint` would draw twice as many bits.
    return jax.random.bits(key, (count,), jnp.uint32) % n.astype(jnp.uint32)


class Agent(Protocol):
    """An offline RL algorithm with its settings. A new agent needs one file and one line in `AGENTS`.

    Raise the class attribute `revision: ClassVar[int]` (0 by default) in a change that alters results at unchanged
    settings. Declare settings that are added later with `ssorl.utils.identity.since`.
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]]  # name -> settings that differ from the defaults; `paper` and `quick`

    @property
    def updates(self) -> int:
        """Number of updates of a training."""
        ...

    @property
    def period(self) -> int:
        """Number of updates after which the kinds of update repeat, see `update`."""
        ...

    @property
    def view(self) -> View:
        """The sampler of the agent's batches."""
        ...

    def init(self, key: jax.Array, n_obs: int, n_act: int) -> State:
        """Return the initial state.

        Args:
            key: random key.
            n_obs: size of an observation O.
            n_act: size of an action A.
        """
        ...

    def update(self, state: State, batch: Any, key: jax.Array, phase: int = 0) -> tuple[State, Metrics]:
        """Do one update.

        Args:
            state: the state before the update.
            batch: what the view drew.
            key: random key.
            phase: number of the update modulo `period`. It is a Python number that is known at compile time, so that
                work of every other update costs nothing in between; both sides of a branch on a traced number would be
                computed when several runs are one program.

        Returns:
            The state after the update, and metrics, which may differ between phases.
        """
        ...

    def policy(self, state: State) -> Params:
        """Return the part of the state that `act` needs; this part is averaged, saved and exported."""
        ...

    def begin(self, n_obs: int, n_act: int) -> Any:
        """Return the memory of `act` before the first step of an episode; None for an agent without memory.

        Args:
            n_obs: size of an observation O.
            n_act: size of an action A.
        """
        ...

    def act(self, params: Params, carry: Any, obs: jax.Array, rew: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
        """Choose the evaluation action of one policy in one environment; callers vmap over both.

        Args:
            params: what `policy` returned.
            carry: the memory.
            obs: standardised observation [O].
            rew: reward of the previous action, unscaled, 0 before the first.
            key: random key.

        Returns:
            The action [A] in [-1, 1] and the new memory.
        """
        ...


def require_rewards(agent: Agent, eps: Any, valued_on_data: bool = False) -> None:
    """Raise DataError if rewards are needed and trajectories have none, or the agent learns from zeros only.

    An agent that learns without rewards has the class attribute `needs_rewards = False`.

    Args:
        agent: the agent that is to be trained.
        eps: trajectories, an `ssorl.data.Episodes`.
        valued_on_data: whether policies will be evaluated by fitted-Q evaluation, which needs rewards too.
    """
    name, missing = type(agent).__name__, int((~eps.rewarded).sum())
    if not getattr(agent, "needs_rewards", True):
        if missing and valued_on_data:
            raise DataError(
                f"{eps.meta.source}: {missing} of {len(eps)} trajectories have no rewards and there is no environment, "
                "so nothing can evaluate the policies; name one with --env, or add rewards to the data"
            )
        return
    if missing:
        raise DataError(
            f"{eps.meta.source}: {missing} of {len(eps)} trajectories have no rewards, which {name} learns from; add "
            "rewards to the data, or choose behaviour cloning (--agent bc)"
        )
    if not eps.rew.any():
        raise DataError(
            f"{eps.meta.source}: every reward is 0, so {name} has nothing to learn from; add rewards to the data, or "
            "choose behaviour cloning (--agent bc)"
        )


def init_twins(key: jax.Array, sizes: tuple[int, ...]) -> list[Params]:
    """Return the weights of two networks of the same shape, drawn in one call.

    Args:
        key: random key.
        sizes: widths of the layers, from the input to the output.
    """
    twins = jax.vmap(lambda k: init_mlp(k, sizes))(jax.random.split(key))
    return [jax.tree.map(lambda x, i=i: x[i], twins) for i in range(2)]


def soft(target: Any, params: Any, tau: float) -> Any:
    """Return `target + tau (params - target)` for each leaf.

    Args:
        target: weights of the target network.
        params: weights of the network that it follows.
        tau: step size in [0, 1].
    """
    return jax.tree.map(lambda t, p: t + tau * (p - t), target, params)


def mean_square(x: jax.Array) -> jax.Array:
    """Return the mean of the squares of all elements."""
    return jnp.square(x).mean()
