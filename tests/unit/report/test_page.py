"""The page of a run, without a browser."""

import base64
import csv
import hashlib
import re
from urllib.parse import unquote

import numpy as np
import pytest
from support.page_samples import parent, result, small, write

from ssorl.report.blocks import Table
from ssorl.report.page import flat, page, render


def change_numbers(entry, value):
    """Replace every float, which is a measured number; counts and seeds stay."""
    if isinstance(entry, dict):
        return {k: change_numbers(v, value) for k, v in entry.items()}
    if isinstance(entry, list):
        return [change_numbers(v, value) for v in entry]
    return value if isinstance(entry, float) else entry


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 0.0, -3.5, 1e9, 1e-9])
def test_all_numbers_can_be_drawn(value, tmp_path):
    for name, sample in (("one", small()), ("several", parent((10, 50)))):
        html = page(write(tmp_path / name, change_numbers(sample, value))).read_text(encoding="utf-8")
        assert not re.search(r"\b(nan|NaN|inf|Infinity|None)\b", html)


@pytest.mark.parametrize(
    "changes",
    [{"idm": None}, {"curves": {}}, {"timings": {}}, {"scores": {}}, {"relative_gap": None, "gap_closed": None}],
)
def test_parts_may_be_missing(changes, tmp_path):
    assert page(write(tmp_path, small(**changes))).stat().st_size > 5000


def test_lists_may_be_empty(tmp_path):
    sample = small()
    sample["split"] |= {"labelled_return": [], "unlabelled_return": []}
    sample["idm"] |= {"by_dimension": [], "coverage": None, "by_return": []}
    assert "no returns are known" in page(write(tmp_path, sample)).read_text(encoding="utf-8")


def test_page_names_seeds_and_samples():
    sample = small() | {"seeds": [3, 8]}
    assert sample["split"]["n_unlabelled"] == 2893 and len(sample["split"]["unlabelled_return"]) == 1880
    html = render(sample)
    assert "unlabelled (2,893)" in html and "labelled (320)" in html
    assert "1,880 of the 2,893 unlabelled trajectories" in html and "of the 320 labelled" not in html
    assert "This is the split of seed 3." in html and "errors by return are of seed 3." in html
    assert "seed 3." not in render(result(seeds=1, episodes=2, points=3))


def test_page_of_a_large_run_is_small(tmp_path):
    sample = result(seeds=10, episodes=100, points=400)
    sample["split"] |= {"labelled_return": np.random.default_rng(0).normal(size=2000).tolist()}
    for curve in sample["curves"].values():
        curve |= {f"metric_{i}": curve["q"] for i in range(4)}
    assert page(write(tmp_path, sample)).stat().st_size < 300_000


def test_only_the_package_script_may_run(tmp_path):
    html = page(write(tmp_path, small())).read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.findall(r'Content-Security-Policy" content="(.*?)"', html)[0]
    assert policy.startswith("default-src 'none'; ") and f"script-src 'sha256-{digest}';" in policy
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", html)
    assert page(tmp_path).read_text(encoding="utf-8") == html  # a second call writes the same page


def test_download_holds_the_values():
    table = Table("a b/c", ("name", "value"), [("x, y", 1 / 3), ("<b>", None), ("z", float("nan"))])
    assert table.file == "a-b-c.csv"
    rows = list(csv.reader(unquote(table.href.split(",", 1)[1]).splitlines()))
    assert rows == [["name", "value"], ["x, y", "0.333333"], ["<b>", ""], ["z", ""]]


def test_nested_settings_are_flattened():
    assert flat({"a": {"b": 1, "c": {}}, "d": [1, 2]}) == [("a.b", 1), ("a.c", {}), ("d", "1, 2")]
