"""Shared by the scripts of the results page: constants, tables, and the parts of a study that are complete."""

import tomllib
from pathlib import Path
from typing import Any

from ssorl.study import statistics
from ssorl.study.paper import STUDIES
from ssorl.study.results import StudyResults, gather, values

ROOT = Path(__file__).parents[1]
PUBLISHED = tomllib.loads((ROOT / "results" / "published.toml").read_text())
WORDS = tomllib.loads((ROOT / "results" / "words.toml").read_text())
SCALES = ("paper", "lite")  # results at scale smoke are not published
TITLES = {"paper": "the paper's training", "lite": "lite"}
TRAINING = {"lite": "the paper's updates at a twentieth of its batch", "paper": "the paper's training"}
IDMS = ("paper", "robust")
NAMED = {"paper": "the paper's", "robust": "robust"}
MAINS = ("main-medium-expert", "main-medium", "main-medium-replay", "main-halfcheetah", "wide-subsample", "maze2d")


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def words(*keys: str) -> str:
    """Return our comment on a page, a study or a claim from results/words.toml, or ""."""
    text: Any = WORDS
    for key in keys:
        text = text.get(key, {})
    return text.strip() if text else ""


def interval(estimate: statistics.Estimate | None) -> str:
    """Return an estimate with its interval as text."""
    return f"{estimate.value:.0f} [{estimate.low:.0f}, {estimate.high:.0f}]" if estimate else "unknown"


def main_studies() -> list:
    """Return the studies of baseline, SS and oracle against q with a tenth labelled."""
    return [STUDIES[name] for name in MAINS if name in STUDIES]


def parts_to_show(study, scale: str, store: Path) -> list[dict[str, list]]:
    """Return the complete part of a study, and further places where at least two qualities are complete."""
    first, results = complete_part(study, scale, store), gather(study, scale, store)
    if not first or "quality" in first or study.by in first or study.by == "agent":
        return [] if first is None else [first]
    axes = [axis for axis in ("agent", "dataset") if len(values(results, axis)) > 1]
    by_place: dict[tuple, list] = {}
    for *place, quality in complete_places(results, [*axes, "quality"]):
        if any(value not in first.get(axis, [value]) for axis, value in zip(axes, place, strict=True)):
            by_place.setdefault(tuple(place), []).append(quality)
    more = [
        {axis: [value] for axis, value in zip(axes, place, strict=True)} | {"quality": qualities}
        for place, qualities in by_place.items()
        if len(qualities) > 1
    ]
    return [first, *more]


def complete_part(study, scale: str, store: Path) -> dict[str, list] | None:
    """Return the agents and datasets whose points all have results, as `--only` takes them.

    If no dataset is complete, the part is the dataset with most complete qualities. If no quality is complete either,
    it is the place with most complete values of the axis that the study compares, at least two.

    Returns:
        Values by axis; {} if the whole study is complete, None if no part is, or if a study that compares agents has
        only one.
    """
    results = gather(study, scale, store)
    if all(entry.result for entry in results):
        return {}
    axes = [axis for axis in ("agent", "dataset") if len(values(results, axis)) > 1]
    places = complete_places(results, axes)
    if axes and places:
        # Of the first axis, the value with most complete values of the second axis, and all values that have these too.
        of = {first: [at[1:] for at in places if at[0] == first] for first in dict.fromkeys(at[0] for at in places)}
        most = max(of.values(), key=len)
        only = {axes[0]: [first for first, rest in of.items() if set(rest) >= set(most)]}
        only |= {axis: [at[0] for at in most] for axis in axes[1:]}
    else:
        only = most_complete(results, axes, "quality", 1) or most_complete(results, axes, study.by, 2)
    if only is None:
        return None
    if study.by == "agent" and len(only.get("agent", ())) < 2:
        return None
    return {axis: wanted for axis, wanted in only.items() if set(wanted) != set(values(results, axis))}


def most_complete(results: list[StudyResults], axes: list[str], inner: str, least: int) -> dict[str, list] | None:
    """Return the place on `axes` with most complete values of `inner`, at least `least`, and these values."""
    complete = [] if inner in axes else complete_places(results, [*axes, inner])
    places = [at[:-1] for at in complete]
    if not complete or max(map(places.count, places)) < least:
        return None
    place = max(places, key=places.count)
    only = {axis: [value] for axis, value in zip(axes, place, strict=True)}
    return only | {inner: [at[-1] for at in complete if at[:-1] == place]}


def complete_places(results: list[StudyResults], axes: list[str]) -> list[tuple]:
    """Return the values of axes for which every point has a result."""
    places: dict[tuple, bool] = {}
    for entry in results:
        if all(axis in entry.at for axis in axes):
            at = tuple(entry.at[axis] for axis in axes)
            places[at] = places.get(at, True) and entry.result is not None
    return [at for at, is_complete in places.items() if is_complete]
