"""Charts as inline SVG: pure functions from numbers to markup, everything in it escaped.

Colours and type come from templates/style.css by class: a mark of kind `ss` has the class `k-ss`. A mark with
`data-tip` shows that text when pointed at (templates/script.js). Charts are images to a screen reader: put a table
beside each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from markupsafe import Markup, escape

from ssorl.report.axes import Axis, Range, Value, known, plain, span, ticks
from ssorl.report.density import density

Show = Callable[[Value], str]
WIDE, NARROW = 800, 328  # a page's column, and that of a phone; text keeps its size because each is drawn anew
SHAPES = {"ss": "circle", "oracle": "diamond", "unlabelled": "circle", "measured": "circle"}  # the others: squares
SHAPES |= {"c1": "circle", "c2": "diamond", "c4": "circle", "c5": "diamond", "c7": "circle"}  # c0 to c7: any others
BINS = 24  # of a density's counts


@dataclass(frozen=True)
class Bar:
    """One row of `bars`."""

    name: str
    value: Value
    text: str  # the value as it is written beside the bar
    kind: str = "plain"
    low: Value = None  # the interval
    high: Value = None
    dots: Sequence[tuple[str, Value]] = ()  # single observations, each with its name
    goal: Value = None  # where the bar should end


@dataclass(frozen=True)
class Line:
    """One series of `lines`; a missing value leaves a gap."""

    name: str
    x: Sequence[Value]
    y: Sequence[Value]
    kind: str = "plain"
    low: Sequence[Value] | None = None  # the band
    high: Sequence[Value] | None = None
    runs: Sequence[Sequence[Value]] = ()  # thin lines behind it
    joined: bool = True  # otherwise points alone


def tag(name: str, *inside: object, **attributes: object) -> Markup:
    """An element; `class_` and `stroke_width` become class and stroke-width, None is left out."""
    told = [
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _short(value))
        for key, value in attributes.items()
        if value is not None
    ]
    return Markup("<{}{}>{}</{}>").format(name, Markup("").join(told), Markup("").join(map(escape, inside)), name)


def figure(key: str, title: str, about: str, size: tuple[float, float], *inside: object) -> Markup:
    """A whole picture; `key` is unique on the page."""
    return tag(
        "svg",
        tag("title", title, id=f"{key}-title"),
        tag("desc", about, id=f"{key}-about"),
        tag("g", tag("title"), *inside),  # the empty title keeps browsers from showing the picture's as a tooltip
        role="img",
        viewBox=f"0 0 {size[0]:g} {size[1]:g}",
        aria_labelledby=f"{key}-title {key}-about",
        class_=f"chart {'narrow' if size[0] <= NARROW else 'wide'}",
    )


def legend(names: Sequence[tuple[str, str]]) -> Markup:
    """What the marks mean: (kind, name) pairs, as a list in HTML that wraps on a phone."""
    marks = [
        tag(
            "svg",
            tag("line", x1=0, y1=7, x2=26, y2=7, class_="line"),
            shape(kind, 13, 7, 4.5),
            viewBox="0 0 26 14",
            width=26,
            height=14,
            aria_hidden="true",
            class_=f"k-{kind}",
        )
        for kind, _ in names
    ]
    rows = [tag("li", mark, " ", name) for mark, (_, name) in zip(marks, names, strict=True)]
    return tag("ul", *rows, class_="legend")


def bars(key: str, title: str, about: str, rows: Sequence[Bar], width: int = WIDE, axis: str = "", **scale) -> Markup:
    """Bars from zero with intervals, and the single observations in a lane below each; `scale` goes to `span`."""
    above = width < 480  # a phone has no room for names at the side
    longest = max((len(row.name) for row in rows), default=0)
    left = 6.0 if above else min(340.0, 24 + 7.0 * longest)
    right = width - (6.0 if above else 40 + 7.0 * max((len(row.text) for row in rows), default=0))
    dots = any(row.dots for row in rows)
    step = (26 if above else 12) + (34 if dots else 22)
    height = 8 + step * len(rows) + (44 if axis else 4)
    seen = [0.0, *(v for r in rows for v in (r.value, r.low, r.high, r.goal, *(d for _, d in r.dots)) if known(v))]
    low, high = span(seen, **scale)

    def x(value: float) -> float:
        return left + (right - left) * (value - low) / (high - low)

    out: list[object] = []
    if axis:
        base = 8 + step * len(rows)
        for at in ticks(low, high, max(2, int((right - left) / 90))):
            out.append(tag("line", x1=x(at), x2=x(at), y1=8, y2=base, class_="grid"))
            out.append(_text(plain(at), x(at), base + 16, "middle"))
        out.append(_text(axis, (left + right) / 2, base + 36, "middle"))
    out.append(tag("line", x1=x(0), x2=x(0), y1=6, y2=8 + step * len(rows), class_="zero"))
    for i, row in enumerate(rows):
        top = 8 + step * i
        middle = top + (26 if above else 6) + 9
        out.append(
            _text(row.name, left + 2 if above else left - 14, top + 18 if above else middle + 4.5, *_side(above))
        )
        out.append(_text(row.text, width - 6, top + 18 if above else middle + 4.5, "end", "strong"))
        words = [f"{row.name}: {row.text}", *(f"{name}: {plain(v)}" for name, v in row.dots)]
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
        marks.append(tag("rect", x=0, y=top, width=width, height=step, class_="hit", data_tip="\n".join(words)))
        for name, value in row.dots:
            if known(value):
                marks.append(shape(row.kind, x(value), middle + 17, 4, tip=f"{row.name}, {name}: {plain(value)}"))
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
    """Lines with bands and the single runs behind them; `shade` marks a stretch of the x axis.

    With `at_points` the x axis has its numbers where the points are, if they are few enough.
    """
    show = show or plain
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
        words = [f"{axes[0]}: {plain(at)}", *(text for line in series if (text := _at(line, at, show)))]
        out.append(_hit(edges[i], edges[i + 1], y, "\n".join(words)))
    return figure(key, title, about, (width, height), *out)


def counts(groups: Sequence[tuple[str, str, Sequence[Value]]]) -> list[tuple[float, float, list[int]]]:
    """How many values of each (name, kind, values) lie in each of some equally wide bins: (from, to, counts)."""
    values = [np.array([v for v in group[2] if known(v)], float) for group in groups]
    everything = np.concatenate([*values, np.zeros(0)])
    if not len(everything):
        return []
    edges = np.linspace(*span(everything.tolist(), exact=True), BINS + 1)
    found = [np.histogram(v, edges)[0] for v in values]
    return [(float(edges[i]), float(edges[i + 1]), [int(n[i]) for n in found]) for i in range(BINS)]


def densities(
    key: str,
    title: str,
    about: str,
    groups: Sequence[tuple[str, str, Sequence[Value]]],
    width: int = WIDE,
    axis: str = "",
) -> Markup:
    """Kernel densities of (name, kind, values) with their means dotted; pointing tells the counts."""
    height = 270 if width > NARROW else 230
    kept = [(name, kind, np.array([v for v in values if known(v)], float)) for name, kind, values in groups]
    kept = [group for group in kept if len(group[2])]
    if not kept:
        return figure(key, title, about, (width, 60), _text("no returns are known", width / 2, 34, "middle"))
    everything = np.concatenate([values for _, _, values in kept])
    # One bandwidth for all groups, so that their widths can be compared.
    deviation = max(float(everything.std()), 1e-3 * max(1.0, abs(float(everything.mean()))))
    bandwidth = 0.5 * deviation * len(everything) ** -0.2
    near, far = float(everything.min() - 3 * bandwidth), float(everything.max() + 3 * bandwidth)
    grid = np.linspace(near, far, 120 if width > NARROW else 80)
    heights = [density(values, grid, bandwidth) for _, _, values in kept]
    top = 1.05 * max(float(h.max()) for h in heights)
    frame, x, y = _frame(width, height, (near, far), (0.0, top), (axis, "density"), values=False)
    out: list[object] = [frame]
    for (_, kind, values), tall in zip(kept, heights, strict=True):
        line = _path(grid.tolist(), tall.tolist(), x, y)
        area = f"{line}L{x(far):.1f},{y(0):.1f}L{x(near):.1f},{y(0):.1f}Z"
        mean = x(float(values.mean()))
        marks = [tag("path", d=area, class_="area"), tag("path", d=line, class_="line")]
        marks += [tag("line", x1=mean, x2=mean, y1=y.top, y2=y.bottom, class_="mean"), shape(kind, mean, y.top + 5, 4)]
        out.append(tag("g", *marks, class_=f"k-{kind}"))
    for low, high, found in counts(groups):
        words = [f"{plain(low)} to {plain(high)}"]
        words += [f"{group[0]}: {n:,} of {len(group[2]):,}" for group, n in zip(groups, found, strict=True)]
        out.append(_hit(x(low), x(high), y, "\n".join(words)))
    return figure(key, title, about, (width, height), *out)


def shape(kind: str, x: float, y: float, size: float, tip: str | None = None) -> Markup:
    """The mark of a kind, so that it is told apart without colour."""
    name = SHAPES.get(kind, "square")
    if name == "circle":
        return tag("circle", cx=x, cy=y, r=size, class_="dot", data_tip=tip)
    if name == "diamond":
        r = 1.3 * size
        return tag("path", d=f"M{x:.1f},{y - r:.1f}l{r},{r}l-{r},{r}l-{r},-{r}Z", class_="dot", data_tip=tip)
    return tag("rect", x=x - size, y=y - size, width=2 * size, height=2 * size, class_="dot", data_tip=tip)


def _frame(
    width: int,
    height: int,
    xs: Range,
    ys: Range,
    axes: tuple[str, str],
    values: bool = True,
    marks: Sequence[float] | None = None,
) -> tuple[Markup, Axis, Axis]:
    """Grid, ticks and names of the axes, and the two scales; the x axis has its ticks at `marks` if they have room."""
    across = marks
    marks = ticks(*ys, 5 if width > NARROW else 4)
    left = 18 + 7.2 * max((len(plain(v)) for v in marks), default=1) if values else 10.0
    x, y = Axis(*xs, left, width - 14), Axis(*ys, height - 48, 26 if axes[1] else 12)
    out: list[object] = []
    for at in marks:
        if values or at == 0:
            out.append(tag("line", x1=left, x2=width - 14, y1=y(at), y2=y(at), class_="zero" if at == 0 else "grid"))
        if values:
            out.append(_text(plain(at), left - 8, y(at) + 4, "end"))
    if not across or any(x(b) - x(a) < 4 + 7.2 * len(plain(b)) for a, b in pairwise(across)):
        across = ticks(*xs, max(2, int((width - left) / 90)))
    for at in across:
        out.append(tag("line", x1=x(at), x2=x(at), y1=y.bottom, y2=y.bottom + 5, class_="grid"))
        # A number at the very edge would stick out of the picture.
        edge = width - x(at) < 3.8 * len(plain(at))
        out.append(_text(plain(at), width - 2 if edge else x(at), y.bottom + 19, "end" if edge else "middle"))
    if axes[0]:
        out.append(_text(axes[0], (left + width - 14) / 2, height - 8, "middle"))
    if axes[1]:
        out.append(_text(axes[1], 4, 14))
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
    """Closed paths around each stretch without a gap; a point alone has a narrow one."""
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


def _at(line: Line, at: float, show: Show) -> str:
    found = [i for i, a in enumerate(line.x) if a == at]
    if not found:
        return ""
    i = found[0]
    low, high = (part[i] if part is not None else None for part in (line.low, line.high))
    return f"{line.name}: {show(line.y[i])}" + (f" [{show(low)}, {show(high)}]" if known(low) and known(high) else "")


def _hit(left: float, right: float, y: Axis, tip: str) -> Markup:
    return tag("rect", x=left, y=y.top, width=right - left, height=y.bottom - y.top, class_="hit", data_tip=tip)


def _text(text: str, x: float, y: float, anchor: str | None = None, class_: str | None = None) -> Markup:
    return tag("text", text, x=x, y=y, text_anchor=anchor, class_=class_)


def _side(above: bool) -> tuple[str, str]:
    return ("start" if above else "end"), "name"


def _short(value: object) -> object:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value
