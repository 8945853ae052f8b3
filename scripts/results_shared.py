"""What the parts of the results page have in common: constants, tables, and which parts of a study were run whole."""

import tomllib
from pathlib import Path
from typing import Any

from ssorl.study import statistics
from ssorl.study.paper import STUDIES
from ssorl.study.results import StudyResults, gather, values

ROOT = Path(__file__).parents[1]
PUBLISHED = tomllib.loads((ROOT / "results" / "published.toml").read_text())
WORDS = tomllib.loads((ROOT / "results" / "words.toml").read_text())
SCALES = ("paper", "lite")  # a smoke run is no result
TITLES = {"paper": "the paper's training", "lite": "lite"}
TRAINING = {"lite": "the paper's updates at a twentieth of its batch", "paper": "the paper's training"}
IDMS = ("paper", "robust")
NAMED = {"paper": "the paper's", "robust": "robust"}
MAINS = ("main-medium-expert", "main-medium", "main-medium-replay", "main-halfcheetah", "wide-subsample", "maze2d")


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def words(*keys: str) -> str:
    """What the numbers do not say by themselves; nothing where there is nothing to say."""
    told: Any = WORDS
    for key in keys:
        told = told.get(key, {})
    return told.strip() if told else ""


def interval(told: statistics.Estimate | None) -> str:
    return f"{told.value:.0f} [{told.low:.0f}, {told.high:.0f}]" if told else "unknown"


def mains() -> list:
    """The studies that set baseline, SS and oracle with a tenth labelled against q."""
    return [STUDIES[name] for name in MAINS if name in STUDIES]


def wholes(study, scale: str, store: Path) -> list[dict[str, list]]:
    """The part that `whole` finds, and beside it what further places have, if it is more than one quality."""
    first, found = whole(study, scale, store), gather(study, scale, store)
    if not first or "quality" in first or study.by in first or study.by == "agent":
        return [] if first is None else [first]
    axes = [axis for axis in ("agent", "dataset") if len(values(found, axis)) > 1]
    some: dict[tuple, list] = {}
    for *place, quality in complete(found, [*axes, "quality"]):
        if any(value not in first.get(axis, [value]) for axis, value in zip(axes, place, strict=True)):
            some.setdefault(tuple(place), []).append(quality)
    more = [
        {axis: [value] for axis, value in zip(axes, place, strict=True)} | {"quality": qualities}
        for place, qualities in some.items()
        if len(qualities) > 1
    ]
    return [first, *more]


def whole(study, scale: str, store: Path) -> dict[str, list] | None:
    """The agents and datasets of which every point is there, as `only` takes them; {}: all are, None: none is.

    One agent alone says nothing where agents are compared. Where no dataset is whole, the one with most qualities that
    are; or, where a study has several sizes or models and no quality is whole, with most of those, two at least.
    """
    found = gather(study, scale, store)
    if all(one.result for one in found):
        return {}
    axes = [axis for axis in ("agent", "dataset") if len(values(found, axis)) > 1]
    there = complete(found, axes)
    if axes and there:
        # The first that is there with most of the second axis, and those that are there with the same.
        of = {first: [at[1:] for at in there if at[0] == first] for first in dict.fromkeys(at[0] for at in there)}
        most = max(of.values(), key=len)
        only = {axes[0]: [first for first, some in of.items() if set(some) >= set(most)]}
        only |= {axis: [at[0] for at in most] for axis in axes[1:]}
    else:
        only = most_of(found, axes, "quality", 1) or most_of(found, axes, study.by, 2)
    if only is None:
        return None
    if study.by == "agent" and len(only.get("agent", ())) < 2:
        return None
    return {axis: some for axis, some in only.items() if set(some) != set(values(found, axis))}


def most_of(found: list[StudyResults], axes: list[str], inner: str, least: int) -> dict[str, list] | None:
    """The place on these axes at which most values of the inner one are whole, and those values."""
    there = [] if inner in axes else complete(found, [*axes, inner])
    places = [at[:-1] for at in there]
    if not there or max(map(places.count, places)) < least:
        return None
    place = max(places, key=places.count)
    only = {axis: [value] for axis, value in zip(axes, place, strict=True)}
    return only | {inner: [at[-1] for at in there if at[:-1] == place]}


def complete(found: list[StudyResults], axes: list[str]) -> list[tuple]:
    """The values of these axes for which every point is there."""
    places: dict[tuple, bool] = {}
    for one in found:
        if all(axis in one.at for axis in axes):
            at = tuple(one.at[axis] for axis in axes)
            places[at] = places.get(at, True) and one.result is not None
    return [at for at, all_there in places.items() if all_there]
