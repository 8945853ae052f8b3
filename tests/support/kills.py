"""Kill a process just before its k-th change to a folder. Changes are counted, so no moment depends on a clock."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

WRITES = os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Changes:
    """Counts the changes that this process makes below a folder and kills it before one of them.

    An audit hook sees every file that Python creates, truncates, appends to, renames or removes, whichever module does
    it. A hook cannot be removed again: use it in a child process.
    """

    def __init__(
        self, home: Path | str, kill: int | None = None, at: tuple[int, Callable[[], object]] | None = None
    ) -> None:
        """`kill`: die before this change; `at`: a change, and what to call before it."""
        self.home, self.kill, self.count = os.path.abspath(home), kill, 0
        self.at, self.call = at or (0, None)
        self._numbers = itertools.count(1)  # atomic: checkpoints are written by a second thread
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if event in EVENTS and self._changes(event, args):
            self.count = next(self._numbers)
            if self.count == self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.call and self.count == self.at:
                self.call()

    def _changes(self, event: str, args: tuple[Any, ...]) -> bool:
        path, folder = args[EVENTS[event]], args[-1] if event in AT else -1
        if isinstance(path, int):
            return False
        path = os.fsdecode(path)
        if folder != -1 and not os.path.isabs(path):  # `shutil.rmtree` names files by their open folder
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path) if sys.platform == "linux" else path
        if not os.path.join(os.path.abspath(path), "").startswith(os.path.join(self.home, "")):
            return False
        if event == "os.mkdir":
            return not os.path.exists(path)
        if event == "open" and args[2] & WRITES and os.path.exists(path):
            return bool(args[2] & os.O_APPEND) or os.path.getsize(path) > 0  # to empty an empty file changes nothing
        return event != "open" or bool(args[2] & WRITES)


# Where an event's arguments hold the path.
EVENTS = {"open": 0, "os.rename": 1, "os.mkdir": 0, "os.remove": 0, "os.rmdir": 0, "os.truncate": 0}
AT = {"os.mkdir", "os.remove", "os.rmdir"}  # their last argument is the open folder that the path starts from, or -1


def state(home: Path) -> dict[str, str]:
    """Return a digest of every file and folder below `home`, under its path without the random part of its name."""
    found = {}
    for path in sorted(home.rglob("*")):
        name = re.sub(r"(\.tmp-[^/]*)-[a-z0-9_]{8}(?=/|$)", r"\1", str(path.relative_to(home)))
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return found
