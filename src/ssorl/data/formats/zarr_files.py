"""The files of a Zarr store, in a folder or a zip, checked before the zarr package decodes anything."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ssorl.data.validate import escaped, first_bytes
from ssorl.utils.errors import DataError

CODECS = {"blosc", "gzip", "zlib", "zstd", "lz4", "bz2", "lzma", "shuffle", "delta", "crc32c", "crc32", "adler32"}
CODECS |= {"bytes", "endian", "transpose", "fixedscaleoffset", "quantize", "bitround", "packbits"}
LARGEST_RATIO = 1100  # all arrays together: no recording compresses better
LARGEST_CHUNK = 1 << 30  # bytes


class ZarrFiles:
    """The files of a store, in a folder or a zip, and the metadata of its arrays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.archive = None if path.is_dir() else zipfile.ZipFile(path) if _is_zip(path) else None
        if self.archive is None:
            self.sizes = {}
        else:
            self.sizes = {info.filename: info for info in self.archive.infolist()}

    def __enter__(self) -> ZarrFiles:
        return self

    def __exit__(self, *_: object) -> None:
        if self.archive is not None:
            self.archive.close()

    @property
    def is_store(self) -> bool:
        """Whether the root is a Zarr group that has `data`."""
        marks = ("data/.zgroup", "data/zarr.json")
        return any(self.exists(name) for name in marks)

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return (self.path / name).is_file() if self.archive is None else name in self.sizes

    def check_names(self) -> None:
        """Raise DataError if a name leads out of the zip, or a member claims more than its bytes can hold."""
        total = self.path.stat().st_size
        for name, info in self.sizes.items():
            if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or ":" in name:
                raise DataError(f"{self.path}: holds the path {escaped(name)}, which leaves the zip; write it again")
            if info.file_size > LARGEST_RATIO * max(min(info.compress_size, total), 1):
                raise DataError(
                    f"{self.path}: {escaped(name)} claims {info.file_size} bytes but takes up {info.compress_size}; "
                    "write it again"
                )

    def json(self, name: str) -> dict:
        """A metadata file."""
        raw = (self.path / name).read_bytes() if self.archive is None else self.archive.read(name)
        found = json.loads(raw)
        if not isinstance(found, dict):
            raise DataError(f"{self.path}: {escaped(name)} is not a JSON object; write it again")
        return found

    def children(self, group: str) -> list[str]:
        """The names of the arrays in a group, in alphabetical order."""
        if self.archive is None:
            names = (
                [p.name for p in (self.path / group).iterdir() if p.is_dir()] if (self.path / group).is_dir() else []
            )
        else:
            names = {n.split("/")[1] for n in self.sizes if n.startswith(f"{group}/") and n.count("/") > 1}
        return sorted(n for n in names if self.exists(f"{group}/{n}/.zarray") or self.exists(f"{group}/{n}/zarr.json"))

    def stored(self, array: str) -> int:
        """The bytes of all chunks of an array."""
        if self.archive is None:
            return sum(p.stat().st_size for p in (self.path / array).rglob("*") if p.is_file())
        return sum(info.compress_size for name, info in self.sizes.items() if name.startswith(f"{array}/"))

    def array(self, name: str) -> tuple[tuple[int, ...], np.dtype, tuple[int, ...]]:
        """Return shape, type and chunk shape of an array whose codecs may be used.

        Raises:
            DataError: it holds something other than numbers, or needs a codec that is not on the list.
        """
        old = self.exists(f"{name}/.zarray")
        about = self.json(f"{name}/{'.zarray' if old else 'zarr.json'}")
        if old:
            codecs = [about.get("compressor"), *(about.get("filters") or [])]
            names = [c["id"] if isinstance(c, dict) else c for c in codecs if c is not None]
            kind, chunks = about["dtype"], about["chunks"]
        else:
            if about.get("node_type") != "array" or about.get("storage_transformers"):
                raise DataError(f"{self.path}: {escaped(name)} is not a plain array; write it again")
            names = list(_codec_names(about["codecs"]))
            kind, chunks = about["data_type"], about["chunk_grid"]["configuration"]["chunk_shape"]
        if odd := [c for c in names if c not in CODECS]:
            raise DataError(
                f"{self.path}: {escaped(name)} is stored with the codec {escaped(odd[0])}, which is not used as it "
                "could run code or needs another package; save the array with zstd or without compression"
            )
        dtype = np.dtype(kind) if isinstance(kind, str) else None
        if dtype is None or dtype.kind not in "fiub":
            raise DataError(
                f"{self.path}: {escaped(name)} holds {escaped(kind)} and only numbers are read; save it again"
            )
        shape, chunks = tuple(map(int, about["shape"])), tuple(map(int, chunks))
        if len(shape) != len(chunks) or min((*shape, *chunks), default=0) < 0 or 0 in chunks:
            raise DataError(f"{self.path}: {escaped(name)} has shape {shape} in chunks of {chunks}; write it again")
        size = int(np.prod(chunks, dtype=object)) * dtype.itemsize
        if size > LARGEST_CHUNK:
            raise DataError(f"{self.path}: {escaped(name)} has chunks of {size} bytes; save it in smaller ones")
        return shape, dtype, chunks

    def check_sizes(self, arrays: list[str]) -> None:
        """Raise DataError if arrays claim more than their chunks can hold; chunks of zeros need not be stored."""
        claimed = stored = 0
        for name in arrays:
            shape, dtype, _ = self.array(name)
            claimed += int(np.prod(shape, dtype=object)) * dtype.itemsize
            stored += self.stored(name)
        if claimed > LARGEST_RATIO * max(stored, 1):
            raise DataError(f"{self.path}: its arrays claim {claimed} bytes but store {stored}; write the values out")


def _codec_names(codecs: list) -> Iterator[str]:
    """The names of codecs of format 3, those inside shards included."""
    for codec in codecs:
        if codec["name"] == "sharding_indexed":
            inner = codec["configuration"]
            yield from _codec_names([*inner["codecs"], *inner.get("index_codecs", [])])
        else:
            yield codec["name"].removeprefix("numcodecs.")


def _is_zip(path: Path) -> bool:
    return first_bytes(path, 4) == b"PK\x03\x04"
