"""A cell's hash: which fields it covers, and cells of earlier versions."""

import json
from dataclasses import fields, replace

import pytest

from ssorl.study.cell import Cell, digest
from ssorl.utils.errors import SsorlError
from ssorl.utils.identity import Revisions

# As version 0.1 wrote it.
OLD = {
    "kind": "return",
    "dataset": "sim/hopper-medium:full",
    "setup": "coupled",
    "recipe": {"fraction": 0.1, "quality": 50},
    "agent": "td3bc",
    "settings": {"batch": 256},
    "variant": "ss",
    "idm": {"steps": 20000},
    "rounds": 0,
    "certain": None,
    "env": None,
    "seed": 0,
    "episodes": 30,
    "policy": "last",
    "looks": 10,
}
LATER = ("agent_revision", "idm_revision")


def test_hash_covers_the_fields_of_version_0_1_at_their_defaults_too():
    cell = Cell.from_json(OLD)
    assert json.loads(json.dumps(cell.as_json())) == OLD and cell.hash == digest(OLD)
    assert set(OLD) == {f.name for f in fields(Cell)} - set(LATER)
    model = {name: OLD[name] for name in ("dataset", "setup", "recipe", "idm", "rounds", "seed")}
    assert cell.idm_hash == digest(model)


@pytest.mark.parametrize("name", LATER)
def test_later_fields_are_hashed_only_if_not_at_their_default(name):
    cell = Cell.from_json(OLD)
    assert Cell.from_json(OLD | {name: 0}) == cell
    new = Cell.from_json(OLD | {name: 2})
    assert new.hash == digest(OLD | {name: 2}) != cell.hash
    assert Cell.from_json(json.loads(json.dumps(new.as_json()))) == new
    assert (new.idm_hash == cell.idm_hash) == (name == "agent_revision")


@pytest.mark.parametrize("change", [{"looks": None}, {"unheard": 1}])
def test_missing_and_unknown_fields_raise(change):
    stored = {k: v for k, v in (OLD | change).items() if k != "looks" or v is not None}
    with pytest.raises(SsorlError, match=f"with other fields .{next(iter(change))}.; read it with"):
        Cell.from_json(stored)


def test_revisions_of_cells():
    ss = replace(Cell.from_json(OLD), agent_revision=1, idm_revision=1)
    baseline = replace(ss, idm=None, idm_revision=0)
    assert ss.revisions == Revisions(1, 1) and baseline.revisions == Revisions(1, None)
    assert ss.labels.revisions == Revisions(None, 1) and ss.labels.idm_hash == ss.idm_hash
    assert [old.revisions for old in ss.earlier()] == [Revisions(1, 0), Revisions(0, 1), Revisions(0, 0)]
    assert [old.revisions for old in baseline.earlier()] == [Revisions(0, None)]
    assert Cell.from_json(OLD) in ss.earlier() and Cell.from_json(OLD).earlier() == []
    data = Cell("data", "sim/hopper-medium:full")
    assert data.revisions == Revisions() and data.at_revisions(Revisions(3, 3)) == data
