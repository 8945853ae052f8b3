"""Estimate the cost of a study before it starts: cells, updates, and time on two CPU cores and on one large GPU.

Estimates are rough. Rates were measured at the published sizes and, on a GPU, at a smaller size too; rates of other
sizes are interpolated.
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

N_OBS, N_ACT = 17, 6  # sizes in walker2d; for other robots the work differs by a few per cent
HORIZON = 1000  # longest episode in steps


@dataclass(frozen=True)
class Device:
    """Rates measured on a kind of machine. Flops count the multiplications and additions of the program."""

    words: str  # description for users
    flops: dict[str, dict[float, float]]  # flops of an update -> flops per second, by agent and for "idm"
    updates: float  # highest number of updates per second, for small updates
    plays: float  # environment steps per second, including the policy
    starts: float  # seconds to compile a program


DEVICES: dict[str, Device] = {
    "gpu": Device(
        "one H200",
        # Published sizes (docs/agents.md, docs/idm.md): 26,479 updates/s of TD3+BC in 30 runs, 885 of CQL in 5, 300 of
        # DT in 1, 15,100 of 30 IDMs. Smaller sizes: 143,117 of TD3+BC at batch 256 in 45 runs; at scale lite in 27
        # runs, 10,288 of CQL and 7,413 of DT, each timed once.
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
        # The presets `quick`: 380 updates/s of 0.42 GFLOP (TD3+BC), 167 of 0.69 (CQL), 42 of 0.90 (DT)
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
    """The cost of a study at a scale."""

    cells: int
    done: int  # finished cells
    shared: int  # unfinished cells that other studies need too
    shapes: int  # programs to compile
    models: int  # inverse dynamics models to fit
    updates: int  # remaining updates of agents
    seconds: dict[str, float]  # remaining time by kind of device


def cost(study: Study, scale: str, store: Path, cells: Sequence[Cell], others: Sequence[Study] = ()) -> Cost:
    """Return the remaining work of a study and an estimate of its time.

    Args:
        study: the study.
        scale: name of the scale.
        store: the store's folder.
        cells: the study's cells, or a part of them.
        others: further studies, for the number of shared cells.
    """
    left = [cell for cell in cells if not finished(store, cell)]
    elsewhere = {cell for other in others if other.name != study.name for cell in other.cells(scale)}
    models = {cell.idm_hash: cell for cell in left if cell.idm_hash and not _fitted(store, cell)}
    return Cost(
        cells=len(cells),
        done=len(cells) - len(left),
        shared=sum(cell in elsewhere for cell in left),
        shapes=len(programs(left)),
        models=len(models),
        updates=sum(updates(cell) for cell in left),
        seconds={kind: seconds(left, list(models.values()), device) for kind, device in DEVICES.items()},
    )


def seconds(cells: Sequence[Cell], models: Sequence[Cell], device: Device) -> float:
    """Return the estimated seconds that cells and models take together on a device.

    Args:
        cells: cells to compute.
        models: one cell for each IDM to fit.
        device: the device.
    """
    from ssorl.pipeline.scoring import CURVE_EPISODES

    total = device.starts * len(programs(cells))
    for cell in cells:
        if cell.agent is not None:
            total += updates(cell) / rate(device, cell.agent, work(cell.agent, cell.settings))
            episodes = 2 * cell.episodes + CURVE_EPISODES * cell.looks  # last weights, averaged weights, curve
            total += episodes * HORIZON / device.plays
    for cell in models:
        n, flops = fits(cell)
        total += n / rate(device, "idm", flops)
    return total


def rate(device: Device, name: str, flops: float) -> float:
    """Return the updates per second of an agent or IDM.

    Args:
        device: the device.
        name: name of the agent, or "idm"; agents without measurements have the rates of CQL.
        flops: operations of an update.
    """
    measured = device.flops.get(name, device.flops["cql"])
    flops_per_second = np.interp(np.log(flops), np.log(list(measured)), list(measured.values()))
    return min(float(flops_per_second) / flops, device.updates)


def programs(cells: Sequence[Cell]) -> set[tuple]:
    """Return the shapes of cells; each is one program to compile, whatever trajectories the splits leave."""
    return {shape(cell) for cell in cells if cell.kind != "data"}


def updates(cell: Cell) -> int:
    """Return the number of updates of a cell's agent; 0 if the cell trains none."""
    from ssorl.study.reference import agent_of

    return 0 if cell.agent is None else agent_of(cell.agent, dict(cell.settings)).updates


class Fits(NamedTuple):
    """The work of fitting an inverse dynamics model."""

    updates: int  # updates of all networks in all rounds
    flops: float  # floating-point operations of one update


def fits(cell: Cell) -> Fits:
    """Return the work of fitting a cell's inverse dynamics model."""
    return _fits(cell.idm or (), cell.rounds)


@cache
def _fits(settings: Pairs, rounds: int) -> Fits:
    from ssorl.study.reference import idm_of

    spec = idm_of(dict(settings))
    return Fits(spec.work * (rounds + 1), spec.flops(N_OBS, N_ACT))


def work(agent: str, settings: Pairs) -> float:
    """Return the floating-point operations of one update, counted in the program without compiling or running it.

    Args:
        agent: name of the agent.
        settings: its settings that differ from the defaults of version 0.1.
    """
    from ssorl.study.reference import agent_of

    default = agent_of(agent, {})
    # The value of a loss weight or a learning rate does not change the program, unless it is zero.
    same_program = [k for k, v in settings if isinstance(v, float) and v and getattr(default, k)]
    return _work(agent, tuple((k, v) for k, v in settings if k not in same_program))


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

    def one_period(table: Table, pool: Pool, key: Any, state: Any) -> Any:
        for phase in range(learner.period):
            state, _ = learner.update(state, learner.view.draw(table, pool, key), key, phase)
        return state

    analysis: Any = jax.jit(one_period).lower(table, pool, key, state).cost_analysis()
    return float(analysis["flops"]) / learner.period


def _fitted(store: Path, cell: Cell) -> bool:
    return (store / "idms" / str(cell.idm_hash) / "report.json").is_file()
