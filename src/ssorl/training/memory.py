"""Estimate the device memory that runs need, and how many runs can train together."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from ssorl.agents.base import Agent, Pool, Table
from ssorl.training.scan import learner_shapes, train_chunk_of_run

USABLE = 0.9  # share of the free memory that training may use; evaluation needs the rest


class Sizes(NamedTuple):
    """Bytes of device memory that training needs."""

    table: int  # the data that all runs share
    labels: int  # a run's action table
    steps: int  # a run's pool of steps
    learnt: int  # a run's weights, targets, optimiser moments and averaged policy
    work: int  # peak of one update of one run, without fusion; on a GPU XLA needed 0.4 to 0.8 of it

    @property
    def run(self) -> int:
        """Bytes of each further run; `learnt` counts twice, because a callback may hold a copy."""
        return self.labels + self.steps + 2 * self.learnt + self.work


def sizes(agent: Agent, n_steps: int, n_episodes: int, n_obs: int, n_act: int, n_pool: int | None = None) -> Sizes:
    """Return the memory that training on one dataset needs, computed from shapes only.

    Args:
        agent: the agent.
        n_steps: steps of the dataset.
        n_episodes: its trajectories.
        n_obs: size of an observation O.
        n_act: size of an action A.
        n_pool: steps that a run trains on; None: all.
    """
    table = _table(n_steps, n_steps + n_episodes, n_obs)
    pool = Pool(_array(n_steps, n_act), _array(n_pool or n_steps, dtype=jnp.int32), _array(dtype=jnp.int32))
    learnt = jax.tree.map(lambda x: _array(*x.shape[1:], dtype=x.dtype), learner_shapes(agent, n_obs, n_act, 1))
    key = jax.eval_shape(lambda: jax.random.key(0))

    def train_period(*args: Any) -> Any:
        return train_chunk_of_run(agent, agent.period, *args)

    work = _peak(jax.make_jaxpr(train_period)(table, _array(dtype=jnp.int32), _array(), pool, key, learnt).jaxpr)
    return Sizes(_bytes(table), _bytes(pool.act), _bytes(pool.steps), _bytes(learnt), work)


def table_bytes(n_steps: int, n_rows: int, n_obs: int) -> int:
    """Return the bytes of a table.

    Args:
        n_steps: steps of the table.
        n_rows: rows of its observations.
        n_obs: size of an observation O.
    """
    return _bytes(_table(n_steps, n_rows, n_obs))


def max_runs(need: Sizes, n_runs: int, own: int = 0) -> int:
    """Return how many of `n_runs` runs fit into the memory of this machine's devices at once, at least 1.

    Args:
        need: memory that training needs.
        n_runs: number of runs.
        own: bytes that each run adds to the table, of which every device has a copy.
    """
    devices = jax.local_devices()[:n_runs]
    free = [free_bytes(device) for device in devices]
    if any(n is None for n in free):
        return n_runs  # a CPU does not report its memory
    least = min(n for n in free if n is not None)
    per_run = need.run + len(devices) * own
    return max(1, min(n_runs, len(devices) * (int(USABLE * least - need.table) // per_run)))


def free_bytes(device: Any) -> int | None:
    """Return the free memory of a device in bytes; None if it does not report it."""
    stats = device.memory_stats()
    return stats["bytes_limit"] - stats["bytes_in_use"] if stats and "bytes_limit" in stats else None


def _array(*shape: int, dtype: Any = jnp.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def _table(n_steps: int, n_rows: int, n_obs: int) -> Table:
    column, count = _array(n_steps), _array(n_steps, dtype=jnp.int32)
    return Table(_array(n_rows, n_obs), count, column, column, column, count, count)


def _bytes(tree: Any) -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _peak(jaxpr: Any) -> int:
    """Return the peak memory of a program besides its arguments, in bytes, if no operations are fused.

    Compiling the program would give the exact value, but takes up to a minute per agent; this takes a second and
    overestimates.
    """
    last = {v: number for number, eqn in enumerate(jaxpr.eqns) for v in eqn.invars if not isinstance(v, Literal)}
    last |= {v: len(jaxpr.eqns) for v in jaxpr.outvars if not isinstance(v, Literal)}
    live: dict[Any, int] = {}
    peak = 0
    for number, eqn in enumerate(jaxpr.eqns):
        inside = max((_peak(getattr(p, "jaxpr", p)) for p in _programs(eqn.params)), default=0)
        live |= {v: math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in eqn.outvars}
        peak = max(peak, sum(live.values()) + inside)
        live = {v: size for v, size in live.items() if last.get(v, -1) > number}
    return peak


def _programs(params: dict[str, Any]) -> list[Any]:
    """Return the programs among an operation's parameters: bodies of loops, branches and calls."""
    values = [x for value in params.values() for x in (value if isinstance(value, (tuple, list)) else [value])]
    return [x for x in values if hasattr(x, "eqns") or hasattr(getattr(x, "jaxpr", None), "eqns")]
