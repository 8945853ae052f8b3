"""The schema of result.json: each wrong entry raises an error that names it."""

import copy
import json
import re

import pytest
from support.page_samples import parent, small

from ssorl.report.page import page
from ssorl.report.schema import check, read
from ssorl.utils.errors import DataError


def broken(path: str, value) -> dict:
    """Return a sample with one entry replaced."""
    sample = copy.deepcopy(parent((10, 50)) if path.startswith("cells") else small())
    entry = sample
    *way, last = path.split(".")
    for key in way:
        entry = entry[int(key) if isinstance(entry, list) else key]
    entry[int(last) if isinstance(entry, list) else last] = value
    return sample


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("schema", 2, "schema is 2, expected 1"),
        ("title", 3, "title is 3, expected a string"),
        ("kind", "guess", "kind is 'guess', expected rollout or fqe"),
        ("seeds", [0, "1"], "seeds is [0, '1'], expected a list, each a count"),
        ("scores.ss.mean", "61", "scores.ss: mean is '61', expected a number or null"),
        ("scores.ss.returns", [[1.0]], "scores.ss.returns has 1 lists, expected 2 (one for each seed)"),
        ("scores.best", {}, "scores has 'best', expected baseline, ss, oracle"),
        ("split.n_labelled", -1, "split: n_labelled is -1, expected a count"),
        ("idm.by_return", [[1, 2]], "idm: by_return is [[1, 2]], expected a list, each [return, mse, std]"),
        (
            "curves.ss.score",
            [[1.0]],
            "a seed of score has 1 values, expected 3 (one for each entry of `at`)",
        ),
        ("curves.ss", [], "curves.ss is [], expected an object"),
        ("curves.ss", 3, "curves.ss is 3, expected an object"),
        ("cells.1.folder", "javascript:alert(1)", "folder is 'javascript:alert(1)', expected the name of a sub-folder"),
        ("cells.1.folder", "../elsewhere", "expected the name of a sub-folder"),
        ("cells.0", 1, "cells is [1, {"),
    ],
)
def test_wrong_entry_raises(path, value, message):
    check(small())
    check(parent((10, 50)))
    with pytest.raises(DataError, match=re.escape(message)):
        check(broken(path, value))


def test_missing_key_raises():
    for key in small():
        sample = small()
        del sample[key]
        with pytest.raises(DataError, match=key):
            check(sample)


def test_missing_or_damaged_file_raises(tmp_path):
    with pytest.raises(DataError, match=r"result\.json: file not found"):
        page(tmp_path)
    for text in ('{"schema": 1', "[" * 100_000, "\udcff".encode("utf-8", "surrogatepass").decode("latin1") + "{"):
        (tmp_path / "result.json").write_text(text, encoding="latin1")
        with pytest.raises(DataError, match="cannot be read as JSON"):
            read(tmp_path)
    for other in ([], "a", None):
        (tmp_path / "result.json").write_text(json.dumps(other))
        with pytest.raises(DataError, match="schema is"):
            read(tmp_path)
    assert not (tmp_path / "report.html").exists()
