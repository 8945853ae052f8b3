"""The documentation as a site: built without a warning, whole, read without a network; and no link is dead."""

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

QUIET = {"NO_MKDOCS_2_WARNING": "1"}  # an announcement of the theme's, not about our pages


def build(config: Path, folder: Path) -> tuple[int, str]:
    """As `make docs` does. Not with --quiet: warnings would then not count."""
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
    code, said = build(ROOT / "mkdocs.yml", folder)
    assert code == 0 and "WARNING" not in said, said
    return folder


def test_a_warning_is_an_error(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[gone](gone.md) [lost](index.md#lost)")
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"INHERIT: {ROOT}/mkdocs.yml\ndocs_dir: docs\nnav: [index.md, other.md]\n")
    code, said = build(config, tmp_path / "site")
    assert code and all(f"'{what}'" in said for what in ("gone.md", "index.md#lost", "other.md")), said


@pytest.fixture(scope="module")
def read(site) -> dict[str, str]:
    """The built pages by their names; 404.html is the theme's."""
    return {str(p.relative_to(site)): p.read_text() for p in site.rglob("*.html") if p.name != "404.html"}


def test_every_page_is_in_it(read):
    assert set(read) == {page.removeprefix("docs/")[:-2] + "html" for page in PAGES if page != "README.md"}


def test_no_page_is_in_it_twice(read):
    """What the navigation leads to; its own page is there by an anchor as well."""
    found = re.findall(r'<li class="md-nav__item">\s*<a href="([^"#]+)" class="md-nav__link">', read["api/data.html"])
    assert len(found) == len(read) - 1 and len({*found}) == len(found)


def test_no_markdown_is_left_over(read):
    """What GitHub shows as a list or a table and the site's Markdown does not, as it wants an empty line before."""
    for name, text in read.items():
        for paragraph in re.findall(r"<p>(.*?)</p>", text, re.S):
            said = html.unescape(re.sub(r"<.*?>", "", paragraph))
            assert not re.search(r"^\s*(- |\* |\d+\. |\|)|```|\]\(|^#", said, re.M), (name, said[:200])


def test_nothing_is_fetched(read):
    for name, text in read.items():
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", text):
            assert "//" not in tag, (name, tag)
        assert "fonts.g" not in text


def test_the_public_names_are_told(read):
    titles = re.findall(r"<h3[^>]*>(.*?)</h3>", html.unescape(read["api/index.html"]), re.S)
    assert {f"ssorl.{name}" for name in ssorl.PUBLIC} <= {re.sub(r"<.*?>|[\s¶]", "", title) for title in titles}


def test_a_setting_s_comment_is_what_the_page_says(read):
    assert "Weight of Q relative to imitation; 0 is behaviour cloning." in read["api/agents.html"]


def test_the_report_on_the_page_is_the_one_that_was_kept(read):
    page = (ROOT / "docs" / "choosing-idm.md").read_text()
    assert "\n".join(summary(json.loads((ROOT / "results" / "label-report.json").read_text()))) in page


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    for target in links((ROOT / page).read_text()):
        assert not dead(target, page), f"{page}: {target}"


def test_a_dead_link_is_noticed():
    text = "[a](docs/idm.md#at-full-size) ![b](docs/img/no.png) [c](docs/idm.md#no) <https://x.invalid> [d][e]"
    found = links(text + "\n\n[e]: no.md")
    assert [target for target in found if dead(target, "README.md")] == ["docs/img/no.png", "docs/idm.md#no", "no.md"]


def links(text: str) -> list[str]:
    """The targets of all links and pictures."""
    inline = [child for token in MarkdownIt("commonmark").parse(text) for child in token.children or ()]
    found = [token.attrGet("href") or token.attrGet("src") for token in inline]
    return [str(target) for target in found if target]


def dead(target: str, page: str) -> bool:
    """Whether it is meant to be in the checkout and is not; the net is not asked."""
    if re.match(r"[a-z]+:", target):
        return False
    path, _, anchor = unquote(target).partition("#")
    file = (ROOT / page).parent / path if path else ROOT / page
    return not file.exists() or (bool(anchor) and anchor not in anchors(file))


def anchors(file: Path) -> set[str]:
    """The names of the headings, as the site and GitHub make them."""
    tokens = MarkdownIt("commonmark").parse(file.read_text())
    titles = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in titles}


# In a browser, from the disk ---------------------------------------------------------------------------------


def test_it_is_read_from_the_disk_and_found_by_searching(site, chrome):
    chrome.open(site / "quickstart.html")
    chrome.js("document.querySelector('[name=query]').focus()")
    chrome("Input.insertText", text="decoupled")
    chrome.press("Shift", 16)  # the page listens for keys
    chrome.when("document.querySelector('.md-search-result__item a')")
    assert chrome.complaints() == []
    assert all(url.startswith("file://") for url in chrome.requests())


def test_no_page_is_wider_than_a_phone(site, read, chrome):
    for name in sorted(read):
        chrome.open(site / name, width=360, height=740, mobile=True)
        assert chrome.js("document.documentElement.scrollWidth") <= 360, name
