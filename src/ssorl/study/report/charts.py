"""The figures of a study as numbers and tables; svg.py draws them on the page, files.py for papers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ssorl.report import svg
from ssorl.report.axes import Value, known
from ssorl.report.blocks import Table
from ssorl.report.summary import DESCRIPTIONS, NAMES, QUALITY_AXIS
from ssorl.study import statistics
from ssorl.study.grid import Study
from ssorl.study.report import panels
from ssorl.study.results import StudyResults, number, numbers, select, values
from ssorl.study.statistics import Estimate

TRAINING_DATA = "Training data: " + ", ".join(f"{DESCRIPTIONS[v]} ({NAMES[v]})" for v in NAMES) + ". "


@dataclass(frozen=True)
class Column:
    """A group of upright bars at one position of the x axis."""

    name: str
    bars: Sequence[svg.Bar]


@dataclass(frozen=True)
class Chart:
    """A panel of a figure: at most one of lines, bars, columns and densities, and the table behind it."""

    title: str
    table: Table
    axes: tuple[str, str] = ("", "")  # names of the x and the y axis
    lines: Sequence[svg.Line] = ()
    bars: Sequence[svg.Bar] = ()
    columns: Sequence[Column] = ()
    densities: Sequence[tuple[str, str, Sequence[Value]]] = ()  # name, kind and values
    legend: Sequence[tuple[str, str]] = ()  # kind and name
    percent: bool = False  # values are shares, written as percentages
    zero: bool = False  # the y axis begins at zero


@dataclass(frozen=True)
class Figure:
    """Charts of one type, one for each panel."""

    key: str
    title: str
    text: str
    charts: Sequence[Chart] = field(default_factory=tuple)


def figures(study: Study, entries: list[StudyResults]) -> list[Figure]:
    """Return all figures of a study, except those of claims."""
    return [DRAWN[name](study, entries) for name in dict.fromkeys((study.figure, *study.also)) if name in DRAWN]


# The figures ------------------------------------------------------------------------------------------------


def by_quality(study: Study, entries: list[StudyResults]) -> Figure:
    """Return the scores by label quality."""
    name = panels.score_name(entries)
    charts = [
        _by_quality_chart(study, group, title, name, lambda entry: entry.score)
        for title, group in panels.panels(study, entries, panels.panel_axes(study, entries, "quality", "variant"))
    ]
    if not values(entries, "quality"):
        return Figure("by-quality", name.capitalize(), TRAINING_DATA + panels.interval_note(entries), charts)
    title = f"{name.capitalize()} by label quality"
    return Figure("by-quality", title, TRAINING_DATA + panels.band_note(entries), charts)


def mse_by_quality(study: Study, entries: list[StudyResults]) -> Figure:
    """Return the errors of the proxy actions by label quality."""
    entries = [entry for entry in entries if "idm" in entry.at]
    charts = [
        _by_quality_chart(study, group, title, "action MSE", lambda entry: entry.mse, zero=True)
        for title, group in panels.panels(study, entries, panels.panel_axes(study, entries, "quality"))
    ]
    text = "The mean squared error of the proxy actions on the unlabelled trajectories, for actions in [−1, 1]. "
    if not values(entries, "quality"):
        return Figure("mse", "Error of proxy actions", text + panels.interval_note(entries), charts)
    return Figure("mse", "Error of proxy actions by label quality", text + panels.band_note(entries), charts)


def gap(study: Study, entries: list[StudyResults]) -> Figure:
    """Return the relative gaps to the oracle: by quality the mean, or by compared value the interquartile mean."""
    pooled = study.by != "variant"
    charts, statistic = [], statistics.iqm_gap if pooled else statistics.relative_gap
    for title, group in panels.panels(study, entries):
        axis = study.by if pooled else "quality"
        variants = [v for v in values(group, "variant") if v != "oracle"]
        columns, rows = [], []
        for value in values(group, axis):
            own = select(group, {axis: value})
            gaps = {
                v: _without_own_seeds(statistic, *panels.paired(own, {"variant": v}, {"variant": "oracle"}))
                for v in variants
            }
            name = panels.value_name(axis, value)
            bars = [panels.bar(NAMES.get(v, str(v)), e, v, percent=True) for v, e in gaps.items()]
            columns.append(Column(name, bars))
            rows.append((name, gaps))
        table = panels.estimate_table(f"{study.name}-{title}", axis, variants, rows, percent=True)
        axes = (QUALITY_AXIS if axis == "quality" else "", "relative gap")
        keys = [(v, NAMES.get(v, str(v))) for v in variants]
        charts.append(Chart(title, table, axes, columns=columns, legend=keys, percent=True))
    text = TRAINING_DATA + "The relative gap is (oracle − score) / oracle; it is 0 for a score equal to the oracle's."
    text += " Each bar is the interquartile mean over all datasets, qualities and seeds." if pooled else ""
    return Figure("gap", "Relative gap to the oracle", f"{text} {panels.interval_note(entries)}", charts)


def _without_own_seeds(statistic: statistics.Statistic, *groups: list[list[float]]) -> Estimate | None:
    """Return an estimate, without an interval if one group has a single seed: it would cover the other group only."""
    result = panels.estimate(statistic, *groups)
    single = statistics.fewest(*([task for task in group if task] for group in groups)) < 2
    return Estimate(result.value, result.value, result.value) if result and single else result


def iqm(study: Study, entries: list[StudyResults]) -> Figure:
    """Return the interquartile means over all results that a panel pools."""
    charts = []
    pooled = [*panels.pooled_panels(study, entries), *panels.low_quality_panel(study, entries)]
    for title, group in panels.split_by_variant(pooled, study):
        compared = values(group, study.by)
        kinds = {v: f"c{i}" if len(compared) <= panels.N_COLOURS else "plain" for i, v in enumerate(compared)}
        means = {v: panels.estimate(statistics.iqm, panels.tasks(group, {study.by: v})) for v in compared}
        bars = [panels.bar(panels.value_name(study.by, v), e, kinds[v]) for v, e in means.items()]
        rows = [(panels.value_name(study.by, v), {"IQM": e}) for v, e in means.items()]
        table = panels.estimate_table(f"{study.name}-{title}", study.by, ["IQM"], rows)
        charts.append(Chart(title, table, (f"IQM of the {panels.score_name(entries)}", ""), bars=bars))
    text = "The interquartile mean (IQM) is the mean of the middle half of the scores that a panel pools over its "
    text += f"datasets, agents, splits and seeds. {panels.interval_note(entries)}"
    return Figure("iqm", "Interquartile means", text, charts)


def density(study: Study, entries: list[StudyResults]) -> Figure:
    """Return the densities of the trajectories' returns."""
    charts = []
    for title, group in panels.panels(study, entries):
        data = [d for entry in group if isinstance(d := (entry.result or {}).get("data"), dict)]
        labelled, unlabelled = ([v for d in data for v in numbers(d.get(k))] for k in ("labelled", "unlabelled"))
        groups = [("labelled", "labelled", labelled), ("unlabelled", "unlabelled", unlabelled)]
        groups = [g for g in groups if g[2]] if unlabelled else [("trajectories", "labelled", labelled)]
        rows = [(low, high, *counts) for low, high, counts in svg.counts(groups)]
        table = Table(f"{study.name}-{title}", ("from", "to", *(g[0] for g in groups)), rows)
        axis = "return" if any(d.get("normalised") is False for d in data) else "normalised return"
        keys = [(kind, f"{name} ({len(v):,})") for name, kind, v in groups]
        charts.append(Chart(title, table, (axis, "density"), densities=groups if labelled else (), legend=keys))
    text = "Kernel densities of the trajectories' returns; dotted lines are means."
    return Figure("density", "Densities of returns", text, charts)


def curves(study: Study, entries: list[StudyResults]) -> Figure:
    """Return the learning curves, with a panel for each setting that is not compared."""
    charts = []
    for title, group in panels.panels(study, entries, panels.panel_axes(study, entries)):
        lines = []
        for i, v in enumerate(values(group, study.by)):
            runs = [entry.curve for entry in select(group, {study.by: v}) if "score" in entry.curve]
            runs = [run for run in runs if run["at"] == runs[0]["at"]]
            if runs:
                seeds = list(zip(*(run["score"] for run in runs), strict=True))
                mean, low, high = ([f(at) for at in seeds] for f in (_mean, _least, _most))
                ends = (low, high) if len(runs) > 1 else (None, None)
                name, kind = panels.value_name(study.by, v), panels.series_kind(study, v, i)
                lines.append(svg.Line(name, runs[0]["at"], mean, kind, *ends))
        at = sorted({x for line in lines for x in line.x if known(x)})
        points = [dict(zip(line.x, line.y, strict=True)) for line in lines]
        rows = [(x, *(p.get(x) for p in points)) for x in at]
        table = Table(f"{study.name}-curves-{title}", ("updates", *(line.name for line in lines)), rows)
        keys = [(line.kind, line.name) for line in lines]
        charts.append(Chart(title, table, ("updates", panels.score_name(entries)), lines, legend=keys))
    text = "Scores of the policy during training: means over the seeds, with bands from the lowest to the highest seed."
    return Figure("curves", "Learning curves", text, charts)


def table(study: Study, entries: list[StudyResults]) -> Figure:
    """Return the mean return of the labelled trajectories by dataset and quality."""
    across, charts = values(entries, study.by), []
    for title, group in panels.panels(study, entries):
        axes = [axis for axis in panels.varying(group) if axis not in (study.by, "seed")]
        rows = []
        for name, row in panels.group_by(group, axes):
            cells = {}
            for v in across:
                means = [number((entry.result or {}).get("labelled_return")) for entry in select(row, {study.by: v})]
                known_means = panels.known_values(means)
                cells[panels.value_name(study.by, v)] = panels.estimate(statistics.mean, [known_means])
            rows.append((name or study.title, cells))
        head = [panels.value_name(study.by, v) for v in across]
        charts.append(Chart(title, panels.estimate_table(study.name, ", ".join(axes), head, rows)))
    text = "The mean normalised return of the labelled trajectories. " + panels.interval_note(entries, "Brackets are ")
    return Figure("table", study.title, text, charts)


def score_by_error(study: Study, entries: list[StudyResults]) -> Figure:
    """Return the scores of SS as a share of the oracle's, by the error of the proxy actions."""
    charts = []
    for title, group in panels.panels(study, entries, ("agent",)):
        lines, rows = [], []
        for i, v in enumerate(values(select(group, {"variant": "ss"}), study.by)):
            points = []
            for name, ss in panels.group_by(select(group, {"variant": "ss", study.by: v}), ("dataset", "quality")):
                oracle = select(group, {"variant": "oracle", "dataset": ss[0].at["dataset"]})
                error, score, best = _mean([e.mse for e in ss]), *(_mean([e.score for e in x]) for x in (ss, oracle))
                if known(error) and known(score) and known(best) and best > 0:
                    points.append((error**0.5, score / best))
                    rows.append((name, panels.value_name(study.by, v), *points[-1]))
            x, y = zip(*sorted(points), strict=True) if points else ((), ())
            name, kind = panels.value_name(study.by, v), panels.series_kind(study, v, i)
            lines.append(svg.Line(name, x, y, kind, joined=False))
        head = ("dataset and quality", study.by, "RMS error of the proxy actions", "score / oracle")
        table = Table(f"{study.name}-error-{title}", head, rows)
        keys = [(line.kind, line.name) for line in lines]
        charts.append(Chart(title, table, ("RMS error of the proxy actions", "score / oracle"), lines, legend=keys))
    text = "Each point is a dataset with one label quality, the mean over its seeds; 1 is the score of the oracle."
    return Figure("error", "Score by error of the proxy actions", text, charts)


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


def _by_quality_chart(
    study: Study,
    entries: list[StudyResults],
    title: str,
    name: str,
    of: Callable[[StudyResults], Value],
    zero: bool = False,
) -> Chart:
    """Return a line over the label qualities for each compared value; bars if the splits have no quality.

    Args:
        study: names the compared axis.
        entries: results of one panel.
        title: title of the panel.
        name: what the values are.
        of: the value of a result.
        zero: whether the y axis begins at zero.
    """
    by = [study.by] if study.by == "variant" or len(values(entries, "variant")) < 2 else [study.by, "variant"]
    series = panels.group_by(entries, by)
    if len(values([entry for entry in entries if study.by in entry.at], "variant")) == 1:  # no need to name the variant
        series = [(panels.group_by(group, [study.by])[0][0] or label, group) for label, group in series]
    kinds = [panels.series_kind(study, group[0].at.get(by[0]), i) for i, (_, group) in enumerate(series)]
    if not values(entries, "quality"):
        means = {label: panels.estimate(statistics.mean, [panels.known_values(map(of, g))]) for label, g in series}
        bars = [panels.bar(label, e, kind) for (label, e), kind in zip(means.items(), kinds, strict=True)]
        rows = [(label, {"mean": e}) for label, e in means.items()]
        table = panels.estimate_table(f"{study.name}-{title}", by[0], ["mean"], rows)
        return Chart(title, table, (name, ""), bars=bars)
    lines: list[svg.Line] = []
    by_label: dict[str, dict] = {}
    for (label, group), kind in zip(series, kinds, strict=True):
        x = sorted(q for q in values(group, "quality") if isinstance(q, int | float))
        means = {
            q: panels.estimate(statistics.mean, [panels.known_values(map(of, select(group, {"quality": q})))])
            for q in x
        }
        if not any(means.values()):
            continue
        y, low, high = ([e[k] if (e := means[q]) else None for q in x] for k in range(3))
        has_band = any(known(a) and known(b) and a < b for a, b in zip(low, high, strict=True))
        lines.append(svg.Line(label, x, y, kind, *((low, high) if has_band else (None, None))))
        by_label[label] = means
    labels = list(by_label)
    qualities = sorted({q for means in by_label.values() for q in means})
    rows = [(q, {label: by_label[label].get(q) for label in labels}) for q in qualities]
    table = panels.estimate_table(f"{study.name}-{title}", "q", labels, rows)
    keys = [(line.kind, line.name) for line in lines]
    return Chart(title, table, (QUALITY_AXIS, name), lines, legend=keys, zero=zero)


def _mean(numbers: Sequence[Value]) -> Value:
    numbers = [x for x in numbers if known(x)]
    return sum(numbers) / len(numbers) if numbers else None


def _least(numbers: Sequence[Value]) -> Value:
    return min((x for x in numbers if known(x)), default=None)


def _most(numbers: Sequence[Value]) -> Value:
    return max((x for x in numbers if known(x)), default=None)
