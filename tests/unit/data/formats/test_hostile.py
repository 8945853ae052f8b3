"""Hostile files: programs in pickles, forged sizes, links that lead elsewhere. None may run, reach out or take long."""

from __future__ import annotations

import copyreg
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import foreign
from support.refusals import CURE, GOOD, Refusals, d4rl, dicts, minari, minari_meta, npz

from ssorl.data import load
from ssorl.utils.errors import DataError

BAD = Refusals()
bad = BAD.case


# --- files that lie about their size, or reach out of themselves


@bad("npz: objects", r"obs holds object .*no objects are ever unpickled")
def _(folder):
    return npz(folder, obs=np.array([[Bomb(folder)] * 3] * 22))


@bad("npz: a header that lies", r"rew is cut short \(72 bytes for shape \(1000000000000,\)\); write")
def _(folder):
    with zipfile.ZipFile(npz(folder)[0]) as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    members["rew.npy"] = members["rew.npy"].replace(b"(18,), }" + b" " * 11, b"(1000000000000,), }")
    with zipfile.ZipFile(folder / "set.npz", "w") as archive:
        for name, raw in members.items():
            archive.writestr(name, raw)
    return [folder / "set.npz"]


def bomb(folder: Path, forge: bool) -> list:
    path = npz(folder, obs=None)[0]
    with zipfile.ZipFile(path, "a", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("obs.npy", npy(bytes(20_000_000), (5_000_000, 1)))
    if forge:  # the directory at the end says that the packed array is large, too
        raw = bytearray(path.read_bytes())
        at = raw.rindex(b"PK\x01\x02")
        struct.pack_into("<I", raw, at + 20, 2**31)
        path.write_bytes(raw)
    return [path]


def npy(raw: bytes, shape: tuple) -> bytes:
    head = repr({"descr": "<f4", "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + raw


bad("npz: a zip bomb", r"obs claims 20000128 bytes but takes up \d+,", "write")(lambda f: bomb(f, False))
bad("npz: a zip bomb that forges its size", r"set\.npz", CURE)(lambda f: bomb(f, True))


@bad("npz: a packed array cut off by its own size", r"set\.npz", CURE)
def _(folder):
    path = npz(folder)[0]
    raw = bytearray(path.read_bytes())
    at = raw.rindex(b"PK\x01\x02")
    struct.pack_into("<II", raw, at + 20, 2**31, 2**31)
    path.write_bytes(raw)
    return [path]


@bad("d4rl: a size with nothing stored", r"observations declares \d+ bytes but stores 0; write its values out")
def _(folder):
    path = d4rl(folder, observations=None, rewards=None)[0]
    with h5py.File(path, "r+") as file:
        file.create_dataset("observations", (2**40, 3), "f4", chunks=(1024, 3))
        file.create_dataset("rewards", (2**40,), "f4", chunks=(1024,))
    return [path]


@bad("minari: a size with nothing stored", r"set-v0: episode_1/observations declares \d+ bytes but stores 0")
def _(folder):
    path = minari(folder, **{"episode_1/observations": None})[0]
    with h5py.File(path / "data" / "main_data.hdf5", "r+") as file:
        file.create_dataset("episode_1/observations", (2**33, 3), "f4", chunks=(1024, 3))
    return [path]


def other_file(folder: Path) -> Path:
    with h5py.File(folder / "other.hdf5", "w") as file:
        file["x"] = GOOD.act
    return folder / "other.hdf5"


def linked(folder: Path, link) -> list:
    path = d4rl(folder, actions=None)[0]
    with h5py.File(path, "r+") as file:
        link(file)
    return [path]


LINKS = {
    "a link out of the file": lambda folder: (
        lambda f: f.__setitem__("actions", h5py.ExternalLink(other_file(folder), "x"))
    ),
    "a link to no file": lambda folder: lambda f: f.__setitem__("actions", h5py.ExternalLink("/nowhere.hdf5", "x")),
    "a soft link": lambda folder: lambda f: f.__setitem__("actions", h5py.SoftLink("/next_observations")),
    "a soft link to nothing": lambda folder: lambda f: f.__setitem__("actions", h5py.SoftLink("/nothing")),
    "a soft link to itself": lambda folder: lambda f: f.__setitem__("actions", h5py.SoftLink("/actions")),
}
for what, link in LINKS.items():
    bad(f"d4rl: {what}", r"set\.hdf5: actions is a link and links are not followed; copy")(
        lambda f, k=link: linked(f, k(f)),
    )


@bad("d4rl: values in another file", r"actions lies in another file and is not followed; copy")
def _(folder):
    (folder / "raw.bin").write_bytes(GOOD.act.tobytes())
    return linked(
        folder,
        lambda f: f.create_dataset("actions", GOOD.act.shape, "f4", external=[(str(folder / "raw.bin"), 0, 144)]),
    )


@bad("d4rl: values put together from another file", r"actions lies in another file and is not followed; copy")
def _(folder):
    layout = h5py.VirtualLayout(GOOD.act.shape, "f4")
    layout[:] = h5py.VirtualSource(str(other_file(folder)), "x", GOOD.act.shape)
    return linked(folder, lambda f: f.create_virtual_dataset("actions", layout))


@bad("minari: a link out of the file", r"set-v0: episode_1/actions is a link and links are not followed")
def _(folder):
    path = minari(folder, **{"episode_1/actions": None})[0]
    with h5py.File(path / "data" / "main_data.hdf5", "r+") as file:
        file["episode_1/actions"] = h5py.ExternalLink(str(other_file(folder)), "x")
    return [path]


@bad("minari: values in another file", r"set-v0: episode_1/actions lies in another file")
def _(folder):
    path = minari(folder, **{"episode_1/actions": None})[0]
    (folder / "raw.bin").write_bytes(GOOD[1].act.tobytes())
    with h5py.File(path / "data" / "main_data.hdf5", "r+") as file:
        file.create_dataset("episode_1/actions", (6, 2), "f4", external=[(str(folder / "raw.bin"), 0, 48)])
    return [path]


@bad("minari: an environment to be made", r"set-v0: its metadata\.json has no observation_space or action_space")
def _(folder):
    spec = {
        "id": "Evil-v0",
        "entry_point": "os:mkdir",
        "kwargs": {"path": str(folder / "pwned")},
        "additional_wrappers": [],
        "vector_entry_point": None,
    }
    return minari_meta(folder, observation_space=None, env_spec=json.dumps(spec))


@bad("lerobot: frames from nothing", r"claims 3000000 frames in \d+ bytes")
def _(folder):
    n = 3_000_000
    table = pa.table({"observation.state": pa.nulls(n, pa.list_(pa.float32())), "episode_index": np.zeros(n, np.int64)})
    pq.write_table(table, folder / "set.parquet", compression="zstd")
    return [folder / "set.parquet"]


# --- the formats of other packages


def zarr_zip(folder: Path, version: int = 2, **change: bytes | None) -> list:
    path = foreign.zarr_store(folder / "set.zip", GOOD, version, zipped=True)
    return [foreign.rezip(path, **change)]


def zarr_array(folder: Path, **change) -> list:
    """A store whose array of states says something else of itself."""
    path = foreign.zarr_store(folder / "set.zarr", GOOD, zipped=False)
    file = path / "data" / "block" / ".zarray"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    return [path]


@bad("zarr: a codec that unpickles", r"data/block is stored with the codec pickle, which is not used", "save")
def _(folder):
    return zarr_array(folder, filters=[{"id": "pickle", "protocol": 5}])


@bad("zarr: a codec of another package", r"codec imagecodecs_jpegxl, which is not used")
def _(folder):
    return zarr_array(folder, compressor={"id": "imagecodecs_jpegxl"})


@bad("zarr 3: a codec that unpickles", r"data/block is stored with the codec pickle, which is not used")
def _(folder):
    path = foreign.zarr_store(folder / "set.zarr", GOOD, 3)
    file = path / "data" / "block" / "zarr.json"
    about = json.loads(file.read_text())
    about["codecs"].insert(0, {"name": "numcodecs.pickle", "configuration": {}})
    file.write_text(json.dumps(about))
    return [path]


@bad("zarr 3: a codec hidden in a shard", r"data/block is stored with the codec pickle, which is not used")
def _(folder):
    path = foreign.zarr_store(folder / "set.zarr", GOOD, 3)
    file = path / "data" / "block" / "zarr.json"
    about = json.loads(file.read_text())
    inner = {"chunk_shape": [7, 2], "codecs": [*about["codecs"], {"name": "pickle"}], "index_codecs": []}
    about["codecs"] = [{"name": "sharding_indexed", "configuration": inner}]
    file.write_text(json.dumps(about))
    return [path]


@bad("zarr: states that are objects", r"no column is known as the state; give")
def _(folder):
    path = zarr_array(folder, dtype="|O", filters=[{"id": "pickle"}])[0]
    (path / "data" / "block" / "0.0").write_bytes(pickle.dumps(Bomb(folder)))
    (path / "data" / "agent_pos" / ".zarray").write_text((path / "data" / "block" / ".zarray").read_text())
    return [path]


@bad("zarr: a path that leaves the zip", r"holds the path \.\./\.\./evil, which leaves the zip; write")
def _(folder):
    return zarr_zip(folder, **{"../../evil": b"x"})


@bad("zarr: an absolute path", r"holds the path /etc/evil, which leaves the zip")
def _(folder):
    return zarr_zip(folder, **{"/etc/evil": b"x"})


@bad("zarr: rows from nothing", r"its arrays claim \d+ bytes but store \d+; write")
def _(folder):
    n = 10**9
    path = zarr_array(folder, shape=[n, 2], chunks=[1000, 2])[0]
    for name, size in (("agent_pos", 1), ("action", 2)):
        file = path / "data" / name / ".zarray"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"shape": [n, size], "chunks": [1000, size]}))
    import zarr

    zarr.open_group(path, mode="r+")["meta/episode_ends"][-1:] = n
    return [path]


@bad("zarr: a chunk of terabytes", r"data/block has chunks of \d+ bytes; save")
def _(folder):
    return zarr_array(folder, chunks=[2**40, 2])


def robot_link(folder: Path, name: str, link) -> list:
    path = foreign.robomimic(folder / "set.hdf5", GOOD)
    with h5py.File(path, "r+") as file:
        del file[name]
        file[name] = link
    return [path]


for name in ("data/demo_1/actions", "data/demo_0/obs/object", "data/demo_1/obs", "data/demo_2"):
    says = rf"{name} is a link and links are not followed; copy"
    bad(f"robomimic: a link in place of {name}", says)(
        lambda f, name=name: robot_link(f, name, h5py.ExternalLink(other_file(f), "x"))
    )


@bad("robomimic: a size with nothing stored", r"data/demo_1/actions declares \d+ bytes but stores 0")
def _(folder):
    path = foreign.robomimic(folder / "set.hdf5", GOOD)
    with h5py.File(path, "r+") as file:
        del file["data/demo_1/actions"]
        file.create_dataset("data/demo_1/actions", (2**40, 2), "f4", chunks=(1024, 2))
    return [path]


@bad("robomimic: rows that are missing", r"demo_1: actions has shape \(5, 2\) where 6 rows of 2 are due")
def _(folder):
    path = foreign.robomimic(folder / "set.hdf5", GOOD)
    with h5py.File(path, "r+") as file:
        rows = file["data/demo_1/actions"][:5]
        del file["data/demo_1/actions"]
        file["data/demo_1/actions"] = rows
    return [path]


@bad("aloha: a link out of the file", r"episode_1\.hdf5: observations/qpos is a link and links are not followed")
def _(folder):
    path = foreign.aloha(folder / "set", GOOD)
    with h5py.File(path / "episode_1.hdf5", "r+") as file:
        del file["observations/qpos"]
        file["observations/qpos"] = h5py.ExternalLink(other_file(folder), "x")
    return [path]


@bad("aloha: another robot", r"episode_1\.hdf5: qpos has shape .* put different robots into different folders")
def _(folder):
    path = foreign.aloha(folder / "set", GOOD)
    with h5py.File(path / "episode_1.hdf5", "r+") as file:
        del file["observations/qpos"]
        file["observations/qpos"] = np.zeros((7, 5))
    return [path]


@bad("ogbench: objects", r"holds object and only numbers are read; no objects are ever unpickled")
def _(folder):
    return [foreign.ogbench(folder / "set.npz", GOOD, actions=np.array([[Bomb(folder)] * 2] * 22))]


@bad("ogbench: images", r"observations has shape \(22, 2, 2, 3\); images are not read: choose vectors")
def _(folder):
    return [foreign.ogbench(folder / "set.npz", GOOD, observations=np.zeros((22, 2, 2, 3), np.uint8))]


@bad("ogbench: fewer actions than states", r"3 rows of actions but 22 of observations; fetch")
def _(folder):
    return [foreign.ogbench(folder / "set.npz", GOOD, actions=np.zeros((3, 2)))]


@bad("parquet: text for a state", r"no column is known as the state; give its columns with --state")
def _(folder):
    pq.write_table(pa.table({"state": ["x"] * 5, "episode_index": [0] * 5}), folder / "set.parquet")
    return [folder / "set.parquet"]


# --- pickles that are programs


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder / "pwned"),)


def program(name: str, body: Callable[[Path], bytes] | bytes, *says: str) -> None:
    @bad(f"pickle: {name}", r"set\.pkl", *says)
    def _(folder):
        (folder / "set.pkl").write_bytes(body(folder) if callable(body) else body)
        return [folder / "set.pkl"]


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def call(module: str, name: str, *args: str) -> bytes:
    return b"\x80\x02" + f"c{module}\n{name}\n(".encode() + b"".join(map(text, args)) + b"tR."


# Admitted names, for use in ways they were not admitted for.
DTYPE = (
    b"cnumpy\ndtype\n(X\x02\x00\x00\x00f4\x89\x88tR(K\x03X\x01\x00\x00\x00<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
)
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tC\x01btR"


def array(shape: bytes) -> bytes:
    return b"\x80\x04]" + ARRAY + b"(K\x01" + shape + DTYPE + b"\x89C\x04abcdtba."


PROGRAMS = {
    "os.system": (lambda f: call("os", "system", f"mkdir {f}/pwned"), r"contains os\.system, which could run code"),
    "eval": (lambda f: call("builtins", "eval", f"__import__('os').mkdir('{f}/pwned')"), r"contains builtins\.eval"),
    "eval of Python 2": (lambda f: call("__builtin__", "eval", "1")[2:], r"contains __builtin__\.eval"),
    "getattr": (b"\x80\x02cbuiltins\ngetattr\n.", r"contains builtins\.getattr"),
    "a dotted name": (b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93.", r"contains numpy\.ndarray\.__class__"),
    "a name in two lines": (b"\x80\x04\x8c\x06nu\nmpy\x8c\x07ndarray\x93.", r"contains nu\\nmpy\.ndarray"),
    "a name that is no text": (b"\x80\x04K\x01K\x02\x93.", "STACK_GLOBAL requires str"),
    "numpy's own loader": (call("numpy", "load", "x"), r"contains numpy\.load"),
    "numpy's reader of files": (call("numpy", "fromfile", "/etc/passwd"), r"contains numpy\.fromfile"),
    "copyreg": (b"\x80\x02ccopyreg\n_reconstructor\n.", r"contains copyreg\._reconstructor"),
    "a bomb inside a dict": (lambda f: pickle.dumps([{"observations": [Bomb(f)]}]), r"contains (posix|nt)\.mkdir"),
    "a class of one's own": (pickle.dumps([DataError("x")]), r"contains ssorl\.utils\.errors\.DataError"),
    "a path": (pickle.dumps([{"observations": Path("x")}]), r"contains pathlib"),
    "objects": (
        lambda f: pickle.dumps([{"observations": np.array([Bomb(f)])}]),
        r"an array of 'O8'|not one of numbers",
    ),
    "text": (pickle.dumps([np.array(["a"])]), "not one of numbers"),
    "records": (pickle.dumps([np.zeros(2, "f4,f4")]), "not one of numbers"),
    "a masked array": (pickle.dumps([np.ma.masked_array([1.0])]), r"contains numpy\.ma"),
    "a record array": (pickle.dumps([np.recarray(2, "f4")]), r"contains numpy"),
    "state set on a class": (b"\x80\x02cnumpy\ndtype\n}X\x01\x00\x00\x00aK\x01sb.", "sets the state of a type"),
    "slots set on a class": (b"\x80\x02cnumpy\nndarray\nN}X\x01\x00\x00\x00aK\x01s\x86b.", "sets the state of a type"),
    "state set on a function": (b"\x80\x02c_codecs\nencode\n}X\x01\x00\x00\x00aK\x01sb.", "sets the state of a fun"),
    "state set on a list": (b"\x80\x02]}X\x01\x00\x00\x00aK\x01sb.", "sets the state of a list"),
    "ndarray called": (b"\x80\x02cnumpy\nndarray\n(K\x05tR.", "cannot be read"),
    "a text called": (b"\x80\x02X\x01\x00\x00\x00a)R.", "calls a str"),
    "an array called": (b"\x80\x04" + ARRAY + b")R.", "calls a _Array"),
    "NEWOBJ": (b"\x80\x02cnumpy\ndtype\n)\x81.", "makes an object of a class"),
    "NEWOBJ_EX": (b"\x80\x04cnumpy\ndtype\n)}\x92.", "makes an object of a class"),
    "INST": (b"(inumpy\ndtype\n.", "makes an object of a class"),
    "OBJ": (b"(cnumpy\ndtype\no.", "makes an object of a class"),
    "a list as array": (ARRAY.replace(b"numpy\nndarray", b"builtins\nlist") + b".", "other than numpy.ndarray"),
    "an array without content": (b"\x80\x04]" + ARRAY + b"a.", "has no content"),
    "an array without end": (array(b"J\xff\xff\xff\x7f\x85"), r"shape \(2147483647,\) in it is cut short \(4 bytes\)"),
    "an array of negative size": (array(b"J\xff\xff\xff\xffJ\xff\xff\xff\xff\x86"), r"shape \(-1, -1\)"),
    "an array shaped by text": (array(b"X\x01\x00\x00\x00a"), "not made of bytes, a type and a shape"),
    "a type of objects": (call("numpy", "dtype", "O"), "not one of numbers"),
    "a type of a long name": (call("numpy", "dtype", "f" * 100), "not one of numbers"),
    "a type of many": (call("numpy", "dtype", "9999f4"), "not one of numbers"),
    "encoded text": (call("_codecs", "encode", "x", "rot13"), "other than latin-1"),
    "unknown bytes": (b"\x80\x04\xff\xfe\xfd.", "cannot be read"),
    "nothing but the mark": (b"\x80\x04", "cannot be read"),
    "a stack that runs dry": (b"\x80\x04R.", "cannot be read"),
    "a protocol to come": (b"\x80\x63].", "unsupported pickle protocol: 99"),
    "a persistent id": (b"\x80\x02X\x05\x00\x00\x00abc\ndQ.", r"outside the file \(abc\\nd\)"),
    "a persistent id of old": (b"Pabc\n.", r"outside the file \(abc\)"),
    "an array outside the file": (b"\x80\x05\x97.", "cannot be read"),
    # Sizes that are forged: none may cost memory or time.
    "a memo index without end": (b"\x80\x02]r\xff\xff\xff\xff0j\xff\xff\xff\xff.", "holds no trajectories"),
    "a memo index not there": (b"\x80\x02j\xff\xff\xff\x7f.", "cannot be read"),
    "bytes without end": (b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"abc.", "cannot be read"),
    "a bytearray without end": (b"\x80\x05\x96" + struct.pack("<Q", 2**42) + b"abc.", "cannot be read"),
    "a bytearray past all memory": (b"\x80\x05\x96" + b"\xff" * 8 + b"abc.", "cannot be read"),
    "text without end": (b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"abc.", "cannot be read"),
    "a frame without end": (b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"K\x01.", "holds a int"),
    "a number without end": (b"\x80\x02\x8b\xff\xff\xff\x7fabc.", "cannot be read"),
    "a list in itself": (b"\x80\x02]q\x00h\x00a.", "nested too deeply"),
    "a dict in itself": (b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.", "nested too deeply"),
    "lists in lists": (b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".", "nested too deeply"),
    "lists that unfold": (lambda f: unfolding(3000), r"unfolds to \d+ numbers from \d+ bytes"),
    "one array without end": (
        lambda f: pickle.dumps([{"observations": np.zeros((300, 4))}] * 20_000),
        r"unfolds to \d+",
    ),
    "a dict": (pickle.dumps(dicts()[0]), r"holds a dict where a list of trajectories is due; save"),
    "a list of lists": (pickle.dumps([[1, 2]]), r"trajectory 0 is a list where a dict of arrays is due; save"),
    "a number": (pickle.dumps(7), r"holds a int where a list"),
}
for name, (body, says) in PROGRAMS.items():
    program(name, body, says)
for protocol in range(6):
    program(
        f"a bomb, protocol {protocol}", lambda f, p=protocol: pickle.dumps([Bomb(f)], p), r"contains (posix|nt)\.mkdir"
    )


def unfolding(n: int) -> bytes:
    """A list of n times the list of n times the list of n numbers, in 6n bytes."""
    row = b"](" + b"K\x01" * n + b"eq\x00"
    table = b"](" + b"h\x00" * n + b"eq\x01"
    return b"\x80\x02" + row + b"0" + table + b"0](" + b"h\x01" * n + b"e."


def test_extension_codes_are_refused_even_where_registered(tmp_path):
    copyreg.add_extension("os", "mkdir", 0x70)
    try:
        copyreg._extension_cache[0x70] = os.mkdir
        for code in (b"\x82\x70", b"\x83\x70\x00", b"\x84\x70\x00\x00\x00"):
            (tmp_path / "set.pkl").write_bytes(b"\x80\x02" + code + b"(" + text(str(tmp_path / "pwned")) + b"tR.")
            with pytest.raises(DataError, match=r"set\.pkl.*makes an object"):
                load(tmp_path / "set.pkl")
        assert not (tmp_path / "pwned").exists()
    finally:
        copyreg._extension_cache.pop(0x70, None)
        copyreg.remove_extension("os", "mkdir", 0x70)


# --- all of them, from Python and from the command line


@pytest.mark.parametrize("case", BAD)
def test_refused_with_a_sentence(tmp_path, case):
    BAD.check_in_python(case, tmp_path)


@pytest.mark.parametrize("case", BAD)
def test_refused_on_the_command_line(tmp_path, capfd, case):
    BAD.check_on_the_command_line(case, tmp_path, capfd)
