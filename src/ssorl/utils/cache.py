"""The user's cache: files made once, by one process, checked by a digest each time they are read."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ssorl.utils.errors import SsorlError
from ssorl.utils.files import atomic


def root() -> Path:
    """Where made files are kept: SSORL_CACHE, or ssorl in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SSORL_CACHE") or Path(home) / "ssorl")


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The file `name` under the cache, made by `make(path)` if it is not there or its digest is wrong.

    Of several processes that ask at once one makes it and the others wait. An interrupted one leaves nothing.
    """
    path = root() / name
    if _intact(path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = (path.parent / f".{path.name}.lock").open("w")
    except OSError as err:
        raise SsorlError(
            f"{path.parent}: cannot be written ({err.strerror}); set SSORL_CACHE to a folder that can"
        ) from err
    with lock:
        with suppress(OSError):  # some network folders know no locks
            fcntl.flock(lock, fcntl.LOCK_EX)  # freed by the system when this process ends, however it ends
        if _intact(path):
            return path
        for stale in path.parent.glob(f".tmp-{path.name}-*"):  # of a maker that was killed; the lock is ours now
            shutil.rmtree(stale, ignore_errors=True)
        if path.exists():
            print(f"ssorl: {path} is damaged and is made again", file=sys.stderr)
            path.unlink()
        with atomic(path) as fresh:
            make(fresh)
            digest = _digest(fresh)
            # The digest goes first: a file without its digest would be made again, the reverse is harmless.
            with atomic(_note(path)) as note:
                note.write_text(json.dumps({"sha256": digest}))
    return path


def _note(path: Path) -> Path:
    return path.with_name(path.name + ".sha256.json")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _intact(path: Path) -> bool:
    try:
        return _digest(path) == json.loads(_note(path).read_text())["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
