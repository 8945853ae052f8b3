"""Statistics of features as LeRobot keeps them: for the whole dataset and for each episode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
Stats = dict[str, np.ndarray]  # min, max, mean, std, count, each a vector


def episode_stats(rows: np.ndarray, start: np.ndarray) -> list[Stats]:
    """Return the statistics of each episode; rows that are not finite do not count.

    Args:
        rows: [N, size].
        start: [E+1], the first row of each episode, then N.
    """
    rows = np.asarray(rows, np.float64)
    known = np.all(np.isfinite(rows), axis=1)
    at = start[:-1]
    count = np.add.reduceat(known.astype(np.int64), at)
    filled = np.where(known[:, None], rows, 0)
    with np.errstate(all="ignore"):
        mean = np.add.reduceat(filled, at) / count[:, None]
        centred = np.where(known[:, None], rows - np.repeat(mean, np.diff(start), axis=0), 0)
        std = np.sqrt(np.add.reduceat(centred**2, at) / count[:, None])
    low = np.minimum.reduceat(np.where(known[:, None], rows, np.inf), at)
    high = np.maximum.reduceat(np.where(known[:, None], rows, -np.inf), at)
    empty = count == 0
    for array in (mean, std, low, high):
        array[empty] = 0
    return [
        {"min": low[e], "max": high[e], "mean": mean[e], "std": std[e], "count": np.array([count[e]])}
        for e in range(len(count))
    ]


def merged(parts: Iterable[Stats]) -> Stats:
    """Return the statistics of all episodes together, without quantiles."""
    parts = [p for p in parts if p["count"][0]]
    if not parts:
        raise ValueError("no episode has a value")
    count = np.array([p["count"][0] for p in parts], np.float64)[:, None]
    mean = sum(n * p["mean"] for n, p in zip(count, parts, strict=True)) / count.sum()
    square = sum(n * (p["std"] ** 2 + (p["mean"] - mean) ** 2) for n, p in zip(count, parts, strict=True))
    return {
        "min": np.min([p["min"] for p in parts], axis=0),
        "max": np.max([p["max"] for p in parts], axis=0),
        "mean": np.asarray(mean),
        "std": np.sqrt(np.asarray(square) / count.sum()),
        "count": np.array([int(count.sum())]),
    }


def quantiles(rows: np.ndarray) -> Stats:
    """Return LeRobot's quantiles of rows [N, size]; rows that are not finite do not count."""
    rows = np.asarray(rows, np.float64)
    rows = rows[np.all(np.isfinite(rows), axis=1)]
    return {name: np.quantile(rows, q, axis=0) for name, q in QUANTILES.items()} if len(rows) else {}


def as_json(stats: Stats) -> dict[str, Any]:
    """Return statistics as lists."""
    return {name: np.asarray(value).tolist() for name, value in stats.items()}
