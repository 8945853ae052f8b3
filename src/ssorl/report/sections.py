"""The sections of a run's page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from markupsafe import Markup

from ssorl.report import summary, svg
from ssorl.report.axes import Value, format_number, known
from ssorl.report.blocks import Link, Panel, Section, Table, wide_and_narrow
from ssorl.report.markup import NARROW, legend
from ssorl.report.schema import VARIANTS
from ssorl.utils.progress import duration

POINTS_LARGE, POINTS_SMALL = 60, 36  # points of a learning curve in a large and a small chart, to keep the page small
ERROR_AXIS = "RMS error, % of the action range"


def score_format(result: dict) -> tuple[Callable[[Value], str], str]:
    """Return a function that formats scores, and the name of the score axis."""
    name = "normalised score" if result["normalised"] else "return"
    show = partial(summary.score, normalised=result["normalised"])
    return show, f"estimated {name} (FQE)" if result["kind"] == "fqe" else name


def facts(result: dict) -> list[tuple[str, str]]:
    """Return the main numbers of a run as names and values."""
    split, idm, gap = result["split"], result["idm"], result["relative_gap"] or {}
    out = [
        ("labelled trajectories", f"{split['n_labelled']:,}"),
        ("unlabelled trajectories", f"{split['n_unlabelled']:,}"),
        ("steps", f"{split['n_steps']:,}"),
        ("seeds", str(len(result["seeds"]))),
    ]
    if idm and known(idm["mse"]):
        out.append(("RMS error of proxy actions", _rms(idm["mse"])))
    elif idm:
        out.append(("RMS error on held-out steps", _rms(idm["validation_mse"])))
    if known(gap.get("ss")):
        baseline = f" (baseline: {summary.share(gap['baseline'])})" if known(gap.get("baseline")) else ""
        out.append(("relative gap of SS to the oracle", summary.share(gap["ss"]) + baseline))
    return out


def scores(result: dict) -> Section:
    """Return the section that compares baseline, SS and oracle."""
    axis, entries = score_format(result)[1], result["scores"]
    variants = [variant for variant in VARIANTS if variant in entries]
    several = len(result["seeds"]) > 1
    bars, rows = [], []
    for variant in variants:
        entry, name = entries[variant], summary.NAMES[variant]
        seeds = [(f"seed {seed}", _mean(r)) for seed, r in zip(result["seeds"], entry["returns"], strict=True)]
        text = summary.interval(entry, result["normalised"])
        dots = seeds if several else []
        bars.append(svg.Bar(name, entry["mean"], text, variant, entry["low"], entry["high"], dots))
        rows.append((name, entry["mean"], entry["low"], entry["high"], *(value for _, value in seeds)))
    width = max((len(row) for row in rows), default=4)
    head = ("variant", "mean", "low", "high", *(f"seed {seed}" for seed in result["seeds"][: width - 4]))
    about = "; ".join(f"{bar.name}: {bar.text}" for bar in bars)
    over = "start states" if result["kind"] == "fqe" else "evaluation episodes"
    text = f"Bars are means; lines are 95 % confidence intervals over {'seeds and ' if several else ''}{over}"
    text += "; each mark below a bar is one seed. " if several else ". "
    trained = [f"{summary.DESCRIPTIONS[variant]} ({summary.NAMES[variant]})" for variant in variants]
    text += f"Training data: {', '.join(trained)}. " if trained else ""
    weights = "averaged over training" if result["policy"] == "average" else "at the end of training"
    text += f"The policies use the weights {weights}."
    pictures = wide_and_narrow(lambda key, width: svg.bars(key, "Scores", about, bars, width, axis), "scores")
    return Section("scores", "Scores", text, [Panel("Scores", pictures, Table("scores", head, rows))])


def data(result: dict) -> Section:
    """Return the section with the returns of labelled and unlabelled trajectories."""
    split = result["split"]
    groups = [
        ("labelled", "labelled", split["labelled_return"]),
        ("unlabelled", "unlabelled", split["unlabelled_return"]),
    ]
    rows = [(low, high, *counts) for low, high, counts in svg.counts(groups)]
    sizes = (split["n_labelled"], split["n_unlabelled"])  # result.json may hold the returns of a sample only
    means = [(name, _mean(values)) for name, _, values in groups]
    about = "; ".join(f"{name}: mean {format_number(mean)}" for name, mean in means)
    axis = _return_name(result)
    panel = Panel(
        "Returns of the trajectories",
        wide_and_narrow(lambda key, width: svg.densities(key, "Return densities", about, groups, width, axis), "data"),
        Table("returns", ("from", "to", "labelled", "unlabelled"), rows),
        legend([(kind, f"{name} ({n:,})") for (name, kind, _), n in zip(groups, sizes, strict=True)]),
    )
    text = [f"The mean return of {name} trajectories is {format_number(mean)}." for name, mean in means if known(mean)]
    text += [
        f"The chart shows {len(values):,} of the {n:,} {name} trajectories, evenly spaced by return."
        for (name, _, values), n in zip(groups, sizes, strict=True)
        if 0 < len(values) < n
    ]
    if len(result["seeds"]) > 1:
        text.append(f"This is the split of seed {result['seeds'][0]}.")
    return Section("data", "Data", " ".join(text), [panel])


def labels(result: dict) -> Section | None:
    """Return the section about the quality of the proxy actions, or None if the run has none."""
    idm = result["idm"]
    if idm is None:
        return None
    measured = known(idm["mse"])
    text = f"The inverse dynamics model {idm['name']} has an RMS error of {_rms(idm['validation_mse'])} of the action "
    text += "range on held-out labelled steps"
    text += (
        f" and of {_rms(idm['mse'])} on the proxy actions."
        if measured
        else ". The true actions of the unlabelled trajectories are not known."
    )
    if len(result["seeds"]) > 1:
        text += f" Errors are means over the seeds; errors by return are of seed {result['seeds'][0]}."
    if idm.get("advice"):
        text += f" Before training, the {idm['advice']}."
    panels = []
    if idm["by_dimension"]:
        panels.append(_by_dimension(idm))
    if idm["coverage"]:
        panels.append(_coverage(idm))
    if idm["by_return"]:
        panels.append(_by_return(result))
    return Section("labels", "Proxy actions", text, panels)


def _by_dimension(idm: dict) -> Panel:
    name, steps, kind = "Error by action dimension", _error_steps(idm), _error_kind(idm)
    rows = [(i, mse, _percent(mse)) for i, mse in enumerate(idm["by_dimension"])]
    bars = [svg.Bar(f"dimension {i}", size, _rms(mse), kind) for i, mse, size in rows]
    about = f"Measured on {steps}. " + "; ".join(f"{bar.name}: {bar.text}" for bar in bars)
    picture = svg.bars("dimensions", name, about, bars, NARROW, f"RMS error on {steps}, %")
    return Panel(name, [picture], Table("label-error", ("dimension", "mse", "RMS, % of the range"), rows), half=True)


def _coverage(idm: dict) -> Panel:
    name, steps, kind = "Coverage of the intervals", _error_steps(idm), _error_kind(idm)
    rows = [(f"{level} %", 100 * c if known(c) else None) for level, c in idm["coverage"].items()]
    levels = [float(level) for level in idm["coverage"]]
    bars = [
        svg.Bar(f"{level} interval", c, f"{format_number(c)} %", kind, goal=goal)
        for (level, c), goal in zip(rows, levels, strict=True)
    ]
    about = f"Measured on {steps}. " + "; ".join(f"{bar.name}: {bar.text} inside" for bar in bars)
    axis = "% of true actions inside; line: nominal level"
    picture = svg.bars("coverage", name, about, bars, NARROW, axis, low=0, high=100)
    return Panel(name, [picture], Table("coverage", ("interval", "% inside"), rows), half=True)


def _by_return(result: dict) -> Panel:
    name = "Error by return of the trajectory"
    rows = [
        (r, mse, std, _percent(mse), 50 * std if known(std) else None) for r, mse, std in result["idm"]["by_return"]
    ]
    x = [row[0] for row in rows]
    series = [svg.Line("expected (predicted std)", x, [row[4] for row in rows], "expected")]
    if any(known(row[1]) for row in rows):
        series.insert(0, svg.Line("measured", x, [row[3] for row in rows], "measured"))
    about = "; ".join(f"{line.name}: " + ", ".join(format_number(v) for v in line.y) for line in series)
    labelled = [v for v in result["split"]["labelled_return"] if known(v)]
    shade = (min(labelled), max(labelled)) if labelled else None
    axes = (_return_name(result), ERROR_AXIS)

    def draw(key: str, width: int) -> Markup:
        return svg.lines(key, name, about, series, width, axes, lambda v: f"{format_number(v)} %", shade, low=0)

    keys = [(line.kind, line.name) for line in series]
    keys += [("shade", "returns of labelled trajectories")] if shade else []
    head = ("return", "mse", "std", "measured, % of the range", "expected, % of the range")
    return Panel(name, wide_and_narrow(draw, "by-return"), Table("label-error-by-return", head, rows), legend(keys))


def curves(result: dict) -> Section | None:
    """Return the section with learning curves, or None if no metric was recorded."""
    curves = {variant: result["curves"][variant] for variant in VARIANTS if variant in result["curves"]}
    curves = {variant: curve for variant, curve in curves.items() if curve["at"]}
    metrics = list(dict.fromkeys(key for curve in curves.values() for key in curve if key != "at"))
    metrics.sort(key=lambda key: key != "score")
    if not metrics:
        return None
    panels = [_curve(result, {v: c for v, c in curves.items() if key in c}, key, i) for i, key in enumerate(metrics)]
    text = "One seed."
    if len(result["seeds"]) > 1:
        text = "Thick lines are means over the seeds and thin lines are single seeds; bands go from the lowest to the "
        text += "highest seed."
    keys = legend([(variant, summary.NAMES[variant]) for variant in curves])
    return Section("curves", "Learning curves", text, panels, keys)


def _curve(result: dict, curves: dict[str, dict], metric: str, number: int) -> Panel:
    """Return a large panel for the score, a small one for any other metric."""
    large = metric == "score"
    show, axis = score_format(result) if large else (format_number, "")
    series = []
    for variant, curve in curves.items():
        curve = _thin(curve, POINTS_LARGE if large else POINTS_SMALL)
        seeds = list(zip(*curve[metric], strict=True))
        ends = [[f(v for v in at if known(v)) if any(map(known, at)) else None for at in seeds] for f in (min, max)]
        mean, several = [_mean(at) for at in seeds], len(curve[metric]) > 1
        low, high = ends if several and not large else (None, None)
        runs = curve[metric] if several and large else ()
        series.append(svg.Line(summary.NAMES[variant], curve["at"], mean, variant, low, high, runs))
    at = sorted({a for line in series for a in line.x if known(a)})
    values = [dict(zip(line.x, line.y, strict=True)) for line in series]
    rows = [(a, *(v.get(a) for v in values)) for a in at]
    about = "; ".join(f"{line.name} ends at {show(line.y[-1])}" for line in series if line.y)
    title = "Score" if large else metric.replace("_", " ")

    def draw(key: str, width: int) -> Markup:
        return svg.lines(key, title, about, series, width, ("updates", axis), show)

    pictures = wide_and_narrow(draw, "curve") if large else [draw(f"metric-{number}", NARROW)]
    table = Table(f"training-{metric}", ("updates", *(line.name for line in series)), rows)
    return Panel(title, pictures, table, half=not large)


def timings(result: dict) -> Section | None:
    """Return the section with the time of each stage, or None if none was recorded."""
    timings = {stage: s for stage, s in result["timings"].items() if known(s)}
    if not timings:
        return None
    bars = [
        svg.Bar(stage, seconds, duration(seconds) if seconds >= 10 else f"{seconds:.1f} s")
        for stage, seconds in timings.items()
    ]
    about = "; ".join(f"{bar.name}: {bar.text}" for bar in bars)
    pictures = wide_and_narrow(lambda key, width: svg.bars(key, "Time by stage", about, bars, width), "timings")
    panel = Panel("Time by stage", pictures, Table("timings", ("stage", "seconds"), list(timings.items())))
    return Section("timings", "Time", f"Total: {duration(sum(timings.values()))}.", [panel])


def qualities(result: dict) -> Section:
    """Return the section that compares label qualities, with a link to the page of each quality."""
    show, axis = score_format(result)
    ends = ("mean", "low", "high")
    cells = sorted(result["cells"], key=lambda cell: cell["quality"])
    series = []
    for variant in VARIANTS:
        scored = [cell for cell in cells if variant in cell["scores"]]
        mean, low, high = ([cell["scores"][variant][key] for cell in scored] for key in ends)
        if scored:
            series.append(svg.Line(summary.NAMES[variant], [c["quality"] for c in scored], mean, variant, low, high))
    rows: list[tuple] = []
    full: list[tuple] = [("quality", *(f"{variant} {end}" for variant in VARIANTS for end in ends), "gap closed")]
    for cell in cells:
        entries = [cell["scores"].get(variant) for variant in VARIANTS]
        texts = [summary.interval(entry, result["normalised"]) if entry else None for entry in entries]
        name = "all" if cell["quality"] >= 100 else f"lowest {cell['quality']:g} %"
        rows.append((Link(name, f"{cell['folder']}/report.html"), *texts, summary.share(cell["gap_closed"])))
        values = [entry[end] if entry else None for entry in entries for end in ends]
        full.append((cell["quality"], *values, cell["gap_closed"]))
    about = "; ".join(f"{line.name}: " + ", ".join(show(v) for v in line.y) for line in series)
    title, axes = "Score by label quality", (summary.QUALITY_AXIS, axis)
    panel = Panel(
        title,
        wide_and_narrow(lambda key, width: svg.lines(key, title, about, series, width, axes, show), "qualities"),
        Table("qualities", ("label quality", *(summary.NAMES[v] for v in VARIANTS), "gap closed"), rows, full),
        legend([(line.kind, line.name) for line in series]),
        open=True,
    )
    text = "The label quality is the share of trajectories, lowest returns first, from which the labelled ones are "
    text += "drawn. Bands are 95 % confidence intervals. Each quality has a page of its own."
    return Section("scores", title, text, [panel])


def _thin(curve: dict, n: int) -> dict:
    """Return at most `n` points of a curve, evenly spaced, with both ends."""
    keep = np.unique(np.linspace(0, len(curve["at"]) - 1, min(n, len(curve["at"]))).round().astype(int))
    return {k: [v[i] for i in keep] if k == "at" else [[run[i] for i in keep] for run in v] for k, v in curve.items()}


def _mean(values: Sequence[Value]) -> Value:
    """Return the mean of the known values, or None if there is none."""
    values = [v for v in values if known(v)]
    return sum(values) / len(values) if values else None


def _return_name(result: dict) -> str:
    return "normalised return" if result["normalised"] else "return"


def _error_steps(idm: dict) -> str:
    """Return on which steps errors and coverage were measured."""
    return "the proxy actions" if known(idm["mse"]) else "held-out labelled steps"


def _error_kind(idm: dict) -> str:
    return "measured" if known(idm["mse"]) else "labelled"


def _percent(mse: Value) -> Value:
    """Return the RMS error in percent of the action range, given the MSE of actions in [-1, 1]."""
    return 50 * mse**0.5 if known(mse) and mse >= 0 else None


def _rms(mse: Value) -> str:
    size = _percent(mse)
    return f"{size:.1f} %" if known(size) else "–"
