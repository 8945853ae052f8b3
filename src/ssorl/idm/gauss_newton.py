"""Solve many small nonlinear least-squares problems at once: Gauss-Newton with damping, bounds and cheap Jacobians.

SciPy solves one problem at a time and so cannot use a simulator that steps thousands of states together. Here each call
of the residual function evaluates all problems that are still open. A Jacobian is computed by finite differences once
and then kept up to date by Broyden's rule; it is computed again where a step gains too little.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
# Residuals [K, M] of problems `ids` [K] at the points [K, P]; NaN where there are none.
Residual = Callable[[NDArray[np.int64], Floats], Floats]

DAMPING = 1e-6  # initial damping, relative to the diagonal of JᵀJ
LEAST_DAMPING, MOST_DAMPING = 1e-9, 1e4
RAISE, LOWER = 20.0, 0.1  # factors of the damping after a rejected and an accepted step
ENOUGH = 0.04  # a step that leaves a larger share of the squared residual makes the next Jacobian a fresh one
LEAST_STEP = 1e-14  # squared length of a step below which a problem is stuck
NEVER = 1e9  # residual of a point without one


@dataclass
class Solution:
    """The best points of N problems with P unknowns and M residuals."""

    x: Floats  # [N, P]
    residual: Floats  # [N, M]
    jacobian: Floats  # [N, M, P], partly from Broyden's rule

    def improve(self, ids: NDArray[np.int64], other: Solution) -> None:
        """Take over the solutions of problems `ids` [K] that have smaller residuals in `other` [K]."""
        better = np.square(other.residual).sum(axis=1) < np.square(self.residual[ids]).sum(axis=1)
        chosen = ids[better]
        self.x[chosen], self.residual[chosen] = other.x[better], other.residual[better]
        self.jacobian[chosen] = other.jacobian[better]


@dataclass(frozen=True)
class Box:
    """Bounds of the unknowns; a coordinate whose bounds are equal is fixed."""

    low: Floats  # [N, P]
    high: Floats  # [N, P]
    step: Floats  # [P], step of the finite differences

    def __getitem__(self, ids: NDArray[np.int64]) -> Box:
        return Box(self.low[ids], self.high[ids], self.step)

    @property
    def open(self) -> NDArray[np.bool_]:
        """Return which coordinates can change, [N, P]."""
        return self.low < self.high


def solve(residual: Residual, start: Floats, box: Box, enough: float, iterations: int) -> Solution:
    """Return points with small residuals.

    Args:
        residual: the residual function; problems are numbered from 0.
        start: first points [N, P], which are moved into the box.
        box: the bounds.
        enough: a problem is solved once all its residuals are below this.
        iterations: most steps of a problem.
    """
    x = np.clip(start, box.low, box.high)
    r = _evaluate(residual, np.arange(len(x)), x)
    jac = np.zeros((*r.shape, x.shape[1]))
    cost = np.square(r).sum(axis=1)
    damping = np.full(len(x), DAMPING)
    stale, fresh = np.ones(len(x), bool), np.zeros(len(x), bool)
    solved, stuck = np.abs(r).max(axis=1) < enough, np.zeros(len(x), bool)
    for _ in range(iterations):
        now = np.flatnonzero(~solved & ~stuck)
        if not now.size:
            break
        renew = now[stale[now]]
        jac[renew] = differences(residual, renew, x[renew], r[renew], box[renew])
        fresh[renew], stale[renew] = True, False
        new = np.clip(x[now] + _step(jac[now], r[now], damping[now], x[now], box[now]), box.low[now], box.high[now])
        dx = new - x[now]
        r_new = _evaluate(residual, now, new)
        cost_new = np.square(r_new).sum(axis=1)
        better, length = cost_new < cost[now], np.square(dx).sum(axis=1)
        exists = cost_new < NEVER  # without this, an unstable simulation would ruin the Jacobian
        jac[now] = _broyden(jac[now], dx, length * exists, r_new - r[now], box.open[now])
        taken, refused = now[better], now[~better]
        stale[taken] = cost_new[better] > ENOUGH * cost[taken]
        x[taken], r[taken], cost[taken] = new[better], r_new[better], cost_new[better]
        damping[taken] = np.maximum(damping[taken] * LOWER, LEAST_DAMPING)
        # A step that failed on an updated Jacobian needs a fresh one; if it was fresh, a shorter step.
        hopeless = fresh[refused]
        damping[refused[hopeless]] *= RAISE
        stale[refused[~hopeless]] = True
        stuck[refused] = hopeless & ((damping[refused] > MOST_DAMPING) | (length[~better] < LEAST_STEP))
        fresh[taken] = False
        solved[taken] = np.abs(r[taken]).max(axis=1) < enough
    return Solution(x, r, jac)


def differences(residual: Residual, ids: NDArray[np.int64], x: Floats, r: Floats, box: Box) -> Floats:
    """Return the Jacobians [K, M, P] of problems `ids` by forward differences that stay inside the box.

    Args:
        residual: the residual function.
        ids: the problems [K].
        x: their points [K, P].
        r: their residuals [K, M].
        box: their bounds.
    """
    jac = np.zeros((*r.shape, x.shape[1]))
    row, column = np.nonzero(box.open)
    if not len(row):
        return jac
    moved, pair = x[row], np.arange(len(row))
    step = np.where(moved[pair, column] + box.step[column] > box.high[row, column], -1, 1) * box.step[column]
    moved[pair, column] += step
    change = _evaluate(residual, ids[row], moved) - r[row]
    jac[row, :, column] = change / step[:, None]
    return jac


def spread(jacobian: Floats, free: NDArray[np.bool_]) -> Floats:
    """Return how far each unknown can change [N, P] while no residual changes by more than about 1.

    Args:
        jacobian: [N, M, P].
        free: which coordinates can change [N, P].
    """
    jac = jacobian * free[:, None]
    normal = np.einsum("nmi,nmj->nij", jac, jac)
    size = np.einsum("nii->ni", normal)
    # A direction without effect gets a huge spread instead of a singular matrix.
    normal[:, np.arange(size.shape[1]), np.arange(size.shape[1])] += 1e-12 * (1 + size) + ~free
    inverse = np.linalg.inv(normal)
    return np.sqrt(np.maximum(np.einsum("nii->ni", inverse), 0)) * free


def _evaluate(residual: Residual, ids: NDArray[np.int64], x: Floats) -> Floats:
    return np.nan_to_num(residual(ids, x), nan=NEVER, posinf=NEVER, neginf=-NEVER)


def _step(jac: Floats, r: Floats, damping: Floats, x: Floats, box: Box) -> Floats:
    """Return the damped Gauss-Newton steps [K, P]; coordinates that would leave the box at once stay fixed."""
    free = box.open.copy()
    step = np.zeros_like(x)
    for _ in range(3):  # fixing one coordinate can push another one out
        held = jac * free[:, None]
        normal = np.einsum("nmi,nmj->nij", held, held)
        size = np.einsum("nii->ni", normal)
        diagonal = np.arange(size.shape[1])
        normal[:, diagonal, diagonal] += damping[:, None] * np.maximum(size, 1e-8) + ~free
        step = -np.linalg.solve(normal, np.einsum("nmi,nm->ni", held, r)[..., None])[..., 0]
        leaves = free & (((x >= box.high) & (step > 0)) | ((x <= box.low) & (step < 0)))
        if not leaves.any():
            break
        free &= ~leaves
    return step * free


def _broyden(jac: Floats, dx: Floats, length: Floats, dr: Floats, free: NDArray[np.bool_]) -> Floats:
    """Return Jacobians [K, M, P] that agree with the last steps `dx` [K, P] and changes `dr` [K, M]."""
    moved = length > 1e-16
    scaled = dx / np.where(moved, length, 1)[:, None] * moved[:, None] * free
    return jac + (dr - np.einsum("nmi,ni->nm", jac, dx))[:, :, None] * scaled[:, None]
