"""The device's side of the engine: sampling, updates, averages and metrics in one scan, over many runs and devices."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ssorl.agents.base import Agent, Metrics, Pool, State, Table
from ssorl.utils.networks import Params

INIT = 2**31 - 1  # the number folded into a run's key for its first weights; updates count from 0
RUNS = PartitionSpec("runs")  # a leading axis of runs, cut over the devices
ALL = PartitionSpec()  # the same on every device


class LearnerState(NamedTuple):
    """What training changes, of one run or on a leading axis of several."""

    state: State
    average: Params  # of the policy


@partial(jax.jit, static_argnames=("agent", "n_obs", "n_act"))
def begin(agent: Agent, n_obs: int, n_act: int, key: jax.Array) -> LearnerState:
    """First weights for a key, or for each of several."""

    def one(key: jax.Array) -> LearnerState:
        state = agent.init(jax.random.fold_in(key, INIT), n_obs, n_act)
        return LearnerState(state, agent.policy(state))

    return (jax.vmap(one) if key.ndim else one)(key)


def shapes(agent: Agent, n_obs: int, n_act: int, n_runs: int) -> LearnerState:
    """The shapes and types of what so many runs learn; nothing is computed."""
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), n_runs))
    return jax.eval_shape(partial(begin, agent, n_obs, n_act), keys)


@partial(jax.jit, static_argnames=("agent", "n", "mesh"), donate_argnames=("learnt",))
def chunk(
    agent: Agent,
    n: int,
    mesh: Mesh | None,
    table: Table,
    pool: Pool,
    key: jax.Array,
    learnt: LearnerState,
    at: jax.Array | int,
    average: jax.Array | float,
) -> tuple[LearnerState, Metrics]:
    """`n` updates from update `at` on, for one run or for each of several; what is learnt, the mean of each metric."""
    one = partial(updates, agent, n)
    if not key.ndim:
        return one(table, at, average, pool, key, learnt)
    every = jax.vmap(one, in_axes=(None, None, None, 0, 0, 0))
    if mesh is not None:  # runs have nothing to say to each other, so each device goes through its own alone
        specs = (ALL, ALL, ALL, RUNS, RUNS, RUNS)
        every = jax.shard_map(every, mesh=mesh, in_specs=specs, out_specs=RUNS, check_vma=False)
    return every(table, at, average, pool, key, learnt)


def updates(
    agent: Agent,
    n: int,
    table: Table,
    at: jax.Array | int,
    average: jax.Array | float,
    pool: Pool,
    key: jax.Array,
    learnt: LearnerState,
) -> tuple[LearnerState, Metrics]:
    """`chunk` for one run."""

    def turn(learnt: LearnerState, i: jax.Array) -> tuple[LearnerState, Metrics]:
        # The batches of a period are drawn at once: each call of the generator costs time, most of all to compile.
        number = i + jnp.arange(agent.period)
        keys = jax.vmap(lambda j: jax.random.split(jax.random.fold_in(key, j)))(number)
        batches = jax.vmap(lambda k: agent.view.draw(table, pool, k))(keys[:, 0])
        state, seen = learnt.state, {}
        for phase in range(agent.period):
            batch = jax.tree.map(lambda x, phase=phase: x[phase], batches)
            state, metrics = agent.update(state, batch, keys[phase, 1], phase)
            for name, value in metrics.items():
                seen.setdefault(name, []).append(value)
        # Early averages look back over a tenth of the turns so far.
        turns = i // agent.period
        mean = _mix(learnt.average, agent.policy(state), jnp.minimum(average, (1 + turns) / (10 + turns)))
        return LearnerState(state, mean), {name: jnp.stack(values).mean() for name, values in seen.items()}

    learnt, metrics = jax.lax.scan(turn, learnt, at + jnp.arange(0, n, agent.period))
    return learnt, jax.tree.map(lambda x: x.mean(0), metrics)


def _mix(mean: Params, last: Params, keep: jax.Array) -> Params:
    """`keep` of the mean and the rest of the last; numbers that count are not averaged."""

    def one(m: jax.Array, x: jax.Array) -> jax.Array:
        return x + (keep * (m - x)).astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(one, mean, last)


# Several devices -------------------------------------------------------------------------------------------


def mesh_for(n_runs: int) -> Mesh | None:
    """The devices of this machine that so many runs can use; None where one will do."""
    devices = jax.local_devices()[:n_runs]
    return Mesh(np.array(devices), ("runs",)) if len(devices) > 1 else None


def spread(tree: Any, mesh: Mesh | None) -> Any:
    """Arrays with a leading axis of runs, an equal part of it on each device."""
    return jax.device_put(tree, mesh and NamedSharding(mesh, RUNS))


def share(tree: Any, mesh: Mesh | None) -> Any:
    """Arrays, whole on each device."""
    return jax.device_put(tree, mesh and NamedSharding(mesh, ALL))
