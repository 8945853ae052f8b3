"""The source tree: few entries at the top, no cycles, imports that go down the layers."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.paths import ROOT

import ssorl

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LAYERS = [{name.strip() for name in line.split("|")} for line in CONTRACTS[0]["layers"]]  # highest first
FUNCTIONS = {"suggest", "audit", "check", *ssorl.PUBLIC}  # the first three are reserved for public functions to come
LAZY = "def later():\n    import ssorl.cli\n"
TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ssorl.cli import main\n"


@pytest.fixture(scope="module")
def tree():
    spec = importlib.util.spec_from_file_location("tree", ROOT / "scripts" / "tree.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entries() -> set[str]:
    return {path.name for path in (ROOT / "src" / "ssorl").iterdir() if path.name != "__pycache__"}


def test_the_top_has_at_most_15_entries():
    assert len(entries()) <= 15, sorted(entries())


def test_no_module_at_the_top_has_the_name_of_a_public_function():
    """A module `ssorl.run` would replace the function `ssorl.run` once something imports it."""
    assert {"run", "train", "label", "load", "split", "evaluate", "fit_idm", "load_policy"} <= FUNCTIONS
    assert not {Path(name).stem for name in entries()} & FUNCTIONS


def test_no_package_imports_in_a_cycle(tree):
    assert tree.cycles(tree.graph(ROOT / "src")) == []


def test_imports_by_string_go_down_the_layers_too(tree):
    """import-linter reads statements alone; this reads strings as well."""
    level = {name: place for place, names in enumerate(LAYERS) for name in names}
    edges = tree.graph(ROOT / "src")
    assert set(level) == set(edges)
    assert not [f"{a} -> {b}" for a, targets in edges.items() for b in targets if level[a] >= level[b]]


@pytest.mark.parametrize("line", [LAZY, TYPES, 'NAME = "ssorl.b.module"', 'NAME = "ssorl.b.module:Class"'])
def test_a_cycle_is_found_however_it_is_written(tree, tmp_path, line):
    for name, text in {"a": line.replace("ssorl.cli", "ssorl.b.module"), "b": "import ssorl.a.module"}.items():
        folder = tmp_path / "ssorl" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "module.py").write_text(text)
    assert tree.cycles(tree.graph(tmp_path)) == [["a", "b"]]


@pytest.mark.parametrize("line", ["", LAZY, TYPES])
def test_the_contract_is_kept_and_notices_an_import_that_goes_up(tmp_path, line):
    copy = shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.npz", "__pycache__"))
    with (copy / "ssorl" / "utils" / "errors.py").open("a") as file:
        file.write(line)
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache", "--config", ROOT / "pyproject.toml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == (not line), done.stdout + done.stderr
    assert ("ssorl.utils is not allowed to import ssorl.cli" in done.stdout) == bool(line)
