"""Bad input: one sentence that names the file, the trajectory, the value and the cure; exit code 2; nothing written."""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import sys

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from support.refusals import CURE, GOOD, Refusals, d4rl, lerobot, listing, minari, minari_meta, npz, pickled
from support.samples import FORMATS, make, place, poke

from ssorl.cli import main
from ssorl.data import Episodes, Split, coupled, decoupled, load, save, wide
from ssorl.utils.errors import DataError, SsorlError

NAN, INF = np.nan, np.inf
BAD = Refusals()
bad = BAD.case


def in_every_format(name: str, eps: Episodes, *says: str, but: tuple[str, ...] = ()) -> None:
    """The same bad trajectories, which `save` writes as they are, through every reader."""
    for format in (f for f in FORMATS if f not in but):

        def write(folder, format=format):
            save(eps, place(folder, format), format)
            return [place(folder, format)]

        bad(f"{format}: {name}", r"set", *says)(write)


# --- what every format can hold. Trajectories of 4, 6, 3 and 5 steps; state t of trajectory e is row start[e] + e + t.

in_every_format(
    "NaN state", poke(make(), "obs", (4 + 1 + 2, 1), NAN), "trajectory 1 .*nan at step 2, dimension 1", "repair"
)
in_every_format("infinite last state", poke(make(), "obs", (-1, 0), -INF), "trajectory 3 .*-inf at step 5", "repair")
in_every_format("NaN reward", poke(make(), "rew", 4 + 5, NAN), "trajectory 1 .*reward nan at step 5", "repair")
in_every_format("infinite reward", poke(make(), "rew", 0, INF), "trajectory 0 .*reward inf at step 0", "repair")
in_every_format(
    "action out of range",
    poke(make(low=0, high=5), "act", (13, 1), 5.01),
    r"trajectory 3 has the action 5\.01 at step 0, dimension 1, outside \[0, 5\]; correct it",
)
in_every_format(
    "action below range", poke(make(), "act", (12, 0), -1.5), r"trajectory 2 .*-1\.5 at step 2", r"\[-1, 1\]"
)
in_every_format("infinite action", poke(make(), "act", (2, 0), INF), "trajectory 0 .*inf at step 2", "correct it|NaN")
in_every_format(
    "half an action", poke(make(), "act", (5, 1), NAN), "trajectory 1 has only part of its action at step 1; give"
)
in_every_format(
    "half an action, no range declared",
    poke(make(act_low=(), act_high=(), act_range="assumed"), "act", (5, 1), NAN),
    "trajectory 1 has only part of its action at step 1; give",
    but=("minari",),  # always declares one
)
in_every_format(
    "a trajectory of one step", make((4, 1, 3), ended=(1,)), r"trajectory 1 has 1 step.*at least 2.*--min-length 2"
)
in_every_format(
    "continues after it terminated",
    poke(make(), "terminated", 4 + 2, True),
    "trajectory 1 continues after it terminated at step 2; cut it there",
    but=("d4rl", "robomimic", "zarr"),  # where a terminal ends a trajectory, or only that of the last step is stored
)


# --- not the format claimed; empty; damaged

for claimed in FORMATS:
    for actual in FORMATS:
        if (actual, claimed) == ("parquet", "lerobot"):  # the columns that it writes are openpi's
            continue

        @bad(f"{actual} claimed to be {claimed}", "set", CURE) if actual != claimed else (lambda f: f)
        def _(folder, claimed=claimed, actual=actual):
            save(make(), place(folder, actual), actual)
            return [place(folder, actual), "--format", claimed]

    @bad(f"text claimed to be {claimed}", r"notes\.txt", CURE)
    def _(folder, claimed=claimed):
        (folder / "notes.txt").write_text("dear diary\n" * 100)
        return [folder / "notes.txt", "--format", claimed]

    @bad(f"an empty file claimed to be {claimed}", "empty", CURE)
    def _(folder, claimed=claimed):
        (folder / "empty").touch()
        return [folder / "empty", "--format", claimed]


@bad("text", r"notes\.txt: is in none of the formats .*npz, .*d4rl, minari, lerobot, parquet, csv, pickle; convert it")
def _(folder):
    (folder / "notes.txt").write_text("dear diary")
    return [folder / "notes.txt"]


@bad("a folder of nothing", r"none of the formats", CURE)
def _(folder):
    (folder / "sub").mkdir()
    return [folder / "sub"]


for suffix in (".npz", ".hdf5", ".pkl", ".parquet", ".dat"):

    @bad(f"an empty {suffix}", rf"set\{suffix}: is empty; nothing can be learnt")
    def _(folder, suffix=suffix):
        (folder / f"set{suffix}").touch()
        return [folder / f"set{suffix}"]


def empty_arrays(n_obs=3) -> dict:
    return {"obs": np.zeros((0, n_obs)), "rew": np.zeros(0), "act": np.zeros((0, 2)), "start": np.zeros(1, int)}


@bad("npz: no trajectories", r"set\.npz: holds no trajectories; nothing can be learnt")
def _(folder):
    np.savez(folder / "set.npz", **empty_arrays())
    return [folder / "set.npz"]


@bad("d4rl: no steps", r"set\.hdf5: .*nothing can be learnt")
def _(folder):
    with h5py.File(folder / "set.hdf5", "w") as file:
        file["observations"], file["rewards"], file["actions"] = np.zeros((0, 3)), np.zeros(0), np.zeros((0, 2))
    return [folder / "set.hdf5"]


@bad("pickle: no trajectories", r"set\.pkl: holds no trajectories")
def _(folder):
    (folder / "set.pkl").write_bytes(pickle.dumps([]))
    return [folder / "set.pkl"]


@bad("minari: no trajectories", r"set-v0: holds no trajectories")
def _(folder):
    return minari_meta(folder, total_episodes=0)


@bad("lerobot: no frames", r"set: holds no frames")
def _(folder):
    save(make(), folder / "set", "lerobot")
    file = folder / "set" / "data" / "chunk-000" / "file-000.parquet"
    pq.write_table(pq.read_table(file).slice(0, 0), file)
    return [folder / "set"]


@bad("lerobot: no file", r"set: has no \.parquet file")
def _(folder):
    save(make(), folder / "set", "lerobot")
    (folder / "set" / "data" / "chunk-000" / "file-000.parquet").unlink()
    return [folder / "set"]


for share in (0.02, 0.3, 0.6, 0.9, 0.999):
    for format in ("npz", "d4rl", "pickle"):

        @bad(f"{format}: cut at {share:.1%}", "set", "fetch it again|save it again|empty", CURE)
        def _(folder, share=share, format=format):
            path = place(folder, format)
            save(make(), path, format)
            raw = path.read_bytes()
            path.write_bytes(raw[: int(share * len(raw))])
            return [path, "--format", format]

    @bad(f"minari: cut at {share:.1%}", "set", "fetch it again")
    def _(folder, share=share):
        save(make(), folder / "set-v0", "minari")
        os.truncate(folder / "set-v0" / "data" / "main_data.hdf5", int(share * 20000))
        return [folder / "set-v0"]

    @bad(f"lerobot: cut at {share:.1%}", r"file-000\.parquet", "fetch it again")
    def _(folder, share=share):
        save(make(), folder / "set", "lerobot")
        file = folder / "set" / "data" / "chunk-000" / "file-000.parquet"
        os.truncate(file, int(share * file.stat().st_size))
        return [folder / "set"]


@bad("d4rl: a damaged block", r"set\.hdf5: cannot be read as a D4RL HDF5 file", "fetch it again")
def _(folder):
    path = folder / "set.hdf5"
    save(make(), path)
    with h5py.File(path) as file:
        at = file["rewards"].id.get_chunk_info(0).byte_offset
    raw = bytearray(path.read_bytes())
    raw[at + 4 : at + 24] = b"\xaa" * 20
    path.write_bytes(raw)
    return [path]


# --- arrays of different lengths, dimensions and kinds


def number(where: int, value: float, shape: tuple[int, ...]) -> np.ndarray:
    """Zeros with one value among them."""
    array = np.zeros(shape)
    array.flat[where] = value
    return array


# What is changed in a good file of 18 steps and 22 states, and what the sentence says of it.
NPZ = {
    "fewer rewards": ({"rew": GOOD.rew[1:]}, r"`start` must rise from 0 to the number of steps, 17,.* to 18\)"),
    "fewer actions": ({"act": GOOD.act[1:]}, r"17 actions where 18 are expected; the arrays must be equally long"),
    "fewer states": ({"obs": GOOD.obs[:18]}, r"18 observations where 22 are expected.*one more than steps"),
    "fewer terminals": ({"terminated": GOOD.terminated[:2]}, r"2 terminals where 18 are expected"),
    "rewards in columns": ({"rew": np.ones((18, 2))}, r"rewards have shape \(18, 2\).*give one number"),
    "rewards in one column": ({"rew": np.ones((18, 1))}, r"rewards have shape \(18, 1\)"),
    "one reward": ({"rew": np.float32(1)}, r"cannot be read"),
    "terminals in columns": ({"terminated": np.zeros((18, 2))}, r"terminals \(18, 2\)"),
    "flat states": ({"obs": GOOD.obs[:, 0]}, r"observations have shape \(22,\); flatten"),
    "image states": ({"obs": np.zeros((22, 4, 4))}, r"observations have shape \(22, 4, 4\).*images"),
    "states of no size": ({"obs": np.zeros((22, 0))}, r"observations have shape \(22, 0\)"),
    "flat actions": ({"act": GOOD.act[:, 0]}, r"actions have shape \(18,\); give"),
    "falling start": ({"start": [0, 9, 4, 18]}, r"`start` must rise"),
    "start from 1": ({"start": [1, 9, 18]}, r"goes from 1 to 18"),
    "start of fractions": ({"start": [0, 8.5, 18]}, r"in whole numbers"),
    "start of nothing": ({"start": np.zeros(0, int)}, r"it has shape \(0,\)"),
    "start is a table": ({"start": [[0, 18]]}, r"it has shape \(1, 2\)"),
    "an empty trajectory": ({"start": [0, 4, 4, 18], "obs": np.ones((21, 3))}, r"trajectory 1 has 0 step"),
    "nothing known": ({"obs": None, "rew": None, "start": None}, r"has no array named obs, start"),
    "text": ({"obs": np.full((22, 3), "x")}, r"obs holds <U1 and only numbers are read"),
    "complex": ({"rew": np.ones(18, complex)}, r"rew holds complex128"),
    "dates": ({"rew": np.zeros(18, "M8[s]")}, r"rew holds datetime64"),
    "huge states": ({"obs": number(17, 1e300, (22, 3))}, r"trajectory 1 has the observation 1e\+300 at step 0, dim"),
    "huge rewards": ({"rew": number(3, -1e300, (18,))}, r"trajectory 0 has the reward -1e\+300 at step 3"),
    "huge actions": ({"act": number(9, 1e300, (18, 2))}, r"trajectory 1 has the action 1e\+300 at step 0, dimension 1"),
}
D4RL = {
    "fewer rewards": ({"rewards": GOOD.rew[1:]}, r"17 rewards but 18 observations; the arrays must be equally long"),
    "more actions": ({"actions": np.zeros((36, 2))}, r"36 actions but 18 observations"),
    "fewer terminals": ({"terminals": np.zeros(3, bool)}, r"3 terminals but 18 observations"),
    "more timeouts": ({"timeouts": np.zeros((18, 2))}, r"36 timeouts but 18 observations"),
    "fewer next states": ({"next_observations": GOOD.obs[:17]}, r"next_observations has shape \(17, 3\), obs.* must"),
    "wider next states": ({"next_observations": np.ones((18, 4))}, r"next_observations has shape \(18, 4\)"),
    "flat states": ({"observations": GOOD.rew}, r"observations have shape \(18,\); flatten"),
    "flat actions": ({"actions": GOOD.rew}, r"actions have shape \(18,\); give"),
    "no observations": ({"observations": None}, r"has no dataset named observations; a D4RL file has"),
    "text": ({"rewards": [b"one"] * 18}, r"rewards is not an array of numbers"),
    "text of any length": ({"rewards": ["one"] * 18}, r"rewards is not an array of numbers"),
    "pairs": ({"rewards": np.zeros(18, "f4,f4")}, r"rewards is not an array of numbers"),
    "one number": ({"rewards": 1.0}, r"rewards is not an array of numbers"),
    "a group": ({"observations": None, "observations/a": GOOD.rew}, r"observations is not an array of numbers"),
    "huge rewards": ({"rewards": number(4, 1e300, (18,))}, r"trajectory 1 has the reward 1e\+300 at step 0"),
    "huge states": ({"observations": number(7, 1e300, (18, 3))}, r"trajectory 0 .* at step 2, dimension 1"),
    "other flags": ({"terminals": None, "dones": GOOD.terminated}, r"no dataset named terminals, and dones may mean"),
    "one row each": ({"next_observations": None, "terminals": np.ones(18)}, r"every episode is one row.*; add next"),
}
HOPPER = {  # a file named after a known task has its range, unless actions leave it
    "flat actions": ({"actions": GOOD.rew}, r"hopper\.hdf5: actions have shape \(18,\); give"),
    "infinite actions": ({"actions": np.full((18, 3), np.inf)}, r"trajectory 0 has the action inf at step 0.*correct"),
}
PICKLE = {  # in trajectory 1, of 6 steps
    "fewer rewards": ({"rewards": GOOD[1].rew[1:]}, r"trajectory 1 has .* but 5 rewards; the numbers must"),
    "fewer actions": ({"actions": GOOD[1].act[1:]}, r"trajectory 1 has 5 actions but 6 rewards; the numbers must"),
    "fewer terminals": ({"terminals": np.zeros(4)}, r"trajectory 1 has 4 terminals but 6 rewards; the numbers must"),
    "fewer next states": ({"next_observations": np.ones((5, 3))}, r"trajectory 1 .*\(6, 3\).* \(5, 3\); they must"),
    "no next states": ({"next_observations": np.ones((0, 3))}, r"trajectory 1 .*\(6, 3\).* \(0, 3\); they must"),
    "mixed state sizes": (
        {"observations": np.zeros((6, 5)), "next_observations": None},
        r"trajectory 1 has observations of size 5, trajectory 0 of size 3; put different robots",
    ),
    "mixed action sizes": (
        {"actions": np.zeros((6, 4))},
        r"trajectory 1 has actions of size 4, others of size 2",
    ),
    "ragged": ({"observations": [[1, 2, 3], [4, 5]]}, r"observations of trajectory 1 are not an array of numbers"),
    "text": ({"rewards": "much"}, r"rewards of trajectory 1 are not an array of numbers"),
    "text flags": ({"terminals": ["no"] * 6}, r"terminals of trajectory 1 are not an array of numbers"),
    "one reward": ({"rewards": 3.0}, r"trajectory 1 has .*rewards"),
    "one state": ({"observations": 3.0, "next_observations": None}, r"trajectory 1 has observations of shape \(\)"),
    "one action": ({"actions": 3.0}, r"trajectory 1 has actions of shape \(\); give"),
    "image states": ({"observations": np.ones((6, 4, 4)), "next_observations": None}, r"trajectory 1 .*\(6, 4, 4\)"),
    "a cube of actions": ({"actions": np.zeros((6, 2, 2))}, r"trajectory 1 has actions of shape \(6, 2, 2\); give"),
    "huge rewards": ({"rewards": np.full(6, 1e300)}, r"trajectory 1 has the reward 1e\+300 at step 0"),
}
MINARI = {  # one dataset of main_data.hdf5
    "fewer rewards": ({"episode_1/rewards": np.ones(4)}, r"trajectory 1 has .* but 4 rewards; the numbers must"),
    "fewer actions": (
        {"episode_1/actions": np.zeros((2, 2))},
        r"trajectory 1 has 2 actions but 6 rewards; the num",
    ),
    "fewer states": ({"episode_2/observations": np.ones((2, 3))}, r"trajectory 2 has 2 observations and 3 rewards"),
    "fewer terminals": ({"episode_2/terminations": np.zeros(2)}, r"trajectory 2 has 2 terminals but 3 rewards"),
    "mixed state sizes": ({"episode_2/observations": np.ones((4, 4))}, r"trajectory 2 has observations of size 4, tra"),
    "mixed action sizes": (
        {"episode_3/actions": np.zeros((5, 1))},
        r"trajectory 3 has actions of size 1, others of",
    ),
    "no rewards": ({"episode_3/rewards": None}, r"cannot be read as a Minari dataset"),
    "text states": ({"episode_1/observations": ["x"] * 7}, r"episode_1/observations holds object and only numbers"),
    "an episode lost": ({"episode_3": None}, r"speaks of 4 episodes where 3 are there at most; fetch"),
}
MINARI_META = {
    "more episodes than there are": ({"total_episodes": 10**10}, r"speaks of 10000000000 episodes where 4 are"),
    "fewer episodes than none": ({"total_episodes": -1}, r"speaks of -1 episodes"),
    "of a time to come": ({"minari_version": "99.0.0"}, r"not support the dataset generated by Minari 99"),
    "discrete actions": (
        {"action_space": '{"type": "Discrete", "dtype": "int64", "start": 0, "n": 3}'},
        r"has actions of Discrete\(3\); only vectors of real numbers",
    ),
}
FRAMES = {  # one column of the Parquet file
    "a frame lost": (
        {"frame_index": [0, 1, 3, 4, *range(6), *range(3), *range(5)]},
        r"episode 0 jumps from frame 1 to 3; every frame must",
    ),
    "a frame twice": (
        {"frame_index": [*range(4), *range(6), 0, 1, 1, *range(5)]},
        r"episode 2 jumps from frame 1 to 1; every frame must",
    ),
    "no episode numbers": ({"episode_index": None}, r"no episode_index; is it"),
    "episodes of fractions": ({"episode_index": np.linspace(0, 1, 18)}, r"column episode_index is of type double"),
    "missing numbers": ({"frame_index": [None, *range(17)]}, r"column frame_index .*empty rows; number"),
    "no states": ({"observation.state": None}, r"has no numeric observation"),
    "text states": ({"observation.state": ["x"] * 18}, r"has no numeric observation"),
    "states of mixed size": ({"observation.state": [[1.0]] * 17 + [[1.0, 2.0]]}, r"observation.state .* one size; put"),
    "actions of mixed size": ({"action": [[0.1, 0.2]] * 17 + [[0.5]]}, r"column action are not all of one size; put"),
    "a missing state": ({"observation.state": [None] + [[1.0, 2.0]] * 17}, r"observation.state has 1 empty rows; only"),
    "a missing reward": ({"next.reward": [None] + [1.0] * 17}, r"trajectory 0 has the reward nan at step 0"),
    "text rewards": ({"next.reward": ["x"] * 18}, r"column next.reward is of type string; numbers"),
    "text actions": ({"action": ["x"] * 18}, r"column action is of type string; numbers"),
    "smaller next states": (
        {"next.observation.state": [[1.0]] * 18},
        r"next\.observation.* size 1, .* size 3; they must",
    ),
    "huge states": ({"observation.state": [[1e300, 0.0, 0.0]] * 18}, r"trajectory 0 has the observation 1e\+300 at"),
}
for format, write, changes in (
    ("npz", lambda folder, change: npz(folder, **change), NPZ),
    ("d4rl", lambda folder, change: d4rl(folder, **change), D4RL),
    ("d4rl, a known task", lambda folder, change: d4rl(folder, "hopper.hdf5", **change), HOPPER),
    ("pickle", lambda folder, change: pickled(folder, 1, **change), PICKLE),
    ("minari", lambda folder, change: minari(folder, **change), MINARI),
    ("minari", lambda folder, change: minari_meta(folder, **change), MINARI_META),
    ("lerobot", lambda folder, change: lerobot(folder, **change), FRAMES),
):
    for name, (change, says) in changes.items():
        bad(f"{format}: {name}", says, CURE)(lambda f, write=write, change=change: write(f, change))


@bad("minari: metadata is a list", r"set-v0", CURE)
def _(folder):
    path = minari(folder)[0]
    (path / "data" / "metadata.json").write_text("[]")
    return [path]


@bad("minari: metadata nested without end", r"set-v0", CURE)
def _(folder):
    path = minari(folder)[0]
    (path / "data" / "metadata.json").write_text("[" * 100_000)
    return [path]


@bad("lerobot: files that differ", r"b\.parquet: has other columns than .*a\.parquet; all files")
def _(folder):
    lerobot(folder)
    data = folder / "set" / "data" / "chunk-000"
    table = pq.read_table(data / "file-000.parquet")
    (data / "file-000.parquet").rename(data / "a.parquet")
    pq.write_table(table.drop_columns(["action"]), data / "b.parquet")
    return [folder / "set"]


@bad("lerobot: a single frame", r"trajectory 1 has 0 step.*--min-length 2")
def _(folder):
    change = {"next.observation.state": None, "next.done": None, "episode_index": [0] * 4 + [1] + [2] * 13}
    return lerobot(folder, frame_index=[*range(4), 0, *range(13)], **change)


@bad("lerobot: garbage between the marks", r"set\.parquet", "fetch it again")
def _(folder):
    body = np.random.default_rng(0).bytes(500)
    (folder / "set.parquet").write_bytes(b"PAR1" + body + struct.pack("<I", 300) + b"PAR1")
    return [folder / "set.parquet"]


@bad("lerobot: info that is no JSON", r"set", CURE)
def _(folder):
    lerobot(folder)
    (folder / "set" / "meta" / "info.json").write_text("{not json")
    return [folder / "set"]


# --- metadata that would break what comes after

META = {
    "not JSON": "{",
    "not a dict": "[1]",
    "nested without end": "[" * 100_000,
    "no range of numbers": '{"act_low": ["a", "b"], "act_high": [1, 1]}',
    "a range of NaN": '{"act_low": [NaN, -1], "act_high": [1, 1]}',
    "a range without end": '{"act_low": [-Infinity, -1], "act_high": [1, 1]}',
    "a range too large": '{"act_low": [-1e999, -1], "act_high": [1, 1]}',
    "an upside-down range": '{"act_low": [1, 1], "act_high": [-1, -1]}',
    "a range of three": '{"act_low": [-1, -1, -1], "act_high": [1, 1, 1]}',
    "half a range": '{"act_low": [-1, -1], "act_high": [1]}',
    "only an upper bound": '{"act_high": [1]}',
    "a number past floats": '{"random_return": 1' + "0" * 400 + "}",
    "a NaN reference": '{"random_return": NaN, "expert_return": 1}',
    "one reference twice": '{"random_return": 5, "expert_return": 5}',
    "a range of an unknown kind": '{"act_range": "guessed"}',
    "no text at all": "\udcff",
}


@pytest.mark.parametrize("case", META)
@pytest.mark.parametrize("n_act", [0, 2])
def test_bad_metadata_never_comes_through(tmp_path, case, n_act):
    """Whatever is read can be scaled, normalised and printed."""
    raw = np.frombuffer(META[case].encode("utf-8", "surrogateescape"), np.uint8)
    path = npz(tmp_path, meta=raw, act=GOOD.act if n_act else None)[0]
    try:
        eps = load(path)
    except DataError as err:
        assert str(path) in str(err) and "\n" not in str(err)
        assert re.search(CURE, str(err))
    else:
        assert case == "only an upper bound" or (case == "a range of three" and n_act == 0)
        assert len(eps.meta.act_low) == len(eps.meta.act_high) == eps.n_act
        assert np.isfinite(eps.scaled_actions()).all() or not eps.labelled.any()


# --- pairs


@bad(
    "pair: different state sizes",
    r"a\.npz has states of size 3 but .*b\.hdf5 of size 4; give two files of the same robot",
)
def _(folder):
    save(make(), folder / "a.npz")
    save(make(n_obs=4), folder / "b.hdf5")
    return ["--labelled", folder / "a.npz", "--unlabelled", folder / "b.hdf5"]


@bad("pair: the labelled one has no action", r"a\.npz: was given as the labelled file but has no action; swap")
def _(folder):
    save(make(n_act=0), folder / "a.npz")
    save(make(), folder / "b.npz")
    return ["--labelled", folder / "a.npz", "--unlabelled", folder / "b.npz"]


@bad("pair: the second is bad", r"b\.npz: trajectory 2 has the reward nan")
def _(folder):
    save(make(), folder / "a.npz")
    save(poke(make(), "rew", 10, NAN), folder / "b.npz")
    return ["--labelled", folder / "a.npz", "--unlabelled", folder / "b.npz"]


@bad("pair: the second is not there", r"b\.npz: no such file")
def _(folder):
    save(make(), folder / "a.npz")
    return ["--labelled", folder / "a.npz", "--unlabelled", folder / "b.npz"]


# --- all of them, from Python and from the command line


@pytest.mark.parametrize("case", BAD)
def test_refused_with_a_sentence(tmp_path, case):
    BAD.check_in_python(case, tmp_path)


@pytest.mark.parametrize("case", BAD)
def test_refused_on_the_command_line(tmp_path, capfd, case):
    BAD.check_on_the_command_line(case, tmp_path, capfd)


# --- splits


FEW = make(lengths=(3,) * 20, ended=())


CANNOT_BE = [
    ({"fraction": 0.02}, r"0\.02 of 20 trajectories rounds to none; give at least 25"),
    ({"fraction": 0.3, "quality": 10}, r"bottom 10 % has 2 of 20 .* but 6 .*raise --quality to 30"),
    ({"fraction": 0}, r"--fraction is 0; give a share"),
    ({"fraction": 1.5}, r"--fraction is 1\.5"),
    ({"fraction": NAN}, r"--fraction is nan"),
    ({"quality": 101}, r"quality is 101; give a percentage"),
    ({"quality": -INF}, r"quality is -inf"),
    ({"seed": -1}, r"--seed is -1"),
    ({"setup": "wide", "seed": -1}, r"--seed is -1"),
    ({"setup": "decoupled", "seed": -1}, r"--seed is -1"),
    ({"setup": "decoupled", "labelled_fraction": 0.01}, r"0\.01 of 20 .* --labelled-fraction"),
    ({"setup": "decoupled", "unlabelled_fraction": 2}, r"--unlabelled-fraction is 2"),
]


@pytest.mark.parametrize(("given", "says"), CANNOT_BE)
def test_splits_that_cannot_be(tmp_path, capfd, given, says):
    options = {k: v for k, v in given.items() if k != "setup"}
    with pytest.raises(DataError, match=says):
        {"coupled": coupled, "decoupled": decoupled, "wide": wide}[given.get("setup", "coupled")](FEW, **options)
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in given.items()]
    save(FEW, tmp_path / "set.npz")
    before = listing(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["data", "split", str(tmp_path / "set.npz"), *flags, "--out", str(tmp_path / "s.json")])
    printed = capfd.readouterr()
    assert stop.value.code == 2 and printed.out == "" and printed.err.count("\n") == 1
    assert re.search(says, printed.err) and listing(tmp_path) == before


def test_a_split_needs_as_many_trajectories_as_it_says():
    text = ""
    with pytest.raises(DataError) as caught:
        coupled(FEW, fraction=0.02)
    need = int(re.search(r"at least (\d+) trajectories", text := str(caught.value)).group(1))
    share = float(re.search(r"--fraction ([\d.]+)", text).group(1))
    assert len(coupled(make(lengths=(3,) * need, ended=()), fraction=0.02).labelled) == 1
    assert len(coupled(FEW, fraction=share).labelled) >= 1
    with pytest.raises(DataError):
        coupled(make(lengths=(3,) * (need - 1), ended=()), fraction=0.02)


def test_a_split_of_data_that_lacks_actions(tmp_path):
    part = poke(FEW, "act", slice(3 * 7, 3 * 7 + 1), NAN)
    with pytest.raises(DataError, match=r"memory: 1 of 20 trajectories already lack actions \(the first is number 7\)"):
        coupled(part)


SPLITS = {
    "empty": b"",
    "not JSON": b"{",
    "not text": b"\xff\xfe\x00",
    "a list": b"[1, 2]",
    "a number": b"7",
    "nested without end": b"[" * 100_000,
    "nothing in it": b"{}",
    "one field too many": lambda d: d | {"more": 1},
    "numbers past 64 bits": lambda d: d | {"labelled": [10**30]},
    "text for numbers": lambda d: d | {"labelled": ["one"]},
    "ragged": lambda d: d | {"labelled": [[1], [1, 2]]},
    "out of range": lambda d: d | {"labelled": [20]},
    "negative": lambda d: d | {"unlabelled": [-1]},
    "nobody": lambda d: d | {"labelled": [], "unlabelled": []},
    "of other data": lambda d: d | {"fingerprint": 1},
    "of more data": lambda d: d | {"n_episodes": 21},
}


@pytest.mark.parametrize("case", SPLITS)
def test_a_saved_split_that_cannot_be_applied(tmp_path, capfd, case):
    save(FEW, tmp_path / "set.npz")
    coupled(FEW).save(tmp_path / "s.json")
    body = SPLITS[case]
    if callable(body):
        body = json.dumps(body(json.loads((tmp_path / "s.json").read_text()))).encode()
    (tmp_path / "s.json").write_bytes(body)
    with pytest.raises(SystemExit) as stop:
        main(["data", "show", str(tmp_path / "set.npz"), "--split", str(tmp_path / "s.json")])
    printed = capfd.readouterr()
    assert stop.value.code == 2 and printed.out == "" and printed.err.count("\n") == 1
    assert "split" in printed.err


def test_a_saved_split_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"none\.json: cannot be read as a split"):
        Split.load(tmp_path / "none.json")


# --- writing


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["convert", "SET", "--out", "DIR/x.weird"], r"x\.weird: end it in \.npz"),
        (["convert", "SET", "--out", "DIR/set.npz"], r"set\.npz: exists already; choose another name or pass --force"),
        (["convert", "SET", "--out", "DIR/set.npz/below.npz"], r"below\.npz: cannot be written"),
        (["convert", "SET", "--out", "DIR/keep", "--to", "npz", "--force"], r"keep: is a folder"),
        (["convert", "SET", "--out", "DIR/keep", "--to", "minari", "--force"], r"keep: is a folder"),
        (["split", "SET", "--out", "DIR/set.npz"], r"set\.npz: exists already"),
        (["split", "SET", "--out", "DIR/keep", "--force"], r"keep: is a folder"),
        (
            ["split", "SET", "--out", "DIR/s.json", "--data", "DIR/keep", "--force"],
            r"keep: (is a folder|end it in)",
        ),
        (["split", "SET", "--out", "DIR/s.json", "--data", "DIR/x.weird"], r"x\.weird: "),
        (["split", "SET", "--out", "DIR/same.npz", "--data", "DIR/same.npz"], r"same\.npz: "),
        (["show", "SET", "--plot", "DIR/keep"], r"keep: is a folder"),
        (["show", "SET", "--plot", "DIR/x.weird"], r"x\.weird: "),
        (["show", "DIR/" + "n" * 300], r"nnn: "),
    ],
)
def test_nothing_is_written_where_it_must_not(tmp_path, capfd, args, says):
    save(FEW, tmp_path / "set.npz")
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "thesis.txt").write_text("years of work")
    before = listing(tmp_path)
    args = [a.replace("SET", str(tmp_path / "set.npz")).replace("DIR", str(tmp_path)) for a in args]
    with pytest.raises(SystemExit) as stop:
        main(["data", *args])
    printed = capfd.readouterr()
    assert stop.value.code == 2 and printed.err.count("\n") == 1, printed.err
    assert re.search(says, printed.err), printed.err
    assert listing(tmp_path).keys() == before.keys()
    assert (tmp_path / "keep" / "thesis.txt").read_text() == "years of work"


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    save(FEW, tmp_path / "set.npz")
    (tmp_path / "set.npz").chmod(0)
    with pytest.raises(SsorlError, match=r"set\.npz: may not be read"):
        load(tmp_path / "set.npz")


@pytest.mark.parametrize("format", FORMATS)
def test_rounding_is_forgiven(tmp_path, format):
    """What is off the range by rounding is put on it, and no further."""
    eps = poke(poke(make(low=0, high=5), "act", (0, 0), 5.0001), "act", (1, 1), -0.0001)
    save(eps, place(tmp_path, format), format)
    got = load(place(tmp_path, format))
    assert got.act[0, 0] == 5 and got.act[1, 1] == 0
    assert np.array_equal(got.act[2:], eps.act[2:])
