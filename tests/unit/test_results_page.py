"""Published results: packed once, drawn from what is packed."""

import importlib.util
import json
from pathlib import Path

import pytest
from study_samples import result

from ssorl.study import cells, stats
from ssorl.study.paper import STUDIES

ABOUT = {"hardware": {"device": "a machine"}, "commit": "abc1234", "versions": {}}


@pytest.fixture
def results(tmp_path, monkeypatch):
    path = Path(__file__).parents[2] / "scripts" / "results.py"
    spec = importlib.util.spec_from_file_location("results_script", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PACKED", tmp_path / "cells.jsonl")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "PAGE", tmp_path / "docs" / "results.md")
    monkeypatch.setattr(module, "FIGURES", tmp_path / "docs" / "figures")
    monkeypatch.setattr(module, "STUDIES", {n: STUDIES[n] for n in ("example-density", "maze2d")})
    estimate = stats.estimate
    monkeypatch.setattr(stats, "estimate", lambda *args, **more: estimate(*args, **{"replications": 200, **more}))
    return module


def finish(store, name, n):
    for point in STUDIES[name].points("paper")[:n]:
        told = {k: v for k, v in result(point).items() if k != "schema"}
        cells.write(store, point.cell, told, ABOUT)


def test_cells_are_packed_once_and_drawn(results, tmp_path):
    finish(tmp_path / "one", "maze2d", 36)
    results.pack([tmp_path / "one"])
    lines = results.PACKED.read_text().splitlines()
    finish(tmp_path / "two", "example-density", 1)
    results.pack([tmp_path / "one", tmp_path / "two"])  # only adds
    assert results.PACKED.read_text().splitlines()[: len(lines)] == lines
    assert len(results.packed()) == len(lines) + 1
    assert all("critic_loss" not in json.loads(line)["result"]["curve"] for line in lines)

    results.draw()
    page = results.PAGE.read_text()
    assert f"{len(lines) + 1} results so far: {len(lines) + 1} on a machine at `abc1234`" in page
    for name in ("example-density", "maze2d"):
        assert f"`{name}`, scale paper" in page and f"ssorl study run {name} --scale paper" in page
    pictures = {p.name for p in results.FIGURES.iterdir()}
    assert pictures == {"example-density-paper-density.png", "maze2d-paper-by-quality.png"}
    assert all(f"figures/{name}" in page for name in pictures)
    left = [line for line in page.splitlines() if line.startswith("| maze2d")]
    assert len(left) == 1 and f"| {260 - len(lines)} | 260 |" in left[0]
    assert "| example-density |" not in page  # nothing of it is left to run
