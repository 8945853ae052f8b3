"""Full disks, unwritable paths and jumping clocks: each gives one sentence, and nothing is lost."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.commands import STUDY, run_bits
from support.episodes import CHOICES, make_episodes
from support.paths import environment
from support.systems import hide

from ssorl.cli import main
from ssorl.data import load, save
from ssorl.runs.run import run
from ssorl.training.events import Events
from ssorl.utils.errors import SsorlError

pytestmark = pytest.mark.usefixtures("small_idm")
FORMATS = {"npz": "set.npz", "d4rl": "set.hdf5", "minari": "set-v0", "lerobot": "set", "pickle": "set.pkl"}


@pytest.fixture(scope="module")
def done(eps, tmp_path_factory) -> Path:
    return run(eps, tmp_path_factory.mktemp("runs") / "one", **CHOICES).folder


# A full disk -----------------------------------------------------------------------------------------------


def test_full_disk_at_any_write_loses_nothing(eps, done, tmp_path, monkeypatch):
    """Each call can write a few more files than the last one, until a call finishes."""
    real, left, messages = os.fsync, 0, []

    def fsync(number: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    for room in range(40):
        left = room
        try:
            run(eps, tmp_path / "r", **CHOICES)
            break
        except SsorlError as err:
            messages.append(str(err))
        assert not list((tmp_path / "r").rglob(".tmp-*"))
    assert len(messages) > 5 and all("cannot be written (No space left on device)" in text for text in messages)
    assert all(str(tmp_path / "r") in text for text in messages)
    assert run_bits(tmp_path / "r") == run_bits(done)


@pytest.mark.parametrize("format", ["npz", "lerobot", "pickle"])
def test_dataset_too_large_for_the_disk_leaves_no_file(tmp_path, format):
    """The system limits files to 3,000 bytes, whichever library writes them."""
    eps, path, limit = make_episodes([60, 50]), tmp_path / FORMATS[format], resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limit[1]))
    try:
        with pytest.raises(SsorlError, match=r"set.*: cannot be written"):
            save(eps, path, format)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert not os.listdir(tmp_path)
    save(eps, path, format)
    assert load(path).same(eps)


@pytest.mark.parametrize("format", ["d4rl", "minari"])
def test_hdf5_reserves_space_before_writing(tmp_path, monkeypatch, format):
    real = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real._replace(free=1000))
    with pytest.raises(SsorlError, match=r"set.*: cannot be written \(0\.0 GB are free, and it takes up to 0\.0 GB\)"):
        save(make_episodes([60, 50]), tmp_path / FORMATS[format], format)
    assert not os.listdir(tmp_path)


# libhdf5 may crash when the disk is full; even then the old file must stay as it was.
SAVES = """
import resource, sys
from support.episodes import make_episodes
from ssorl.data import save
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
save(make_episodes([60, 50]), sys.argv[1], sys.argv[2], force=True)
"""


@pytest.mark.parametrize("format", ["d4rl", "minari"])
def test_crash_of_hdf5_keeps_the_old_file(tmp_path, format):
    eps, path = make_episodes([4, 5]), tmp_path / FORMATS[format]
    save(eps, path, format)
    command = [sys.executable, "-c", SAVES, str(path), format]
    ended = subprocess.run(command, env=environment(), capture_output=True, check=False)
    assert ended.returncode != 0
    assert load(path).same(eps)


def test_full_disk_under_tensorboard_raises(tmp_path):
    events = Events(tmp_path / "tb")
    events.file.close()
    events.file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115 (closed below)
    with pytest.raises(SsorlError, match=r"/dev/full: cannot be written \(No space left on device\)"):
        events.write(1, {"loss": 1.0})
    events.close()


# Unwritable paths -----------------------------------------------------------------------------------------

COMMANDS = {
    "run": ["run", "DATA", "--agent", "bc", "--fraction", "0.2", "--out", "PLACE"],
    "study": ["study", "run", "STUDY", "--store", "PLACE"],
    "study report": ["study", "report", "STUDY", "--store", "PLACE"],
    "label": ["label", "GAPS", "--steps", "2", "--out", "PLACE/o.npz"],
    "a model": ["label", "GAPS", "--out", "o.npz", "--steps", "2", "--save-idm", "PLACE/m"],
    "convert": ["data", "convert", "DATA", "--out", "PLACE/o.hdf5"],
    "split": ["data", "split", "DATA", "--out", "PLACE/s.json"],
    "export": ["export", "RUN", "--out", "PLACE/p.onnx"],
    "behaviour": ["behaviour", "train", "hopper", "--steps", "1000", "--out", "PLACE"],
}


PLACES = [(command, "file/below") for command in COMMANDS]
PLACES += [(command, "/proc/ssorl") for command in ("run", "study", "convert", "split")]


@pytest.mark.parametrize(("command", "place"), PLACES)
def test_unwritable_path_raises(eps, done, tmp_path, monkeypatch, capsys, command, place):
    """Paths that root cannot write either: below a file, and in /proc."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "study.toml").write_text(STUDY.replace("DATA", "data.npz"))
    save(eps, tmp_path / "data.npz")
    save(hide(eps, slice(500, None)), tmp_path / "gaps.npz")
    words = {"DATA": "data.npz", "GAPS": "gaps.npz", "RUN": str(done), "STUDY": "study.toml", "PLACE": place}
    args = COMMANDS[command]
    for word, meant in words.items():
        args = [arg.replace(word, meant) for arg in args]
    with pytest.raises(SystemExit) as stop:
        main(args)
    err = capsys.readouterr().err.splitlines()[-1]
    assert stop.value.code == 2 and err.startswith("ssorl: ") and place in err and "; " in err, err
    assert not list(tmp_path.rglob(".tmp-*"))


# Clocks ----------------------------------------------------------------------------------------------------


class Stop(BaseException):
    """Ends a call like a kill, but not the process."""


@pytest.mark.parametrize("shift", [-20, 20], ids=["files of long ago", "files of the future"])
def test_jumping_clock_changes_no_result(eps, done, tmp_path, monkeypatch, shift):
    """A run that was stopped resumes, with wrong file dates and a clock that goes back and forth."""
    jumps = iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: 1e9 + 3e8 * (-1) ** next(jumps))
    real = os.replace

    def stops(a, b) -> None:
        real(a, b)
        if Path(b).name == "run-1.npz":
            raise Stop

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(os, "replace", stops)
        run(eps, tmp_path / "r", **CHOICES)
    now = time.time_ns() + shift * 365 * 86400 * 10**9
    for file in (tmp_path / "r").rglob("*"):
        os.utime(file, ns=(now, now))
    kept = {p: p.stat().st_mtime_ns for p in (tmp_path / "r").rglob("proxies/*")}
    result = run(eps, tmp_path / "r", **CHOICES)
    assert run_bits(tmp_path / "r") == run_bits(done)
    assert kept and {p: p.stat().st_mtime_ns for p in kept} == kept  # existing files were not written again
    assert all(seconds >= 0 for seconds in result.content["timings"].values())


def test_lock_does_not_depend_on_file_dates(eps, done, tmp_path):
    """A lock file of any age locks nothing: the system releases the lock of a process that ended."""
    shutil.copytree(done, folder := tmp_path / "r")
    for year in (1, 80):
        os.utime(folder / ".lock", (year * 31_536_000, year * 31_536_000))
        assert run(eps, folder, **CHOICES).content["complete"]
