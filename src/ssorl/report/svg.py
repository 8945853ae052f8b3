"""Charts as inline SVG: pure functions from numbers to markup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from markupsafe import Markup

from ssorl.report.axes import Axis, Range, Value, format_number, known, span, ticks
from ssorl.report.density import density
from ssorl.report.markup import NARROW, WIDE, figure, hit_area, shape, tag, text

Show = Callable[[Value], str]
BINS = 24  # bins of the counts behind a density


@dataclass(frozen=True)
class Bar:
    """A row of `bars`."""

    name: str
    value: Value
    text: str  # written beside the bar
    kind: str = "plain"
    low: Value = None  # ends of the interval
    high: Value = None
    dots: Sequence[tuple[str, Value]] = ()  # single observations with their names
    goal: Value = None  # nominal value, drawn as a line across the bar


@dataclass(frozen=True)
class Line:
    """A series of `lines`; a missing value leaves a gap."""

    name: str
    x: Sequence[Value]
    y: Sequence[Value]
    kind: str = "plain"
    low: Sequence[Value] | None = None  # ends of the band
    high: Sequence[Value] | None = None
    runs: Sequence[Sequence[Value]] = ()  # single runs, drawn as thin lines
    joined: bool = True  # False: draw points only


def bars(key: str, title: str, about: str, rows: Sequence[Bar], width: int = WIDE, axis: str = "", **scale) -> Markup:
    """Return a chart of horizontal bars from zero, with intervals, and single observations below each bar.

    Args:
        key: id of the chart, unique on the page.
        title: name for screen readers.
        about: the values as text, for screen readers.
        rows: the bars, from top to bottom.
        width: width in pixels.
        axis: name of the value axis; without a name there is no axis.
        **scale: options of `axes.span`.
    """
    above = width < 480  # on a phone, names stand above the bars
    longest = max((len(row.name) for row in rows), default=0)
    left = 6.0 if above else min(340.0, 24 + 7.0 * longest)
    right = width - (6.0 if above else 40 + 7.0 * max((len(row.text) for row in rows), default=0))
    dots = any(row.dots for row in rows)
    step = (26 if above else 12) + (34 if dots else 22)
    height = 8 + step * len(rows) + (44 if axis else 4)
    ends = [0.0, *(v for r in rows for v in (r.value, r.low, r.high, r.goal, *(d for _, d in r.dots)) if known(v))]
    low, high = span(ends, **scale)

    def x(value: float) -> float:
        return left + (right - left) * (value - low) / (high - low)

    out: list[object] = []
    if axis:
        base = 8 + step * len(rows)
        for at in ticks(low, high, max(2, int((right - left) / 90))):
            out.append(tag("line", x1=x(at), x2=x(at), y1=8, y2=base, class_="grid"))
            out.append(text(format_number(at), x(at), base + 16, "middle"))
        out.append(text(axis, (left + right) / 2, base + 36, "middle"))
    out.append(tag("line", x1=x(0), x2=x(0), y1=6, y2=8 + step * len(rows), class_="zero"))
    for i, row in enumerate(rows):
        top = 8 + step * i
        middle = top + (26 if above else 6) + 9
        out.append(text(row.name, left + 2 if above else left - 14, top + 18 if above else middle + 4.5, *_side(above)))
        out.append(text(row.text, width - 6, top + 18 if above else middle + 4.5, "end", "strong"))
        row_tip = [f"{row.name}: {row.text}", *(f"{name}: {format_number(v)}" for name, v in row.dots)]
        marks: list[object] = []
        if known(row.value):
            start, end = sorted((x(0), x(row.value)))
            marks.append(tag("rect", x=start, y=middle - 8, width=max(end - start, 1), height=16, rx=2, class_="bar"))
        if known(row.goal):
            marks.append(tag("line", x1=x(row.goal), x2=x(row.goal), y1=middle - 12, y2=middle + 12, class_="goal"))
        if known(row.low) and known(row.high):
            a, b = x(row.low), x(row.high)
            cap = f"M{a:.1f},{middle - 5}v10M{a:.1f},{middle}H{b:.1f}M{b:.1f},{middle - 5}v10"
            marks += [tag("path", d=cap, class_="halo"), tag("path", d=cap, class_="interval")]
        marks.append(tag("rect", x=0, y=top, width=width, height=step, class_="hit", data_tip="\n".join(row_tip)))
        for name, value in row.dots:
            if known(value):
                marks.append(
                    shape(row.kind, x(value), middle + 17, 4, tip=f"{row.name}, {name}: {format_number(value)}")
                )
        out.append(tag("g", *marks, class_=f"k-{row.kind}"))
    return figure(key, title, about, (width, height), *out)


def lines(
    key: str,
    title: str,
    about: str,
    series: Sequence[Line],
    width: int = WIDE,
    axes: tuple[str, str] = ("", ""),
    show: Show | None = None,
    shade: Range | None = None,
    at_points: bool = False,
    **scale,
) -> Markup:
    """Return a line chart with bands and single runs.

    Args:
        key: id of the chart, unique on the page.
        title: name for screen readers.
        about: the values as text, for screen readers.
        series: the lines.
        width: width in pixels.
        axes: names of the x and the y axis.
        show: formats y values in the tooltips.
        shade: range of the x axis to shade.
        at_points: put the ticks of the x axis at the points, if their numbers fit.
        **scale: options of `axes.span` for the y axis.
    """
    show = show or format_number
    height = 300 if width > NARROW else 240
    xs = sorted({x for line in series for x in line.x if known(x)})
    ys = [v for line in series for part in (line.y, line.low or (), line.high or (), *line.runs) for v in part]
    near, far = (xs[0], xs[-1]) if xs and xs[0] < xs[-1] else span(xs or [0.0])
    heights = span([v for v in ys if known(v)], **scale)
    frame, x, y = _frame(width, height, (near, far), heights, axes, marks=xs if at_points else None)
    out: list[object] = []
    if shade:
        a, b = (min(max(x(v), x(near)), x(far)) for v in shade)
        out.append(tag("rect", x=a, y=y.top, width=max(b - a, 2), height=y.bottom - y.top, class_="shade"))
    out.append(frame)
    for line in series:
        marks: list[object] = []
        if line.low is not None and line.high is not None:
            marks += [tag("path", d=d, class_="band") for d in _bands(line.x, line.low, line.high, x, y)]
        marks += [tag("path", d=_path(line.x, run, x, y), class_="run") for run in line.runs]
        if line.joined:
            marks.append(tag("path", d=_path(line.x, line.y, x, y), class_="line"))
        if len(line.x) <= 16 or not line.joined:
            marks += [
                shape(line.kind, x(a), y(b), 4) for a, b in zip(line.x, line.y, strict=True) if known(a) and known(b)
            ]
        out.append(tag("g", *marks, class_=f"k-{line.kind}"))
    edges = [x(xs[0]) - 8, *((x(a) + x(b)) / 2 for a, b in pairwise(xs)), x(xs[-1]) + 8] if xs else []
    for i, at in enumerate(xs):
        tip = [f"{axes[0]}: {format_number(at)}", *(entry for line in series if (entry := _tip_line(line, at, show)))]
        out.append(hit_area(edges[i], edges[i + 1], y, "\n".join(tip)))
    return figure(key, title, about, (width, height), *out)


def counts(groups: Sequence[tuple[str, str, Sequence[Value]]]) -> list[tuple[float, float, list[int]]]:
    """Count the values of each group in `BINS` bins of equal width.

    Args:
        groups: (name, kind, values) of each group.

    Returns:
        For each bin its lower end, its upper end and the count of each group; empty without values.
    """
    values = [np.array([v for v in group[2] if known(v)], float) for group in groups]
    all_values = np.concatenate([*values, np.zeros(0)])
    if not len(all_values):
        return []
    edges = np.linspace(*span(all_values.tolist(), exact=True), BINS + 1)
    histograms = [np.histogram(v, edges)[0] for v in values]
    return [(float(edges[i]), float(edges[i + 1]), [int(n[i]) for n in histograms]) for i in range(BINS)]


def densities(
    key: str,
    title: str,
    about: str,
    groups: Sequence[tuple[str, str, Sequence[Value]]],
    width: int = WIDE,
    axis: str = "",
) -> Markup:
    """Return a chart of kernel densities with dotted means; the tooltips show counts.

    Args:
        key: id of the chart, unique on the page.
        title: name for screen readers.
        about: the values as text, for screen readers.
        groups: (name, kind, values) of each group.
        width: width in pixels.
        axis: name of the x axis.
    """
    height = 270 if width > NARROW else 230
    drawn = [(name, kind, np.array([v for v in values if known(v)], float)) for name, kind, values in groups]
    drawn = [group for group in drawn if len(group[2])]
    if not drawn:
        return figure(key, title, about, (width, 60), text("no returns are known", width / 2, 34, "middle"))
    all_values = np.concatenate([values for _, _, values in drawn])
    # All groups share a bandwidth, so that their widths can be compared.
    deviation = max(float(all_values.std()), 1e-3 * max(1.0, abs(float(all_values.mean()))))
    bandwidth = 0.5 * deviation * len(all_values) ** -0.2
    near, far = float(all_values.min() - 3 * bandwidth), float(all_values.max() + 3 * bandwidth)
    grid = np.linspace(near, far, 120 if width > NARROW else 80)
    heights = [density(values, grid, bandwidth) for _, _, values in drawn]
    top = 1.05 * max(float(h.max()) for h in heights)
    frame, x, y = _frame(width, height, (near, far), (0.0, top), (axis, "density"), values=False)
    out: list[object] = [frame]
    for (_, kind, values), curve in zip(drawn, heights, strict=True):
        line = _path(grid.tolist(), curve.tolist(), x, y)
        area = f"{line}L{x(far):.1f},{y(0):.1f}L{x(near):.1f},{y(0):.1f}Z"
        mean = x(float(values.mean()))
        marks = [tag("path", d=area, class_="area"), tag("path", d=line, class_="line")]
        marks += [tag("line", x1=mean, x2=mean, y1=y.top, y2=y.bottom, class_="mean"), shape(kind, mean, y.top + 5, 4)]
        out.append(tag("g", *marks, class_=f"k-{kind}"))
    for low, high, bin_counts in counts(groups):
        tip = [f"{format_number(low)} to {format_number(high)}"]
        tip += [f"{group[0]}: {n:,} of {len(group[2]):,}" for group, n in zip(groups, bin_counts, strict=True)]
        out.append(hit_area(x(low), x(high), y, "\n".join(tip)))
    return figure(key, title, about, (width, height), *out)


def _frame(
    width: int,
    height: int,
    xs: Range,
    ys: Range,
    axes: tuple[str, str],
    values: bool = True,
    marks: Sequence[float] | None = None,
) -> tuple[Markup, Axis, Axis]:
    """Return the grid with ticks and axis names, and the two axes; the x ticks are at `marks` if their numbers fit."""
    y_ticks = ticks(*ys, 5 if width > NARROW else 4)
    left = 18 + 7.2 * max((len(format_number(v)) for v in y_ticks), default=1) if values else 10.0
    x, y = Axis(*xs, left, width - 14), Axis(*ys, height - 48, 26 if axes[1] else 12)
    out: list[object] = []
    for at in y_ticks:
        if values or at == 0:
            out.append(tag("line", x1=left, x2=width - 14, y1=y(at), y2=y(at), class_="zero" if at == 0 else "grid"))
        if values:
            out.append(text(format_number(at), left - 8, y(at) + 4, "end"))
    if not marks or any(x(b) - x(a) < 4 + 7.2 * len(format_number(b)) for a, b in pairwise(marks)):
        marks = ticks(*xs, max(2, int((width - left) / 90)))
    for at in marks:
        out.append(tag("line", x1=x(at), x2=x(at), y1=y.bottom, y2=y.bottom + 5, class_="grid"))
        # Right-align a number at the edge, or it would be cut off.
        edge = width - x(at) < 3.8 * len(format_number(at))
        out.append(text(format_number(at), width - 2 if edge else x(at), y.bottom + 19, "end" if edge else "middle"))
    if axes[0]:
        out.append(text(axes[0], (left + width - 14) / 2, height - 8, "middle"))
    if axes[1]:
        out.append(text(axes[1], 4, 14))
    return tag("g", *out), x, y


def _path(xs: Sequence[Value], ys: Sequence[Value], x: Axis, y: Axis) -> str:
    out, pen = [], "M"
    for a, b in zip(xs, ys, strict=True):
        if not known(a) or not known(b):
            pen = "M"
            continue
        out.append(f"{pen}{x(a):.1f},{y(b):.1f}")
        pen = "L"
    return "".join(out)


def _bands(xs: Sequence[Value], low: Sequence[Value], high: Sequence[Value], x: Axis, y: Axis) -> list[str]:
    """Return a closed path for each stretch without a gap; a single point gets a narrow band."""
    stretches: list[list[tuple[float, float, float]]] = [[]]
    for a, b, c in zip(xs, low, high, strict=True):
        if known(a) and known(b) and known(c):
            stretches[-1].append((x(a), y(b), y(c)))
        elif stretches[-1]:
            stretches.append([])
    stretches = [s if len(s) > 1 else [(a + d, b, c) for d in (-3, 3) for a, b, c in s] for s in stretches]
    return [
        "M"
        + "L".join(f"{p[0]:.1f},{p[1]:.1f}" for p in s)
        + "L"
        + "L".join(f"{p[0]:.1f},{p[2]:.1f}" for p in s[::-1])
        + "Z"
        for s in stretches
        if s
    ]


def _tip_line(line: Line, at: float, show: Show) -> str:
    """Return the value of a line at `at` as text, or nothing if it has no point there."""
    i = next((i for i, x in enumerate(line.x) if x == at), None)
    if i is None:
        return ""
    low, high = (part[i] if part is not None else None for part in (line.low, line.high))
    return f"{line.name}: {show(line.y[i])}" + (f" [{show(low)}, {show(high)}]" if known(low) and known(high) else "")


def _side(above: bool) -> tuple[str, str]:
    return ("start" if above else "end"), "name"
