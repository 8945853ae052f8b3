"""Axes and charts: each mark stands for its value."""

import re

import numpy as np
import pytest

from ssorl.report import axes, svg
from ssorl.report.markup import tag


def test_ticks_are_round():
    assert axes.ticks(0, 100, 5) == [0, 20, 40, 60, 80, 100]
    assert axes.ticks(-0.013, 0.021, 3) == [0.0, 0.02]
    assert axes.ticks(990, 1010, 4) == [990, 995, 1000, 1005, 1010]


def test_axis_is_never_empty():
    assert axes.span([0.0, 50.0]) == (0.0, 52.0)
    assert axes.span([-50.0, 0.0]) == (-52.0, 0.0)
    assert axes.span([7.0, 7.0]) == pytest.approx((6.65, 7.35))
    assert axes.span([]) == (0.0, 1.04)


def test_format_number():
    assert [axes.format_number(v) for v in (0, 61.234, 1234.5, -0.5, 2e8, None)] == [
        *("0", "61.2", "1,234", "−0.5", "2.00e+08", "–")
    ]


def attributes(markup: str, element: str, class_: str) -> list[dict]:
    """Return the attributes of each element of a class."""
    elements = [dict(re.findall(r'([\w-]+)="([^"]*)"', m)) for m in re.findall(rf"<{element}([^>]*)>", markup)]
    return [a for a in elements if a.get("class") == class_]


def test_bar_length_is_its_value():
    rows = [
        svg.Bar("a", 10.0, "10", "ss", 8.0, 12.0, [("seed 0", 5.0)]),
        svg.Bar("b", -20.0, "20"),
        svg.Bar("c", None, "–"),
    ]
    drawn = svg.bars("k", "t", "d", rows, 800, "x", low=-20, high=20)
    a, b = attributes(drawn, "rect", "bar")
    assert float(b["width"]) == pytest.approx(2 * float(a["width"]), abs=0.2)
    assert float(b["x"]) + float(b["width"]) == pytest.approx(float(a["x"]), abs=0.2)  # both start at zero
    (dot,) = attributes(drawn, "circle", "dot")
    assert float(dot["cx"]) == pytest.approx(float(a["x"]) + float(a["width"]) / 2, abs=0.2)
    assert dot["data-tip"] == "a, seed 0: 5"


def test_line_has_a_gap_at_missing_values():
    line = svg.Line("a", [0, 1, 2, 3, 4], [1.0, 2.0, None, 3.0, float("nan")], "ss")
    (path,) = attributes(svg.lines("k", "t", "d", [line]), "path", "line")
    assert [part.count("L") for part in path["d"].split("M")[1:]] == [1, 0]
    tips = [a["data-tip"] for a in attributes(svg.lines("k", "t", "d", [line], axes=("at", "")), "rect", "hit")]
    assert tips[1] == "at: 1\na: 2" and tips[2] == "at: 2\na: –"


def test_band_of_a_single_point_is_visible():
    def band(low, high):
        line = svg.Line("SS", [10], [5.0], "ss", [low], [high])
        drawn = svg.lines("k", "title", "about", [line], 400, ("q", "score"))
        (path,) = re.findall(r'd="M([^"]*)Z" class="band"', str(drawn))
        return [tuple(map(float, corner.split(","))) for corner in path.split("L")]

    corners = band(4.0, 6.0)
    assert len({x for x, _ in corners}) == 2 and len({y for _, y in corners}) == 2
    without = svg.lines("k", "t", "a", [svg.Line("SS", [10], [5.0], "ss")], 400, ("q", "s"))
    assert not re.search('class="band"', str(without))


def test_densities_count_every_value():
    groups = [("a", "labelled", [0.0, 1.0, 2.0, None]), ("b", "unlabelled", [10.0])]
    bins = svg.counts(groups)
    assert np.sum([counts for _, _, counts in bins], axis=0).tolist() == [3, 1]
    assert (bins[0][0], bins[-1][1]) == (0.0, 10.0)
    assert len(attributes(svg.densities("k", "t", "d", groups), "path", "area")) == 2


def test_markup_is_escaped():
    assert tag("a", "<b>", href='"><script>') == '<a href="&#34;&gt;&lt;script&gt;">&lt;b&gt;</a>'
    drawn = svg.bars("k", "<i>", "&", [svg.Bar("<b>", 1.0, "</svg>", dots=[("<u>", 1.0)])])
    assert not re.search(r"<(i|b|u)>|</svg>.", drawn)
