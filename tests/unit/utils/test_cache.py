"""The cache creates each file once, by one process, and detects damage; files are replaced atomically."""

import errno
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.clock import patience

from ssorl.utils.cache import cached
from ssorl.utils.errors import SsorlError
from ssorl.utils.files import atomic
from ssorl.utils.locks import locked

CROWD = 3  # processes that need the same file


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SSORL_CACHE", str(tmp_path / "cache"))


def _request(log: str, arrived) -> None:
    """Request a file; it is created only after every process has noticed its absence and requested the lock."""
    lock = fcntl.flock

    def flock(*args) -> None:
        arrived.release()
        lock(*args)

    def make(path: Path) -> None:
        with open(log, "a") as file:
            file.write("made\n")
        for _ in range(CROWD):
            assert arrived.acquire(timeout=patience())
        path.write_text("content")

    fcntl.flock = flock
    assert cached("x/file", make).read_text() == "content"


def test_made_once_by_several_processes_at_once(tmp_path):
    log = str(tmp_path / "log")
    context = multiprocessing.get_context("spawn")
    arrived = context.Semaphore(0)
    crowd = [context.Process(target=_request, args=(log, arrived)) for _ in range(CROWD)]
    for process in crowd:
        process.start()
    for process in crowd:
        process.join(patience())
    assert [process.exitcode for process in crowd] == [0] * CROWD
    assert Path(log).read_text() == "made\n"


def test_a_flipped_bit_is_noticed_and_the_file_made_again(capsys):
    made = []

    def make(path: Path) -> None:
        made.append(1)
        path.write_bytes(b"0123456789")

    path = cached("f", make)
    assert cached("f", make) == path and len(made) == 1
    path.write_bytes(b"0123456788")
    assert cached("f", make).read_bytes() == b"0123456789"
    assert len(made) == 2 and "damaged" in capsys.readouterr().err


def test_a_killed_maker_leaves_no_half_file(tmp_path):
    code = (
        "from ssorl.utils.cache import cached\n"
        "def make(p):\n p.write_text('half'); print('begun', flush=True); input()\n"
        "cached('f', make)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True)
    assert child.stdout is not None and child.stdout.readline() == "begun\n"
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    assert not (tmp_path / "cache" / "f").exists()
    assert cached("f", lambda p: p.write_text("whole") and None).read_text() == "whole"
    assert not list((tmp_path / "cache").glob(".tmp-*"))  # temporary files of the killed process are deleted


def test_a_failing_maker_leaves_nothing(tmp_path):
    def fail(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached("f", fail)
    left = [p.name for p in (tmp_path / "cache").iterdir()]
    assert left == [".f.lock"]


def test_an_unwritable_place_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SSORL_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(SsorlError, match="set SSORL_CACHE"):
        cached("f", lambda p: None)
    with pytest.raises(SsorlError, match="cannot be written"), atomic(tmp_path / "file" / "x"):
        pass


def test_atomic_replaces_files_and_folders(tmp_path):
    for round in ("first", "second"):
        with atomic(tmp_path / "folder") as fresh:
            fresh.mkdir()
            (fresh / round).write_text(round)
        with atomic(tmp_path / "file") as fresh:
            fresh.write_text(round)
    assert [p.name for p in (tmp_path / "folder").iterdir()] == ["second"]
    assert (tmp_path / "file").read_text() == "second"
    with pytest.raises(SsorlError, match="it is a folder"), atomic(tmp_path / "folder") as fresh:
        fresh.write_text("a file must not replace a folder")
    assert [p.name for p in (tmp_path / "folder").iterdir()] == ["second"]
    with pytest.raises(ZeroDivisionError), atomic(tmp_path / "file") as fresh:
        fresh.write_text("third")
        _ = 1 / 0
    assert (tmp_path / "file").read_text() == "second"
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".tmp")) == []


def test_a_file_system_without_locks_is_not_taken_for_a_locked_one(tmp_path, monkeypatch):
    """On some network file systems locks fail; processes then continue instead of waiting."""

    def flock(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path / "run"):
        assert cached("a.txt", lambda path: path.write_text("made")).read_text() == "made"
    monkeypatch.setattr(fcntl, "flock", lambda file, how: (_ for _ in ()).throw(BlockingIOError()))
    with pytest.raises(SsorlError, match="another process is writing there"), locked(tmp_path / "run"):
        pass
