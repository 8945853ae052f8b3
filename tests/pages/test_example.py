"""docs/example.md runs and gives the results that it describes; docs/run.md names every option."""

from __future__ import annotations

import re

import numpy as np
from support.paths import ROOT

from ssorl.cli import main


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)


def test_example_runs_and_gives_its_results(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for text in blocks("docs/example.md"):
        exec(compile(text, "example.md", "exec"), names)
    baseline, ss, oracle = names["scores"].returns.mean(1)
    assert baseline < ss < oracle + 5 and oracle > 60
    assert names["filled"].report["truth"]["mse"] < 0.01
    # ssorl.run gives the same split, labels and policies as the single steps.
    raw = 14.10 + np.array(names["result"].scores["ss"]["returns"][0]) / 100 * (90.38 - 14.10)
    np.testing.assert_allclose(raw, names["scores"].returns[1])
    out = capsys.readouterr().out
    assert "300 trajectories, 28716 steps" in out and "9% of the steps have an action" in out


def test_run_page_names_every_option(capsys):
    """The data options are in docs/data.md."""
    main(["run", "--help"])
    help_text = capsys.readouterr().out
    own = help_text[: help_text.index("data options")] + help_text[help_text.index("split options") :]
    flags = set(re.findall(r"--[a-z][a-z-]+", own)) - {"--help", "--no-json", "--no-tensorboard", "--save-idm"}
    thirds = {f for f in flags if "labelled" in f}  # the page describes them together, as thirds by return
    page = (ROOT / "docs" / "run.md").read_text()
    assert len(flags) > 15 and thirds
    assert [flag for flag in sorted(flags - thirds) if flag not in page] == []
