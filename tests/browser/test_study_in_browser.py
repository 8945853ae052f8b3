"""The page of a study in a headless browser."""

import xml.etree.ElementTree as ET
from functools import partial

import pytest
from support.page_fixtures import CONTRAST, NASTY, visible
from support.study_samples import fill

from ssorl.study import statistics
from ssorl.study.grid import Grid, Study
from ssorl.study.paper import STUDIES
from ssorl.study.report.page import page

KINDS = {  # a study for each type of figure, and its number of charts
    "main-medium-expert": 6,
    "gap-medium-expert": 6,
    "self-training": 2,
    "self-training-mse": 1,
    "example-density": 1,
    "labelled-size": 8 + 18,
    "labelled-returns": 0,
    "claims": 1,
}
SVG = "{http://www.w3.org/2000/svg}"
TEXTS = "[...document.querySelectorAll('{} tbody tr')].map(r => r.cells[{}].textContent.trim())"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page of each type from one store, in which SS at q = 30 is missing."""
    store = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "estimate", partial(statistics.estimate, replications=300))
        patch.setattr(statistics, "student", partial(statistics.student, replications=300))
        patch.setattr("ssorl.study.report.page.pictures", lambda *args: [])  # no files for papers
        for name in KINDS:
            if name != "claims":
                fill(store, STUDIES[name], keep=lambda p: p.at.get("quality") != 30 or p.at.get("variant") != "ss")
        return {name: page(STUDIES[name], "lite", store) for name in KINDS}


@pytest.mark.parametrize("name", KINDS)
def test_page_loads_no_other_files(chrome, pages, name):
    chrome.open(pages[name])
    assert chrome.complaints() == []
    assert chrome.requests() == [pages[name].as_uri()]
    assert STUDIES[name].title in chrome.js("document.querySelector('h1').textContent")
    assert "scale lite" in chrome.js("document.querySelector('.badge').textContent")
    n_charts = chrome.js(visible("svg.chart"))
    assert n_charts == KINDS[name] if name != "claims" else n_charts >= 1
    assert chrome.js("[...document.querySelectorAll('svg.chart')].every(s => s.querySelector('path,rect'))")
    assert chrome.js("new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size") == chrome.js(
        "document.querySelectorAll('[id]').length"
    )


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("main-medium-expert", ["label quality (lowest q % by return): 10", "baseline: ", "["]),
        ("gap-medium-expert", ["q = 10", "baseline: 8", "%"]),
        ("self-training", ["ours: ", "["]),
        ("self-training-mse", ["m = 3, N = 5: 0."]),
        ("example-density", ["labelled: ", "of 60"]),
        ("labelled-size", ["10 % labelled: "]),
    ],
)
def test_pointing_at_a_mark_shows_its_values(chrome, pages, name, texts):
    chrome.open(pages[name])
    mark = "[...document.querySelectorAll('svg.chart .hit')].filter(e => e.checkVisibility())[0]"
    chrome.js(f"{mark}.scrollIntoView({{block: 'center'}})")
    chrome.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert chrome.js("tip.hidden")
    chrome.point(*chrome.js(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({mark}.getBoundingClientRect())"))
    text = chrome.js("tip.textContent")
    assert not chrome.js("tip.hidden") and all(part in text for part in texts), text


def click(chrome, mark: str) -> None:
    """Click an element with the mouse."""
    chrome.js(f"{mark}.scrollIntoView({{block: 'center'}})")
    x, y = chrome.js(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({mark}.getBoundingClientRect())")
    for kind in ("mousePressed", "mouseReleased"):
        chrome("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


def test_click_on_a_header_sorts(chrome, pages):
    chrome.open(pages["main-medium-expert"])
    first = ".values"  # the first table
    head = "document.querySelectorAll('.values thead button')[{}]"
    column = partial(TEXTS.format, "figure:first-of-type")
    assert chrome.js(column(0)) == ["10", "30", "50", "70", "90", "100"]  # as numbers, though 100 < 30 as text
    click(chrome, head.format(0))
    assert chrome.js(column(0)) == ["10", "30", "50", "70", "90", "100"]
    assert chrome.js(f"document.querySelector('{first} th').getAttribute('aria-sort')") == "ascending"
    click(chrome, head.format(0))
    assert chrome.js(column(0)) == ["100", "90", "70", "50", "30", "10"]
    assert chrome.js(f"document.querySelector('{first} th').getAttribute('aria-sort')") == "descending"
    click(chrome, head.format(2))  # SS, which is missing at q = 30
    assert chrome.js(column(0)) == ["10", "50", "70", "90", "100", "30"]
    assert chrome.js(column(2))[-1] == "–"
    assert chrome.js(f"document.querySelectorAll('{first}')[0].querySelectorAll('[aria-sort]').length") == 1
    click(chrome, head.format(2))
    assert chrome.js(column(0)) == ["100", "90", "70", "50", "10", "30"]
    assert chrome.complaints() == []


def test_keyboard_sorts_and_text_is_sorted_as_text(chrome, pages):
    chrome.open(pages["labelled-returns"])
    chrome.js("document.querySelector('.values thead button').focus()")
    press = partial(chrome, "Input.dispatchKeyEvent", key="Enter", code="Enter", windowsVirtualKeyCode=13)
    press(type="keyDown", text="\r")
    press(type="keyUp")
    names = chrome.js(TEXTS.format(".values", 0))
    assert names == sorted(names) and len(names) == 9 and names[0] == "halfcheetah-medium"
    assert chrome.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    chrome.press("Tab", 9)
    assert chrome.js("document.activeElement.tagName + document.activeElement.textContent") == "BUTTONq = 10"


@pytest.mark.parametrize("name", ["main-medium-expert", "gap-medium-expert", "example-density"])
def test_chart_can_be_saved_as_svg(chrome, pages, name, tmp_path):
    chrome.open(pages[name])
    file = chrome.js("document.querySelector('.save').dataset.file")
    path = chrome.download(tmp_path, lambda: click(chrome, "document.querySelector('.save')"))
    assert path.name == file
    root = ET.fromstring(path.read_text(encoding="utf-8"))
    assert root.tag == f"{SVG}svg" and int(root.get("width")) >= 320
    marks = [e for e in root.iter() if e.tag in (f"{SVG}path", f"{SVG}rect", f"{SVG}text")]
    # The file stands alone: it holds every style, in rgb colours, and the values as tooltips.
    assert len(marks) > 10 and all(e.get("fill") and not e.get("class") for e in marks)
    assert all((e.get(k) or "none").startswith(("rgb", "none")) for e in marks for k in ("fill", "stroke"))
    tips = [e.text for e in root.iter(f"{SVG}title") if e.text and ":" in e.text]
    assert len(tips) >= 6
    assert chrome.complaints() == []
    chrome.open(path)
    assert chrome.complaints() == []
    sizes = chrome.js("[...document.querySelectorAll('text')].map(e => e.getBoundingClientRect().height)")
    assert all(12 <= size <= 24 for size in sizes)  # as on the page


def test_table_can_be_saved_as_csv(chrome, pages, tmp_path):
    chrome.open(pages["gap-medium-expert"])
    file = chrome.js("document.querySelector('.download').download")
    path = chrome.download(tmp_path, lambda: click(chrome, "document.querySelector('.download')"))
    rows = path.read_text().splitlines()
    assert path.name == file
    assert rows[0] == "quality,baseline,baseline low,baseline high,SS,SS low,SS high" and len(rows) == 7
    assert rows[2].endswith(",,,")  # SS is missing at q = 30


def test_missing_cells_are_listed_and_finished_ones_are_linked(chrome, pages):
    path = pages["main-medium-expert"]
    chrome.open(path)
    tables = chrome.js("[...document.querySelectorAll('.settings summary')].map(e => e.textContent.trim())")
    assert tables == ["Missing cells", "Finished cells"]
    missing = chrome.js("[...document.querySelector('.settings').querySelectorAll('tbody tr')].map(r => r.innerText)")
    assert len(missing) == 6 and all("30\t0, 1, 2\tnot run yet" in row for row in missing)
    links = chrome.js("[...document.querySelectorAll('tbody a')].map(a => a.getAttribute('href'))")
    # 2 datasets, 3 agents, 3 seeds: baseline and SS at six q and an oracle, without SS at one q.
    assert len(links) == 2 * 3 * 3 * (2 * 6 + 1 - 1) == len(set(links))
    assert all((path.parent / link / "result.json").is_file() for link in links)


@pytest.mark.parametrize("name", ["main-medium-expert", "claims", "labelled-returns"])
def test_page_fits_a_phone(chrome, pages, name):
    chrome.open(pages[name], width=360, height=740, mobile=True)
    assert chrome.js("document.documentElement.scrollWidth") <= 360
    assert chrome.complaints() == []
    sizes = chrome.js("[...document.querySelectorAll('svg.chart')].filter(e => e.checkVisibility())"
                      ".map(e => e.getBoundingClientRect().width)")  # fmt: skip
    assert all(280 <= size <= 360 for size in sizes)


def test_light_and_dark_schemes_have_enough_contrast(chrome, pages):
    for name in ("main-medium-expert", "labelled-size", "self-training-mse"):
        for dark in (False, True):
            chrome.open(pages[name], dark=dark)
            words, labels, dots, lines = chrome.js(CONTRAST)
            assert min(words, labels) >= 4.5 and min(dots, lines) >= 3, (name, dark)  # WCAG AA


def test_smoke_run_is_marked_as_no_evidence(chrome, tmp_path):
    study = STUDIES["maze2d"]
    chrome.open(page(study, "smoke", fill(tmp_path, study, "smoke")))
    assert chrome.js("document.querySelector('.badge').textContent") == "smoke: no evidence"
    assert "no evidence" in chrome.js("document.querySelector('.answer').textContent")


def test_text_from_files_is_escaped(chrome, tmp_path):
    axes = {"idm": {NASTY: {}, "b": {"past": 0}}, "quality": (10, 50)}
    grid = Grid({"dataset": "sim/hopper-medium", "agent": "td3bc"}, axes)
    study = Study("mine", NASTY, (grid,), NASTY, by="idm", panels=("idm",), also=("iqm", "gap", "curves", "table"))
    fill(tmp_path, study, "smoke")
    failed = next((tmp_path / "cells").iterdir())
    (failed / "result.json").unlink()
    (failed / "error.txt").write_text(NASTY)
    chrome.open(page(study, "smoke", tmp_path))
    assert chrome.complaints() == [] and len(chrome.requests()) == 1
    assert chrome.js("typeof hacked") == "undefined"
    assert chrome.js("document.querySelectorAll('script').length") == 1
    assert chrome.js("document.querySelectorAll('img').length") == 0
    assert NASTY in chrome.js("document.querySelector('h1').textContent")
