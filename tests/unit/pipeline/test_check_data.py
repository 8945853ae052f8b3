"""ssorl.check: verdict, next command and page."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from support.systems import TINY, hide_after, linear

from ssorl.cli import main
from ssorl.data import save
from ssorl.idm import IDMS
from ssorl.idm.blend.config import BlendConfig
from ssorl.pipeline.check_data import check
from ssorl.report.check_page import render
from ssorl.utils.errors import DataError

KEYS = {"source", "verdict", "next", "warnings", "findings", "forecast", "advice", "yardsticks", "suggestions", "notes"}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Use a small blend."""
    monkeypatch.setitem(IDMS, "blend-quick", BlendConfig(rounds=20, members=1, hidden=(8,), steps=40))


@pytest.fixture(scope="module")
def whole():
    return linear(n=16)


def test_data_that_can_be_labelled_is_ready(whole):
    result = check(hide_after(whole, 8), quiet=True)
    assert result.verdict.startswith("ready") and result.next.startswith("ssorl run")
    assert result.forecast is not None and result.forecast["mse"] < 0.02
    assert len(result.suggestions) == 3 and set(result.as_json()) == KEYS


def test_other_units_are_not_ready(whole):
    second = replace(whole[8:], obs=whole[8:].obs * 57.3)
    result = check(whole[:8], second, quiet=True)
    assert result.warnings and result.verdict.startswith("not ready")
    assert all(0 <= one["trajectory"] < 8 for one in result.suggestions)


def test_all_actions_known(whole):
    result = check(whole, quiet=True)
    assert "all actions are known" in result.verdict and result.forecast is None


def test_no_actions_is_one_sentence(whole):
    with pytest.raises(DataError, match=r"no step has an action.*ssorl suggest"):
        check(hide_after(whole, 0))


def test_a_single_labelled_trajectory(whole, monkeypatch):
    monkeypatch.setitem(IDMS, "blend-quick", TINY)
    result = check(hide_after(whole, 1), quiet=True)
    assert result.findings == [] and "cannot be audited" in result.notes[0]


def test_the_page_shows_the_proxy_actions(whole):
    result = check(hide_after(whole, 8), quiet=True)
    page = render({**result.as_json(), "source": "<script>x</script>"}, result.traces)
    assert "<script>x" not in page and "Forecast label error" in page
    data = json.loads(re.search(r'data-scrub="([^"]*)"', page)[1].replace("&#34;", '"'))
    assert np.array(data[0]["act"]).shape == result.traces[0].act.shape


def test_the_command_line(whole, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(hide_after(whole, 8), "gaps.npz")
    main(["check", "gaps.npz", "--report", "page.html"])
    out = capsys.readouterr().out
    assert "verdict: ready" in out and "next: ssorl run gaps.npz" in out and "page: page.html" in out
    with pytest.raises(SystemExit):
        main(["check", "gaps.npz", "--report", "page.html"])  # it exists
    save(whole[:8], "a.npz")
    save(hide_after(whole, 0)[8:], "b.npz")
    capsys.readouterr()
    main(["check", "--labelled", "a.npz", "--unlabelled", "b.npz", "--json"])
    assert set(json.loads(capsys.readouterr().out)) == KEYS
