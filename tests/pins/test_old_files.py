"""Files that version 0.1 wrote: each is read, and gives what it gave then."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from make import OLD, RUN, SAC, SAC_STEPS, SMALL, STOPPED, STOPPED_AT, answers, fixed_obs, tiny_idm

import ssorl
from ssorl.utils.errors import SsorlError

TOL = {"rtol": 0, "atol": 1e-5}
UPDATES = RUN["settings"]["updates"]


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A folder of version 0.1 that may be written to, in the current folder."""
    monkeypatch.chdir(tmp_path)

    def copied(name: str) -> Path:
        shutil.copytree(OLD / name, name)
        return Path(name)

    with tiny_idm():
        yield copied


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in (".lock", "report.html")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_data_and_split_are_read():
    from ssorl.data import Split

    eps, old = ssorl.load(OLD / "data.npz"), np.load(OLD / "labels.npz")
    assert (len(eps), eps.n_steps, eps.meta.env, eps.meta.act_range) == (16, 1317, "pointmass", "declared")
    drawn = Split.load(OLD / "split.json")
    task = ssorl.split(eps, fraction=0.25, seed=0)
    np.testing.assert_array_equal(drawn.labelled, task.split.labelled)
    np.testing.assert_array_equal(drawn.unlabelled, task.split.unlabelled)
    np.testing.assert_array_equal(task.data.labelled, old["labelled"])


def test_a_saved_model_labels_as_it_did():
    task, old = ssorl.split(ssorl.load(OLD / "data.npz"), fraction=0.25, seed=0), np.load(OLD / "labels.npz")
    done = ssorl.label(task, ssorl.fit_idm(task, idm=str(OLD / "idm")))
    np.testing.assert_array_equal(done.labels.proxy, old["proxy"])
    assert done.labels.proxy.any()
    np.testing.assert_allclose(done.eps.act, old["act"], **TOL)
    np.testing.assert_allclose(done.labels.std, old["std"], **TOL)


@pytest.mark.parametrize("name", SMALL)
def test_a_saved_policy_acts_as_it_did(name):
    policy = ssorl.load_policy(OLD / "policies" / f"{name}.npz")
    assert policy.env == "pointmass"
    np.testing.assert_allclose(answers(policy), np.load(OLD / "actions.npz")[name], **TOL)


def test_a_finished_run_is_not_done_again(copy):
    folder = copy("run")
    before = contents(folder)
    scores = json.loads(before["result.json"])["scores"]
    done = ssorl.run(OLD / "data.npz", out=folder, **RUN)
    assert done.scores == scores and set(scores) == {"baseline", "ss", "oracle"}
    assert contents(folder) == before  # nothing was written
    assert (folder / "report.html").stat().st_size > 1000  # but the page, which was not there


def test_a_finished_run_is_only_that_of_its_settings(copy):
    with pytest.raises(SsorlError, match="holds another run"):
        ssorl.run(OLD / "data.npz", out=copy("run"), **(RUN | {"fraction": 0.5}))


def test_a_stopped_run_goes_on_from_its_checkpoint(copy):
    folder = copy("stopped")
    before = contents(folder)
    old = _lines(before["metrics.jsonl"])
    reached = {name: max(line["at"] for line in old if line["run"] == name) for name in {x["run"] for x in old}}
    assert sorted(reached.values()) == [STOPPED_AT, UPDATES]  # one training through, one in its middle
    done = ssorl.run(OLD / "data.npz", out=folder, **STOPPED)
    after = contents(folder)
    now = _lines(after["metrics.jsonl"])
    # A training that begins anew cuts its lines away; these have the times of the machine that wrote them.
    assert now[: len(old)] == old and all(line["at"] > STOPPED_AT for line in now[len(old) :])
    assert {line["run"]: line["at"] for line in now} == dict.fromkeys(reached, UPDATES)
    finished = next(name for name, at in reached.items() if at == UPDATES)
    same = ["config.json", "checkpoints/0/run-0.npz", *(n for n in before if n.startswith(("idm/", "splits/", "prox")))]
    assert finished.startswith("baseline") and all(after[name] == before[name] for name in same)
    assert after["checkpoints/0/run-1.npz"] != before["checkpoints/0/run-1.npz"]
    assert done.told["complete"] and set(done.scores) == {"baseline", "ss"}


def _lines(text: bytes) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_behaviour_policy_acts_as_it_did():
    from ssorl.data.sim.policy import load

    want = np.load(OLD / "behaviour-actions.npz")["act"]
    np.testing.assert_allclose(load(OLD / "behaviour.npz").mean(fixed_obs()), want, **TOL)


def test_a_stopped_training_of_a_collector_goes_on(copy, monkeypatch):
    from ssorl.data.sim.train import TrainConfig, train
    from ssorl.envs.pointmass import PointMass

    folder, steps, step = copy("sac"), [], PointMass.step
    lanes = len(SAC["seeds"]) * SAC["n_envs"]

    def counted(env, act):
        steps.append(env.n_envs)
        return step(env, act)

    monkeypatch.setattr(PointMass, "step", counted)
    before = (folder / "curve.jsonl").read_text()
    assert train(TrainConfig(steps=SAC_STEPS, **SAC), folder) and not steps  # it was through already
    assert train(TrainConfig(steps=SAC_STEPS + 16, **SAC), folder)
    assert steps.count(lanes) == 16 // SAC["n_envs"]  # the others are of the evaluation
    old, now = (_lines(text.encode()) for text in (before, (folder / "curve.jsonl").read_text()))
    assert now[: len(old)] == old and [line["step"] for line in now] == [32, 32, 64, 64]
    with pytest.raises(SsorlError, match="of another run"):
        train(TrainConfig(steps=SAC_STEPS, **(SAC | {"hidden": (8,)})), folder)
