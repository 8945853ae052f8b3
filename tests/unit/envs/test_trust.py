"""An environment name `module:Id` imports the module if the user gave it, and never if it comes from a file."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from support.episodes import CHOICES, SMALL

import ssorl
from ssorl import envs
from ssorl.cli import main
from ssorl.data import save
from ssorl.utils.errors import SsorlError

pytestmark = pytest.mark.usefixtures("small_idm")
NAME = "recording_module:Recorded-v0"
# Creates a file when it is imported, and registers a task that fits the point mass data.
MODULE = """
from pathlib import Path
Path(__file__).with_suffix(".imported").touch()

import gymnasium as gym
import numpy as np

class Recorded(gym.Env):
    observation_space = gym.spaces.Box(-9, 9, (4,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, seed=None, options=None):
        self.time = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(4, np.float32), 1.0, self.time >= 3, False, {}

class Wrapped(gym.Wrapper):
    pass

gym.register("Recorded-v0", Recorded, max_episode_steps=5)
"""


class Recorder:
    """A module that records whether it was imported."""

    def __init__(self, folder: Path) -> None:
        self.marker = folder / "recording_module.imported"
        (folder / "recording_module.py").write_text(MODULE)

    @property
    def imported(self) -> bool:
        return self.marker.exists()

    def forget(self) -> None:
        """Undo the import, as in a new process."""
        import gymnasium as gym

        sys.modules.pop("recording_module", None)
        gym.registry.pop("Recorded-v0", None)
        self.marker.unlink(missing_ok=True)


@pytest.fixture
def module(tmp_path, monkeypatch):
    there = tmp_path / "modules"
    there.mkdir()
    monkeypatch.syspath_prepend(there)
    monkeypatch.chdir(tmp_path)
    recorder = Recorder(there)
    yield recorder
    recorder.forget()


def refused(module: Recorder, file: object, cure: str, call, *args, **kwargs) -> None:
    """Check that a call raises with the file's name and the cure, and imports nothing."""
    with pytest.raises(SsorlError) as error:
        call(*args, **kwargs)
    told = str(error.value)
    assert told.startswith(f"{file}: ") and cure in told and "\n" not in told
    assert not module.imported and "recording_module" not in sys.modules


def policy_file(path: Path, eps) -> Path:
    """Save a policy whose environment is that of the module."""
    from ssorl.evaluation.policy_file import save_policy

    player = ssorl.train(eps, "bc", **SMALL).player
    save_policy(path, player.agent, player.params, player.scaler, player.act_low, player.act_high, env=NAME)
    return path


def test_imports_are_detected(module):
    """The other tests can fail."""
    import gymnasium as gym

    gym.make(NAME)
    assert module.imported


@pytest.mark.parametrize("name", ["set.npz", "set.hdf5", "set.pkl", "minari", "lerobot"])
def test_datasets_do_not_import_modules(module, eps, name, capsys):
    file = Path(name)
    save(eps.with_meta(env=NAME), file, None if file.suffix else name)
    refused(module, file, f"--env {NAME}", ssorl.run, file, **CHOICES)
    assert ssorl.load(file).meta.env == NAME  # the trajectories can be used nevertheless
    with pytest.raises(SystemExit) as end:
        main(["run", name, "--agent", "bc"])
    err = " ".join(capsys.readouterr().err.split())
    assert end.value.code == 2 and f"{file}: names the environment" in err and f"--env {NAME}" in err
    assert not module.imported and not Path("runs").exists()


def test_evaluate_names_the_file_of_the_environments_name(module, eps):
    save(eps.with_meta(env=NAME), Path("set.npz"))
    policy = ssorl.train(ssorl.load("set.npz"), "bc", **SMALL)
    refused(module, "set.npz", f"env='{NAME}'", ssorl.evaluate, policy, episodes=1)


@pytest.mark.parametrize("spec_id", [NAME, "Nowhere-v0"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_spec_of_a_minari_dataset_is_not_executed(module, eps, spec_id):
    """The entry point and the wrappers of the spec name modules, and its id may do so too."""
    save(eps, Path("set"), "minari")
    file = Path("set/data/metadata.json")
    content = json.loads(file.read_text())
    wrapper = {"name": "Wrapped", "entry_point": "recording_module:Wrapped", "kwargs": {}}
    spec = {"id": spec_id, "entry_point": "recording_module:Recorded", "additional_wrappers": [wrapper]}
    content = {key: value for key, value in content.items() if key != "ssorl"}
    content |= {"env_spec": json.dumps(spec), "eval_env_spec": json.dumps(spec)}
    file.write_text(json.dumps(content))
    assert ssorl.load("set").meta.env == spec_id
    if spec_id == NAME:
        refused(module, "set", f"--env {NAME}", ssorl.run, "set", **CHOICES)
    else:  # an environment that does not exist
        from ssorl.pipeline.plan import make_plan

        choices = {key: value for key, value in CHOICES.items() if key != "episodes"}
        plan = make_plan(ssorl.load("set"), **choices)
        assert plan.env is None and "Nowhere-v0, which is unknown" in plan.notes[0]
    del content["observation_space"]  # Minari would create the environment to get its space
    file.write_text(json.dumps(content))
    refused(module, "set", "write the set with Minari 0.5", ssorl.load, "set")


def test_policies_do_not_import_modules(module, eps, capsys):
    file = policy_file(Path("policy.npz"), eps)
    policy = ssorl.load_policy(file)
    assert policy(np.zeros(4)).shape == (2,)  # acting imports nothing
    refused(module, file, f"env='{NAME}'", ssorl.evaluate, policy, episodes=1)
    with pytest.raises(SystemExit) as end:
        main(["evaluate", str(file), "--episodes", "1"])
    err = " ".join(capsys.readouterr().err.split())
    assert end.value.code == 2 and "policy.npz: names the environment" in err and f"--env {NAME}" in err
    assert not module.imported


def test_run_folders_do_not_import_modules(module, eps, capsys):
    """A run that was started with --env needs it again for evaluation and to resume."""
    save(eps, Path("set.npz"))
    done = ssorl.run("set.npz", out="folder", env=NAME, **CHOICES)
    assert module.imported and done.content["config"]["env"] == NAME
    module.forget()
    refused(module, "folder", f"--env {NAME}", ssorl.run, "set.npz", out="folder", **CHOICES)
    policies = Path("folder/policies")
    refused(module, policies / "ss-0.npz", f"env='{NAME}'", ssorl.evaluate, ssorl.load_policy("folder"), episodes=1)
    with pytest.raises(SystemExit):
        main(["evaluate", "folder", "--episodes", "1"])
    assert f"--env {NAME}" in " ".join(capsys.readouterr().err.split()) and not module.imported
    main(["evaluate", "folder", "--episodes", "1", "--env", NAME, "--json"])
    assert json.loads(capsys.readouterr().out)["policies"][0]["return"]["mean"] == 3 and module.imported
    again = ssorl.run("set.npz", out="folder", env=NAME, **CHOICES)
    assert again.scores == done.scores


def test_studies_do_not_import_modules(module, eps):
    from ssorl.study.executor import run_batch
    from ssorl.study.files import find
    from ssorl.study.grid import Cell, Grid, Study
    from ssorl.study.scheduler import run

    save(eps, Path("set.npz"))
    base = {"dataset": "set.npz", "agent": "bc", "settings": SMALL, "variant": "baseline", "fraction": 0.2}
    for file in (Path("mine.yaml"), Path("mine.json")):  # YAML includes JSON
        file.write_text(json.dumps({"base": base | {"env": NAME}}))
        with pytest.raises(SsorlError, match=rf"^{file.name}.*recording_module.*\.py file that imports the module"):
            find(file)
    good = Study("own", "own", (Grid(base, {}),)).cells("smoke")[0]
    cell = Cell.from_json(json.loads(json.dumps(good.as_json())) | {"env": NAME})
    cell_file = Path("store/cells") / cell.hash / "cell.json"
    refused(module, cell_file, "imports the module", run_batch, [cell], "store")
    refused(module, "a cell of store", "imports the module", run, [cell], Path("store"), notify=print)
    save(eps.with_meta(env=NAME), Path("set.npz"), force=True)
    refused(module, "set.npz", "imports the module", run_batch, [good], "other")


def test_make_does_not_trust_plain_strings(module):
    """This is the last check, for callers without one of their own."""
    refused(module, "a file", f"--env {NAME}", envs.make, NAME, 1)
    read = json.loads(json.dumps({"env": envs.TrustedName(NAME)}))["env"]
    refused(module, "a file", f"--env {NAME}", envs.make, read, 1)
    assert envs.make(envs.TrustedName(NAME), 2).n_obs == 4 and module.imported


def test_names_in_messages_are_quoted_for_the_shell():
    with pytest.raises(SsorlError, match=r"--env 'a:b; touch c\\nd' or"):
        envs.require_trusted("a:b; touch c\nd", "set.npz")


def test_the_user_can_name_a_module(module, eps, capsys):
    """The user gives it as --env or env=, or as the environment of behaviour policy training."""
    save(eps.with_meta(env=NAME), Path("set.npz"))
    words = "--agent bc --fraction 0.2 --variants baseline --episodes 2 --updates 20 --set hidden=[8] batch=16 --json"
    main(["run", "set.npz", "--out", "out", *words.split(), "--env", NAME])
    result = json.loads(capsys.readouterr().out)
    assert result["config"]["env"] == NAME and module.imported
    module.forget()
    scores = ssorl.evaluate(ssorl.load_policy("out", "baseline"), env=NAME, episodes=2)
    assert scores.returns.tolist() == [[3, 3]] and module.imported
    module.forget()
    from ssorl.data.sim.train import TrainConfig, train

    assert train(TrainConfig(NAME, steps=8, n_envs=2, warmup=8, hidden=(8,), batch=4), Path("collector"))
    assert module.imported
