"""`ssorl label` from end to end: all formats, no partial files, and one sentence for each mistake."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from support.systems import hide, linear

from ssorl.cli import main
from ssorl.data import load, save
from ssorl.idm import IDMS

FAST = ["--preset", "quick", "--steps", "200", "--members", "2"]
OUTS = {
    "npz": ("o.npz", []),
    "d4rl": ("o.hdf5", []),
    "pickle": ("o.pkl", []),
    "minari": ("o-v0", ["--to", "minari"]),
    "lerobot": ("o", ["--to", "lerobot"]),
}
# Minari leaves its temporary folder to the garbage collector, which warns.
pytestmark = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")


def run(capsys, *args) -> dict:
    main(["label", *map(str, args), "--json"])
    return json.loads(capsys.readouterr().out)


def fails(capsys, *args) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["label", *map(str, args)])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.count("\n") == 1 and err.startswith("ssorl: ")
    return err


@pytest.fixture(scope="module", autouse=True)
def small():
    """Use a small model, because these tests are about the command and its files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(IDMS, "robust-quick", replace(IDMS["robust-quick"], hidden=(32, 32), lr=3e-3))
        patch.setitem(IDMS, "blend-quick", replace(IDMS["robust-quick"], hidden=(32, 32), lr=3e-3))
        yield


@pytest.fixture(scope="module")
def full():
    return linear(n=24, t=20)


@pytest.fixture(scope="module")
def gaps(full):
    """Twelve trajectories with missing steps, and twelve without actions."""
    return hide(full, (np.arange(480) >= 240) | (np.arange(480) % 7 == 3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, gaps, full):
    """Return a folder with the data in files, and a model that the command fitted."""
    path = tmp_path_factory.mktemp("label")
    save(gaps, path / "gaps.npz")
    save(full[:12], path / "a.npz")
    save(full[12:], path / "b.hdf5")
    main(["label", str(path / "gaps.npz"), "--out", str(path / "first.npz"), *FAST, "--save-idm", str(path / "idm")])
    return path


def test_missing_actions_are_filled_and_true_actions_stay(folder, gaps, full):
    got = load(folder / "first.npz")
    known = gaps.labelled
    assert got.act[known].tobytes() == full.act[known].tobytes()
    assert got.obs.tobytes() == full.obs.tobytes() and got.rew.tobytes() == full.rew.tobytes()
    assert got.labelled.all() and np.abs(got.act).max() <= 1
    assert np.mean((got.act - full.act)[~known] ** 2) < 0.05
    with np.load(folder / "first.npz", allow_pickle=False) as arrays:
        assert np.array_equal(arrays["proxy"], ~known)
        assert ((arrays["act_std"] > 0).all(1) == ~known).all() and arrays["act_std"].shape == (480, 2)
        assert not arrays["unseen"][known].any()


@pytest.mark.parametrize("format", OUTS)
def test_every_format_contains_the_same_labels(capsys, tmp_path, folder, gaps, format):
    name, to = OUTS[format]
    result = run(capsys, folder / "gaps.npz", "--idm", folder / "idm", "--out", tmp_path / name, *to)
    got, want = load(tmp_path / name), load(folder / "first.npz")
    assert got.same(want) and got.meta.notes == want.meta.notes
    known = gaps.labelled
    assert got.act[known].tobytes() == gaps.act[known].tobytes()
    assert result["out"] == str(tmp_path / name) and os.listdir(tmp_path) == [name]
    with np.load(folder / "first.npz") as arrays:
        proxy, std = extras(tmp_path / name, format, got)
        assert np.array_equal(proxy, arrays["proxy"]) and np.array_equal(std, arrays["act_std"])


def extras(path: Path, format: str, eps) -> tuple[np.ndarray, np.ndarray]:
    """Return the proxy flags and predicted std as another program would read them."""
    if format == "npz":
        with np.load(path, allow_pickle=False) as file:
            return file["proxy"], file["act_std"]
    if format == "d4rl":
        with h5py.File(path) as file:
            # D4RL's own reader also reads every dataset by its full name.
            found = {}
            file.visititems(lambda name, item: found.update({name: item[()]}) if hasattr(item, "shape") else None)
        assert {len(x) for x in found.values()} == {eps.n_steps}
        assert np.array_equal(found["actions"], eps.act)
        return found["infos/proxy"], found["infos/act_std"]
    if format == "lerobot":
        table = pq.read_table(path / "data")
        assert table.num_rows == eps.n_steps
        return table["proxy"].to_numpy(), np.array(table["act_std"].to_pylist(), np.float32)
    if format == "minari":
        import minari

        parts = list(minari.MinariDataset(path / "data").iterate_episodes())
        assert np.array_equal(np.concatenate([p.actions for p in parts]), eps.act)
        assert all(len(p.infos["proxy"]) == len(p.observations) and not p.infos["proxy"][0] for p in parts)
        return tuple(np.concatenate([p.infos[k][1:] for p in parts]) for k in ("proxy", "act_std"))
    items = pickle.loads(path.read_bytes())
    return tuple(np.concatenate([d[k] for d in items]) for k in ("proxy", "act_std"))


def test_two_files_give_the_unlabelled_trajectories_or_the_union(capsys, tmp_path, folder, full):
    two = ["--labelled", folder / "a.npz", "--unlabelled", folder / "b.hdf5"]
    run(capsys, *two, "--out", tmp_path / "b.npz", *FAST, "--report", tmp_path / "r.png")
    run(capsys, *two, "--out", tmp_path / "u.npz", *FAST, "--union")
    b, u = load(tmp_path / "b.npz"), load(tmp_path / "u.npz")
    assert len(b) == 12 and b.obs.tobytes() == full[12:].obs.tobytes()
    assert len(u) == 24 and u.act[:240].tobytes() == full.act[:240].tobytes()
    assert u.act[240:].tobytes() == b.act.tobytes()  # the model is the same
    assert not np.array_equal(b.act, full.act[240:]) and np.mean((b.act - full.act[240:]) ** 2) < 0.05
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["data"]["trajectories"] == 12 and result["model"]["labelled_trajectories"] == 12
    assert max(w["trajectory"] for w in result["worst"]) < 12  # indices in the file that was written


def test_actions_of_the_unlabelled_file_have_no_effect(capsys, tmp_path, folder, full):
    save(replace(full[12:], act=full.act[240:][::-1].copy()), tmp_path / "other.hdf5")
    outs = []
    for name in (folder / "b.hdf5", tmp_path / "other.hdf5"):
        run(capsys, "--labelled", folder / "a.npz", "--unlabelled", name, "--out", tmp_path / "o.npz", *FAST, "--force")
        outs.append(load(tmp_path / "o.npz").act.tobytes())
    assert outs[0] == outs[1]


def test_labels_of_a_split_are_compared_with_the_truth(capsys, tmp_path, folder, full):
    save(full, tmp_path / "full.npz")
    args = [tmp_path / "full.npz", "--fraction", "0.5", "--quality", "100", "--seed", "3", *FAST]
    result = run(
        capsys, *args, "--out", tmp_path / "o.npz", "--report", tmp_path / "r.png", "--save-idm", tmp_path / "m"
    )
    got = load(tmp_path / "o.npz")
    with np.load(tmp_path / "o.npz") as arrays:
        proxy = arrays["proxy"]
    assert proxy.sum() == 240 and got.act[~proxy].tobytes() == full.act[~proxy].tobytes()
    assert result["truth"]["mse"] == pytest.approx(np.mean((got.act - full.act)[proxy] ** 2), rel=1e-4)
    assert (tmp_path / "r.png").read_bytes()[:4] == b"\x89PNG"
    assert json.loads((tmp_path / "r.json").read_text())["truth"] == result["truth"]
    from ssorl.data import coupled

    coupled(full, 0.5, 100, 3).save(tmp_path / "s.json")
    again = run(
        capsys,
        tmp_path / "full.npz",
        "--split",
        tmp_path / "s.json",
        "--idm",
        tmp_path / "m",
        "--out",
        tmp_path / "p.npz",
    )
    assert again["truth"] == result["truth"] and load(tmp_path / "p.npz").act.tobytes() == got.act.tobytes()


@pytest.mark.parametrize("how", [[], ["--stream"]])
def test_earlier_proxies_are_not_reported_as_true_actions(capsys, tmp_path, folder, how):
    fast = ["--preset", "quick", "--steps", "20", "--members", "1", *how]
    whole = [folder / "first.npz", "--fraction", "0.5", "--quality", "100", "--out", tmp_path / "o.npz"]
    main(["label", *map(str, whole), *fast])
    out, err = capsys.readouterr()
    note = "274 of 480 actions are proxies from an inverse dynamics model"
    assert f"note: {note}; as far as they are used here, they count as true actions" in err
    assert "true actions" not in out and "truth" not in out and f"may be proxies themselves ({note})" in out
    # The actions of the unlabelled file are ignored, also if they are proxies.
    two = ["--labelled", folder / "a.npz", "--unlabelled", folder / "first.npz", "--out", tmp_path / "b.npz"]
    main(["label", *map(str, two), *fast, "--union"])
    out, err = capsys.readouterr()
    assert "240 true actions are unchanged" in out and "note:" not in err
    assert [n for n in load(tmp_path / "b.npz").meta.notes if "proxies" in n] == [
        "480 of 720 actions are proxies from an inverse dynamics model"
    ]


def test_self_training_prints_its_rounds(capsys, tmp_path, folder):
    main(["label", str(folder / "gaps.npz"), "--out", str(tmp_path / "o.npz"), *FAST, "--self-train", "2"])
    out = capsys.readouterr().out
    assert [f"round {r}: {n} steps added" in out for r, n in ((0, 0), (1, 137), (2, 137), (3, 0))] == [True] * 3 + [
        False
    ]


MISTAKES = {
    "no labelled step": (["none.npz", "--out", "o.npz"], "no step has an action"),
    "nothing missing": (["a.npz", "--out", "o.npz"], "every step has an action already"),
    "out exists": (["gaps.npz", "--out", "first.npz"], "first.npz: exists already"),
    "model exists": (["gaps.npz", "--out", "o.npz", "--save-idm", "idm"], "idm: exists already"),
    "report exists": (["gaps.npz", "--out", "o.npz", "--report", "there.png"], "there.png: exists already"),
    "numbers exist": (["gaps.npz", "--out", "o.npz", "--report", "x.png"], "x.json: exists already"),
    "no picture": (["gaps.npz", "--out", "o.npz", "--report", "r.txt"], "r.txt: end the name in .png"),
    "same name twice": (["gaps.npz", "--out", "o", "--to", "minari", "--save-idm", "o"], "same name"),
    "no format": (["gaps.npz", "--out", "o.xyz"], "o.xyz: end it in"),
    "unknown model": (["gaps.npz", "--out", "o.npz", "--idm", "robst"], "did you mean robust?"),
    "no model at all": (["gaps.npz", "--out", "o.npz", "--idm", "nowhere/m"], "no inverse dynamics model or folder"),
    "not a model": (["gaps.npz", "--out", "o.npz", "--idm", "a.npz"], "cannot be read as a saved inverse"),
    "fitted already": (["gaps.npz", "--out", "o.npz", "--idm", "idm", "--steps", "9"], "--steps"),
    "other robot": (["builtin/pointmass", "--quality", "50", "--out", "o.npz", "--idm", "idm"], "states of size 4"),
    "no steps": (["gaps.npz", "--out", "o.npz", "--steps", "0"], "--steps is 0"),
    "two splits": (["a.npz", "--out", "o.npz", "--split", "s.json", "--fraction", "0.9"], "leave out --fraction"),
    "negative seed": (["gaps.npz", "--out", "o.npz", "--seed", "-1"], "--seed is -1"),
    "no rounds": (["gaps.npz", "--out", "o.npz", "--self-train", "-1"], "--self-train is -1"),
    "a folder in the way": (["gaps.npz", "--out", "o.npz", "--save-idm", "some", "--force"], "not a saved model"),
    "union of one": (["gaps.npz", "--out", "o.npz", "--union"], "--union joins two files"),
    "split of two": (
        ["--labelled", "a.npz", "--unlabelled", "b.hdf5", "--quality", "50", "--out", "o.npz"],
        "the second has none",
    ),
    "swapped": (["--labelled", "none.npz", "--unlabelled", "b.hdf5", "--out", "o.npz"], "swap the two?"),
    "split of gaps": (["gaps.npz", "--quality", "50", "--out", "o.npz"], "already lack actions"),
    "below a file": (["gaps.npz", "--out", "a.npz/o.npz"], "cannot be written"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_print_one_sentence_and_write_nothing(capsys, monkeypatch, folder, mistake):
    monkeypatch.chdir(folder)
    if not Path("none.npz").exists():
        save(hide(linear(n=3), slice(None)), "none.npz")
        Path("some").mkdir()
        Path("some/file").write_text("mine")
        for name in ("there.png", "x.json"):
            Path(name).write_text("mine")
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    args, words = MISTAKES[mistake]
    assert words in fails(capsys, *args, *(() if "--idm" in args or "--steps" in args else FAST))
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before


def test_failure_while_writing_leaves_no_file(capsys, monkeypatch, tmp_path, folder):
    from ssorl.data.formats import npz

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(npz, "save", full_disk)
    args = [folder / "gaps.npz", "--idm", folder / "idm", "--out", tmp_path / "o.npz", "--report", tmp_path / "r.png"]
    with pytest.raises(SystemExit):
        main(["label", *map(str, args), "--save-idm", str(tmp_path / "m")])
    assert "No space left" in capsys.readouterr().err and os.listdir(tmp_path) == []


def test_force_replaces_files(capsys, tmp_path, folder):
    args = [
        folder / "gaps.npz",
        "--out",
        tmp_path / "o.npz",
        "--save-idm",
        tmp_path / "m",
        "--report",
        tmp_path / "r.png",
    ]
    run(capsys, *args, "--idm", folder / "idm")
    old = (tmp_path / "o.npz").stat().st_ino
    assert "--force" in fails(capsys, *args, *FAST)
    run(capsys, *args, "--idm", folder / "idm", "--force")
    assert (tmp_path / "o.npz").stat().st_ino != old
    assert sorted(os.listdir(tmp_path)) == ["m", "o.npz", "r.json", "r.png"]


def test_progress_is_plain_lines_without_a_terminal(capsys, tmp_path, folder):
    main(["label", str(folder / "gaps.npz"), "--idm", str(folder / "idm"), "--out", str(tmp_path / "o.npz")])
    out, err = capsys.readouterr()
    assert "labelling: 274 of 274 steps" in err and "\x1b" not in err + out
    assert "274 proxy actions" in out and "written: " in out


def test_progress_is_a_bar_on_a_terminal(tmp_path, folder):
    ours, theirs = pty.openpty()
    args = [folder / "gaps.npz", "--out", tmp_path / "o.npz", *FAST, "--idm", "robust"]
    command = [Path(sys.executable).with_name("ssorl"), "label", *map(str, args)]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, stderr=theirs, stdout=subprocess.PIPE, env=env) as job:
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # raised when the terminal is closed
            while part := os.read(ours, 1 << 16):
                text += part
    os.close(ours)
    assert job.returncode == 0 and b"\x1b" in text and b"400 of 400 updates" in text and b"/s" in text
