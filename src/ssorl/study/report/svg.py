"""Charts of a study as inline SVG: those of a run's page (report/svg.py), and grouped upright bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup

from ssorl.report import svg
from ssorl.report.axes import Axis, Value, format_number, known, span, ticks
from ssorl.report.markup import NARROW, WIDE, figure, shape, tag
from ssorl.report.summary import share
from ssorl.study.report.charts import Chart, Column
from ssorl.study.report.panels import shorten

LINE_LENGTH = 46  # characters in a line of a narrow chart
CHARACTER = 7.6  # pixels of a character
SPACE = 0.3  # share of a group's width that stays free


def draw(chart: Chart, key: str, width: int = WIDE) -> Markup:
    """Return a chart as SVG.

    Args:
        chart: the chart.
        key: id of the chart, unique on the page.
        width: width in pixels.
    """
    about = _about(chart)
    low = 0.0 if chart.zero else None
    if any(known(v) for line in chart.lines for v in line.y):
        return svg.lines(key, chart.title, about, chart.lines, width, chart.axes, at_points=True, low=low)
    if any(known(bar.value) for bar in chart.bars):
        return svg.bars(key, chart.title, about, _shorten_names(chart.bars, width), width, chart.axes[0])
    if any(known(bar.value) for column in chart.columns for bar in column.bars):
        return columns(key, chart.title, about, chart.columns, width, chart.axes, chart.percent)
    if any(known(v) for _, _, values in chart.densities for v in values):
        return svg.densities(key, chart.title, about, chart.densities, width, chart.axes[0])
    return figure(key, chart.title, "no results yet", (width, 60), _name("no results yet", width / 2, 34))


def _shorten_names(bars: Sequence[svg.Bar], width: int) -> list[svg.Bar]:
    """Shorten the names of bars for a phone, so that the values fit beside them; the table has the full names."""
    if width > NARROW:
        return list(bars)
    return [replace(bar, name=shorten(bar.name, max(LINE_LENGTH - len(bar.text), 14), last=10)) for bar in bars]


def columns(
    key: str,
    title: str,
    about: str,
    groups: Sequence[Column],
    width: int = WIDE,
    axes: tuple[str, str] = ("", ""),
    percent: bool = False,
) -> Markup:
    """Return a chart of grouped upright bars from zero, with intervals; the tooltip of a group shows its values.

    Args:
        key: id of the chart, unique on the page.
        title: name for screen readers.
        about: the values as text, for screen readers.
        groups: the bars, from left to right.
        width: width in pixels.
        axes: names of the x and the y axis.
        percent: whether the values are shares, shown as percentages.
    """
    height = 300 if width > NARROW else 240
    ends = [v for group in groups for bar in group.bars for v in (bar.value, bar.low, bar.high) if known(v)]
    low, high = span([0.0, *ends])
    marks = ticks(low, high, 5 if width > NARROW else 4)
    show = _percent if percent else format_number
    left = 18 + 7.2 * max((len(show(v)) for v in marks), default=1)
    y = Axis(low, high, height - 48, 26)
    out: list[object] = [tag("text", axes[1], x=4, y=14), _name(axes[0], (left + width - 14) / 2, height - 8)]
    for at in marks:
        out.append(tag("line", x1=left, x2=width - 14, y1=y(at), y2=y(at), class_="zero" if at == 0 else "grid"))
        out.append(tag("text", show(at), x=left - 8, y=y(at) + 4, text_anchor="end"))
    step = (width - 14 - left) / max(len(groups), 1)
    for i, group in enumerate(groups):
        start = left + step * i
        bar_width = step * (1 - SPACE) / max(len(group.bars), 1)
        short = group.name.removeprefix("q = ") if axes[0] else group.name
        room = max(int(step / CHARACTER), 3)
        out.append(_name(shorten(short, room, last=room // 3), start + step / 2, y.bottom + 19))
        for j, bar in enumerate(group.bars):
            out.append(_upright(bar, start + step * SPACE / 2 + bar_width * j, bar_width, y))
        tip = "\n".join([group.name, *(f"{bar.name}: {bar.text}" for bar in group.bars)])
        box = {"x": start, "y": y.top, "width": step, "height": y.bottom - y.top}
        out.append(tag("rect", **box, class_="hit", data_tip=tip))
    return figure(key, title, about, (width, height), *out)


def _upright(bar: svg.Bar, x: float, bar_width: float, y: Axis) -> Markup:
    """Return a bar with its interval and mark; `x` is its left edge."""
    out: list[object] = []
    middle = x + bar_width / 2
    if known(bar.value):
        top, bottom = sorted((y(0), y(bar.value)))
        out.append(tag("rect", x=x + 1, y=top, width=bar_width - 2, height=max(bottom - top, 1), class_="bar"))
    if known(bar.low) and known(bar.high):
        a, b = y(bar.low), y(bar.high)
        cap = f"M{middle - 4:.1f},{a:.1f}h8M{middle:.1f},{a:.1f}V{b:.1f}M{middle - 4:.1f},{b:.1f}h8"
        out += [tag("path", d=cap, class_="halo"), tag("path", d=cap, class_="interval")]
    if known(bar.value):
        out.append(shape(bar.kind, middle, y(bar.value), 3.5))
    return tag("g", *out, class_=f"k-{bar.kind}")


def _name(text: str, x: float, y: float) -> Markup:
    return tag("text", text, x=x, y=y, text_anchor="middle")


def _percent(value: Value) -> str:
    """Return a share as a percentage, without decimals if it is a whole number of percent."""
    return share(value) if not known(value) or 100 * value % 1 else f"{100 * value:.0f} %".replace("-", "−")


def _about(chart: Chart) -> str:
    """Return the values as text, for screen readers."""
    parts = [f"{line.name}: " + ", ".join(map(format_number, line.y)) for line in chart.lines if len(line.y) <= 12]
    parts += [f"{line.name} ends at {format_number(line.y[-1])}" for line in chart.lines if len(line.y) > 12]
    parts += [f"{bar.name}: {bar.text}" for bar in chart.bars]
    parts += [f"{c.name}: " + ", ".join(f"{bar.name} {bar.text}" for bar in c.bars) for c in chart.columns]
    parts += [f"{name}: {len(values):,} trajectories" for name, _, values in chart.densities]
    return "; ".join(parts)
