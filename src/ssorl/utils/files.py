"""Files that are either whole or not there."""

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
LARGEST_ABOUT = 1 << 24  # bytes of JSON in a sealed file


class DamagedError(DataError):
    """A file whose checksum does not fit, or that is cut short."""


@contextmanager
def atomic(path: Path | str, previous: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path beside `path`, of its name; what was written there replaces `path` only if all went well.

    Serves files and folders. A killed process leaves at most a `.tmp-` entry, never half a result. A file that was
    there is kept as `previous`, if one is named; at each moment one of the two names is whole. Where `path` is a link
    it stays one, and what it points to is written, unless the link itself is to become `previous`.
    """
    path = place = Path(path)
    if path.is_symlink() and previous is None:
        place = Path(os.path.realpath(path))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".tmp-{path.name}-", dir=place.parent))
    except OSError as err:
        raise SsorlError(f"{path}: cannot be written ({err.strerror}); choose another --out") from err
    try:
        fresh = scratch / path.name
        yield fresh
        _flush(fresh)
        if place.is_dir() and not place.is_symlink():
            if not fresh.is_dir():  # a folder full of someone's work never gives way to a file
                raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
            # os.replace cannot put one full folder in place of another, so the old one steps aside first.
            os.replace(place, scratch / "old")
        if previous and place.exists():
            os.replace(place, previous)
        os.replace(fresh, place)
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


def read_npz(path: Path | str) -> dict[str, np.ndarray]:
    """All arrays of a file that `write_npz` wrote, each held against its size and the checksum in the zip."""
    with Path(path).open("rb") as file:
        try:
            archive, size = zipfile.ZipFile(file), os.fstat(file.fileno()).st_size
            if any(info.comment for info in archive.filelist):  # a wrong length, and the members behind it are gone
                raise ValueError("its directory is not as it was written")
            return {info.filename.removesuffix(".npy"): _plain_array(archive, info, size) for info in archive.filelist}
        except Exception as err:  # the boundary to foreign bytes: any error there means the same to the user
            raise DamagedError(f"{path}: is cut short or damaged ({_reason(err)})") from err


def _plain_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, size: int) -> np.ndarray:
    with archive.open(info) as file:
        if info.compress_type != zipfile.ZIP_STORED or np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{info.filename} is not stored plainly")
        shape, fortran, dtype = _header(file)
        if dtype.hasobject:
            raise ValueError(f"{info.filename} holds objects")
        if math.prod(shape) * dtype.itemsize > min(info.file_size, size):  # before memory is asked for
            raise ValueError(f"{info.filename} is cut short")
        return np.frombuffer(bytearray(file.read()), dtype).reshape(shape, order="F" if fortran else "C")


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type. Python warns of what a damaged one might mean, which is of no use to anybody."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.lib.format.read_array_header_1_0(file)


def write_text(path: Path | str, text: str) -> None:
    """A text file, whole or not at all."""
    with atomic(path) as fresh:
        fresh.write_text(text)


def write_json(path: Path | str, body: dict[str, Any]) -> None:
    """A JSON object, whole or not at all, with a checksum of the rest as its last entry, `sha256`."""
    plain = json.loads(json.dumps(body, allow_nan=False))  # as it will be read: tuples are lists, keys are texts
    write_text(path, json.dumps({**plain, "sha256": _checksum(plain)}, indent=1))


def read_json(path: Path | str) -> Any:
    """What `write_json` wrote, after its checksum is found right; of a file without one, whatever it holds."""
    return parse_json(Path(path).read_bytes(), path)


def parse_json(raw: bytes, where: Path | str) -> Any:
    """The same of the bytes of a file."""
    try:
        told = json.loads(raw.decode())
    except (ValueError, RecursionError) as err:
        raise DamagedError(f"{where}: cannot be read ({_reason(err)})") from err
    if isinstance(told, dict) and "sha256" in told and told.pop("sha256") != _checksum(told):
        raise DamagedError(f"{where}: is damaged (its checksum is wrong)")
    return told


def _checksum(body: dict) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _reason(err: Exception) -> str:
    return str(err).encode("unicode_escape").decode()[:200] or type(err).__name__


def hold(lock: IO[str], busy: str) -> None:
    """Lock an open file, or say that it is `busy`. Some network folders know no locks: there all go on."""
    with suppress(OSError):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise SsorlError(busy) from err


@contextmanager
def locked(folder: Path, other: str = "another folder") -> Iterator[None]:
    """Make a folder and be the only process that writes there; what an earlier one left unfinished is cleared away."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as err:
        raise SsorlError(f"{folder}: cannot be written ({err.strerror}); choose {other}") from err
    with lock:  # the system lets go of it when the process ends, however it ends
        hold(lock, f"{folder}: another process is at work on it; wait for it or choose {other}")
        for left in folder.glob(".tmp-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


# Sealed files: arrays by name, a JSON about them, a checksum of every byte --------------------------------


def write_sealed(path: Path | str, about: dict, arrays: dict[str, Any], previous: Path | None = None) -> None:
    """Write a plain `.npz` with one more member, `about.json`, and the SHA-256 of the rest as the zip's comment."""
    with atomic(path, previous) as fresh:
        with zipfile.ZipFile(fresh, "w") as archive:
            archive.writestr(zipfile.ZipInfo("about.json"), json.dumps(about, indent=1, allow_nan=False))
            for name, array in arrays.items():
                array = np.asarray(array, order="C")
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array.view(_stored(array.dtype)), (1, 0), allow_pickle=False)
        with fresh.open("r+b") as file:
            file.seek(-2, os.SEEK_END)  # a zip ends with the length of its comment and the comment
            file.write(SEAL.to_bytes(2, "little"))
            file.seek(0)
            seal = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0, os.SEEK_END)
            file.write(seal.encode())


class Sealed:
    """A sealed file, open for reading after its checksum was found right."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self.archive = archive
        self.size = os.fstat(archive.fp.fileno()).st_size  # type: ignore[union-attr]
        if archive.getinfo("about.json").file_size > LARGEST_ABOUT:
            raise ValueError("its about.json is too large")
        self.about = json.loads(archive.read("about.json"), parse_constant=_no_constant)
        if not isinstance(self.about, dict):
            raise ValueError("its about.json is of something else")

    def read(self, wanted: dict[str, Any]) -> dict[str, np.ndarray]:
        """The arrays, exactly those wanted; each name maps to what has the right `shape` and `dtype`.

        Nothing is read before its size is known to be the one wanted, so a file cannot ask for memory.
        """
        there = sorted(self.archive.namelist())
        due = sorted(["about.json", *(f"{name}.npy" for name in wanted)])
        if there != due:
            odd = sorted(set(there) ^ set(due)) or there
            raise ValueError(f"arrays missing or not expected: {', '.join(odd[:3])}")
        return {name: self._array(name, tuple(like.shape), np.dtype(like.dtype)) for name, like in wanted.items()}

    def _array(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        info, stored = self.archive.getinfo(f"{name}.npy"), _stored(dtype)
        with self.archive.open(info) as file:
            if info.compress_type != zipfile.ZIP_STORED or np.lib.format.read_magic(file) != (1, 0):
                raise ValueError(f"{name} is not stored plainly")
            found, _, kind = _header(file)
            if found != shape or kind != stored:
                raise ValueError(f"{name} is {kind}{list(found)} where {stored}{list(shape)} is due")
            n_bytes = math.prod(shape) * stored.itemsize
            if n_bytes > min(info.file_size, self.size):
                raise ValueError(f"{name} is cut short")
            body = bytearray(file.read(n_bytes))  # so that the array can be written to
        return np.frombuffer(body, stored).view(dtype).reshape(shape)


@contextmanager
def sealed(path: Path | str, what: str, cure: str = "") -> Iterator[Sealed]:
    """Open a file that `write_sealed` wrote. Whatever a damaged or foreign one leads to is one sentence."""
    try:
        with Path(path).open("rb") as file:
            if not _whole(file):
                raise DamagedError(f"{path}: is not {what}, or is cut short or damaged (its checksum is wrong){cure}")
            with zipfile.ZipFile(file) as archive:
                yield Sealed(archive)
    except SsorlError:
        raise
    except OSError as err:
        raise DataError(f"{path}: cannot be read ({err.strerror or err}); check the name") from err
    except Exception as err:  # the boundary to foreign bytes: any error there means the same to the user
        raise DataError(f"{path}: cannot be read as {what} ({_reason(err)}){cure}") from err


def _whole(file: Any) -> bool:
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
    """What a file holds for a type: bits, for those that NumPy has no name for, such as bfloat16."""
    return np.dtype(f"u{dtype.itemsize}") if dtype.kind == "V" else dtype


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")
