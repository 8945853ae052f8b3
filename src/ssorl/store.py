"""Files that are either whole or not there."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ssorl.errors import SsorlError


@contextmanager
def atomic(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path`; what was written there replaces `path` only if all went well.

    Serves files and folders. A killed process leaves at most a `.tmp-` entry, never half a result.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".tmp-{path.name}-", dir=path.parent))
    except OSError as err:
        raise SsorlError(f"{path}: cannot be written ({err.strerror}); choose another --out") from err
    try:
        fresh = scratch / path.name
        yield fresh
        _flush(fresh)
        if path.is_dir() and not path.is_symlink():
            if not fresh.is_dir():  # a folder full of someone's work never gives way to a file
                raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
            # os.replace cannot put one full folder in place of another, so the old one steps aside first.
            os.replace(path, scratch / "old")
        os.replace(fresh, path)
    except OSError as err:
        raise SsorlError(f"{path}: cannot be written ({err.strerror or err}); nothing was left behind") from err
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _flush(path: Path) -> None:
    """Ask the disk to hold every file before it gets its final name."""
    for file in [path] if path.is_file() else path.rglob("*"):
        if file.is_file():
            with file.open("rb+") as handle:
                os.fsync(handle.fileno())


def write_npz(path: Path | str, arrays: dict[str, Any]) -> None:
    """Arrays into one `.npz`, whole or not at all; no pickles."""
    with atomic(path) as fresh, fresh.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def write_text(path: Path | str, text: str) -> None:
    """A text file, whole or not at all."""
    with atomic(path) as fresh:
        fresh.write_text(text)
