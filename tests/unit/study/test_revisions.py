"""Results of earlier revisions: which revision is shown, which cells are computed again, and the messages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.study_samples import fill

from ssorl.agents.cql import CQL
from ssorl.agents.td3bc import TD3BC
from ssorl.cli import main
from ssorl.idm import IdmConfig
from ssorl.study import statistics
from ssorl.study.claims.judge import ledger
from ssorl.study.executor import run_batch
from ssorl.study.grid import Study
from ssorl.study.paper import STUDIES
from ssorl.study.report.page import page
from ssorl.study.results import gather
from ssorl.study.revisions import explain_shown, explain_stale, name_revisions
from ssorl.study.store import folder, result, state
from ssorl.utils.errors import SsorlError
from ssorl.utils.identity import Revisions

NAME, SCALE = "main-medium-expert", "lite"


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    estimate = statistics.estimate
    monkeypatch.setattr(statistics, "estimate", lambda *args, **more: estimate(*args, **{"replications": 100, **more}))


@pytest.fixture
def fresh(monkeypatch):
    """Return a function that gives a study without cached points, as in a process with other revisions."""

    def fresh_study(name: str = NAME) -> Study:
        study = replace(STUDIES[name], parts=tuple(replace(part) for part in STUDIES[name].parts))
        monkeypatch.setitem(STUDIES, name, study)
        return study

    return fresh_study


def points_of(agent: str, *variants: str):
    return lambda point: point.at["agent"] == agent and (not variants or point.at["variant"] in variants)


def agents(results, agent: str) -> set[Revisions]:
    return {entry.shown for entry in results if entry.at["agent"] == agent}


def test_no_messages_at_revision_0(fresh, tmp_path):
    study = fresh()
    fill(tmp_path, study)
    results = gather(study, SCALE, tmp_path)
    assert name_revisions(results) == "" and explain_shown(results) == []
    assert explain_stale(tmp_path, study.cells(SCALE)) == ""
    assert "revisions" not in page(study, SCALE, tmp_path).read_text()


def test_an_earlier_revision_is_shown_until_the_newer_has_its_cells(fresh, tmp_path, monkeypatch):
    fill(tmp_path, fresh())
    monkeypatch.setattr(TD3BC, "revision", 1)
    study = fresh()
    results = gather(study, SCALE, tmp_path)
    assert all(entry.result for entry in results)
    assert {r.agent for r in agents(results, "td3bc")} == {0} and {entry.newest.agent for entry in results} == {0, 1}
    sentence = (
        "td3bc: results of revision 0 of td3bc are shown, because revision 1 of td3bc lacks some of them; `ssorl study "
        "run` computes the missing cells."
    )
    assert explain_shown(results) == [sentence]
    assert name_revisions(results).startswith("dt 0, the IDM 0, cql 0, td3bc 0")
    html = page(study, SCALE, tmp_path).read_text()
    assert sentence.split("`")[0] in html and "td3bc 0" in html

    last = next(point.cell for point in study.points(SCALE) if point.at["agent"] == "td3bc")
    fill(tmp_path, study, keep=lambda point: points_of("td3bc")(point) and point.cell != last)
    assert {r.agent for r in agents(gather(study, SCALE, tmp_path), "td3bc")} == {0}
    fill(tmp_path, study, keep=points_of("td3bc"))
    results = gather(study, SCALE, tmp_path)
    assert {r.agent for r in agents(results, "td3bc")} == {1} and {r.agent for r in agents(results, "cql")} == {0}
    assert explain_shown(results) == [] and "td3bc 1" in name_revisions(results)
    assert all(entry.result for entry in results)


def test_the_newest_revision_is_shown_if_no_cell_is_finished(fresh, tmp_path, monkeypatch):
    monkeypatch.setattr(TD3BC, "revision", 2)
    results = gather(fresh(), SCALE, tmp_path)
    assert {r.agent for r in agents(results, "td3bc")} == {2} and not any(entry.result for entry in results)


def test_a_new_revision_of_the_idm_keeps_baselines_and_oracles(fresh, tmp_path, monkeypatch):
    fill(tmp_path, fresh())
    monkeypatch.setattr(IdmConfig, "revision", 1)
    study = fresh()
    cells = study.cells(SCALE)
    n = sum(cell.idm is not None for cell in cells)
    assert 0 < n < len(cells) and state(tmp_path, cells) == (len(cells) - n, 0, n)
    words = f"{n} finished cells are computed again: {n} because this version changed the IDM from revision 0 to 1"
    assert explain_stale(tmp_path, cells) == words
    results = gather(study, SCALE, tmp_path)
    assert {entry.shown.idm for entry in results} == {None, 0} and len(explain_shown(results)) == 3  # each agent's
    fill(tmp_path, study, keep=points_of("cql", "ss"))
    results = gather(study, SCALE, tmp_path)
    assert {r.idm for r in agents(results, "cql")} == {None, 1} and {r.idm for r in agents(results, "dt")} == {None, 0}
    assert all(entry.result for entry in results)


def test_the_newest_complete_pair_of_revisions_is_shown(fresh, tmp_path, monkeypatch):
    fill(tmp_path, fresh())
    monkeypatch.setattr(CQL, "revision", 1)
    fill(tmp_path, fresh(), keep=points_of("cql"))
    monkeypatch.setattr(IdmConfig, "revision", 1)
    study = fresh()
    results = gather(study, SCALE, tmp_path)
    assert agents(results, "cql") == {Revisions(1, None), Revisions(1, 0)}
    stale = explain_stale(tmp_path, study.cells(SCALE))
    # The reason names the changes since the newest stored revision only.
    assert "the IDM from revision 0 to 1" in stale and "cql" not in stale


def test_the_ledger_judges_and_names_the_shown_revision(fresh, tmp_path, monkeypatch, capsys):
    before = fresh("claims")
    fill(tmp_path, before)
    want = [verdict.outcome for verdict in ledger(tmp_path, SCALE)]
    assert set(want) == {"confirmed"}
    monkeypatch.setattr(CQL, "revision", 1)
    fresh("claims")
    assert [verdict.outcome for verdict in ledger(tmp_path, SCALE)] == want
    main(["study", "report", "claims", "--scale", SCALE, "--store", str(tmp_path)])
    out = " ".join(capsys.readouterr().out.split())
    assert "cql 0" in out and "cql: results of revision 0 of cql are shown in main-medium-expert, low-label" in out


def test_further_seeds_of_an_earlier_revision_are_shown(fresh, tmp_path, monkeypatch):
    fill(tmp_path, fresh(), seeds=4)
    monkeypatch.setattr(TD3BC, "revision", 1)
    results = gather(fresh(), SCALE, tmp_path)
    assert {entry.at["seed"] for entry in results} == {0, 1, 2, 3} and all(entry.result for entry in results)


# Stale cells -----------------------------------------------------------------------------------------------

TOML = """
[base]
dataset = "builtin/pointmass"
agent = "td3bc"
fraction = 0.05
quality = 100
episodes = 2
[base.settings]
hidden = [8]
batch = 8
updates = 4
[base.idm_settings]
hidden = [8]
steps = 4
validate_every = 2
batch = 8
[axes]
variant = ["baseline", "ss"]
"""


def files(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.glob("cells/*/*.json")}


def test_stale_cells_are_computed_again_with_a_reason(tmp_path, monkeypatch, capsys):
    study, store = tmp_path / "mine.toml", tmp_path / "store"
    study.write_text(TOML)
    command = ["study", "run", str(study), "--store", str(store)]
    main(command)
    old = files(store)
    assert "computed again" not in capsys.readouterr().err
    abouts = {json.loads(text)["revisions"]["idm"] for name, text in old.items() if name.endswith("cell.json")}
    assert abouts == {None, 0}

    monkeypatch.setattr(TD3BC, "revision", 1)
    main(["study", "show", str(study), "--store", str(store)])
    assert "revisions: td3bc 0, the IDM 0" in capsys.readouterr().out
    main([*command, "--dry-run"])
    words = "2 finished cells are computed again: 2 because this version changed td3bc from revision 0 to 1"
    assert words in " ".join(capsys.readouterr().err.split()) and files(store) == old
    main(command)
    assert words in " ".join(capsys.readouterr().err.split())
    new = {name: text for name, text in files(store).items() if name not in old}
    assert old.items() <= files(store).items()  # the old results stay
    cells = [json.loads(text) for name, text in new.items() if name.endswith("cell.json")]
    assert [cell["revisions"]["agent"] for cell in cells] == [1, 1]
    assert {cell["cell"]["agent_revision"] for cell in cells} == {1}
    assert len(list((store / "idms").iterdir())) == 1  # the IDM has the same revision and is used again
    main(command)
    assert "computed again" not in capsys.readouterr().err


def test_a_model_of_an_earlier_revision_is_fitted_again(tmp_path, monkeypatch):
    study, store = tmp_path / "mine.toml", tmp_path / "store"
    study.write_text(TOML)
    main(["study", "run", str(study), "--store", str(store)])
    first = {path.name for path in (store / "idms").iterdir()}
    monkeypatch.setattr(IdmConfig, "revision", 1)
    main(["study", "run", str(study), "--store", str(store)])
    (new,) = {path.name for path in (store / "idms").iterdir()} - first
    assert json.loads((store / "idms" / new / "model" / "idm.json").read_text())["revision"] == 1


def test_cells_of_other_revisions_are_not_computed(fresh, tmp_path, monkeypatch):
    (cell, *_) = fresh().cells("smoke")
    newer = replace(cell, agent_revision=3)
    with pytest.raises(SsorlError, match=r"changed .* from revision 3 to 0; install the version"):
        run_batch([newer], tmp_path)
    assert result(tmp_path, newer) is None and not folder(tmp_path, newer).exists()
