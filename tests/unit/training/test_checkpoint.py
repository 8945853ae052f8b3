"""Policies and checkpoints in files: they are read with the same bits, or one sentence says why not."""

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import zipfile
from dataclasses import asdict, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.clock import patience
from support.episodes import make_episodes

from ssorl.agents import make
from ssorl.data.stats import Standardiser
from ssorl.evaluation.policy_file import load_policy_file, save_policy
from ssorl.training import engine
from ssorl.training.engine import TrainingRun, train, train_many
from ssorl.utils.errors import DataError, SsorlError
from ssorl.utils.files import DamagedError
from ssorl.utils.locks import locked
from ssorl.utils.sealed import sealed, write_sealed

AGENT = make("td3bc", hidden=(4,), batch=8, updates=12, half=False)
SCALER = Standardiser(np.arange(3, dtype=np.float32), np.arange(1, 4, dtype=np.float32))
LOW, HIGH = np.array([-2.0, -1.0]), np.array([2.0, 3.0])


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


@pytest.fixture(scope="module")
def params():
    return jax.device_get(AGENT.policy(AGENT.init(jax.random.key(0), 3, 2)))


@pytest.fixture
def policy(tmp_path, params):
    path = tmp_path / "policy.npz"
    save_policy(path, AGENT, params, SCALER, LOW, HIGH, "Hopper-v5", {"seed": 3})
    return path


# Sealed files ----------------------------------------------------------------------------------------------


def test_sealed_arrays_keep_type_shape_and_bits(tmp_path):
    arrays = {
        "a/0": np.float32(3.5),
        "b": np.arange(6, dtype=np.int32).reshape(2, 3).T,
        "half": np.asarray(jnp.arange(3, dtype=jnp.bfloat16)),
        "none": np.zeros((0, 4), np.float64),
        "yes": np.array([True, False]),
    }
    write_sealed(tmp_path / "x.npz", {"k": 1}, arrays)
    with sealed(tmp_path / "x.npz", "a test") as file:
        assert file.about == {"k": 1}
        same(file.read(arrays), {k: np.asarray(v) for k, v in arrays.items()})
    with np.load(tmp_path / "x.npz", allow_pickle=False) as plain:  # the file is an ordinary npz
        np.testing.assert_array_equal(plain["b"], arrays["b"])
        assert json.loads(plain["about.json"]) == {"k": 1}


def test_every_flipped_bit_and_every_cut_is_detected(tmp_path):
    path = tmp_path / "x.npz"
    write_sealed(path, {"k": 1}, {"a": np.arange(4)})
    whole = path.read_bytes()
    for i in range(0, len(whole), 7):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :])
        with pytest.raises(DamagedError, match="cut short or damaged"), sealed(path, "a test"):
            pass
        path.write_bytes(whole[:i])
        with pytest.raises(DamagedError), sealed(path, "a test"):
            pass


def test_shapes_are_checked_before_memory_is_allocated(tmp_path):
    """A file is rejected if its header claims more than the caller expects or than the file contains."""
    path, claim = tmp_path / "x.npz", {"descr": "<f4", "fortran_order": False, "shape": (10**12,)}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("about.json", "{}")
        with archive.open("a.npy", "w") as file:
            np.lib.format.write_array_header_1_0(file, claim)
    reseal(path)
    with pytest.raises(DataError, match=r"a is float32\[1000000000000\], expected float32\[3\]"):
        read(path, {"a": np.zeros(3, np.float32)})
    with pytest.raises(DataError, match="a is cut short"):
        read(path, {"a": jax.ShapeDtypeStruct((10**12,), np.float32)})
    with pytest.raises(DataError, match=r"arrays missing or unexpected: a.npy, b.npy"):
        read(path, {"b": np.zeros(3, np.float32)})


def test_compressed_members_and_objects_are_rejected(tmp_path):
    """Compressed members could grow a thousandfold, and objects could run code."""
    for name, array, save in (("bomb", np.zeros(10), np.savez_compressed), ("object", np.array([{}]), np.savez)):
        path = tmp_path / f"{name}.npz"
        save(path, a=array)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("about.json", "{}")
        reseal(path)
        with pytest.raises(
            DataError, match=r"a is compressed or in an unknown array format|a is object\[1\], expected"
        ):
            read(path, {"a": np.zeros(array.shape)})


def read(path, wanted):
    with sealed(path, "a test") as file:
        return file.read(wanted)


def reseal(path):
    """Give an altered file a valid checksum, as an attacker would."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"0" * 64
    body = path.read_bytes()[:-64]
    path.write_bytes(body + hashlib.sha256(body).hexdigest().encode())


# Policies --------------------------------------------------------------------------------------------------


def test_a_policy_is_saved_and_loaded(policy, params):
    got = load_policy_file(policy)
    assert got.agent == AGENT and got.env == "Hopper-v5" and got.note == {"seed": 3}
    same(got.params, params)
    same((*got.scaler, got.act_low, got.act_high), (*SCALER, *(x.astype(np.float32) for x in (LOW, HIGH))))
    assert not list(policy.parent.glob(".tmp-*"))


def alter(path, **changes):
    """Change about.json and give the file a valid checksum."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    about = json.loads(members["about.json"])
    for name, value in changes.items():
        (about["settings"] if name in about.get("settings", {}) else about)[name] = value
    members["about.json"] = json.dumps(about).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, body in members.items():
            archive.writestr(name, body)
    reseal(path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"agent": "os.system"}, "names the agent 'os.system', which is not installed here"),
        ({"agent": "bc"}, "settings that the agent bc does not have here: actor_lr, alpha"),
        ({"kind": "poem"}, "its about.json describes another kind of file"),
        ({"version": 9}, "its format has version 9"),
        ({"gamma": "0.9"}, "the setting gamma is 0.9"),
        ({"gamma": float("nan")}, "NaN is not a finite number"),
        ({"batch": 2.5}, "the setting batch is 2.5"),
        ({"batch": True}, "the setting batch is True"),
        ({"hidden": [4] * 1000}, r"the setting hidden is \[4, 4"),
        ({"hidden": [9_000_000]}, r"the setting hidden is 9000000"),
        ({"policy_every": 2001}, r"the setting policy_every is 2001"),
        ({"hidden": [200_000, 200_000]}, "params/"),
        ({"hidden": [5]}, r"params/0/b is float32\[4\], expected float32\[5\]"),
        ({"n_obs": 10**15}, "n_obs is 1000000000000000"),
        ({"n_act": 0}, "n_act is 0"),
        ({"env": 3}, "its env is not a name"),
    ],
)
def test_an_altered_policy_raises_an_error(policy, changes, sentence):
    alter(policy, **changes)
    with pytest.raises(DataError, match=sentence):
        load_policy_file(policy)


def test_an_older_file_may_lack_a_setting(policy):
    with zipfile.ZipFile(policy) as archive:
        settings = json.loads(archive.read("about.json"))["settings"]
    del settings["noise_clip"]
    alter(policy, settings=settings)
    assert load_policy_file(policy).agent == AGENT


def test_a_scale_of_zero_raises_an_error(policy, params):
    save_policy(policy, AGENT, params, Standardiser(SCALER.mean, 0 * SCALER.std), LOW, HIGH)
    with pytest.raises(DataError, match="not finite or not positive"):
        load_policy_file(policy)


def test_other_files_raise_an_error(tmp_path):
    with pytest.raises(DataError, match=r"none\.npz: cannot be read \(No such file"):
        load_policy_file(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello" * 100)
    with pytest.raises(DataError, match=r"text\.npz: is not a saved policy, or is cut short"):
        load_policy_file(tmp_path / "text.npz")


class Mine(type(AGENT)):
    """An agent that is not registered."""


def test_the_user_must_name_an_unregistered_agent_to_load_it(tmp_path, params):
    path, own = tmp_path / "p.npz", Mine(**asdict(AGENT))
    save_policy(path, own, params, SCALER, LOW, HIGH)
    with pytest.raises(SsorlError, match=r"p\.npz: names the agent '.*:Mine', and files may not import modules; if"):
        load_policy_file(path)
    assert load_policy_file(path, Mine).agent == own
    save_policy(path, AGENT, params, SCALER, LOW, HIGH)
    with pytest.raises(SsorlError, match=r"p\.npz: has the agent td3bc, not .*:Mine; leave out --agent or"):
        load_policy_file(path, Mine)


def test_a_full_disk_leaves_the_earlier_policy(policy, params):
    before, limit = policy.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limit[1]))
    try:
        with pytest.raises(SsorlError, match=r"policy\.npz: cannot be written \(File too large\)"):
            save_policy(policy, AGENT, params, SCALER, LOW, HIGH)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert policy.read_bytes() == before and os.listdir(policy.parent) == ["policy.npz"]


# Checkpoints -----------------------------------------------------------------------------------------------


class Stop(Exception):  # noqa: N818
    """Raised by a test's callback to stop a training."""


def stopping(at, kind=Stop):
    """Return a callback that stops at update `at`, and whose scores are highest at update 8."""

    def callback(snapshot):
        if snapshot.at == at:
            raise kind
        return [-abs(snapshot.at - 8) - i for i in snapshot.runs]

    return callback


@pytest.fixture(scope="module")
def runs():
    eps = make_episodes([5, 4, 6])
    return [TrainingRun(eps, 0), TrainingRun(eps.with_actions(eps.act / 2), 1, np.arange(3, 12)), TrainingRun(eps, 2)]


@pytest.fixture(scope="module")
def unbroken(runs):
    return train_many(AGENT, runs, every=4, callback=stopping(None))


def alike(got, want):
    for a, b in zip(got, want, strict=True):
        same(a._replace(scaler=None), b._replace(scaler=None))


@pytest.mark.parametrize("kind", [Stop, KeyboardInterrupt])
def test_a_stopped_training_resumes_to_the_same_bits(tmp_path, runs, unbroken, kind):
    """The training is stopped twice in the first run."""
    for at in (8, 12):
        with pytest.raises(kind):
            train_many(AGENT, runs, every=4, callback=stopping(at, kind), folder=tmp_path)
    assert sorted(p.name for p in tmp_path.glob("*.npz")) == ["run-0.npz", "run-0.previous.npz"]
    progress = []
    got = train_many(AGENT, runs, 4, stopping(None), lambda n, note: progress.append(n), folder=tmp_path)
    alike(got, unbroken)
    assert sum(progress) == 3 * 12 and progress[0] == 8
    assert sorted(p.name for p in tmp_path.glob("*.npz")) == ["run-0.npz", "run-1.npz", "run-2.npz"]


def test_a_finished_training_is_not_repeated(tmp_path, runs, unbroken):
    train_many(AGENT, runs[:2], every=4, callback=stopping(None), folder=tmp_path)
    snapshots = []
    alike(train_many(AGENT, runs[:2], every=4, callback=snapshots.append, folder=tmp_path), unbroken[:2])
    assert not snapshots

    def callback(snapshot):
        snapshots.append(snapshot)
        return stopping(None)(snapshot)

    # If a third run is added, only this run is trained.
    alike(train_many(AGENT, runs, every=4, callback=callback, folder=tmp_path), unbroken)
    assert [list(s.runs) for s in snapshots] == [[2]] * 3


def test_a_group_is_resumed_as_a_group(tmp_path, runs, unbroken):
    """This holds even though the second call would train the runs one after another."""
    with pytest.raises(Stop):
        train_many(AGENT, runs, every=4, callback=stopping(8), folder=tmp_path, together=True)
    got = train_many(AGENT, runs, every=4, callback=stopping(None), folder=tmp_path)
    assert [p.name for p in tmp_path.glob("*.npz")] == ["runs-0-2.npz"]
    alike(got, train_many(AGENT, runs, every=4, callback=stopping(None), together=True))
    for a, b in zip(jax.tree.leaves([x[:3] for x in got]), jax.tree.leaves([x[:3] for x in unbroken]), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    with pytest.raises(SsorlError, match=r"runs-0-2.npz has runs 0 to 2, which does not fit the 2 runs"):
        train_many(AGENT, runs[:2], every=4, folder=tmp_path)


def test_the_best_policy_is_kept(runs, unbroken):
    """Each run keeps its policy with the highest score, the first of equals."""
    averages = []
    scores = [[-8, -8, -9], [np.nan, 1, 2]]

    def callback(snapshot):
        averages.append((snapshot.at, list(snapshot.runs), jax.device_get(snapshot.average)))
        return [scores[i][snapshot.at // 4 - 1] for i in snapshot.runs]

    for together in (False, True):
        averages.clear()
        got = train_many(
            AGENT,
            runs[:2],
            every=4,
            callback=callback,
            together=together,
        )
        for number, best_at in ((0, 4), (1, 12)):
            ((average, index),) = [(a, r.index(number)) for at, r, a in averages if at == best_at and number in r]
            same(got[number].best, jax.tree.map(lambda x, i=index: x[i], average))
        np.testing.assert_array_equal(got[0].curve["score"], [-8, -8, -9])
        np.testing.assert_array_equal(got[1].curve["score"], [np.nan, 1, 2])
    assert train(AGENT, runs[0], every=4).best is None and "score" not in train(AGENT, runs[0], every=4).curve
    with pytest.raises(SsorlError, match=r"scores of shape \(2,\) for 1 runs"):
        train(AGENT, runs[0], every=4, callback=lambda snapshot: [1, 2])


@pytest.fixture(scope="module")
def halfway(runs, tmp_path_factory):
    """The files of a training that was stopped after its second checkpoint."""
    folder = tmp_path_factory.mktemp("halfway")
    with pytest.raises(Stop):
        train(AGENT, runs[0], every=4, callback=stopping(12), folder=folder)
    return {path.name: path.read_bytes() for path in folder.glob("*.npz")}


def unpack(files, folder):
    for name, body in files.items():
        (folder / name).write_bytes(body)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"agent": replace(AGENT, alpha=1.0, tau=0.1)}, "settings alpha was 2.5 and is 1.0; settings tau was 0.005"),
        ({"agent": make("bc", hidden=(4,), updates=12)}, "agent was td3bc and is bc; .* and .* more differences"),
        ({"seed": 5}, "run 0 seed was 0 and is 5"),
        ({"act": 0.5}, r"run 0 labels differ\)"),
        ({"steps": np.arange(4)}, r"run 0 steps differ\)"),
        ({"obs": 1.5}, r"data differs\)"),
        ({"every": 2}, "every was 4 and is 2"),
        ({"average": 0.9}, "average was 0.999 and is 0.9"),
    ],
)
def test_a_checkpoint_of_another_training_raises_an_error(tmp_path, runs, halfway, change, sentence):
    unpack(halfway, tmp_path)
    eps = runs[0].eps
    eps = replace(eps, obs=eps.obs * change.get("obs", 1), act=eps.act * np.float32(change.get("act", 1)))
    run = TrainingRun(eps, change.get("seed", 0), change.get("steps"))
    options = {"every": 4, **{k: v for k, v in change.items() if k in ("every", "average")}}
    with pytest.raises(SsorlError, match=rf"run-0.npz: is a checkpoint of another training \(.*{sentence}"):
        train(change.get("agent", AGENT), run, folder=tmp_path, **options)
    assert {p.name: p.read_bytes() for p in tmp_path.glob("*.npz")} == halfway


def test_a_damaged_checkpoint_is_replaced_by_the_previous_one(tmp_path, runs, unbroken, halfway):
    unpack(halfway, tmp_path)
    (tmp_path / "run-0.npz").write_bytes(halfway["run-0.npz"][:-100])
    with pytest.warns(
        UserWarning, match=r"run-0.npz: is not a checkpoint, or is cut short .* the earlier checkpoint run-0.previ"
    ):
        alike([train(AGENT, runs[0], every=4, callback=stopping(None), folder=tmp_path)], unbroken[:1])


def test_two_damaged_checkpoints_raise_an_error(tmp_path, runs, halfway):
    unpack({name: body[:-1] for name, body in halfway.items()}, tmp_path)
    with (
        pytest.warns(UserWarning, match="cut short"),
        pytest.raises(DataError, match=r"previous.npz: .* delete it to train from the start"),
    ):
        train(AGENT, runs[0], every=4, folder=tmp_path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"at": 7}, "claims to be at update 7 of 12"),
        ({"at": 12}, r"curve/actor_loss is float32\[2, 1\], expected float32\[3, 1\]"),
        ({"metrics": ["../x"]}, "arrays missing or unexpected"),
        ({"metrics": 3}, "its metrics have no names"),
        ({"best": False}, "arrays missing or unexpected: best"),
        ({"kind": "ssorl policy"}, "its about.json describes another kind of file"),
    ],
)
def test_an_altered_checkpoint_raises_an_error(tmp_path, runs, halfway, changes, sentence):
    unpack(halfway, tmp_path)
    alter(tmp_path / "run-0.npz", **changes)
    with pytest.raises(DataError, match=sentence):
        train(AGENT, runs[0], every=4, folder=tmp_path)


def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path, runs, unbroken, monkeypatch):
    limit, first_saved, save = resource.getrlimit(resource.RLIMIT_FSIZE), threading.Event(), engine.save

    def save_and_notify(*args):
        save(*args)
        first_saved.set()

    def fill(snapshot):
        if snapshot.at == 8:
            assert first_saved.wait(patience())  # a thread writes it during training
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
        return stopping(None)(snapshot)

    monkeypatch.setattr(engine, "save", save_and_notify)
    try:
        with pytest.raises(SsorlError, match=r"run-0\.npz: cannot be written \(File too large\)"):
            train(AGENT, runs[0], every=4, callback=fill, folder=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert sorted(os.listdir(tmp_path)) == [".lock", "run-0.npz"]
    alike([train(AGENT, runs[0], every=4, callback=stopping(None), folder=tmp_path)], unbroken[:1])


def test_a_folder_that_cannot_be_created_raises_an_error(tmp_path, runs):
    (tmp_path / "file").write_text("")
    with pytest.raises(SsorlError, match=r"file/x: cannot be written \(Not a directory\); choose another folder"):
        train(AGENT, runs[0], every=4, folder=tmp_path / "file" / "x")


def test_a_folder_is_locked_by_one_training(tmp_path, runs):
    with locked(tmp_path), pytest.raises(SsorlError, match="another process is writing there"):
        train(AGENT, runs[0], every=4, folder=tmp_path)
    (tmp_path / ".tmp-run-0.npz-abc").mkdir()  # a leftover of a killed process
    train(AGENT, runs[0], every=4, folder=tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".lock", "run-0.npz"]


# Train in a folder, and kill this process before change number `kill` of the folder; 0: print the number of changes.
LONG = """
import sys
from support.episodes import make_episodes
from support.kills import Changes
from ssorl.agents import make
from ssorl.training.engine import TrainingRun, train

folder, kill = sys.argv[1:]
agent, run = make("bc", hidden=(4,), batch=8, updates=1500), TrainingRun(make_episodes([5, 4, 6]), 3)
changes = Changes(folder, int(kill))
train(agent, run, every=10, callback=lambda s: [s.at % 70], folder=folder)
print(changes.count)
"""


def train_in_a_process(folder, kill=0):
    command = [sys.executable, "-c", LONG, str(folder), str(kill)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=patience())


def test_a_killed_process_resumes_to_the_same_bits(tmp_path, campaign):
    """The process is killed before random changes of the folder; it spends most of its time on writing there."""
    agent, run = make("bc", hidden=(4,), batch=8, updates=1500), TrainingRun(make_episodes([5, 4, 6]), 3)
    score = lambda s: snapshots.append(s.at) or [s.at % 70]  # noqa: E731
    snapshots = []
    want = train(agent, run, every=10, callback=score)
    whole = train_in_a_process(tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    changes = int(whole.stdout)
    assert changes > 4 * len(snapshots)  # a snapshot renames two checkpoints, creates a folder and deletes it
    for i in range(campaign.count(50)):
        folder, kills = tmp_path / str(i), np.random.default_rng(i).integers(changes // 8, changes // 2, 2)
        for kill in kills:  # two kills before at most half of the changes, so that updates remain
            assert train_in_a_process(folder, kill).returncode == -signal.SIGKILL
        snapshots = []
        got = train(agent, run, every=10, folder=folder, callback=score)
        assert snapshots[0] > 10 and snapshots[-1] == 1500
        alike([got], [want])
