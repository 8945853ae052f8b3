"""A study's figures as PNG and PDF and its tables as Markdown, for papers."""

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
# Series differ in dashes and marks as well as in colour.
DASHES = {"baseline": "--", "oracle": ":", "unlabelled": "--", "c1": "--", "c2": ":", "c4": "-.", "c5": (0, (5, 1))}
MARKS = {"ss": "o", "oracle": "D", "baseline": "s", "c0": "s", "c1": "o", "c2": "D", "c3": "^", "c4": "v", "c5": "P"}
MAX_TICKS = 8  # an axis with at most this many points has its ticks at the points
MAX_COLUMNS = 3  # panels in a row
SIZE = (3.5, 2.7)  # width and height of a panel in inches
DPI = 150
# Lengths in characters, for each panel's width.
LEGEND = 60  # width of a line of the legend
LEGEND_MARK = 9  # width of the mark before each name in the legend
TITLE = 52  # width of a line of the title
BAR_NAME = 24  # width of a line of a bar's name, beside the bar
COLUMN_NAMES = 48  # total width of the names below upright bars


def pictures(figures: Sequence[Figure], title: str, note: str, stem: Path) -> list[Path]:
    """Write each figure that has charts as `STEM-KEY.png` and `STEM-KEY.pdf`.

    Args:
        figures: figures of a study.
        title: title above each figure.
        note: second line of the title.
        stem: path of the files without their ends.

    Returns:
        The paths of the files.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    out = []
    for figure in figures:
        charts = [chart for chart in figure.charts if _has_values(chart)]
        if not charts:
            continue
        rows = -(-len(charts) // MAX_COLUMNS)
        n = -(-len(charts) // rows)  # four panels are two rows of two
        shared_legend = len({tuple(chart.legend) for chart in charts}) == 1
        height = SIZE[1] * rows + 0.6
        if len(charts) == 1:  # its legend has a line for each name
            height += 0.14 * len(charts[0].legend)
        size = (SIZE[0] * n, height)
        sheet, axes = plt.subplots(rows, n, figsize=size, layout="constrained", squeeze=False, dpi=DPI)
        for axis, chart in zip(axes.flat, charts, strict=False):
            _draw(axis, chart)
            if title.startswith(chart.title):  # it stands above all panels
                axis.set_title("")
            if len(chart.legend) > 1 and not shared_legend:
                axis.legend(fontsize=6.5, frameon=False)
        if shared_legend and len(charts[0].legend) > 1:  # below the panels, where it covers no line
            handles, names = axes.flat[0].get_legend_handles_labels()
            n_columns = max(1, min(4, LEGEND * n // (max(map(len, names)) + LEGEND_MARK)))
            sheet.legend(handles, names, fontsize=7, frameon=False, ncols=n_columns, loc="outside lower center")
        for axis in axes.flat[len(charts) :]:
            axis.set_visible(False)
        sheet.suptitle(f"{fill(_plain(title, 160), TITLE * n)}\n{note}", fontsize=9)
        sheet.draw_without_rendering()
        sheet.set_layout_engine("none")  # both files have the same layout
        for suffix in (".png", ".pdf"):
            path = stem.with_name(f"{stem.name}-{figure.key}{suffix}")
            with atomic(path) as temporary:
                # Without a date, the same results give the same file.
                options: dict[str, Any] = {"metadata": {"CreationDate": None}} if suffix == ".pdf" else {}
                sheet.savefig(temporary, **options)
            out.append(path)
        plt.close(sheet)
    return out


def markdown(title: str, note: str, tables: Sequence[tuple[str, Table]], path: Path) -> Path:
    """Write tables to a Markdown file and return its path.

    Args:
        title: title of the file.
        note: text below the title.
        tables: names and tables.
        path: the file.
    """
    parts = [f"# {_line(title)}", f"{_line(note)}"]
    for name, table in tables:
        rows = ["| " + " | ".join(_cell(v) for v in row) + " |" for row in (table.head, *table.rows)]
        parts.append("\n".join([f"## {_line(name)}", "", rows[0], "|" + " --- |" * len(table.head), *rows[1:]]))
    write_text(path, "\n\n".join(parts) + "\n")
    return path


def _has_values(chart: Chart) -> bool:
    bars = [*chart.bars, *(bar for column in chart.columns for bar in column.bars)]
    points = [bar.value for bar in bars] + [v for line in chart.lines for v in line.y]
    return any(map(known, points)) or any(known(v) for group in chart.densities for v in group[2])


def _draw(axis: Any, chart: Chart) -> None:
    name_length = min(max((len(bar.name) for bar in chart.bars), default=0), BAR_NAME)
    axis.set_title(fill(_plain(chart.title), TITLE - name_length), fontsize=9)
    axis.set_xlabel(_plain(chart.axes[0]), fontsize=8)
    axis.set_ylabel(_plain(chart.axes[1]), fontsize=8)
    axis.tick_params(labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    for line in chart.lines:
        colour, x = COLOURS.get(line.kind, "#6b7681"), _array(line.x)
        marks = {"marker": MARKS.get(line.kind, "x"), "markersize": 3.5} if len(x) <= 16 or not line.joined else {}
        dash = DASHES.get(line.kind, "-") if line.joined else "none"
        axis.plot(x, _array(line.y), color=colour, linestyle=dash, linewidth=1.4, label=_plain(line.name), **marks)
        if line.low is not None and line.high is not None:
            low, high = _array(line.low), _array(line.high)
            axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
            if len(x) == 1:  # a band needs two points
                axis.vlines(x, low, high, color=colour, alpha=0.5, linewidth=4)
    at = sorted({v for line in chart.lines for v in line.x if known(v)})
    if 0 < len(at) <= MAX_TICKS and all(line.joined for line in chart.lines):
        axis.set_xticks(at)
    if chart.bars:
        _draw_bars(axis, chart)
    if chart.columns:
        _draw_columns(axis, chart)
    if chart.densities:
        _draw_densities(axis, chart)
    if chart.zero:
        axis.set_ylim(bottom=0)


def _draw_bars(axis: Any, chart: Chart) -> None:
    at = np.arange(len(chart.bars))
    colours = [COLOURS.get(bar.kind, "#6b7681") for bar in chart.bars]
    value = _array([bar.value for bar in chart.bars])
    axis.barh(at, value, color=colours, alpha=0.45, height=0.6)
    for i, bar in enumerate(chart.bars):
        if known(bar.low) and known(bar.high):
            axis.plot([bar.low, bar.high], [i, i], color=colours[i], linewidth=2, solid_capstyle="butt")
    axis.set_yticks(at, [fill(_plain(bar.name), BAR_NAME) for bar in chart.bars])
    axis.invert_yaxis()


def _draw_columns(axis: Any, chart: Chart) -> None:
    kinds = list(dict.fromkeys(bar.kind for column in chart.columns for bar in column.bars))
    width = 0.7 / max(len(kinds), 1)
    for i, column in enumerate(chart.columns):
        for bar in column.bars:
            x, colour = i + width * (kinds.index(bar.kind) - (len(kinds) - 1) / 2), COLOURS.get(bar.kind, "#6b7681")
            label = _plain(bar.name) if i == 0 else None
            axis.bar([x], _array([bar.value]), width * 0.92, color=colour, alpha=0.45, label=label)
            if known(bar.low) and known(bar.high):
                axis.plot([x, x], [bar.low, bar.high], color=colour, linewidth=2, solid_capstyle="butt")
    names = [c.name.removeprefix("q = ") if chart.axes[0] else c.name for c in chart.columns]
    name_length = max(COLUMN_NAMES // max(len(names), 1), 6)
    axis.set_xticks(np.arange(len(names)), [fill(_plain(name), name_length) for name in names])
    if chart.percent:
        axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")


def _draw_densities(axis: Any, chart: Chart) -> None:
    groups = [(name, kind, np.array([v for v in values if known(v)])) for name, kind, values in chart.densities]
    pooled = np.concatenate([values for _, _, values in groups])
    width = max(float(pooled.std()), 1e-3 * max(1.0, abs(float(pooled.mean()))))
    bandwidth = 0.5 * width * len(pooled) ** -0.2
    grid = np.linspace(pooled.min() - 3 * bandwidth, pooled.max() + 3 * bandwidth, 300)
    for name, kind, values in groups:
        if len(values):
            height, colour = density(values, grid, bandwidth), COLOURS.get(kind, "#6b7681")
            axis.fill_between(grid, height, color=colour, alpha=0.2, linewidth=0)
            axis.plot(grid, height, color=colour, linestyle=DASHES.get(kind, "-"), label=_plain(name), linewidth=1.4)
    axis.set_ylim(bottom=0)
    axis.set_yticks([])


def _array(values: Sequence[Value]) -> np.ndarray:
    return np.array([np.nan if v is None else v for v in values], float)


def _plain(text: str, n: int = 60) -> str:
    """Return at most `n` characters of a text, with $ escaped: a name from the user is no formula."""
    return panels.shorten(text, n).replace("$", r"\$")


def _cell(value: Any) -> str:
    return _line(str(format_cell(getattr(value, "text", value)))).replace("|", "\\|")


def _line(text: str) -> str:
    return " ".join(text.replace("<", "&lt;").split())
