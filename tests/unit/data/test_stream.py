"""Streams: reading, splitting, writing and labelling in parts give the same results as with the whole dataset."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.clock import patience
from support.paths import environment
from support.samples import assert_same, bits, make, place, poke
from support.systems import TINY, hide, linear

from ssorl.data import apply, concat, coupled, decoupled, load, load_pair, save, truth, wide
from ssorl.data import stream as data_stream
from ssorl.data.formats import open_parts, writer
from ssorl.data.stream import chain, exceeds_memory, header_of, open_stream, part_bounds
from ssorl.data.validate import ReadOptions
from ssorl.idm import stream as idm_stream
from ssorl.idm.fill import fill
from ssorl.idm.statistics import Moments
from ssorl.utils.display import MAX_REPR
from ssorl.utils.errors import DataError

FORMATS = ("npz", "d4rl", "minari", "lerobot")
pytestmark = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")


@pytest.fixture(scope="module")
def eps():
    """Nine trajectories: one has no actions, one lacks an action."""
    full = make(lengths=(4, 6, 3, 5, 9, 2, 4, 7, 3), ended=(1, 3, 7))
    return hide(full, np.r_[4:10, 14])


def opened(path, size, min_length=0, format=None, actions=True):
    options = ReadOptions(min_length, actions)
    return open_stream(open_parts(path, format, options), options, size)


def concatenated(stream):
    return concat([part.eps for part in stream.parts()])


# --- reading


@pytest.mark.parametrize("size", [1, 8, 1000])
@pytest.mark.parametrize("format", FORMATS)
def test_the_parts_of_a_stream_equal_the_loaded_file(tmp_path, eps, format, size):
    path = place(tmp_path, format)
    save(eps, path, format)
    stream, whole = opened(path, size), load(path)
    assert_same(concatenated(stream), whole)
    assert stream.meta == whole.meta and len(stream) == 9 and stream.n_steps == 43
    assert np.array_equal(stream.start, whole.start)
    assert np.allclose(stream.returns, whole.returns, rtol=1e-12)
    assert np.array_equal(stream.labelled_share, whole.labelled_share)
    n = sum(1 for _ in stream.parts())
    assert n == {1: 9, 1000: 1}.get(size, n) and (size != 8 or 3 <= n < 9)
    firsts = [part.first for part in stream.parts()]
    assert firsts == np.cumsum([0, *(len(p.eps) for p in stream.parts())])[:-1].tolist()


@pytest.mark.parametrize("format", FORMATS)
def test_short_trajectories_are_dropped_with_a_note(tmp_path, eps, format):
    path = place(tmp_path, format)
    save(eps, path, format)
    stream, whole = opened(path, 5, min_length=4), load(path, min_length=4)
    assert_same(concatenated(stream), whole)
    assert stream.meta == whole.meta and "3 trajectories shorter than 4" in stream.meta.notes[-1]
    with pytest.raises(DataError, match="no trajectory has 10 steps; lower --min-length"):
        opened(path, 5, min_length=10)


@pytest.mark.parametrize("format", ["npz", "d4rl"])
@pytest.mark.parametrize("largest", [0.5, 1.00005, 3.0])
def test_the_action_range_is_inferred_from_all_parts(tmp_path, eps, format, largest):
    """A single part may imply another range."""
    path, unknown = place(tmp_path, format), replace(eps.meta, act_low=(), act_high=(), act_range="assumed")
    save(replace(poke(eps, "act", (40, 1), largest), meta=unknown), path, format)
    stream, whole = opened(path, 6), load(path)
    assert_same(concatenated(stream), whole)
    assert stream.meta == whole.meta and stream.meta.act_range == ("inferred" if largest > 2 else "assumed")


@pytest.mark.parametrize("more", [{}, {"timeouts": None}, {"next_observations": None}, {"terminals": None}])
def test_d4rl_files_may_lack_optional_arrays(tmp_path, monkeypatch, eps, more):
    monkeypatch.setattr("ssorl.data.formats.d4rl.CHUNK", 7)
    save(eps, tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        for name in more:
            del file[name]
        if "timeouts" in more:  # then the horizon ends trajectories; some exceed this one
            monkeypatch.setattr("ssorl.data.formats.d4rl.task_of", lambda _: "hopper")
            monkeypatch.setattr("ssorl.data.formats.d4rl.SCORES", {"hopper": Horizon()})
    stream, whole = opened(tmp_path / "a.hdf5", 6, min_length=2), load(tmp_path / "a.hdf5", min_length=2)
    assert_same(concatenated(stream), whole)
    assert stream.meta == whole.meta


class Horizon:
    horizon, random, expert = 5, 0.0, 1.0


def test_lerobot_folders_of_other_writers(tmp_path, eps):
    """One file per episode and no next observation can be read in parts; episodes out of order cannot."""
    save(eps, tmp_path / "a", "lerobot")
    table = pq.read_table(tmp_path / "a" / "data").drop_columns(["next.observation.state"])
    episode = table["episode_index"].to_numpy()
    folder = tmp_path / "a" / "data" / "chunk-000"
    (folder / "file-000.parquet").unlink()
    for e in range(9):
        pq.write_table(table.filter(pa.array(episode == e)), folder / f"episode_{e:06d}.parquet")
    stream, whole = opened(tmp_path / "a", 8, min_length=2), load(tmp_path / "a", min_length=2)
    assert_same(concatenated(stream), whole)
    assert stream.meta == whole.meta and "the last step of 9 trajectories" in stream.meta.notes[-2]
    (folder / "episode_000003.parquet").rename(folder / "later.parquet")
    assert len(load(tmp_path / "a", min_length=2)) == 8
    with pytest.raises(DataError, match="episode 3 comes after episode 8, so the folder cannot be read in parts"):
        opened(tmp_path / "a", 8, min_length=2)


@pytest.mark.parametrize("format", FORMATS)
def test_errors_have_the_same_message_as_with_the_whole_file(tmp_path, eps, format):
    path = place(tmp_path, format)
    save(poke(eps, "obs", (46, 2), np.inf), path, format)
    with pytest.raises(DataError) as whole:
        load(path)
    with pytest.raises(DataError) as part:
        opened(path, 6)
    assert str(part.value) == str(whole.value) and "trajectory 7 has the observation inf at step 6" in str(part.value)


def test_data_that_cannot_be_read_in_parts_raises(tmp_path, eps):
    save(eps, tmp_path / "a.pkl")
    with pytest.raises(DataError, match="its format can only be read whole"):
        open_parts(tmp_path / "a.pkl")
    with pytest.raises(DataError, match="not kept in a file"):
        open_parts("builtin/pointmass")
    np.savez(tmp_path / "f.npz", **{**arrays_of(eps), "obs": np.asfortranarray(eps.obs)})
    assert load(tmp_path / "f.npz").obs.tobytes() == eps.obs.tobytes()
    with pytest.raises(DataError, match="obs is stored column by column"):
        opened(tmp_path / "f.npz", 6)
    np.savez(tmp_path / "g.npz", **{**arrays_of(eps), "obs": eps.obs[:-1]})
    with pytest.raises(DataError, match="51 rows of obs where 52 are due"):
        opened(tmp_path / "g.npz", 6)


def arrays_of(eps):
    return {name: getattr(eps, name) for name in ("obs", "act", "rew", "terminated", "start")}


@pytest.mark.parametrize("format", FORMATS)
def test_damaged_files_raise_the_same_errors_in_parts_as_whole(tmp_path, format, campaign):
    """The files are read in a subprocess, as in test_fuzz.py."""
    count = campaign.count(3000)
    command = [sys.executable, "-m", "support.stream_worker", format, str(count), str(tmp_path)]
    done = subprocess.run(
        command,
        env=environment(),
        capture_output=True,
        text=True,
        errors="backslashreplace",
        timeout=patience(600 + count),
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{lines[-1:]}\n{done.stderr[-3000:]}"
    assert not [line[:2000] for line in lines if " BAD " in line]
    answers = [line.split()[3] for line in lines]
    assert len(answers) == count and {*answers} == {"refused", "loaded"}


def test_part_bounds_respect_the_size_or_hold_one_trajectory():
    assert list(part_bounds(np.array([0, 3, 5, 20, 22, 23]), 5)) == [(0, 2), (2, 3), (3, 5)]
    assert list(part_bounds(np.array([0, 3, 5]), 100)) == [(0, 2)]


def test_exceeds_memory_compares_files_with_the_free_memory(tmp_path, monkeypatch, eps):
    save(eps, tmp_path / "a", "lerobot")
    size = sum(f.stat().st_size for f in (tmp_path / "a").rglob("*") if f.is_file())
    assert not exceeds_memory(tmp_path / "a")
    monkeypatch.setattr(data_stream, "free_memory", lambda: 8.0 * size)
    assert not exceeds_memory(tmp_path / "a")
    monkeypatch.setattr(data_stream, "free_memory", lambda: 8.0 * size - 1)
    assert exceeds_memory(tmp_path / "a")


def test_streams_have_a_short_repr_and_a_table(tmp_path, eps):
    save(eps, tmp_path / "a.npz")
    stream = opened(tmp_path / "a.npz", 8)
    assert "trajectories=9, steps=43" in repr(stream) and len(repr(stream)) <= MAX_REPR
    assert "<td" in stream._repr_html_()


# --- splits and pairs


@pytest.mark.parametrize("known", ["declared", "inferred"])
@pytest.mark.parametrize("draw", [coupled, decoupled, wide])
def test_a_split_of_a_stream_equals_the_split_in_memory(tmp_path, draw, known):
    full = make(lengths=(4, 6, 3, 5, 9, 2, 4, 7, 3), low=-3.0, high=3.0)
    if known == "inferred":
        full = replace(full, meta=replace(full.meta, act_low=(), act_high=(), act_range="inferred"))
    save(full, tmp_path / "a.npz")
    stream, whole = opened(tmp_path / "a.npz", 8), load(tmp_path / "a.npz")
    sizes = {coupled: (0.3, 50), decoupled: ("low", 0.2, "high", 0.4), wide: (12, 4)}[draw]
    split = draw(stream, *sizes, seed=1)
    assert vars(split).keys() == vars(draw(whole, *sizes, seed=1)).keys()
    assert split.fingerprint == draw(whole, *sizes, seed=1).fingerprint
    assert np.array_equal(split.labelled, draw(whole, *sizes, seed=1).labelled)
    members = stream.split(split)
    got = list(members.parts())
    want, hidden = apply(split, whole), truth(split, whole)
    assert_same(concat([p.eps for p in got]), want)
    assert members.meta == want.meta
    assert bits(np.concatenate([p.truth for p in got])) == bits(hidden)
    assert np.array_equal(members.labelled_share, want.labelled_share)
    assert np.array_equal(members.start, want.start)
    assert [p.first for p in got] == np.cumsum([0, *(len(p.eps) for p in got)])[:-1].tolist()


def test_chain_equals_load_pair(tmp_path, eps):
    save(make(lengths=(5, 4), seed=1, ended=()), tmp_path / "a.hdf5")
    save(eps, tmp_path / "b.npz")
    a, b = opened(tmp_path / "a.hdf5", 5), opened(tmp_path / "b.npz", 8, actions=False)
    both, whole = chain(a, b), load_pair(tmp_path / "a.hdf5", tmp_path / "b.npz")
    assert_same(concatenated(both), whole)
    assert both.meta == whole.meta and both.n_labelled.tolist() == [5, 4] + [0] * 9
    with pytest.raises(DataError, match="swap the two"):
        chain(b, a)
    save(make(n_obs=4), tmp_path / "c.npz")
    with pytest.raises(DataError, match=r"states of size 3 but .* of size 4"):
        chain(a, opened(tmp_path / "c.npz", 8))


# --- writing


@pytest.mark.parametrize("format", FORMATS)
def test_writing_in_parts_gives_the_same_file(tmp_path, eps, format):
    extras = {"proxy": np.arange(43) % 2 == 0, "act_std": np.random.default_rng(0).random((43, 2), np.float32)}
    whole, in_parts = place(tmp_path, format, "one"), place(tmp_path, format, "two")
    save(eps, whole, format, extras=extras)
    pieces = [
        (eps[a:b], {k: v[eps.start[a] : eps.start[b]] for k, v in extras.items()}) for a, b in part_bounds(eps.start, 9)
    ]
    writer(in_parts, format).save_parts(header_of(eps), iter(pieces), in_parts)
    assert len(pieces) > 4
    assert_same(load(in_parts), load(whole))
    if format == "npz":
        with np.load(in_parts) as got, np.load(whole) as want:
            assert set(got) == set(want) and all(np.array_equal(got[k], want[k], equal_nan=True) for k in want)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["one.npz", "two.npz"]
    if format == "lerobot":
        got, want = (pq.read_table(p / "data") for p in (in_parts, whole))
        actions = [np.array(table["action"].to_pylist(), np.float32) for table in (got, want)]  # NaN equals no NaN
        np.testing.assert_array_equal(*actions)
        assert got.drop_columns("action").equals(want.drop_columns("action")) and got.schema.equals(want.schema)
        assert len(list((in_parts / "data").rglob("*.parquet"))) == len(pieces)
        assert (in_parts / "meta" / "info.json").read_text() == (whole / "meta" / "info.json").read_text()
    if format == "d4rl":
        with h5py.File(in_parts) as got, h5py.File(whole) as want:
            assert np.array_equal(got["infos/act_std"], want["infos/act_std"]) and got.keys() == want.keys()
    if format == "minari":
        with h5py.File(in_parts / "data" / "main_data.hdf5") as file:
            assert np.array_equal(file["episode_8/infos/act_std"][1:], extras["act_std"][40:])


# --- labels


def test_moments_of_parts_equal_those_of_all_rows():
    rng = np.random.default_rng(0)
    rows = (1e3 + rng.standard_normal((1000, 3)) * [1, 1e-3, 50]).astype(np.float32)
    moments = Moments()
    for part in np.split(rows, [1, 17, 400]):
        moments.add(part)
    np.testing.assert_allclose(moments.mean, rows.mean(0, dtype=np.float64), rtol=1e-14)
    np.testing.assert_allclose(moments.std, rows.std(0, dtype=np.float64), rtol=1e-10)


CONFIG = replace(TINY, ranks=True, differences=True, members=2, steps=100)


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    """A file with missing actions, the full data, and labels from memory; SAMPLE selects every second state."""
    full = linear(n=24, t=20)
    gaps = hide(full, (np.arange(480) >= 240) | (np.arange(480) % 7 == 3))
    path = tmp_path_factory.mktemp("stream") / "gaps.hdf5"
    save(gaps, path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ssorl.idm.inputs.SAMPLE", 300)
        return path, full, fill(load(path), CONFIG, seed=1)


def test_labels_of_a_stream_equal_labels_from_memory(system, monkeypatch):
    path, _, want = system
    monkeypatch.setattr("ssorl.idm.inputs.SAMPLE", 300)
    events = []
    done = fill(opened(path, 50), CONFIG, 1, progress=lambda *event: events.append(event))
    parts = list(done.parts())
    assert len(parts) == 12
    assert done.about.meta == want.eps.meta and done.about[1:] == (24, 480, 2, 2)
    got = concat([eps for eps, _ in parts])
    known = ~want.labels.proxy
    assert got.act[known].tobytes() == want.eps.act[known].tobytes()
    assert_same(replace(got, act=want.eps.act), want.eps)
    np.testing.assert_allclose(got.act, want.eps.act, atol=1e-6)
    extras = {k: np.concatenate([e[k] for _, e in parts]) for k in want.extras}
    np.testing.assert_allclose(extras["act_std"], want.labels.std, atol=1e-6)
    assert np.array_equal(extras["proxy"], want.labels.proxy) and np.array_equal(extras["unseen"], want.labels.unseen)
    a, b = done.ready.idm, want.ready.idm
    assert np.array_equal(a.inputs.knots, b.inputs.knots) and np.array_equal(a.diff_std, b.diff_std)
    assert np.array_equal(a.validation, b.validation) and done.ready.taught == want.ready.taught
    report = flat(done.report)
    assert report.keys() == flat(want.report).keys()
    for name, value in flat(want.report).items():
        assert report[name] == (pytest.approx(value, rel=1e-5, abs=1e-9) if type(value) is float else value), name
    totals = {name: sum(n for w, n, _ in events if w == name) for name, _, _ in events}
    assert totals == {"reading": 2 * 480, "fitting": 200, "labelling": 480}


def flat(report, name="") -> dict:
    if isinstance(report, (dict, list)):
        items = report.items() if isinstance(report, dict) else enumerate(report)
        return {k: v for key, value in items for k, v in flat(value, f"{name}/{key}").items()}
    return {name: report}


def test_label_errors_of_a_stream_equal_those_from_memory(system, tmp_path):
    _, full, fitted = system
    save(full, tmp_path / "full.npz")
    split = coupled(full, 0.5, 100, seed=3)
    whole = load(tmp_path / "full.npz")
    want = fill(apply(split, whole), fitted.ready, truth=truth(split, whole))
    done = fill(opened(tmp_path / "full.npz", 50).split(split), fitted.ready)
    list(done.parts())
    report = flat(done.report)
    for name, value in flat(want.report).items():
        assert report[name] == (pytest.approx(value, rel=1e-4, abs=1e-9) if type(value) is float else value), name
    assert done.report["truth"]["mse"] > 0 and done.report["coverage"]["truth"] is not None


def test_labelled_trajectories_are_subsampled_beyond_a_limit(system, monkeypatch):
    path, _, _ = system
    monkeypatch.setattr(idm_stream, "MAX_FIT_STEPS", 100)
    done = fill(opened(path, 50), replace(CONFIG, steps=20), 1)
    assert done.ready.taught.trajectories == 5 and 80 <= done.ready.taught.steps <= 100
    assert set(done.ready.idm.validation) <= set(range(12))


def test_errors_of_many_proxies_are_subsampled(system, tmp_path, monkeypatch):
    _, full, fitted = system
    save(full, tmp_path / "full.npz")
    split = coupled(full, 0.5, 100, seed=3)
    monkeypatch.setattr("ssorl.idm.quality.RANKED", 80)  # of 240, so every third
    done = fill(opened(tmp_path / "full.npz", 50).split(split), fitted.ready)
    parts = list(done.parts())
    error = np.concatenate([p.act for p, _ in parts]) - full.act
    size = (error[np.concatenate([e["proxy"] for _, e in parts])] ** 2).mean(1)[::3]
    assert np.concatenate(done.tally.sizes) == pytest.approx(size, rel=1e-4)


def test_streams_without_missing_or_without_known_actions_raise(system, tmp_path):
    _, full, _ = system
    save(full, tmp_path / "full.npz")
    save(hide(full, slice(None)), tmp_path / "none.npz")
    with pytest.raises(DataError, match="every step has an action already"):
        fill(opened(tmp_path / "full.npz", 50), CONFIG)
    with pytest.raises(DataError, match="no step has an action"):
        fill(opened(tmp_path / "none.npz", 50), CONFIG)
