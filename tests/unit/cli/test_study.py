"""`ssorl study` from end to end: list, show, run, status and report of a small study."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from support.study_samples import fill

from ssorl.cli import main
from ssorl.data import save
from ssorl.study import scheduler
from ssorl.study.paper import STUDIES

TOML = """
title = "Mine"
[base]
dataset = "{data}"
agent = "bc"
fraction = 0.2
episodes = 2
[base.settings]
hidden = [8]
batch = 16
updates = 20
[base.idm_settings]
hidden = [8]
steps = 40
validate_every = 20
batch = 32
lr = 1e-3
[axes]
quality = [50, 100]
variant = ["baseline", "ss", "oracle"]
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory, pointmass) -> Path:
    folder = tmp_path_factory.mktemp("study")
    save(pointmass[:40], folder / "small.npz")
    (folder / "mine.toml").write_text(TOML.format(data=folder / "small.npz"))
    return folder / "mine.toml"


@pytest.fixture(scope="module")
def store(study) -> Path:
    """Run the study once and return its store."""
    main(["study", "run", str(study), "--store", str(study.parent / "store")])
    return study.parent / "store"


def test_list_names_every_study(capsys):
    main(["study", "list", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(STUDIES) and all(row["title"] for row in rows)
    main(["study", "list"])
    assert "self-training-mse" in capsys.readouterr().out


def test_show_prints_axes_and_counts_cells(study, store, capsys):
    capsys.readouterr()
    main(["study", "show", str(study), "--store", str(store), "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["axes"]["quality"] == [50, 100] and result["points"] == 6 and result["cells"] == 5 == result["done"]
    there = [json.loads((path / "cell.json").read_text())["cell"]["kind"] for path in (store / "cells").iterdir()]
    assert sorted(there) == ["idm"] * 2 + ["return"] * 5  # two cells for the quality of the labels
    assert {row["cell"] for row in result["grid"]} < {path.name for path in (store / "cells").iterdir()}
    main(["study", "show", "idm-architecture", "--scale", "paper", "--store", str(store)])
    out = capsys.readouterr().out
    assert "360 points, 300 cells at scale paper: 0 done, 300 to do" in out and "k = 2, symmetric" in out


def test_run_draws_a_page_and_computes_nothing_twice(study, store, capsys, monkeypatch):
    capsys.readouterr()
    monkeypatch.setattr("ssorl.study.executor.KINDS", {})  # computing a cell would fail
    main(["study", "run", str(study), "--store", str(store)])
    out, err = capsys.readouterr()
    assert Path(out.strip()).is_file() and out.strip().endswith(".html")
    assert "0 of 5 cells to do" in err and "5 of 5 cells are done" in err
    main(["study", "report", str(study), "--store", str(store)])
    assert capsys.readouterr().out == out


def test_quiet_and_json(study, store, capsys, monkeypatch):
    capsys.readouterr()
    monkeypatch.setattr("ssorl.study.executor.KINDS", {})
    main(["study", "run", str(study), "--store", str(store), "--quiet"])
    out, err = capsys.readouterr()
    assert err == "" and Path(out.strip()).is_file()
    for verb, result in (("run", {"cells": 5, "done": 5, "failed": {}}), ("report", {})):
        main(["study", verb, str(study), "--store", str(store), "--json"])
        assert json.loads(capsys.readouterr().out) == {
            "study": str(study),
            "scale": "smoke",
            "page": out.strip(),
            **result,
        }
    main(["study", "run", str(study), "--store", str(store), "--dry-run", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["cells"] == result["done"] == 5 and result["seconds"] == {"cpu": 0, "gpu": 0}


def test_report_of_a_part_and_of_a_yaml_file(study, store, tmp_path, capsys):
    result = tomllib.loads(study.read_text())
    yaml = "name: mine\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in result.items())
    (tmp_path / "mine.yaml").write_text(yaml)
    capsys.readouterr()
    args = ["study", "report", str(tmp_path / "mine.yaml"), "--store", str(store)]
    main([*args, "--only", "variant=ss", "quality=50", "--seeds", "1"])
    path = Path(capsys.readouterr().out.strip())
    assert path.name == "mine-smoke-variant-ss-quality-50-1-seed.html" and ">1 of 1<" in path.read_text()
    main([*args, "--seeds", "2"])
    assert ">5 of 10<" in Path(capsys.readouterr().out.strip()).read_text()
    with pytest.raises(SystemExit):
        main([*args, "--only", "variant=sss"])
    assert "mine: --only leaves no points" in capsys.readouterr().err


def test_run_reports_progress(study, tmp_path, capsys):
    main(["study", "run", str(study), "--store", str(tmp_path), "--only", "variant=ss", "quality=50"])
    err = capsys.readouterr().err
    assert "1 of 1 cells to do" in err and "training: 20 of 20 updates" in err and "1 of 1 cells are done" in err


def test_status_counts_cells(study, store, tmp_path, capsys):
    capsys.readouterr()
    main(["study", "status", str(study), "--store", str(store), "--json"])
    rows = {row["scale"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["smoke"]["done"] == 5 and rows["smoke"]["left"] == 0 and rows["paper"]["done"] == 0
    main(["study", "status", "--store", str(tmp_path)])
    assert "no results yet" in capsys.readouterr().out


def test_dry_run_prints_the_remaining_work(study, store, tmp_path, capsys):
    capsys.readouterr()
    main(["study", "run", str(study), "--store", str(store), "--seeds", "2", "--dry-run"])
    out = capsys.readouterr().out
    assert "10 cells, 5 done" in out and "2 inverse dynamics models, 100 updates of agents" in out
    assert "GPU-hours" in out and "this machine has such a device" in out and "1 shape to compile" in out
    main(["study", "run", "maze2d", "--scale", "paper", "--store", str(tmp_path / "none"), "--dry-run"])
    out = capsys.readouterr().out
    assert "260 cells, 0 done" in out and "52,000,000 updates of agents" in out
    assert not (tmp_path / "none").exists()


def test_failed_cell_is_named_and_the_others_are_done(study, tmp_path, capsys):
    broken = tmp_path / "broken.toml"
    broken.write_text(
        study.read_text().replace("fraction = 0.2", "").replace("[axes]", "[axes]\nfraction = [0.2, 0.001]")
    )
    with pytest.raises(SystemExit) as end:
        main(["study", "run", str(broken), "--store", str(tmp_path), "--only", "quality=50", "variant=baseline"])
    out, err = capsys.readouterr()
    assert end.value.code == 1 and "1 of 2 cells are done" in err and "ssorl: 1 cell failed" in err
    named = next(line.strip() for line in err.splitlines() if "error.txt" in line)
    assert Path(named.split(":")[0]).is_file() and "rounds to none" in named
    assert out.strip().endswith(".html")


def test_stopped_run_prints_how_to_resume(study, tmp_path, capsys, monkeypatch):
    def stopped(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(scheduler, "run", stopped)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["study", "run", str(study), "--store", "some where"])
    assert end.value.code == 130 and f"  ssorl study run {study} --store 'some where'" in capsys.readouterr().err


def test_claims_print_one_line_each(tmp_path, capsys):
    main(["study", "report", "claims", "--scale", "paper", "--store", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 13 and all("undecided" in line for line in lines[:12]) and lines[12].endswith(".html")


def test_claims_print_their_estimate(tmp_path, capsys):
    study = STUDIES["main-medium-expert"]
    fill(tmp_path, study, "lite", keep=lambda p: p.at["agent"] == "dt", noise=0)
    about = ["study", "report", "claims", "--scale", "lite", "--store", str(tmp_path)]
    main(about)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(" 1. undecided") and lines[2].startswith(" 2. undecided")
    assert lines[1].startswith("    mean of SS − mean of the baseline: ") and " at 12 of 36 places, " in lines[1]
    assert lines[1].endswith("claimed above 0: as claimed")
    main([*about, "--json"])
    result = json.loads(capsys.readouterr().out)["claims"]
    first, fifth = result[0], result[4]
    assert first["checks"] == {"holds": 12, "fails": 0, "open": 24} and first["cells_missing"] == 2 * 2 * 6 * 2 * 3
    number = first["in_one_number"]
    assert number["says"] == "holds" and number["claimed"] == "above 0" and number["low"] <= number["value"]
    assert "value" not in fifth["in_one_number"]  # it has no results


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "main-medium-exper"], "did you mean main-medium-expert"),
        (["show", "maze2d", "--only", "agent"], "write AXIS=VALUE"),
        (["show", "maze2d", "--only", "agent=dt"], "maze2d: --only leaves no points"),
        (["run", "maze2d", "--seeds", "0"], "--seeds is 0"),
    ],
)
def test_mistake_prints_one_sentence(args, words, capsys):
    with pytest.raises(SystemExit) as end:
        main(["study", *args])
    err = capsys.readouterr().err
    assert end.value.code == 2 and words in err and err.count("\n") == 1
