"""The base install: imports stay light, files are read and labelled without any extra, and errors name the extra."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pytest
from support.paths import ROOT
from support.systems import linear

from ssorl.data import load, save
from ssorl.utils import extras
from ssorl.utils.errors import SsorlError
from ssorl.utils.extras import EXTRAS, Extra, require

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BLOCKED = sorted({name for extra in EXTRAS.values() for name in extra.packages})


def child(code: str, folder: Path) -> subprocess.CompletedProcess:
    """Run Python code in a process in which no package of any extra can be imported."""
    # Not None in sys.modules: scikit-learn looks there for the packages of its inputs.
    block = f"""
import sys
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name.partition(".")[0] in {BLOCKED} else find(name, *more)
"""
    env = os.environ | {"SSORL_CACHE": str(folder / "cache"), "MINARI_DATASETS_PATH": str(folder / "minari")}
    return subprocess.run([sys.executable, "-c", block + code], cwd=folder, env=env, capture_output=True, text=True)


def requirements(extra: str) -> set[str]:
    """Return the names of the distributions that an extra of pyproject.toml lists."""
    return {re.split(r"[\[<>=]", line)[0].lower() for line in PROJECT["optional-dependencies"][extra]}


def test_the_extras_agree_with_pyproject():
    assert {*EXTRAS, "cuda", "docs", "test"} == {*PROJECT["optional-dependencies"]}
    base = {re.split(r"[\[<>=]", line)[0] for line in PROJECT["dependencies"]}
    owner = packages_distributions() | {"wandb": ["wandb"]}  # not installed for the tests
    for name, extra in EXTRAS.items():
        listed = {dist.lower() for package in extra.packages for dist in owner[package]}
        if name == "minari":
            listed -= {"gymnasium"}  # a dependency of Minari
        assert requirements(name) == listed - {"mujoco-core", "mujoco-studio"}
        assert not base & listed


def test_the_tests_install_every_extra_that_they_use():
    (line,) = (line for line in PROJECT["optional-dependencies"]["test"] if line.startswith("ssorl"))
    assert {*re.findall(r"\w+", line)} == {"ssorl", "docs", *EXTRAS} - {"wandb"}


def test_the_error_names_the_packages_and_the_command(monkeypatch):
    require("sim")
    require("sim", "mujoco")
    monkeypatch.setitem(sys.modules, "mujoco", None)
    require("sim", "gymnasium")
    with pytest.raises(SsorlError) as error:
        require("sim")
    assert str(error.value) == "simulators need mujoco, which is not installed; run: pip install 'ssorl[sim]'"
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(SsorlError, match="need mujoco and gymnasium, which are not installed"):
        require("sim")


def test_a_folder_of_the_same_name_is_not_a_package(tmp_path, monkeypatch):
    (tmp_path / "ssorl_test_package").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(extras.EXTRAS, "test", Extra("tests", ("ssorl_test_package",)))
    with pytest.raises(SsorlError, match="tests need ssorl_test_package, which is not installed"):
        require("test")
    (tmp_path / "ssorl_test_package" / "__init__.py").touch()
    require("test")


def test_ssorl_data_imports_no_simulator_and_no_jax():
    code = "import sys, ssorl.data; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "numpy" in loaded and not loaded & {*BLOCKED, "jax", "sklearn", "matplotlib"}


def test_the_base_install_reads_and_labels_files(tmp_path):
    whole = linear(n=24, t=20)
    hidden = whole.act.copy()
    hidden[whole.start[12] :] = np.nan
    for name in ("a.npz", "a.hdf5", "a.pkl"):
        save(whole.with_actions(hidden), tmp_path / name)
    code = """
from ssorl.cli import main
for name in ("a.npz", "a.hdf5", "a.pkl"):
    main(["data", "show", name])
    main(["label", name, "--out", "labelled-" + name, "--preset", "quick", "--steps", "20", "--members", "1"])
"""
    done = child(code, tmp_path)
    assert not done.returncode, done.stderr
    for name in ("a.npz", "a.hdf5", "a.pkl"):
        assert load(tmp_path / f"labelled-{name}").labelled.all()


def test_the_base_install_trains_and_evaluates_the_point_mass(tmp_path):
    words = "run builtin/pointmass --agent bc --updates 20 --set batch=16 --idm-updates 20 --episodes 2 --out first"
    done = child(f"from ssorl.cli import main; main({words.split()})", tmp_path)
    assert not done.returncode, done.stderr
    assert set(json.loads((tmp_path / "first" / "result.json").read_text())["scores"]) == {"baseline", "ss", "oracle"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("data show sim/hopper-medium", "simulators need mujoco and gymnasium"),
        ("data show sim/maze2d-umaze-dense", "simulators need mujoco and gymnasium_robotics"),
        ("data show minari/x/y-v0", "Minari datasets need minari and gymnasium"),
        ("data show lerobot", "Parquet files need pyarrow"),
        ("data convert a.npz b-v0 --to minari", "Minari datasets need minari and gymnasium"),
        ("data convert a.npz b --to lerobot", "Parquet files need pyarrow"),
        ("run builtin/pointmass --tensorboard --out run", "TensorBoard logs need tensorboardX"),
        ("run builtin/pointmass --wandb project --out run", "Weights & Biases logs need wandb"),
    ],
)
def test_a_missing_extra_is_one_sentence(words, sentence, tmp_path):
    save(linear(n=4, t=5), tmp_path / "a.npz")
    save(linear(n=4, t=5), tmp_path / "lerobot", "lerobot")
    before = sorted(path.name for path in tmp_path.iterdir())
    done = child(f"from ssorl.cli import main; main({words.split()})", tmp_path)
    *_, last = done.stderr.splitlines()  # the lines before are the plan that `run` prints
    assert done.returncode == 2 and done.stderr.count("ssorl: ") == 1
    assert re.fullmatch(rf"ssorl: {sentence}, which (is|are) not installed; run: pip install 'ssorl\[\w+\]'", last)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == before


def test_the_plan_for_data_without_its_simulator_names_the_extra(tmp_path):
    save(linear(n=24, t=20).with_meta(env="hopper"), tmp_path / "a.npz")
    done = child(
        """
import ssorl
from ssorl.pipeline.plan import make_plan
from ssorl.utils.extras import MissingExtraError
eps = ssorl.load("a.npz")
made = make_plan(eps)
assert made.env is None
print(*made.notes, sep="\\n")
try:
    make_plan(eps, env="hopper")
except MissingExtraError as err:
    print("refused:", err)
""",
        tmp_path,
    )
    assert not done.returncode, done.stderr
    cure = "simulators need mujoco and gymnasium, which are not installed; run: pip install 'ssorl[sim]'"
    assert f"the data names the environment hopper ({cure})" in done.stdout and f"refused: {cure}" in done.stdout
