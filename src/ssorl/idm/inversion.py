"""Invert single steps of a known simulator: find the action that makes it reproduce the next observation.

Each step is a small least-squares problem. Its unknowns are the action and the velocities that the observation clips or
lacks. Its residuals are the differences between the simulated and the recorded next observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssorl.data.episodes import Episodes
from ssorl.envs.models import KnownModel, States, Transitions
from ssorl.idm import gauss_newton
from ssorl.idm.gauss_newton import Box, Floats, Solution

Ints = NDArray[np.int64]

TOLERANCE = 5e-5  # largest residual of a verified label: speeds in their unit, positions divided by the step's duration
MAX_STD = 0.01  # largest uncertainty of a verified label, as a share of half the range of the action
SOLVED = 0.5 * TOLERANCE  # residual at which the solver stops
ITERATIONS, RESTARTS = 15, 3
RESTART_NOISE = 0.5  # std of the noise on the actions of a restart, as a share of half the range
ACTION_STEP, SPEED_STEP = 1e-4, 1e-3  # steps of the finite differences: share of half the range, unit of velocity


class Found(NamedTuple):
    """Inverted actions of N steps."""

    act: Floats  # [N, A]
    std: Floats  # [N, A], uncertainty at a residual of TOLERANCE; infinite where the residual is larger
    residual: Floats  # [N]
    verified: NDArray[np.bool_]  # [N]: the residual is within TOLERANCE, and no other action near has such a residual


class StepInversion:
    """The inversion of the steps of some trajectories."""

    def __init__(self, eps: Episodes, known: KnownModel, transitions: Transitions) -> None:
        """Take the trajectories [E], whose observations have the size that the model needs."""
        self.eps, self.known, self.transitions = eps, known, transitions
        self.half = (known.ctrl_high - known.ctrl_low) / 2

    def invert(self, steps: Ints, start: Floats) -> Found:
        """Return the actions of steps [N].

        Args:
            steps: numbers of the steps.
            start: actions [N, A] from which the solver starts.
        """
        n_act = self.known.n_act
        now, after = self._states(steps)
        loose = np.flatnonzero(now.unknown.any(axis=0))  # velocities that are unknown at one of the steps or more
        measure = _Residual(self.transitions, now, after, loose)
        box = self._box(now, loose)
        first = np.concatenate([start, self._guess_speeds(steps, now, after)[:, loose]], axis=1)
        best = gauss_newton.solve(measure, first, box, SOLVED, ITERATIONS)
        rng = np.random.default_rng(0)
        for _ in range(RESTARTS):  # contacts make some problems hard from one start and easy from another
            failed = np.flatnonzero(_largest(best.residual) > TOLERANCE)
            if not failed.size:
                break
            again = first[failed]
            again[:, :n_act] += RESTART_NOISE * self.half * rng.standard_normal((len(failed), n_act))
            other = gauss_newton.solve(measure.take(failed), again, box[failed], SOLVED, ITERATIONS)
            best.improve(failed, other)
        residual = _largest(best.residual)
        std = self._std(best, box, measure, np.flatnonzero(residual <= TOLERANCE))
        verified = (residual <= TOLERANCE) & (std <= MAX_STD * self.half).all(axis=1)
        return Found(best.x[:, :n_act], std, residual, verified)

    def residual(self, steps: Ints, act: Floats) -> Floats:
        """Return the largest residual of given actions, [N]; NaN where a velocity is unknown.

        Args:
            steps: numbers of the steps [N].
            act: the actions [N, A].
        """
        now, after = self._states(steps)
        measure = _Residual(self.transitions, now, after, np.zeros(0, np.int64))
        largest = _largest(measure(np.arange(len(steps)), act)) if len(steps) else np.zeros(0)
        return np.where(now.unknown.any(axis=1), np.nan, largest)

    def _states(self, steps: Ints) -> tuple[States, States]:
        row = self.eps.obs_row[steps]
        return self.known.states(self.eps.obs[row]), self.known.states(self.eps.obs[row + 1])

    def _box(self, now: States, loose: Ints) -> Box:
        """Return the bounds of actions and of the velocities `loose`; those that are known are fixed."""
        known, n = self.known, len(now.qpos)
        unknown, fixed = now.unknown[:, loose], now.qvel[:, loose]
        low, high = (np.where(unknown, bound[:, loose], fixed) for bound in (now.low, now.high))
        step = np.concatenate([ACTION_STEP * self.half, np.full(len(loose), SPEED_STEP)])
        return Box(
            np.concatenate([np.tile(known.ctrl_low, (n, 1)), low], axis=1),
            np.concatenate([np.tile(known.ctrl_high, (n, 1)), high], axis=1),
            np.maximum(step, 1e-12),
        )

    def _guess_speeds(self, steps: Ints, now: States, after: States) -> Floats:
        """Return velocities [N, nv] that agree with the positions before and after."""
        known, row = self.known, self.eps.obs_row[steps]
        first = np.isin(steps, self.eps.start[:-1])
        before = known.states(self.eps.obs[np.where(first, row, row - 1)])
        speed = known.speeds(now.qpos, after.qpos)
        middle = np.where(first[:, None], speed, (speed + known.speeds(before.qpos, now.qpos)) / 2)
        guess = np.where(after.unknown, middle, 2 * speed - after.qvel)
        return np.where(known.moves, guess, now.qvel)

    def _std(self, best: Solution, box: Box, measure: _Residual, good: Ints) -> Floats:
        """Return the uncertainty of the actions [N, A]; infinite except for the steps `good`."""
        n_act = self.known.n_act
        std = np.full((len(best.x), n_act), np.inf)
        std[good] = TOLERANCE * gauss_newton.spread(best.jacobian[good], box.open[good])[:, :n_act]
        # Broyden's Jacobian is good enough for clear cases only. A zero column was never computed.
        near = good[(std[good] > 0.1 * MAX_STD * self.half).any(axis=1)]
        jac = gauss_newton.differences(measure, near, best.x[near], best.residual[near], box[near])
        std[near] = TOLERANCE * gauss_newton.spread(jac, box.open[near])[:, :n_act]
        return std


@dataclass(frozen=True)
class _Residual:
    """The residuals of some steps, in units of velocity; unknowns are the action and the velocities `loose`."""

    transitions: Transitions
    now: States
    after: States
    loose: Ints
    ids: Ints | None = None  # the steps among those of `now`; all by default

    def take(self, ids: Ints) -> _Residual:
        return _Residual(self.transitions, self.now, self.after, self.loose, ids)

    def __call__(self, ids: Ints, x: Floats) -> Floats:
        known, ids = self.transitions.known, ids if self.ids is None else self.ids[ids]
        qvel = self.now.qvel[ids]
        qvel[:, self.loose] = x[:, known.n_act :]
        qpos, qvel = self.transitions(self.now.qpos[ids], qvel, x[:, : known.n_act])
        pos, vel = known.pos[1], known.vel[1]
        # Recorded numbers are rounded to float32: the rounding of one number alone stays within TOLERANCE.
        due = self.after.qpos[ids][:, pos]
        by_pos = (qpos[:, pos] - due) / (known.dt + _rounding(due) / TOLERANCE)
        due = self.after.qvel[ids][:, vel]
        by_vel = (known.clip(qvel)[:, vel] - due) / (1 + _rounding(due) / TOLERANCE)
        return np.concatenate([by_pos, by_vel], axis=1)


def _rounding(values: Floats) -> Floats:
    return np.spacing(np.abs(values).astype(np.float32)).astype(np.float64)


def _largest(residual: Floats) -> Floats:
    return np.abs(residual).max(axis=1)
