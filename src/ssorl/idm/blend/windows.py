"""Windows of states around a step, and the features that the members of a blend use."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.idm.blend.targets import PERIODS, wraps
from ssorl.idm.blend.trees import MISSING

SAMPLE = 200_000  # rows in which wrapping angles are detected


def find_angles(eps: Episodes) -> dict[int, float]:
    """Return the period of each state dimension that is a wrapping angle."""
    rows = eps.obs[: min(len(eps.obs), SAMPLE)]
    follows = np.ones(len(rows), bool)
    first = eps.start[:-1] + np.arange(eps.n_episodes)
    follows[first[first < len(rows)]] = False
    periods = {}
    for j, column in enumerate(rows.T):
        period = next((p for p in PERIODS if wraps(column, follows, p)), None)
        if period is not None:
            periods[j] = period
    return periods


def unwrapped(eps: Episodes, angles: dict[int, float]) -> Episodes:
    """Return trajectories with each wrapping angle replaced by its sine, and with its cosine appended to the state."""
    if not angles:
        return eps
    obs = np.concatenate([eps.obs, np.empty((len(eps.obs), len(angles)), np.float32)], 1)
    for i, (j, period) in enumerate(angles.items()):
        phase = eps.obs[:, j] * np.float32(2 * np.pi / period)
        obs[:, j], obs[:, eps.n_obs + i] = np.sin(phase), np.cos(phase)
    return replace(eps, obs=obs)


def gather(eps: Episodes, steps: np.ndarray, past: int, future: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the windows s_{t-past} … s_{t+1+future} of some steps.

    Args:
        eps: trajectories.
        steps: [N] step numbers.
        past: states before s_t.
        future: states after s_{t+1}.

    Returns:
        The states [N, W, O], where a window that leaves its trajectory repeats the state at the edge, and whether
        each state is real [N, W] bool.
    """
    episode = np.searchsorted(eps.start, steps, side="right") - 1
    row, first, last = steps + episode, eps.start[episode] + episode, eps.start[episode + 1] + episode
    at = row[:, None] + np.arange(-past, future + 2)
    inside = (at >= first[:, None]) & (at <= last[:, None])
    return eps.obs[np.clip(at, first[:, None], last[:, None])], inside


def cut(states: np.ndarray, inside: np.ndarray, past: int, keep: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the same windows as if their trajectories were shorter.

    Args:
        states: [N, W, O].
        inside: [N, W] bool.
        past: states before s_t in the windows.
        keep: numbers of states before s_t and after s_{t+1} that remain.
    """
    offset = np.arange(states.shape[1]) - past
    at = np.clip(offset, -keep[0], 1 + keep[1]) + past
    return states[:, at], inside & ((offset >= -keep[0]) & (offset <= 1 + keep[1]))


def flat(rows: np.ndarray) -> np.ndarray:
    """Return [N, …] as [N, size]; N may be 0."""
    return rows.reshape(len(rows), int(np.prod(rows.shape[1:])))


def tree_features(states: np.ndarray, inside: np.ndarray, past: int) -> np.ndarray:
    """Return s_t, s_{t+1} and the first and second differences along the window, [N, F].

    Differences with a state outside the trajectory are `MISSING`.

    Args:
        states: [N, W, O].
        inside: [N, W] bool.
        past: states before s_t in the windows.
    """
    change = np.diff(states, axis=1)
    real = inside[:, 1:] & inside[:, :-1]
    bend, both = np.diff(change, axis=1), real[:, 1:] & real[:, :-1]
    change = np.where(real[:, :, None], change, MISSING)
    bend = np.where(both[:, :, None], bend, MISSING)
    parts = (states[:, past], states[:, past + 1], flat(change), flat(bend))
    return np.concatenate(parts, 1, dtype=np.float32)


def n_tree_features(n_obs: int, past: int, future: int) -> int:
    """Return the number of features that `tree_features` returns for windows of past + 2 + future states."""
    width = past + 2 + future
    return n_obs * (2 + (width - 1) + max(0, width - 2))


def places(inside: np.ndarray, past: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of real states before s_t [N] and after s_{t+1} [N] in each window."""
    return inside[:, :past].sum(1), inside[:, past + 2 :].sum(1)
