"""`ssorl label --simulator`: verified labels in every file, one sentence for each mistake, and models from files."""

import json
from dataclasses import replace

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from support.simulated import hide, rollouts

import ssorl
from ssorl.cli import main
from ssorl.data import load, save
from ssorl.data.episodes import Episodes, Meta, offsets
from ssorl.envs.models import Transitions, known_model
from ssorl.idm import IDMS
from ssorl.utils.errors import DataError, SsorlError

FAST = ["--idm", "robust", "--preset", "quick", "--steps", "60", "--members", "1"]
POLE = """<mujoco><option timestep="0.01"/><worldbody><body><joint name="slide" type="slide" axis="1 0 0"/>
<geom size="0.1" mass="1"/><body><joint name="hinge" axis="0 1 0"/><geom size="0.1" mass="0.2" pos="0 0 0.5"/></body>
</body></worldbody><actuator><motor joint="slide" ctrlrange="-2 2" ctrllimited="true" gear="5"/></actuator></mujoco>"""
MAP = {"frame_skip": 2, "observation": ["qpos:hinge", "qvel:slide", "qvel:hinge"], "free": ["qpos:slide"]}


@pytest.fixture(scope="module", autouse=True)
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(IDMS, "robust-quick", replace(IDMS["robust-quick"], hidden=(32, 32), lr=3e-3))
        yield


@pytest.fixture(scope="module")
def truth():
    return rollouts("hopper", n_episodes=8, n_steps=40)


@pytest.fixture
def folder(tmp_path, truth, monkeypatch):
    monkeypatch.setenv("SSORL_CACHE", str(tmp_path / "cache"))
    save(hide(truth, 4), tmp_path / "gaps.npz")
    save(truth[:4], tmp_path / "a.npz")
    save(truth[4:], tmp_path / "b.npz")
    (tmp_path / "pole.xml").write_text(POLE)
    (tmp_path / "map.json").write_text(json.dumps(MAP))
    return tmp_path


def run(capsys, *args) -> dict:
    main(["label", *map(str, args), *FAST, "--json"])
    return json.loads(capsys.readouterr().out)


def fails(capsys, *args) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["label", *map(str, args), *FAST])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.count("\n") == 1 and err.startswith("ssorl: ")
    return err


def columns(path, name):
    """Return an array of a labelled file, whatever its format."""
    if path.suffix == ".npz":
        return np.load(path)[name]
    if path.suffix == ".hdf5":
        with h5py.File(path) as file:
            return file[f"infos/{name}"][()]
    return pq.read_table(path)[name].to_numpy()


@pytest.mark.parametrize("suffix", [".npz", ".hdf5", ".parquet"])
def test_residual_and_verified_are_written(capsys, folder, truth, suffix):
    out = folder / f"out{suffix}"
    report = run(capsys, folder / "gaps.npz", "--simulator", "Hopper-v4", "--out", out)["simulator"]
    verified, residual = columns(out, "verified"), columns(out, "residual")
    assert verified.sum() == report["verified_steps"] > 0.85 * report["steps"] and report["steps"] == 160
    assert (residual[verified] <= report["tolerance"]).all() and np.isnan(residual[:160]).all()
    filled = load(out)
    assert np.square(filled.act - truth.act)[verified].max() < 1e-4
    np.testing.assert_array_equal(filled.act[:160], truth.act[:160])
    assert report["replayed_share"] == 1 and report["verified_mse"] is None and report["notes"] == []


def test_unverified_labels_are_those_of_the_model(capsys, folder):
    run(capsys, folder / "gaps.npz", "--out", folder / "learnt.npz")
    run(capsys, folder / "gaps.npz", "--simulator", "hopper", "--out", folder / "out.npz")
    out, learnt = np.load(folder / "out.npz"), np.load(folder / "learnt.npz")
    rest = ~out["verified"]
    assert set(out.files) - set(learnt.files) == {"residual", "verified"}
    for name in ("act", "act_std", "unseen"):
        np.testing.assert_array_equal(out[name][rest], learnt[name][rest])
    assert (out["act_std"][out["verified"]] < 0.02).all() and not out["unseen"][out["verified"]].any()


def test_a_split_measures_the_verified_labels(capsys, folder, truth):
    save(truth, folder / "whole.npz")
    args = [folder / "whole.npz", "--fraction", "0.5", "--quality", "100", "--simulator", "hopper"]
    report = run(capsys, *args, "--out", folder / "out.npz")
    assert report["simulator"]["verified_mse"] < 1e-6 < report["truth"]["mse"] + 1e-5
    main(["label", *map(str, args), "--out", str(folder / "again.npz"), *FAST])
    shown = " ".join(capsys.readouterr().out.split())
    assert "are verified: hopper reproduces the next observation" in shown and "mean squared error" in shown


def test_two_files_test_the_simulator_on_the_labelled_one(capsys, folder):
    args = ["--labelled", folder / "a.npz", "--unlabelled", folder / "b.npz", "--simulator", "hopper"]
    report = run(capsys, *args, "--out", folder / "out.npz")["simulator"]
    assert report["replayed_steps"] > 50 and report["verified_steps"] > 0.85 * 160


def pole_data(folder, n_episodes=6, n_steps=30):
    rng = np.random.default_rng(0)
    known = known_model(str(folder / "pole.xml"), folder / "map.json")
    step, n = Transitions(known, 1), n_episodes * n_steps
    qpos, qvel = rng.normal(0, 0.3, (n_episodes, 2)), rng.normal(0, 0.3, (n_episodes, 2))
    act = rng.uniform(-2, 2, (n_steps, n_episodes, 1)).astype(np.float32)
    obs = [np.stack([qpos[:, 1], *qvel.T], 1)]
    for forces in act:
        qpos, qvel = step(qpos, qvel, forces)
        obs.append(np.stack([qpos[:, 1], *qvel.T], 1))
    return Episodes(
        np.stack(obs, 1).reshape(n + n_episodes, 3).astype(np.float32),
        act.swapaxes(0, 1).reshape(n, 1),
        np.zeros(n, np.float32),
        np.zeros(n, bool),
        offsets(np.full(n_episodes, n_steps)),
        Meta("pole", None, (-2.0,), (2.0,), "declared"),
    )


def test_a_model_from_a_file_inverts_its_data(capsys, folder):
    truth = pole_data(folder)
    save(hide(truth, 3), folder / "pole.npz")
    given = ["--simulator", folder / "pole.xml", "--state-map", folder / "map.json"]
    report = run(capsys, folder / "pole.npz", *given, "--out", folder / "out.npz")
    verified = np.load(folder / "out.npz")["verified"]
    assert verified[90:].all() and report["simulator"]["replayed_share"] == 1
    np.testing.assert_allclose(load(folder / "out.npz").act, truth.act, atol=0.01)


def test_the_notebook_api_labels_with_a_simulator(folder, truth):
    data = hide(truth, 4)
    model = ssorl.fit_idm(data, "robust", "quick", updates=60, members=1, quiet=True)
    out = ssorl.label(data, model, simulator="hopper", quiet=True)
    assert out.more["verified"].sum() > 0.85 * 160
    assert np.square(out.eps.act - truth.act)[out.more["verified"]].max() < 1e-4
    assert not ssorl.label(data, model, quiet=True).more
    with pytest.raises(DataError, match="observations have size 11"):
        ssorl.label(data, model, simulator="walker2d", quiet=True)
    with pytest.raises(SsorlError, match="--state-map describes a model"):
        ssorl.label(data, model, state_map=folder / "map.json", quiet=True)


@pytest.mark.parametrize(
    "args, message",
    [
        (["--simulator", "walker2d"], "observations have size 11, those of the simulator walker2d have size 17"),
        (["--simulator", "Ant-v4"], "cannot set the state"),
        (["--simulator", "pole.xml"], "needs --state-map"),
        (["--simulator", "absent.xml", "--state-map", "map.json"], "absent.xml: cannot be read"),
        (["--simulator", "hopper", "--state-map", "map.json"], "leave it out"),
        (["--state-map", "map.json"], "name it with --simulator"),
        (["--simulator", "hopper", "--stream"], "--simulator needs all data in memory"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_no_file(capsys, folder, monkeypatch, args, message):
    monkeypatch.chdir(folder)
    assert message in fails(capsys, "gaps.npz", "--out", "out.npz", *args)
    assert not (folder / "out.npz").exists()


def test_data_without_gaps_is_not_inverted(capsys, folder, truth):
    save(truth, folder / "whole.npz")
    error = fails(capsys, folder / "whole.npz", "--simulator", "hopper", "--out", folder / "out.npz")
    assert "every step has an action already" in error
