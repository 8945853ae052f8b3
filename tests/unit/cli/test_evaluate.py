"""ssorl evaluate and ssorl export on a small run folder."""

import json
import shutil

import jax
import numpy as np
import onnxruntime
import pytest
from PIL import Image

import ssorl
from ssorl.agents import make
from ssorl.cli import main
from ssorl.data.stats import Standardiser
from ssorl.evaluation.policy_file import save_policy
from ssorl.evaluation.video import Film
from ssorl.utils.errors import SsorlError


def policy(path, seed, n_obs=4, n_act=2, env: str | None = "pointmass"):
    agent = make("bc", "quick", hidden=(16, 16))
    params = agent.policy(jax.jit(agent.init, static_argnums=(1, 2))(jax.random.key(seed), n_obs, n_act))
    scaler = Standardiser(np.zeros(n_obs, np.float32), np.ones(n_obs, np.float32))
    save_policy(path, agent, jax.device_get(params), scaler, -np.ones(n_act), np.ones(n_act), env=env)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder with two seeds of ss and one of the oracle."""
    folder = tmp_path_factory.mktemp("run")
    for number, name in enumerate(("ss-10", "ss-2", "oracle-2")):
        policy(folder / "policies" / f"{name}.npz", number)
    return folder


def fails(capsys, *args):
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in args])
    assert end.value.code == 2
    return capsys.readouterr().err


def test_evaluate_run_folder(run, capsys):
    main(["evaluate", str(run), "--episodes", "4", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert (result["env"], result["episodes"], result["seed"], result["video"]) == ("pointmass", 4, 0, None)
    assert [row["policy"].rpartition("/")[2] for row in result["policies"]] == ["ss-2.npz", "ss-10.npz"]
    for row in result["policies"]:
        assert row["return"]["mean"] == pytest.approx(np.mean(row["returns"])) and row["normalised"] is None
        assert row["return"]["low"] <= row["return"]["mean"] <= row["return"]["high"]
        assert len(row["returns"]) == len(row["lengths"]) == 4
    main(["evaluate", str(run), "--episodes", "4", "--variant", "all"])
    text = capsys.readouterr().out
    assert "oracle-2" in text and "ss-10" in text and f"{result['policies'][0]['return']['mean']:,.1f}" in text


@pytest.mark.parametrize(
    ("config", "known"),
    [
        ({"config": {"data": {"random_return": 10.0, "expert_return": 60.0}}}, True),
        ({"config": {"data": {"random_return": None, "expert_return": 60.0}}}, False),
        ({"config": {"data": {}}}, False),
        ([], False),
    ],
)
def test_scores_are_normalised_as_in_the_run(tmp_path, capsys, config, known):
    """If the environment has no reference scores, those of the run's data are used."""
    for home in (tmp_path, tmp_path / "q10"):
        policy(home / "policies" / "ss-0.npz", 0)
        (tmp_path / "config.json").write_text(json.dumps(config))
        main(["evaluate", str(home), "--episodes", "2", "--json"])
        (row,) = json.loads(capsys.readouterr().out)["policies"]
        assert (row["normalised"] is not None) == known
        if known:
            assert row["normalised"]["mean"] == pytest.approx(2 * (row["return"]["mean"] - 10))


def test_evaluate_a_file_without_environment(tmp_path, capsys):
    policy(tmp_path / "p.npz", 0, 11, 3, env=None)
    assert "the policy names no environment; name one with --env" in fails(capsys, "evaluate", tmp_path / "p.npz")
    main(["evaluate", str(tmp_path / "p.npz"), "--env", "hopper", "--episodes", "2", "--seed", "5", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["seed"] == 5 and result["policies"][0]["normalised"]["mean"] < 10


def test_load_policy_takes_files_and_folders(run):
    obs = np.ones(4)
    first = ssorl.load_policy(run)
    np.testing.assert_array_equal(first(obs), ssorl.load_policy(run / "policies" / "ss-2.npz")(obs))
    assert not np.array_equal(first(obs), ssorl.load_policy(run, seed=10)(obs))
    assert not np.array_equal(first(obs), ssorl.load_policy(run, variant="oracle")(obs))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["evaluate", "nowhere.npz"], "nowhere.npz: does not exist; name a policy file or a run folder"),
        (
            ["evaluate", "RUN", "--seed", "-1"],
            "the seed is -1; give a whole number from 0 up",
        ),
        (
            ["export", "RUN", "--out", "x.onnx", "--variant", "all"],
            "choose the variant baseline, ss or oracle",
        ),
        (
            ["evaluate", "RUN", "--variant", "baseline"],
            "contains no baseline policy (policies/VARIANT-SEED.npz); its policies are:",
        ),
        (["evaluate", "RUN", "--episodes", "0"], "episodes is 0; give a whole number from 1 up"),
        (["evaluate", "RUN", "--env", "nothing"], "no environment 'nothing'"),
        (["evaluate", "RUN", "--env", "hopper"], "observations of size 4, but hopper has size 11"),
        (
            ["evaluate", "RUN", "--video", "a.avi"],
            "a.avi: is not a name of a video; name a file that ends in .gif or .mp4",
        ),
        (["export", "RUN", "--out", "OUT", "--seed", "3"], "contains no ss policy of seed 3; it has 2"),
        (["export", "RUN", "--out", "RUN"], "exists already; give a file name"),
        (
            ["export", "FILE", "--out", "OUT", "--variant", "oracle"],
            "is a single policy, so the variant oracle has no effect",
        ),
        (["export", "FILE", "--out", "OUT", "--seed", "3"], "is a single policy, so the seed 3 has no effect"),
        (["evaluate", "FILE", "--variant", "all"], "is a single policy, so the variant all has no effect"),
    ],
)
def test_bad_input(run, tmp_path, capsys, args, message):
    names = {"RUN": str(run), "OUT": str(tmp_path / "out"), "FILE": str(run / "policies" / "ss-2.npz")}
    assert message in fails(capsys, *(names.get(a, a) for a in args))


def test_video(run, tmp_path, capsys):
    """The video shows the first episode of the first policy, with ten frames a second for the point mass."""
    out = tmp_path / "film.gif"
    main(["evaluate", str(run), "--episodes", "2", "--video", str(out), "--json"])
    result = json.loads(capsys.readouterr().out)
    shown = 0
    with Image.open(out) as film:
        assert film.size == (320, 240) and film.n_frames > 5
        for number in range(film.n_frames):  # Pillow merges equal frames
            film.seek(number)
            shown += film.info["duration"]
    assert shown == 100 * (result["policies"][0]["lengths"][0] + 1)

    kept = out.read_bytes()
    again = ["evaluate", str(run), "--episodes", "1", "--seed", "5", "--video", str(out)]
    assert f"{out}: exists already; choose another name or pass --force" in fails(capsys, *again)
    assert out.read_bytes() == kept
    main([*again, "--force"])
    assert out.read_bytes() != kept
    (tmp_path / "folder.gif").mkdir()
    assert "exists already; give a file name" in fails(
        capsys, "evaluate", run, "--video", tmp_path / "folder.gif", "--force"
    )


@pytest.mark.skipif(shutil.which("ffmpeg") is not None, reason="ffmpeg is here")
def test_mp4_without_ffmpeg(run, capsys):
    assert "needs the program ffmpeg, which is not installed; name a .gif" in fails(
        capsys, "evaluate", run, "--video", "a.mp4"
    )


def test_mujoco_video_or_a_message(tmp_path, capsys, monkeypatch):
    """With OpenGL a video is drawn; without, the command says why not."""
    policy(tmp_path / "p.npz", 0, 11, 3, env="hopper")
    call = ["evaluate", str(tmp_path / "p.npz"), "--episodes", "1", "--video", str(tmp_path / "film.gif")]
    try:
        main(call)
    except SystemExit as end:
        assert end.code == 2
        assert "MuJoCo cannot render here (egl: " in capsys.readouterr().err
    else:
        with Image.open(tmp_path / "film.gif") as film:
            frame = np.asarray(film.convert("RGB"))
            assert film.size == (320, 240) and frame.std() > 10
    (tmp_path / "film.gif").unlink(missing_ok=True)
    monkeypatch.setattr("ssorl.evaluation.video.BACKENDS", ())
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    message = fails(capsys, *call)
    assert "MuJoCo cannot render here (disabled: " in message and "leave out --video" in message
    assert [p.name for p in tmp_path.iterdir()] == ["p.npz"]


def test_maze_video_has_the_orientation_of_the_map(tmp_path):
    """A ball in the first row and column is above and to the left of the goal, which is in the last row."""
    film = Film(tmp_path / "maze.gif", "maze2d-large-dense")
    film.seconds_per_step, film.states = 1.0, [np.array([1.0, 1.0])] * 2
    try:
        film.write(1)
    except SsorlError as err:
        pytest.skip(str(err))
    with Image.open(film.path) as frames:
        frame = np.asarray(frames.convert("RGB")).astype(int)
    red, green, blue = np.moveaxis(frame, -1, 0)
    ball, goal = (
        np.argwhere(here).mean(0) for here in ((green > red + 40) & (green > blue + 40), red > green + blue + 40)
    )
    assert (ball + 50 < goal).all()


def test_other_environments_cannot_be_filmed(tmp_path, capsys):
    policy(tmp_path / "p.npz", 0, 3, 1, env="Pendulum-v1")
    message = fails(capsys, "evaluate", tmp_path / "p.npz", "--episodes", "1", "--video", tmp_path / "a.gif")
    assert "Pendulum-v1 cannot be rendered; use hopper" in message


def test_export(run, tmp_path, capsys):
    out = tmp_path / "p.onnx"
    main(["export", str(run), "--seed", "10", "--out", str(out), "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["inputs"] == {"obs": ["n", 4]} and result["outputs"] == ["act"] and result["largest_error"] < 1e-5
    obs = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    act = onnxruntime.InferenceSession(str(out)).run(None, {"obs": obs})[0]
    np.testing.assert_allclose(act, ssorl.load_policy(run, seed=10)(obs), atol=1e-5)
    assert "exists already; choose another name or pass --force" in fails(capsys, "export", run, "--out", out)
    main(["export", str(run), "--out", str(out), "--format", "jax", "--force"])
    assert "format jax" in capsys.readouterr().out
