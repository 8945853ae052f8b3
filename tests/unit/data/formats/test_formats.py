"""Every format, read and written: exact round trips, files made by others, and the downloads."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import socket
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.episodes import make_episodes
from support.samples import FORMATS, assert_same, bits, make, place, poke

from ssorl.data import Episodes, concat, load, load_pair, save
from ssorl.data.collections import d4rl_download
from ssorl.data.formats import open_parts
from ssorl.data.stream import open_stream
from ssorl.data.validate import READ_ALL, files_below
from ssorl.envs.scores import SCORES
from ssorl.utils.errors import DataError, SsorlError

NAN = np.nan
# Minari's collector leaves its scratch folder to the garbage collector, which says so.
pytestmark = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")


# --- round trips


def hide(eps: Episodes, *episodes: int) -> Episodes:
    for e in episodes:
        eps = poke(eps, "act", slice(eps.start[e], eps.start[e + 1]), NAN)
    return eps


def extreme() -> Episodes:
    """Numbers that a careless conversion changes."""
    eps = make()
    odd = [-0.0, 1e-45, -1e-45, 3.4028235e38, -3.4028235e38, 1.1754942e-38, 0.1, 16777217.0]
    for i, value in enumerate(odd):
        eps = poke(eps, "obs", (i, i % 3), value)
        eps = poke(eps, "rew", i, value)
    return poke(poke(eps, "act", (0, 0), -0.0), "act", (1, 1), 1.0)


ROUND_TRIPS = {
    "all actions": make(),
    "single steps unlabelled": poke(poke(make(), "act", 0, NAN), "act", [5, 9, -1], NAN),
    "whole trajectories unlabelled": hide(make(), 0, 2),
    "the first trajectory labelled, the rest not": hide(make(), 1, 2, 3),
    "no actions at all": hide(make(), 0, 1, 2, 3),
    "no action size": make(n_act=0, act_range="assumed"),
    "range 0 to 5": make(low=0, high=5),
    "small actions in a wide range": poke(make(low=0, high=5), "act", slice(None), 0.25),
    "one range a dimension": replace(
        make(), meta=replace(make().meta, act_low=(-1.0, -3.3), act_high=(1.5, 4.1), act_range="declared")
    ),
    "assumed range": make(act_range="assumed"),
    "all terminated": make(ended=(0, 1, 2, 3)),
    "all truncated": make(ended=()),
    "one observation": make(n_obs=1),
    "one action": make(n_act=1),
    "one of each": hide(make(n_obs=1, n_act=1), 1),
    "one trajectory": make(lengths=(7,), ended=(0,)),
    "two steps each": make(lengths=(2, 2, 2), ended=(1,)),
    "nothing known": make(env=None, random_return=None, expert_return=None, notes=()),
    "extreme numbers": extreme(),
    "many": make(lengths=tuple(range(2, 150)), ended=tuple(range(0, 148, 3)), n_obs=17, n_act=6),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("case", ROUND_TRIPS)
def test_round_trip_is_exact(tmp_path, case, format):
    want, path = ROUND_TRIPS[case], place(tmp_path, format)
    save(want, path, format)
    for got in (load(path, format), load(path)):  # by name and by looking at it
        assert_same(got, want)
        assert got.meta.source == str(path)
    assert os.listdir(tmp_path) == [path.name]  # nothing else is left beside it


@pytest.mark.parametrize("format", FORMATS)
def test_an_inferred_range_stays_inferred(tmp_path, format):
    act = make(high=3.0).act
    eps = make(high=3.0, act_low=tuple(map(float, act.min(0))), act_high=tuple(map(float, act.max(0))))
    eps = eps.with_meta(act_range="inferred")
    save(eps, place(tmp_path, format), format)
    assert_same(load(place(tmp_path, format)), eps)


def test_through_all_formats_in_a_row(tmp_path):
    want = hide(poke(make(low=-0.3, high=2), "act", 7, NAN), 3)
    got = want
    for i, format in enumerate((*FORMATS, *reversed(FORMATS))):
        save(got, place(tmp_path, format, f"step{i}"), format)
        got = load(place(tmp_path, format, f"step{i}"))
    assert_same(got, want)


@pytest.mark.parametrize("format", FORMATS)
def test_short_trajectories_are_left_out_on_request(tmp_path, format):
    eps, path = make(lengths=(4, 1, 3, 5), ended=(1, 3)), place(tmp_path, format)
    save(eps, path, format)
    with pytest.raises(DataError, match=r"trajectory 1 has 1 step.*--min-length 2"):
        load(path)
    got = load(path, min_length=4)
    assert got.meta.notes[-1].startswith("2 trajectories shorter than 4")
    assert_same(got.with_meta(notes=eps.meta.notes), eps[[0, 3]])
    with pytest.raises(DataError, match=r"shorter than 6.*--min-length"):
        load(path, min_length=6)


@pytest.mark.parametrize("format", FORMATS)
def test_saving_replaces_nothing_unasked(tmp_path, format):
    path = place(tmp_path, format)
    save(make(seed=1), path, format)
    with pytest.raises(DataError, match=r"exists already.*--force"):
        save(make(seed=2), path, format)
    assert_same(load(path), make(seed=1))
    save(make(seed=2), path, format, force=True)
    assert_same(load(path), make(seed=2))


@pytest.mark.parametrize("format", ["npz", "d4rl", "pickle"])
def test_a_file_never_replaces_a_folder(tmp_path, format):
    folder = tmp_path / "precious"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "thesis.txt").write_text("years of work")
    with pytest.raises(SsorlError, match=r"precious.*folder"):
        save(make(), folder, format, force=True)
    assert (folder / "inner" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("format", ["minari", "lerobot"])
def test_a_dataset_never_replaces_a_folder_that_is_none(tmp_path, format):
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(SsorlError, match=r"precious.*folder"):
        save(make(), folder, format, force=True)
    assert (folder / "thesis.txt").read_text() == "years of work"


# --- D4RL's HDF5


def d4rl_file(path: Path, lengths=(4, 3, 5), ended=(0,), **leave) -> dict[str, np.ndarray]:
    """A file as D4RL's scripts write it; keyword = None leaves a dataset out, an array replaces it."""
    eps = make(lengths=lengths, ended=ended)
    arrays = {
        "observations": eps.obs[eps.obs_row],
        "next_observations": eps.obs[eps.obs_row + 1],
        "actions": eps.act,
        "rewards": eps.rew,
        "terminals": eps.terminated,
        "timeouts": eps.truncated,
        "infos/qpos": np.zeros((eps.n_steps, 2)),
        "infos/action_log_probs": np.full(eps.n_steps, NAN),
        "metadata/algorithm": np.bytes_("SAC"),
    } | leave
    with h5py.File(path, "w") as file:
        for name, value in arrays.items():
            if value is not None:
                file[name] = value
    return {**arrays, "obs": eps.obs}


def test_d4rl_with_next_observations_keeps_the_last_step(tmp_path):
    have = d4rl_file(tmp_path / "robot.hdf5")
    got = load(tmp_path / "robot.hdf5")
    assert got.lengths.tolist() == [4, 3, 5]
    assert bits(got.obs) == bits(have["obs"]) and bits(got.act) == bits(have["actions"])
    assert bits(got.rew) == bits(have["rewards"])
    assert np.flatnonzero(got.terminated).tolist() == [3]
    assert np.flatnonzero(got.truncated).tolist() == [6, 11]
    assert got.meta.notes == () and got.meta.env is None and got.meta.act_range == "assumed"


def test_d4rl_without_next_observations_drops_the_last_step(tmp_path):
    have = d4rl_file(tmp_path / "robot.hdf5", next_observations=None)
    got = load(tmp_path / "robot.hdf5")
    keep = [0, 1, 2, 4, 5, 7, 8, 9, 10]
    assert got.lengths.tolist() == [3, 2, 4]
    assert bits(got.obs) == bits(have["observations"])  # every row is some step's state or the one after it
    assert bits(got.act) == bits(have["actions"][keep]) and bits(got.rew) == bits(have["rewards"][keep])
    assert not got.terminated.any()  # the step that ended the task is gone, and its ending with it
    assert any("last step of 3 trajectories was dropped" in n for n in got.meta.notes)


@pytest.mark.parametrize("leave", [{}, {"next_observations": None}])
def test_d4rl_keeps_the_unfinished_episode_at_the_end(tmp_path, leave):
    timeouts = np.zeros(12, bool)
    timeouts[6] = True  # so the last five rows belong to an episode that the file cuts off
    d4rl_file(tmp_path / "robot.hdf5", timeouts=timeouts, **leave)
    got = load(tmp_path / "robot.hdf5")
    assert got.lengths.tolist() == ([4, 3, 5] if not leave else [3, 2, 4])
    assert got.truncated[-1]


def test_d4rl_leaves_out_a_single_row_at_the_end(tmp_path):
    have = d4rl_file(tmp_path / "robot.hdf5", lengths=(4, 3, 1), timeouts=np.arange(8) == 6)
    got = load(tmp_path / "robot.hdf5")
    assert got.lengths.tolist() == [4, 3] and bits(got.rew) == bits(have["rewards"][:7])
    assert any("single row at the end" in n for n in got.meta.notes)


def test_d4rl_where_a_row_is_terminal_and_timeout(tmp_path):
    d4rl_file(tmp_path / "robot.hdf5", timeouts=np.isin(np.arange(12), [3, 6, 11]))
    got = load(tmp_path / "robot.hdf5")
    assert got.lengths.tolist() == [4, 3, 5]
    assert np.flatnonzero(got.terminated).tolist() == [3] and np.flatnonzero(got.truncated).tolist() == [6, 11]


def test_d4rl_without_timeouts_is_cut_at_the_horizon(tmp_path):
    # 1000 to the horizon, 400 to a terminal, 1000 to the horizon, 999 to a terminal, 1000 to both at once, 7 left over.
    n, terminal = 1000 + 400 + 1000 + 999 + 1000 + 7, [1399, 3398, 4398]
    obs = np.arange(n, dtype=np.float32)[:, None] * np.ones((1, 11), np.float32)
    with h5py.File(tmp_path / "hopper_medium-v2.hdf5", "w") as file:
        file["observations"], file["next_observations"] = obs, obs + 1
        file["actions"], file["rewards"] = np.zeros((n, 3), np.float32), np.ones(n, np.float32)
        file["terminals"] = np.isin(np.arange(n), terminal)
    got = load(tmp_path / "hopper_medium-v2.hdf5")
    assert got.lengths.tolist() == [1000, 400, 1000, 999, 1000, 7]
    assert np.flatnonzero(got.terminated).tolist() == terminal
    assert got.obs[1000, 0] == 1000 and got.obs[1001, 0] == 1000  # s_T of one episode, s_0 of the next
    assert got.meta.env == "hopper" and got.meta.random_return == SCORES["hopper"].random
    assert (got.meta.act_low, got.meta.act_high, got.meta.act_range) == ((-1.0,) * 3, (1.0,) * 3, "declared")
    assert any("cut at the horizon of 1000" in note for note in got.meta.notes)


def test_d4rl_horizon_is_that_of_the_task(tmp_path):
    d4rl_file(tmp_path / "maze2d-open-dense.hdf5", lengths=(310,), ended=(), timeouts=None, terminals=None)
    got = load(tmp_path / "maze2d-open-dense.hdf5")
    assert got.lengths.tolist() == [150, 150, 10] and got.meta.env == "maze2d-open-dense"
    assert got.meta.notes[0].startswith("the file marks no terminals and no timeouts: episodes were cut at the horizon")


def test_d4rl_without_actions(tmp_path):
    d4rl_file(tmp_path / "robot.hdf5", actions=None)
    got = load(tmp_path / "robot.hdf5")
    assert got.n_act == 0 and not got.labelled.any() and got.lengths.tolist() == [4, 3, 5]
    d4rl_file(tmp_path / "hopper_x.hdf5", actions=None)
    assert load(tmp_path / "hopper_x.hdf5").meta.env == "hopper"


def test_d4rl_reads_any_number_type_and_column_rewards(tmp_path):
    have = d4rl_file(tmp_path / "robot.hdf5")
    d4rl_file(
        tmp_path / "wide.hdf5",
        observations=have["observations"].astype(">f8"),
        next_observations=have["next_observations"].astype("f8"),
        rewards=have["rewards"].astype("f8")[:, None],
        terminals=have["terminals"].astype("f4")[:, None],
        timeouts=have["timeouts"].astype("u1"),
        actions=have["actions"].astype("f8"),
    )
    want = load(tmp_path / "robot.hdf5")
    assert_same(load(tmp_path / "wide.hdf5"), want)
    d4rl_file(tmp_path / "whole.hdf5", observations=np.arange(36).reshape(12, 3), next_observations=None)
    assert load(tmp_path / "whole.hdf5").obs[-1].tolist() == [33, 34, 35]


def test_d4rl_in_blocks_equals_d4rl_at_once(tmp_path, monkeypatch):
    d4rl_file(tmp_path / "robot.hdf5", lengths=(9, 20, 3, 33, 2), ended=(1, 2))
    want = load(tmp_path / "robot.hdf5")
    for block in (1, 2, 7, 29, 66):
        monkeypatch.setattr("ssorl.data.formats.d4rl.CHUNK", block)
        assert_same(load(tmp_path / "robot.hdf5"), want)


# --- Minari


@pytest.fixture
def minari_home(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    (tmp_path / "minari").mkdir()
    return tmp_path / "minari"


def collect(env, name: str, n_episodes: int, n_steps: int, **options):
    """Step an environment under Minari's own collector, and write down what came back."""
    from minari import DataCollector

    collector, seen = DataCollector(env, **options), []
    for e in range(n_episodes):
        obs, _ = collector.reset(seed=e)
        collector.action_space.seed(e)
        own = {"obs": [obs], "act": [], "rew": [], "terminated": False}
        for _ in range(n_steps):
            act = collector.action_space.sample()
            obs, rew, own["terminated"], truncated, _ = collector.step(act)
            own["obs"].append(obs)
            own["act"].append(act)
            own["rew"].append(rew)
            if own["terminated"] or truncated:
                break
        seen.append(own)
    collector.create_dataset(name, algorithm_name="random", author="a test", author_email="a@b.c", description="-")
    collector.close()
    return seen


def flattened(seen: list[dict], space) -> dict[str, np.ndarray]:
    """What was seen as flat arrays; dictionaries flattened by Gymnasium itself."""
    from gymnasium.spaces import flatten

    return {
        "obs": np.stack([flatten(space, o) for one in seen for o in one["obs"]]).astype(np.float32),
        "act": np.concatenate([one["act"] for one in seen]).astype(np.float32),
        "rew": np.concatenate([one["rew"] for one in seen]).astype(np.float32),
        "lengths": [len(one["rew"]) for one in seen],
        "ended": [one["terminated"] for one in seen],
    }


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
@pytest.mark.filterwarnings("ignore::UserWarning:gymnasium")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:gymnasium")
@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
@pytest.mark.parametrize("env_id", ["Pendulum-v1", "InvertedPendulum-v5", "PointMaze_UMaze-v3"])
def test_minari_own_collector_loads_right(minari_home, env_id, data_format):
    import gymnasium

    if env_id.startswith("PointMaze"):
        import gymnasium_robotics

        gymnasium.register_envs(gymnasium_robotics)
    env = gymnasium.make(env_id, max_episode_steps=9)
    space = env.observation_space
    seen = collect(env, "mine/test-v3", n_episodes=3, n_steps=9, data_format=data_format)
    want = flattened(seen, space)
    if env_id == "InvertedPendulum-v5":
        assert any(want["ended"])  # it falls within nine steps: terminated must come through
    for source in ("minari/mine/test-v3", minari_home / "mine" / "test-v3", minari_home / "mine" / "test-v3" / "data"):
        got = load(source)
        assert got.lengths.tolist() == want["lengths"]
        assert bits(got.obs) == bits(want["obs"])  # the state after the last action included
        assert bits(got.act) == bits(want["act"]) and bits(got.rew) == bits(want["rew"])
        assert got.terminated[got.start[1:] - 1].tolist() == want["ended"]
        assert got.meta.env == env_id and got.meta.act_range == "declared" and got.meta.source == str(source)
        assert got.meta.act_low == tuple(map(float, env.action_space.low))
        assert got.meta.act_high == tuple(map(float, env.action_space.high))


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_minari_itself_reads_what_is_saved(minari_home):
    import minari

    want = make(lengths=(3, 4), ended=(1,))
    save(want, minari_home / "made-v7", "minari")
    dataset = minari.load_dataset("made-v7")
    assert dataset.id == "made-v7" and dataset.total_episodes == 2 and dataset.total_steps == 7
    assert dataset.action_space.contains(want.act[0]) and dataset.observation_space.shape == (3,)
    episode = dataset[1]
    assert bits(episode.observations) == bits(want[1].obs) and bits(episode.actions) == bits(want[1].act)
    assert episode.terminations.tolist() == [False] * 3 + [True] and not episode.truncations.any()
    assert dataset[0].truncations.tolist() == [False, False, True]
    assert_same(load("minari/made-v7"), want)


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
@pytest.mark.parametrize("name", ["plain", "with dots.and spaces", "v-v12", "ünï-v0"])
def test_minari_ids_are_valid_whatever_the_folder(tmp_path, name):
    import minari

    save(make(), tmp_path / name, "minari")
    assert_same(load(tmp_path / name), make())
    assert minari.MinariDataset(tmp_path / name / "data").spec.version is not None  # Minari parses the id


def test_minari_that_is_nowhere_is_refused_clearly(minari_home, monkeypatch):
    import minari

    def offline(*_, **__):
        raise OSError("no network in this test")

    monkeypatch.setenv("MINARI_REMOTE", "gcp://elsewhere")  # no look-up of the default host

    monkeypatch.setattr(minari, "download_dataset", offline)
    with pytest.raises(
        DataError, match=r"minari/D4RL/nothing-v9: is not on this machine.*no network.*minari list remote"
    ):
        load("minari/D4RL/nothing-v9")
    with pytest.raises(DataError, match=r"minari/not an id"):
        load("minari/not an id")


def test_minari_offline_is_told_at_once(minari_home, monkeypatch):
    import socket

    import minari

    def unknown(*_):
        raise socket.gaierror("name not known")

    monkeypatch.delenv("MINARI_REMOTE", raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(minari, "download_dataset", lambda *_, **__: pytest.fail("would retry for half a minute"))
    with pytest.raises(DataError, match=r"is not on this machine.*name not known"):
        load("minari/D4RL/nothing-v9")


def test_minari_downloads_what_is_missing(minari_home, monkeypatch):
    import minari

    def served(name, *_, **__):
        save(make(), minari_home / name, "minari")

    monkeypatch.setenv("MINARI_REMOTE", "gcp://elsewhere")  # no look-up of the default host

    monkeypatch.setattr(minari, "download_dataset", served)
    assert_same(load("minari/far-v0"), make())


def test_a_damaged_local_minari_set_is_called_damaged(minari_home, monkeypatch):
    import minari

    monkeypatch.setattr(minari, "download_dataset", lambda *_, **__: pytest.fail("it is here: nothing to download"))
    save(make(), minari_home / "bad-v0", "minari")
    (minari_home / "bad-v0" / "data" / "metadata.json").write_text("{")
    with pytest.raises(DataError, match=r"minari/bad-v0: cannot be read as a Minari dataset"):
        load("minari/bad-v0")


# --- pickles


def dicts(eps: Episodes) -> list[dict]:
    return [
        {
            "observations": one.obs[:-1],
            "next_observations": one.obs[1:],
            "actions": one.act,
            "rewards": one.rew,
            "terminals": one.terminated,
        }
        for one in (eps[e] for e in range(len(eps)))
    ]


class OldNames(pickle._Pickler):
    """Writes the module names of numpy 1."""

    def save_global(self, obj, name=None):
        module = pickle.whichmodule(obj, name or obj.__qualname__)
        if not module.startswith("numpy._core"):
            return super().save_global(obj, name)
        module, name = module.replace("_core", "core"), name or obj.__qualname__
        if self.proto >= 4:
            self.save(module)
            self.save(name)
            self.write(pickle.STACK_GLOBAL)
        else:
            self.write(pickle.GLOBAL + f"{module}\n{name}\n".encode())
        self.memoize(obj)
        return None

    dispatch = {**pickle._Pickler.dispatch, type(np.frombuffer): save_global, type(lambda: 0): save_global}  # noqa: RUF012


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("names", ["numpy 1", "numpy 2"])
def test_pickle_of_any_protocol_and_numpy(tmp_path, protocol, names):
    want, out = make(), io.BytesIO()
    (OldNames if names == "numpy 1" else pickle.Pickler)(out, protocol).dump(dicts(want))
    assert (b"numpy._core" in out.getvalue()) == (names == "numpy 2")
    (tmp_path / "set.pkl").write_bytes(out.getvalue())
    got = load(tmp_path / "set.pkl")
    assert got.same(want) and bits(got.obs) == bits(want.obs)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_arrays_of_any_kind(tmp_path, protocol):
    want = make()
    odd = dicts(want)
    odd[0]["observations"] = np.asfortranarray(odd[0]["observations"])
    odd[0]["next_observations"] = odd[0]["next_observations"].astype(">f8")
    odd[1]["observations"] = np.repeat(odd[1]["observations"], 2, 0)[::2]  # not contiguous
    odd[1]["rewards"] = odd[1]["rewards"].tolist()
    odd[1]["actions"] = odd[1]["actions"].tolist()
    odd[2]["rewards"] = list(odd[2]["rewards"])  # numpy numbers one by one
    odd[2]["terminals"] = tuple(bool(x) for x in odd[2]["terminals"])
    odd[3]["rewards"] = odd[3]["rewards"][:, None]
    odd[3]["terminals"] = list(odd[3]["terminals"])  # numpy.bool one by one
    odd[3]["infos"] = {"note": "nobody reads this", "empty": np.zeros((0, 4))}
    (tmp_path / "set.pkl").write_bytes(pickle.dumps(odd, protocol))
    assert load(tmp_path / "set.pkl").same(want)


def test_pickle_of_python_2(tmp_path):
    """Python 2 had no bytes: arrays are text there, and names are those of numpy 1."""

    def array(values: np.ndarray, code: bytes, size: int) -> bytes:
        raw = values.tobytes()
        shape = b"(" + b"".join(b"K" + bytes([n]) for n in values.shape) + b"t"
        order = b"|" if size == 1 else b"<"
        return (
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR(K\x01" + shape
            + b"cnumpy\ndtype\n(U\x02" + code + b"K\x00K\x01tR(K\x03U\x01" + order
            + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U" + bytes([len(raw)]) + raw + b"tb"
        )  # fmt: skip

    obs, rew = np.array([[1, 2], [3, 4], [5, 255]], np.float32), np.array([9, 8, 7], np.float32)
    body = b"".join(
        b"U" + bytes([len(key)]) + key + value
        for key, value in (
            (b"observations", array(obs, b"f4", 4)),
            (b"next_observations", array(obs + 1, b"f4", 4)),
            (b"rewards", array(rew, b"f4", 4)),
            (b"terminals", array(np.array([False, False, True]), b"b1", 1)),
        )
    )
    path = tmp_path / "old.pkl"
    path.write_bytes(b"\x80\x02]}(" + body + b"ua.")
    got = load(path)
    assert got.obs.tolist() == [[1, 2], [3, 4], [5, 255], [6, 256]] and got.rew.tolist() == [9, 8, 7]
    assert got.terminated.tolist() == [False, False, True] and got.n_act == 0


def test_pickle_without_next_observations_drops_the_last_step(tmp_path):
    want = make()
    odd = [{k: v for k, v in one.items() if k != "next_observations"} for one in dicts(want)]
    odd[2]["observations"] = want[2].obs  # T+1 observations: here the last one is known
    (tmp_path / "set.pkl").write_bytes(pickle.dumps(odd))
    got = load(tmp_path / "set.pkl")
    assert got.lengths.tolist() == [3, 5, 3, 4]
    assert bits(got[0].obs) == bits(want[0].obs[:-1]) and bits(got[0].act) == bits(want[0].act[:-1])
    assert bits(got[2].obs) == bits(want[2].obs) and not got.terminated.any()
    assert "last step of 3 trajectories was dropped" in got.meta.notes[0]


def test_pickle_same_trajectory_many_times(tmp_path):
    """A bootstrap sample pickles its repeats by reference; that is no bomb."""
    have = dicts(make())
    (tmp_path / "set.pkl").write_bytes(pickle.dumps([have[i % 4] for i in range(200)]))
    got = load(tmp_path / "set.pkl")
    assert len(got) == 200 and bits(got[197].obs) == bits(make()[1].obs)


def test_pickle_named_after_a_task_has_its_reference(tmp_path):
    (tmp_path / "walker2d-medium-v2.pkl").write_bytes(pickle.dumps(dicts(make())))
    meta = load(tmp_path / "walker2d-medium-v2.pkl").meta
    assert meta.env == "walker2d" and meta.expert_return == SCORES["walker2d"].expert


def test_a_saved_pickle_is_plain_to_its_other_readers(tmp_path):
    want = hide(make(), 2)
    save(want, tmp_path / "set.pkl")
    found = pickle.loads((tmp_path / "set.pkl").read_bytes())
    assert [len(one["rewards"]) for one in found] == [4, 6, 3, 5]
    assert ["actions" in one for one in found] == [True, True, False, True]
    assert bits(found[1]["next_observations"]) == bits(want[1].obs[1:])
    assert found[1]["terminals"].tolist() == [False] * 5 + [True]


# --- LeRobot


def frames(eps: Episodes, fixed: bool = False) -> dict[str, pa.Array]:
    """Columns as LeRobot writes them: a frame holds the state before its action, and no state after the last."""

    def vectors(array):
        flat = pa.array(np.ascontiguousarray(array).reshape(-1))
        if fixed:
            return pa.FixedSizeListArray.from_arrays(flat, array.shape[1])
        return pa.ListArray.from_arrays(np.arange(len(array) + 1, dtype=np.int32) * array.shape[1], flat)

    step = np.arange(eps.n_steps)
    return {
        "observation.state": vectors(eps.obs[eps.obs_row]),
        "action": vectors(eps.act),
        "timestamp": pa.array(step / 50, pa.float32()),
        "frame_index": pa.array(step - np.repeat(eps.start[:-1], eps.lengths)),
        "episode_index": pa.array(eps.episode_of_step),
        "index": pa.array(step),
        "task_index": pa.array(np.zeros(eps.n_steps, np.int64)),
        "next.reward": pa.array(eps.rew),
        "next.done": pa.array(eps.terminated),
    }


def lerobot(folder: Path, tables: dict[str, pa.Table], version: str) -> Path:
    (folder / "meta").mkdir(parents=True)
    (folder / "meta" / "info.json").write_text(json.dumps({"codebase_version": version, "fps": 50, "features": {}}))
    for name, table in tables.items():
        (folder / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / "data" / name)
    return folder


def check_lerobot(got: Episodes, want: Episodes) -> None:
    keep = ~np.isin(np.arange(want.n_steps), want.start[1:] - 1)
    assert got.lengths.tolist() == (want.lengths - 1).tolist()
    assert bits(got.obs) == bits(want.obs[want.obs_row])
    assert bits(got.act) == bits(want.act[keep]) and bits(got.rew) == bits(want.rew[keep])
    assert not got.terminated.any() and "was dropped" in got.meta.notes[0]


@pytest.mark.parametrize("fixed", [False, True])
def test_lerobot_v2_has_a_file_an_episode(tmp_path, fixed):
    want = make(lengths=(4, 6, 3, 5, *[3] * 9))
    table = pa.table(frames(want, fixed))
    files = {
        f"chunk-{e // 8:03d}/episode_{e:06d}.parquet": table.slice(want.start[e], want.lengths[e])
        for e in range(len(want))
    }
    check_lerobot(load(lerobot(tmp_path / "robot", files, "v2.1")), want)


@pytest.mark.parametrize("fixed", [False, True])
def test_lerobot_v3_has_many_episodes_a_file(tmp_path, fixed):
    want = make()
    table = pa.table(frames(want, fixed))
    files = {"chunk-000/file-000.parquet": table.slice(0, 7), "chunk-000/file-001.parquet": table.slice(7)}
    check_lerobot(load(lerobot(tmp_path / "robot", files, "v3.0")), want)  # an episode may run over into the next file


def test_lerobot_single_file(tmp_path):
    want = make()
    pq.write_table(pa.table(frames(want)), tmp_path / "all.parquet")
    check_lerobot(load(tmp_path / "all.parquet"), want)


def test_lerobot_frames_in_any_order(tmp_path):
    want = make()
    table = pa.table(frames(want)).take(np.random.default_rng(0).permutation(want.n_steps))
    check_lerobot(load(lerobot(tmp_path / "robot", {"chunk-000/file-000.parquet": table}, "v3.0")), want)


def test_lerobot_more_than_one_state_feature_and_none_of_the_images(tmp_path):
    want = make()
    columns = frames(want)
    columns["observation.environment_state"] = pa.array(np.arange(want.n_steps, dtype=np.float64))
    columns["observation.images.top"] = pa.array([{"bytes": b"x" * 50, "path": None}] * want.n_steps)
    columns["task"] = pa.array(["push"] * want.n_steps)
    got = load(lerobot(tmp_path / "robot", {"chunk-000/file-000.parquet": pa.table(columns)}, "v3.0"))
    assert got.n_obs == 4 and got.obs[:, 0].tolist() == list(range(want.n_steps))
    assert bits(got.obs[:, 1:]) == bits(want.obs[want.obs_row])
    assert got.meta.notes[0].startswith("observation.images.top was left out: only numbers")


def streamed(path: Path) -> Episodes:
    """The same file or folder, read some trajectories at a time."""
    return concat([part.eps for part in open_stream(open_parts(path), READ_ALL, 5).parts()])


def test_lerobot_state_features_come_in_one_order_whatever_that_of_the_file(tmp_path):
    want = make(n_obs=5)
    obs, rest = want.obs[want.obs_row], frames(want)
    del rest["observation.state"]
    features = {"observation.b": obs[:, 3:], "observation.a": obs[:, :3], "next.observation.b": obs[:, 3:] + 1}
    features["next.observation.a"] = obs[:, :3] + 1
    columns = {name: pa.array(rows.tolist(), pa.list_(pa.float32())) for name, rows in features.items()} | rest
    files = {"a.parquet": pa.table(columns).slice(0, 10)}
    files["b.parquet"] = pa.table(dict(reversed(columns.items()))).slice(10)  # one folder may mix them, too
    path = lerobot(tmp_path / "robot", files, "v3.0")
    for got in (load(path), streamed(path)):
        assert bits(got.obs[got.obs_row]) == bits(obs) and got.n_steps == want.n_steps
        assert bits(got.obs[got.start[1:] + np.arange(4)]) == bits(obs[got.start[1:] - 1] + 1)


def chunks(folder: Path, **info) -> tuple[Path, Episodes]:
    """A folder of two chunks, and what meta/info.json says besides."""
    want = make()
    table = pa.table(frames(want))
    files = {f"chunk-00{i}/file-000.parquet": t for i, t in enumerate((table.slice(0, 10), table.slice(10)))}
    path = lerobot(folder / "robot", files, "v2.1")
    (path / "meta" / "info.json").write_text(json.dumps({"total_episodes": 4, "total_frames": 18} | info))
    return path, want


def test_lerobot_chunks_may_be_links(tmp_path):
    path, want = chunks(tmp_path)
    (path / "data" / "chunk-001").rename(tmp_path / "elsewhere")
    (path / "data" / "chunk-001").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(path / "data")  # a circle is walked once
    check_lerobot(load(path), want)
    assert streamed(path).same(load(path)) and load(path, min_length=4).n_episodes == 2
    assert [f.name for f in files_below(path / "data")] == ["file-000.parquet"] * 2


def test_lerobot_without_a_chunk_is_refused(tmp_path):
    path, _ = chunks(tmp_path)
    shutil.rmtree(path / "data" / "chunk-001")
    for read in (load, streamed):
        with pytest.raises(DataError, match=r"robot: meta/info\.json counts 4 episodes but 2 are under data/; fetch"):
            read(path)


@pytest.mark.parametrize("info", [{"total_frames": 17}, {"total_episodes": None, "total_frames": 19}])
def test_lerobot_frames_are_counted_too(tmp_path, info):
    path, _ = chunks(tmp_path, **info)
    for read in (load, streamed):
        with pytest.raises(
            DataError, match=rf"counts {info['total_frames']} frames but 18 are .* correct total_frames"
        ):
            read(path)


@pytest.mark.parametrize("odd", [None, 0, "4", 4.5, True])
def test_lerobot_counts_of_another_kind_are_passed_over(tmp_path, odd):
    path, want = chunks(tmp_path, total_episodes=odd, total_frames=odd)
    check_lerobot(load(path), want)


def test_lerobot_tells_which_observations_it_left_out(tmp_path):
    want = make()
    columns = frames(want) | {"observation.grid": pa.array([[[1.0, 2.0], [3.0, 4.0]]] * want.n_steps)}
    columns["observation.task"] = pa.array(["push"] * want.n_steps)
    path = lerobot(tmp_path / "robot", {"a.parquet": pa.table(columns)}, "v3.0")
    told = "observation.grid, observation.task were left out: only numbers and vectors of numbers are read"
    assert load(path).meta.notes[0] == told and open_stream(open_parts(path), READ_ALL).meta == load(path).meta


@pytest.mark.parametrize("missing", ["null rows", "NaN rows", "null column", "no column"])
def test_lerobot_missing_actions(tmp_path, missing):
    want, columns = make(), frames(make())
    if missing == "null rows":
        columns["action"] = pa.array([None if i in (0, 5) else want.act[i].tolist() for i in range(want.n_steps)])
    if missing == "NaN rows":
        columns["action"] = frames(poke(want, "act", [0, 5], NAN))["action"]
    if missing == "null column":
        columns["action"] = pa.nulls(want.n_steps)
    if missing == "no column":
        del columns["action"]
    got = load(lerobot(tmp_path / "robot", {"chunk-000/file-000.parquet": pa.table(columns)}, "v3.0"))
    if "rows" in missing:
        assert np.flatnonzero(~got.labelled).tolist() == [0, 4]  # 5 is the second frame of trajectory 1
        assert bits(got.act[[1, 2]]) == bits(want.act[[1, 2]])
    else:
        assert not got.labelled.any()


@pytest.mark.parametrize("missing", ["no column", "null column"])
def test_lerobot_without_rewards_has_none(tmp_path, missing):
    columns = frames(make())
    del columns["next.done"]
    columns["next.reward"] = pa.nulls(len(columns["index"]), pa.float32())
    if missing == "no column":
        del columns["next.reward"]
    got = load(lerobot(tmp_path / "robot", {"chunk-000/file-000.parquet": pa.table(columns)}, "v3.0"))
    assert np.isnan(got.rew).all() and not got.rewarded.any()


def test_lerobot_large_episode_numbers_stay_apart(tmp_path):
    want = make()
    columns = frames(want)
    columns["episode_index"] = pa.array(want.episode_of_step + 2**24)  # past what float32 can count
    check_lerobot(load(lerobot(tmp_path / "robot", {"a.parquet": pa.table(columns)}, "v3.0")), want)


def test_a_folder_with_an_equals_sign_adds_no_column(tmp_path):
    want = make()
    check_lerobot(
        load(lerobot(tmp_path / "seed=1" / "robot", {"task=3/a.parquet": pa.table(frames(want))}, "v3.0")), want
    )


# --- NPZ


def test_npz_as_the_guide_shows_it(tmp_path):
    np.savez(
        tmp_path / "my.npz",
        obs=np.zeros((102, 4), np.float32),
        act=np.zeros((100, 2), np.float32),
        rew=np.ones(100, np.float32),
        start=np.array([0, 50, 100]),
    )
    got = load(tmp_path / "my.npz")
    assert got.lengths.tolist() == [50, 50] and not got.terminated.any() and got.labelled.all()


def test_npz_compressed_fortran_and_wide(tmp_path):
    want = make()
    arrays = {n: getattr(want, n) for n in ("obs", "act", "rew", "terminated", "start")}
    arrays["obs"], arrays["rew"] = np.asfortranarray(want.obs.astype(">f8")), want.rew.astype("f8")
    arrays["start"] = want.start.astype("u4")
    np.savez_compressed(tmp_path / "my.npz", **arrays)
    assert load(tmp_path / "my.npz").same(want)


def test_npz_of_python_2_is_read_without_a_word(tmp_path, recwarn):
    want = make()
    np.savez(tmp_path / "new.npz", **{n: getattr(want, n) for n in ("obs", "act", "rew", "terminated", "start")})
    with zipfile.ZipFile(tmp_path / "new.npz") as new, zipfile.ZipFile(tmp_path / "old.npz", "w") as old:
        for name in new.namelist():  # Python 2 wrote its sizes as 18L
            old.writestr(name, new.read(name).replace(b"(18,), } ", b"(18L,), }"))
    assert load(tmp_path / "old.npz").same(want)
    assert not recwarn.list  # numpy warns of such headers; a user could do nothing about it


# --- pairs


@pytest.mark.parametrize("unlabelled", FORMATS)
@pytest.mark.parametrize("labelled", FORMATS)
def test_a_pair_in_any_two_formats(tmp_path, labelled, unlabelled):
    a, b = make(low=0, high=5, seed=1), make(seed=2, lengths=(5, 2), ended=(0,), env="other")
    paths = place(tmp_path, labelled, "a"), place(tmp_path, unlabelled, "b")
    save(a, paths[0], labelled)
    save(b, paths[1], unlabelled)
    got = load_pair(*paths)
    assert bits(got[:4].act) == bits(a.act) and np.isnan(got[4:].act).all()
    assert bits(got.obs) == bits(np.concatenate([a.obs, b.obs])) and got[4].terminated[-1]
    assert got.meta.act_low == (0.0, 0.0) and got.meta.env == "pointmass"
    assert got.meta.source == f"{paths[0]} + {paths[1]}"


@pytest.mark.parametrize("n_act", [0, 1, 2, 5])
def test_a_pair_ignores_whatever_actions_the_second_has(tmp_path, n_act):
    a = make(seed=1)
    save(a, tmp_path / "a.npz")
    alone = []
    for seed in (3, 4):
        b = make(seed=2, n_act=n_act)
        b = replace(b, act=make(seed=seed, n_act=n_act).act)
        save(b, tmp_path / "b.hdf5", force=True)
        got = load_pair(tmp_path / "a.npz", tmp_path / "b.hdf5")
        alone.append((bits(got.act), got.meta))
    assert alone[0] == alone[1]  # other actions in the second file change nothing at all


# --- D4RL by name


class Server(BaseHTTPRequestHandler):
    """Serves one file, in the ways a server may fail."""

    body, mode, asked = b"", "whole", []

    def do_GET(self):
        span = self.headers.get("Range")
        Server.asked.append((self.path, span))
        first = int(span.removeprefix("bytes=").removesuffix("-")) if span else 0
        body, code = self.body, 200
        if self.mode == "404":
            return self.send_error(404)
        if self.mode == "garbage":
            self.wfile.write(b"\x00\xffnot http at all\r\n\r\n")
            return None
        if self.mode == "login page":
            body = b"<html>please log in to the hotel's network</html>"
        if span and self.mode != "no ranges":
            if first >= len(body):
                return self.send_error(416)
            body, code = body[first:], 206
        self.send_response(code)
        if code == 206:
            self.send_header("Content-Range", f"bytes {first}-{len(self.body) - 1}/{len(self.body)}")
        if self.mode == "bad length":
            self.send_header("Content-Length", "many")
        elif self.mode != "no length":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.mode in ("cut", "no length") else body)
        return None

    def log_message(self, *_):
        pass


NAME, FILE = "hopper-medium-v2", "hopper_medium-v2.hdf5"


@pytest.fixture
def server(tmp_path, monkeypatch):
    d4rl_file(tmp_path / "served.hdf5", lengths=(30, 40), ended=(0,))
    Server.body, Server.mode, Server.asked = (tmp_path / "served.hdf5").read_bytes(), "whole", []
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("SSORL_D4RL_URL", f"http://127.0.0.1:{http.server_port}/d4rl")
        monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "home"))
        yield tmp_path / "home"
        http.shutdown()
        thread.join()


def test_download_whole_and_only_once(server, capfd):
    got = load(f"d4rl/{NAME}")
    assert got.lengths.tolist() == [30, 40] and got.meta.source == f"d4rl/{NAME}" and got.meta.env == "hopper"
    assert os.listdir(server) == [FILE] and (server / FILE).read_bytes() == Server.body
    assert Server.asked == [(f"/d4rl/gym_mujoco_v2/{FILE}", None)]
    assert_same(load(f"d4rl/{NAME}"), got)
    assert len(Server.asked) == 1
    assert capfd.readouterr().out == ""  # progress goes to standard error


def test_download_resumes_after_a_cut(server):
    Server.mode = "cut"
    half = len(Server.body) // 2
    with pytest.raises(DataError, match=rf"d4rl/{NAME}.*{half} of {len(Server.body)} bytes"):
        load(f"d4rl/{NAME}")
    assert os.listdir(server) == [FILE + ".part"]
    Server.mode = "whole"
    load(f"d4rl/{NAME}")
    assert Server.asked[-1][1] == f"bytes={half}-"
    assert os.listdir(server) == [FILE] and (server / FILE).read_bytes() == Server.body


def test_download_from_a_server_that_cannot_resume(server):
    server.mkdir()
    (server / (FILE + ".part")).write_bytes(Server.body[:100])
    Server.mode = "no ranges"
    load(f"d4rl/{NAME}")
    assert (server / FILE).read_bytes() == Server.body


@pytest.mark.parametrize("extra", [0, 50])
def test_download_with_a_part_that_is_whole_or_too_long(server, extra):
    server.mkdir()
    (server / (FILE + ".part")).write_bytes(Server.body + bytes(extra))
    load(f"d4rl/{NAME}")
    assert (server / FILE).read_bytes() == Server.body


@pytest.mark.parametrize("start", [b"stale bytes of something else", b"\x89HDF\r\n\x1a\n" + bytes(100)])
def test_download_after_a_part_of_another_file_heals(server, start):
    server.mkdir()
    (server / (FILE + ".part")).write_bytes(start)
    with pytest.raises(DataError, match=rf"d4rl/{NAME}.*not a complete HDF5"):
        load(f"d4rl/{NAME}")
    assert not (server / FILE).exists()
    load(f"d4rl/{NAME}")  # what was wrong is gone, so asking again starts afresh
    assert (server / FILE).read_bytes() == Server.body


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("404", r"answered 404 .*copy the file to .*hopper_medium-v2\.hdf5"),
        ("garbage", r"cannot be downloaded"),
        ("bad length", r"cannot be downloaded"),
        ("no length", r"not a complete HDF5"),
        ("login page", r"not a complete HDF5"),
        ("cut", r"received \d+ of \d+ bytes; run"),
    ],
)
def test_download_that_fails_says_so_and_leaves_no_file(server, mode, says):
    Server.mode = mode
    with pytest.raises(DataError, match=says) as caught:
        load(f"d4rl/{NAME}")
    assert f"d4rl/{NAME}" in str(caught.value) and "\n" not in str(caught.value)
    assert not (server / FILE).exists()


def test_download_offline_says_what_to_do(tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("SSORL_D4RL_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "home"))
    with pytest.raises(DataError) as caught:
        load(f"d4rl/{NAME}")
    text = str(caught.value)
    assert f"d4rl/{NAME}" in text and "cannot be downloaded" in text and "\n" not in text
    assert f"copy it to {tmp_path / 'home' / FILE}" in text


def test_download_with_a_broken_address(tmp_path, monkeypatch):
    monkeypatch.setenv("SSORL_D4RL_URL", "not-an-address")
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    with pytest.raises(DataError, match=r"d4rl/hopper.*cannot be downloaded"):
        load(f"d4rl/{NAME}")


def test_download_into_a_folder_that_cannot_be(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(SsorlError, match=r"d4rl/hopper.*D4RL_DATASET_DIR"):
        load(f"d4rl/{NAME}")


def test_every_d4rl_name_has_a_task_with_reference_scores():
    from ssorl.data.formats.d4rl import task_of

    assert len(d4rl_download.names()) == 22
    for name in d4rl_download.names():
        assert task_of(name) in SCORES and task_of(Path(d4rl_download.FILES[name]).stem) == task_of(name)
    with pytest.raises(DataError, match="did you mean d4rl/hopper-medium-v2"):
        load("d4rl/hopper-mediun-v2")


@pytest.mark.parametrize("kind", ["npz", "d4rl", "minari", "lerobot", "pickle"])
def test_the_actions_of_the_unlabelled_file_are_not_even_looked_at(tmp_path, kind):
    """Out of range and half missing: reason to refuse a file, unless its actions are to be ignored."""
    eps = make_episodes([3, 4])
    save(eps, tmp_path / "a.npz")
    wild = eps.act.copy()
    wild[0], wild[1, 0] = 1e9, np.nan
    broken = type(eps)(eps.obs, wild, eps.rew, eps.terminated, eps.start, eps.meta)
    save(broken, tmp_path / "b", kind)
    with pytest.raises(DataError):
        load(tmp_path / "b")
    both = load_pair(tmp_path / "a.npz", tmp_path / "b")
    assert both.labelled.tolist() == [True] * 7 + [False] * 7
    assert np.array_equal(both.obs, np.concatenate([eps.obs, eps.obs]))
