"""From what a run came to, to its result.json (docs/result.md)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.idm.fill import LabelledData
from ssorl.pipeline.algorithm1 import Outcome, SplitData
from ssorl.pipeline.plan import Plan, SplitKey
from ssorl.report.schema import SCHEMA
from ssorl.utils.bootstrap import resample_means

DRAWS = 10_000  # resamples of a bootstrap
SHOWN = 2000  # returns of trajectories in the file, of each kind


class Scale(NamedTuple):
    """Returns onto the scale that results are told in."""

    random: float
    expert: float
    known: bool  # whether there are references; if not, returns stay as they are

    def __call__(self, returns: np.ndarray) -> np.ndarray:
        """100 is an expert, 0 a random policy."""
        return 100 * (np.asarray(returns, np.float64) - self.random) / (self.expert - self.random)


def scale_of(plan: Plan, eps: Episodes) -> Scale:
    """D4RL's references for the environment, else those the data brings."""
    from ssorl.envs import SCORES

    if plan.env is None:  # estimates are discounted, so that no reference for returns fits them
        return Scale(0.0, 100.0, False)
    name = plan.env if plan.env in SCORES else plan.env.split("-v")[0].lower()
    if name in SCORES:
        return Scale(SCORES[name].random, SCORES[name].expert, True)
    if eps.meta.random_return is not None and eps.meta.expert_return is not None:
        return Scale(eps.meta.random_return, eps.meta.expert_return, True)
    return Scale(0.0, 100.0, False)


def cell_result(plan: Plan, eps: Episodes, outcome: Outcome, quality: float | None, about: dict) -> dict:
    """The result of one quality over all seeds; `about` is what does not follow from the outcome."""
    scale, cells = scale_of(plan, eps), [cell for cell in plan.split_keys if cell.quality == quality]
    scores = {}
    for variant in plan.variants:
        returns = [scale(outcome.returns[plan.training_key(variant, cell)]) for cell in cells]
        scores[variant] = {**interval(returns), "returns": [r.tolist() for r in returns]}
    return plain(
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
            "split": _split(plan, outcome.tasks[cells[0]], cells[0], scale),
            "idm": _idm(plan, [outcome.filled[c] for c in cells if c in outcome.filled], scale),
            "curves": _curves(plan, outcome, cells, scale),
        }
    )


def parent_result(results: dict[str, dict]) -> dict:
    """Several qualities, folder by folder, in one."""
    first = next(iter(results.values()))
    shared = {k: first[k] for k in ("schema", "title", "command", "complete", "kind", "normalised", "seeds")}
    keys = ("scores", "relative_gap", "gap_closed")
    cells = [
        {"quality": told["split"]["quality"], "folder": folder, **{k: told[k] for k in keys}}
        for folder, told in results.items()
    ]
    return {**shared, "cells": cells}


def interval(returns: list[np.ndarray], seed: int = 0, draws: int = DRAWS) -> dict[str, float]:
    """The mean over seeds and episodes, and the middle 95 % of means where both are drawn anew.

    With one seed the interval speaks of that one policy and its episodes; with several, each seed's episodes are drawn
    and then the seeds, so that it speaks of the method. A seed that is drawn twice brings the same episodes twice, by
    which the interval is rather too wide than too narrow.
    """
    rng, n_seeds = np.random.default_rng(seed), len(returns)
    own = np.empty((draws, n_seeds))  # of each draw, the mean of each seed's episodes drawn anew
    for i, values in enumerate(returns):
        own[:, i] = resample_means(values, draws, rng)
    picked = rng.integers(n_seeds, size=(draws, n_seeds)) if n_seeds > 1 else np.zeros((draws, 1), np.int64)
    low, high = np.quantile(np.take_along_axis(own, picked, 1).mean(1), [0.025, 0.975])
    return {"mean": float(np.mean([r.mean() for r in returns])), "low": float(low), "high": float(high)}


def gaps(scores: dict[str, dict]) -> dict[str, Any]:
    """How far below the oracle, relative to it, and the share of the way from baseline to oracle that SS went."""
    mean = {variant: score["mean"] for variant, score in scores.items()}
    best, base, ss = (mean.get(v) for v in ("oracle", "baseline", "ss"))
    relative = closed = None
    if best is not None and best > 0:
        relative = {v: (best - m) / best for v, m in mean.items() if v != "oracle"}
    if best is not None and base is not None and ss is not None and best > base:
        closed = (ss - base) / (best - base)
    return {"relative_gap": relative, "gap_closed": closed}


def plain(value: Any) -> Any:
    """The same as JSON knows it: no arrays, null for what is no number."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(v) for v in value]
    if isinstance(value, (np.integer, np.bool_)):
        return value.item()
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return value


def _split(plan: Plan, task: SplitData, cell: SplitKey, scale: Scale) -> dict:
    """The first seed's."""
    share, data = task.data.labelled_share, task.data
    recipe = {} if task.split is None else task.split.recipe
    thirds = f"{recipe['labelled']} / {recipe['unlabelled']}" if plan.setup == "decoupled" else None
    returns = scale(data.returns)
    return {
        "fraction": recipe.get("fraction", recipe.get("labelled_fraction")),
        "quality": thirds or recipe.get("quality"),
        "setup": plan.setup,
        "n_labelled": int((share > 0).sum()),
        "n_unlabelled": int((share == 0).sum()),
        "n_steps": data.n_steps,
        "labelled_return": _some(returns[(share > 0) & data.rewarded]),
        "unlabelled_return": _some(returns[(share == 0) & data.rewarded]),
    }


def _some(values: np.ndarray) -> list[float]:
    """At most so many, spread evenly over the sorted ones, so that their density is kept."""
    if len(values) > SHOWN:
        values = np.sort(values)[np.linspace(0, len(values) - 1, SHOWN).round().astype(int)]
    return [float(v) for v in values]


def _idm(plan: Plan, filled: list[LabelledData], scale: Scale) -> dict | None:
    """Errors are means over the seeds; by return the first seed's."""
    if not filled:
        return None
    told = [one.report for one in filled]
    kind = "truth" if told[0]["truth"] else "validation"
    known = [t["validation"]["mse"] for t in told if t["validation"]]
    dims = [t[kind]["mse_by_dimension"] for t in told if t[kind]]
    cover = [t["coverage"] for t in told if t["coverage"]]
    levels = [f"{100 * level:g}" for level in cover[0]["levels"]] if cover else []
    shares = np.mean([c["truth"] or c["after"] for c in cover], axis=0) if cover else []
    bins = told[0]["by_return"]
    at = scale(np.array([b["return"] for b in bins]))
    return {
        "name": plan.names["idm"],
        "mse": np.mean([t["truth"]["mse"] for t in told]) if kind == "truth" else None,
        "validation_mse": np.mean(known) if known else None,
        "by_dimension": np.mean(dims, axis=0) if dims else [],
        "coverage": dict(zip(levels, shares, strict=True)) if cover else None,
        "by_return": [
            [r, None if b["rmse"] is None else b["rmse"] ** 2, b["std"]] for r, b in zip(at, bins, strict=True)
        ],
    }


def _curves(plan: Plan, outcome: Outcome, cells: list[SplitKey], scale: Scale) -> dict:
    out = {}
    for variant in plan.variants:
        found = [outcome.curves[plan.training_key(variant, cell)] for cell in cells]
        told = {metric: [one[metric] for one in found] for metric in found[0] if metric != "score"}
        lost = np.full(len(plan.snapshot_updates), np.nan)  # of one whose policy could never be played
        scored = any("score" in one for one in found)
        score = {"score": [scale(one.get("score", lost)) for one in found]} if scored else {}
        out[variant] = {"at": plan.snapshot_updates, **score, **told}
    return out
