"""Parquet tables: plain ones with columns of any names, and LeRobot's with the names of openpi and DROID."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import foreign
from support.samples import make

from ssorl.data import load, save
from ssorl.data.formats import open_parts
from ssorl.data.stream import open_stream
from ssorl.data.validate import READ_ALL
from ssorl.utils.errors import DataError

EPS = make(lengths=(4, 6, 3, 12, 5), ended=())
NO_REWARDS = replace(EPS, rew=np.full_like(EPS.rew, np.nan))
STEPS = np.arange(len(EPS.obs))
EPISODE = np.repeat(np.arange(len(EPS)), EPS.lengths + 1)
FRAME = STEPS - np.repeat(EPS.start[:-1] + np.arange(len(EPS)), EPS.lengths + 1)
ACT, REW = foreign.padded(EPS, EPS.act), foreign.padded(EPS, EPS.rew)


def vectors(rows: np.ndarray) -> pa.Array:
    return pa.array(rows.tolist(), pa.list_(pa.float32()))


def lerobot(folder, columns: dict, **info):
    (folder / "meta").mkdir(parents=True)
    (folder / "data" / "chunk-000").mkdir(parents=True)
    (folder / "meta" / "info.json").write_text(json.dumps({"codebase_version": "v2.1", **info}))
    table = pa.table({**columns, "episode_index": EPISODE, "frame_index": FRAME})
    pq.write_table(table, folder / "data" / "chunk-000" / "file-000.parquet")
    return folder


def test_openpi_names_are_known(tmp_path):
    got = load(lerobot(tmp_path / "pi", {"state": vectors(EPS.obs), "actions": vectors(ACT)}))
    assert got.same(NO_REWARDS)
    assert got.meta.state_parts == (("state", 3),) and got.meta.action_parts == (("actions", 2),)


def test_droid_parts_are_not_joined_to_their_whole(tmp_path):
    columns = {
        "observation.state": vectors(EPS.obs),
        "observation.state.gripper_position": EPS.obs[:, 2],
        "observation.state.joint_position": vectors(EPS.obs[:, :2]),
        "action": vectors(ACT),
        "action.gripper_position": ACT[:, 1],
        "reward": REW,
        "discount": np.ones(len(REW), np.float32),
    }
    assert load(lerobot(tmp_path / "droid", columns)).same(EPS)


def test_parts_of_actions_are_joined_where_there_is_no_whole(tmp_path):
    columns = {"observation.state": vectors(EPS.obs), "action.b": ACT[:, 1], "action.a": ACT[:, 0]}
    got = load(lerobot(tmp_path / "parts", columns))
    assert got.same(NO_REWARDS) and got.meta.action_parts == (("action.a", 1), ("action.b", 1))


def test_names_rate_and_robot_are_read(tmp_path):
    features = {
        "observation.a": {"dtype": "float32", "shape": [2], "names": ["pan", "lift"]},
        "observation.b": {"dtype": "float32", "shape": [1], "names": {"motors": ["grip"]}},
        "action": {"dtype": "float32", "shape": [2], "names": None},
    }
    columns = {"observation.a": vectors(EPS.obs[:, :2]), "observation.b": EPS.obs[:, 2], "action": vectors(ACT)}
    meta = load(lerobot(tmp_path / "arm", columns, fps=50, robot_type="so100", features=features)).meta
    assert meta.state_names == ("pan", "lift", "grip") and meta.action_names == ()
    assert meta.fps == 50 and meta.robot == "so100"


@pytest.mark.parametrize("format", ["lerobot", "parquet", "robomimic", "zarr"])
def test_joined_features_are_written_apart(tmp_path, format):
    columns = {"observation.a": vectors(EPS.obs[:, :2]), "observation.b": EPS.obs[:, 2], "action": vectors(ACT)}
    eps = load(lerobot(tmp_path / "arm", columns))
    path = tmp_path / {"robomimic": "out.hdf5", "parquet": "out.parquet"}.get(format, "out")
    save(eps, path, format)
    again = load(path)
    assert again.same(eps) and again.meta.state_parts == (("observation.a", 2), ("observation.b", 1))
    if format in ("lerobot", "parquet"):
        file = path / "data" / "chunk-000" / "file-000.parquet" if format == "lerobot" else path
        assert {"observation.a", "observation.b"} <= set(pq.read_schema(file).names)


NAMES = {
    "known names": ({"state": vectors(EPS.obs), "action": vectors(ACT), "reward": REW, "episode": EPISODE}, {}),
    "a column for each number": (
        {
            **{f"q{i}": EPS.obs[:, i] for i in range(3)},
            **{f"u{i}": ACT[:, i] for i in range(2)},
            "r": REW,
            "run": EPISODE,
        },
        {"state": ["q0", "q1", "q2"], "action": ["u*"], "reward": "r", "episode": "run"},
    ),
    "numbered names": (
        {
            **{f"state_{i}": EPS.obs[:, i] for i in range(3)},
            **{f"action_{i}": ACT[:, i] for i in range(2)},
            "reward": REW,
            "episode": EPISODE.astype(np.float64),
        },
        {},
    ),
    "episodes with names": (
        {
            "state": vectors(EPS.obs),
            "action": vectors(ACT),
            "reward": REW,
            "episode": [f"take {9 - e}" for e in EPISODE],
        },
        {},
    ),
}


@pytest.mark.parametrize("case", NAMES)
def test_a_plain_table_is_read(tmp_path, case):
    columns, choice = NAMES[case]
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    got = load(tmp_path / "log.parquet", **choice)
    assert got.same(EPS) and got.meta.source == str(tmp_path / "log.parquet")
    if case == "a column for each number":
        assert got.meta.state_names == ("q0", "q1", "q2") and got.meta.action_names == ("u0", "u1")


def test_a_plain_table_in_parts(tmp_path):
    columns = NAMES["known names"][0]
    pq.write_table(pa.table(columns), tmp_path / "log.parquet", row_group_size=4)
    stream = open_stream(open_parts(tmp_path / "log.parquet"), READ_ALL, 5)
    parts = [part.eps for part in stream.parts()]
    assert len(parts) > 1 and np.array_equal(np.concatenate([p.obs for p in parts]), EPS.obs)
    pq.write_table(pa.table(NAMES["episodes with names"][0]), tmp_path / "text.parquet")
    with pytest.raises(DataError, match=r"episode holds text, which cannot be read in parts"):
        open_parts(tmp_path / "text.parquet")


def test_in_a_folder_each_file_may_be_a_trajectory(tmp_path):
    for e in range(len(EPS)):
        rows = e == EPISODE
        table = pa.table({"state": vectors(EPS.obs[rows]), "action": vectors(ACT[rows]), "reward": REW[rows]})
        pq.write_table(table, tmp_path / f"run{e}.parquet")
    assert load(tmp_path).same(EPS)
    with pytest.raises(DataError, match=r"no column tells trajectories apart; name one with --episode"):
        load(tmp_path / "run0.parquet")


def test_a_table_of_unknown_names_is_refused_with_its_names(tmp_path):
    pq.write_table(pa.table({"q": EPS.obs[:, 0], "run": EPISODE}), tmp_path / "log.parquet")
    with pytest.raises(DataError, match=r"no column is known as the state; give its columns with --state .*q, run"):
        load(tmp_path / "log.parquet", episode="run")
    with pytest.raises(DataError, match=r"the column q is both state and action"):
        load(tmp_path / "log.parquet", state=["q"], action=["q"], episode="run")


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_csv_table_is_read(tmp_path, delimiter):
    path = foreign.csv_table(tmp_path / "log.csv", EPS, delimiter)
    got = load(path)
    assert got.same(EPS) and got.meta.state_names == ("state_0", "state_1", "state_2")
    assert load(path, state=["state_2", "state_0"], action="action_1").n_obs == 2


def test_empty_cells_are_missing_values(tmp_path):
    path = foreign.csv_table(tmp_path / "log.csv", EPS)
    lines = path.read_text().splitlines()
    for at in (1, 7):
        cells = lines[at].split(",")
        lines[at] = ",".join([*cells[:3], "", " NA", *cells[5:]])
    path.write_text("\ufeff" + "\n".join(lines))  # as Excel begins a file
    got = load(path)
    assert np.flatnonzero(~got.labelled).tolist() == [0, 5]
    assert np.array_equal(got.act[got.labelled], EPS.act[got.labelled])


def test_episodes_of_a_csv_table_may_be_named_and_mixed(tmp_path):
    named = foreign.csv_table(tmp_path / "named.csv", EPS, episode=[f"take {9 - e}" for e in EPISODE])
    assert load(named).same(EPS)
    lines = foreign.csv_table(tmp_path / "log.csv", EPS).read_text().splitlines()
    mixed = sorted(lines[1:], key=lambda line: hash(line.count("-")))  # rows of an episode keep their order
    order = [lines[1:].index(line) for line in mixed]
    (tmp_path / "mixed.csv").write_text("\n".join([lines[0], *mixed]))
    got = load(tmp_path / "mixed.csv")
    rows = np.concatenate([[r for r in order if EPISODE[r] == e] for e in dict.fromkeys(EPISODE[order].tolist())])
    assert np.array_equal(got.obs, EPS.obs[rows])


def test_text_is_left_out_and_truth_values_are_numbers(tmp_path):
    path = foreign.csv_table(tmp_path / "log.csv", EPS, comment=["x"] * len(STEPS), reward=[True, False] * 17 + [True])
    got = load(path)
    assert any("comment was left out" in note for note in got.meta.notes) and set(got.rew.tolist()) == {0, 1}


def test_a_folder_of_csv_files(tmp_path):
    for e in range(12):
        one = EPS[e % 5]
        foreign.csv_table(tmp_path / f"run{e}.csv", one)
        lines = (tmp_path / f"run{e}.csv").read_text().splitlines()
        (tmp_path / f"run{e}.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines))
    got = load(tmp_path)
    assert got.lengths.tolist() == [EPS.lengths[e % 5] for e in range(12)]
    (tmp_path / "run3.csv").write_text("other\n1\n")
    with pytest.raises(DataError, match=r"run3\.csv: has other columns than .*run0\.csv; all files"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("\n", r"does not name each column once"),
        ("state_0,episode\n", r"holds no rows; nothing"),
        ("state_0,state_0\n1,2\n", r"does not name each column once; give"),
        ("state_0,episode\n1,0\n1\n", r"line 3 has 1 cells but the header names 2; repair"),
        ("q,episode\n1,0\n2,0\n3,0\n", r"no column is known as the state; give .*q, episode"),
        ("state_0,q\n1,0\n2,0\n3,0\n", r"no column tells trajectories apart; name one with --episode"),
        ("state_0,episode\n1,0\n2,\n3,0\n", r"column episode has empty rows; number"),
        ("state_0,episode\n1,0\n,0\n3,0\n", r"trajectory 0 has the observation nan at step 1"),
    ],
)
def test_a_csv_table_that_makes_no_sense_is_refused(tmp_path, body, says):
    (tmp_path / "log.csv").write_text(body)
    with pytest.raises(DataError, match=says):
        load(tmp_path / "log.csv")
