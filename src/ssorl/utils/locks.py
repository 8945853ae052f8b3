"""Locks between processes; the system releases a lock when the process that holds it ends, even if it is killed."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ssorl.utils.errors import SsorlError


@contextmanager
def file_lock(path: Path, wait: bool, cure: str) -> Iterator[bool]:
    """Hold the lock of a file during the block, and yield whether this process has it.

    On network file systems without locks, every process has it.

    Args:
        path: the file, which is created with its folder.
        wait: wait for another process that holds the lock; otherwise yield False.
        cure: what the user can do if the folder cannot be written, for the message.

    Raises:
        SsorlError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError as err:
        raise SsorlError(f"{path.parent}: cannot be written ({err.strerror}); {cure}") from err
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            pass  # this file system has no locks
        yield True


@contextmanager
def folder_lock(folder: Path, wait: bool, cure: str) -> Iterator[bool]:
    """Hold the lock of a folder during the block, and remove temporary files of interrupted processes.

    Args:
        folder: the folder.
        wait: wait for another process that holds the lock; otherwise yield False.
        cure: what the user can do if the folder cannot be written, for the message.

    Raises:
        SsorlError: the folder cannot be written.
    """
    with file_lock(folder / ".lock", wait, cure) as held:
        for stale in folder.glob(".tmp-*") if held else ():
            shutil.rmtree(stale, ignore_errors=True)
        yield held


@contextmanager
def locked(folder: Path, other: str = "another folder") -> Iterator[None]:
    """Create a folder, hold its lock during the block, and remove temporary files of interrupted processes.

    Args:
        folder: the folder.
        other: alternative to the folder, for the message.

    Raises:
        SsorlError: the folder cannot be written, or another process holds its lock.
    """
    with folder_lock(folder, False, f"choose {other}") as held:
        if not held:
            raise SsorlError(f"{folder}: another process is writing there; wait until it ends or choose {other}")
        yield
