"""The documentation as a site: it builds without warnings, needs no network, and has no dead links."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt
from support.pages import PAGES, ROOT

import ssorl
from ssorl.idm.quality import summary

QUIET = {"NO_MKDOCS_2_WARNING": "1"}  # silences an announcement of the theme


def build(config: Path, folder: Path) -> tuple[int, str]:
    """Build the site as `make docs` does; return the exit status and the output. (--quiet would hide warnings.)"""
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        str(config),
        "--site-dir",
        str(folder),
    ]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **QUIET}, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    code, output = build(ROOT / "mkdocs.yml", folder)
    assert code == 0 and "WARNING" not in output, output
    return folder


def test_warning_is_an_error(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[gone](gone.md) [lost](index.md#lost)")
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"INHERIT: {ROOT}/mkdocs.yml\ndocs_dir: docs\nnav: [index.md, other.md]\n")
    code, output = build(config, tmp_path / "site")
    assert code and all(f"'{link}'" in output for link in ("gone.md", "index.md#lost", "other.md")), output


@pytest.fixture(scope="module")
def read(site) -> dict[str, str]:
    """Return the built pages by name, without the theme's 404.html."""
    return {str(p.relative_to(site)): p.read_text() for p in site.rglob("*.html") if p.name != "404.html"}


def test_site_has_every_page(read):
    assert set(read) == {page.removeprefix("docs/")[:-2] + "html" for page in PAGES if page != "README.md"}


def test_navigation_lists_every_page_once(read):
    """The current page is also linked by an anchor."""
    names = re.findall(r'<li class="md-nav__item">\s*<a href="([^"#]+)" class="md-nav__link">', read["api/data.html"])
    assert len(names) == len(read) - 1 and len({*names}) == len(names)


def test_no_markdown_is_left_over(read):
    """Without an empty line before it, a list or table is shown by GitHub but not by the site."""
    for name, text in read.items():
        for paragraph in re.findall(r"<p>(.*?)</p>", text, re.S):
            plain = html.unescape(re.sub(r"<.*?>", "", paragraph))
            assert not re.search(r"^\s*(- |\* |\d+\. |\|)|```|\]\(|^#", plain, re.M), (name, plain[:200])


def test_pages_load_nothing_from_the_network(read):
    for name, text in read.items():
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", text):
            assert "//" not in tag, (name, tag)
        assert "fonts.g" not in text


def test_public_names_are_documented(read):
    titles = re.findall(r"<h3[^>]*>(.*?)</h3>", html.unescape(read["api/index.html"]), re.S)
    assert {f"ssorl.{name}" for name in ssorl.PUBLIC} <= {re.sub(r"<.*?>|[\s¶]", "", title) for title in titles}


def test_comments_of_settings_are_on_the_page(read):
    assert "Weight of Q relative to imitation; 0 is behaviour cloning." in read["api/agents.html"]


def test_report_on_the_page_is_the_stored_one(read):
    page = (ROOT / "docs" / "choosing-idm.md").read_text()
    assert "\n".join(summary(json.loads((ROOT / "results" / "label-report.json").read_text()))) in page


@pytest.mark.parametrize("page", PAGES)
def test_every_link_has_a_target(page):
    for target in links((ROOT / page).read_text()):
        assert not dead(target, page), f"{page}: {target}"


def test_dead_links_are_detected():
    text = "[a](docs/idm.md#at-full-size) ![b](docs/img/no.png) [c](docs/idm.md#no) <https://x.invalid> [d][e]"
    targets = links(text + "\n\n[e]: no.md")
    assert [target for target in targets if dead(target, "README.md")] == ["docs/img/no.png", "docs/idm.md#no", "no.md"]


def links(text: str) -> list[str]:
    """Return the targets of all links and images of a page."""
    inline = [child for token in MarkdownIt("commonmark").parse(text) for child in token.children or ()]
    targets = [token.attrGet("href") or token.attrGet("src") for token in inline]
    return [str(target) for target in targets if target]


def dead(target: str, page: str) -> bool:
    """Return whether a link into the checkout has no target; links to the web are not checked."""
    if re.match(r"[a-z]+:", target):
        return False
    path, _, anchor = unquote(target).partition("#")
    file = (ROOT / page).parent / path if path else ROOT / page
    return not file.exists() or (bool(anchor) and anchor not in anchors(file))


def anchors(file: Path) -> set[str]:
    """Return the anchors of the headings, as the site and GitHub make them."""
    tokens = MarkdownIt("commonmark").parse(file.read_text())
    titles = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in titles}


# In a browser, from the disk ---------------------------------------------------------------------------------


def test_search_works_from_disk(site, chrome):
    chrome.open(site / "quickstart.html")
    chrome.js("document.querySelector('[name=query]').focus()")
    chrome("Input.insertText", text="decoupled")
    chrome.press("Shift", 16)  # the page searches on key events
    chrome.when("document.querySelector('.md-search-result__item a')")
    assert chrome.complaints() == []
    assert all(url.startswith("file://") for url in chrome.requests())


def test_pages_fit_a_phone(site, read, chrome):
    for name in sorted(read):
        chrome.open(site / name, width=360, height=740, mobile=True)
        assert chrome.js("document.documentElement.scrollWidth") <= 360, name
