"""Atomic writes, locks and checksums: a file is complete or absent, and damage is detected when it is read."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from ssorl.utils.errors import DataError, SsorlError

SEAL = 64  # characters of the checksum at the end of a sealed file
LARGEST_ABOUT = 1 << 24  # bytes of `about.json` in a sealed file


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
            raise DamagedError(f"{path}: is cut short or damaged ({_reason(err)})") from err


def _plain_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, size: int) -> np.ndarray:
    with archive.open(info) as file:
        if info.compress_type != zipfile.ZIP_STORED or np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{info.filename} is compressed or in an unknown array format")
        shape, fortran, dtype = _header(file)
        if dtype.hasobject:
            raise ValueError(f"{info.filename} holds objects")
        if math.prod(shape) * dtype.itemsize > min(info.file_size, size):  # check before memory is allocated
            raise ValueError(f"{info.filename} is cut short")
        return np.frombuffer(bytearray(file.read()), dtype).reshape(shape, order="F" if fortran else "C")


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
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
        raise DamagedError(f"{where}: cannot be read ({_reason(err)})") from err
    if isinstance(value, dict) and "sha256" in value and value.pop("sha256") != _checksum(value):
        raise DamagedError(f"{where}: is damaged (its checksum is wrong)")
    return value


def _checksum(body: dict) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _reason(err: Exception) -> str:
    return str(err).encode("unicode_escape").decode()[:200] or type(err).__name__


def _lock(lock: IO[str], busy: str) -> None:
    """Lock an open file, or raise SsorlError(busy). On network file systems without locks, do nothing."""
    with suppress(OSError):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise SsorlError(busy) from err


@contextmanager
def locked(folder: Path, other: str = "another folder") -> Iterator[None]:
    """Create a folder, hold its lock during the block, and remove temporary files of interrupted processes.

    Args:
        folder: the folder.
        other: what the message tells the user to choose instead.

    Raises:
        SsorlError: the folder cannot be written, or another process holds its lock.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as err:
        raise SsorlError(f"{folder}: cannot be written ({err.strerror}); choose {other}") from err
    with lock:  # the system releases the lock when the process ends, even if it is killed
        _lock(lock, f"{folder}: another process is writing there; wait until it ends or choose {other}")
        for left in folder.glob(".tmp-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


# Sealed files: arrays by name, `about.json` with metadata, a checksum of every byte -----------------------


def write_sealed(path: Path | str, about: dict, arrays: dict[str, Any], previous: Path | None = None) -> None:
    """Write a sealed file: an `.npz` with a member `about.json` and, as the zip's comment, the SHA-256 of the rest.

    Args:
        path: the file.
        about: metadata, written as JSON without NaN or infinity.
        arrays: arrays by name.
        previous: new name for the file that was at `path`.

    Raises:
        SsorlError: the file cannot be written.
    """
    with atomic(path, previous) as fresh:
        with zipfile.ZipFile(fresh, "w") as archive:
            archive.writestr(zipfile.ZipInfo("about.json"), json.dumps(about, indent=1, allow_nan=False))
            for name, array in arrays.items():
                array = np.asarray(array, order="C")
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array.view(_stored(array.dtype)), (1, 0), allow_pickle=False)
        with fresh.open("r+b") as file:
            file.seek(-2, os.SEEK_END)  # a zip ends with the length of its comment, then the comment
            file.write(SEAL.to_bytes(2, "little"))
            file.seek(0)
            seal = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0, os.SEEK_END)
            file.write(seal.encode())


class Sealed:
    """A sealed file, open for reading; its checksum was correct."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self.archive = archive
        self.size = os.fstat(archive.fp.fileno()).st_size  # type: ignore[union-attr]
        if archive.getinfo("about.json").file_size > LARGEST_ABOUT:
            raise ValueError("its about.json is too large")
        self.about = json.loads(archive.read("about.json"), parse_constant=_reject_constant)
        if not isinstance(self.about, dict):
            raise ValueError("its about.json is not an object")

    def read(self, wanted: dict[str, Any]) -> dict[str, np.ndarray]:
        """Return the arrays of the file.

        Sizes are checked before anything is read, so a malicious file cannot make the reader allocate memory.

        Args:
            wanted: objects with the expected `shape` and `dtype`, by name of the array.

        Returns:
            Arrays by name, with exactly the names of `wanted`.

        Raises:
            ValueError: an array is missing, unexpected, cut short, or of another shape or dtype.
        """
        present = sorted(self.archive.namelist())
        expected = sorted(["about.json", *(f"{name}.npy" for name in wanted)])
        if present != expected:
            wrong = sorted(set(present) ^ set(expected)) or present
            raise ValueError(f"arrays missing or unexpected: {', '.join(wrong[:3])}")
        return {name: self._array(name, tuple(like.shape), np.dtype(like.dtype)) for name, like in wanted.items()}

    def _array(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        info, stored = self.archive.getinfo(f"{name}.npy"), _stored(dtype)
        with self.archive.open(info) as file:
            if info.compress_type != zipfile.ZIP_STORED or np.lib.format.read_magic(file) != (1, 0):
                raise ValueError(f"{name} is compressed or in an unknown array format")
            actual_shape, _, actual_dtype = _header(file)
            if actual_shape != shape or actual_dtype != stored:
                raise ValueError(f"{name} is {actual_dtype}{list(actual_shape)}, expected {stored}{list(shape)}")
            n_bytes = math.prod(shape) * stored.itemsize
            if n_bytes > min(info.file_size, self.size):
                raise ValueError(f"{name} is cut short")
            body = bytearray(file.read(n_bytes))  # a bytearray, so that the array is writable
        return np.frombuffer(body, stored).view(dtype).reshape(shape)


@contextmanager
def sealed(path: Path | str, what: str, cure: str = "") -> Iterator[Sealed]:
    """Open a file that `write_sealed` wrote, and yield it.

    Args:
        path: the file.
        what: what the file should be, such as "a saved policy", for messages.
        cure: what the user can do, appended to the messages.

    Raises:
        DamagedError: the file is of another kind, cut short or damaged.
        DataError: the file cannot be read, or its content is invalid.
    """
    try:
        with Path(path).open("rb") as file:
            if not _checksum_matches(file):
                raise DamagedError(f"{path}: is not {what}, or is cut short or damaged (its checksum is wrong){cure}")
            with zipfile.ZipFile(file) as archive:
                yield Sealed(archive)
    except SsorlError:
        raise
    except OSError as err:
        raise DataError(f"{path}: cannot be read ({err.strerror or err}); check the name") from err
    except Exception as err:  # untrusted bytes: every error here means that the content is invalid
        raise DataError(f"{path}: cannot be read as {what} ({_reason(err)}){cure}") from err


def _checksum_matches(file: Any) -> bool:
    size = file.seek(0, os.SEEK_END)
    if size < SEAL:
        return False
    file.seek(0)
    digest, left = hashlib.sha256(), size - SEAL
    while left and (block := file.read(min(left, 1 << 20))):
        digest.update(block)
        left -= len(block)
    seal = file.read()
    file.seek(0)
    return seal == digest.hexdigest().encode()


def _stored(dtype: np.dtype) -> np.dtype:
    """Return the dtype in the file: unsigned integers for types that NumPy does not know, such as bfloat16."""
    return np.dtype(f"u{dtype.itemsize}") if dtype.kind == "V" else dtype


def _reject_constant(text: str) -> float:
    raise ValueError(f"{text} is not a finite number")
