"""Frames that are missing: transitions that look like two or three steps of the other trajectories."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.data.stats import standardiser
from ssorl.idm.audit_exact import Suspect
from ssorl.idm.audit_model import Models, Windows

JUMPS = (2, 3)  # steps that one transition may hold
N_WAVES = 200
LEAST_SHARE = 0.3  # of a column's change that a model must explain for the column to count
MANY = 0.06  # share of jumps at which a trajectory is suspect,
LEAST_JUMPS = 8  # and how many there must be
HALFWAY = 0.5  # a jump's change lies at least so far on the way from one step to several, and no farther beyond them
SEVERAL, ALONE = 3, 0.15  # fewer trajectories than this need a larger share
RARE = 0.002  # share of transitions of sound trajectories that may look like a jump


def dropped(eps: Episodes, data: Windows, sound: np.ndarray) -> tuple[list[Suspect], np.ndarray]:
    """Find trajectories in which frames are missing.

    One model predicts the change of the state over one step from s_t, the change before it and a_t; others predict
    the change over two and three steps. A transition that the latter predict better is a jump.

    Args:
        eps: the trajectories.
        data: steps to judge, at least three steps from either end.
        sound: [E] bool: the trajectories of `data` whose actions have no known fault.

    Returns:
        The suspects, and how much better a jump explains each transition, [N].
    """
    rng, row, step = np.random.default_rng(0), eps.obs_row[data.step], data.step
    states = standardiser(eps)(eps.obs)
    before = states[row] - states[row - 1]
    size = np.where(before.std(0) > 0, before.std(0), 1)
    w = np.clip(np.concatenate([states[row], before / size, data.act[step]], 1), -5, 5)
    waves = np.tanh(
        w @ (rng.standard_normal((w.shape[1], N_WAVES)) / np.sqrt(w.shape[1])) + rng.uniform(-1, 1, N_WAVES)
    )
    x = np.concatenate([np.ones((len(w), 1)), w, waves], 1, dtype=np.float32)
    models = Models(replace(data, x=x, usable=np.repeat(sound, np.diff(data.first)) & data.usable))
    actual = (states[row + 1] - states[row]) / size
    changes = [actual] + [(states[row + k] - states[row]) / size for k in JUMPS]
    # Clipped or constant columns tell nothing, and velocities after an impact little.
    gaps = [actual - models.predict(np.clip(change, -10, 10)) for change in changes]
    own = [change - (actual - gap) for change, gap in zip(changes, gaps, strict=True)]
    noise = [np.median(np.abs(o), 0) ** 2 / 0.455 + 1e-6 for o in own]
    clear = noise[0] < (1 - LEAST_SHARE) * (np.median(np.abs(actual - np.median(actual, 0)), 0) ** 2 / 0.455 + 1e-12)
    if not clear.any():
        return [], np.zeros(len(step))
    fit = [_misfit(gap[:, clear], n[clear]) for gap, n in zip(gaps, noise, strict=True)]
    better = fit[0] - np.min(fit[1:], 0)
    # A transition that no model explains is odd, but no jump.
    fine = [f <= np.quantile(_misfit(o[:, clear], n[clear]), 0.9) for f, o, n in zip(fit, own, noise, strict=True)][1:]
    far = [_progress(gaps[0][:, clear], gap[:, clear], n[clear]) for gap, n in zip(gaps, noise, strict=True)][1:]
    jump = [f & (p > HALFWAY) & (p < 2 - HALFWAY) for f, p in zip(fine, far, strict=True)]
    better = np.where(np.any(jump, 0), better, np.minimum(better, 0))
    return _judged(data, better, sound), better


def _misfit(gap: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return a robust misfit of each row, [N], from gaps [N, D] and the usual square of a gap, [D]."""
    return np.log1p(gap**2 / (3 * noise)).sum(1)


def _progress(one: np.ndarray, many: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return how far each change lies on the way from the prediction of one step, 0, to that of several, 1, [N]."""
    way = one - many  # the predictions' difference: both gaps are the same change less a prediction
    length = (way**2 / noise).sum(1)
    return (one * way / noise).sum(1) / np.where(length > 0, length, np.inf)


def _judged(data: Windows, better: np.ndarray, sound: np.ndarray) -> list[Suspect]:
    """Find the trajectories with more jumps than usual."""
    n = len(data.episodes)
    high = np.array([np.quantile(better[data.rows(e)], 0.98) for e in range(n)])
    half = np.argsort(np.where(sound, high, np.inf))[: max(1, int(sound.sum()) // 2)]
    usual = np.concatenate([better[data.rows(e)] for e in half])
    limit = max(float(np.quantile(usual, 1 - RARE)), 0.0)
    counts = {int(e): int((better[data.rows(int(e))] > limit).sum()) for e in np.flatnonzero(sound)}
    shares = {e: count / (data.first[e + 1] - data.first[e]) for e, count in counts.items()}
    sure = [e for e in counts if counts[e] >= LEAST_JUMPS and shares[e] >= MANY]
    if len(sure) < SEVERAL:
        sure = [e for e in sure if shares[e] >= ALONE]
    else:  # then fewer jumps are enough in the others
        sure = [e for e in counts if counts[e] >= LEAST_JUMPS / 2 and shares[e] >= MANY / 2]
    return [Suspect("dropped", int(data.episodes[e]), None, float(shares[e]), 0.95) for e in sure]
