"""A study for papers: its figures as PNG and PDF, its tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from ssorl.report.axes import Value, known
from ssorl.report.blocks import Table, format_cell
from ssorl.report.density import density
from ssorl.study.report import panels
from ssorl.study.report.charts import Chart, Figure
from ssorl.utils.files import atomic, write_text

COLOURS = {"baseline": "#0072b2", "ss": "#d55e00", "oracle": "#00815f", "labelled": "#0072b2", "unlabelled": "#b57600"}
COLOURS |= {"c0": "#0072b2", "c1": "#d55e00", "c2": "#00815f", "c3": "#7a5ba8", "c4": "#a86e00", "c5": "#b8437f"}
COLOURS |= {"c6": "#6b7681", "c7": "#8a5a2b", "plain": "#6b7681"}
# Told apart without colour too.
DASHES = {"baseline": "--", "oracle": ":", "unlabelled": "--", "c1": "--", "c2": ":", "c4": "-.", "c5": (0, (5, 1))}
MARKS = {"ss": "o", "oracle": "D", "baseline": "s", "c0": "s", "c1": "o", "c2": "D", "c3": "^", "c4": "v", "c5": "P"}
MARKED = 8  # points up to which an axis has its numbers at them
ACROSS = 3  # panels in a row
SIZE = (3.5, 2.7)  # inches of a panel
DPI = 150
LEGEND = 60  # and characters of a legend below it
SIGN = 9  # of them for each name's sign and the space around it
WORDS = 52  # characters of a title that fit above one
BESIDE = 24  # characters of a bar's name that stand on a line beside it
BELOW = 48  # and of all names together on a line below upright bars


def pictures(figures: Sequence[Figure], title: str, note: str, stem: Path) -> list[Path]:
    """Each figure as `STEM-KEY.png` and `.pdf`, title and note on it. Those that are tables alone have none."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    out = []
    for figure in figures:
        charts = [chart for chart in figure.charts if _drawn(chart)]
        if not charts:
            continue
        rows = -(-len(charts) // ACROSS)
        n = -(-len(charts) // rows)  # as even as can be: four are two and two
        alike = len({tuple(chart.legend) for chart in charts}) == 1
        tall = SIZE[1] * rows + 0.6 + 0.14 * len(charts[0].legend) * (len(charts) == 1)  # a name a line under one panel
        sheet, axes = plt.subplots(rows, n, figsize=(SIZE[0] * n, tall), layout="constrained", squeeze=False, dpi=DPI)
        for axis, chart in zip(axes.flat, charts, strict=False):
            _draw(axis, chart)
            if title.startswith(chart.title):  # said above all panels
                axis.set_title("")
            if len(chart.legend) > 1 and not alike:
                axis.legend(fontsize=6.5, frameon=False)
        if alike and len(charts[0].legend) > 1:  # one for all, where it hides no line
            handles, names = axes.flat[0].get_legend_handles_labels()
            across = max(1, min(4, LEGEND * n // (max(map(len, names)) + SIGN)))
            sheet.legend(handles, names, fontsize=7, frameon=False, ncols=across, loc="outside lower center")
        for axis in axes.flat[len(charts) :]:
            axis.set_visible(False)
        sheet.suptitle(f"{fill(_plain(title, 160), WORDS * n)}\n{note}", fontsize=9)
        sheet.draw_without_rendering()
        sheet.set_layout_engine("none")  # laid out once, for both files
        for suffix in (".png", ".pdf"):
            path = stem.with_name(f"{stem.name}-{figure.key}{suffix}")
            with atomic(path) as fresh:
                # Without a date, the same results give the same file.
                about: dict[str, Any] = {"metadata": {"CreationDate": None}} if suffix == ".pdf" else {}
                sheet.savefig(fresh, **about)
            out.append(path)
        plt.close(sheet)
    return out


def markdown(title: str, note: str, tables: Sequence[tuple[str, Table]], path: Path) -> Path:
    """Every table, one below the other."""
    parts = [f"# {_line(title)}", f"{_line(note)}"]
    for name, table in tables:
        rows = ["| " + " | ".join(_cell(v) for v in row) + " |" for row in (table.head, *table.rows)]
        parts.append("\n".join([f"## {_line(name)}", "", rows[0], "|" + " --- |" * len(table.head), *rows[1:]]))
    write_text(path, "\n\n".join(parts) + "\n")
    return path


def _drawn(chart: Chart) -> bool:
    bars = [*chart.bars, *(bar for column in chart.columns for bar in column.bars)]
    seen = [bar.value for bar in bars] + [v for line in chart.lines for v in line.y]
    return any(map(known, seen)) or any(known(v) for group in chart.densities for v in group[2])


def _draw(axis: Any, chart: Chart) -> None:
    beside = min(max((len(bar.name) for bar in chart.bars), default=0), BESIDE)
    axis.set_title(fill(_plain(chart.title), WORDS - beside), fontsize=9)
    axis.set_xlabel(_plain(chart.axes[0]), fontsize=8)
    axis.set_ylabel(_plain(chart.axes[1]), fontsize=8)
    axis.tick_params(labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    for line in chart.lines:
        colour, x = COLOURS.get(line.kind, "#6b7681"), _array(line.x)
        few = {"marker": MARKS.get(line.kind, "x"), "markersize": 3.5} if len(x) <= 16 or not line.joined else {}
        dash = DASHES.get(line.kind, "-") if line.joined else "none"
        axis.plot(x, _array(line.y), color=colour, linestyle=dash, linewidth=1.4, label=_plain(line.name), **few)
        if line.low is not None and line.high is not None:
            low, high = _array(line.low), _array(line.high)
            axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
            if len(x) == 1:  # no width to fill
                axis.vlines(x, low, high, color=colour, alpha=0.5, linewidth=4)
    at = sorted({v for line in chart.lines for v in line.x if known(v)})
    if 0 < len(at) <= MARKED and all(line.joined for line in chart.lines):
        axis.set_xticks(at)
    if chart.bars:
        _across(axis, chart)
    if chart.columns:
        _upright(axis, chart)
    if chart.densities:
        _densities(axis, chart)
    if chart.zero:
        axis.set_ylim(bottom=0)


def _across(axis: Any, chart: Chart) -> None:
    at = np.arange(len(chart.bars))
    colours = [COLOURS.get(bar.kind, "#6b7681") for bar in chart.bars]
    value = _array([bar.value for bar in chart.bars])
    axis.barh(at, value, color=colours, alpha=0.45, height=0.6)
    for i, bar in enumerate(chart.bars):
        if known(bar.low) and known(bar.high):
            axis.plot([bar.low, bar.high], [i, i], color=colours[i], linewidth=2, solid_capstyle="butt")
    axis.set_yticks(at, [fill(_plain(bar.name), BESIDE) for bar in chart.bars])
    axis.invert_yaxis()


def _upright(axis: Any, chart: Chart) -> None:
    kinds = list(dict.fromkeys(bar.kind for column in chart.columns for bar in column.bars))
    wide = 0.7 / max(len(kinds), 1)
    for i, column in enumerate(chart.columns):
        for bar in column.bars:
            x, colour = i + wide * (kinds.index(bar.kind) - (len(kinds) - 1) / 2), COLOURS.get(bar.kind, "#6b7681")
            label = _plain(bar.name) if i == 0 else None
            axis.bar([x], _array([bar.value]), wide * 0.92, color=colour, alpha=0.45, label=label)
            if known(bar.low) and known(bar.high):
                axis.plot([x, x], [bar.low, bar.high], color=colour, linewidth=2, solid_capstyle="butt")
    names = [c.name.removeprefix("q = ") if chart.axes[0] else c.name for c in chart.columns]
    room = max(BELOW // max(len(names), 1), 6)
    axis.set_xticks(np.arange(len(names)), [fill(_plain(name), room) for name in names])
    if chart.percent:
        axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")


def _densities(axis: Any, chart: Chart) -> None:
    groups = [(name, kind, np.array([v for v in values if known(v)])) for name, kind, values in chart.densities]
    whole = np.concatenate([values for _, _, values in groups])
    width = max(float(whole.std()), 1e-3 * max(1.0, abs(float(whole.mean()))))
    bandwidth = 0.5 * width * len(whole) ** -0.2
    grid = np.linspace(whole.min() - 3 * bandwidth, whole.max() + 3 * bandwidth, 300)
    for name, kind, values in groups:
        if len(values):
            height, colour = density(values, grid, bandwidth), COLOURS.get(kind, "#6b7681")
            axis.fill_between(grid, height, color=colour, alpha=0.2, linewidth=0)
            axis.plot(grid, height, color=colour, linestyle=DASHES.get(kind, "-"), label=_plain(name), linewidth=1.4)
    axis.set_ylim(bottom=0)
    axis.set_yticks([])


def _array(values: Sequence[Value]) -> np.ndarray:
    return np.array([np.nan if v is None else v for v in values], float)


def _plain(text: str, most: int = 60) -> str:
    """Without the sign that begins a formula: names come from the user."""
    return panels.shortened(text, most).replace("$", r"\$")


def _cell(value: Any) -> str:
    return _line(str(format_cell(getattr(value, "text", value)))).replace("|", "\\|")


def _line(text: str) -> str:
    return " ".join(text.replace("<", "&lt;").split())
