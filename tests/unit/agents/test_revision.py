"""Revisions of agents and IDMs: which files store them, and which files are rejected because of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields

import jax
import numpy as np
import pytest
from support.episodes import make_episodes
from support.linear_idm import LinearIdm, registered

from ssorl.agents import AGENTS, make
from ssorl.agents.bc import BC
from ssorl.agents.dt import DT
from ssorl.agents.serialise import describe, rebuild
from ssorl.data.stats import Standardiser
from ssorl.evaluation.policy_file import load_policy_file, save_policy
from ssorl.idm import IDMS, IdmConfig, serialise, settings_of
from ssorl.idm.label import labeller
from ssorl.training.engine import TrainingRun, train_many
from ssorl.utils.errors import SsorlError
from ssorl.utils.identity import Revisions, since

SETTINGS = {"hidden": (8,), "batch": 8, "updates": 12, "half": False}
IDM = IdmConfig(hidden=(8,), steps=4, batch=8, validate_every=2)


@dataclass(frozen=True)
class Extended(BC):
    weight: float = since("0.2", 0.0)


@pytest.mark.parametrize("kind", [*AGENTS.values(), IdmConfig], ids=lambda kind: kind.__name__)
def test_a_revision_is_not_a_setting(kind):
    assert kind.revision == 0 and "revision" not in {f.name for f in fields(kind)}


def test_dt_joint_shares_the_revision_of_dt(monkeypatch):
    monkeypatch.setattr(DT, "revision", 2)
    assert AGENTS["dt-joint"].revision == 2


@pytest.fixture
def policy(tmp_path):
    agent, path = make("bc", **SETTINGS), tmp_path / "policy.npz"
    params = jax.device_get(agent.policy(agent.init(jax.random.key(0), 3, 2)))
    scaler = Standardiser(np.zeros(3, np.float32), np.ones(3, np.float32))

    def save(**more):
        save_policy(path, agent, params, scaler, -np.ones(2), np.ones(2), **more)
        return path

    return save


def test_a_policy_file_stores_its_revisions_and_loads_in_later_ones(policy, monkeypatch):
    assert load_policy_file(policy()).revisions == Revisions(0, None)
    monkeypatch.setattr(BC, "revision", 1)
    path = policy(idm_revision=4)
    monkeypatch.setattr(BC, "revision", 2)
    assert load_policy_file(path).revisions == Revisions(1, 4)


def test_a_later_setting_is_stored_only_if_it_differs_from_its_default(monkeypatch):
    monkeypatch.setitem(AGENTS, "bc", Extended)
    assert "weight" not in describe(Extended())["settings"]
    assert rebuild(json.loads(json.dumps(describe(Extended())))) == Extended()
    assert rebuild(json.loads(json.dumps(describe(Extended(weight=0.5))))) == Extended(weight=0.5)


@pytest.fixture(scope="module")
def runs():
    return [TrainingRun(make_episodes([10, 10]), 0)]


class StopError(Exception):
    pass


def test_a_training_of_an_earlier_revision_is_not_resumed(runs, tmp_path, monkeypatch):
    def stop(snapshot):
        if snapshot.at == 8:
            raise StopError

    agent = make("bc", **SETTINGS)
    with pytest.raises(StopError):
        train_many(agent, runs, every=4, callback=stop, folder=tmp_path)
    assert list(tmp_path.glob("run-0*.npz"))
    monkeypatch.setattr(BC, "revision", 1)
    with pytest.raises(
        SsorlError, match=r"began with revision 0 of bc, but this version has revision 1.*another folder"
    ):
        train_many(agent, runs, every=4, folder=tmp_path)
    monkeypatch.setattr(BC, "revision", 0)
    assert train_many(agent, runs, every=4, folder=tmp_path)


def test_a_training_is_resumed_if_a_later_setting_is_at_its_default(runs, tmp_path, monkeypatch):
    def stop(snapshot):
        raise StopError

    with pytest.raises(StopError):
        train_many(make("bc", **SETTINGS), runs, every=4, callback=stop, folder=tmp_path)
    monkeypatch.setitem(AGENTS, "bc", Extended)
    assert train_many(Extended(**SETTINGS), runs, every=4, folder=tmp_path)
    with pytest.raises(SsorlError, match=r"weight was None and is 0\.5"):
        train_many(Extended(**SETTINGS, weight=0.5), runs, every=4, folder=tmp_path)


def test_a_saved_idm_keeps_the_revision_that_fitted_it(pointmass, tmp_path, monkeypatch):
    eps = pointmass[:10]
    monkeypatch.setattr(IdmConfig, "revision", 1)
    serialise.save(labeller(IDM.fit(eps), eps), tmp_path / "idm")
    monkeypatch.setattr(IdmConfig, "revision", 2)
    ready = serialise.load(tmp_path / "idm")
    assert ready.revision == 1
    serialise.save(ready, tmp_path / "copy")  # the copy was fitted by revision 1, too
    assert json.loads((tmp_path / "copy" / "idm.json").read_text())["revision"] == 1


@pytest.mark.parametrize("value", [-1, "1", None, 1.5])
def test_an_invalid_revision_in_a_file_raises_an_error(pointmass, tmp_path, value):
    with registered():
        serialise.save(labeller(LinearIdm().fit(pointmass[:10]), pointmass[:10]), tmp_path / "idm")
        header = tmp_path / "idm" / "idm.json"
        about = json.loads(header.read_text())
        del about["sha256"]
        header.write_text(json.dumps(about | {"revision": value}))
        with pytest.raises(SsorlError, match="revision is"):
            serialise.load(tmp_path / "idm")


def test_a_later_setting_of_an_idm_may_be_missing_in_a_file(pointmass, tmp_path, monkeypatch):
    @dataclass(frozen=True)
    class ExtendedIdm(IdmConfig):
        sharpness: float = since("0.2", 0.0)

    eps = pointmass[:10]
    serialise.save(labeller(IDM.fit(eps), eps), tmp_path / "idm")
    for name in list(IDMS):
        monkeypatch.setitem(IDMS, name, ExtendedIdm())
    config = serialise.load(tmp_path / "idm").idm.config
    assert isinstance(config, ExtendedIdm) and config.sharpness == 0.0
    assert settings_of(config) == settings_of(IDM)  # so older run folders are resumed
