"""PointMaze, many at a time: a ball pushed through D4RL's mazes towards a fixed goal.

The ball is Gymnasium-Robotics' (only its model file is read). The walls, coordinates, starts and rewards are those of
D4RL's maze2d, so that D4RL's data and reference scores fit as they are:

- x counts rows, y counts columns. D4RL puts starts and goals at whole numbers but the middle of a cell 0.2 lower, so
  cell (i, j) reaches from i - 0.7 to i + 0.3 and the goal is 0.2 off its middle, both ways.
- Gymnasium-Robotics shows the same maze a quarter turn round and with the origin in the middle of the map; apart from
  that the two are equal step by step (see tests/unit/envs/test_maze.py).
- Speeds are clipped to ±5 before a step, so that an observed one may be slightly higher.
- Episodes start in any free cell, the goal's too, ±0.1 from its whole number, with a speed of 0.1 N(0, 1).
- The reward is exp(-distance to the goal) after the action. Nothing but the horizon ends an episode.
"""

# MuJoCo is a compiled module without stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ssorl.envs.base import Floats, Step
from ssorl.envs.locomotion import n_cpus, package_folder

if TYPE_CHECKING:
    import mujoco

MIDDLE = -0.2  # where the middle of cell 0 is, on both axes
MAX_SPEED = 5.0  # along each axis
NOISE = 0.1  # half width of the starting place and standard deviation of the starting speed


@dataclass(frozen=True)
class Layout:
    """One maze: its map, row by row (# wall, O free, G goal), and its horizon."""

    rows: tuple[str, ...]
    horizon: int

    @cached_property
    def walls(self) -> NDArray[np.bool_]:
        """Which cells are walls, [rows, columns]."""
        return np.array([list(row) for row in self.rows]) == "#"

    @cached_property
    def cells(self) -> NDArray[np.int64]:
        """Row and column of each free cell, [C, 2]."""
        return np.argwhere(~self.walls)

    @cached_property
    def goal(self) -> NDArray[np.int64]:
        """Row and column of the goal, which is also its place."""
        return np.argwhere(np.array([list(row) for row in self.rows]) == "G")[0]

    @cached_property
    def number(self) -> NDArray[np.int64]:
        """The number in `cells` of each cell of the map, -1 for walls, [rows, columns]."""
        number = np.full(self.walls.shape, -1)
        number[tuple(self.cells.T)] = np.arange(len(self.cells))
        return number

    def cell_at(self, place: Floats) -> NDArray[np.int64]:
        """The number of the free cell that holds each place [..., 2]; -1 inside a wall."""
        row, column = np.moveaxis(np.floor(place - MIDDLE + 0.5).astype(np.int64), -1, 0)
        return self.number[row, column]

    def reward(self, place: Floats) -> Floats:
        """exp(-distance to the goal) of each place [..., 2]."""
        away = place - self.goal
        return np.exp(-np.sqrt(np.square(away).sum(axis=-1)))


LAYOUTS: dict[str, Layout] = {
    "maze2d-open-dense": Layout(("#######", "#OOOOO#", "#OOGOO#", "#OOOOO#", "#######"), 150),
    "maze2d-umaze-dense": Layout(("#####", "#GOO#", "###O#", "#OOO#", "#####"), 300),
    "maze2d-medium-dense": Layout(
        ("########", "#OO##OO#", "#OO#OOO#", "##OOO###", "#OO#OOO#", "#O#OO#O#", "#OOO#OG#", "########"), 600
    ),
    "maze2d-large-dense": Layout(
        (
            "############",
            "#OOOO#OOOOO#",
            "#O##O#O#O#O#",
            "#OOOOOO#OOO#",
            "#O####O###O#",
            "#OO#O#OOOOO#",
            "##O#O#O#O###",
            "#OO#OOO#OGO#",
            "############",
        ),
        800,
    ),
}


def model_of(layout: Layout) -> mujoco.MjModel:
    """Gymnasium-Robotics' ball among D4RL's walls."""
    # Gymnasium-Robotics is not imported: its import is slow and prints a notice about other environments.
    root = ET.parse(package_folder("gymnasium_robotics") / "envs" / "assets" / "point" / "point.xml").getroot()
    world = root.find("worldbody")
    assert world is not None
    for row, column in np.argwhere(layout.walls):
        place = f"{row + MIDDLE} {column + MIDDLE} 0"
        # The ball slides at height 0: walls reach above and below it.
        ET.SubElement(world, "geom", type="box", pos=place, size="0.5 0.5 0.2", contype="1", conaffinity="1")
    import mujoco

    return mujoco.MjModel.from_xml_string(ET.tostring(root, encoding="unicode"))


class Maze:
    """A batch of one maze; results do not depend on the number of threads."""

    cut = np.zeros(1, bool)  # never

    def __init__(self, name: str, layout: Layout, n_envs: int, threads: int | None = None):
        model = model_of(layout)
        from mujoco.batch import Batch

        self.name, self.layout, self.n_envs, self.horizon = name, layout, n_envs, layout.horizon
        self.n_obs, self.n_act = model.nq + model.nv, model.nu
        self.act_low, self.act_high = model.actuator_ctrlrange.T.copy()
        # A Batch row carries the solver's warm start too, so `save` and `load` lose nothing.
        self._batch = Batch(model, n_envs, nthread=min(threads or n_cpus(), n_envs))
        self._qpos, self._qvel = self._batch.bind("qpos"), self._batch.bind("qvel")
        self._ctrl = self._batch.bind("ctrl")

    def reset(self, rng: np.random.Generator, mask: NDArray[np.bool_] | None = None) -> Floats:
        """New episodes where `mask`; draws only for those, in row order."""
        n = self.n_envs if mask is None else int(np.count_nonzero(mask))
        cells = self.layout.cells[rng.integers(len(self.layout.cells), size=n)]
        return self.set_state(cells + rng.uniform(-NOISE, NOISE, (n, 2)), NOISE * rng.standard_normal((n, 2)), mask)

    def set_state(self, place: Floats, speed: Floats, mask: NDArray[np.bool_] | None = None) -> Floats:
        """Start episodes from given places and speeds, one row for each environment in `mask`."""
        ids = np.arange(self.n_envs) if mask is None else np.flatnonzero(mask)
        if ids.size:
            import mujoco

            self._batch.reset(ids, stage=mujoco.mjtStage.mjSTAGE_NONE.value)
            self._qpos[ids], self._qvel[ids] = place, speed
        return self._obs()

    def step(self, act: Floats) -> Step:
        """Push with `act[N, 2]`, bounded to ±1 by the motors, for one simulator step."""
        np.clip(self._qvel, -MAX_SPEED, MAX_SPEED, out=self._qvel)
        self._ctrl[:] = act
        self._batch.step()
        return Step(self._obs(), self.layout.reward(self._qpos), np.zeros(self.n_envs, bool))

    def save(self) -> Floats:
        """All of the simulator's state, warm starts included."""
        return self._batch.state.copy()

    def load(self, state: Floats) -> Floats:
        """Continue from what `save` gave."""
        self._batch.state[:] = state
        return self._obs()

    def _obs(self) -> Floats:
        return np.concatenate([self._qpos, self._qvel], axis=1)


def layout_of(name: str) -> Layout:
    """The maze of this name."""
    if name not in LAYOUTS:
        raise KeyError(f"no maze {name!r}; known: {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def maze(name: str, n_envs: int, threads: int | None = None) -> Maze:
    """`n_envs` copies of one of `LAYOUTS`; `threads` (default: all cores) never changes a result."""
    return Maze(name, layout_of(name), n_envs, threads)
