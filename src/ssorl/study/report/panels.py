"""What the figures of a study have in common: names to be read, panels, estimates and their tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from ssorl.report import summary as words
from ssorl.report import svg
from ssorl.report.axes import format_number, known
from ssorl.report.blocks import Table
from ssorl.study import statistics
from ssorl.study.grid import Study
from ssorl.study.results import StudyResults, number, select, strata, values
from ssorl.study.statistics import Estimate

VARIANTS = {"baseline": "baseline", "ss": "SS", "oracle": "oracle"}  # as the paper calls them
KINDS = 8  # colours for series other than baseline, SS and oracle
LOWER = 50  # the paper tells the worse half of the label qualities apart
BRIEF = {key: name for v, name in VARIANTS.items() for key in (v, words.NAMES[v])}  # in the heads of tables
LABELS = {"paper": "the paper's labels", "robust": "robust labels"}
SHORT = {"lambda_s": "λ_s", "lambda_r": "λ_r", "labelled": "labelled", "unlabelled": "unlabelled"}


def named(name: str, value: Any) -> str:
    """A coordinate's value as it is read."""
    if name == "variant":
        return words.NAMES.get(value, str(value))
    if name == "agent":
        return str(value).upper() if value in _built_in_agents() else str(value)  # a label of the user's stays as it is
    if name == "quality":
        return f"q = {value:g}" if isinstance(value, int | float) else f"q = {value}"
    if name.endswith("fraction") and isinstance(value, int | float):
        return f"{100 * value:g} % {name.removesuffix('fraction').strip('_') or 'labelled'}"
    if name == "idm" and value in LABELS:
        return LABELS[value]
    if name in SHORT:
        return f"{SHORT[name]}{' = ' if name.startswith('lambda') else ' '}{value}"
    return str(value) if isinstance(value, str) else f"{name} = {value}"


def _built_in_agents() -> Collection[str]:
    from ssorl.agents import BUILT_IN

    return BUILT_IN


def unit(found: Sequence[StudyResults]) -> str:
    """What scores are called."""
    results = [one.result for one in found if one.result and one.score is not None]
    return "return" if any(result.get("normalised") is None for result in results) else "normalised score"


def panels(
    study: Study, found: list[StudyResults], names: Sequence[str] | None = None
) -> list[tuple[str, list[StudyResults]]]:
    """The results by panel, each with its title."""
    return [(title or study.title, some) for title, some in split(found, study.panels if names is None else names)]


def pooled(study: Study, found: list[StudyResults]) -> Iterator[tuple[str, list[StudyResults]]]:
    """Panels, and before those of several coordinates what pools the last of them."""
    for n in range(max(1, len(study.panels) - 1), len(study.panels) + 1):
        yield from panels(study, found, study.panels[:n])
    if not study.panels:
        halves = any(True for _ in lower_half(study, found))
        yield ("all q together" if halves else study.title), found


def lower_half(study: Study, found: list[StudyResults]) -> Iterator[tuple[str, list[StudyResults]]]:
    """The worse half of the label qualities, where a study pools all of them."""
    lower = [one for one in found if number(one.at.get("quality")) and one.at["quality"] <= LOWER]
    if not study.panels and 0 < len(lower) < len(found):
        yield f"q ≤ {LOWER} alone", lower


def without_mixing(
    some: Iterable[tuple[str, list[StudyResults]]], study: Study
) -> Iterator[tuple[str, list[StudyResults]]]:
    """Panels with baseline, SS and oracle apart: of their scores together nothing is to be learnt."""
    for title, mine in some:
        names = ["variant"] if study.by != "variant" and len(values(mine, "variant")) > 1 else []
        yield from ((", ".join(filter(None, (title, name))), one) for name, one in split(mine, names))


def split(found: list[StudyResults], names: Sequence[str]) -> list[tuple[str, list[StudyResults]]]:
    """Results that agree in some coordinates, with the name of what they agree in; in the order of the grid."""
    groups: dict[tuple, list[StudyResults]] = {}
    for one in found:
        groups.setdefault(tuple((n, one.at[n]) for n in names if n in one.at), []).append(one)
    return [(", ".join(named(*pair) for pair in key), some) for key, some in groups.items()]


def apart(study: Study, found: list[StudyResults], *within: str) -> list[str]:
    """The coordinates that have panels of their own: what is asked for, and what else must not be averaged over."""
    used = (study.by, "seed", *within, *study.panels)
    return [*study.panels, *(name for name in varied(found) if name not in used)]


def varied(found: list[StudyResults]) -> list[str]:
    """Coordinates with more than one value."""
    names = dict.fromkeys(name for one in found for name in one.at)
    return [name for name in names if len(values(found, name)) > 1]


def score(one: StudyResults) -> float | None:
    """What a result earned."""
    return one.score


def tasks(
    found: list[StudyResults], at: dict[str, Any], of: Callable[[StudyResults], float | None] = score
) -> list[list[float]]:
    """Scores by task, or what else is `of` interest, for the bootstrap; a task without any has none."""
    return strata(_by_task(select(found, at)), of)


def paired(found: list[StudyResults], *ats: dict[str, Any]) -> list[list[list[float]]]:
    """Scores by task of several, those of one place beside each other; none where their places are not the same."""
    several = [_by_task(select(found, at)) for at in ats]
    told = [one.at.keys() for tasks in several for task in tasks for one in task]
    shared = set.intersection(*map(set, told)).difference(*ats, ("seed",)) if told else set()
    places = [[tuple((k, task[0].at[k]) for k in sorted(shared)) for task in tasks] for tasks in several]
    if any(Counter(some) != Counter(places[0]) for some in places):
        return []
    for i, some in enumerate(places[1:], 1):  # grids may name their places in another order
        waiting: dict[tuple, list[list[StudyResults]]] = {}
        for place, task in zip(some, several[i], strict=True):
            waiting.setdefault(place, []).append(task)
        several[i] = [waiting[place].pop(0) for place in places[0]]
    return [strata(tasks, score) for tasks in several]


def _by_task(found: list[StudyResults]) -> list[list[StudyResults]]:
    groups: dict[tuple, list[StudyResults]] = {}
    for one in found:
        groups.setdefault(tuple((k, v) for k, v in one.at.items() if k != "seed"), []).append(one)
    return list(groups.values())


def estimate(statistic: statistics.Statistic, *groups: list[list[float]]) -> Estimate | None:
    """Of the tasks that have scores in every group; None: there are none."""
    if len({len(group) for group in groups}) != 1:
        return None
    there = [tasks for tasks in zip(*groups, strict=True) if all(tasks)]
    if not there:
        return None
    found = statistics.estimate(statistic, *map(list, zip(*there, strict=True)))
    return found if all(map(known, found)) else None


def bar(name: str, told: Estimate | None, kind: str, percent: bool = False) -> svg.Bar:
    """A bar with its interval, where it has one."""
    if told is None:
        return svg.Bar(name, None, "–", kind)
    low, high = (told.low, told.high) if told.low < told.high else (None, None)
    return svg.Bar(name, told.value, text(told, percent), kind, low, high)


def text(told: Estimate | None, percent: bool = False, show: Callable[[float], str] = format_number) -> str:
    """An estimate with its interval, where it has one."""
    if told is None:
        return "–"
    show = words.share if percent else show
    return show(told.value) + (f" [{show(told.low)}, {show(told.high)}]" if told.low < told.high else "")


def estimates(name: str, first: str, across: Sequence[str], rows: list[tuple], percent: bool = False) -> Table:
    """Estimates as read, and in the file to download with their ends in columns of their own."""
    show = alike([x for _, told in rows for key in across for x in told.get(key) or ()])
    shown = [
        (row, *(text(told.get(key), percent, show).replace(" ", "\N{NO-BREAK SPACE}") for key in across))
        for row, told in rows
    ]
    ends = [(row, *(x for key in across for x in (told.get(key) or (None,) * 3))) for row, told in rows]
    head = [BRIEF.get(key, str(key)) for key in across]
    first = first.replace("_", " ")
    full = [(first, *(f"{key}{end}" for key in head for end in ("", " low", " high"))), *ends]
    return Table(name, (first, *head), shown, full)


def alike(some: Sequence[float]) -> Callable[[float], str]:
    """How to write some numbers so that they can be compared: all with the decimals that the largest needs."""
    most = max((abs(x) for x in some if known(x)), default=0.0)
    if not 0.1 <= most < 1000:
        return format_number
    digits = 1 if most >= 10 else 2 if most >= 1 else 3
    # Adding zero takes the sign of what rounds to it.
    return lambda x: f"{round(x, digits) + 0.0:.{digits}f}".replace("-", "−") if known(x) else format_number(x)


def kind(study: Study, value: Any, number: int) -> str:
    """How a series looks: variants as on every page, others by their number."""
    return str(value) if study.by == "variant" and value in words.NAMES else f"c{number % KINDS}"


def kept(found: Any) -> list[float]:
    """Those that are known."""
    return [x for x in found if x is not None]


def bands(found: list[StudyResults]) -> str:
    """What bands on lines are."""
    return whiskers(found, "Bands are ")


def whiskers(found: list[StudyResults], begin: str = "Lines on the bars are ") -> str:
    """What the intervals are."""
    if len(values(found, "seed")) < 2:
        return "One seed, so there are no intervals."
    return f"{begin}95 % bootstrap intervals over seeds, drawn anew within each task."


def shortened(text: str, most: int, last: int = 0) -> str:
    """A name that fits, by leaving out what is before its last characters."""
    return text if len(text) <= most else text[: most - 1 - last] + "…" + text[len(text) - last :]
