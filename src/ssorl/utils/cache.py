"""The user's cache: each file is created once, by one process, and its SHA-256 is checked whenever it is used."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from ssorl.utils.files import atomic
from ssorl.utils.locks import file_lock


def root() -> Path:
    """Return the cache folder: SSORL_CACHE if it is set, otherwise `ssorl` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SSORL_CACHE") or Path(home) / "ssorl")


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """Return a file of the cache; create it if it is missing or its digest is wrong.

    If several processes ask for the file at once, one creates it and the others wait. An interrupted process leaves
    no partial file.

    Args:
        name: path of the file below the cache folder.
        make: writes the file to the path that it receives.

    Returns:
        The path of the file.

    Raises:
        SsorlError: the cache folder cannot be written.
    """
    path = root() / name
    if _intact(path):
        return path
    with file_lock(path.parent / f".{path.name}.lock", True, "set SSORL_CACHE to a folder that can"):
        if _intact(path):
            return path
        for stale in path.parent.glob(f".tmp-{path.name}-*"):  # left by a killed process; this process holds the lock
            shutil.rmtree(stale, ignore_errors=True)
        if path.exists():
            print(f"ssorl: {path} is damaged and is created again", file=sys.stderr)
            path.unlink()
        with atomic(path) as fresh:
            make(fresh)
            digest = _digest(fresh)
            # Write the digest before the file: a file without a digest would be created again on the next use.
            with atomic(_digest_file(path)) as digest_file:
                digest_file.write_text(json.dumps({"sha256": digest}))
    return path


def _digest_file(path: Path) -> Path:
    return path.with_name(path.name + ".sha256.json")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _intact(path: Path) -> bool:
    try:
        return _digest(path) == json.loads(_digest_file(path).read_text())["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
