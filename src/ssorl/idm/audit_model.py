"""Cross-fitted inverse models of the labelled steps, and what each trajectory's actions would have to be instead.

An inverse model predicts the action from s_t and s_{t+1} - s_t. It is a ridge regression on these and on random
features of them, so that one Gram matrix a fold serves every hypothesis: actions that are shifted, of another sign,
scaled or in another order only change the right-hand side. Each trajectory takes the hypothesis under which the model
of the other folds predicts it best, and the models are fitted again to the actions that are repaired so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from ssorl.data.episodes import Episodes
from ssorl.data.stats import standardiser

N_ROWS = 20_000  # steps that the models are fitted to and judged by
N_TRAJECTORIES = 2_000
N_FEATURES = 300
N_FOLDS = 5
MAX_LAG = 5
LEAST_STEPS = 12  # of a trajectory that a model judges
FAR = 4.0  # times the leverage of the ninth decile


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """What the recorded actions are: their lag, the recorded column and the factor of each true dimension."""

    lag: int
    order: tuple[int, ...]  # true dimension d is in column order[d]
    factor: tuple[float, ...]  # recorded = factor * true

    @classmethod
    def none(cls, n: int) -> Hypothesis:
        """Actions as they should be."""
        return cls(0, tuple(range(n)), (1.0,) * n)

    def key(self) -> tuple:
        """What two equal hypotheses share."""
        return self.lag, self.order, tuple(np.round(self.factor, 3))


@dataclass(eq=False)
class Windows:
    """Steps that the models use; those of one trajectory lie together, in order."""

    episodes: np.ndarray  # [E] numbers of the trajectories that are judged
    first: np.ndarray  # [E+1] first row of each
    step: np.ndarray  # [N] step in the dataset
    x: np.ndarray  # [N, F] float32 features
    act: np.ndarray  # [S, A] scaled actions of the dataset
    usable: np.ndarray  # [N] bool: the model may learn from this row
    lags: tuple[int, ...]
    fold: np.ndarray = field(init=False)  # [E]

    def __post_init__(self) -> None:
        """Deal the trajectories to folds."""
        order = np.random.default_rng(0).permutation(len(self.episodes))
        self.fold = np.empty(len(order), np.int64)
        self.fold[order] = np.arange(len(order)) % min(N_FOLDS, len(order))

    def rows(self, e: int) -> slice:
        """Rows of the e-th trajectory."""
        return slice(int(self.first[e]), int(self.first[e + 1]))

    def recorded(self, e: int, lag: int = 0) -> np.ndarray:
        """Actions that were recorded `lag` steps after the windows of trajectory e, [n, A]."""
        return self.act[self.step[self.rows(e)] + lag]


def windows(eps: Episodes, act: np.ndarray, bad: np.ndarray, without: np.ndarray, seed: int = 0) -> Windows | None:
    """Choose steps and compute their features.

    Args:
        eps: the trajectories.
        act: scaled actions, NaN where missing, [S, A].
        bad: entries of the actions with a fault that is known, [S, A] bool.
        without: columns of the state to leave out.
        seed: seed of the choice and of the random features.

    Returns:
        The windows; None where fewer than two trajectories are long enough.
    """
    rng = np.random.default_rng(seed)
    known = ~np.isnan(act[:, 0])
    reach = int(np.clip(np.median(eps.lengths) // 8, 1, MAX_LAG))
    inner = np.zeros(len(known) + 1, np.int64)
    inner[1:] = np.cumsum(known)
    steps = np.arange(len(known))
    low, high = np.repeat(eps.start[:-1], eps.lengths), np.repeat(eps.start[1:], eps.lengths)
    fits = (steps - reach >= low) & (steps + reach < high)
    a, b = np.maximum(steps - reach, 0), np.minimum(steps + reach + 1, len(known))
    fits &= inner[b] - inner[a] == 2 * reach + 1  # every action that a lag may need is known
    count = np.add.reduceat(fits, eps.start[:-1], dtype=np.int64)
    judged = np.flatnonzero(count >= LEAST_STEPS)
    if len(judged) > N_TRAJECTORIES:
        judged = np.sort(rng.choice(judged, N_TRAJECTORIES, replace=False))
    if len(judged) < 2:
        return None
    quota = max(LEAST_STEPS, N_ROWS // len(judged))
    chosen = []
    for e in judged:
        own = eps.start[e] + np.flatnonzero(fits[eps.start[e] : eps.start[e + 1]])
        chosen.append(own if len(own) <= quota else own[np.sort(rng.choice(len(own), quota, replace=False))])
    step = np.concatenate(chosen)
    first = np.concatenate([[0], np.cumsum([len(c) for c in chosen])])
    x = _features(eps, step, without, rng)
    usable = ~np.asarray(bad[step].any(1))
    return Windows(judged, first, step, x, act, usable, tuple(range(-reach, reach + 1)))


def _features(eps: Episodes, step: np.ndarray, without: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return standardised s_t and s_{t+1} - s_t and random features of them, [N, F]."""
    columns = np.setdiff1d(np.arange(eps.n_obs), without)
    scale, row = standardiser(eps), eps.obs_row[step]
    state = scale(eps.obs[row])[:, columns]
    change = (eps.obs[row + 1] - eps.obs[row])[:, columns]
    size = change.std(0)
    change = change / np.where(size > 0, size, 1)
    w = np.clip(np.concatenate([state, change], 1), -5, 5)
    mix = rng.standard_normal((w.shape[1], N_FEATURES)) / np.sqrt(max(w.shape[1], 1))
    wave = np.tanh(w @ mix + rng.uniform(-1, 1, N_FEATURES))
    return np.concatenate([np.ones((len(w), 1)), w, wave], 1, dtype=np.float32)


@dataclass(eq=False)
class Judged:
    """What the models of the other folds say of each trajectory."""

    hypotheses: list[Hypothesis]  # [E]
    predicted: np.ndarray  # [N, A], in true dimensions
    noise: np.ndarray  # [A] usual mean squared error of a dimension
    error: np.ndarray  # [E, A] mean squared error of the repaired actions
    spread: np.ndarray  # [E, A] mean square of the repaired actions about their mean
    usual: np.ndarray  # [A] usual correlation of prediction and action
    unlike: np.ndarray  # [N] leverage of each row: how unlike the windows of other trajectories it is

    @property
    def alike(self) -> np.ndarray:
        """Rows near enough to the windows of other trajectories for a model to be trusted, [N] bool."""
        return self.unlike <= FAR * np.quantile(self.unlike, 0.9)


class Models:
    """The ridge regressions of all folds."""

    def __init__(self, data: Windows) -> None:
        """Factorise the Gram matrix that each fold is predicted with."""
        self.data = data
        self.row_fold = np.repeat(data.fold, np.diff(data.first))
        self.n_folds = int(data.fold.max()) + 1
        self.weigh(np.ones(len(data.episodes)))

    def weigh(self, weight: np.ndarray) -> None:
        """Fit only to the trajectories with weight 1; `weight` [E] holds 0 or 1 for each trajectory."""
        counted = self.data.usable * np.repeat(weight, np.diff(self.data.first))
        self.x = self.data.x * counted[:, None].astype(np.float32)
        grams = [self.x[self.row_fold == f].T @ self.x[self.row_fold == f] for f in range(self.n_folds)]
        total = np.stack(grams).astype(np.float64).sum(0)
        self.gram = total + (1e-4 * np.trace(total) / len(total) + 1e-9) * np.eye(len(total))
        self.factors = [cho_factor(self.gram - g) for g in grams]

    def predict(self, target: np.ndarray) -> np.ndarray:
        """Return what the other folds predict of targets [N, A]."""
        parts = [self.x[self.row_fold == f].T @ target[self.row_fold == f] for f in range(self.n_folds)]
        total, out = np.sum(parts, 0), np.empty(target.shape)
        for f, factor in enumerate(self.factors):
            rows = self.row_fold == f
            out[rows] = self.data.x[rows] @ cho_solve(factor, (total - parts[f]).astype(np.float64))
        return out

    def leverage(self) -> np.ndarray:
        """Return how unlike the windows of the other folds each window is, [N]."""
        out = np.empty(len(self.data.x))
        for f, factor in enumerate(self.factors):
            rows = self.row_fold == f
            half = solve_triangular(factor[0], self.data.x[rows].T, lower=factor[1], trans=0 if factor[1] else 1)
            out[rows] = (half**2).sum(0)
        return out


def repaired(data: Windows, e: int, h: Hypothesis) -> np.ndarray:
    """Return the actions of trajectory e in true dimensions if the hypothesis holds, [n, A]."""
    return data.recorded(e, h.lag)[:, list(h.order)] / np.array(h.factor)
