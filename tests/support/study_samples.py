"""Artificial results of studies, in the layout of a store: as the paper reports them, with a little noise."""

import json

import numpy as np

from ssorl.study.grid import Point
from ssorl.study.results import StudyResults

THIRDS = {"low": 0, "med": 1, "high": 2}


def score(at: dict) -> float:
    """Return a score at coordinates; with these scores all twelve claims hold."""
    q, agent, variant = at.get("quality", 50), at.get("agent"), at.get("variant", "ss")
    if "unlabelled" in at:
        base = 20 + 30 * THIRDS[at["labelled"]] + 6 * THIRDS[at["unlabelled"]]
        worse = agent == "dt" and at["labelled"] == "high" and at["unlabelled"] != "high"
        return base - 25 * (at["unlabelled_fraction"] - 0.1) * worse
    if agent == "dt-joint":
        return 15 + 0.4 * q
    if variant == "baseline":
        return 10 + 0.4 * q
    if variant == "oracle":
        return 92.0
    idm = at.get("idm", "paper")
    loss = 8 * idm.startswith("m = ") + 6 * idm.startswith(("k = 0", "k = 2"))
    return 40 + 0.5 * q + 6 * (agent == "td3bc") - loss


def mse(at: dict) -> float:
    """Return an action error at coordinates: self-training is comparable up to q = 50 and worse above."""
    others = str(at.get("idm", "")).startswith("m = ")
    return 0.2 / (1 + at.get("quality", 50) / 30) * (1 + (0.05 if at.get("quality", 50) <= 50 else 0.6) * others)


def result(point: Point | StudyResults, noise: float = 1.0, of=score) -> dict:
    """Return the content of a cell's result.json."""
    at = point.at
    rng = np.random.default_rng(at.get("seed", 0) * 7919 + len(json.dumps(at, default=str)))
    value = of(at) + noise * float(rng.normal())
    returns = value + 5 * rng.normal(size=3)
    values = {
        "schema": 1,
        "returns": (30 * returns).tolist(),
        "normalised": returns.tolist(),
        "score": value,
        "scores": {"last": value, "average": value + 1},
        "curve": {"at": [0, 500, 1000], "score": [0.0, value / 2, value], "critic_loss": [3.0, 2.0, 1.0]},
        "idm": {"mse": mse(at) * (1 + 0.02 * noise * float(rng.normal())), "validation_mse": 0.01, "by_round": []},
        "labelled_return": 20 + 0.3 * at.get("quality", 50) + float(rng.normal()),
        "data": None,
        "timings": {"training": 1.0},
    }
    if isinstance(point, Point) and point.cell.kind == "data":
        low, high = rng.normal(30, 9, 60), np.concatenate([rng.normal(45, 9, 90), rng.normal(109, 3, 90)])
        whole = point.cell.setup is None
        rest = [] if whole else high.tolist()
        values["data"] = {"labelled": [*low.tolist(), *(high.tolist() if whole else [])], "unlabelled": rest}
        values |= {"score": None, "returns": [], "normalised": None, "curve": {}, "idm": None}
        values["data"]["normalised"] = True
    if isinstance(point, Point) and point.cell.kind == "idm":
        values |= {"score": None, "returns": [], "normalised": None, "curve": {}}
    return values


def fill(store, study, scale="lite", keep=lambda point: True, seeds=None, **how):
    """Write results at the points to keep to a store, and return the store."""
    for point in study.points(scale, seeds):
        folder = store / "cells" / point.cell.hash
        if keep(point) and not folder.exists():
            folder.mkdir(parents=True)
            (folder / "result.json").write_text(json.dumps(result(point, **how)))
    return store
