"""Sealed files: arrays by name, `about.json` with metadata, and a checksum of every byte; never a pickle.

Policies, inverse dynamics models and the checkpoints of trainings and collectors are sealed files.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ssorl.utils.errors import DataError, SsorlError
from ssorl.utils.files import DamagedError, array_header, atomic, reason

SEAL = 64  # characters of the checksum at the end of a sealed file
LARGEST_ABOUT = 1 << 24  # bytes of `about.json`


def write_sealed(path: Path | str, about: dict, arrays: Mapping[str, Any], previous: Path | None = None) -> None:
    """Write a sealed file: an `.npz` with a member `about.json` and, as the zip's comment, the SHA-256 of the rest.

    Args:
        path: the file.
        about: metadata, written as JSON without NaN or infinity.
        arrays: arrays by name; no object arrays.
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
        self.about: dict[str, Any] = {}
        if "about.json" in archive.namelist():
            if archive.getinfo("about.json").file_size > LARGEST_ABOUT:
                raise ValueError("its about.json is too large")
            self.about = json.loads(archive.read("about.json"), parse_constant=_reject_constant)
        if not isinstance(self.about, dict):
            raise ValueError("its about.json is not an object")

    @property
    def names(self) -> list[str]:
        """The names of the arrays."""
        return [name.removesuffix(".npy") for name in self.archive.namelist() if name != "about.json"]

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
        return {name: self.array(name, like) for name, like in wanted.items()}

    def array(self, name: str, like: Any = None) -> np.ndarray:
        """Return one array.

        Args:
            name: its name.
            like: an object with the expected `shape` and `dtype`; None: any are accepted.

        Raises:
            ValueError: the array is missing, cut short, holds objects, or is of another shape or dtype.
        """
        if f"{name}.npy" not in self.archive.namelist():
            raise ValueError(f"it has no array {name}")
        info = self.archive.getinfo(f"{name}.npy")
        with self.archive.open(info) as file:
            if info.compress_type != zipfile.ZIP_STORED or np.lib.format.read_magic(file) != (1, 0):
                raise ValueError(f"{name} is compressed or in an unknown array format")
            shape, fortran, stored = array_header(file)
            dtype = stored if like is None else np.dtype(like.dtype)
            if like is not None and (shape != tuple(like.shape) or stored != _stored(dtype)):
                raise ValueError(f"{name} is {stored}{list(shape)}, expected {_stored(dtype)}{list(like.shape)}")
            if stored.hasobject:
                raise ValueError(f"{name} holds objects, and no objects are ever unpickled")
            n_bytes = math.prod(shape) * stored.itemsize
            if n_bytes > min(info.file_size, self.size):
                raise ValueError(f"{name} is cut short")
            body = bytearray(file.read(n_bytes))  # a bytearray, so that the array is writable
        return np.frombuffer(body, stored).view(dtype).reshape(shape, order="F" if fortran else "C")


@contextmanager
def sealed(path: Path | str, kind: str, cure: str = "") -> Iterator[Sealed]:
    """Open a file that `write_sealed` wrote, and yield it.

    Args:
        path: the file.
        kind: the expected kind of file, such as "a saved policy", for messages.
        cure: what the user can do, appended to the messages.

    Raises:
        DamagedError: the file is of another kind, cut short or damaged.
        DataError: the file cannot be read, or its content is invalid.
    """
    try:
        with Path(path).open("rb") as file:
            if not _checksum_matches(file):
                raise DamagedError(f"{path}: is not {kind}, or is cut short or damaged (its checksum is wrong){cure}")
            with zipfile.ZipFile(file) as archive:
                yield Sealed(archive)
    except SsorlError:
        raise
    except OSError as err:
        raise DataError(f"{path}: cannot be read ({err.strerror or err}); check the name") from err
    except Exception as err:  # untrusted bytes: every error here means that the content is invalid
        raise DataError(f"{path}: cannot be read as {kind} ({reason(err)}){cure}") from err


@contextmanager
def sealed_or_npz(path: Path | str) -> Iterator[Sealed]:
    """Open a sealed file, or the `.npz` without a checksum that version 0.1 wrote in its place, and yield it.

    Raises:
        DamagedError: a sealed file is cut short or damaged.
        Exception: any other error of reading untrusted bytes, for the caller to put into a sentence.
    """
    with Path(path).open("rb") as file:
        intact = _checksum_matches(file)
        with zipfile.ZipFile(file) as archive:
            if not intact and (archive.comment or "about.json" in archive.namelist()):
                raise DamagedError(f"{path}: is damaged (its checksum is wrong)")
            if any(info.comment for info in archive.filelist):  # a damaged length field can hide the next members
                raise ValueError("its directory of arrays is damaged")
            yield Sealed(archive)


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
