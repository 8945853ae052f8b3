"""docs/reliability.md cites tests: each is there, and each row of its tables has one or says that there is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "reliability.md").read_text()
CITED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))


@pytest.mark.parametrize(("file", "name"), CITED, ids=[name for _, name in CITED])
def test_a_cited_test_is_there(file, name):
    assert re.search(rf"^def {name}\(", (TESTS / file).read_text(), re.M), f"{file}::{name}"


def test_every_row_has_its_proof():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    heads = [line for line in rows if line.endswith("the tests |")]
    assert len(heads) == 5 and len(CITED) > 60
    for row in set(rows) - set(heads):
        assert "::" in row or "| same" in row or "not noticed by ssorl" in row, row
