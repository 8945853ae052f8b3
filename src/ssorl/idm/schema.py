"""The schema of label reports, which `ssorl label --json` prints and runs store."""

from __future__ import annotations

from typing import Any

from ssorl.utils.schema import COUNT, NUMBER, NUMBERS, TABLE, TEXT, Kind, check_object, list_of, or_null

LABEL_REPORT: dict[str, Kind] = {
    "data": TABLE,
    "model": TABLE,
    "validation": or_null(TABLE),  # null: no held-out step has a true action
    "coverage": or_null(TABLE),  # null: no held-out step has a true action
    "proxies": TABLE,
    "truth": or_null(TABLE),  # null: the hidden actions are not known
    "by_return": list_of(TABLE),
    "worst": list_of(TABLE),
}
DATA: dict[str, Kind] = {
    "source": TEXT,
    "env": or_null(TEXT),
    **dict.fromkeys(("trajectories", "steps", "labelled_steps", "proxy_steps", "trajectories_with_proxies"), COUNT),
}
MODEL: dict[str, Kind] = {
    "fitted_to": TEXT,
    "labelled_trajectories": COUNT,
    "labelled_steps": COUNT,
    "labelled_returns": NUMBERS,
    "labelled_variance": NUMBERS,
}
PROXIES: dict[str, Kind] = {"std": NUMBER, "std_by_dimension": NUMBERS, "unseen_share": NUMBER}
ERRORS: dict[str, Kind] = {"mse": NUMBER, "mse_by_dimension": NUMBERS}


def check(report: Any, where: str = "label report") -> None:
    """Check that a label report has the schema.

    Args:
        report: a label report, such as `ssorl.idm.fill.LabelledData.report`.
        where: name of the report, for the message.

    Raises:
        DataError: a value is missing or has another type.
    """
    check_object(report, LABEL_REPORT, where)
    for name, schema in {"data": DATA, "model": MODEL, "proxies": PROXIES}.items():
        check_object(report[name], schema, f"{where}: {name}")
    for name in ("validation", "truth"):
        if report[name] is not None:
            check_object(report[name], ERRORS, f"{where}: {name}")
