"""What the page says and draws, without a browser."""

import base64
import copy
import csv
import hashlib
import json
import re
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from support.page_samples import parent, result, write

from ssorl.cli.tables import show_run
from ssorl.report import axes, svg
from ssorl.report.blocks import Table
from ssorl.report.page import flat, page, render, render_cells
from ssorl.report.schema import check, read
from ssorl.report.summary import answer, answer_cells, caveats, caveats_cells, interval
from ssorl.utils.errors import DataError


def small(**changes) -> dict:
    return result(seeds=2, episodes=2, looks=3, **changes)


def means(**values) -> dict:
    return small(means=values)


# The sentence -----------------------------------------------------------------------------------------------


def test_the_answer():
    assert answer(small()) == (
        "With the actions of 10 % of the trajectories kept, from the worst half, SS-TD3BC reaches 61.2 [57.5, 64.9], "
        "where the labelled data alone gives 34.0 and having all actions 91.0: the unlabelled data closed 48 % of the "
        "gap."
    )


@pytest.mark.parametrize(
    ("told", "end"),
    [
        (means(baseline=34.0, ss=20.0, oracle=91.0), "the unlabelled data cost 14.0 points."),
        (means(baseline=34.0, ss=34.0, oracle=91.0), "the unlabelled data did not help."),
        (means(baseline=34.0, ss=99.5, oracle=91.0), "the unlabelled data closed the whole gap (115 %)."),
        (means(baseline=34.0, ss=61.2), "the labelled data alone gives 34.0: the unlabelled data added 27.2 points."),
        (means(baseline=34.0, ss=40.0, oracle=30.0), "added 6.0 points, though there was no gap to close."),
        (small(scores={}), "There is no score of SS-TD3BC."),
    ],
)
def test_the_end_of_the_answer(told, end):
    assert answer(told).endswith(end)


def test_an_estimate_says_so():
    told = small(means={"baseline": -41.23, "ss": -12.34}, kind="fqe", normalised=False)
    assert "is estimated to reach −12.3 [−15.3, −9.4]" in answer(told)
    assert answer(told).endswith("by this estimate, the unlabelled data added 28.9.")
    assert "fitted-Q evaluation" in caveats(told)[0] and "fitted to every true action" in caveats(told)[0]
    told["split"]["setup"] = None
    assert "fitted to the labelled steps, never to proxies" in caveats(told)[0]
    assert render(told).count("estimate") >= 5


@pytest.mark.parametrize(
    ("split", "start"),
    [
        ({"quality": 30}, "With the actions of 10 % of the trajectories kept, from the worst 30 %, "),
        ({"quality": 100}, "With the actions of 10 % of the trajectories kept, drawn from all, "),
        ({"quality": None, "fraction": 0.01}, "With the actions of 1.0 % of the trajectories kept, "),
        (
            {"quality": "low / high"},
            "With the actions of 10 % of the trajectories kept, labelled / unlabelled from low / ",
        ),
        ({"fraction": None, "quality": None}, "With actions in 320 of 3,213 trajectories, "),
    ],
)
def test_the_start_of_the_answer(split, start):
    told = small()
    told["split"] |= split
    assert answer(told).startswith(start)


def test_what_keeps_it_from_saying_more():
    assert caveats(small()) == []
    one = caveats(result(seeds=1, episodes=2, looks=3))
    assert len(one) == 1 and one[0].startswith("One seed: the intervals are over evaluation episodes alone")
    assert any("overlap" in line for line in caveats(means(baseline=60.0, ss=61.2, oracle=91.0)))
    assert any("not finished" in line for line in caveats(small(complete=False)))
    alone = {k: v for k, v in small()["scores"].items() if k != "oracle"}
    asked = small(scores=alone, idm=None)
    assert any("No oracle was trained" in line for line in caveats(asked))
    gaps = asked | {"split": asked["split"] | {"setup": None}}
    assert any("true actions of the unlabelled trajectories are not known" in line for line in caveats(gaps))
    assert any("raw returns" in line for line in caveats(small(normalised=False)))
    untold = means(baseline=34.0, ss=61.2)
    assert caveats(untold) == ["No oracle was trained, so there is no upper bound to compare with."]
    untold["split"]["setup"] = None
    assert "are not known" in caveats(untold)[0]


def test_what_is_of_one_seed_or_of_some_trajectories_says_so():
    told = small() | {"seeds": [3, 8]}
    assert told["split"]["n_unlabelled"] == 2893 and len(told["split"]["unlabelled_return"]) == 1880
    html = render(told)
    assert "without actions (2,893)" in html and "with actions (320)" in html
    assert "Of those without actions, 1,880 are drawn and counted" in html and "Of those with actions" not in html
    assert "This is the split of seed 3." in html and "those by return are of seed 3." in html
    assert "seed 3." not in render(result(seeds=1, episodes=2, looks=3))


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_terminal_cuts_no_number(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    told = small(normalised=False)
    told["scores"]["ss"] |= {"mean": -12345.6, "low": -12999.9, "high": 9.87}
    show_run(told, Path("runs/x"))
    out = capsys.readouterr().out
    table = "".join(out.partition("With the")[0].split())
    assert "…" not in out and "−12,346" in table
    assert width == 40 or "[−13,000,10]" in table  # as the page has it, with as many digits


def test_what_to_do_further_can_be_done(capsys):
    told = parent((10, 50)) | {"seeds": [3, 8]}  # where it was played is not in it, so no film is promised
    show_run(told, Path("a b/[x]"))
    assert capsys.readouterr().out.endswith("further: ssorl evaluate 'a b/[x]/q10'\n")


def test_a_training_that_diverged_is_named():
    told = small() | {"seeds": [3, 8]}
    told["scores"]["ss"]["returns"][1] = [None, None]
    line = "The training of ss, seed 8, has diverged: its policy's actions are not finite, so it has no score"
    assert caveats(told)[0].startswith(line) and line in render(told).replace("&#39;", "'")
    several = parent((10, 50)) | {"seeds": [3, 8]}
    for cell in several["cells"]:
        cell["scores"]["oracle"] = cell["scores"]["oracle"] | {"returns": [[float("nan")], [1.0]]}
    several["cells"][1]["scores"]["ss"] = several["cells"][1]["scores"]["ss"] | {"returns": [[1.0], [None]]}
    assert [line.split(" has ")[0] for line in caveats_cells(several)] == [
        "The training of oracle, seed 3,",
        "The training of ss at quality 50, seed 8,",
    ]


def test_several_qualities():
    told = parent((10, 50, 100))
    assert answer_cells(told) == (
        "The unlabelled data helped at 3 of 3 label qualities, with intervals apart at 3; it closed 14 % to 95 % of "
        "the gap to having all actions (median 28 %)."
    )
    told["cells"][0]["scores"]["ss"] = told["cells"][0]["scores"]["baseline"]
    assert "helped at 2 of 3 label qualities, with intervals apart at 2" in answer_cells(told)
    assert 'href="q50/report.html"' in render_cells(told)
    told["cells"][0]["gap_closed"] = None
    assert answer_cells(told).endswith(
        "; where there was a gap (2), it closed 28 % to 95 % of the gap to having all actions."
    )
    assert caveats_cells(told) == []
    for cell in told["cells"]:
        cell["scores"]["baseline"] |= {"low": 0.0, "high": 100.0}
    assert caveats_cells(told)[0].startswith("At no quality are the intervals")
    assert caveats_cells(told | {"seeds": [3]})[0].startswith("One seed: the intervals are over evaluation episodes")
    assert "One seed" not in caveats_cells(told | {"seeds": [3, 8]})[0]


def test_intervals_have_one_number_of_digits():
    assert interval({"mean": 9.8, "low": 8.123, "high": 11.0}, False) == "9.8 [8.1, 11.0]"
    assert interval({"mean": 2500.4, "low": 900.2, "high": 3100.0}, False) == "2,500 [900, 3,100]"
    assert interval({"mean": 61.25, "low": None, "high": 3.0}, True) == "61.2"


# The page ---------------------------------------------------------------------------------------------------


def change_numbers(told, value):
    """Every measured number replaced; counts and seeds stay."""
    if isinstance(told, dict):
        return {k: change_numbers(v, value) for k, v in told.items()}
    if isinstance(told, list):
        return [change_numbers(v, value) for v in told]
    return value if isinstance(told, float) else told


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 0.0, -3.5, 1e9, 1e-9])
def test_any_numbers_can_be_drawn(value, tmp_path):
    for name, told in (("one", small()), ("several", parent((10, 50)))):
        html = page(write(tmp_path / name, change_numbers(told, value))).read_text(encoding="utf-8")
        assert not re.search(r"\b(nan|NaN|inf|Infinity|None)\b", html)


@pytest.mark.parametrize(
    "changes",
    [{"idm": None}, {"curves": {}}, {"timings": {}}, {"scores": {}}, {"relative_gap": None, "gap_closed": None}],
)
def test_parts_may_be_missing(changes, tmp_path):
    assert page(write(tmp_path, small(**changes))).stat().st_size > 5000


def test_empty_lists(tmp_path):
    told = small()
    told["split"] |= {"labelled_return": [], "unlabelled_return": []}
    told["idm"] |= {"by_dimension": [], "coverage": None, "by_return": []}
    assert "no returns are known" in page(write(tmp_path, told)).read_text(encoding="utf-8")


def test_a_large_run_stays_light(tmp_path):
    told = result(seeds=10, episodes=100, looks=400)
    told["split"] |= {k: np.random.default_rng(0).normal(size=2000).tolist() for k in ("labelled_return",)}
    for curve in told["curves"].values():
        curve |= {f"metric_{i}": curve["q"] for i in range(4)}
    assert page(write(tmp_path, told)).stat().st_size < 300_000


def test_only_our_script_may_run(tmp_path):
    html = page(write(tmp_path, small())).read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.findall(r'Content-Security-Policy" content="(.*?)"', html)[0]
    assert policy.startswith("default-src 'none'; ") and f"script-src 'sha256-{digest}';" in policy
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", html)
    assert page(tmp_path).read_text(encoding="utf-8") == html  # and drawn again it is the same


def test_what_is_downloaded_is_what_was_measured():
    table = Table("a b/c", ("name", "value"), [("x, y", 1 / 3), ("<b>", None), ("z", float("nan"))])
    assert table.file == "a-b-c.csv"
    rows = list(csv.reader(unquote(table.href.split(",", 1)[1]).splitlines()))
    assert rows == [["name", "value"], ["x, y", "0.333333"], ["<b>", ""], ["z", ""]]


def test_nested_settings_are_flattened():
    assert flat({"a": {"b": 1, "c": {}}, "d": [1, 2]}) == [("a.b", 1), ("a.c", {}), ("d", "1, 2")]


# The file ---------------------------------------------------------------------------------------------------


def broken(path: str, value):
    told = copy.deepcopy(parent((10, 50)) if path.startswith("cells") else small())
    at = told
    *way, last = path.split(".")
    for key in way:
        at = at[int(key) if isinstance(at, list) else key]
    at[int(last) if isinstance(at, list) else last] = value
    return told


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("schema", 2, "its schema is 2, not 1"),
        ("title", 3, "title is 3, not a text"),
        ("kind", "guess", "kind is 'guess', not rollout or fqe"),
        ("seeds", [0, "1"], "seeds is [0, '1'], not a list, each a count"),
        ("scores.ss.mean", "61", "scores.ss: mean is '61', not a number or null"),
        ("scores.ss.returns", [[1.0]], "scores.ss.returns has 1 lists for 2 seeds"),
        ("scores.best", {}, "scores has 'best'; its variants are baseline, ss, oracle"),
        ("split.n_labelled", -1, "split: n_labelled is -1, not a count"),
        ("idm.by_return", [[1, 2]], "idm: by_return is [[1, 2]], not a list, each [return, mse, std]"),
        ("curves.ss.score", [[1.0]], "curves.ss: a seed of score has not the 3 values"),
        ("curves.ss", [], "curves.ss is [], not an object"),
        ("cells.1.folder", "javascript:alert(1)", "folder is 'javascript:alert(1)', not the name of a sub-folder"),
        ("cells.1.folder", "../elsewhere", "not the name of a sub-folder"),
        ("cells.0", 1, "cells is [1, {"),
    ],
)
def test_a_file_that_is_none_is_told_in_a_sentence(path, value, words):
    check(small())
    check(parent((10, 50)))
    with pytest.raises(DataError, match=re.escape(words)):
        check(broken(path, value))


def test_every_key_is_asked_for():
    for key in small():
        told = small()
        del told[key]
        with pytest.raises(DataError, match=key):
            check(told)


def test_a_missing_or_torn_file(tmp_path):
    with pytest.raises(DataError, match=r"result\.json: there is no such file"):
        page(tmp_path)
    for text in ('{"schema": 1', "[" * 100_000, "\udcff".encode("utf-8", "surrogatepass").decode("latin1") + "{"):
        (tmp_path / "result.json").write_text(text, encoding="latin1")
        with pytest.raises(DataError, match="not readable as JSON"):
            read(tmp_path)
    for other in ([], "a", None):
        (tmp_path / "result.json").write_text(json.dumps(other))
        with pytest.raises(DataError, match="its schema is"):
            read(tmp_path)
    assert not (tmp_path / "report.html").exists()


# The pictures -----------------------------------------------------------------------------------------------


def test_ticks_are_round():
    assert axes.ticks(0, 100, 5) == [0, 20, 40, 60, 80, 100]
    assert axes.ticks(-0.013, 0.021, 3) == [0.0, 0.02]
    assert axes.ticks(990, 1010, 4) == [990, 995, 1000, 1005, 1010]


def test_an_axis_has_a_length():
    assert axes.span([0.0, 50.0]) == (0.0, 52.0)
    assert axes.span([-50.0, 0.0]) == (-52.0, 0.0)
    assert axes.span([7.0, 7.0]) == pytest.approx((6.65, 7.35))
    assert axes.span([]) == (0.0, 1.04)


def test_numbers_to_be_read():
    assert [axes.plain(v) for v in (0, 61.234, 1234.5, -0.5, 2e8, None)] == [
        "0",
        "61.2",
        "1,234",
        "−0.5",
        "2.00e+08",
        "–",
    ]


def attributes(markup: str, element: str, class_: str) -> list[dict]:
    found = [dict(re.findall(r'([\w-]+)="([^"]*)"', m)) for m in re.findall(rf"<{element}([^>]*)>", markup)]
    return [a for a in found if a.get("class") == class_]


def test_bars_have_the_length_of_their_value():
    rows = [
        svg.Bar("a", 10.0, "10", "ss", 8.0, 12.0, [("seed 0", 5.0)]),
        svg.Bar("b", -20.0, "20"),
        svg.Bar("c", None, "–"),
    ]
    drawn = svg.bars("k", "t", "d", rows, 800, "x", low=-20, high=20)
    one, two = attributes(drawn, "rect", "bar")
    assert float(two["width"]) == pytest.approx(2 * float(one["width"]), abs=0.2)
    assert float(two["x"]) + float(two["width"]) == pytest.approx(float(one["x"]), abs=0.2)  # both from zero
    (dot,) = attributes(drawn, "circle", "dot")
    assert float(dot["cx"]) == pytest.approx(float(one["x"]) + float(one["width"]) / 2, abs=0.2)
    assert dot["data-tip"] == "a, seed 0: 5"


def test_lines_break_where_nothing_is_known():
    line = svg.Line("a", [0, 1, 2, 3, 4], [1.0, 2.0, None, 3.0, float("nan")], "ss")
    (path,) = attributes(svg.lines("k", "t", "d", [line]), "path", "line")
    assert [part.count("L") for part in path["d"].split("M")[1:]] == [1, 0]
    tips = [a["data-tip"] for a in attributes(svg.lines("k", "t", "d", [line], axes=("at", "")), "rect", "hit")]
    assert tips[1] == "at: 1\na: 2" and tips[2] == "at: 2\na: –"


def test_a_density_counts_everything():
    groups = [("a", "labelled", [0.0, 1.0, 2.0, None]), ("b", "unlabelled", [10.0])]
    found = svg.counts(groups)
    assert np.sum([n for _, _, n in found], axis=0).tolist() == [3, 1]
    assert (found[0][0], found[-1][1]) == (0.0, 10.0)
    assert len(attributes(svg.densities("k", "t", "d", groups), "path", "area")) == 2


def test_markup_is_escaped():
    assert svg.tag("a", "<b>", href='"><script>') == '<a href="&#34;&gt;&lt;script&gt;">&lt;b&gt;</a>'
    drawn = svg.bars("k", "<i>", "&", [svg.Bar("<b>", 1.0, "</svg>", dots=[("<u>", 1.0)])])
    assert not re.search(r"<(i|b|u)>|</svg>.", drawn)
