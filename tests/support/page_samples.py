"""Synthetic results of runs, with the shapes and sizes that `ssorl run` writes."""

import json

import numpy as np

MEANS = {"baseline": 34.0, "ss": 61.2, "oracle": 91.0}


def result(seeds=5, episodes=30, points=40, means=None, **changes) -> dict:
    """Return a complete result; `changes` replace its entries."""
    rng = np.random.default_rng(0)
    means = MEANS if means is None else means
    scores, curves = {}, {}
    for name, mean in means.items():
        level = mean + rng.normal(0, 3, seeds)
        returns = level[:, None] + rng.normal(0, 6, (seeds, episodes))
        half = 3.1 + 0.1 * mean / 10
        scores[name] = {"mean": mean, "low": mean - half, "high": mean + half, "returns": returns.tolist()}
        at = np.linspace(0, 20000, points)
        rise = level[:, None] * (1 - np.exp(-at / 5000)) + rng.normal(0, 2, (seeds, points))
        curves[name] = {
            "at": [int(a) for a in at],
            "score": rise.tolist(),
            "critic_loss": (2 + rng.normal(0, 0.2, (seeds, points)) + 40 * np.exp(-at / 3000)).tolist(),
            "q": (mean * 3 * (1 - np.exp(-at / 7000)) + rng.normal(0, 4, (seeds, points))).tolist(),
            "actor_loss": (-1.5 * (1 - np.exp(-at / 2000)) + rng.normal(0, 0.02, (seeds, points))).tolist(),
        }
    gap = {n: (means["oracle"] - means[n]) / means["oracle"] for n in ("baseline", "ss")} if "oracle" in means else None
    low, high = rng.normal(30, 9, 320), np.concatenate([rng.normal(45, 9, 900), rng.normal(109, 3, 980)])
    returns = np.linspace(15, 112, 12)
    sample = {
        "schema": 1,
        "title": "sim/hopper-medium-expert",
        "command": "ssorl run sim/hopper-medium-expert --agent td3bc --fraction 0.1 --quality 50 --seeds 5",
        "complete": True,
        "config": {
            "agent": {"name": "td3bc", "updates": 20000, "alpha": 2.5, "hidden": [256, 256], "half": None},
            "idm": {"name": "robust-quick", "members": 3},
            "fraction": 0.1,
            "quality": 50,
        },
        "versions": {"ssorl": "0.1.0", "python": "3.11.2", "jax": "0.10.2", "numpy": "2.4.6"},
        "hardware": {"device": "cpu", "cores": 2, "memory_gib": 8},
        "commit": "fc41796",
        "started": "2026-11-15T09:41:02+00:00",
        "seeds": list(range(seeds)),
        "env": "hopper",
        "kind": "rollout",
        "normalised": True,
        "scores": scores,
        "relative_gap": gap,
        "gap_closed": (means["ss"] - means["baseline"]) / (means["oracle"] - means["baseline"]) if gap else None,
        "policy": "average",
        "split": {
            "fraction": 0.1,
            "quality": 50,
            "setup": "coupled",
            "n_labelled": 320,
            "n_unlabelled": 2893,
            "n_steps": 1998522,
            "labelled_return": low.tolist(),
            "unlabelled_return": high.tolist(),
        },
        "idm": {
            "name": "robust-quick",
            "mse": 0.0391,
            "validation_mse": 0.0062,
            "by_dimension": [0.021, 0.033, 0.063],
            "coverage": {"50": 0.52, "80": 0.79, "95": 0.93},
            "by_return": [[r, 0.006 + 0.07 * (r / 112) ** 3, 0.09 + 0.1 * (r / 112) ** 2] for r in returns],
        },
        "curves": curves,
        "timings": {"split": 0.4, "idm": 51.2, "labels": 4.9, "training": 171.0, "evaluation": 21.3, "page": 0.3},
    }
    return {**sample, **changes}


def small(**changes) -> dict:
    """Return a complete result with few seeds, episodes and points; `changes` replace its entries."""
    return result(seeds=2, episodes=2, points=3, **changes)


def parent(qualities=(10, 30, 50, 70, 90, 100)) -> dict:
    """Return a result over several label qualities."""
    cells = []
    for q in qualities:
        means = {"baseline": 10 + q / 1.6, "ss": 20 + 0.7 * q, "oracle": 91.0}
        cell = result(seeds=2, episodes=2, points=2, means=means)
        keys = ("scores", "relative_gap", "gap_closed")
        cells.append({"quality": q, "folder": f"q{q}", **{k: cell[k] for k in keys}})
    keys = ("schema", "title", "command", "complete", "kind", "normalised")
    return {k: cell[k] for k in keys} | {"cells": cells}


def write(folder, sample: dict):
    """Write a result into a run folder and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(sample))
    return folder
