"""docs/example.md runs as it stands and shows what it should; docs/run.md is complete."""

from __future__ import annotations

import re

import numpy as np
from support.paths import ROOT

from ssorl.cli import main


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)


def test_the_example_runs_and_shows_what_it_should(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for text in blocks("docs/example.md"):
        exec(compile(text, "example.md", "exec"), names)
    baseline, ss, oracle = names["scores"].returns.mean(1)
    assert baseline < ss < oracle + 5 and oracle > 60
    assert names["filled"].report["truth"]["mse"] < 0.01
    # The one call does what the steps did: the same seed, the same split, the same labels and policies.
    raw = 14.10 + np.array(names["result"].scores["ss"]["returns"][0]) / 100 * (90.38 - 14.10)
    np.testing.assert_allclose(raw, names["scores"].returns[1])
    out = capsys.readouterr().out
    assert "300 trajectories, 28716 steps" in out and "9% of the steps have an action" in out


def test_the_page_of_run_names_every_choice(capsys):
    """All that the command itself has; where data comes from is in docs/data.md."""
    main(["run", "--help"])
    told = capsys.readouterr().out
    own = told[: told.index("input options")] + told[told.index("hidden options") :]
    flags = set(re.findall(r"--[a-z][a-z-]+", own)) - {"--help", "--no-json", "--no-tensorboard", "--save-idm"}
    thirds = {f for f in flags if "labelled" in f}  # told together: "thirds by return"
    page = (ROOT / "docs" / "run.md").read_text()
    assert len(flags) > 15 and thirds
    assert [flag for flag in sorted(flags - thirds) if flag not in page] == []
