"""docs/architecture.md names every package, and only files and names that exist."""

import re

import pytest
from support.paths import ROOT

SRC = ROOT / "src" / "ssorl"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
ROWS = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| `")]
DIAGRAM = PAGE.partition("```text\n")[2].partition("```")[0]


def test_the_map_names_each_package_once():
    packages = sorted(path.name for path in SRC.iterdir() if (path / "__init__.py").exists())
    assert sorted(row[0].strip(" `/") for row in ROWS) == packages


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip(" `/"))
def test_a_package_s_main_files_are_there(row):
    package = SRC / row[0].strip(" `/")
    assert not [name for name in re.findall(r"`([^`]+)`", row[2]) if not (package / name).exists()]


def test_paths_outside_the_map_are_there():
    told = PAGE.partition("## Data flow")[2]
    names = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", told)
    names += re.findall(r"\b(?:data|idm|agents|training|evaluation|report|study)/[\w.]*", DIAGRAM)
    assert len(names) > 20
    assert not [name for name in names if not (SRC / name).exists() and not (ROOT / name).exists()]


def test_registries_and_defaults_are_where_the_page_says():
    for name, file in re.findall(r"`([A-Z]+)` \(`(\S+\.py)`\)", PAGE):
        assert re.search(rf"^{name}\b", (SRC / file).read_text(), re.M), (name, file)
