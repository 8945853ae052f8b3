"""Readers of robomimic, ALOHA, OGBench and Zarr files: what they find, and how a column mapping changes it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import foreign
from support.samples import make

from ssorl.cli import main
from ssorl.data import Episodes, load, load_pair
from ssorl.data.formats import open_parts
from ssorl.data.stream import open_stream
from ssorl.data.validate import READ_ALL
from ssorl.utils.errors import DataError

EPS = make(lengths=(4, 6, 3, 12, 5), ended=(1, 3))
NO_REWARDS = replace(EPS, rew=np.full_like(EPS.rew, np.nan), terminated=np.zeros_like(EPS.terminated))


def order(eps: Episodes, *dims: int) -> Episodes:
    """The same with the numbers of a state in another order."""
    return replace(eps, obs=eps.obs[:, list(dims)])


WRITERS = {
    "robomimic": (lambda f: foreign.robomimic(f / "set.hdf5", EPS), order(EPS, 1, 2, 0)),
    "robomimic without next_obs": (
        lambda f: foreign.robomimic(f / "set.hdf5", EPS, next_obs=False),
        replace(order(EPS, 1, 2, 0), terminated=NO_REWARDS.terminated),
    ),
    "robomimic without rewards": (
        lambda f: foreign.robomimic(f / "set.hdf5", EPS, rewards=False),
        replace(order(EPS, 1, 2, 0), rew=NO_REWARDS.rew),
    ),
    "aloha": (lambda f: foreign.aloha(f / "set", EPS), NO_REWARDS),
    "ogbench": (lambda f: foreign.ogbench(f / "cube-single-play-v0.npz", EPS), NO_REWARDS),
    "zarr 2": (lambda f: foreign.zarr_store(f / "set.zarr", EPS), NO_REWARDS),
    "zarr 3": (lambda f: foreign.zarr_store(f / "set.zarr", EPS, 3), NO_REWARDS),
    "zarr 2, zipped": (lambda f: foreign.zarr_store(f / "set.zarr.zip", EPS, zipped=True), NO_REWARDS),
    "zarr 3, zipped": (lambda f: foreign.zarr_store(f / "set.zip", EPS, 3, zipped=True), NO_REWARDS),
}


@pytest.mark.parametrize("case", WRITERS)
def test_a_file_is_recognised_and_read(tmp_path, case):
    write, want = WRITERS[case]
    path = write(tmp_path)
    got = load(path)
    assert got.same(want) and load(path, case.split()[0].rstrip(",")).same(want)
    assert got.meta.source == str(path) and got.meta.act_range == "assumed"
    assert not load(path, actions=False).labelled.any()
    assert load(path, min_length=5).same(want[[1, 3, 4]])


@pytest.mark.parametrize("case", [c for c in WRITERS if c != "ogbench"])
def test_parts_are_the_whole(tmp_path, case):
    write, want = WRITERS[case]
    path = write(tmp_path)
    for size in (1, 9, 1000):
        stream = open_stream(open_parts(path, None, READ_ALL), READ_ALL, size)
        parts = [part.eps for part in stream.parts()]
        assert np.array_equal(np.concatenate([p.obs for p in parts]), want.obs)
        assert np.array_equal(np.concatenate([p.act for p in parts]), want.act, equal_nan=True)
        assert stream.meta.notes == load(path).meta.notes


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("robomimic", (("object", 2), ("robot0_eef_pos", 1))),
        ("aloha", (("qpos", 2), ("qvel", 1))),
        ("ogbench", (("observations", 3),)),
        ("zarr 2", (("agent_pos", 1), ("block", 2))),
    ],
)
def test_a_joined_state_remembers_its_parts(tmp_path, case, parts):
    meta = load(WRITERS[case][0](tmp_path)).meta
    assert meta.state_parts == parts
    assert [size for _, size in meta.action_parts] == [2]


@pytest.mark.parametrize("case", ["robomimic", "aloha", "zarr 2", "zarr 3, zipped"])
def test_images_are_left_out_with_a_note(tmp_path, case):
    notes = load(WRITERS[case][0](tmp_path)).meta.notes
    assert sum("left out: only numbers and vectors" in note for note in notes) == 1


@pytest.mark.parametrize(
    ("case", "state", "dims"),
    [
        ("robomimic", ["robot0_eef_pos", "object"], (0, 1, 2)),
        ("robomimic", "object", (1, 2)),
        ("aloha", ["qvel", "qpos"], (2, 0, 1)),
        ("aloha", "q*", (0, 1, 2)),
        ("ogbench", ["qpos"], (0, 1)),
        ("zarr 2", ["block", "agent_pos"], (1, 2, 0)),
    ],
)
def test_the_caller_chooses_the_state(tmp_path, case, state, dims):
    got = load(WRITERS[case][0](tmp_path), state=state)
    assert np.array_equal(got.obs, EPS.obs[:, dims])


def test_zarr_reads_what_was_asked_for_even_as_a_table(tmp_path):
    got = load(foreign.zarr_store(tmp_path / "set.zarr", EPS), state=["agent_pos", "img"])
    assert got.n_obs == 1 + 12


def test_demonstrations_that_lost_their_actions_are_unlabelled(tmp_path):
    got = load(foreign.robomimic(tmp_path / "set.hdf5", EPS, drop=(0, 2)))
    assert got.labelled_share.tolist() == [0, 1, 0, 1, 1]
    assert not load(foreign.robomimic(tmp_path / "none.hdf5", EPS, drop=(0, 1, 2, 3, 4))).labelled.any()


def test_demonstrations_are_in_the_order_of_their_numbers(tmp_path):
    eps = make(lengths=(3,) * 12, ended=())
    assert np.array_equal(load(foreign.robomimic(tmp_path / "set.hdf5", eps)).act, eps.act)
    assert np.array_equal(load(foreign.aloha(tmp_path / "set", eps)).act, eps.act)


def test_the_validation_set_of_ogbench_is_a_set_of_its_own(tmp_path):
    path = foreign.ogbench(tmp_path / "cube-v0.npz", EPS)
    foreign.ogbench(tmp_path / "cube-v0-val.npz", EPS[:2])
    assert load(path).same(NO_REWARDS) and load(tmp_path / "cube-v0-val.npz").same(NO_REWARDS[:2])
    assert any("cube-v0-val.npz, was not read" in note for note in load(path).meta.notes)


def test_a_column_that_is_not_there_gets_a_hint(tmp_path):
    path = foreign.aloha(tmp_path / "set", EPS)
    with pytest.raises(DataError, match=r"--state qpoz: no column of numbers has that name; did you mean qpos\?"):
        load(path, state=["qpoz"])
    with pytest.raises(DataError, match=r"each file is an episode; leave --episode out"):
        load(path, episode="qpos")


def test_formats_with_fixed_names_take_no_columns(tmp_path):
    from ssorl.data import save

    save(EPS, tmp_path / "set.npz")
    for name in (tmp_path / "set.npz", "builtin/pointmass"):
        with pytest.raises(DataError, match=r"--state has no effect.*leave it out"):
            load(name, state=["x"])


def test_the_command_line_chooses_columns_too(tmp_path, capsys):
    path = foreign.robomimic(tmp_path / "set.hdf5", EPS)
    main(["data", "show", str(path), "--state", "robot0_eef_pos", "--json"])
    assert json.loads(capsys.readouterr().out)["observation_size"] == 1
    main(["data", "convert", str(path), str(tmp_path / "out.npz"), "--state", "robot0_eef_pos", "object"])
    assert load(tmp_path / "out.npz").same(EPS)


def test_of_a_pair_the_unlabelled_file_may_lack_the_action(tmp_path):
    known = foreign.robomimic(tmp_path / "known.hdf5", EPS)
    bare = foreign.robomimic(tmp_path / "bare.hdf5", EPS, drop=(0, 1, 2, 3, 4))
    both = load_pair(known, bare, state=["object"], action=["actions"])
    assert both.labelled_share.tolist() == [1] * 5 + [0] * 5


@pytest.mark.parametrize(
    ("name", "key"), [("zarr-v2.zarr.zip", "state"), ("zarr-v3.zip", "state"), ("lerobot-v3", "observation.state")]
)
def test_files_that_the_packages_wrote_themselves(name, key):
    """scripts/foreign_fixtures.py wrote them, with zarr 2.18, zarr 3.1 and lerobot 0.4.4."""
    got = load(Path(__file__).parents[3] / "fixtures" / name)
    assert got.lengths.tolist() == [6, 8, 5, 7] and got.meta.state_parts == ((key, 4),)
    rng, states, acts = np.random.default_rng(0), [], []
    for n in (7, 9, 6, 8):
        act = rng.uniform(-1, 1, (n, 2)).astype(np.float32)
        speed = np.cumsum(act, axis=0) * 0.1
        states.append(np.concatenate([np.cumsum(speed, axis=0) * 0.1, speed], axis=1))
        acts.append(act[:-1])
    np.testing.assert_allclose(got.obs, np.concatenate(states), rtol=1e-6)
    assert np.array_equal(got.act, np.concatenate(acts))


def test_zarr_objects_are_refused_even_if_they_are_asked_for(tmp_path):
    path = foreign.zarr_store(tmp_path / "set.zarr", EPS)
    file = path / "data" / "block" / ".zarray"
    for change, says in (
        ({"dtype": "|O"}, r"block holds \|O and only numbers"),
        ({"filters": [{"id": "pickle"}]}, "codec pickle"),
    ):
        about = json.loads(file.read_text())
        file.write_text(json.dumps(about | change))
        with pytest.raises(DataError, match=says):
            load(path, state=["block"])
        file.write_text(json.dumps(about))
