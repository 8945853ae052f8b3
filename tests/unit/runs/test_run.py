"""The run folder: its files, continuing after a stop at any write, and ownership."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.episodes import CHOICES, SMALL
from support.systems import hide

import ssorl
from ssorl.data import save
from ssorl.report.schema import read
from ssorl.runs.run import run
from ssorl.utils.errors import SsorlError

pytestmark = pytest.mark.usefixtures("small_idm")
FILES = ["checkpoints/0", "config.json", "evaluation.npz", "idm/0/idm.json", "metrics.jsonl", "policies/baseline-0.npz"]
FILES += ["policies/oracle-0.npz", "policies/ss-0.npz", "proxies/0.json", "proxies/0.npz", "report.html"]
FILES += ["result.json", "splits/0.json", "timings.json"]


@pytest.fixture(scope="module")
def done(eps, tmp_path_factory):
    return run(eps, tmp_path_factory.mktemp("runs") / "one", **CHOICES)


def reproducible(folder: Path) -> dict:
    """Return a result without the entries that may differ between two runs of one plan."""
    return {k: v for k, v in read(folder).items() if k not in ("timings", "started", "command", "commit")}


def test_folder_holds_every_file(done):
    for name in FILES:
        assert (done.folder / name).exists(), name
    record = json.loads((done.folder / "config.json").read_text())
    assert record["config"]["agent"]["name"] == "bc" and record["versions"]["jax"]
    assert record["hardware"]["cores"] >= 1
    assert list(read(done.folder)["timings"]) == ["split", "labels", "training", "evaluation"]
    assert done.scores["ss"]["mean"] == done.content["scores"]["ss"]["mean"]
    with np.load(done.folder / "evaluation.npz", allow_pickle=False) as arrays:
        assert arrays["returns"].shape == (3, 2) and arrays["starts"].shape == (2, 4)


def test_stored_policy_reproduces_its_scores(done):
    policy = ssorl.load_policy(done.folder, variant="oracle", seed=0)
    scores = ssorl.evaluate(policy, episodes=2)
    expected = done.scores["oracle"]["returns"][0]
    assert policy.player.n_act == 2 and policy.env == "pointmass"
    np.testing.assert_allclose(100 * (scores.returns[0] - 14.10) / (90.38 - 14.10), expected)


def test_second_call_does_nothing(eps, done, monkeypatch):
    before = {p: p.stat().st_mtime_ns for p in done.folder.rglob("*") if p.name != ".lock"}
    monkeypatch.setattr("ssorl.runs.run.algorithm", lambda *_: pytest.fail("was run again"))
    again = run(eps, done.folder, **CHOICES)
    assert again == done
    assert {p: p.stat().st_mtime_ns for p in done.folder.rglob("*") if p.name != ".lock"} == before


def test_missing_page_is_written_again(eps, done):
    page = done.folder / "report.html"
    before = page.read_bytes()
    page.unlink()
    run(eps, done.folder, **CHOICES)
    assert page.read_bytes() == before


class Stop(BaseException):
    """Stops a call as a kill would."""


def test_stop_at_any_write_changes_no_result(eps, done, tmp_path, monkeypatch):
    """Each call is stopped one write later than the call before, until a call finishes."""
    real, writes = os.replace, []

    def stops(a, b):
        real(a, b)
        writes.extend([b] if Path(b).name != "timings.json" else [])  # each call writes this file in each stage
        if len(writes) == limit:
            raise Stop

    monkeypatch.setattr(os, "replace", stops)
    for calls in range(60):
        limit = 1 + calls  # a stage with several writes repeats until a call completes it
        writes.clear()
        try:
            run(eps, tmp_path / "r", **CHOICES)
        except Stop:
            continue
        break
    assert 5 < calls < 59
    assert reproducible(tmp_path / "r") == reproducible(done.folder)
    assert not list((tmp_path / "r").rglob(".tmp-*"))


def test_folder_of_another_run_raises(eps, done):
    with pytest.raises(SsorlError, match=r"holds another run \(agent updates was 20 and is 30\); choose"):
        run(eps, done.folder, **{**CHOICES, "settings": {**SMALL, "updates": 30}})
    with pytest.raises(SsorlError, match=r"seeds was \(0,\) and is \(0, 1\)"):
        run(eps, done.folder, **CHOICES, seeds=2)
    other = replace(eps, obs=eps.obs + np.float32(1e-6))
    with pytest.raises(SsorlError, match=r"data digest was .* choose another --out"):
        run(other, done.folder, **CHOICES)


def test_folder_in_use_raises(eps, done):
    with (done.folder / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(SsorlError, match="another process is writing there"):
            run(eps, done.folder, **CHOICES)


def test_other_folder_is_not_touched(eps, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    (tmp_path / ".tmp-mine").mkdir()
    with pytest.raises(SsorlError, match="is not the folder of a run, so nothing is written there"):
        run(eps, tmp_path, **CHOICES)
    assert sorted(os.listdir(tmp_path)) == [".tmp-mine", "thesis.tex"]
    with pytest.raises(SsorlError, match="cannot be written"):
        run(eps, tmp_path / "thesis.tex", **CHOICES)


@pytest.mark.parametrize("text", ["[1]", '{"model_type": "bert"}', '{"config": [1]}', "null"])
def test_other_config_file_is_not_touched(eps, tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SsorlError, match="is not the folder of a run, so nothing is written there"):
        run(eps, tmp_path, **CHOICES)
    assert os.listdir(tmp_path) == ["config.json"]


def test_config_without_defaults_is_the_same_run(eps, done, tmp_path, monkeypatch):
    """Older folders lack settings at their default, or have 50 instead of 50.0."""
    monkeypatch.setattr("ssorl.runs.run.algorithm", lambda *_: pytest.fail("was run again"))
    shutil.copytree(done.folder, tmp_path / "r")
    record = json.loads((tmp_path / "r" / "config.json").read_text())
    record["config"]["split"] = {"setup": "coupled", "fraction": 0.2, "quality": [50]}
    del record["sha256"]
    (tmp_path / "r" / "config.json").write_text(json.dumps(record))
    assert run(eps, tmp_path / "r", **CHOICES).content == done.content
    del record["config"]["split"]["fraction"]
    (tmp_path / "r" / "config.json").write_text(json.dumps(record))
    with pytest.raises(SsorlError, match=r"\(split fraction was 0.1 and is 0.2\)"):
        run(eps, tmp_path / "r", **CHOICES)


def test_too_small_disk_raises_before_the_work(eps, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")(1, 1, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(SsorlError, match=r"has 0.0 GB free and the run writes up to"):
        run(eps, tmp_path / "r", **CHOICES)
    assert not (tmp_path / "r" / "config.json").exists()


def test_disk_must_hold_three_checkpoints_and_a_policy(eps, done, tmp_path, monkeypatch):
    """The required space is at least three times the checkpoints of a finished run, plus its policies."""
    need = 0
    for name in ("checkpoints/0/run-*.npz", "checkpoints/0/runs-*.npz", "policies/*.npz"):
        for file in done.folder.glob(name):
            with np.load(file, allow_pickle=False) as arrays:
                size = sum(arrays[k].nbytes for k in arrays.files if k.startswith(("learnt/", "best/", "params/")))
            need += size if "policies" in name else 3 * size
    assert need > 10_000
    monkeypatch.setattr(shutil, "disk_usage", lambda _: namedtuple("usage", "total used free")(1, 1, need - 1))
    with pytest.raises(SsorlError, match="GB free and the run writes up to"):
        run(eps, tmp_path / "r", **CHOICES)


def test_episodes_do_not_matter_without_an_environment(eps, tmp_path, monkeypatch):
    monkeypatch.setattr("ssorl.pipeline.scoring.FQE_UPDATES", 5)
    choices = {"agent": "bc", "fraction": 0.2, "env": "none", "variants": ("baseline",), "settings": SMALL}
    first = run(eps, tmp_path / "r", **choices)
    record = json.loads((tmp_path / "r" / "config.json").read_text())
    record["config"]["episodes"] = 5
    del record["sha256"]
    (tmp_path / "r" / "config.json").write_text(json.dumps(record))
    assert run(eps, tmp_path / "r", **choices) == first


def test_damaged_config_raises(eps, tmp_path):
    (tmp_path / "config.json").write_text('{"config": {')
    with pytest.raises(SsorlError, match=r"config.json: cannot be read"):
        run(eps, tmp_path, **CHOICES)


def test_default_folder_is_named_after_the_plan(eps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(eps, "my data.npz")
    first = run("my data.npz", variants=("baseline",), **CHOICES)
    assert first.folder.parent == Path("runs") and first.folder.name.startswith("my-data-bc-")
    call = "ssorl.run('my data.npz', agent='bc', fraction=0.2, variants=('baseline',)"
    assert first.content["command"].startswith(call)
    assert run("my data.npz", variants=("baseline",), **CHOICES) == first  # the same call finds the folder
    assert set(first.scores) == {"baseline"} and first.content["idm"] is None  # a baseline needs no labels
    assert len(list(Path("runs").iterdir())) == 1


def test_each_quality_has_a_folder(eps, tmp_path):
    done = run(eps, tmp_path / "r", quality=(50, 100), **CHOICES)
    assert [c["folder"] for c in done.content["cells"]] == ["q50", "q100"]
    with pytest.raises(SsorlError, match="several qualities, each with its own scores"):
        _ = done.scores
    for name in ("q50", "q100"):
        assert read(tmp_path / "r" / name)["split"]["quality"] == float(name[1:])
        assert (tmp_path / "r" / name / "report.html").is_file() and (tmp_path / "r" / name / "policies").is_dir()
    assert (tmp_path / "r" / "report.html").is_file()
    again = run(eps, tmp_path / "r", quality=(50, 100), **CHOICES)
    assert again == done


def test_data_with_gaps_needs_no_split(eps, tmp_path):
    done = run(hide(eps, slice(800, None)), tmp_path / "r", agent="bc", episodes=2, settings=SMALL)
    assert set(done.scores) == {"baseline", "ss"} and done.content["split"]["setup"] is None
    assert done.content["relative_gap"] is None and done.content["idm"]["mse"] is None


def test_result_has_a_short_repr_and_a_table(done):
    assert repr(done).startswith("Result(folder=") and "oracle=" in repr(done) and len(repr(done)) <= 300
    table = done._repr_html_()
    assert "report.html" in table and "<th" in table and "baseline" in table
    cells = [{"quality": q, "scores": done.scores} for q in (10.0, 50.0)]
    several = done._replace(content={"cells": cells})
    assert "q10 ss" in several._repr_html_() and len(repr(several)) <= 300
