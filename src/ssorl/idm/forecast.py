"""Forecast the error of labels on the unlabelled steps, whose true actions are unknown.

When the unlabelled data differs from the labelled data, the error on trajectories held out at random is two to three
times too low. So a fast model is fitted without each of several holdouts, most of which resemble the unlabelled data.
Over the holdouts, the log error is regressed on two numbers that need no actions: the variance between the trees of a
fast model, and the distance to the nearest labelled steps. The regression evaluated at the unlabelled data is the
forecast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.idm.blend.products import LARGEST, fit_affine
from ssorl.idm.blend.windows import find_angles, gather, tree_features, unwrapped
from ssorl.utils.display import html_table, short_repr

TREES = 15  # trees of a fast model
TRAIN, TEST = 5000, 2000  # steps that a fast model is fitted to and tested on, at most
COMPONENTS, NEIGHBOURS = 12, 5  # principal components and nearest neighbours of the distance
SLOPE = 0.5  # prior of both slopes
STRENGTH = 2.0  # weight of that prior, in holdouts
WIDTH = 1.5  # the interval is [forecast / WIDTH, forecast * WIDTH], wider if the data differ
MIN_TRAJECTORIES = 4  # labelled trajectories that a forecast needs
FLOOR = 1e-10  # smallest error and variance before a logarithm


class Forecast(NamedTuple):
    """The expected mean squared error of proxy actions, actions scaled to [-1, 1], with a 90 % interval."""

    mse: float  # mean over the unlabelled steps and the dimensions
    low: float
    high: float
    by_dimension: np.ndarray  # [A]
    by_trajectory: np.ndarray  # [E], NaN for a trajectory without unlabelled steps
    random: float  # the error on trajectories held out at random, for comparison
    shift: float  # log ratio of the distances of unlabelled and randomly held-out steps to the labelled ones

    def __repr__(self) -> str:
        return short_repr("Forecast", self._facts())

    def _repr_html_(self) -> str:
        return html_table("Forecast", self._facts())

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {"mse": self.mse, "low": self.low, "high": self.high, "shift": self.shift}
        return facts | {"random": self.random, "by_dimension": self.by_dimension, "by_trajectory": self.by_trajectory}

    def as_json(self) -> dict[str, Any]:
        """Return the forecast as JSON values."""
        by_trajectory = [None if np.isnan(x) else float(x) for x in self.by_trajectory]
        return {
            "mse": self.mse,
            "low": self.low,
            "high": self.high,
            "by_dimension": self.by_dimension.tolist(),
            "by_trajectory": by_trajectory,
            "random_holdout": self.random,
            "shift": self.shift,
        }


class _Steps(NamedTuple):
    """The features and actions of N steps for the fast models."""

    episode: np.ndarray  # [N]
    features: np.ndarray  # [N, F], inputs of the trees
    states: np.ndarray  # [N, 2 O], s_t and s_{t+1}
    place: np.ndarray  # [N, C], principal components in which distances are measured
    act: np.ndarray  # [N, A] scaled; NaN where unknown


class _Predictions(NamedTuple):
    """The predictions of a fast model."""

    mean: np.ndarray  # [N, A]
    variance: np.ndarray  # [N], variance between its trees, mean over the dimensions


class _Check(NamedTuple):
    """Measurements on one holdout."""

    error: np.ndarray  # [A], mean squared error
    variance: float  # mean variance between the trees
    distance: float  # mean log distance to the nearest labelled steps


class Checked(NamedTuple):
    """The error of the labelling model on trajectories that it was not fitted to."""

    trajectories: np.ndarray  # [H], their numbers
    mse: float


def forecast(
    eps: Episodes, seed: int = 0, checked: Checked | None = None, progress: Callable[[int], None] | None = None
) -> Forecast | None:
    """Forecast the error of labels on the unlabelled steps of `eps`.

    Args:
        eps: trajectories, some steps labelled.
        seed: seed of the holdouts and the samples.
        checked: held-out error of the labelling model; None: the forecast is for the fast model.
        progress: called with 1 after each fit.

    Returns:
        The forecast; None if no step is unlabelled or fewer than `MIN_TRAJECTORIES` trajectories are labelled.
    """
    labelled = np.flatnonzero(eps.labelled)
    known = np.unique(eps.episode_of_step[labelled])
    if len(labelled) == eps.n_steps or len(known) < MIN_TRAJECTORIES:
        return None
    rng = np.random.default_rng(seed)
    seen = unwrapped(eps, find_angles(eps))
    act = eps.scaled_actions()
    frame = _frame(seen, rng)
    lesson = _features_of(seen, act, _draw(labelled, TRAIN, rng), frame)
    target = _features_of(seen, act, _draw(np.flatnonzero(~eps.labelled), TEST, rng), frame)
    holdouts = _holdouts(eps, lesson, target, rng)
    kind = _choose_kind(lesson, holdouts[min(1, len(holdouts) - 1)], seed)
    checks = []
    for held in holdouts:
        checks.append(_check(lesson, held, kind, seed))
        if progress:
            progress(1)
    reliability = _reliability(lesson, checked, kind, seed)
    between = _fit(lesson, kind, seed)(target).variance
    distance = _log_distance(target.place, lesson.place)
    level, slopes = _line(checks)
    cap = float(np.var(lesson.act, 0).mean())

    def evaluate(variance: float, log_distance: float) -> float:
        return float(np.exp(level + slopes @ [np.log(max(variance, FLOOR)), log_distance])) * reliability

    mse = min(evaluate(float(between.mean()), float(distance.mean())), 2 * cap)
    shift = max(0.0, float(distance.mean()) - checks[0].distance)
    width = WIDTH * np.exp(0.5 * shift)
    share = np.mean([c.error / max(c.error.mean(), FLOOR) for c in checks[1:] or checks], 0)
    each = np.full(len(eps), np.nan)
    for e in np.flatnonzero(eps.labelled_share < 1):
        own = target.episode == e
        each[e] = min(evaluate(float(between[own].mean()), float(distance[own].mean())), 2 * cap) if own.any() else mse
    return Forecast(
        mse, mse / width, mse * width, mse * share, each, reliability * float(checks[0].error.mean()), shift
    )


def _draw(steps: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Return a random sample of at most `most` steps. Every k-th step could miss the same phase of each stride."""
    return steps if len(steps) <= most else np.sort(rng.choice(steps, most, replace=False))


def _frame(eps: Episodes, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean [2 O] and the basis [2 O, C] in which distances are measured, from all transitions."""
    steps = np.sort(rng.choice(eps.n_steps, min(eps.n_steps, TRAIN), replace=False))
    states = gather(eps, steps, 0, 0)[0].reshape(len(steps), -1).astype(np.float64)
    mean, std = states.mean(0), np.maximum(states.std(0), 1e-6)
    z = (states - mean) / std
    _, vectors = np.linalg.eigh(z.T @ z)
    return mean, vectors[:, ::-1][:, :COMPONENTS] / std[:, None]


def _features_of(eps: Episodes, act: np.ndarray, steps: np.ndarray, frame: tuple[np.ndarray, np.ndarray]) -> _Steps:
    """Return the features and actions of some steps."""
    states, inside = gather(eps, steps, 1, 1)
    now = states[:, 1:3].reshape(len(steps), -1)
    place = (now - frame[0]) @ frame[1]
    return _Steps(eps.episode_of_step[steps], tree_features(states, inside, 1), now, place, act[steps])


def _fit(lesson: _Steps, kind: str, seed: int) -> Callable[[_Steps], _Predictions]:
    """Fit randomised trees to the actions, or to the residuals of an affine model."""
    from sklearn.ensemble import ExtraTreesRegressor

    affine = fit_affine(lesson.states, lesson.act) if kind == "affine" else None
    residual = lesson.act if affine is None else lesson.act - affine(lesson.states)
    trees = ExtraTreesRegressor(TREES, min_samples_leaf=3, max_features=0.5, random_state=seed)
    trees.fit(lesson.features, residual)

    def predict(steps: _Steps) -> _Predictions:
        each = np.stack([tree.predict(steps.features).reshape(len(steps.act), -1) for tree in trees.estimators_])
        mean = each.mean(0) + (0 if affine is None else affine(steps.states))
        return _Predictions(np.clip(mean, -1, 1), each.var(0).mean(1))

    return predict


def _reliability(lesson: _Steps, checked: Checked | None, kind: str, seed: int) -> float:
    """Return the error of the labelling model divided by that of the fast model on the same trajectories."""
    held = np.zeros(0, bool) if checked is None else np.isin(lesson.episode, checked.trajectories)
    if checked is None or not held.any() or held.all():
        return 1.0
    fast = float(_check(lesson, held, kind, seed).error.mean())
    return float(np.clip(checked.mse / max(fast, FLOOR), 0.02, 2.0))


def _choose_kind(lesson: _Steps, held: np.ndarray, seed: int) -> str:
    """Return the kind of fast model with the smaller error on a holdout."""
    if lesson.states.shape[1] > 2 * LARGEST:
        return "trees"
    return min(("trees", "affine"), key=lambda kind: float(_check(lesson, held, kind, seed).error.mean()))


def _check(lesson: _Steps, held: np.ndarray, kind: str, seed: int) -> _Check:
    """Fit a fast model without the steps `held`, and measure its error on them."""
    chosen = _draw(np.flatnonzero(held), TEST, np.random.default_rng(seed))
    test = _Steps(*(x[chosen] for x in lesson))
    predicted = _fit(_Steps(*(x[~held] for x in lesson)), kind, seed)(test)
    error = ((predicted.mean - test.act) ** 2).mean(0)
    return _Check(error, float(predicted.variance.mean()), float(_log_distance(test.place, lesson.place[~held]).mean()))


def _log_distance(points: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the log of the mean distance of points [N, C] to their nearest neighbours among known points, [N]."""
    from scipy.spatial import KDTree

    thin = known[_draw(np.arange(len(known)), 2 * TEST, np.random.default_rng(0))]
    distance = KDTree(thin).query(points, k=min(NEIGHBOURS, len(thin)))[0].reshape(len(points), -1)
    return np.log(distance.mean(1) + 1e-6)


def _line(checks: list[_Check]) -> tuple[float, np.ndarray]:
    """Regress log error on log variance and log distance; return the intercept, and slopes shrunk to the prior."""
    x = np.array([[np.log(max(c.variance, FLOOR)), c.distance] for c in checks])
    y = np.log([max(float(c.error.mean()), FLOOR) for c in checks])
    centre, level = x.mean(0), y.mean()
    z = x - centre
    prior = np.full(2, SLOPE)
    slopes = prior + np.linalg.solve(z.T @ z + STRENGTH * np.eye(2), z.T @ (y - level - z @ prior))
    slopes = np.clip(slopes, 0, 1.5)
    return float(level - centre @ slopes), slopes


def _holdouts(eps: Episodes, lesson: _Steps, target: _Steps, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the holdouts as masks of the labelled steps; the first one is random."""
    from scipy.cluster.vq import kmeans2

    known, number = np.unique(lesson.episode, return_inverse=True)
    n = max(1, round(0.3 * len(known)))

    def mask_of(chosen: np.ndarray) -> np.ndarray:
        return np.isin(number, chosen)

    likeness = _likeness(lesson, target, number, rng)
    by_trajectory = np.bincount(number, likeness) / np.bincount(number)
    masks = [mask_of(rng.permutation(len(known))[:n])]
    returns = eps.returns[known]
    if np.isfinite(returns).all() and np.ptp(returns) > 0:
        masks.append(mask_of(np.argsort(-returns, kind="stable")[:n]))
    masks.append(mask_of(np.argsort(-by_trajectory, kind="stable")[:n]))
    centres = np.stack([lesson.place[number == i].mean(0) for i in range(len(known))])
    if len(known) >= 6:
        cluster = kmeans2(centres, 3, minit="++", rng=rng)[1]
        order = sorted(range(3), key=lambda c: -by_trajectory[cluster == c].mean() if (cluster == c).any() else 1e9)
        masks += [mask_of(np.flatnonzero(cluster == c)) for c in order[:2] if (cluster == c).any()]
    masks.append(likeness >= np.quantile(likeness, 0.8))
    cluster = kmeans2(lesson.place, 6, minit="++", rng=rng)[1]
    order = sorted(range(6), key=lambda c: -likeness[cluster == c].mean() if (cluster == c).any() else 1e9)
    masks += [cluster == c for c in order[:2] if (cluster == c).any()]
    return [m for m in masks if 0 < m.sum() <= 0.9 * len(m)]


def _likeness(lesson: _Steps, target: _Steps, number: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the log odds [N] that labelled steps are unlabelled ones.

    Two classifiers are fitted, and each one judges the trajectories that the other was fitted to.
    """
    from sklearn.linear_model import LogisticRegression

    def inputs(place: np.ndarray) -> np.ndarray:
        return np.concatenate([place, place**2], 1)

    fold = rng.integers(0, 2, number.max() + 1)[number]
    out = np.zeros(len(number))
    for half in (0, 1):
        train = fold != half if (fold != half).any() and (fold == half).any() else np.ones(len(fold), bool)
        x = np.concatenate([inputs(target.place), inputs(lesson.place[train])])
        y = np.r_[np.ones(len(target.place)), np.zeros(int(train.sum()))]
        centre, scale = x.mean(0), x.std(0) + 1e-6
        model = LogisticRegression(max_iter=200, class_weight="balanced").fit((x - centre) / scale, y)
        own = fold == half
        if own.any():
            out[own] = model.decision_function((inputs(lesson.place[own]) - centre) / scale)
    return out
