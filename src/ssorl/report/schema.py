"""The schema of a run's result.json, `RUN_RESULT`, which docs/result.md describes in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ssorl.utils.errors import DataError
from ssorl.utils.files import DamagedError, read_json
from ssorl.utils.schema import (
    COUNT,
    FLAG,
    NUMBER,
    NUMBERS,
    PER_SEED,
    RERUN,
    TABLE,
    TEXT,
    Kind,
    check_object,
    is_number,
    list_of,
    map_of,
    or_null,
    short_repr,
)

SCHEMA = 1
VARIANTS = ("baseline", "ss", "oracle")
KINDS = ("rollout", "fqe")  # returns of rollouts, or estimates by fitted-Q evaluation
# Coupled splits have a percentage, decoupled ones name two thirds, and data with gaps or of two files has null.
QUALITY: Kind = (
    "a percentage, a string or null",
    lambda value: value is None or is_number(value) or isinstance(value, str),
)
FOLDER: Kind = (
    "the name of a sub-folder",
    lambda value: isinstance(value, str) and bool(re.fullmatch(r"[\w-][\w.-]*", value, re.ASCII)),
)

SCORE: dict[str, Kind] = {"mean": NUMBER, "low": NUMBER, "high": NUMBER, "returns": PER_SEED}
SHARES: dict[str, Kind] = {"relative_gap": or_null(map_of(NUMBER)), "gap_closed": NUMBER}
RUN_RESULT: dict[str, Kind] = {
    "title": TEXT,
    "command": TEXT,
    "complete": FLAG,
    "config": TABLE,
    "versions": TABLE,
    "hardware": TABLE,
    "commit": or_null(TEXT),
    "started": TEXT,
    "seeds": list_of(COUNT),
    "env": or_null(TEXT),
    "kind": (" or ".join(KINDS), lambda value: value in KINDS),
    "normalised": FLAG,
    "scores": TABLE,
    **SHARES,
    "policy": ("average or last", lambda value: value in ("average", "last")),
    "split": TABLE,
    "idm": or_null(TABLE),
    "curves": TABLE,
    "timings": map_of(NUMBER),
}
REVISIONS: dict[str, Kind] = {"revisions": map_of(or_null(COUNT))}  # absent from files of version 0.1
SPLIT: dict[str, Kind] = {
    "fraction": NUMBER,
    "quality": QUALITY,
    "setup": or_null(TEXT),
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
    "coverage": or_null(map_of(NUMBER)),
    "by_return": (
        "a list, each [return, mse, std]",
        lambda value: PER_SEED[1](value) and all(len(row) == 3 for row in value),
    ),
}
IDM_FORECAST: dict[str, Kind] = {  # absent without a forecast of the label error, and from files of version 0.1
    "forecast": or_null(map_of(NUMBER)),
    "advice": or_null(TEXT),
    "doubtful": TABLE,
}
DOUBTFUL: dict[str, Kind] = {
    "action": ("keep, weight or drop", lambda value: value in ("keep", "weight", "drop")),
    "trajectories": list_of(or_null(COUNT)),
    "proxy_actions": list_of(or_null(COUNT)),
}
RUN_RESULT_OF_QUALITIES: dict[str, Kind] = {"cells": list_of(TABLE)}
ENTRY_OF_QUALITY: dict[str, Kind] = {
    "quality": ("a percentage", is_number),
    "folder": FOLDER,
    "scores": TABLE,
    **SHARES,
}
PARENT_OPTIONAL = ("title", "command", "complete", "kind", "normalised")


def check(result: Any, where: str = "result.json") -> None:
    """Check that a result has the schema that docs/result.md describes.

    Args:
        result: content of a result.json.
        where: name of the file, for the message.

    Raises:
        DataError: an entry is missing or invalid; the message names the first one.
    """
    if not isinstance(result, dict) or result.get("schema") != SCHEMA:
        schema = result.get("schema") if isinstance(result, dict) else result
        raise DataError(
            f"{where}: schema is {short_repr(schema)}, expected {SCHEMA}; give a folder that this version's "
            "`ssorl run` wrote"
        )
    if "cells" in result:
        optional = {key: RUN_RESULT[key] for key in PARENT_OPTIONAL if key in result}
        check_object(result, {**RUN_RESULT_OF_QUALITIES, **optional}, where)
        for i, cell in enumerate(result["cells"]):
            check_object(cell, ENTRY_OF_QUALITY, f"{where}: cells[{i}]")
            _check_scores(cell["scores"], f"{where}: cells[{i}]")
        return
    check_object(result, RUN_RESULT, where)
    if "revisions" in result:
        check_object(result, REVISIONS, where)
    check_object(result["split"], SPLIT, f"{where}: split")
    if result["idm"] is not None:
        check_object(result["idm"], IDM, f"{where}: idm")
        if "doubtful" in result["idm"]:
            check_object(result["idm"], IDM_FORECAST, f"{where}: idm")
            check_object(result["idm"]["doubtful"], DOUBTFUL, f"{where}: idm.doubtful")
    _check_scores(result["scores"], where)
    for variant, score in result["scores"].items():
        n_lists, n_seeds = len(score["returns"]), len(result["seeds"])
        if n_lists != n_seeds:
            raise DataError(
                f"{where}: scores.{variant}.returns has {n_lists} lists, expected {n_seeds} (one for each seed); "
                f"{RERUN}"
            )
    for variant, curve in result["curves"].items():
        _check_curve(curve, f"{where}: curves.{variant}")


def read(folder: Path) -> dict:
    """Return the content of the result.json in a run folder, checked.

    Raises:
        DataError: the file is missing, damaged or invalid.
    """
    path = Path(folder) / "result.json"
    try:
        result = read_json(path)
    except FileNotFoundError as err:
        raise DataError(f"{path}: file not found; give the folder of a finished `ssorl run`") from err
    except (OSError, DamagedError) as err:
        raise DataError(f"{path}: cannot be read as JSON ({err}); {RERUN}") from err
    check(result, str(path))
    return result


def _check_scores(scores: dict, where: str) -> None:
    for variant, score in scores.items():
        if variant not in VARIANTS:
            raise DataError(f"{where}: scores has {short_repr(variant)}, expected {', '.join(VARIANTS)}; {RERUN}")
        check_object(score, SCORE, f"{where}: scores.{variant}")


def _check_curve(curve: Any, where: str) -> None:
    metrics = [key for key in curve if key != "at"] if isinstance(curve, dict) else []
    check_object(curve, {"at": NUMBERS, **dict.fromkeys(metrics, PER_SEED)}, where)
    for metric in metrics:
        for values in curve[metric]:
            if len(values) != len(curve["at"]):
                raise DataError(
                    f"{where}: a seed of {metric} has {len(values)} values, expected {len(curve['at'])} (one for each "
                    f"entry of `at`); {RERUN}"
                )
