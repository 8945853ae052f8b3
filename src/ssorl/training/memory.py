"""How much of a device's memory runs need, and so how many train together."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from ssorl.agents.base import Agent, Pool, Table
from ssorl.training.scan import shapes, updates

SPARE = 0.9  # share of the free memory to plan with; the rest is for what evaluation puts there


class Sizes(NamedTuple):
    """Bytes on a device."""

    table: int  # what all runs share
    labels: int  # a run's action table
    steps: int  # a run's pool of steps
    learnt: int  # a run's weights, targets, optimiser moments and averaged policy
    work: int  # what an update of one run holds at its peak; on a GPU XLA was seen to need 0.4 to 0.8 of it

    @property
    def run(self) -> int:
        """One more run; what it learnt counts twice, since a look may have a copy."""
        return self.labels + self.steps + 2 * self.learnt + self.work


def sizes(agent: Agent, n_steps: int, n_episodes: int, n_obs: int, n_act: int, n_pool: int | None = None) -> Sizes:
    """What training on one dataset needs, from shapes alone; `n_pool` steps to learn from, all if None."""
    table = _table(n_steps, n_steps + n_episodes, n_obs)
    pool = Pool(_array(n_steps, n_act), _array(n_pool or n_steps, dtype=jnp.int32), _array(dtype=jnp.int32))
    learnt = jax.tree.map(lambda x: _array(*x.shape[1:], dtype=x.dtype), shapes(agent, n_obs, n_act, 1))
    key = jax.eval_shape(lambda: jax.random.key(0))

    def turn(*args: Any) -> Any:
        return updates(agent, agent.period, *args)

    work = _peak(jax.make_jaxpr(turn)(table, _array(dtype=jnp.int32), _array(), pool, key, learnt).jaxpr)
    return Sizes(_bytes(table), _bytes(pool.act), _bytes(pool.steps), _bytes(learnt), work)


def table_bytes(n_steps: int, n_rows: int, n_obs: int) -> int:
    """What a table needs."""
    return _bytes(_table(n_steps, n_rows, n_obs))


def fitting(need: Sizes, n_runs: int, own: int = 0) -> int:
    """How many of the runs the devices of this machine hold at once, at least one.

    `own` is what each run adds to the table, which is whole on every device.
    """
    devices = jax.local_devices()[:n_runs]
    room = [free_bytes(device) for device in devices]
    if any(free is None for free in room):
        return n_runs  # a CPU does not say
    least = min(free for free in room if free is not None)
    each = need.run + len(devices) * own
    return max(1, min(n_runs, len(devices) * (int(SPARE * least - need.table) // each)))


def free_bytes(device: Any) -> int | None:
    """What a device has left; None where it does not say."""
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
    """The most that a program holds at once besides its arguments, if nothing is fused.

    Compiling would tell what fusion saves, but takes up to a minute an agent; this takes a second and errs upwards.
    """
    last = {v: number for number, eqn in enumerate(jaxpr.eqns) for v in eqn.invars if not isinstance(v, Literal)}
    last |= {v: len(jaxpr.eqns) for v in jaxpr.outvars if not isinstance(v, Literal)}
    held: dict[Any, int] = {}
    most = 0
    for number, eqn in enumerate(jaxpr.eqns):
        inside = max((_peak(getattr(p, "jaxpr", p)) for p in _programs(eqn.params)), default=0)
        held |= {v: math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in eqn.outvars}
        most = max(most, sum(held.values()) + inside)
        held = {v: size for v, size in held.items() if last.get(v, -1) > number}
    return most


def _programs(params: dict[str, Any]) -> list[Any]:
    """The programs among an operation's parameters: bodies of loops, branches, calls."""
    values = [x for value in params.values() for x in (value if isinstance(value, (tuple, list)) else [value])]
    return [x for x in values if hasattr(x, "eqns") or hasattr(getattr(x, "jaxpr", None), "eqns")]
