"""What a run's result.json holds, in one place; docs/result.md says the same in words."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ssorl.utils.errors import DataError
from ssorl.utils.files import DamagedError, read_json

SCHEMA = 1
VARIANTS = ("baseline", "ss", "oracle")
KINDS = ("rollout", "fqe")  # returns of played episodes, or estimates by fitted-Q evaluation
# A kind of value: what it is in words, and whether a value is one.
Kind = tuple[str, Callable[[Any], bool]]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _list(of: Kind) -> Kind:
    return f"a list, each {of[0]}", lambda value: isinstance(value, list) and all(of[1](x) for x in value)


def _or_null(kind: Kind) -> Kind:
    return f"{kind[0]} or null", lambda value: value is None or kind[1](value)


def _map(of: Kind) -> Kind:
    return f"an object, each {of[0]}", lambda value: isinstance(value, dict) and all(of[1](x) for x in value.values())


TEXT: Kind = ("a text", lambda value: isinstance(value, str))
FLAG: Kind = ("true or false", lambda value: isinstance(value, bool))
COUNT: Kind = ("a count", lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0)
TABLE: Kind = ("an object", lambda value: isinstance(value, dict))
NUMBER: Kind = ("a number or null", lambda value: value is None or _number(value))
NUMBERS = _list(NUMBER)
PER_SEED = _list(NUMBERS)
# A split made by `ssorl data split` has a percentage; two files have none; the decoupled setup names a third.
QUALITY: Kind = (
    "a percentage, a text or null",
    lambda value: value is None or _number(value) or isinstance(value, str),
)
FOLDER: Kind = (
    "the name of a sub-folder",
    lambda value: isinstance(value, str) and bool(re.fullmatch(r"[\w-][\w.-]*", value, re.ASCII)),
)

SCORE: dict[str, Kind] = {"mean": NUMBER, "low": NUMBER, "high": NUMBER, "returns": PER_SEED}
SHARES: dict[str, Kind] = {"relative_gap": _or_null(_map(NUMBER)), "gap_closed": NUMBER}
RUN: dict[str, Kind] = {
    "title": TEXT,
    "command": TEXT,
    "complete": FLAG,
    "config": TABLE,
    "versions": TABLE,
    "hardware": TABLE,
    "commit": _or_null(TEXT),
    "started": TEXT,
    "seeds": _list(COUNT),
    "env": _or_null(TEXT),
    "kind": (" or ".join(KINDS), lambda value: value in KINDS),
    "normalised": FLAG,
    "scores": TABLE,
    **SHARES,
    "policy": ("average or last", lambda value: value in ("average", "last")),
    "split": TABLE,
    "idm": _or_null(TABLE),
    "curves": TABLE,
    "timings": _map(NUMBER),
}
REVISIONS: dict[str, Kind] = {"revisions": _map(_or_null(COUNT))}  # not in files of version 0.1
SPLIT: dict[str, Kind] = {
    "fraction": NUMBER,
    "quality": QUALITY,
    "setup": _or_null(TEXT),
    "n_labelled": COUNT,
    "n_unlabelled": COUNT,
    "n_steps": COUNT,
    "labelled_return": NUMBERS,
    "unlabelled_return": NUMBERS,
}
IDM: dict[str, Kind] = {
    "name": TEXT,
    "mse": NUMBER,
    "validation_mse": NUMBER,
    "by_dimension": NUMBERS,
    "coverage": _or_null(_map(NUMBER)),
    "by_return": (
        "a list, each [return, mse, std]",
        lambda value: PER_SEED[1](value) and all(len(row) == 3 for row in value),
    ),
}
PARENT: dict[str, Kind] = {"cells": _list(TABLE)}
CELL: dict[str, Kind] = {"quality": ("a percentage", _number), "folder": FOLDER, "scores": TABLE, **SHARES}
SHARED = ("title", "command", "complete", "kind", "normalised")  # may be left out of a parent


def check(result: Any, where: str = "result.json") -> None:
    """Raise one sentence about the first thing in `result` that is not as docs/result.md says."""
    if not isinstance(result, dict) or result.get("schema") != SCHEMA:
        found = result.get("schema") if isinstance(result, dict) else result
        raise DataError(
            f"{where}: its schema is {_shown(found)}, not {SCHEMA}; name a folder that this version's `ssorl run` wrote"
        )
    if "cells" in result:
        shared = {key: RUN[key] for key in SHARED if key in result}
        _match(result, {**PARENT, **shared}, where)
        for i, cell in enumerate(result["cells"]):
            _match(cell, CELL, f"{where}: cells[{i}]")
            _scores(cell["scores"], f"{where}: cells[{i}]")
        return
    _match(result, RUN, where)
    if "revisions" in result:
        _match(result, REVISIONS, where)
    _match(result["split"], SPLIT, f"{where}: split")
    if result["idm"] is not None:
        _match(result["idm"], IDM, f"{where}: idm")
    _scores(result["scores"], where)
    for variant, score in result["scores"].items():
        found, seeds = len(score["returns"]), len(result["seeds"])
        if found != seeds:
            raise DataError(
                f"{where}: scores.{variant}.returns has {found} lists for {seeds} seeds; run the command again"
            )
    for variant, curve in result["curves"].items():
        at = f"{where}: curves.{variant}"
        _match(curve, {"at": NUMBERS, **{key: PER_SEED for key in curve if key != "at"}}, at)
        for metric, runs in curve.items():
            if metric != "at" and any(len(run) != len(curve["at"]) for run in runs):
                raise DataError(f"{at}: a seed of {metric} has not the {len(curve['at'])} values that `at` has")


def read(folder: Path) -> dict:
    """The checked result of a run folder."""
    path = Path(folder) / "result.json"
    try:
        result = read_json(path)
    except FileNotFoundError as err:
        raise DataError(f"{path}: there is no such file; name a folder that `ssorl run` finished") from err
    except (OSError, DamagedError) as err:
        raise DataError(f"{path}: not readable as JSON ({err}); run the command again to write it anew") from err
    check(result, str(path))
    return result


def _scores(scores: dict, where: str) -> None:
    for variant, score in scores.items():
        if variant not in VARIANTS:
            raise DataError(f"{where}: scores has {_shown(variant)}; its variants are {', '.join(VARIANTS)}")
        _match(score, SCORE, f"{where}: scores.{variant}")


def _match(value: Any, kinds: dict[str, Kind], where: str) -> None:
    if not isinstance(value, dict):
        raise DataError(f"{where} is {_shown(value)}, not an object; run the command again to write it anew")
    for key, (words, fits) in kinds.items():
        if key not in value:
            raise DataError(f"{where}: {key} is missing ({words}); run the command again to write it anew")
        if not fits(value[key]):
            raise DataError(f"{where}: {key} is {_shown(value[key])}, not {words}; run the command again")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:39] + "…"
