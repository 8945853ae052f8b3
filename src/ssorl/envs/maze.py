"""Batches of PointMaze: a ball is pushed through D4RL's mazes to a fixed goal.

The model of the ball comes from Gymnasium-Robotics (only its model file is read). Walls, coordinates, initial states
and rewards are those of D4RL's maze2d, so that D4RL's data and reference scores apply unchanged:

- x counts rows, y counts columns. D4RL places starts and goals at whole numbers, but the centre of a cell 0.2 lower, so
  cell (i, j) reaches from i - 0.7 to i + 0.3, and the goal is 0.2 off the centre of its cell on both axes.
- Gymnasium-Robotics has the same maze rotated by 90° and with the origin in the centre of the map; otherwise the two
  are equal step by step (see tests/unit/envs/test_maze.py).
- Speeds are clipped to ±5 before a step, so an observed speed may be slightly higher.
- Episodes start in any free cell, including the goal's, within ±0.1 of its whole numbers, with a speed of 0.1 N(0, 1).
- The reward is exp(-distance to the goal) after the action. Only the horizon ends an episode.
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

MIDDLE = -0.2  # coordinate of the centre of cell 0, on both axes
MAX_SPEED = 5.0  # along each axis
NOISE = 0.1  # half width of the initial position's range, and standard deviation of the initial speed


@dataclass(frozen=True)
class Layout:
    """A maze: the rows of its map (# wall, O free, G goal) and its horizon."""

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
        """Row and column of the goal; these are also its coordinates."""
        return np.argwhere(np.array([list(row) for row in self.rows]) == "G")[0]

    @cached_property
    def number(self) -> NDArray[np.int64]:
        """Index in `cells` of each cell of the map, -1 for walls, [rows, columns]."""
        number = np.full(self.walls.shape, -1)
        number[tuple(self.cells.T)] = np.arange(len(self.cells))
        return number

    def cell_at(self, place: Floats) -> NDArray[np.int64]:
        """Return the index of the free cell at each position [..., 2]; -1 inside a wall."""
        row, column = np.moveaxis(np.floor(place - MIDDLE + 0.5).astype(np.int64), -1, 0)
        return self.number[row, column]

    def reward(self, place: Floats) -> Floats:
        """Return exp(-distance to the goal) for each position [..., 2]."""
        offset = place - self.goal
        return np.exp(-np.sqrt(np.square(offset).sum(axis=-1)))


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
    """Build the MuJoCo model of a maze: the ball of Gymnasium-Robotics and D4RL's walls."""
    # Gymnasium-Robotics is not imported, because its import is slow and prints a notice about other environments.
    root = ET.parse(package_folder("gymnasium_robotics") / "envs" / "assets" / "point" / "point.xml").getroot()
    world = root.find("worldbody")
    assert world is not None
    for row, column in np.argwhere(layout.walls):
        place = f"{row + MIDDLE} {column + MIDDLE} 0"
        # The ball slides at height 0, so walls reach above and below 0.
        ET.SubElement(world, "geom", type="box", pos=place, size="0.5 0.5 0.2", contype="1", conaffinity="1")
    import mujoco

    return mujoco.MjModel.from_xml_string(ET.tostring(root, encoding="unicode"))


class Maze:
    """A batch of one maze; results do not depend on the number of threads."""

    cut = np.zeros(1, bool)  # mazes never truncate

    def __init__(self, name: str, layout: Layout, n_envs: int, threads: int | None = None):
        model = model_of(layout)
        from mujoco.batch import Batch

        self.name, self.layout, self.n_envs, self.horizon = name, layout, n_envs, layout.horizon
        self.n_obs, self.n_act = model.nq + model.nv, model.nu
        self.act_low, self.act_high = model.actuator_ctrlrange.T.copy()
        # A Batch row includes the solver's warm start, so `save` and `load` are exact.
        self._batch = Batch(model, n_envs, nthread=min(threads or n_cpus(), n_envs))
        self._qpos, self._qvel = self._batch.bind("qpos"), self._batch.bind("qvel")
        self._ctrl = self._batch.bind("ctrl")

    def reset(self, rng: np.random.Generator, mask: NDArray[np.bool_] | None = None) -> Floats:
        """Start new episodes where `mask` is True; only these consume random numbers, in row order."""
        n = self.n_envs if mask is None else int(np.count_nonzero(mask))
        cells = self.layout.cells[rng.integers(len(self.layout.cells), size=n)]
        return self.set_state(cells + rng.uniform(-NOISE, NOISE, (n, 2)), NOISE * rng.standard_normal((n, 2)), mask)

    def set_state(self, place: Floats, speed: Floats, mask: NDArray[np.bool_] | None = None) -> Floats:
        """Start episodes from given positions and speeds.

        Args:
            place: positions [M, 2], one row for each environment in `mask`.
            speed: speeds [M, 2].
            mask: environments [N] to set; all by default.

        Returns:
            The observations of all environments [N, 4].
        """
        ids = np.arange(self.n_envs) if mask is None else np.flatnonzero(mask)
        if ids.size:
            import mujoco

            self._batch.reset(ids, stage=mujoco.mjtStage.mjSTAGE_NONE.value)
            self._qpos[ids], self._qvel[ids] = place, speed
        return self._obs()

    def step(self, act: Floats) -> Step:
        """Apply forces `act[N, 2]` for one simulator step; the motors clip them to ±1."""
        np.clip(self._qvel, -MAX_SPEED, MAX_SPEED, out=self._qvel)
        self._ctrl[:] = act
        self._batch.step()
        return Step(self._obs(), self.layout.reward(self._qpos), np.zeros(self.n_envs, bool))

    def save(self) -> Floats:
        """Return the state of the simulator, including the solver's warm start."""
        return self._batch.state.copy()

    def load(self, state: Floats) -> Floats:
        """Restore a state that `save` returned, and return the observations."""
        self._batch.state[:] = state
        return self._obs()

    def _obs(self) -> Floats:
        return np.concatenate([self._qpos, self._qvel], axis=1)


def layout_of(name: str) -> Layout:
    """Return the maze of this name.

    Raises:
        KeyError: there is no such maze.
    """
    if name not in LAYOUTS:
        raise KeyError(f"no maze {name!r}; known: {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def maze(name: str, n_envs: int, threads: int | None = None) -> Maze:
    """Create a batch of mazes.

    Args:
        name: one of `LAYOUTS`.
        n_envs: number of copies N.
        threads: threads of the simulator, all cores by default; they never change a result.
    """
    return Maze(name, layout_of(name), n_envs, threads)
