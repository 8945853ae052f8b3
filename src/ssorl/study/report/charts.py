"""From a study's results to charts: numbers and tables alone, drawn elsewhere on a page (study.py) and on paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ssorl.report import summary as words
from ssorl.report import svg
from ssorl.report.axes import Value, known
from ssorl.report.blocks import Table
from ssorl.study import statistics
from ssorl.study.grid import Study
from ssorl.study.report import panels as parts
from ssorl.study.results import StudyResults, number, numbers, select, values
from ssorl.study.statistics import Estimate

WHO = "Labelled data alone is the baseline, with the unlabelled data SS, all actions known the oracle. "


@dataclass(frozen=True)
class Column:
    """A group of upright bars at one place of the axis."""

    name: str
    bars: Sequence[svg.Bar]


@dataclass(frozen=True)
class Chart:
    """One panel of a figure: one of lines, bars, columns or densities (or none), and the table behind it."""

    title: str
    table: Table
    axes: tuple[str, str] = ("", "")
    lines: Sequence[svg.Line] = ()
    bars: Sequence[svg.Bar] = ()
    columns: Sequence[Column] = ()
    densities: Sequence[tuple[str, str, Sequence[Value]]] = ()
    legend: Sequence[tuple[str, str]] = ()  # kind and name
    percent: bool = False  # values are shares, written as percentages
    zero: bool = False  # the axis begins at zero


@dataclass(frozen=True)
class Figure:
    """Charts of one sort."""

    key: str
    title: str
    text: str
    charts: Sequence[Chart] = field(default_factory=tuple)


def figures(study: Study, found: list[StudyResults]) -> list[Figure]:
    """All figures of a study but the claims."""
    return [DRAWN[name](study, found) for name in dict.fromkeys((study.figure, *study.also)) if name in DRAWN]


# The figures ------------------------------------------------------------------------------------------------


def by_quality(study: Study, found: list[StudyResults]) -> Figure:
    """Scores against the quality of the labelled data."""
    charts = [
        _against(study, some, title, parts.unit(found), lambda one: one.score)
        for title, some in parts.panels(study, found, parts.apart(study, found, "quality", "variant"))
    ]
    title = parts.unit(found).capitalize()
    if not values(found, "quality"):
        return Figure("by-quality", title, WHO + parts.whiskers(found), charts)
    return Figure("by-quality", f"{title} against label quality", WHO + parts.bands(found), charts)


def mse_by_quality(study: Study, found: list[StudyResults]) -> Figure:
    """Errors of the proxy actions against the quality of the labelled data."""
    axis, found = "action MSE", [one for one in found if "idm" in one.at]
    charts = [
        _against(study, some, title, axis, lambda one: one.mse, True)
        for title, some in parts.panels(study, found, parts.apart(study, found, "quality"))
    ]
    text = "The squared error of the proxy actions on the unlabelled trajectories, actions in [−1, 1]. "
    if not values(found, "quality"):
        return Figure("mse", "Action error", text + parts.whiskers(found), charts)
    return Figure("mse", "Action error against label quality", text + parts.bands(found), charts)


def gap(study: Study, found: list[StudyResults]) -> Figure:
    """(oracle - agent) / oracle: of each place the mean, and where agents are compared the IQM over all places."""
    charts, statistic = [], statistics.relative_gap if study.by == "variant" else statistics.iqm_gap
    for title, some in parts.panels(study, found):
        over = "quality" if study.by == "variant" else study.by
        agents = [v for v in values(some, "variant") if v != "oracle"]
        columns, rows = [], []
        for place in values(some, over):
            mine = select(some, {over: place})
            told = {v: _sure(statistic, *parts.paired(mine, {"variant": v}, {"variant": "oracle"})) for v in agents}
            bars = [parts.bar(words.NAMES.get(v, str(v)), e, v, percent=True) for v, e in told.items()]
            columns.append(Column(parts.named(over, place), bars))
            rows.append((parts.named(over, place), told))
        axis = "labels from the worst … % by return" if over == "quality" else ""
        table = parts.estimates(f"{study.name}-{title}", over, agents, rows, percent=True)
        keys = [(v, words.NAMES.get(v, str(v))) for v in agents]
        charts.append(Chart(title, table, (axis, "relative gap"), columns=columns, legend=keys, percent=True))
    pooled = "" if study.by == "variant" else " Each bar is the interquartile mean over all datasets, qualities, seeds."
    text = WHO + "The gap is how far below the oracle, as a share of it: 0 is as good as having every action." + pooled
    return Figure("gap", "Relative gap to the oracle", f"{text} {parts.whiskers(found)}", charts)


def _sure(statistic: statistics.Statistic, *groups: list[list[float]]) -> Estimate | None:
    """An estimate; without an interval where that would be of one side's seeds alone."""
    told = parts.estimate(statistic, *groups)
    single = statistics.fewest(*([task for task in group if task] for group in groups)) < 2
    return Estimate(told.value, told.value, told.value) if told and single else told


def iqm(study: Study, found: list[StudyResults]) -> Figure:
    """Interquartile means over all that a panel pools."""
    charts = []
    for title, some in parts.without_mixing([*parts.pooled(study, found), *parts.lower_half(study, found)], study):
        several = values(some, study.by)
        kinds = {v: f"c{i}" if len(several) <= parts.KINDS else "plain" for i, v in enumerate(several)}
        told = {v: parts.estimate(statistics.iqm, parts.tasks(some, {study.by: v})) for v in several}
        bars = [parts.bar(parts.named(study.by, v), e, kinds[v]) for v, e in told.items()]
        rows = [(parts.named(study.by, v), {"IQM": e}) for v, e in told.items()]
        table = parts.estimates(f"{study.name}-{title}", study.by, ["IQM"], rows)
        charts.append(Chart(title, table, (f"IQM of the {parts.unit(found)}", ""), bars=bars))
    text = "The mean of the middle half of the scores that a panel pools over its datasets, agents, splits and seeds. "
    return Figure("iqm", "Interquartile means", text + parts.whiskers(found), charts)


def density(study: Study, found: list[StudyResults]) -> Figure:
    """Returns of the trajectories."""
    charts = []
    for title, some in parts.panels(study, found):
        data = [told for one in some if isinstance(told := (one.result or {}).get("data"), dict)]
        kept, rest = ([v for told in data for v in numbers(told.get(k))] for k in ("labelled", "unlabelled"))
        groups = [("with actions", "labelled", kept), ("without actions", "unlabelled", rest)]
        groups = [g for g in groups if g[2]] if rest else [("trajectories", "labelled", kept)]
        rows = [(low, high, *n) for low, high, n in svg.counts(groups)]
        table = Table(f"{study.name}-{title}", ("from", "to", *(g[0] for g in groups)), rows)
        axis = "return" if any(told.get("normalised") is False for told in data) else "normalised return"
        keys = [(kind, f"{name} ({len(v):,})") for name, kind, v in groups]
        charts.append(Chart(title, table, (axis, "density"), densities=groups if kept else (), legend=keys))
    text = "Kernel densities of the trajectories' returns; the dotted line is the mean."
    return Figure("density", "Densities of returns", text, charts)


def curves(study: Study, found: list[StudyResults]) -> Figure:
    """Scores while training, a panel for each setting that is not compared."""
    charts = []
    for title, some in parts.panels(study, found, parts.apart(study, found)):
        lines = []
        for i, v in enumerate(values(some, study.by)):
            runs = [one.curve for one in select(some, {study.by: v}) if "score" in one.curve]
            runs = [run for run in runs if run["at"] == runs[0]["at"]]
            if runs:
                seeds = list(zip(*(run["score"] for run in runs), strict=True))
                mean, low, high = ([f(at) for at in seeds] for f in (_mean, _least, _most))
                ends = (low, high) if len(runs) > 1 else (None, None)
                lines.append(svg.Line(parts.named(study.by, v), runs[0]["at"], mean, parts.kind(study, v, i), *ends))
        at = sorted({a for line in lines for a in line.x if known(a)})
        points = [dict(zip(line.x, line.y, strict=True)) for line in lines]
        rows = [(a, *(p.get(a) for p in points)) for a in at]
        table = Table(f"{study.name}-curves-{title}", ("updates", *(line.name for line in lines)), rows)
        keys = [(line.kind, line.name) for line in lines]
        charts.append(Chart(title, table, ("updates", parts.unit(found)), lines=lines, legend=keys))
    text = "Lines are means over the seeds, bands reach from the lowest to the highest seed."
    return Figure("curves", "Learning curves", text, charts)


def table(study: Study, found: list[StudyResults]) -> Figure:
    """The mean return of the labelled trajectories by dataset and quality."""
    across, charts = values(found, study.by), []
    for title, some in parts.panels(study, found):
        names = [name for name in parts.varied(some) if name not in (study.by, "seed")]
        rows = []
        for place, mine in parts.split(some, names):
            told = {}
            for v in across:
                there = [number((one.result or {}).get("labelled_return")) for one in select(mine, {study.by: v})]
                told[parts.named(study.by, v)] = parts.estimate(statistics.mean, [[x for x in there if x is not None]])
            rows.append((place or study.title, told))
        charts.append(
            Chart(
                title, parts.estimates(study.name, ", ".join(names), [parts.named(study.by, v) for v in across], rows)
            )
        )
    text = "The mean normalised return of the labelled trajectories. " + parts.whiskers(found, "In brackets, ")
    return Figure("table", study.title, text, charts)


def score_by_error(study: Study, found: list[StudyResults]) -> Figure:
    """What SS earns, as a share of the oracle, against the error of its proxies: a point a dataset and quality."""
    charts = []
    for title, some in parts.panels(study, found, ("agent",)):
        lines, rows = [], []
        for i, v in enumerate(values(select(some, {"variant": "ss"}), study.by)):
            points = []
            for place, mine in parts.split(select(some, {"variant": "ss", study.by: v}), ("dataset", "quality")):
                best = select(some, {"variant": "oracle", "dataset": mine[0].at["dataset"]})
                error, score, top = _mean([o.mse for o in mine]), *(_mean([o.score for o in x]) for x in (mine, best))
                if known(error) and known(score) and known(top) and top > 0:
                    points.append((error**0.5, score / top))
                    rows.append((place, parts.named(study.by, v), *points[-1]))
            x, y = zip(*sorted(points), strict=True) if points else ((), ())
            lines.append(svg.Line(parts.named(study.by, v), x, y, parts.kind(study, v, i), joined=False))
        head = ("dataset and quality", study.by, "RMS error of the proxies", "score / oracle's")
        table = Table(f"{study.name}-error-{title}", head, rows)
        keys = [(line.kind, line.name) for line in lines]
        charts.append(Chart(title, table, ("RMS error of the proxy actions", "score / oracle's"), lines, legend=keys))
    text = (
        "Each point is a dataset with one quality of labels, mean over its seeds; 1 is as good as having every action."
    )
    return Figure("error", "Return against the error of the labels", text, charts)


DRAWN: dict[str, Callable[[Study, list[StudyResults]], Figure]] = {
    "by-quality": by_quality,
    "gap": gap,
    "iqm": iqm,
    "mse-by-quality": mse_by_quality,
    "density": density,
    "curves": curves,
    "table": table,
    "score-by-error": score_by_error,
}


def _against(
    study: Study,
    some: list[StudyResults],
    title: str,
    axis: str,
    of: Callable[[StudyResults], Value],
    zero: bool = False,
) -> Chart:
    """Lines over the qualities, one for each thing compared; where splits have none, a bar for each."""
    by = [study.by] if study.by == "variant" or len(values(some, "variant")) < 2 else [study.by, "variant"]
    series = parts.split(some, by)
    if len(values([one for one in some if study.by in one.at], "variant")) == 1:  # they need not be told apart by it
        series = [(parts.split(mine, [study.by])[0][0] or name, mine) for name, mine in series]
    if not values(some, "quality"):
        each = {name: parts.estimate(statistics.mean, [parts.kept(map(of, mine))]) for name, mine in series}
        kinds = [parts.kind(study, mine[0].at.get(by[0]), i) for i, (_, mine) in enumerate(series)]
        bars = [parts.bar(name, e, kind) for (name, e), kind in zip(each.items(), kinds, strict=True)]
        table = parts.estimates(f"{study.name}-{title}", by[0], ["mean"], [(n, {"mean": e}) for n, e in each.items()])
        return Chart(title, table, (axis, ""), bars=bars)
    lines, told = [], {}
    for i, (name, mine) in enumerate(series):
        x = sorted(q for q in values(mine, "quality") if isinstance(q, int | float))
        found = {q: parts.estimate(statistics.mean, [parts.kept(map(of, select(mine, {"quality": q})))]) for q in x}
        if not any(found.values()):
            continue
        y, low, high = ([e[k] if (e := found[q]) else None for q in x] for k in range(3))
        several = any(known(a) and known(b) and a < b for a, b in zip(low, high, strict=True))
        kind = parts.kind(study, mine[0].at.get(by[0]), i)
        lines.append(svg.Line(name, x, y, kind, *((low, high) if several else (None, None))))
        told[name] = found
    names = list(told)
    qualities = sorted({q for found in told.values() for q in found})
    rows = [(q, {name: told[name].get(q) for name in names}) for q in qualities]
    table = parts.estimates(f"{study.name}-{title}", "q", names, rows)
    axes = ("labels from the worst … % by return", axis)
    return Chart(title, table, axes, lines, legend=[(line.kind, line.name) for line in lines], zero=zero)


def _mean(found: Sequence[Value]) -> Value:
    some = [x for x in found if known(x)]
    return sum(some) / len(some) if some else None


def _least(found: Sequence[Value]) -> Value:
    return min((x for x in found if known(x)), default=None)


def _most(found: Sequence[Value]) -> Value:
    return max((x for x in found if known(x)), default=None)
