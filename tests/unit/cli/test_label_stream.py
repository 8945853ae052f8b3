"""`ssorl label` on files that are read and written in parts: the result is the same, and no file is partial."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from support.systems import hide, linear

from ssorl.cli import main
from ssorl.data import load, save

FAST = ["--preset", "quick", "--steps", "50", "--members", "1"]
OUTS = {"npz": "o.npz", "d4rl": "o.hdf5", "minari": "o-v0", "lerobot": "o"}
pytestmark = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")


def run(capsys, *args) -> dict:
    main(["label", *map(str, args), "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the data in files, and a model that was fitted in memory."""
    path = tmp_path_factory.mktemp("stream")
    full = linear(n=24, t=20)
    save(full, path / "full.npz")
    save(full[:12], path / "a.hdf5")
    save(full[12:], path / "b.npz")
    save(hide(full, (np.arange(480) >= 240) | (np.arange(480) % 7 == 3)), path / "gaps.hdf5")
    main(["label", str(path / "gaps.hdf5"), "--out", str(path / "first.npz"), *FAST, "--save-idm", str(path / "idm")])
    return path


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    """Read in parts of two trajectories."""
    monkeypatch.setattr("ssorl.data.stream.PART_STEPS", 40)


@pytest.mark.parametrize("format", OUTS)
def test_every_format_equals_labels_in_memory(capsys, tmp_path, folder, format):
    result = run(
        capsys,
        folder / "gaps.hdf5",
        "--idm",
        folder / "idm",
        "--out",
        tmp_path / OUTS[format],
        "--to",
        format,
        "--stream",
    )
    got, want = load(tmp_path / OUTS[format]), load(folder / "first.npz")
    assert got.act.tobytes() == want.act.tobytes() and got.same(want) and got.meta.notes == want.meta.notes
    assert result["data"]["proxy_steps"] == 274 and os.listdir(tmp_path) == [OUTS[format]]


def test_fit_report_and_model_equal_those_in_memory(capsys, tmp_path, folder):
    reports = []
    for name, more in (("one", []), ("two", ["--stream"])):
        args = ["--out", tmp_path / f"{name}.npz", "--save-idm", tmp_path / f"{name}-idm", *more]
        args += ["--report", tmp_path / f"{name}.png", "--fraction", "0.5", "--quality", "100", "--seed", "3", *FAST]
        reports.append(run(capsys, folder / "full.npz", *args))
    one, two = reports
    assert load(tmp_path / "one.npz").same(load(tmp_path / "two.npz"))
    for name in ("mse", "mse_seen", "mse_unseen", "rank_correlation", "worst_5_percent_share"):
        assert one["truth"][name] == pytest.approx(two["truth"][name], rel=1e-4), name
    assert [w["trajectory"] for w in one["worst"]] == [w["trajectory"] for w in two["worst"]]
    assert (tmp_path / "two.png").read_bytes()[:4] == b"\x89PNG"
    assert json.loads((tmp_path / "two.json").read_text())["truth"] == two["truth"]
    with np.load(tmp_path / "one-idm" / "weights.npz") as a, np.load(tmp_path / "two-idm" / "weights.npz") as b:
        # Limits follow from the predictions of unlabelled steps, which a stream does not hold when it fits.
        assert set(a) == set(b)
        assert [k for k in a if not k.startswith("limits/") and not np.array_equal(a[k], b[k])] == []


@pytest.mark.parametrize("union", [[], ["--union"]])
def test_two_files_equal_labels_in_memory(capsys, tmp_path, folder, union):
    two = ["--labelled", folder / "a.hdf5", "--unlabelled", folder / "b.npz", "--idm", folder / "idm", *union]
    one = run(capsys, *two, "--out", tmp_path / "one.npz")
    got = run(capsys, *two, "--out", tmp_path / "two.hdf5", "--stream")
    assert load(tmp_path / "one.npz").same(load(tmp_path / "two.hdf5"))
    assert got["data"] == one["data"] and len(load(tmp_path / "two.hdf5")) == (24 if union else 12)


def test_large_files_are_streamed_automatically(capsys, tmp_path, monkeypatch, folder):
    args = [folder / "gaps.hdf5", "--idm", folder / "idm", "--out"]
    run(capsys, *args, tmp_path / "a.npz")
    assert "reading" not in capsys.readouterr().err
    monkeypatch.setattr("ssorl.data.stream.free_memory", lambda: 1000.0)
    main(["label", *map(str, args), str(tmp_path / "b.npz")])
    assert "reading: 480 of 480 steps" in capsys.readouterr().err
    main(["label", *map(str, args), str(tmp_path / "c.pkl")])  # pickles cannot be streamed
    assert "reading" not in capsys.readouterr().err


MISTAKES = {
    "pickle out": (
        ["gaps.hdf5", "--out", "o.pkl", "--idm", "idm"],
        "its format can only be written whole",
    ),
    "self-training": (
        ["gaps.hdf5", "--out", "o.npz", *FAST, "--self-train", "1"],
        "--self-train needs all data",
    ),
    "no file": (["builtin/pointmass", "--quality", "50", "--out", "o.npz", *FAST], "leave out --stream"),
    "not there": (["gasp.hdf5", "--out", "o.npz", *FAST], "no such file"),
    "nothing": (["--out", "o.npz", *FAST], "name one dataset"),
    "union of one": (["gaps.hdf5", "--out", "o.npz", *FAST, "--union"], "--union joins two files"),
    "nothing missing": (["full.npz", "--out", "o.npz", *FAST], "every step has an action already"),
    "other robot": (["robot.npz", "--out", "o.npz", "--idm", "idm"], "states of size 4"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_print_one_sentence_and_write_nothing(capsys, monkeypatch, folder, mistake):
    monkeypatch.chdir(folder)
    if not os.path.exists("robot.npz"):
        save(hide(load("builtin/pointmass")[:2], slice(0, 4)), "robot.npz")
    before = sorted(os.listdir())
    args, words = MISTAKES[mistake]
    with pytest.raises(SystemExit) as stop:
        main(["label", *args, "--stream"])
    err = re.sub(r"^(reading|labelling): .*\n", "", capsys.readouterr().err, flags=re.M)
    assert stop.value.code == 2 and err.count("\n") == 1 and err.startswith("ssorl: ") and words in err
    assert sorted(os.listdir()) == before


# Labels parts of two trajectories, and waits at the third for a line that never comes.
HELD = """
import itertools, sys
from ssorl.idm import stream
label, numbers = stream.label, itertools.count(1)
def held(*args):
    if next(numbers) == 3:
        print("third", flush=True)
        sys.stdin.readline()
    return label(*args)
stream.label = held
from ssorl.data import stream as parts
parts.PART_STEPS = 40
from ssorl.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("out", ["o.npz", "o.hdf5"])
def test_kill_leaves_no_partial_file(tmp_path, folder, out):
    args = ["label", folder / "gaps.hdf5", "--idm", folder / "idm", "--out", tmp_path / out, "--stream"]
    args += ["--report", tmp_path / "r.png", "--save-idm", tmp_path / "m"]
    command = [sys.executable, "-c", HELD, *map(str, args)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "third\n"  # two parts are written, or about to be
        job.send_signal(signal.SIGKILL)
    assert job.returncode == -signal.SIGKILL
    left = os.listdir(tmp_path)
    assert left and all(name.startswith(".tmp-") for name in left)
