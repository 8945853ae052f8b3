"""Read the results of a study from a store."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ssorl.study import revisions
from ssorl.study.cell import Cell
from ssorl.study.grid import Point, Study
from ssorl.study.store import read
from ssorl.utils.identity import Revisions


class StudyResults(NamedTuple):
    """One point of a study's grid with its result, if it has one."""

    at: dict[str, Any]  # coordinates of the point
    hash: str  # name of the cell's folder in the store
    result: dict | None  # content of result.json
    why: str = ""  # the reason why there is no result
    shown: Revisions = Revisions()  # revisions that computed the result
    newest: Revisions = Revisions()  # revisions of this version

    @property
    def score(self) -> float | None:
        """Return the mean score of the weights that the scale names, or None."""
        return number((self.result or {}).get("score"))

    @property
    def mse(self) -> float | None:
        """Return the mean squared error of the labels on the unlabelled trajectories, or None."""
        return number(_table(self.result, "idm").get("mse"))

    @property
    def curve(self) -> dict[str, list[float | None]]:
        """Return the learning curve: `at` (updates), `score` and metrics by name, lists of one length."""
        curve = {str(k): numbers(v) for k, v in _table(self.result, "curve").items()}
        return {k: v for k, v in curve.items() if len(v) == len(curve.get("at", ())) and v}


def strata(tasks: Iterable[Sequence[StudyResults]], of: Callable[[StudyResults], float | None]) -> list[list[float]]:
    """Return one number for each result, task by task, as `statistics.estimate` takes them.

    Args:
        tasks: results of one task's seeds, for each task.
        of: the number of a result; results without a number are left out.

    Returns:
        A list for each task. Tasks with the same results share one list object, so that the bootstrap draws them once.
    """
    shared: dict[tuple[str, ...], list[float]] = {}
    out = []
    for seeds in tasks:
        numbers = [x for result in seeds if (x := of(result)) is not None]
        out.append(shared.setdefault(tuple(result.hash for result in seeds), numbers))
    return out


def gather(
    study: Study,
    scale: str,
    store: Path | str,
    seeds: int | None = None,
    only: Mapping[str, Iterable[Any]] | None = None,
    policy: str | None = None,
) -> list[StudyResults]:
    """Return the points of a study with their results, of the newest revisions that have their cells.

    `revisions.choose` chooses the revisions. If `seeds` is None and the store has results of further seeds, points of
    these seeds are appended; their missing results are not.

    Args:
        study: the study.
        scale: name of the scale.
        store: the store's folder.
        seeds: number of seeds; None: the number of the study or of the scale.
        only: allowed values of some coordinates, as `Study.points` takes them.
        policy: weights to score, "last" or "average"; None: those that the scale names.
    """
    cache: dict[str, tuple[dict | None, str]] = {}
    results: dict[tuple, StudyResults] = {}

    def stored(cell: Cell) -> tuple[dict | None, str]:
        if cell.hash not in cache:
            result, why = read(Path(store) / "cells" / cell.hash)
            cache[cell.hash] = result if policy is None or result is None else _scored_by(result, policy), why
        return cache[cell.hash]

    points = study.points(scale, seeds, only)
    chosen = revisions.choose(points, lambda cell: stored(cell)[0] is not None)

    def add(points: Iterable[Point]) -> list[StudyResults]:
        """Add the points whose coordinates are new, and return them; of equal coordinates the last point counts."""
        fresh = {}
        for point in points:
            cell = revisions.shown(point, chosen)
            entry = StudyResults(point.at, cell.hash, *stored(cell), cell.revisions, point.cell.revisions)
            fresh[tuple(point.at.items())] = entry
        return [results.setdefault(key, entry) for key, entry in fresh.items() if key not in results]

    add(points)
    planned, further = list(results.values()), []
    n = min(Counter(tuple((k, v) for k, v in entry.at.items() if k != "seed") for entry in planned).values())
    fixed = seeds or "seed" in (only or {})
    while more := [] if fixed else [p for p in study.points(scale, n + 1, only) if p.at.get("seed") == n]:
        new = add(more)  # empty if a grid sets a larger number of seeds itself
        if new and not any(entry.result for entry in new):
            break
        further += [entry for entry in new if entry.result]
        n += 1
    return planned + further


def _scored_by(result: dict, policy: str) -> dict:
    """Return a result with the score of other weights; its learning curve stays that of the scale's weights."""
    return {**result, "score": _table(result, "scores").get(policy)}


def select(results: Iterable[StudyResults], at: Mapping[str, Any]) -> list[StudyResults]:
    """Return the results with given coordinates.

    Args:
        results: results of one or more studies.
        at: a value for each coordinate, or a tuple of allowed values.
    """
    wanted = [(name, value if isinstance(value, tuple) else (value,)) for name, value in at.items()]
    return [result for result in results if all(result.at.get(name) in allowed for name, allowed in wanted)]


def values(results: Iterable[StudyResults], name: str) -> list[Any]:
    """Return the distinct values of a coordinate, in the order of the grid."""
    return list(dict.fromkeys(result.at[name] for result in results if name in result.at))


def number(value: Any) -> float | None:
    """Return a finite number as a float, and None for any other value."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def numbers(value: Any) -> list[float | None]:
    """Return the numbers of a list, with None for items that are no finite number, and [] for any other value."""
    return [number(v) for v in value] if isinstance(value, list) else []


def _table(result: dict | None, name: str) -> dict:
    table = (result or {}).get(name)
    return table if isinstance(table, dict) else {}
