"""The run folder: what is in it, what is not done again, whose it is, and what a stop at any write leaves."""

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


def bits(folder: Path) -> dict:
    """A result without what may differ between two runs of one plan."""
    told = read(folder)
    return {k: v for k, v in told.items() if k not in ("timings", "started", "command", "commit")}


def test_everything_is_in_the_folder(done):
    for name in FILES:
        assert (done.folder / name).exists(), name
    told = json.loads((done.folder / "config.json").read_text())
    assert told["config"]["agent"]["name"] == "bc" and told["versions"]["jax"] and told["hardware"]["cores"] >= 1
    assert list(read(done.folder)["timings"]) == ["split", "labels", "training", "evaluation"]
    assert done.scores["ss"]["mean"] == done.told["scores"]["ss"]["mean"]
    with np.load(done.folder / "evaluation.npz", allow_pickle=False) as found:
        assert found["returns"].shape == (3, 2) and found["starts"].shape == (2, 4)


def test_the_policies_are_those_that_were_judged(done):
    policy = ssorl.load_policy(done.folder, variant="oracle", seed=0)
    scores = ssorl.evaluate(policy, episodes=2)
    want = done.scores["oracle"]["returns"][0]
    meta = policy.player
    assert meta.n_act == 2 and policy.env == "pointmass"
    np.testing.assert_allclose(100 * (scores.returns[0] - 14.10) / (90.38 - 14.10), want)


def test_again_does_nothing(eps, done, monkeypatch):
    before = {p: p.stat().st_mtime_ns for p in done.folder.rglob("*") if p.name != ".lock"}
    monkeypatch.setattr("ssorl.runs.run.algorithm", lambda *_: pytest.fail("was run again"))
    again = run(eps, done.folder, **CHOICES)
    assert again == done
    assert {p: p.stat().st_mtime_ns for p in done.folder.rglob("*") if p.name != ".lock"} == before


def test_a_lost_page_is_drawn_again(eps, done):
    page = done.folder / "report.html"
    was = page.read_bytes()
    page.unlink()
    run(eps, done.folder, **CHOICES)
    assert page.read_bytes() == was


class Stop(BaseException):
    """As final as a kill, but only for this call."""


def test_a_stop_at_any_write_changes_nothing(eps, done, tmp_path, monkeypatch):
    """Each call may write once more than the last before it is stopped, until one comes to the end."""
    real, wrote = os.replace, []

    def stops(a, b):
        real(a, b)
        wrote.extend([b] if Path(b).name != "timings.json" else [])  # each stage of each call writes that one
        if len(wrote) == limit:
            raise Stop

    monkeypatch.setattr(os, "replace", stops)
    for calls in range(60):
        limit = 1 + calls  # a stage of several writes is begun again until one call gets through it
        wrote.clear()
        try:
            run(eps, tmp_path / "r", **CHOICES)
        except Stop:
            continue
        break
    assert 5 < calls < 59
    assert bits(tmp_path / "r") == bits(done.folder)
    assert not list((tmp_path / "r").rglob(".tmp-*"))


def test_another_run_is_refused(eps, done):
    with pytest.raises(SsorlError, match=r"holds another run \(agent updates was 20 and is 30\); choose"):
        run(eps, done.folder, **{**CHOICES, "settings": {**SMALL, "updates": 30}})
    with pytest.raises(SsorlError, match=r"seeds was \(0,\) and is \(0, 1\)"):
        run(eps, done.folder, **CHOICES, seeds=2)
    other = replace(eps, obs=eps.obs + np.float32(1e-6))
    with pytest.raises(SsorlError, match=r"data digest was .* choose another --out"):
        run(other, done.folder, **CHOICES)


def test_one_process_at_a_time(eps, done):
    with (done.folder / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(SsorlError, match="another process is writing there"):
            run(eps, done.folder, **CHOICES)


def test_a_folder_of_something_else_is_left_alone(eps, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    (tmp_path / ".tmp-mine").mkdir()
    with pytest.raises(SsorlError, match="no run's, so nothing is written there"):
        run(eps, tmp_path, **CHOICES)
    assert sorted(os.listdir(tmp_path)) == [".tmp-mine", "thesis.tex"]
    with pytest.raises(SsorlError, match="cannot be written"):
        run(eps, tmp_path / "thesis.tex", **CHOICES)


@pytest.mark.parametrize("text", ["[1]", '{"model_type": "bert"}', '{"config": [1]}', "null"])
def test_a_configuration_of_something_else_is_left_alone(eps, tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SsorlError, match="no run's, so nothing is written there"):
        run(eps, tmp_path, **CHOICES)
    assert os.listdir(tmp_path) == ["config.json"]


def test_a_record_without_its_defaults_is_the_same_run(eps, done, tmp_path, monkeypatch):
    """As folders of before are, and those whose numbers were written in another way."""
    monkeypatch.setattr("ssorl.runs.run.algorithm", lambda *_: pytest.fail("was run again"))
    shutil.copytree(done.folder, tmp_path / "r")
    record = json.loads((tmp_path / "r" / "config.json").read_text())
    record["config"]["split"] = {"setup": "coupled", "fraction": 0.2, "quality": [50]}
    del record["sha256"]
    (tmp_path / "r" / "config.json").write_text(json.dumps(record))
    assert run(eps, tmp_path / "r", **CHOICES).told == done.told
    del record["config"]["split"]["fraction"]
    (tmp_path / "r" / "config.json").write_text(json.dumps(record))
    with pytest.raises(SsorlError, match=r"\(split fraction was 0.1 and is 0.2\)"):
        run(eps, tmp_path / "r", **CHOICES)


def test_a_disk_too_small_is_told_before_the_work(eps, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")(1, 1, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(SsorlError, match=r"has 0.0 GB free and the run writes up to"):
        run(eps, tmp_path / "r", **CHOICES)
    assert not (tmp_path / "r" / "config.json").exists()


def test_the_disk_must_hold_three_checkpoints_and_a_policy(eps, done, tmp_path, monkeypatch):
    """What the arrays of a finished run come to, three times while the last one is written."""
    need = 0
    for name in ("checkpoints/0/run-*.npz", "checkpoints/0/runs-*.npz", "policies/*.npz"):
        for file in done.folder.glob(name):
            with np.load(file, allow_pickle=False) as found:
                own = sum(found[k].nbytes for k in found.files if k.startswith(("learnt/", "best/", "params/")))
            need += own if "policies" in name else 3 * own
    assert need > 10_000
    monkeypatch.setattr(shutil, "disk_usage", lambda _: namedtuple("usage", "total used free")(1, 1, need - 1))
    with pytest.raises(SsorlError, match="GB free and the run writes up to"):
        run(eps, tmp_path / "r", **CHOICES)


def test_episodes_do_not_count_where_nothing_is_played(eps, tmp_path, monkeypatch):
    monkeypatch.setattr("ssorl.pipeline.scoring.FQE_UPDATES", 5)
    choices = {"agent": "bc", "fraction": 0.2, "env": "none", "variants": ("baseline",), "settings": SMALL}
    one = run(eps, tmp_path / "r", **choices)
    record = json.loads((tmp_path / "r" / "config.json").read_text())
    record["config"]["episodes"] = 5
    del record["sha256"]
    (tmp_path / "r" / "config.json").write_text(json.dumps(record))
    assert run(eps, tmp_path / "r", **choices) == one


def test_a_damaged_record_is_told(eps, tmp_path):
    (tmp_path / "config.json").write_text('{"config": {')
    with pytest.raises(SsorlError, match=r"config.json: cannot be read"):
        run(eps, tmp_path, **CHOICES)


def test_default_folder_is_named_by_the_plan(eps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(eps, "my data.npz")
    one = run("my data.npz", variants=("baseline",), **CHOICES)
    assert one.folder.parent == Path("runs") and one.folder.name.startswith("my-data-bc-")
    assert one.told["command"].startswith("ssorl.run('my data.npz', agent='bc', fraction=0.2, variants=('baseline',)")
    assert run("my data.npz", variants=("baseline",), **CHOICES) == one  # found again by the same call
    assert set(one.scores) == {"baseline"} and one.told["idm"] is None  # nobody asked for labels
    assert len(list(Path("runs").iterdir())) == 1


def test_several_qualities_have_a_folder_each(eps, tmp_path):
    done = run(eps, tmp_path / "r", quality=(50, 100), **CHOICES)
    assert [c["folder"] for c in done.told["cells"]] == ["q50", "q100"]
    with pytest.raises(SsorlError, match="several qualities, each with its own scores"):
        _ = done.scores
    for name in ("q50", "q100"):
        assert read(tmp_path / "r" / name)["split"]["quality"] == float(name[1:])
        assert (tmp_path / "r" / name / "report.html").is_file() and (tmp_path / "r" / name / "policies").is_dir()
    assert (tmp_path / "r" / "report.html").is_file()
    again = run(eps, tmp_path / "r", quality=(50, 100), **CHOICES)
    assert again == done


def test_data_with_gaps_is_taken_as_it_is(eps, tmp_path):
    done = run(hide(eps, slice(800, None)), tmp_path / "r", agent="bc", episodes=2, settings=SMALL)
    assert set(done.scores) == {"baseline", "ss"} and done.told["split"]["setup"] is None
    assert done.told["relative_gap"] is None and done.told["idm"]["mse"] is None
