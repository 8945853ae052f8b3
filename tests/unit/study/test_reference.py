"""A change of a default or a preset changes neither the hashes of the paper's cells nor the meaning of any cell."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import pytest
from support.paths import ROOT

from ssorl.agents import AGENTS
from ssorl.agents.td3bc import TD3BC
from ssorl.idm import IDMS, IdmConfig
from ssorl.study import grid, reference
from ssorl.study.cell import Cell, digest
from ssorl.study.grid import resolve
from ssorl.study.paper import STUDIES
from ssorl.study.scales import SCALES
from ssorl.utils.errors import SsorlError
from ssorl.utils.identity import since

PINS = json.loads((ROOT / "tests" / "pins" / "cells.json").read_text())
STUDIED = ["main-medium-expert", "low-label", "dt-joint", "self-training", "idm-architecture", "labelled-quality"]
STUDIED += ["maze2d", "densities", "labelled-returns", "self-training-mse", "idm-robust", "idm-robust-agents"]


@dataclass(frozen=True)
class Changed(TD3BC):
    alpha: float = 9.0
    hidden: tuple[int, ...] = (32,)
    weight: float = since("0.2", 0.0)

    PRESETS: ClassVar = {"paper": {"batch": 7}, "quick": {"updates": 3}, "maze2d": {"gamma": 0.5}}


@dataclass(frozen=True)
class ChangedIdm(IdmConfig):
    lr: float = 0.5
    sharpness: float = since("0.2", 0.0)


@pytest.fixture
def changed(monkeypatch):
    """Change every default that a later version may change."""
    monkeypatch.setitem(AGENTS, "td3bc", Changed)
    for name in list(IDMS):
        monkeypatch.setitem(IDMS, name, ChangedIdm(steps=17))
    monkeypatch.setitem(IDMS, "blend", ChangedIdm(members=4))
    for name, value in {"idm": "blend", "preset": "quick", "variant": "oracle", "rounds": 2, "certain": 0.5}.items():
        monkeypatch.setitem(grid.DEFAULTS, name, value)
    monkeypatch.setitem(grid.RECIPES, "coupled", {"fraction": 0.4, "quality": 30})
    recipe = {"labelled": "high", "labelled_fraction": 0.3, "unlabelled": "low", "unlabelled_fraction": 0.2}
    monkeypatch.setitem(grid.RECIPES, "decoupled", recipe)


def own(**settings) -> Cell:
    return resolve({"dataset": "sim/hopper-medium", **settings}, SCALES["paper"])


def test_reference_names_existing_agents_and_settings():
    assert set(reference.AGENT_DEFAULTS) == {"bc", "cql", "dt", "dt-joint", "iql", "td3bc"}
    for name, settings in reference.AGENT_DEFAULTS.items():
        assert set(settings) <= {f.name for f in fields(AGENTS[name])}
    assert set(reference.IDM_DEFAULTS) <= {f.name for f in fields(IdmConfig)}


@pytest.mark.parametrize("study", STUDIED)
def test_changed_defaults_keep_the_papers_hashes(changed, study):
    fresh = replace(STUDIES[study])  # without points cached before the change
    now = {scale: digest(sorted(cell.hash for cell in fresh.cells(scale))) for scale in SCALES}
    assert now == PINS["studies"][study]


def test_changed_defaults_change_users_studies(changed):
    assert dict(own(preset="paper", variant="ss").settings) == {"alpha": 9, "batch": 7, "hidden": (32,)}
    assert dict(own(variant="ss", preset="paper").idm) == {"lr": 0.5, "members": 4}
    assert own(defaults="0.1", preset="paper", idm="paper", variant="ss").settings == ()
    assert own(defaults="0.1", preset="paper", idm="robust", variant="ss").idm == pin("idm-robust", "paper").idm


def pin(study: str, scale: str) -> Cell:
    cells = STUDIES[study].cells(scale)
    return next(cell for cell in cells if cell.idm and dict(cell.idm).get("ranks"))


def test_changed_defaults_keep_the_meaning_of_cells(changed):
    agent, spec = reference.agent_of("td3bc", {"batch": 256}), reference.idm_of({"past": 2})
    assert (agent.alpha, agent.hidden, agent.batch, agent.weight) == (2.5, (256, 256), 256, 0.0)
    assert (spec.lr, spec.steps, spec.past, spec.sharpness) == (1e-4, 100_000, 2, 0.0)


def test_later_settings_are_named_when_they_differ_from_their_default(changed):
    assert dict(own(defaults="0.1", preset="paper", settings={"weight": 0.5}).settings) == {"weight": 0.5}
    cell = own(defaults="0.1", preset="paper", idm="paper", variant="ss", idm_settings={"sharpness": 2.0})
    assert dict(cell.idm) == {"sharpness": 2}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"defaults": "0.3"}, "defaults is '0.3'"),
        ({"defaults": "0.1", "preset": "quick"}, "no agent td3bc with preset quick"),
        ({"defaults": "0.1", "idm": "robust-quick"}, "idm is 'robust-quick'"),
        ({"defaults": "0.1", "settings": {"alpa": 1}}, "did you mean alpha"),
    ],
)
def test_names_that_0_1_did_not_have_raise(settings, message):
    with pytest.raises(SsorlError, match=message):
        own(**settings)
