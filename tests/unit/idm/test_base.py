"""A second family of models goes through everything that the network goes through."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.linear_idm import LinearIdm, registered

import ssorl
from ssorl.data.stream import open_stream
from ssorl.data.validate import ReadOptions
from ssorl.idm import serialise, settings_of, spec_of
from ssorl.idm.selftrain import self_train
from ssorl.utils.errors import DataError, SsorlError


@pytest.fixture(scope="module")
def task():
    return ssorl.split(ssorl.load("builtin/pointmass")[:40], fraction=0.25, seed=0)


@pytest.fixture
def model(task):
    with registered():
        yield ssorl.fit_idm(task, idm="linear")


def test_it_labels_and_is_calibrated(task, model):
    done = ssorl.label(task, model)
    assert model.validation is not None and model.calibration is not None
    assert done.eps.labelled.all() and done.report["truth"]["mse"] < 0.05
    known = task.data.labelled
    np.testing.assert_array_equal(done.eps.act[known], task.data.act[known])
    assert set(done.report["model"]) == {
        "fitted_to", "labelled_trajectories", "labelled_steps", "labelled_returns", "labelled_variance",
    }  # fmt: skip


def test_a_saved_one_names_its_family_and_labels_alike(task, model, tmp_path):
    serialise.save(model, tmp_path / "idm")
    assert json.loads((tmp_path / "idm" / "idm.json").read_text())["family"] == "linear"
    again = ssorl.fit_idm(task, idm=str(tmp_path / "idm"))
    first, second = ssorl.label(task, model), ssorl.label(task, again)
    np.testing.assert_array_equal(first.eps.act, second.eps.act)
    np.testing.assert_array_equal(first.labels.std, second.labels.std)


def test_a_family_that_is_not_registered_is_named(model, tmp_path):
    from ssorl.idm import IDMS

    serialise.save(model, tmp_path / "idm")
    spec = IDMS.pop("linear")
    try:
        with pytest.raises(SsorlError, match=r"family 'linear'.*install the package that has it, or name"):
            serialise.load(tmp_path / "idm")
    finally:
        IDMS["linear"] = spec


@pytest.mark.parametrize(
    "change",
    [
        {"family": ["linear"]},
        {"n_act": 3},
        {"family": "network"},
        {"details": {"solver": "other"}},
        {"details": 3},
        {"config": {"ridge": "1", "validation": 0.1}},
        {"config": {"ridge": 1.0}},
    ],
)
def test_a_forged_header_is_refused(model, tmp_path, change):
    serialise.save(model, tmp_path / "idm")
    header = tmp_path / "idm" / "idm.json"
    about = json.loads(header.read_text())
    del about["sha256"]
    header.write_text(json.dumps(about | change))
    with pytest.raises((DataError, SsorlError), match="idm"):
        serialise.load(tmp_path / "idm")


def test_a_network_names_no_family(task, tmp_path):
    from ssorl.idm import IdmConfig
    from ssorl.idm.label import labeller

    ready = labeller(IdmConfig(hidden=(8,), steps=4, batch=8, validate_every=2).fit(task.data), task.data)
    serialise.save(ready, tmp_path / "idm")
    assert not {"family", "details"} & set(json.loads((tmp_path / "idm" / "idm.json").read_text()))


def test_it_self_trains(task, model):
    rounds = self_train(task.data, LinearIdm(), members=None, rounds=2)
    assert [len(r.added) > 0 for r in rounds] == [False, True, True]
    with pytest.raises(SsorlError, match="no number of members"):
        self_train(task.data, LinearIdm(), members=3)


def test_it_labels_a_stream(task, tmp_path):
    from ssorl.data.formats import open_parts
    from ssorl.idm.fill import fill

    ssorl.data.save(task.data, tmp_path / "some.npz")
    wish = ReadOptions()
    stream = open_stream(open_parts(str(tmp_path / "some.npz"), None, wish), wish, size=100)
    with registered():
        passing = fill(stream, LinearIdm())
        streamed = [part.act for part, _ in passing.parts()]
        at_once = fill(task.data, LinearIdm())
    assert len(streamed) > 3
    np.testing.assert_array_equal(np.concatenate(streamed), at_once.eps.act)


def test_a_run_uses_it_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = {"agent": "bc", "settings": {"hidden": (8,), "updates": 20}, "episodes": 2, "idm": "linear"}
    with registered():
        done = ssorl.run("builtin/pointmass", out="run", variants=["ss"], **small)
        written = (Path("run") / "idm" / "0" / "weights.npz").read_bytes()
        (Path("run") / "result.json").unlink()
        assert ssorl.run("builtin/pointmass", out="run", variants=["ss"], **small).scores == done.scores
    config = json.loads((Path("run") / "config.json").read_text())["config"]["idm"]
    assert config == {"name": "linear", "family": "linear", "ridge": 1e-6, "validation": 0.1}
    assert (Path("run") / "idm" / "0" / "weights.npz").read_bytes() == written


def test_a_study_cell_names_the_family(model):
    from ssorl.study.grid import resolve
    from ssorl.study.scales import SCALES

    asked = {"dataset": "builtin/pointmass", "agent": "bc", "variant": "ss", "idm": "linear"}
    cell = resolve(asked | {"idm_settings": {"ridge": 0.5}}, SCALES["lite"])  # whose network settings it has not
    assert cell.idm == (("family", "linear"), ("ridge", 0.5))
    assert spec_of(dict(cell.idm)) == LinearIdm(ridge=0.5) and settings_of(LinearIdm())["family"] == "linear"
    assert resolve(asked | {"idm": "paper"}, SCALES["paper"]).idm == ()
    for wrong in ({"idm_settings": {"steps": 10}}, {"members": 2}):
        with pytest.raises(SsorlError, match="has no setting"):
            resolve(asked | wrong, SCALES["lite"])


def test_size_flags_that_it_lacks_are_refused(model):
    from ssorl.idm.fill import resolve

    assert resolve("linear", "quick") == LinearIdm()
    with pytest.raises(SsorlError, match="no number of updates"):
        resolve("linear", steps=5)
