"""The schema of a cell's result.json in a store, `CELL_RESULT`; a cell has the keys of every kind of cell."""

from __future__ import annotations

from typing import Any

from ssorl.utils.schema import COUNT, NUMBER, NUMBERS, TABLE, TEXT, Kind, check_object, map_of, or_null

CELL_RESULT: dict[str, Kind] = {
    "schema": COUNT,
    "cell": TABLE,  # settings, see `cell.Cell.as_json`
    "returns": NUMBERS,  # returns of the weights that the study names, one for each episode
    "normalised": or_null(NUMBERS),  # the same on the scale of the reference scores
    "score": NUMBER,  # their mean, normalised if there are reference scores
    "scores": map_of(NUMBER),  # scores of the last and the averaged weights
    "curve": map_of(NUMBERS),  # learning curve: `at` has the numbers of updates
    "data": or_null(TABLE),  # returns of the trajectories; only of cells of kind "data"
    "labelled_return": NUMBER,
    "idm": or_null(TABLE),
    "timings": map_of(NUMBER),
}
CELL_IDM: dict[str, Kind] = {"hash": TEXT, "mse": NUMBER, "validation_mse": NUMBER, "by_round": NUMBERS}


def check(result: Any, where: str = "result.json") -> None:
    """Check that the result of a cell has the schema.

    Args:
        result: content of a cell's result.json.
        where: name of the file, for the message.

    Raises:
        DataError: a value is missing or of another kind.
    """
    check_object(result, CELL_RESULT, where)
    if result["idm"] is not None:
        check_object(result["idm"], CELL_IDM, f"{where}: idm")
