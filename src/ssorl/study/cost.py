"""What a study will take, before it starts: cells, updates, time on this machine and on one large GPU.

Rough: rates were measured at the published sizes and, on a GPU, at a smaller one, between which they are interpolated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssorl.study.cell import Cell, Pairs
from ssorl.study.grid import Study
from ssorl.study.scheduler import shape
from ssorl.study.store import finished

N_OBS, N_ACT = 17, 6  # walker2d's; other robots differ by a few per cent
HORIZON = 1000  # steps of an episode, at most


@dataclass(frozen=True)
class Device:
    """What was measured on a kind of machine. Flops are of multiplications and additions that an update asks for."""

    words: str
    flops: dict[str, dict[float, float]]  # of an update -> reached a second; by agent, and by `idm`
    updates: float  # a second at most, whatever their size
    plays: float  # environment steps a second, acting included
    starts: float  # seconds until a new shape is compiled


DEVICES: dict[str, Device] = {
    "gpu": Device(
        "one H200",
        # As published (docs/agents.md, docs/idm.md): 26,479 updates/s in thirty runs, 885 in five, 300 in one; 15,100
        # of thirty models. Smaller: 143,117 at batch 256 in 45 runs; at `lite` in 27,
        # 10,288 of CQL and 7,413 of DT, each timed once and not kept.
        {
            "td3bc": {4.2e8: 6.0e13, 8.35e9: 2.21e14},
            "cql": {1.24e10: 1.28e14, 2.74e11: 2.42e14},
            "dt": {1.20e10: 8.9e13, 1.006e12: 3.02e14},
            "dt-joint": {1.50e10: 8.9e13, 1.188e12: 3.02e14},
            "idm": {1.36e10: 2.05e14},
        },
        updates=143_000,  # TD3+BC at batch 256 in 45 runs
        plays=60_000,
        starts=20,
    ),
    "cpu": Device(
        "two CPU cores",
        # The presets `quick`: 380 updates/s of 0.42 GFLOP; 167 of 0.69; 42 of 0.90
        {
            "td3bc": {4.2e8: 1.6e11},
            "cql": {6.9e8: 1.15e11},
            "dt": {9.0e8: 3.8e10},
            "dt-joint": {9.0e8: 3.8e10},
            "idm": {1.36e10: 1.5e11},
        },
        updates=2_000,
        plays=10_000,
        starts=15,
    ),
}


class Cost(NamedTuple):
    """Of a study's cells at a scale."""

    cells: int
    done: int
    shared: int  # of the others, those that another study of the paper has too
    shapes: int  # programs to be compiled
    models: int  # inverse dynamics models to be fitted
    updates: int  # of agents
    seconds: dict[str, float]  # left to do, by kind of device


def cost(study: Study, scale: str, store: Path, cells: Sequence[Cell], others: Sequence[Study] = ()) -> Cost:
    """Count what is left and estimate how long it takes."""
    left = [cell for cell in cells if not finished(store, cell)]
    foreign = {cell for other in others if other.name != study.name for cell in other.cells(scale)}
    models = {cell.idm_hash: cell for cell in left if cell.idm_hash and not _fitted(store, cell)}
    return Cost(
        cells=len(cells),
        done=len(cells) - len(left),
        shared=sum(cell in foreign for cell in left),
        shapes=len(programs(left)),
        models=len(models),
        updates=sum(updates(cell) for cell in left),
        seconds={kind: seconds(left, list(models.values()), device) for kind, device in DEVICES.items()},
    )


def seconds(cells: Sequence[Cell], models: Sequence[Cell], device: Device) -> float:
    """How long some cells and models take together on a device."""
    from ssorl.pipeline.scoring import CURVE_EPISODES

    total = device.starts * len(programs(cells))
    for cell in cells:
        if cell.agent is not None:
            total += updates(cell) / rate(device, cell.agent, work(cell.agent, cell.settings))
            episodes = 2 * cell.episodes + CURVE_EPISODES * cell.looks  # last and averaged weights, and the curve
            total += episodes * HORIZON / device.plays
    for cell in models:
        n, each = fits(cell)
        total += n / rate(device, "idm", each)
    return total


def rate(device: Device, what: str, each: float) -> float:
    """Updates a second, of `each` operations; an agent that was not measured counts as CQL."""
    found = device.flops.get(what, device.flops["cql"])
    reached = np.interp(np.log(each), np.log(list(found)), list(found.values()))
    return min(float(reached) / each, device.updates)


def programs(cells: Sequence[Cell]) -> set[tuple]:
    """What is compiled apart: cells of another shape, whatever trajectories their splits leave."""
    return {shape(cell) for cell in cells if cell.kind != "data"}


def updates(cell: Cell) -> int:
    """Of its agent."""
    from ssorl.study.reference import agent_of

    return 0 if cell.agent is None else agent_of(cell.agent, dict(cell.settings)).updates


class Fits(NamedTuple):
    """Updates of all networks of a model in all rounds, and floating-point operations of each."""

    updates: int
    flops: float


def fits(cell: Cell) -> Fits:
    """What its inverse dynamics model takes."""
    return _fits(cell.idm or (), cell.rounds)


@cache
def _fits(settings: Pairs, rounds: int) -> Fits:
    from ssorl.study.reference import idm_of

    spec = idm_of(dict(settings))
    return Fits(spec.work * (rounds + 1), spec.flops(N_OBS, N_ACT))


def work(agent: str, settings: Pairs) -> float:
    """Floating-point operations of one update, counted in its program; nothing is compiled or computed."""
    from ssorl.study.reference import agent_of

    usual = agent_of(agent, {})
    # How large a weight or a rate is changes no program, but whether it is zero may.
    same = [k for k, v in settings if isinstance(v, float) and v and getattr(usual, k)]
    return _work(agent, tuple((k, v) for k, v in settings if k not in same))


@cache
def _work(agent: str, settings: Pairs) -> float:
    import jax
    import jax.numpy as jnp

    from ssorl.agents.base import Pool, Table
    from ssorl.study.reference import agent_of

    def array(*shape: int, dtype: Any = jnp.float32) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    learner = agent_of(agent, dict(settings))
    column, count = array(64), array(64, dtype=jnp.int32)
    table = Table(array(65, N_OBS), count, column, column, column, count, count)
    pool = Pool(array(64, N_ACT), count, array(dtype=jnp.int32))
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(lambda key: learner.init(key, N_OBS, N_ACT), key)

    def turn(table: Table, pool: Pool, key: Any, state: Any) -> Any:
        for phase in range(learner.period):
            state, _ = learner.update(state, learner.view.draw(table, pool, key), key, phase)
        return state

    told: Any = jax.jit(turn).lower(table, pool, key, state).cost_analysis()
    return float(told["flops"]) / learner.period


def _fitted(store: Path, cell: Cell) -> bool:
    return (store / "idms" / str(cell.idm_hash) / "report.json").is_file()
