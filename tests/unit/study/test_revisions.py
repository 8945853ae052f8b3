"""Results of earlier revisions: which are shown, which are computed again, and what is said of it."""

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
    """Return a study whose points are made anew, as in a process of the version with other revisions."""

    def made(name: str = NAME) -> Study:
        study = replace(STUDIES[name], parts=tuple(replace(part) for part in STUDIES[name].parts))
        monkeypatch.setitem(STUDIES, name, study)
        return study

    return made


def of(agent: str, *variants: str):
    return lambda point: point.at["agent"] == agent and (not variants or point.at["variant"] in variants)


def agents(found, agent: str) -> set[Revisions]:
    return {one.shown for one in found if one.at["agent"] == agent}


def test_nothing_is_said_while_all_is_of_revision_0(fresh, tmp_path):
    study = fresh()
    fill(tmp_path, study)
    found = gather(study, SCALE, tmp_path)
    assert name_revisions(found) == "" and explain_shown(found) == []
    assert explain_stale(tmp_path, study.cells(SCALE)) == ""
    assert "revisions" not in page(study, SCALE, tmp_path).read_text()


def test_an_earlier_revision_is_shown_until_the_newer_has_its_cells(fresh, tmp_path, monkeypatch):
    fill(tmp_path, fresh())
    monkeypatch.setattr(TD3BC, "revision", 1)
    study = fresh()
    found = gather(study, SCALE, tmp_path)
    assert all(one.result for one in found)
    assert {r.agent for r in agents(found, "td3bc")} == {0} and {one.newest.agent for one in found} == {0, 1}
    sentence = (
        "td3bc: results by revision 0 of td3bc are shown, because revision 1 of td3bc lacks some of them; `ssorl study "
        "run` computes these."
    )
    assert explain_shown(found) == [sentence] and name_revisions(found).startswith("dt 0, the IDM 0, cql 0, td3bc 0")
    html = page(study, SCALE, tmp_path).read_text()
    assert sentence.split("`")[0] in html and "td3bc 0" in html

    last = next(point.cell for point in study.points(SCALE) if point.at["agent"] == "td3bc")
    fill(tmp_path, study, keep=lambda point: of("td3bc")(point) and point.cell != last)
    assert {r.agent for r in agents(gather(study, SCALE, tmp_path), "td3bc")} == {0}
    fill(tmp_path, study, keep=of("td3bc"))
    found = gather(study, SCALE, tmp_path)
    assert {r.agent for r in agents(found, "td3bc")} == {1} and {r.agent for r in agents(found, "cql")} == {0}
    assert explain_shown(found) == [] and "td3bc 1" in name_revisions(found)
    assert all(one.result for one in found)


def test_where_nothing_is_finished_the_newest_revision_is_shown(fresh, tmp_path, monkeypatch):
    monkeypatch.setattr(TD3BC, "revision", 2)
    found = gather(fresh(), SCALE, tmp_path)
    assert {r.agent for r in agents(found, "td3bc")} == {2} and not any(one.result for one in found)


def test_a_raised_revision_of_the_idm_leaves_baselines_and_oracles(fresh, tmp_path, monkeypatch):
    fill(tmp_path, fresh())
    monkeypatch.setattr(IdmConfig, "revision", 1)
    study = fresh()
    cells = study.cells(SCALE)
    n = sum(cell.idm is not None for cell in cells)
    assert 0 < n < len(cells) and state(tmp_path, cells) == (len(cells) - n, 0, n)
    words = f"{n} finished cells are computed again: {n} because this version changed the IDM from revision 0 to 1"
    assert explain_stale(tmp_path, cells) == words
    found = gather(study, SCALE, tmp_path)
    assert {one.shown.idm for one in found} == {None, 0} and len(explain_shown(found)) == 3  # each agent's
    fill(tmp_path, study, keep=of("cql", "ss"))
    found = gather(study, SCALE, tmp_path)
    assert {r.idm for r in agents(found, "cql")} == {None, 1} and {r.idm for r in agents(found, "dt")} == {None, 0}
    assert all(one.result for one in found)


def test_of_two_raised_revisions_the_newest_that_is_whole_is_shown(fresh, tmp_path, monkeypatch):
    fill(tmp_path, fresh())
    monkeypatch.setattr(CQL, "revision", 1)
    fill(tmp_path, fresh(), keep=of("cql"))
    monkeypatch.setattr(IdmConfig, "revision", 1)
    study = fresh()
    found = gather(study, SCALE, tmp_path)
    assert agents(found, "cql") == {Revisions(1, None), Revisions(1, 0)}
    stale = explain_stale(tmp_path, study.cells(SCALE))
    assert "the IDM from revision 0 to 1" in stale and "cql" not in stale  # compared with the newest that there is


def test_the_ledger_judges_and_names_what_is_shown(fresh, tmp_path, monkeypatch, capsys):
    before = fresh("claims")
    fill(tmp_path, before)
    want = [verdict.outcome for verdict in ledger(tmp_path, SCALE)]
    assert set(want) == {"confirmed"}
    monkeypatch.setattr(CQL, "revision", 1)
    fresh("claims")
    assert [verdict.outcome for verdict in ledger(tmp_path, SCALE)] == want
    main(["study", "report", "claims", "--scale", SCALE, "--store", str(tmp_path)])
    out = " ".join(capsys.readouterr().out.split())
    assert "cql 0" in out and "cql: results by revision 0 of cql are shown in main-medium-expert, low-label" in out


def test_a_further_seed_of_an_earlier_revision_is_shown_with_it(fresh, tmp_path, monkeypatch):
    fill(tmp_path, fresh(), seeds=4)
    monkeypatch.setattr(TD3BC, "revision", 1)
    found = gather(fresh(), SCALE, tmp_path)
    assert {one.at["seed"] for one in found} == {0, 1, 2, 3} and all(one.result for one in found)


# Computed again --------------------------------------------------------------------------------------------

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
    assert len(list((store / "idms").iterdir())) == 1  # the model is of the same revision, and used again
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


def test_a_cell_of_another_revision_is_not_computed(fresh, tmp_path, monkeypatch):
    (cell, *_) = fresh().cells("smoke")
    newer = replace(cell, agent_revision=3)
    with pytest.raises(SsorlError, match=r"changed .* from revision 3 to 0; install the version"):
        run_batch([newer], tmp_path)
    assert result(tmp_path, newer) is None and not folder(tmp_path, newer).exists()
