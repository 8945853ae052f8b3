"""What a store holds of a study: reads cells' result.json, knows nothing of how they came about."""

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
    """One place of a study's grid with its result, if there is one."""

    at: dict[str, Any]  # its coordinates
    hash: str  # its folder in the store
    result: dict | None
    why: str = ""  # there is none
    shown: Revisions = Revisions()  # of the agent and the IDM that made it
    newest: Revisions = Revisions()  # that this version has

    @property
    def score(self) -> float | None:
        """The mean score of the policy that the cell names."""
        return number((self.result or {}).get("score"))

    @property
    def mse(self) -> float | None:
        """The action error of its inverse dynamics model on the unlabelled trajectories."""
        return number(_table(self.result, "idm").get("mse"))

    @property
    def curve(self) -> dict[str, list[float | None]]:
        """Its learning curve: `at`, `score` and metrics, all of one length."""
        told = {str(k): numbers(v) for k, v in _table(self.result, "curve").items()}
        return {k: v for k, v in told.items() if len(v) == len(told.get("at", ())) and v}


def strata(tasks: Iterable[Sequence[StudyResults]], of: Callable[[StudyResults], float | None]) -> list[list[float]]:
    """A number of each result, task by task, for the bootstrap; tasks of the same results share one list."""
    shared: dict[tuple[str, ...], list[float]] = {}
    told = []
    for some in tasks:
        numbers = [x for one in some if (x := of(one)) is not None]
        told.append(shared.setdefault(tuple(one.hash for one in some), numbers))
    return told


def gather(
    study: Study,
    scale: str,
    store: Path | str,
    seeds: int | None = None,
    only: Mapping[str, Iterable[Any]] | None = None,
    policy: str | None = None,
) -> list[StudyResults]:
    """Every point of the study at a scale, or of the part asked for, with its result where it has finished.

    Results are of the newest revisions of agent and IDM that have their cells (`revisions.choose`).

    Where the store has further seeds of a point than the scale asks for, they are there too, unless `seeds` says how
    many; where it has none of them, none is missing. Scores are of the weights that the scale names, or of `policy`:
    every result keeps what both earn.
    """
    shelf: dict[str, tuple[dict | None, str]] = {}
    found: dict[tuple, StudyResults] = {}

    def stored(cell: Cell) -> tuple[dict | None, str]:
        if cell.hash not in shelf:
            result, why = read(Path(store) / "cells" / cell.hash)
            shelf[cell.hash] = result if policy is None or result is None else _of(result, policy), why
        return shelf[cell.hash]

    points = study.points(scale, seeds, only)
    chosen = revisions.choose(points, lambda cell: stored(cell)[0] is not None)

    def look(points: Iterable[Point]) -> list[StudyResults]:
        fresh = {}
        for point in points:
            cell = revisions.shown(point, chosen)
            one = StudyResults(point.at, cell.hash, *stored(cell), cell.revisions, point.cell.revisions)
            fresh[tuple(point.at.items())] = one
        return [found.setdefault(key, one) for key, one in fresh.items() if key not in found]

    look(points)
    asked, further = list(found.values()), []
    n = min(Counter(tuple((k, v) for k, v in one.at.items() if k != "seed") for one in asked).values())
    named = seeds or "seed" in (only or {})
    while more := [] if named else [p for p in study.points(scale, n + 1, only) if p.at.get("seed") == n]:
        new = look(more)  # none where some grid has so many seeds of its own
        if new and not any(one.result for one in new):
            break
        further += [one for one in new if one.result]
        n += 1
    return asked + further


def _of(told: dict, policy: str) -> dict:
    """A result as its other weights earned it. Its learning curve stays that of the weights the scale names."""
    return {**told, "score": _table(told, "scores").get(policy)}


def select(found: Iterable[StudyResults], at: Mapping[str, Any]) -> list[StudyResults]:
    """Those with these coordinates; a value may be a tuple of several."""
    wanted = [(name, value if isinstance(value, tuple) else (value,)) for name, value in at.items()]
    return [one for one in found if all(one.at.get(name) in some for name, some in wanted)]


def values(found: Iterable[StudyResults], name: str) -> list[Any]:
    """The values that a coordinate takes, in the order of the grid."""
    return list(dict.fromkeys(one.at[name] for one in found if name in one.at))


def number(value: Any) -> float | None:
    """A finite number, or none."""
    fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if fine else None


def numbers(value: Any) -> list[float | None]:
    """A list of numbers; of anything else, nothing."""
    return [number(v) for v in value] if isinstance(value, list) else []


def _table(result: dict | None, name: str) -> dict:
    told = (result or {}).get(name)
    return told if isinstance(told, dict) else {}
