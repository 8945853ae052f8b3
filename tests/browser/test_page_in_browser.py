"""The page of a run in a headless browser."""

import csv

import pytest
from support.page_fixtures import CONTRAST, NASTY, visible
from support.page_samples import parent, result, write

from ssorl.report.page import page

LEAVES = "[...document.querySelectorAll('body *')].filter(e => !e.children.length).map(e => e.textContent)"


def test_fixture_reports_errors_and_requests(chrome, tmp_path):
    bad = tmp_path / "bad.html"
    policy = "default-src 'none'; script-src 'sha256-AAAA'"
    bad.write_text(
        f"""<meta http-equiv="Content-Security-Policy" content="{policy}">
        <script>1</script><img src="https://example.invalid/a.png"><style>p {{}}</style>"""
    )
    chrome.open(bad)
    assert sum("Content Security Policy" in line for line in chrome.complaints()) >= 3
    bad.write_text("<script>console.error('no'); missing()</script><img src='other.png'>")
    chrome.open(bad)
    assert len(chrome.complaints()) >= 3
    assert any(url.endswith("other.png") for url in chrome.requests())


@pytest.mark.parametrize("which", ["run_page", "parent_page"])
def test_page_loads_no_other_files(chrome, which, request):
    path = request.getfixturevalue(which)
    chrome.open(path)
    assert chrome.complaints() == []
    assert chrome.requests() == [path.as_uri()]
    assert chrome.js("document.querySelector('h1').textContent.trim()") == "sim/hopper-medium-expert"
    n_charts = chrome.js(visible("svg.chart"))
    assert n_charts == (10 if which == "run_page" else 1)  # each chart is drawn for two widths and shown in one
    assert chrome.js("[...document.querySelectorAll('svg.chart')].every(s => s.querySelector('path,rect'))")


def test_pointing_at_a_mark_shows_its_value(chrome, run_page):
    chrome.open(run_page)
    assert chrome.js("tip.hidden")
    centre = "(r => [r.x + r.width / 2, r.y + r.height / 2])"
    row = "[...document.querySelectorAll('svg.wide .k-ss .hit')][0]"
    chrome.js(f"{row}.scrollIntoView({{block: 'center'}})")
    chrome.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")  # scrolling hides it
    chrome.point(*chrome.js(f"{centre}({row}.getBoundingClientRect())"))
    text = chrome.js("tip.textContent")
    assert not chrome.js("tip.hidden") and "61.2 [57.5, 64.9]" in text and "seed 4" in text
    box = chrome.js("(r => [r.left, r.right, r.top, r.bottom])(tip.getBoundingClientRect())")
    assert box[0] >= 0 and box[1] <= 1100 and box[2] >= 0 and box[3] <= 900
    chrome.press("Escape", 27)
    assert chrome.js("tip.hidden")


def test_keyboard_reaches_all_controls(chrome, run_page):
    chrome.open(run_page)
    chrome.press("Tab", 9)
    assert chrome.js("document.activeElement.className") == "skip"
    chrome.settle()  # the link slides in
    assert chrome.js("document.activeElement.getBoundingClientRect().top") >= 0
    focused = []
    for _ in range(6):
        chrome.press("Tab", 9)
        assert chrome.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        focused.append(chrome.js("document.activeElement.textContent.trim()"))
    names = chrome.js("[...document.querySelectorAll('summary')].map(s => s.textContent.trim())")
    assert focused == names[:6]
    assert not chrome.js("document.activeElement.parentElement.open")
    chrome("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    assert chrome.js("document.activeElement.parentElement.open")
    chrome.press("Tab", 9)
    assert chrome.js("document.activeElement.className") == "scroll"
    chrome.press("Tab", 9)
    assert chrome.js("document.activeElement.className") == "download"


@pytest.mark.parametrize("width", [320, 360, 600, 760])
def test_page_fits_a_small_screen(chrome, run_page, parent_page, tmp_path, width):
    long = page(write(tmp_path, result(seeds=1, points=2, title="x" * 300, command="y" * 300)))
    for path in (run_page, parent_page, long):
        chrome.open(path, width=width, height=740, mobile=True)
        chrome.js("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert chrome.js("document.documentElement.scrollWidth") <= width
        assert chrome.js(visible("svg.wide")) == 0 or width >= 720
        small = "Math.min(...[...document.querySelectorAll('svg.chart text')].filter(e => e.checkVisibility())"
        small += ".map(e => parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a))"
        assert chrome.js(small) >= 10  # pixels: text in pictures stays readable


def test_light_and_dark_schemes_have_enough_contrast(chrome, run_page):
    colours = []
    for dark in (False, True):
        chrome.open(run_page, dark=dark)
        words, labels, dots, lines = chrome.js(CONTRAST)
        assert min(words, labels) >= 4.5 and min(dots, lines) >= 3  # WCAG AA
        style = "getComputedStyle(document.querySelector('{}')).{}"
        colours.append([chrome.js(style.format(*x)) for x in (("body", "backgroundColor"), (".k-ss .dot", "fill"))])
    assert colours[0][0] != colours[1][0] and colours[0][1] != colours[1][1]


def test_charts_have_names_for_screen_readers(chrome, run_page):
    chrome.open(run_page)
    chrome("Accessibility.enable")
    nodes = chrome("Accessibility.getFullAXTree")["nodes"]
    chrome("Accessibility.disable")
    images = [n for n in nodes if n.get("role", {}).get("value") == "image" and not n["ignored"]]
    assert len(images) == 10
    names = [n["name"]["value"] for n in images]
    assert len(set(names)) == 10
    assert any("Scores" in name and "61.2 [57.5, 64.9]" in name for name in names)


def test_text_from_files_is_escaped(chrome, tmp_path):
    sample = result(seeds=1, points=3, title=NASTY, command=NASTY, config={NASTY: NASTY, "agent": NASTY}, env=NASTY)
    sample["versions"] = sample["hardware"] = {NASTY: [NASTY]}
    sample |= {"commit": NASTY, "started": NASTY, "timings": {NASTY: 1.0}}
    sample["idm"] |= {"name": NASTY}
    sample["split"] |= {"quality": NASTY, "setup": NASTY}
    sample["curves"]["ss"][NASTY] = [[1.0, 2.0, 3.0]]
    chrome.open(page(write(tmp_path / "one", sample)))
    assert chrome.complaints() == [] and len(chrome.requests()) == 1
    assert chrome.js("typeof hacked") == "undefined"
    assert chrome.js("document.querySelector('h1').textContent.trim()") == NASTY
    assert chrome.js("document.querySelectorAll('script').length") == 1
    assert chrome.js("document.querySelectorAll('img').length") == 0
    assert sum(NASTY in text for text in chrome.js(LEAVES)) >= 10
    chrome.open(page(write(tmp_path / "several", {**parent((50,)), "title": NASTY, "command": NASTY})))
    assert chrome.complaints() == [] and chrome.js("typeof hacked") == "undefined"


def test_table_can_be_downloaded(chrome, run_page, tmp_path):
    chrome.open(run_page)
    chrome.js("document.querySelector('details').open = true")
    path = chrome.download(tmp_path, lambda: chrome.js("document.querySelector('.download').click()"))
    assert path.name == "scores.csv"
    rows = list(csv.reader(path.read_text().splitlines()))
    assert rows[0][:4] == ["variant", "mean", "low", "high"] and len(rows) == 4
    assert float(rows[2][1]) == 61.2
    assert chrome.complaints() == []


def test_page_over_qualities_links_to_their_pages(chrome, parent_page):
    chrome.open(parent_page)
    links = chrome.js("[...document.querySelectorAll('tbody a')].map(a => a.href)")
    assert links == [(parent_page.parent / f"q{q}" / "report.html").as_uri() for q in (10, 50, 100)]
    chrome.open(links[1])
    assert "SS-TD3BC" in chrome.js("document.querySelector('.answer').textContent")


def test_print_is_light_and_without_controls(chrome, run_page):
    chrome.open(run_page, dark=True)
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    chrome("Emulation.setEmulatedMedia", media="print", features=features)
    assert chrome.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert chrome.js(visible(".skip, .download")) == 0
    assert chrome.js(visible(".settings table")) == 3 and chrome.js(visible(".values table")) == 0
    chrome("Emulation.setEmulatedMedia", media="", features=[])
