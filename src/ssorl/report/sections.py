"""The sections of a run's page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from markupsafe import Markup

from ssorl.report import summary as words
from ssorl.report import svg
from ssorl.report.axes import Value, known, plain
from ssorl.report.blocks import Link, Panel, Section, Table, both
from ssorl.report.schema import VARIANTS
from ssorl.utils.progress import duration

POINTS, FEW = 60, 36  # of a learning curve that are drawn, large and small; more only make the page heavy


def unit(result: dict) -> tuple[Callable[[Value], str], str]:
    """How scores are written, and what they are called on an axis."""
    name = "normalised score" if result["normalised"] else "return"
    show = partial(words.score, normalised=result["normalised"])
    return show, f"estimated {name} (FQE)" if result["kind"] == "fqe" else name


def facts(result: dict) -> list[tuple[str, str]]:
    """The run in a few numbers."""
    split, idm, gap = result["split"], result["idm"], result["relative_gap"] or {}
    out = [
        ("trajectories with actions", f"{split['n_labelled']:,}"),
        ("without", f"{split['n_unlabelled']:,}"),
        ("steps in all", f"{split['n_steps']:,}"),
        ("seeds", str(len(result["seeds"]))),
    ]
    if idm:
        error = idm["mse"] if known(idm["mse"]) else idm["validation_mse"]
        out.append(("label error" if known(idm["mse"]) else "label error, held out", _rms(error)))
    if known(gap.get("ss")):
        before = f" (labelled alone: {words.share(gap['baseline'])})" if known(gap.get("baseline")) else ""
        out.append(("gap to all actions", words.share(gap["ss"]) + before))
    return out


def scores(result: dict) -> Section:
    """The agents against each other."""
    axis, told = unit(result)[1], result["scores"]
    bars, rows = [], []
    for name in VARIANTS:
        if name not in told:
            continue
        one = told[name]
        seeds = [(f"seed {seed}", _mean(r)) for seed, r in zip(result["seeds"], one["returns"], strict=True)]
        text = words.interval(one, result["normalised"])
        dots = seeds if len(seeds) > 1 else []
        bars.append(svg.Bar(words.NAMES[name], one["mean"], text, name, one["low"], one["high"], dots))
        rows.append((words.NAMES[name], one["mean"], one["low"], one["high"], *(v for _, v in seeds)))
    width = max((len(row) for row in rows), default=4)
    head = ("agent", "mean", "low", "high", *(f"seed {s}" for s in result["seeds"][: width - 4]))
    about = "; ".join(f"{bar.name}: {bar.text}" for bar in bars)
    several = len(result["seeds"]) > 1
    what = "averaged over" if result["policy"] == "average" else "the last of"
    over = "start states" if result["kind"] == "fqe" else "evaluation episodes"
    text = f"Bars are means and lines 95 % intervals over {'seeds and ' if several else ''}{over}"
    text += "; each mark below a bar is a seed. " if several else ". "
    text += "Labelled data alone is the baseline" + (", all actions known the oracle. " if "oracle" in told else ". ")
    text += f"The policies' weights are {what} training."
    pictures = both(lambda key, width: svg.bars(key, "Scores", about, bars, width, axis), "scores")
    return Section("scores", "Scores", text, [Panel("Scores", pictures, Table("scores", head, rows))])


def data(result: dict) -> Section:
    """What the trajectories with and without actions return."""
    split = result["split"]
    groups = [
        ("with actions", "labelled", split["labelled_return"]),
        ("without actions", "unlabelled", split["unlabelled_return"]),
    ]
    rows = [(low, high, *found) for low, high, found in svg.counts(groups)]
    sizes = (split["n_labelled"], split["n_unlabelled"])  # of many trajectories the file has some returns alone
    means = [(name, _mean(values)) for name, _, values in groups]
    about = "; ".join(f"{name}: mean {plain(mean)}" for name, mean in means)
    panel = Panel(
        "Returns of the trajectories",
        both(lambda key, width: svg.densities(key, "Return densities", about, groups, width, _return(result)), "data"),
        Table("returns", ("from", "to", "with actions", "without actions"), rows),
        svg.legend([(kind, f"{name} ({n:,})") for (name, kind, _), n in zip(groups, sizes, strict=True)]),
    )
    told = [f"Those {name} return {plain(mean)} on average." for name, mean in means if known(mean)]
    told += [
        f"Of those {name}, {len(values):,} are drawn and counted, evenly spaced from the lowest return to the highest."
        for (name, _, values), n in zip(groups, sizes, strict=True)
        if 0 < len(values) < n
    ]
    if len(result["seeds"]) > 1:
        told.append(f"This is the split of seed {result['seeds'][0]}.")
    text = " ".join(told)
    return Section("data", "The data", text, [panel])


def labels(result: dict) -> Section | None:
    """How good the proxy actions are, if there are any."""
    idm = result["idm"]
    if idm is None:
        return None
    on = "the proxies themselves" if known(idm["mse"]) else "held-out labelled steps"
    text = f"The inverse dynamics model {idm['name']} is off by {_rms(idm['validation_mse'])} of the action range on "
    text += "held-out labelled steps"
    text += (
        f" and by {_rms(idm['mse'])} on the proxies (RMS)." if known(idm["mse"]) else " (RMS); the truth is not known."
    )
    if len(result["seeds"]) > 1:
        text += f" Errors are means over the seeds; those by return are of seed {result['seeds'][0]}."
    panels = []
    kind = "measured" if known(idm["mse"]) else "labelled"
    if idm["by_dimension"]:
        rows = [(i, mse, _percent(mse)) for i, mse in enumerate(idm["by_dimension"])]
        bars = [svg.Bar(f"dimension {i}", size, _rms(mse), kind) for i, mse, size in rows]
        about = f"Measured on {on}. " + "; ".join(f"{bar.name}: {bar.text}" for bar in bars)
        name = "Error by action dimension"
        picture = svg.bars("dimensions", name, about, bars, svg.NARROW, f"RMS error on {on}, % of the range")
        table = Table("label-error", ("dimension", "mse", "rms, % of the range"), rows)
        panels.append(Panel(name, [picture], table, half=True))
    if idm["coverage"]:
        rows = [(f"{level} %", 100 * c if known(c) else None) for level, c in idm["coverage"].items()]
        goals = [float(level) for level in idm["coverage"]]
        bars = [
            svg.Bar(f"{level} interval", c, f"{plain(c)} %", kind, goal=goal)
            for (level, c), goal in zip(rows, goals, strict=True)
        ]
        about = f"Measured on {on}. " + "; ".join(f"{bar.name}: {bar.text} inside" for bar in bars)
        name = "Is the uncertainty honest?"
        axis = "% of true actions inside; the line is the goal"
        picture = svg.bars("coverage", name, about, bars, svg.NARROW, axis, low=0, high=100)
        panels.append(Panel(name, [picture], Table("coverage", ("interval", "% inside"), rows), half=True))
    if idm["by_return"]:
        panels.append(_by_return(result))
    return Section("labels", "The labels", text, panels)


def _by_return(result: dict) -> Panel:
    rows = [
        (r, mse, std, _percent(mse), 50 * std if known(std) else None) for r, mse, std in result["idm"]["by_return"]
    ]
    x = [row[0] for row in rows]
    series = [svg.Line("expected by the model", x, [row[4] for row in rows], "expected")]
    if any(known(row[1]) for row in rows):
        series.insert(0, svg.Line("measured", x, [row[3] for row in rows], "measured"))
    about = "; ".join(f"{line.name}: " + ", ".join(plain(v) for v in line.y) for line in series)
    labelled = [v for v in result["split"]["labelled_return"] if known(v)]
    shade = (min(labelled), max(labelled)) if labelled else None
    name = "Error against the return of the trajectory"
    axes = (_return(result), "RMS error, % of the range")

    def draw(key: str, width: int) -> Markup:
        return svg.lines(key, name, about, series, width, axes, lambda v: f"{plain(v)} %", shade, low=0)

    keys = [(line.kind, line.name) for line in series] + ([("shade", "returns with actions")] if shade else [])
    head = ("return", "mse", "std", "measured, % of the range", "expected, % of the range")
    return Panel(name, both(draw, "by-return"), Table("label-error-by-return", head, rows), svg.legend(keys))


def curves(result: dict) -> Section | None:
    """Scores and metrics while training."""
    curves = {name: result["curves"][name] for name in VARIANTS if name in result["curves"]}
    curves = {name: curve for name, curve in curves.items() if curve["at"]}
    metrics = list(dict.fromkeys(key for curve in curves.values() for key in curve if key != "at"))
    metrics.sort(key=lambda key: key != "score")
    if not metrics:
        return None
    panels = [_curve(result, {n: c for n, c in curves.items() if key in c}, key, i) for i, key in enumerate(metrics)]
    several = len(result["seeds"]) > 1
    text = "Thick lines are means over the seeds, thin ones single seeds, bands from the lowest to the highest seed."
    keys = svg.legend([(name, words.NAMES[name]) for name in curves])
    return Section("curves", "Training", text if several else "One seed.", panels, keys)


def _curve(result: dict, curves: dict[str, dict], metric: str, number: int) -> Panel:
    main = metric == "score"
    show, axis = unit(result) if main else (plain, "")
    series = []
    for name, whole in curves.items():
        curve = _thin(whole, POINTS if main else FEW)
        seeds = list(zip(*curve[metric], strict=True))
        ends = [[f(v for v in at if known(v)) if any(map(known, at)) else None for at in seeds] for f in (min, max)]
        mean, several = [_mean(at) for at in seeds], len(curve[metric]) > 1
        low, high = ends if several and not main else (None, None)
        runs = curve[metric] if several and main else ()
        series.append(svg.Line(words.NAMES[name], curve["at"], mean, name, low, high, runs))
    at = sorted({a for line in series for a in line.x if known(a)})
    values = [dict(zip(line.x, line.y, strict=True)) for line in series]
    rows = [(a, *(v.get(a) for v in values)) for a in at]
    about = "; ".join(f"{line.name} ends at {show(line.y[-1])}" for line in series if line.y)
    title = "Score" if main else metric.replace("_", " ")

    def draw(key: str, width: int) -> Markup:
        return svg.lines(key, title, about, series, width, ("updates", axis), show)

    pictures = both(draw, "curve") if main else [draw(f"metric-{number}", svg.NARROW)]
    table = Table(f"training-{metric}", ("updates", *(line.name for line in series)), rows)
    return Panel(title, pictures, table, half=not main)


def timings(result: dict) -> Section | None:
    """Where the time went."""
    timings = {stage: s for stage, s in result["timings"].items() if known(s)}
    if not timings:
        return None
    bars = [
        svg.Bar(stage, seconds, duration(seconds) if seconds >= 10 else f"{seconds:.1f} s")
        for stage, seconds in timings.items()
    ]
    about = "; ".join(f"{bar.name}: {bar.text}" for bar in bars)
    pictures = both(lambda key, width: svg.bars(key, "Time by stage", about, bars, width), "timings")
    panel = Panel("Time by stage", pictures, Table("timings", ("stage", "seconds"), list(timings.items())))
    return Section("timings", "Time", f"{duration(sum(timings.values()))} in all.", [panel])


def qualities(result: dict) -> Section:
    """Scores against how good the labelled trajectories are, with links to the page of each quality."""
    show, axis = unit(result)
    ends = ("mean", "low", "high")
    cells = sorted(result["cells"], key=lambda cell: cell["quality"])
    series = []
    for name in VARIANTS:
        mine = [cell for cell in cells if name in cell["scores"]]
        mean, low, high = ([cell["scores"][name][key] for cell in mine] for key in ends)
        if mine:
            series.append(svg.Line(words.NAMES[name], [cell["quality"] for cell in mine], mean, name, low, high))
    rows: list[tuple] = []
    full: list[tuple] = [("quality", *(f"{name} {end}" for name in VARIANTS for end in ends), "gap closed")]
    for cell in cells:
        found = [cell["scores"].get(name) for name in VARIANTS]
        told = [words.interval(score, result["normalised"]) if score else None for score in found]
        link = Link(
            "all" if cell["quality"] >= 100 else f"the worst {cell['quality']:g} %", f"{cell['folder']}/report.html"
        )
        rows.append((link, *told, words.share(cell["gap_closed"])))
        values = [score[end] if score else None for score in found for end in ends]
        full.append((cell["quality"], *values, cell["gap_closed"]))
    about = "; ".join(f"{line.name}: " + ", ".join(show(v) for v in line.y) for line in series)
    title, axes = "Score against label quality", ("labels from the worst … % by return", axis)
    panel = Panel(
        title,
        both(lambda key, width: svg.lines(key, title, about, series, width, axes, show), "qualities"),
        Table("qualities", ("labels from", *(words.NAMES[n] for n in VARIANTS), "gap closed"), rows, full),
        svg.legend([(line.kind, line.name) for line in series]),
        open=True,
    )
    return Section("scores", title, "Bands are 95 % intervals. Each quality has a page of its own.", [panel])


def _thin(curve: dict, most: int) -> dict:
    keep = np.unique(np.linspace(0, len(curve["at"]) - 1, min(most, len(curve["at"]))).round().astype(int))
    return {k: [v[i] for i in keep] if k == "at" else [[run[i] for i in keep] for run in v] for k, v in curve.items()}


def _mean(values: Sequence[Value]) -> Value:
    some = [v for v in values if known(v)]
    return sum(some) / len(some) if some else None


def _return(result: dict) -> str:
    return "normalised return" if result["normalised"] else "return"


def _percent(mse: Value) -> Value:
    """The mean squared error of actions in [-1, 1] as RMS in percent of their range."""
    return 50 * mse**0.5 if known(mse) and mse >= 0 else None


def _rms(mse: Value) -> str:
    size = _percent(mse)
    return f"{size:.1f} %" if known(size) else "–"
