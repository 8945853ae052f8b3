"""Run folders of an earlier revision of the agent or the IDM: shown if finished, refused if not."""

from __future__ import annotations

import json

import pytest
from support.episodes import CHOICES

import ssorl
from ssorl.agents.bc import BC
from ssorl.evaluation.policy_file import load_policy_file
from ssorl.idm import IdmConfig
from ssorl.pipeline.hooks import Listener
from ssorl.report.page import page
from ssorl.report.schema import check
from ssorl.runs.run import run
from ssorl.utils.errors import DataError, SsorlError

pytestmark = pytest.mark.usefixtures("small_idm")


class OpenedError(Exception):
    pass


class StopAt(Listener):
    """Stop a run when training begins, or when its folder is open."""

    def __init__(self, opened: bool) -> None:
        self.opened, self.folder = opened, None

    def has_opened(self, folder, begun, finished) -> None:
        self.folder = folder
        if self.opened:
            raise OpenedError

    def progress(self, what, n, note="") -> None:
        if what == "training":
            raise OpenedError


@pytest.fixture
def done(eps, tmp_path):
    return run(eps, tmp_path / "run", **CHOICES)


def test_run_records_its_revisions(done, monkeypatch, eps, tmp_path):
    for name in ("config.json", "result.json"):
        assert json.loads((done.folder / name).read_text())["revisions"] == {"agent": 0, "idm": 0}
    assert "revisions.agent" in (done.folder / "report.html").read_text()
    assert load_policy_file(done.folder / "policies" / "ss-0.npz").revisions == (0, 0)
    assert load_policy_file(done.folder / "policies" / "baseline-0.npz").revisions == (0, None)


def test_finished_run_of_an_earlier_revision_warns(done, monkeypatch, eps):
    before = {path: path.read_bytes() for path in done.folder.rglob("*") if path.is_file()}
    monkeypatch.setattr(BC, "revision", 2)
    with pytest.warns(UserWarning, match=r"as they were computed.*bc from revision 0 to 2.*choose another --out"):
        again = run(eps, done.folder, **CHOICES)
    assert again.scores == done.scores
    assert {path: path.read_bytes() for path in done.folder.rglob("*") if path.is_file()} == before
    assert ssorl.evaluate(ssorl.load_policy(done.folder), episodes=2).returns.shape == (1, 2)


@pytest.mark.parametrize(
    ("kind", "words"), [(BC, "bc from revision 0 to 1"), (IdmConfig, "the IDM from revision 0 to 1")]
)
def test_unfinished_run_of_an_earlier_revision_raises(eps, tmp_path, monkeypatch, kind, words):
    with pytest.raises(OpenedError):
        run(eps, tmp_path / "run", StopAt(opened=False), **CHOICES)
    monkeypatch.setattr(kind, "revision", 1)
    with pytest.raises(SsorlError, match=f"unfinished run, but .*{words}, .*choose another --out"):
        run(eps, tmp_path / "run", **CHOICES)
    monkeypatch.setattr(kind, "revision", 0)
    assert run(eps, tmp_path / "run", **CHOICES).content["complete"]


def test_new_revision_has_another_default_folder(eps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def default_folder():
        stop = StopAt(opened=True)
        with pytest.raises(OpenedError):
            run(eps, None, stop, **CHOICES)
        return stop.folder

    first = default_folder()
    monkeypatch.setattr(IdmConfig, "revision", 1)
    assert default_folder() != first


def test_folder_without_revisions_has_revision_0(done, eps, monkeypatch):
    record = json.loads((done.folder / "config.json").read_text())
    del record["revisions"], record["sha256"]
    (done.folder / "config.json").write_text(json.dumps(record))  # as version 0.1 wrote it
    (done.folder / "result.json").unlink()
    monkeypatch.setattr(BC, "revision", 1)
    with pytest.raises(SsorlError, match="bc from revision 0 to 1"):
        run(eps, done.folder, **CHOICES)
    monkeypatch.setattr(BC, "revision", 0)
    assert run(eps, done.folder, **CHOICES).scores == done.scores


def test_invalid_revisions_raise(done, eps):
    file = done.folder / "config.json"
    record = json.loads(file.read_text()) | {"revisions": {"agent": "0"}}
    record.pop("sha256", None)
    file.write_text(json.dumps(record))
    with pytest.raises(SsorlError, match=r"config\.json: its revisions are .*choose another --out"):
        run(eps, done.folder, **CHOICES)
    result = json.loads((done.folder / "result.json").read_text())
    with pytest.raises(DataError, match="revisions"):
        check(result | {"revisions": 1})
    del result["revisions"], result["sha256"]
    (done.folder / "result.json").write_text(json.dumps(result))
    assert "revisions" not in page(done.folder).read_text()  # as of version 0.1
