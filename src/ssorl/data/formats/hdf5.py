"""HDF5 files: datasets that are checked before they are read, and the metadata that ssorl attaches."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import h5py
import h5py.h5l
import numpy as np

from ssorl.data.episodes import Meta
from ssorl.data.formats.npz import meta_from_json
from ssorl.data.stream import Header
from ssorl.data.validate import escaped, first_bytes
from ssorl.utils.errors import DataError

MAGIC = b"\x89HDF\r\n\x1a\n"
CACHE = 1 << 23  # bytes of a dataset that are kept unpacked, so that chunks at the edge of a part are unpacked once
LARGEST_RATIO = 1100  # gzip cannot compress more, so a larger declared shape is wrong


def has_members(path: Path, parent: str, prefix: str) -> bool:
    """Return whether it is an HDF5 file with a group that has members of this prefix; never raise."""
    if first_bytes(path, 8) != MAGIC:
        return False
    try:
        with h5py.File(path, "r") as file:
            return any(str(name).startswith(prefix) for name in group(file, parent, str(path)))
    except Exception:  # a damaged file, which the reader of the format refuses in a sentence
        return False


def group(parent: h5py.Group, name: str, src: str) -> h5py.Group:
    """Return a group that is stored in this file itself.

    Args:
        parent: the group, or file, that it is in.
        name: its name there.
        src: the file, for errors.

    Raises:
        DataError: it is missing, a link, or no group.
    """
    found = _member(parent, name, src)
    if not isinstance(found, h5py.Group):
        raise DataError(f"{src}: {_path(parent, name)} is not a group; write the file again")
    return found


def dataset(parent: h5py.Group, name: str, src: str) -> h5py.Dataset:
    """Return a dataset of numbers that is stored in this file itself and has the size that it declares.

    Args:
        parent: the group, or file, that it is in.
        name: its name there.
        src: the file, for errors.

    Raises:
        DataError: it is missing, a link, no array of numbers, or its values are stored elsewhere or nowhere.
    """
    data = _member(parent, name, src)
    if not isinstance(data, h5py.Dataset) or data.dtype.kind not in "fiub" or data.ndim == 0:
        raise DataError(f"{src}: {_path(parent, name)} is not an array of numbers; give one number or vector per step")
    if fault := storage_fault(data):
        raise DataError(f"{src}: {_path(parent, name)} {fault}")
    return data


def _member(parent: h5py.Group, name: str, src: str) -> object:
    try:
        kind = parent.id.links.get_info(name.encode()).type  # `get(name, getlink=True)` takes several times longer
    except KeyError as err:
        raise DataError(f"{src}: has no {_path(parent, name)}; write the file again, or fetch it again") from err
    if kind != h5py.h5l.TYPE_HARD:
        raise link_error(_path(parent, name), src)
    return parent[name]


def _path(parent: h5py.Group, name: str) -> str:
    return escaped(f"{parent.name}/{name}".strip("/"))


def link_error(name: str, src: str) -> DataError:
    """Return the error for a link that leads elsewhere, in this file or out of it."""
    return DataError(f"{src}: {name} is a link and links are not followed; copy the data into the file")


def storage_fault(data: h5py.Dataset) -> str | None:
    """Return what is wrong if the values of a dataset are in another file or not stored at all."""
    created = data.id.get_create_plist()
    if created.get_external_count() or created.get_layout() == h5py.h5d.VIRTUAL:
        return "lies in another file and is not followed; copy the data into the file"
    stored = data.id.get_storage_size()
    if data.nbytes > LARGEST_RATIO * max(stored, 1):
        return f"declares {data.nbytes} bytes but stores {stored}; write its values out"
    return None


def check_free_space(path: Path, header: Header) -> None:
    """Raise OSError if the disk is too small: libhdf5 may crash the process when the disk fills up while it writes."""
    need = header.n_steps * 4 * (2 * header.n_obs + 2 * header.n_act + 3) + (1 << 20)  # unpacked, labels included
    free = shutil.disk_usage(path.parent).free
    if free < need:
        raise OSError(errno.ENOSPC, f"{free / 1e9:.1f} GB are free, and it takes up to {need / 1e9:.1f} GB")


def own_meta(group: h5py.Group, src: str) -> Meta | None:
    """Return the metadata that ssorl attached, or None."""
    # Text of variable length is in HDF5's global heap, and libhdf5 loops forever on a damaged heap.
    if "ssorl" in group.attrs and group.attrs.get_id("ssorl").dtype.kind == "S":
        return meta_from_json(np.bytes_(group.attrs["ssorl"]).decode(), src)
    return None


def attach_meta(group: h5py.Group, meta: Meta) -> None:
    """Store metadata as an attribute, as text of fixed length, which `own_meta` can read safely."""
    group.attrs["ssorl"] = np.bytes_(json.dumps(asdict(meta)))
