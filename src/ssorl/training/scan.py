"""Training on the device: sampling, updates, averages and metrics in one scan, for many runs and several devices."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ssorl.agents.base import Agent, Metrics, Pool, State, Table
from ssorl.utils.networks import Params

INIT = 2**31 - 1  # number folded into a run's key for the initial weights; updates fold their number, from 0
RUNS = PartitionSpec("runs")  # arrays with a leading axis of runs, split over the devices
ALL = PartitionSpec()  # arrays that are the same on every device


class LearnerState(NamedTuple):
    """The state that updates change, of one run, or of several runs on a leading axis."""

    state: State  # training state of the agent
    average: Params  # exponential average of the policy


@partial(jax.jit, static_argnames=("agent", "n_obs", "n_act"))
def init_learner(agent: Agent, n_obs: int, n_act: int, key: jax.Array) -> LearnerState:
    """Return the state before the first update.

    Args:
        agent: the agent.
        n_obs: size of an observation O.
        n_act: size of an action A.
        key: key of one run, or keys of N runs [N].
    """

    def init_run(key: jax.Array) -> LearnerState:
        state = agent.init(jax.random.fold_in(key, INIT), n_obs, n_act)
        return LearnerState(state, agent.policy(state))

    return (jax.vmap(init_run) if key.ndim else init_run)(key)


def learner_shapes(agent: Agent, n_obs: int, n_act: int, n_runs: int) -> LearnerState:
    """Return shapes and types of the state of N runs, without computing anything.

    Args:
        agent: the agent.
        n_obs: size of an observation O.
        n_act: size of an action A.
        n_runs: number of runs N.
    """
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), n_runs))
    return jax.eval_shape(partial(init_learner, agent, n_obs, n_act), keys)


@partial(jax.jit, static_argnames=("agent", "n", "mesh"), donate_argnames=("learner",))
def train_chunk(
    agent: Agent,
    n: int,
    mesh: Mesh | None,
    table: Table,
    pool: Pool,
    key: jax.Array,
    learner: LearnerState,
    at: jax.Array | int,
    average: jax.Array | float,
) -> tuple[LearnerState, Metrics]:
    """Do several updates of one run, or of N runs.

    Args:
        agent: the agent.
        n: number of updates, a multiple of the agent's period.
        mesh: devices to split the runs over; None: one device.
        table: the data that all runs share.
        pool: actions and steps of the run, or of N runs with a leading axis.
        key: key of the run, or keys [N].
        learner: state before the updates, or states with a leading axis; its memory is reused.
        at: number of updates done before.
        average: weight of the old average in the averaged policy, per period.

    Returns:
        The state after the updates, and the mean of each metric, a scalar or [N].
    """
    train_run = partial(train_chunk_of_run, agent, n)
    if not key.ndim:
        return train_run(table, at, average, pool, key, learner)
    train_runs = jax.vmap(train_run, in_axes=(None, None, None, 0, 0, 0))
    if mesh is not None:  # runs are independent, so each device trains its own runs without communication
        specs = (ALL, ALL, ALL, RUNS, RUNS, RUNS)
        train_runs = jax.shard_map(train_runs, mesh=mesh, in_specs=specs, out_specs=RUNS, check_vma=False)
    return train_runs(table, at, average, pool, key, learner)


def train_chunk_of_run(
    agent: Agent,
    n: int,
    table: Table,
    at: jax.Array | int,
    average: jax.Array | float,
    pool: Pool,
    key: jax.Array,
    learner: LearnerState,
) -> tuple[LearnerState, Metrics]:
    """Do several updates of one run; arguments and result are those of `train_chunk`."""

    def train_period(learner: LearnerState, i: jax.Array) -> tuple[LearnerState, Metrics]:
        # The batches of a period are drawn at once, because each call of the generator takes long to compile.
        number = i + jnp.arange(agent.period)
        keys = jax.vmap(lambda j: jax.random.split(jax.random.fold_in(key, j)))(number)
        batches = jax.vmap(lambda k: agent.view.draw(table, pool, k))(keys[:, 0])
        state, values = learner.state, {}
        for phase in range(agent.period):
            batch = jax.tree.map(lambda x, phase=phase: x[phase], batches)
            state, metrics = agent.update(state, batch, keys[phase, 1], phase)
            for name, value in metrics.items():
                values.setdefault(name, []).append(value)
        # Early on, the average covers about a tenth of the periods so far.
        periods = i // agent.period
        mean = _interpolate(learner.average, agent.policy(state), jnp.minimum(average, (1 + periods) / (10 + periods)))
        return LearnerState(state, mean), {name: jnp.stack(x).mean() for name, x in values.items()}

    learner, metrics = jax.lax.scan(train_period, learner, at + jnp.arange(0, n, agent.period))
    return learner, jax.tree.map(lambda x: x.mean(0), metrics)


def _interpolate(mean: Params, last: Params, weight: jax.Array) -> Params:
    """Return `weight * mean + (1 - weight) * last` for floating-point arrays, and `last` for integers."""

    def interpolate_array(m: jax.Array, x: jax.Array) -> jax.Array:
        return x + (weight * (m - x)).astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(interpolate_array, mean, last)


# Several devices -------------------------------------------------------------------------------------------


def mesh_for(n_runs: int) -> Mesh | None:
    """Return the devices of this machine that N runs can use; None if that is a single device."""
    devices = jax.local_devices()[:n_runs]
    return Mesh(np.array(devices), ("runs",)) if len(devices) > 1 else None


def shard(tree: Any, mesh: Mesh | None) -> Any:
    """Split arrays along their leading axis of runs, with an equal part on each device.

    Args:
        tree: pytree of arrays.
        mesh: the devices; None: one device.
    """
    return jax.device_put(tree, mesh and NamedSharding(mesh, RUNS))


def replicate(tree: Any, mesh: Mesh | None) -> Any:
    """Copy arrays to each device.

    Args:
        tree: pytree of arrays.
        mesh: the devices; None: one device.
    """
    return jax.device_put(tree, mesh and NamedSharding(mesh, ALL))
