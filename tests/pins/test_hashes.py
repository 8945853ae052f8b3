"""Hashes that version 0.1 made: published cells and run folders are found under the same names."""

import json
from functools import cache
from pathlib import Path

import pytest
from make import CELLS, DEFAULTS, HERE, folder_name

from ssorl.study.grid import Cell, digest, resolve
from ssorl.study.paper import STUDIES
from ssorl.study.scales import SCALES

PINS = json.loads((HERE / "cells.json").read_text())
FOLDERS = json.loads((HERE / "folders.json").read_text())
ANEW = "results of version 0.1 would not be found again and be computed anew"


@cache
def published() -> dict[str, dict]:
    """The cells under results/, by the hash that the code gives them now."""
    lines = [json.loads(line) for file in CELLS.glob("*.jsonl") for line in file.read_text().splitlines()]
    return {Cell.from_json(line["cell"]).hash: line["cell"] for line in lines}


def test_the_pins_are_of_every_kind():
    cells = [pin["cell"] for pin in PINS["cells"] + PINS["own"]]
    assert sum(pin["published"] for pin in PINS["cells"]) >= 24
    assert {cell["kind"] for cell in cells} == {"return", "idm", "data"}
    assert {cell["agent"] for cell in cells} == {None, "bc", "cql", "dt", "dt-joint", "iql", "td3bc"}
    assert {cell["setup"] for cell in cells} == {None, "coupled", "decoupled"}
    # The study `claims` consists of other studies and has no cells of its own.
    assert set(STUDIES) - {pin["study"] for pin in PINS["cells"]} == {"claims"}


@pytest.mark.parametrize("pin", PINS["cells"], ids=lambda pin: f"{pin['study']}-{pin['scale']}-{pin['hash']}")
def test_a_cell_keeps_its_hash(pin):
    cell = Cell.from_json(pin["cell"])
    assert (cell.hash, cell.idm_hash) == (pin["hash"], pin["idm_hash"]), ANEW
    expanded = {one.hash: one for one in STUDIES[pin["study"]].cells(pin["scale"], 5)}
    assert pin["hash"] in expanded, f"{pin['study']} at {pin['scale']} has the cell no more: {ANEW}"
    assert json.loads(json.dumps(expanded[pin["hash"]].as_json())) == pin["cell"]
    if pin["published"]:
        assert published()[pin["hash"]] == pin["cell"]


@pytest.mark.parametrize("pin", PINS["own"], ids=lambda pin: pin["hash"])
def test_settings_of_ones_own_come_to_the_same_cell(pin):
    cell = resolve(pin["settings"], SCALES[pin["scale"]])
    assert json.loads(json.dumps(cell.as_json())) == pin["cell"]
    assert cell.hash == Cell.from_json(pin["cell"]).hash == pin["hash"], ANEW


@pytest.mark.parametrize("study", PINS["studies"])
def test_the_cells_of_a_study(study):
    now = {scale: digest(sorted(c.hash for c in STUDIES[study].cells(scale))) for scale in PINS["studies"][study]}
    assert now == PINS["studies"][study], ANEW


@pytest.mark.parametrize("pin", FOLDERS, ids=lambda pin: pin["folder"])
def test_a_run_finds_its_folder(pin, tmp_path: Path):
    choices = DEFAULTS | pin["choices"]
    if choices.get("agent") == "dt-joint":  # it needs no labels
        del choices["idm"]
    assert folder_name(choices, tmp_path) == pin["folder"], "a run of version 0.1 would be begun anew"
