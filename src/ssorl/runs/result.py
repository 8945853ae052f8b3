"""Make the result.json of a run (docs/result.md) from the outcome of Algorithm 1."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.idm.fill import LabelledData
from ssorl.idm.outlook import advise
from ssorl.idm.worth import doubtful_report
from ssorl.pipeline.algorithm1 import Outcome, SplitData
from ssorl.pipeline.plan import Plan, SplitKey
from ssorl.report.schema import SCHEMA
from ssorl.utils.bootstrap import resample_means

DRAWS = 10_000  # bootstrap resamples
MAX_RETURNS = 2000  # returns of labelled, and of unlabelled, trajectories in result.json


class ReturnScale(NamedTuple):
    """The scale of the scores: 0 is a random policy, 100 an expert."""

    random: float
    expert: float
    known: bool  # False: no reference scores are known, and the scale leaves returns as they are

    def __call__(self, returns: np.ndarray) -> np.ndarray:
        """Return the scores of returns."""
        return 100 * (np.asarray(returns, np.float64) - self.random) / (self.expert - self.random)


RAW_RETURNS = ReturnScale(0.0, 100.0, False)


def scale_of(env: str | None, eps: Episodes) -> ReturnScale:
    """Return the scale of an evaluation: D4RL's reference scores of the environment, else those of the dataset."""
    from ssorl.envs import SCORES

    if env is None:  # FQE estimates discounted returns, which reference scores do not fit
        return RAW_RETURNS
    name = env if env in SCORES else env.split("-v")[0].lower()
    if name in SCORES:
        return ReturnScale(SCORES[name].random, SCORES[name].expert, True)
    if eps.meta.random_return is not None and eps.meta.expert_return is not None:
        return ReturnScale(eps.meta.random_return, eps.meta.expert_return, True)
    return RAW_RETURNS


def cell_result(plan: Plan, eps: Episodes, outcome: Outcome, quality: float | None, about: dict) -> dict:
    """Return the result.json of one quality over all seeds.

    Args:
        plan: what was trained and evaluated.
        eps: the trajectories.
        outcome: what Algorithm 1 returned.
        quality: a quality of the plan.
        about: entries that do not follow from the outcome: title, command, config, timings, ...
    """
    scale, cells = scale_of(plan.env, eps), [cell for cell in plan.split_keys if cell.quality == quality]
    scores = {}
    for variant in plan.variants:
        returns = [scale(outcome.returns[plan.training_key(variant, cell)]) for cell in cells]
        scores[variant] = {**interval(returns), "returns": [r.tolist() for r in returns]}
    return json_values(
        {
            "schema": SCHEMA,
            "complete": True,
            **about,
            "seeds": list(plan.seeds),
            "env": plan.env,
            "kind": "rollout" if plan.env else "fqe",
            "normalised": scale.known,
            "scores": scores,
            **gaps(scores),
            "policy": plan.policy,
            "split": _split(plan, outcome.tasks[cells[0]], scale),
            "idm": _idm(plan, [outcome.filled[c] for c in cells if c in outcome.filled], scale),
            "curves": _curves(plan, outcome, cells, scale),
        }
    )


def parent_result(results: dict[str, dict]) -> dict:
    """Return the result.json over several qualities, given the result of each sub-folder."""
    first = next(iter(results.values()))
    shared = {k: first[k] for k in ("schema", "title", "command", "complete", "kind", "normalised", "seeds")}
    keys = ("scores", "relative_gap", "gap_closed")
    cells = [
        {"quality": result["split"]["quality"], "folder": folder, **{k: result[k] for k in keys}}
        for folder, result in results.items()
    ]
    return {**shared, "cells": cells}


def interval(returns: list[np.ndarray], seed: int = 0, draws: int = DRAWS) -> dict[str, float]:
    """Return the mean over seeds and episodes with its 95 % bootstrap interval.

    With one seed the interval covers the episodes of this policy only. With several, each resample draws the episodes
    of every seed and then the seeds. A seed that is drawn twice counts with the same episodes. This makes intervals
    conservative, except that with two or three seeds any bootstrap interval is too narrow.

    Args:
        returns: scores of the episodes of each seed, each [E].
        seed: seed of the resamples.
        draws: number of resamples.

    Returns:
        `mean`, `low` and `high`.
    """
    rng, n_seeds = np.random.default_rng(seed), len(returns)
    seed_means = np.empty((draws, n_seeds))
    for i, values in enumerate(returns):
        seed_means[:, i] = resample_means(values, draws, rng)
    picked = rng.integers(n_seeds, size=(draws, n_seeds)) if n_seeds > 1 else np.zeros((draws, 1), np.int64)
    low, high = np.quantile(np.take_along_axis(seed_means, picked, 1).mean(1), [0.025, 0.975])
    return {"mean": float(np.mean([r.mean() for r in returns])), "low": float(low), "high": float(high)}


def gaps(scores: dict[str, dict]) -> dict[str, Any]:
    """Return the gaps to the oracle, given the entries of `scores`.

    Returns:
        `relative_gap`: (oracle - score) / oracle of each other variant, None without a positive oracle.
        `gap_closed`: (ss - baseline) / (oracle - baseline), None unless the oracle is above the baseline.
    """
    mean = {variant: score["mean"] for variant, score in scores.items()}
    oracle, baseline, ss = (mean.get(v) for v in ("oracle", "baseline", "ss"))
    relative = closed = None
    if oracle is not None and oracle > 0:
        relative = {v: (oracle - m) / oracle for v, m in mean.items() if v != "oracle"}
    if oracle is not None and baseline is not None and ss is not None and oracle > baseline:
        closed = (ss - baseline) / (oracle - baseline)
    return {"relative_gap": relative, "gap_closed": closed}


def json_values(value: Any) -> Any:
    """Return the value with arrays as lists, NumPy scalars as Python ones, and numbers that are not finite as None."""
    if isinstance(value, dict):
        return {str(k): json_values(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [json_values(v) for v in value]
    if isinstance(value, (np.integer, np.bool_)):
        return value.item()
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return value


def _split(plan: Plan, task: SplitData, scale: ReturnScale) -> dict:
    """Return the entry `split`, which describes the split of the first seed."""
    labelled_share, data = task.data.labelled_share, task.data
    recipe = {} if task.split is None else task.split.recipe
    thirds = f"{recipe['labelled']} / {recipe['unlabelled']}" if plan.setup == "decoupled" else None
    returns = scale(data.returns)
    return {
        "fraction": recipe.get("fraction", recipe.get("labelled_fraction")),
        "quality": thirds or recipe.get("quality"),
        "setup": plan.setup,
        "n_labelled": int((labelled_share > 0).sum()),
        "n_unlabelled": int((labelled_share == 0).sum()),
        "n_steps": data.n_steps,
        "labelled_return": _sample(returns[(labelled_share > 0) & data.rewarded]),
        "unlabelled_return": _sample(returns[(labelled_share == 0) & data.rewarded]),
    }


def _sample(values: np.ndarray) -> list[float]:
    """Return at most MAX_RETURNS values, evenly spaced in rank, which keeps their density."""
    if len(values) > MAX_RETURNS:
        values = np.sort(values)[np.linspace(0, len(values) - 1, MAX_RETURNS).round().astype(int)]
    return [float(v) for v in values]


def _idm(plan: Plan, filled: list[LabelledData], scale: ReturnScale) -> dict | None:
    """Return the entry `idm`: means over the seeds, but errors by return of the first seed."""
    if not filled:
        return None
    reports = [labelled.report for labelled in filled]
    kind = "truth" if reports[0]["truth"] else "validation"
    validation = [r["validation"]["mse"] for r in reports if r["validation"]]
    by_dimension = [r[kind]["mse_by_dimension"] for r in reports if r[kind]]
    coverage = [r["coverage"] for r in reports if r["coverage"]]
    levels = [f"{100 * level:g}" for level in coverage[0]["levels"]] if coverage else []
    shares = np.mean([c["truth"] or c["after"] for c in coverage], axis=0) if coverage else []
    bins = reports[0]["by_return"]
    returns = scale(np.array([b["return"] for b in bins]))
    return {
        "name": plan.names["idm"],
        "mse": np.mean([r["truth"]["mse"] for r in reports]) if kind == "truth" else None,
        "validation_mse": np.mean(validation) if validation else None,
        "by_dimension": np.mean(by_dimension, axis=0) if by_dimension else [],
        "coverage": dict(zip(levels, shares, strict=True)) if coverage else None,
        "by_return": [
            [value, None if b["rmse"] is None else b["rmse"] ** 2, b["std"]]
            for value, b in zip(returns, bins, strict=True)
        ],
        **_forecast(plan, filled),
    }


def _forecast(plan: Plan, filled: list[LabelledData]) -> dict:
    """Return the entries of `idm` about the forecast label error: means over the seeds, and counts for each seed."""
    doubtful = [entry for labelled in filled if (entry := doubtful_report(labelled, plan.use.when_doubtful))]
    if not doubtful:
        return {}
    forecasts = [f for labelled in filled if (f := labelled.report.get("forecast"))]
    mean = {key: float(np.mean([f[key] for f in forecasts])) for key in ("mse", "low", "high")} if forecasts else None
    counts = {key: [entry[key] for entry in doubtful] for key in ("trajectories", "proxy_actions")}
    return {
        "forecast": mean,
        "advice": advise(**mean) if mean else None,
        "doubtful": {"action": plan.use.when_doubtful, **counts},
    }


def _curves(plan: Plan, outcome: Outcome, cells: list[SplitKey], scale: ReturnScale) -> dict:
    """Return the entry `curves`: metrics of each variant, a list for each seed."""
    out = {}
    for variant in plan.variants:
        curves = [outcome.curves[plan.training_key(variant, cell)] for cell in cells]
        metrics = {metric: [curve[metric] for curve in curves] for metric in curves[0] if metric != "score"}
        scores = {}
        if any("score" in curve for curve in curves):
            missing = np.full(len(plan.snapshot_updates), np.nan)  # the training diverged before its first evaluation
            scores = {"score": [scale(curve.get("score", missing)) for curve in curves]}
        out[variant] = {"at": plan.snapshot_updates, **scores, **metrics}
    return out
