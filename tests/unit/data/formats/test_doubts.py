"""Where a file contradicts itself, or says less than it seems to: what is taken, and what is said about it."""

from __future__ import annotations

import pickle
from dataclasses import replace

import h5py
import numpy as np
import pytest
from support.refusals import GOOD, d4rl, dicts, lerobot, npz, pickled
from support.samples import FORMATS, assert_same, make, place, poke

from ssorl.cli import main
from ssorl.data import load, load_pair, save
from ssorl.data import stream as parts
from ssorl.data.formats import d4rl as d4rl_module
from ssorl.data.formats import open_parts
from ssorl.data.stats import differing_rows, precision_warnings
from ssorl.data.validate import ReadOptions
from ssorl.utils.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")


def opened(path, size=5, min_length=0):
    wish = ReadOptions(min_length)
    return parts.open_stream(open_parts(path, None, wish), wish, size)


# --- names


def test_minari_is_written_to_a_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(make(), "set", "minari")
    assert_same(load("set"), make())
    assert [p.name for p in tmp_path.iterdir()] == ["set"]


def test_a_name_that_tells_no_format_is_told_what_every_command_can_do(tmp_path, capfd):
    save(make(lengths=(3,) * 20, ended=()), tmp_path / "set.npz")
    with pytest.raises(SystemExit):
        main(["data", "split", str(tmp_path / "set.npz"), "--out", f"{tmp_path}/s.json", "--data", f"{tmp_path}/s.le"])
    said = capfd.readouterr().err
    assert "s.le: end it in .npz, .hdf5" in said and "`ssorl data convert` and `ssorl label` write" in said


# --- numbers of trajectories


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("array", "at", "value", "says"),
    [
        ("obs", (11, 2), np.inf, "trajectory 3 has the observation inf at step 1"),
        ("rew", 8, np.nan, "trajectory 3 has the reward nan at step 1"),
        ("act", (8, 1), np.nan, "trajectory 3 has only part of its action at step 1"),
        ("act", (8, 0), 7.0, "trajectory 3 has the action 7 at step 1"),
    ],
)
def test_a_fault_is_numbered_as_in_the_file_whatever_is_left_out(tmp_path, format, array, at, value, says):
    path = place(tmp_path, format)
    save(poke(make(lengths=(1, 5, 1, 4), ended=()), array, at, value), path, format)
    for read in [load] if format == "pickle" else [load, opened]:
        with pytest.raises(DataError, match=says):
            read(path, min_length=2)


def test_single_rows_of_d4rl_that_are_left_out_are_counted(tmp_path):
    rew = GOOD.rew.copy()
    rew[8] = np.inf
    ends = np.isin(np.arange(18), [0, 4, 5, 10, 17])  # trajectories 0 and 2 are a single row, 3 is faulty
    path = d4rl(tmp_path, next_observations=None, rewards=rew, terminals=None, timeouts=ends)[0]
    for read in (load, opened):
        with pytest.raises(DataError, match="trajectory 3 has the reward inf at step 2"):
            read(path)
    d4rl(tmp_path, next_observations=None, terminals=None, timeouts=ends)
    assert load(path).lengths.tolist() == opened(path).lengths.tolist() == [3, 4, 6]


# --- empty trajectories


def lists(folder, *which: int, with_next=True):
    found = dicts()
    for e in which:
        found[e] = {k: [] for k in found[e]} if e % 2 else {k: v[:0] for k, v in found[e].items()}
    for one in found if not with_next else ():
        del one["next_observations"]
    (folder / "set.pkl").write_bytes(pickle.dumps(found))
    return folder / "set.pkl"


@pytest.mark.parametrize("which", [(0,), (1,), (2, 3), (0, 1)])
@pytest.mark.parametrize("with_next", [True, False])
def test_empty_trajectories_of_a_pickle_are_left_out_on_request(tmp_path, which, with_next):
    path = lists(tmp_path, *which, with_next=with_next)
    with pytest.raises(DataError, match=rf"trajectory {which[0]} has 0 step.*it is empty.*--min-length 2"):
        load(path)
    want = load(lists(tmp_path, with_next=with_next))[[e for e in range(4) if e not in which]]
    for least in (1, 2):
        got = load(lists(tmp_path, *which, with_next=with_next), min_length=least)
        assert got.same(want) and f"{len(which)} trajectories shorter than {least}" in got.meta.notes[-1]
    assert with_next or f"last step of {4 - len(which)} trajectories" in got.meta.notes[0]


def test_a_pickle_of_empty_trajectories_alone_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no trajectories"):
        load(lists(tmp_path, 0, 1, 2, 3), min_length=2)


# --- next_observations against the observations that follow


def test_apart_forgives_rounding_and_nothing_else():
    a = np.array([[1.0, 100.0], [0.0, 1.7e9], [3.0, 3.0], [1.0, 1.0], [5e-7, 2.0]])
    b = np.array([[1.000001, 100.0], [0.0, 1.7e9 + 99], [3.001, 3.0], [np.nan, 1.0], [0.0, 2.0]])
    assert differing_rows(a, b).tolist() == [2]
    assert differing_rows(a[:, 0], b[:, 0]).tolist() == [2] and differing_rows(a[:0], b[:0]).tolist() == []


@pytest.mark.parametrize("block", [3, 1000])
def test_d4rl_without_timeouts_is_cut_where_the_next_state_is_another(tmp_path, monkeypatch, block):
    """Trajectories of 4, 6, 3 and 5 steps; 1 and 3 terminate, so that 0 and 2 end by nothing else."""
    monkeypatch.setattr("ssorl.data.formats.d4rl.CHUNK", block)
    want = load(d4rl(tmp_path)[0])
    path = d4rl(tmp_path, "bare.hdf5", timeouts=None)[0]
    stream, got = opened(path), load(path)
    assert got.same(want) and "cut at 2 rows whose next_observations is not the row that follows" in got.meta.notes[0]
    assert got.truncated.nonzero()[0].tolist() == [3, 12] and len(got.meta.notes) == 1
    assert stream.meta == got.meta and stream.start.tolist() == got.start.tolist()
    assert np.array_equal(np.concatenate([p.eps.obs for p in stream.parts()]), want.obs)


def test_the_states_of_a_stream_are_compared_once(tmp_path, monkeypatch):
    calls, kept = [], d4rl_module._breaks
    monkeypatch.setattr(d4rl_module, "_breaks", lambda *given: calls.append(1) or kept(*given))
    stream = opened(d4rl(tmp_path, timeouts=None)[0])
    assert sum(len(p.eps) for p in stream.parts()) == 4 and len(calls) == 1


def test_d4rl_without_timeouts_rounds_no_episode_to_pieces(tmp_path):
    with h5py.File(d4rl(tmp_path, timeouts=None)[0], "a") as file:
        near = file["next_observations"][:].astype(np.float64) * (1 + 1e-7)
        del file["next_observations"]
        file["next_observations"] = near
    assert load(tmp_path / "set.hdf5").lengths.tolist() == [4, 6, 3, 5]


@pytest.mark.parametrize("block", [3, 1000])
def test_d4rl_next_states_that_contradict_are_counted(tmp_path, monkeypatch, block):
    monkeypatch.setattr("ssorl.data.formats.d4rl.CHUNK", block)
    want = load(d4rl(tmp_path)[0])
    assert want.meta.notes == ()  # at the ends of trajectories they differ, as they must
    after = want.obs[want.obs_row + 1]
    after[[1, 5, 6]] += 1  # inside trajectories 0 and 1
    path = d4rl(tmp_path, "torn.hdf5", next_observations=after)[0]
    got = load(path)
    assert got.same(want) and "at 3 steps inside trajectories" in got.meta.notes[0]
    assert opened(path).meta == got.meta


def test_pickled_next_states_that_contradict_are_counted(tmp_path):
    want = load(pickled(tmp_path)[0])
    assert want.meta.notes == ()
    got = load(pickled(tmp_path, 1, next_observations=dicts()[1]["next_observations"] + np.eye(6, 3))[0])
    assert got.same(want) and "at 3 steps inside trajectories" in got.meta.notes[0]


# --- ranges by name


@pytest.mark.parametrize(("largest", "known"), [(1.0, "declared"), (1.0001, "declared"), (2.5, "inferred")])
def test_a_range_by_name_holds_only_where_the_actions_keep_it(tmp_path, largest, known):
    act = np.clip(make(n_act=3).act, -0.5, 0.5)
    act[7, 1] = largest
    path = d4rl(tmp_path, "hopper_robot.hdf5", actions=act)[0]
    got = load(path)
    assert got.meta.act_range == known and got.meta.env == "hopper"
    assert np.isclose(got.meta.act_high[1], max(1, largest), rtol=1e-3)
    assert any("named after hopper" in n for n in got.meta.notes) == (known == "inferred")
    assert opened(path).meta == got.meta


def test_a_range_that_ssorl_wrote_is_declared_whatever_the_name(tmp_path):
    save(poke(make(), "act", (7, 1), 2.5), tmp_path / "hopper_robot.hdf5")
    with pytest.raises(DataError, match=r"outside .*correct it or the declared range"):
        load(tmp_path / "hopper_robot.hdf5")


@pytest.mark.parametrize("format", FORMATS)
def test_the_range_of_small_actions_comes_through_every_file(tmp_path, format):
    """Dimension 0 moves by hundredths, dimension 1 fills [-1, 1]; nothing is declared."""
    act = GOOD.act * np.float32([0.01, 1])
    got = load(npz(tmp_path, act=act)[0])
    assert got.meta.act_range == "inferred" and got.meta.act_low == (float(act[:, 0].min()), -1.0)
    assert opened(tmp_path / "set.npz").meta == got.meta
    path = place(tmp_path, format, "other")
    save(got[:2], path, format)  # what is written is what was inferred, whatever the file holds of it
    assert_same(load(path), got[:2])
    assert format == "pickle" or replace(opened(path).meta, source="") == replace(got.meta, source="")
    both = load_pair(path, npz(tmp_path)[0])
    assert (both.meta.act_low, both.meta.act_range) == (got.meta.act_low, "inferred")


# --- float64


def clock(step: float) -> np.ndarray:
    obs = make().obs.astype(np.float64)
    obs[:, 1] = 1.7e9 + step * np.arange(len(obs))
    return obs


def clocked(folder, format: str, obs: np.ndarray | None = None):
    """A file in which states are float64, with a clock among them, or these."""
    obs = clock(0.1) if obs is None else obs
    now, after = obs[GOOD.obs_row], obs[GOOD.obs_row + 1]
    if format == "npz":
        return npz(folder, obs=obs)[0]
    if format == "d4rl":
        return d4rl(folder, observations=now, next_observations=after)[0]
    if format == "lerobot":
        return lerobot(folder, **{"observation.state": now.tolist(), "next.observation.state": after.tolist()})[0]
    found = dicts()
    for e, one in enumerate(found):
        rows = slice(GOOD.start[e], GOOD.start[e + 1])
        one |= {"observations": now[rows], "next_observations": after[rows]}
    (folder / "set.pkl").write_bytes(pickle.dumps(found))
    return folder / "set.pkl"


@pytest.mark.parametrize("format", ["npz", "d4rl", "lerobot", "pickle"])
def test_a_clock_that_float32_stops_is_noted(tmp_path, format):
    path = clocked(tmp_path, format)
    got = load(path)
    said = [n for n in got.meta.notes if n not in GOOD.meta.notes]
    assert got.obs.dtype == np.float32 and len(said) == 1
    assert said[0].startswith("observation dimension 1 is so far from zero") and said[0].endswith(
        "subtract its first value before saving"
    )
    assert format == "pickle" or opened(path, 6).meta == got.meta


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint32])
@pytest.mark.parametrize("format", ["npz", "d4rl", "lerobot", "pickle"])
def test_counts_that_float32_stops_are_noted_too(tmp_path, format, kind):
    counts = np.zeros((len(GOOD.obs), 3), kind)
    counts[:, 1] = 1_000_000_000 + 3 * np.arange(len(counts))
    path = clocked(tmp_path, format, counts)
    got = load(path)
    assert len([n for n in got.meta.notes if n.startswith("observation dimension 1 is so far from zero")]) == 1
    assert format == "pickle" or opened(path, 6).meta == got.meta


def test_float64_that_float32_can_hold_is_not_noted():
    rng = np.random.default_rng(0)
    assert precision_warnings(clock(500.0)) == []  # steps that float32 can tell apart
    assert precision_warnings(clock(0.1).astype(np.float32)) == []
    assert precision_warnings(1000 + np.arange(50)[:, None]) == []  # counts that float32 can tell apart
    assert precision_warnings(rng.normal(size=(50, 3))) == [] and precision_warnings(np.zeros((0, 3))) == []
    resting = np.where(np.arange(50) < 40, 1 + 1e-9 * rng.normal(size=50), np.linspace(0, 1, 50))[:, None]
    constant = 3 + 1e-15 * rng.normal(size=(50, 1))
    assert precision_warnings(np.hstack([resting, constant])) == []
    assert len(precision_warnings(np.hstack([resting, clock(0.1)[:1] + rng.normal(size=(50, 3))]))) == 1
