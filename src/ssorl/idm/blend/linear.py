"""Least squares on the window, and the lag between actions and their effect.

Near the ends of a trajectory some states of a window are missing. The weights for each such part of a window solve the
rows and columns of one shared Gram matrix that belong to the states which it has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.idm.base import ArrayReader
from ssorl.idm.blend.rows import multiply
from ssorl.idm.blend.windows import gather

CHUNK = 1 << 14  # windows gathered together
PENALTIES = (1e-6, 1e-3, 1e-1)  # candidate ridge penalties, relative to the number of windows
MAX_FEATURES = 1200  # features of one window; large states have a shorter window
REACH = 6  # largest delay that is tried, in steps
CLEAR = 0.8  # a delay is reported if its held-out error is at most this times the error without a delay


class Moments(NamedTuple):
    """Sums over whole windows, in float64; the last feature is the constant 1."""

    gram: np.ndarray  # [F, F]
    cross: np.ndarray  # [F, K]
    square: np.ndarray  # [K]
    n: int

    def less(self, other: Moments) -> Moments:
        """Return the sums without the windows of `other`."""
        return Moments(self.gram - other.gram, self.cross - other.cross, self.square - other.square, self.n - other.n)


class Linear(NamedTuple):
    """A least-squares model with weights for whole windows and for each part of a window."""

    weights: np.ndarray  # [P+1, F+2, G, K] float32, by the numbers of real states before and after s_t
    past: int  # P
    future: int  # F
    n_obs: int

    def __call__(self, eps: Episodes, steps: np.ndarray, keep: int | None = None) -> np.ndarray:
        """Return the predicted targets [N, K].

        Args:
            eps: trajectories.
            steps: [N] step numbers.
            keep: largest number of states after s_t that are used; None: all.
        """
        out = np.empty((len(steps), self.weights.shape[-1]), np.float32)
        for first in range(0, len(steps), CHUNK):
            chosen = slice(first, first + CHUNK)
            states, inside = gather(eps, steps[chosen], self.past, self.future)
            rows = _features(states, self.past)
            before = inside[:, : self.past].sum(1)
            after = inside[:, self.past + 1 :].sum(1)
            if keep is not None:
                after = np.minimum(after, keep)
            part = before * (self.future + 2) + after
            out[chosen] = multiply(
                rows, self.weights.reshape((self.past + 1) * (self.future + 2), *self.weights.shape[2:]), part
            )
        return out

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Return the weights by name, for a file."""
        return {f"{name}/weights": self.weights}


def read_linear(read: ArrayReader, name: str, size: tuple[int, int], n_obs: int, n_targets: int) -> Linear:
    """Rebuild a saved model; raise ValueError if its weights have another shape.

    Args:
        read: returns the arrays of the file.
        name: the first part of their names.
        size: states before s_t and after s_{t+1} in a whole window.
        n_obs: size of an observation.
        n_targets: the number of targets.
    """
    past, future = size
    shape = (past + 1, future + 2, n_obs * (past + 2 + future) + 1, n_targets)
    return Linear(read(f"{name}/weights", shape), past, future, n_obs)


def longest_window(n_obs: int, future: int) -> tuple[int, int]:
    """Return the largest numbers of states before s_t and after s_{t+1} in a window."""
    return next((p, p + future) for p in (3, 2, 1, 0) if n_obs * (2 * p + 2 + future) < MAX_FEATURES or p == 0)


def _features(states: np.ndarray, past: int) -> np.ndarray:
    """Return s_t, the differences before it (nearest first), those after it, and 1, [N, O * W + 1] float32."""
    n, length, n_obs = states.shape
    change = np.diff(states, axis=1)
    before, after = change[:, :past][:, ::-1], change[:, past:]
    before, after = before.reshape(n, past * n_obs), after.reshape(n, (length - 1 - past) * n_obs)
    return np.concatenate([states[:, past], before, after, np.ones((n, 1), np.float32)], 1, dtype=np.float32)


def moments(eps: Episodes, steps: np.ndarray, targets: np.ndarray, past: int, future: int) -> Moments:
    """Return the sums over the steps whose window is whole.

    Args:
        eps: trajectories.
        steps: [N] step numbers.
        targets: [N, K].
        past: states before s_t.
        future: states after s_{t+1}.
    """
    width = eps.n_obs * (past + 2 + future) + 1
    gram, cross = np.zeros((width, width)), np.zeros((width, targets.shape[1]))
    square, n = np.zeros(targets.shape[1]), 0
    for first in range(0, len(steps), CHUNK):
        states, inside = gather(eps, steps[first : first + CHUNK], past, future)
        whole = inside.all(1)
        rows = _features(states[whole], past).astype(np.float64)
        wanted = targets[first : first + CHUNK][whole].astype(np.float64)
        gram += rows.T @ rows
        cross += rows.T @ wanted
        square += (wanted**2).sum(0)
        n += len(rows)
    return Moments(gram, cross, square, n)


def solve(sums: Moments, columns: np.ndarray, penalty: float) -> np.ndarray:
    """Return the least-squares weights [F, K], zero outside `columns`.

    Args:
        sums: of the windows; their last feature is the constant.
        columns: [C] features to use.
        penalty: on squared weights of features with unit variance, times the number of windows.
    """
    out = np.zeros(sums.cross.shape)
    if not sums.n:
        return out
    mean = sums.gram[-1] / sums.n
    inner = columns[columns < len(mean) - 1]
    scale = np.sqrt(np.maximum(np.diag(sums.gram)[inner] / sums.n - mean[inner] ** 2, 1e-12))
    centred = sums.gram[np.ix_(inner, inner)] - sums.n * np.outer(mean[inner], mean[inner])
    centred = centred / np.outer(scale, scale) + penalty * sums.n * np.eye(len(inner))
    average = sums.cross[-1] / sums.n
    wanted = (sums.cross[inner] - sums.n * np.outer(mean[inner], average)) / scale[:, None]
    out[inner] = np.linalg.lstsq(centred, wanted, rcond=1e-12)[0] / scale[:, None]
    out[-1] = average - mean[inner] @ out[inner]
    return out


def error(sums: Moments, weights: np.ndarray) -> np.ndarray:
    """Return the mean squared error [K] of these weights [F, K] on these windows."""
    total = sums.square - 2 * (weights * sums.cross).sum(0) + (weights * (sums.gram @ weights)).sum(0)
    return np.maximum(total, 0) / max(sums.n, 1)


def window_columns(n_obs: int, size: tuple[int, int], before: int, after: int) -> np.ndarray:
    """Return the features of `before` states before s_t and `after` states after s_t, in windows of this size."""
    past, future = size
    early = n_obs + np.arange(n_obs * before)
    late = n_obs * (1 + past) + np.arange(n_obs * after)
    return np.concatenate([np.arange(n_obs), early, late, [n_obs * (past + 2 + future)]])


def fit_linear(sums: Moments, n_obs: int, size: tuple[int, int], penalty: float) -> Linear:
    """Solve for whole windows and for every part of them.

    Args:
        sums: of the training windows.
        n_obs: size of an observation.
        size: states before s_t and after s_{t+1} in the windows.
        penalty: ridge penalty, see `solve`.
    """
    past, future = size
    weights = [
        [solve(sums, window_columns(n_obs, size, before, after), penalty) for after in range(future + 2)]
        for before in range(past + 1)
    ]
    return Linear(np.array(weights, np.float32), past, future, n_obs)


def choose_penalty(train: Moments, held_out: Moments, n_obs: int, size: tuple[int, int]) -> float:
    """Return the penalty with the smallest held-out error on whole windows."""
    columns = window_columns(n_obs, size, size[0], size[1] + 1)
    return min(PENALTIES, key=lambda p: float(error(held_out, solve(train, columns, p)).sum()))


def find_delay(eps: Episodes, steps: np.ndarray, targets: np.ndarray, half: np.ndarray) -> tuple[int, dict[int, float]]:
    """Find after how many steps an action takes effect, by least squares on single transitions.

    Args:
        eps: trajectories.
        steps: [N] labelled step numbers.
        targets: [N, K] of these steps.
        half: [N] bool, one half of the labelled trajectories: each half is predicted from the other.

    Returns:
        The delay d, where a_t acts on s_{t+d} → s_{t+d+1}; 0 unless another one is clearly better. And the held-out
        error of each delay, relative to the variance of the targets.
    """
    n_obs = eps.n_obs
    reach = next((r for r in range(REACH, 0, -1) if n_obs * 2 * r < MAX_FEATURES), 0)
    if not reach or not targets.shape[1]:
        return 0, {}
    size = (reach, reach)
    parts = [moments(eps, steps[mask], targets[mask], *size) for mask in (half, ~half)]
    if min(part.n for part in parts) < 4 * n_obs + 10:
        return 0, {}
    variance = sum(part.square - part.cross[-1] ** 2 / part.n for part in parts) / sum(part.n for part in parts)
    relative = {}
    for delay in range(-reach, reach + 1):
        moved = [_transition(part, n_obs, size, delay) for part in parts]
        columns = np.arange(2 * n_obs + 1)
        errors = [error(b, solve(a, columns, 1e-6)) * b.n for a, b in (moved, moved[::-1])]
        relative[delay] = float((sum(errors) / sum(part.n for part in parts) / np.maximum(variance, 1e-12)).mean())
    best = min(relative, key=lambda d: relative[d])
    return (best if relative[best] <= CLEAR * relative[0] else 0), relative


def _transition(sums: Moments, n_obs: int, size: tuple[int, int], delay: int) -> Moments:
    """Return the sums of s_{t+delay}, s_{t+delay+1} - s_{t+delay} and 1: linear combinations of a window's features."""
    past, _ = size
    eye = np.eye(n_obs)
    to = np.zeros((len(sums.gram), 2 * n_obs + 1))
    to[:n_obs, :n_obs] = eye
    to[-1, -1] = 1

    def change(at: int) -> slice:
        """Return the columns of s_{t+at+1} - s_{t+at}."""
        first = -n_obs * at if at < 0 else n_obs * (1 + past + at)
        return slice(first, first + n_obs)

    for at in range(delay) if delay > 0 else range(delay, 0):
        to[change(at), :n_obs] = eye if delay > 0 else -eye
    to[change(delay), n_obs : 2 * n_obs] = eye
    return Moments(to.T @ sums.gram @ to, to.T @ sums.cross, sums.square, sums.n)
