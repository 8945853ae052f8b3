"""A change of a default or a preset moves no cell of the paper's studies, and no cell changes its meaning."""

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
SOME = ["main-medium-expert", "low-label", "dt-joint", "self-training", "idm-architecture", "labelled-quality"]
SOME += ["maze2d", "densities", "labelled-returns", "self-training-mse", "idm-robust", "idm-robust-agents"]


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
    """Every default that a later version may change."""
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


def test_the_table_is_of_the_agents_and_models_there_are():
    """Of what 0.1 had; a later version may have other defaults, and then this test names them."""
    assert set(reference.AGENT_DEFAULTS) == {"bc", "cql", "dt", "dt-joint", "iql", "td3bc"}
    for name, settings in reference.AGENT_DEFAULTS.items():
        assert set(settings) <= {f.name for f in fields(AGENTS[name])}
    assert set(reference.IDM_DEFAULTS) <= {f.name for f in fields(IdmConfig)}


@pytest.mark.parametrize("study", SOME)
def test_the_papers_cells_stay(changed, study):
    fresh = replace(STUDIES[study])  # with no points made before the change
    now = {scale: digest(sorted(cell.hash for cell in fresh.cells(scale))) for scale in SCALES}
    assert now == PINS["studies"][study]


def test_the_change_is_one_that_a_study_of_ones_own_notices(changed):
    assert dict(own(preset="paper", variant="ss").settings) == {"alpha": 9, "batch": 7, "hidden": (32,)}
    assert dict(own(variant="ss", preset="paper").idm) == {"lr": 0.5, "members": 4}
    assert own(defaults="0.1", preset="paper", idm="paper", variant="ss").settings == ()
    assert own(defaults="0.1", preset="paper", idm="robust", variant="ss").idm == pin("idm-robust", "paper").idm


def pin(study: str, scale: str) -> Cell:
    cells = STUDIES[study].cells(scale)
    return next(cell for cell in cells if cell.idm and dict(cell.idm).get("ranks"))


def test_a_cell_keeps_its_meaning(changed):
    agent, spec = reference.agent_of("td3bc", {"batch": 256}), reference.idm_of({"past": 2})
    assert (agent.alpha, agent.hidden, agent.batch, agent.weight) == (2.5, (256, 256), 256, 0.0)
    assert (spec.lr, spec.steps, spec.past, spec.sharpness) == (1e-4, 100_000, 2, 0.0)


def test_a_later_setting_is_named_once_it_is_used(changed):
    assert dict(own(defaults="0.1", preset="paper", settings={"weight": 0.5}).settings) == {"weight": 0.5}
    cell = own(defaults="0.1", preset="paper", idm="paper", variant="ss", idm_settings={"sharpness": 2.0})
    assert dict(cell.idm) == {"sharpness": 2}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"defaults": "0.3"}, "defaults is '0.3'"),
        ({"defaults": "0.1", "preset": "quick"}, "no agent td3bc with preset quick"),
        ({"defaults": "0.1", "idm": "robust-quick"}, "idm is 'robust-quick'"),
        ({"defaults": "0.1", "settings": {"alpa": 1}}, "did you mean alpha"),
    ],
)
def test_what_0_1_had_not_is_refused(asked, told):
    with pytest.raises(SsorlError, match=told):
        own(**asked)
