"""examples/plugin: installed by pip, its agent, format, inverse dynamics model and environment are used everywhere."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.paths import ROOT

import ssorl
from ssorl.agents import AGENTS
from ssorl.cli import main
from ssorl.data.formats import FORMATS
from ssorl.envs import ENVS
from ssorl.idm import IDMS
from ssorl.utils.errors import DataError, SsorlError

REGISTRIES = (AGENTS, FORMATS, IDMS, ENVS)
SMALL = {"hidden": (8,), "batch": 16, "updates": 20}
RUN = ["--agent", "weighted-bc", "--idm", "ridge", "--env", "heavy-pointmass", "--episodes", "2", "--updates", "20"]
RUN += ["--set", "hidden=8,", "batch=16"]


def names() -> list[list[str]]:
    return [registry.names() for registry in REGISTRIES]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The folder that pip installed the package into, from a copy: building writes beside the sources."""
    folder = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(ROOT / "examples" / "plugin", folder / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--disable-pip-version-check", "--target", folder / "site", source], check=True)
    return folder / "site"


def forget() -> None:
    """As in a new process."""
    for registry in REGISTRIES:
        for name in registry.keys() - registry.built_in:
            del registry[name]
    for name in [name for name in sys.modules if name.partition(".")[0] == "ssorl_example"]:
        del sys.modules[name]


@pytest.fixture
def installed(site, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    before = names()
    monkeypatch.syspath_prepend(site)
    yield
    forget()
    monkeypatch.undo()
    assert names() == before


@pytest.fixture
def data(installed, pointmass) -> str:
    ssorl.data.save(pointmass[:40], "few.rows")
    return "few.rows"


def test_the_names_are_known_before_anything_is_imported(installed):
    assert ["weighted-bc" in AGENTS.names(), "rows" in FORMATS.names(), "ridge" in IDMS.names()] == [True] * 3
    assert "heavy-pointmass" in ENVS.names() and "ssorl_example" not in sys.modules


def test_the_format_keeps_every_number(data, pointmass):
    few, back = pointmass[:40], ssorl.load(data)
    for name in ("obs", "act", "rew", "terminated", "start"):
        np.testing.assert_array_equal(getattr(back, name), getattr(few, name))
    hidden = few.with_actions(np.where(np.arange(few.n_steps)[:, None] < 100, few.act, np.nan))
    ssorl.data.save(hidden, "hidden.rows", extras={"proxy": np.arange(few.n_steps) >= 100})
    np.testing.assert_array_equal(ssorl.load("hidden.rows").act, hidden.act)
    assert ssorl.load("few.rows", actions=False).labelled.sum() == 0
    Path("cut.rows").write_text(Path(data).read_text()[:-20])
    with pytest.raises(DataError, match=r"^cut.rows: line \d+ has another number of fields"):
        ssorl.load("cut.rows")


def test_a_run_uses_all_four(data, capsys):
    main(["run", data, *RUN, "--fraction", "0.2", "--out", "first", "--json"])
    told = json.loads(capsys.readouterr().out)
    config = told["config"]
    assert (config["agent"]["name"], config["idm"]["name"], config["env"]) == (
        "weighted-bc",
        "ridge",
        "heavy-pointmass",
    )
    assert set(told["scores"]) == {"baseline", "ss", "oracle"} and (Path("first") / "report.html").is_file()
    forget()  # another process finds everything by the names in the folder
    (Path("first") / "result.json").unlink()
    main(["run", data, *RUN, "--fraction", "0.2", "--out", "first", "--json"])
    assert json.loads(capsys.readouterr().out)["scores"] == told["scores"]
    forget()
    main(["evaluate", "first", "--episodes", "2", "--json"])
    assert json.loads(capsys.readouterr().out)["env"] == "heavy-pointmass"
    forget()
    main(["export", "first", "--out", "policy.onnx"])
    assert Path("policy.onnx").stat().st_size > 100


def test_it_labels_and_saves_its_model(data, capsys):
    main(["label", data, "--fraction", "0.2", "--idm", "ridge", "--out", "all.rows", "--save-idm", "idm", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["truth"]["mse"] < 1e-3 and ssorl.load("all.rows").labelled.all()
    forget()
    main(["label", data, "--fraction", "0.2", "--idm", "idm", "--out", "again.rows", "--json"])
    np.testing.assert_array_equal(ssorl.load("again.rows").act, ssorl.load("all.rows").act)


def test_a_study_uses_the_agent(data, capsys):
    base = {"dataset": data, "agent": "weighted-bc", "idm": "ridge", "env": "heavy-pointmass", "fraction": 0.2}
    base |= {"settings": {**SMALL, "hidden": [8]}, "episodes": 2, "looks": 1}
    Path("mine.json").write_text(json.dumps({"base": base, "axes": {"variant": ["baseline", "ss"]}}))
    main(["study", "run", "mine.json", "--store", "store"])
    results = [json.loads(file.read_text()) for file in Path("store/cells").glob("*/result.json")]
    assert sorted(r["cell"]["variant"] for r in results if r["cell"]["kind"] == "return") == ["baseline", "ss"]
    capsys.readouterr()


def test_instances_work_in_python(data):
    from ssorl_example.agent import WeightedBC
    from ssorl_example.env import HeavyPointMass
    from ssorl_example.idm import RidgeIdm

    task = ssorl.split(ssorl.load(data), fraction=0.2)
    filled = ssorl.label(task, ssorl.fit_idm(task, idm=RidgeIdm(), preset=None))
    policy = ssorl.train(filled.eps, WeightedBC(**SMALL), quiet=True)
    scores = ssorl.evaluate(policy, env=HeavyPointMass, episodes=2, quiet=True)
    policy.save("policy.npz")
    forget()
    np.testing.assert_array_equal(
        ssorl.evaluate(ssorl.load_policy("policy.npz"), env="heavy-pointmass", episodes=2, quiet=True).returns,
        scores.returns,
    )


def test_without_the_package_a_policy_names_the_flag(site, data, monkeypatch, capsys):
    policy = ssorl.train(ssorl.load(data), "weighted-bc", quiet=True, **SMALL)
    policy.save("installed.npz")
    forget()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(site)])
    with pytest.raises(SsorlError, match=r"^installed.npz: names the agent 'weighted-bc', which is not installed"):
        ssorl.load_policy("installed.npz")
    with pytest.raises(SystemExit):
        main(["evaluate", "installed.npz", "--env", "pointmass", "--episodes", "1"])
    assert "--agent MODULE:NAME" in " ".join(capsys.readouterr().err.split()) and "ssorl_example" not in sys.modules
    played = ["evaluate", str(Path("installed.npz").absolute()), "--env", "pointmass", "--episodes", "1"]
    monkeypatch.chdir(site)  # a module in the working directory can be named; the file alone does not import it
    main([*played, "--agent", "ssorl_example.agent:WeightedBC", "--json"])
    assert json.loads(capsys.readouterr().out)["env"] == "pointmass"


def test_without_the_package_a_saved_model_names_the_flag(site, data, monkeypatch, capsys):
    words = ["label", "few.npz", "--fraction", "0.2", "--out", "all.npz", "--json"]
    ssorl.data.save(ssorl.load(data), "few.npz")
    main([*words, "--idm", "ridge", "--save-idm", "idm"])
    want = ssorl.load("all.npz").act
    forget()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(site)])
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([*words, "--idm", "idm", "--force"])
    said = " ".join(capsys.readouterr().err.split())
    assert "idm: " in said and "--idm-module MODULE:NAME" in said and "ssorl_example" not in sys.modules
    shutil.copytree(site / "ssorl_example", "ssorl_example")
    main([*words, "--idm", "idm", "--force", "--idm-module", "ssorl_example.idm:RidgeIdm"])
    np.testing.assert_array_equal(ssorl.load("all.npz").act, want)


def test_a_run_with_a_class_that_is_not_installed_is_resumed_if_it_is_named_again(site, data, monkeypatch, capsys):
    ssorl.data.save(ssorl.load(data), "few.npz")
    forget()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(site)])
    shutil.copytree(site / "ssorl_example", "ssorl_example")
    words = ["run", "few.npz", "--agent", "ssorl_example.agent:WeightedBC", "--variants", "baseline", "--out", "first"]
    words += [
        "--fraction",
        "0.2",
        "--env",
        "pointmass",
        "--episodes",
        "2",
        "--updates",
        "20",
        "--set",
        "hidden=8,",
        "batch=16",
        "--json",
    ]
    main(words)
    scores = json.loads(capsys.readouterr().out)["scores"]
    forget()
    with pytest.raises(SystemExit):  # the folder alone imports nothing
        main(["evaluate", "first", "--variant", "baseline", "--episodes", "2"])
    said = " ".join(capsys.readouterr().err.split())
    assert "--agent ssorl_example.agent:WeightedBC" in said and "ssorl_example" not in sys.modules
    (Path("first") / "result.json").unlink()
    main(words)
    assert json.loads(capsys.readouterr().out)["scores"] == scores


def test_the_readme_names_what_is_there():
    text = (ROOT / "examples" / "plugin" / "README.md").read_text()
    folder = ROOT / "examples" / "plugin"
    listed = {word for word in text.split("`") if word.startswith("src/") and os.path.splitext(word)[1]}
    assert listed == {str(p.relative_to(folder)) for p in folder.glob("src/*/*.py") if p.name != "__init__.py"}
    assert (ROOT / "tests" / "examples" / "test_plugin.py").is_file() and "tests/examples/test_plugin.py" in text
