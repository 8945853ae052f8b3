"""SVG elements, legends and marks; all text is escaped.

templates/style.css sets colours and fonts by class: a mark of kind `ss` has the class `k-ss`. templates/script.js shows
the `data-tip` of the mark under the pointer. A screen reader reads a chart as an image, so the page puts a table beside
each chart.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

from ssorl.report.axes import Axis

# Widths in pixels of a page's column and of a phone's. Charts are drawn in both, so that text keeps its size.
WIDE, NARROW = 800, 328
SHAPES = {"ss": "circle", "oracle": "diamond", "unlabelled": "circle", "measured": "circle"}  # other kinds: squares
SHAPES |= {"c1": "circle", "c2": "diamond", "c4": "circle", "c5": "diamond", "c7": "circle"}  # c0 to c7: other series


def tag(name: str, *inside: object, **attributes: object) -> Markup:
    """Return an element with escaped content.

    Args:
        name: name of the element.
        *inside: content; strings are escaped.
        **attributes: `class_` and `stroke_width` become class and stroke-width; None is left out.
    """
    pairs = [
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _attribute(value))
        for key, value in attributes.items()
        if value is not None
    ]
    return Markup("<{}{}>{}</{}>").format(name, Markup("").join(pairs), Markup("").join(map(escape, inside)), name)


def figure(key: str, title: str, about: str, size: tuple[float, float], *inside: object) -> Markup:
    """Return a whole chart.

    Args:
        key: id of the chart, unique on the page.
        title: name for screen readers.
        about: the values as text, for screen readers.
        size: width and height in pixels.
        *inside: the elements of the chart.
    """
    return tag(
        "svg",
        tag("title", title, id=f"{key}-title"),
        tag("desc", about, id=f"{key}-about"),
        tag("g", tag("title"), *inside),  # an empty title, or browsers show the chart's title as a tooltip
        role="img",
        viewBox=f"0 0 {size[0]:g} {size[1]:g}",
        aria_labelledby=f"{key}-title {key}-about",
        class_=f"chart {'narrow' if size[0] <= NARROW else 'wide'}",
    )


def legend(names: Sequence[tuple[str, str]]) -> Markup:
    """Return the legend for (kind, name) pairs as an HTML list, which wraps on a phone."""
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


def shape(kind: str, x: float, y: float, size: float, tip: str | None = None) -> Markup:
    """Return the mark of a kind, centred at (x, y); kinds differ in shape as well as in colour."""
    name = SHAPES.get(kind, "square")
    if name == "circle":
        return tag("circle", cx=x, cy=y, r=size, class_="dot", data_tip=tip)
    if name == "diamond":
        r = 1.3 * size
        return tag("path", d=f"M{x:.1f},{y - r:.1f}l{r},{r}l-{r},{r}l-{r},-{r}Z", class_="dot", data_tip=tip)
    return tag("rect", x=x - size, y=y - size, width=2 * size, height=2 * size, class_="dot", data_tip=tip)


def hit_area(left: float, right: float, y: Axis, tip: str) -> Markup:
    """Return an invisible rectangle over the height of the chart that shows a tooltip."""
    return tag("rect", x=left, y=y.top, width=right - left, height=y.bottom - y.top, class_="hit", data_tip=tip)


def text(content: str, x: float, y: float, anchor: str | None = None, class_: str | None = None) -> Markup:
    """Return a text at a position; `anchor` is start, middle or end."""
    return tag("text", content, x=x, y=y, text_anchor=anchor, class_=class_)


def _attribute(value: object) -> object:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value
