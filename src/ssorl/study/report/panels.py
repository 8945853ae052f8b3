"""Panels of a study's figures: which results they show, their names, estimates and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from ssorl.report import svg
from ssorl.report.axes import Value, format_number, known
from ssorl.report.blocks import Table
from ssorl.report.summary import NAMES, share
from ssorl.study import statistics
from ssorl.study.grid import Study
from ssorl.study.results import StudyResults, number, select, strata, values
from ssorl.study.statistics import Estimate

Panel = tuple[str, list[StudyResults]]  # title and results
N_COLOURS = 8  # for series other than baseline, SS and oracle
LOW_QUALITY = 50  # the paper also shows label qualities up to this alone
IDM_NAMES = {"paper": "the paper's labels", "robust": "robust labels"}
AXIS_NAMES = {"lambda_s": "λ_s", "lambda_r": "λ_r", "labelled": "labelled", "unlabelled": "unlabelled"}


# Names -----------------------------------------------------------------------------------------------------


def value_name(axis: str, value: Any) -> str:
    """Return a value of an axis of the grid as text, such as "q = 50"."""
    if axis == "variant":
        return NAMES.get(value, str(value))
    if axis == "agent":
        return str(value).upper() if value in _built_in_agents() else str(value)
    if axis == "quality":
        return f"q = {value:g}" if isinstance(value, int | float) else f"q = {value}"
    if axis.endswith("fraction") and isinstance(value, int | float):
        return f"{100 * value:g} % {axis.removesuffix('fraction').strip('_') or 'labelled'}"
    if axis == "idm" and value in IDM_NAMES:
        return IDM_NAMES[value]
    if axis in AXIS_NAMES:
        return f"{AXIS_NAMES[axis]}{' = ' if axis.startswith('lambda') else ' '}{value}"
    return str(value) if isinstance(value, str) else f"{axis} = {value}"


def _built_in_agents() -> Collection[str]:
    from ssorl.agents import BUILT_IN

    return BUILT_IN


def score_name(entries: Sequence[StudyResults]) -> str:
    """Return what the scores are: "return" or "normalised score"."""
    scored = [entry.result for entry in entries if entry.result and entry.score is not None]
    return "return" if any(result.get("normalised") is None for result in scored) else "normalised score"


def shorten(text: str, n: int, last: int = 0) -> str:
    """Return at most `n` characters of a text, with "…" before its last `last` characters if some are left out."""
    return text if len(text) <= n else text[: n - 1 - last] + "…" + text[len(text) - last :]


def series_kind(study: Study, value: Any, i: int) -> str:
    """Return the kind of series number `i`, which sets its colour: a variant's own, else one of eight."""
    return str(value) if study.by == "variant" and value in NAMES else f"c{i % N_COLOURS}"


# Panels ----------------------------------------------------------------------------------------------------


def panels(study: Study, entries: list[StudyResults], axes: Sequence[str] | None = None) -> list[Panel]:
    """Return the results by panel; one panel for each combination of values of `axes`, by default `study.panels`."""
    groups = group_by(entries, study.panels if axes is None else axes)
    return [(title or study.title, group) for title, group in groups]


def pooled_panels(study: Study, entries: list[StudyResults]) -> Iterator[Panel]:
    """Yield the panels of a study; if it has several axes of panels, first those that pool the last axis."""
    for n in range(max(1, len(study.panels) - 1), len(study.panels) + 1):
        yield from panels(study, entries, study.panels[:n])
    if not study.panels:
        has_half = any(True for _ in low_quality_panel(study, entries))
        yield ("all q together" if has_half else study.title), entries


def low_quality_panel(study: Study, entries: list[StudyResults]) -> Iterator[Panel]:
    """Yield a panel with the lower half of the label qualities, if the study pools them all."""
    low = [entry for entry in entries if number(entry.at.get("quality")) and entry.at["quality"] <= LOW_QUALITY]
    if not study.panels and 0 < len(low) < len(entries):
        yield f"q ≤ {LOW_QUALITY} alone", low


def split_by_variant(titled: Iterable[Panel], study: Study) -> Iterator[Panel]:
    """Yield the panels, each with one variant only unless the study compares variants."""
    for title, group in titled:
        axes = ["variant"] if study.by != "variant" and len(values(group, "variant")) > 1 else []
        yield from ((", ".join(filter(None, (title, name))), part) for name, part in group_by(group, axes))


def group_by(entries: list[StudyResults], axes: Sequence[str]) -> list[Panel]:
    """Return the results grouped by their values on some axes, in the order of the grid, with the values as title."""
    groups: dict[tuple, list[StudyResults]] = {}
    for entry in entries:
        groups.setdefault(tuple((axis, entry.at[axis]) for axis in axes if axis in entry.at), []).append(entry)
    return [(", ".join(value_name(*pair) for pair in key), group) for key, group in groups.items()]


def panel_axes(study: Study, entries: list[StudyResults], *within: str) -> list[str]:
    """Return the axes that need panels of their own, because a panel must not average over them.

    Args:
        study: names the axes of its panels.
        entries: its results.
        *within: axes that a panel shows.
    """
    used = (study.by, "seed", *within, *study.panels)
    return [*study.panels, *(axis for axis in varying(entries) if axis not in used)]


def varying(entries: list[StudyResults]) -> list[str]:
    """Return the axes with more than one value."""
    axes = dict.fromkeys(axis for entry in entries for axis in entry.at)
    return [axis for axis in axes if len(values(entries, axis)) > 1]


# Estimates -------------------------------------------------------------------------------------------------


def score(entry: StudyResults) -> float | None:
    """Return the score of a result."""
    return entry.score


def tasks(
    entries: list[StudyResults], at: dict[str, Any], of: Callable[[StudyResults], float | None] = score
) -> list[list[float]]:
    """Return the scores of the seeds of each task, for the bootstrap.

    Args:
        entries: results.
        at: values of axes to select.
        of: the number of a result, by default its score.
    """
    return strata(_by_task(select(entries, at)), of)


def paired(entries: list[StudyResults], *ats: dict[str, Any]) -> list[list[list[float]]]:
    """Return the scores by task of several selections, with their tasks in the same order.

    Args:
        entries: results.
        *ats: values of axes to select, for each selection.

    Returns:
        Scores by task of each selection; empty if the selections have different tasks.
    """
    selections = [_by_task(select(entries, at)) for at in ats]
    axes = [entry.at.keys() for groups in selections for task in groups for entry in task]
    shared = set.intersection(*map(set, axes)).difference(*ats, ("seed",)) if axes else set()
    keys = [[tuple((k, task[0].at[k]) for k in sorted(shared)) for task in groups] for groups in selections]
    if any(Counter(own) != Counter(keys[0]) for own in keys):
        return []
    for i, own in enumerate(keys[1:], 1):  # grids may list their tasks in different orders
        waiting: dict[tuple, list[list[StudyResults]]] = {}
        for key, task in zip(own, selections[i], strict=True):
            waiting.setdefault(key, []).append(task)
        selections[i] = [waiting[key].pop(0) for key in keys[0]]
    return [strata(groups, score) for groups in selections]


def _by_task(entries: list[StudyResults]) -> list[list[StudyResults]]:
    groups: dict[tuple, list[StudyResults]] = {}
    for entry in entries:
        groups.setdefault(tuple((k, v) for k, v in entry.at.items() if k != "seed"), []).append(entry)
    return list(groups.values())


def estimate(statistic: statistics.Statistic, *groups: list[list[float]]) -> Estimate | None:
    """Return a statistic with its interval over the tasks that have scores in every group, or None without any."""
    if len({len(group) for group in groups}) != 1:
        return None
    complete = [tasks for tasks in zip(*groups, strict=True) if all(tasks)]
    if not complete:
        return None
    result = statistics.estimate(statistic, *map(list, zip(*complete, strict=True)))
    return result if all(map(known, result)) else None


def known_values(numbers: Iterable[Value]) -> list[float]:
    """Return the values that are not None."""
    return [x for x in numbers if x is not None]


def bar(name: str, value: Estimate | None, kind: str, percent: bool = False) -> svg.Bar:
    """Return a bar for an estimate, with its interval if it has one."""
    if value is None:
        return svg.Bar(name, None, "–", kind)
    low, high = (value.low, value.high) if value.low < value.high else (None, None)
    return svg.Bar(name, value.value, estimate_text(value, percent), kind, low, high)


# Text and tables -------------------------------------------------------------------------------------------


def estimate_text(value: Estimate | None, percent: bool = False, show: Callable[[float], str] = format_number) -> str:
    """Return an estimate as text, with its interval if it has one, such as "61.2 [58, 64]".

    Args:
        value: the estimate.
        percent: whether it is a share, shown as a percentage.
        show: formats numbers that are not shares.
    """
    if value is None:
        return "–"
    show = share if percent else show
    return show(value.value) + (f" [{show(value.low)}, {show(value.high)}]" if value.low < value.high else "")


def estimate_table(name: str, first: str, across: Sequence[str], rows: list[tuple], percent: bool = False) -> Table:
    """Return a table of estimates; its download has the ends of the intervals in columns of their own.

    Args:
        name: name of the downloaded file, without .csv.
        first: header of the first column.
        across: keys of the other columns; a variant is shown by its name.
        rows: for each row its name and its estimates by key.
        percent: whether the estimates are shares.
    """
    show = common_format([x for _, cells in rows for key in across for x in cells.get(key) or ()])
    texts = [
        (row, *(estimate_text(cells.get(key), percent, show).replace(" ", "\N{NO-BREAK SPACE}") for key in across))
        for row, cells in rows
    ]
    ends = [(row, *(x for key in across for x in (cells.get(key) or (None,) * 3))) for row, cells in rows]
    head = [NAMES.get(key, str(key)) for key in across]
    first = first.replace("_", " ")
    full = [(first, *(f"{key}{end}" for key in head for end in ("", " low", " high"))), *ends]
    return Table(name, (first, *head), texts, full)


def common_format(numbers: Sequence[float]) -> Callable[[float], str]:
    """Return a function that formats numbers with the decimals that the largest of them needs."""
    largest = max((abs(x) for x in numbers if known(x)), default=0.0)
    if not 0.1 <= largest < 1000:
        return format_number
    digits = 1 if largest >= 10 else 2 if largest >= 1 else 3
    # Adding zero turns -0.0 into 0.0.
    return lambda x: f"{round(x, digits) + 0.0:.{digits}f}".replace("-", "−") if known(x) else format_number(x)


def band_note(entries: list[StudyResults]) -> str:
    """Return a sentence about the bands of lines."""
    return interval_note(entries, "Bands are ")


def interval_note(entries: list[StudyResults], subject: str = "Lines on the bars are ") -> str:
    """Return a sentence about the intervals, which begins with `subject`."""
    if len(values(entries, "seed")) < 2:
        return "One seed, so there are no intervals."
    return f"{subject}95 % bootstrap confidence intervals over seeds, resampled within each task."
