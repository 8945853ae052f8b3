"""Atomic writes and checksums: a file is complete or absent, and damage is detected when it is read."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ssorl.utils.errors import DataError, SsorlError


class DamagedError(DataError):
    """A file that is cut short or whose checksum is wrong."""


@contextmanager
def atomic(path: Path | str, previous: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path with the name of `path`; when the block ends without an error, it replaces `path`.

    Works for files and folders. A killed process leaves at most a folder `.tmp-...`, never a partial result. If `path`
    is a symbolic link, the link stays and its target is written, unless the link itself is renamed to `previous`.

    Args:
        path: the file or folder to write.
        previous: new name for the file that was at `path`; at each moment at least one of the two is complete.

    Raises:
        SsorlError: the path cannot be written.
    """
    path = target = Path(path)
    if path.is_symlink() and previous is None:
        target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".tmp-{path.name}-", dir=target.parent))
    except OSError as err:
        raise SsorlError(f"{path}: cannot be written ({err.strerror}); choose another --out") from err
    try:
        fresh = scratch / path.name
        yield fresh
        _flush(fresh)
        if target.is_dir() and not target.is_symlink():
            if not fresh.is_dir():  # never replace a folder by a file: the folder may hold the user's work
                raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
            # os.replace cannot replace a folder that is not empty, so move the old folder away first.
            os.replace(target, scratch / "old")
        if previous and target.exists():
            os.replace(target, previous)
        os.replace(fresh, target)
    except OSError as err:
        raise SsorlError(f"{path}: cannot be written ({err.strerror or err}); no partial file was left") from err
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _flush(path: Path) -> None:
    """Flush every file to disk, before the rename to its final name."""
    for file in [path] if path.is_file() else path.rglob("*"):
        if file.is_file():
            with file.open("rb+") as handle:
                os.fsync(handle.fileno())


def write_npz(path: Path | str, arrays: dict[str, Any]) -> None:
    """Write arrays to one `.npz` file atomically; object arrays raise ValueError, so no pickle is written.

    Args:
        path: the file.
        arrays: arrays by name.
    """
    with atomic(path) as fresh, fresh.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def read_npz(path: Path | str) -> dict[str, np.ndarray]:
    """Return all arrays of a file that `write_npz` wrote, by name; sizes and the zip's checksums are verified.

    Raises:
        DamagedError: the file is cut short or damaged.
    """
    with Path(path).open("rb") as file:
        try:
            archive, size = zipfile.ZipFile(file), os.fstat(file.fileno()).st_size
            if any(info.comment for info in archive.filelist):  # a damaged length field swallowed the next members
                raise ValueError("its directory of arrays is damaged")
            return {info.filename.removesuffix(".npy"): _plain_array(archive, info, size) for info in archive.filelist}
        except Exception as err:  # untrusted bytes: every error here means that the file is damaged
            raise DamagedError(f"{path}: is cut short or damaged ({reason(err)})") from err


def _plain_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, size: int) -> np.ndarray:
    with archive.open(info) as file:
        if info.compress_type != zipfile.ZIP_STORED or np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{info.filename} is compressed or in an unknown array format")
        shape, fortran, dtype = array_header(file)
        if dtype.hasobject:
            raise ValueError(f"{info.filename} holds objects")
        if math.prod(shape) * dtype.itemsize > min(info.file_size, size):  # check before memory is allocated
            raise ValueError(f"{info.filename} is cut short")
        return np.frombuffer(bytearray(file.read()), dtype).reshape(shape, order="F" if fortran else "C")


def array_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, Fortran order and dtype. Python's warnings about a damaged header are suppressed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.lib.format.read_array_header_1_0(file)


def write_text(path: Path | str, text: str) -> None:
    """Write a text file atomically.

    Args:
        path: the file.
        text: its content.
    """
    with atomic(path) as fresh:
        fresh.write_text(text)


def write_json(path: Path | str, body: dict[str, Any]) -> None:
    """Write a JSON object atomically; its last entry, `sha256`, is a checksum of the others.

    Args:
        path: the file.
        body: the object, without NaN or infinity.
    """
    plain = json.loads(json.dumps(body, allow_nan=False))  # as a reader gets it: tuples are lists, keys are strings
    write_text(path, json.dumps({**plain, "sha256": _checksum(plain)}, indent=1))


def read_json(path: Path | str) -> Any:
    """Return the content of a JSON file, without its checksum.

    Args:
        path: the file; a file without an entry `sha256` is returned as it is.

    Raises:
        DamagedError: the file is not valid JSON, or its checksum is wrong.
    """
    return parse_json(Path(path).read_bytes(), path)


def parse_json(raw: bytes, where: Path | str) -> Any:
    """Return the JSON value in a file's bytes, without its checksum, as `read_json` does.

    Args:
        raw: content of the file.
        where: name of the file, for messages.

    Raises:
        DamagedError: the bytes are not valid JSON, or the checksum is wrong.
    """
    try:
        value = json.loads(raw.decode())
    except (ValueError, RecursionError) as err:
        raise DamagedError(f"{where}: cannot be read ({reason(err)})") from err
    if isinstance(value, dict) and "sha256" in value and value.pop("sha256") != _checksum(value):
        raise DamagedError(f"{where}: is damaged (its checksum is wrong)")
    return value


def _checksum(body: dict) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def reason(err: Exception) -> str:
    """Return an error that untrusted bytes caused, in one line."""
    return str(err).encode("unicode_escape").decode()[:200] or type(err).__name__
