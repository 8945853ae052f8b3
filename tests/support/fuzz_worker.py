"""Loads mutated files of one format and prints a line for each; it is a separate process, so that crashes are seen.

python -m support.fuzz_worker FORMAT COUNT FOLDER [FIRST]: case i depends on FORMAT and i alone, so it can be repeated.
A case that hangs ends the process with a traceback.
"""

from __future__ import annotations

import faulthandler
import json
import resource
import shutil
import sys
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ssorl.data import Episodes, load, save
from ssorl.data.stats import profile
from ssorl.utils.errors import SsorlError
from support import foreign
from support.clock import patience
from support.samples import READ_ONLY, make, place, poke

MEMORY = 6 << 30  # bytes of address space: forged sizes must raise, not be allocated


def originals(format: str, folder: Path) -> list[Path]:
    """Write valid files or folders to mutate."""
    eps = make()
    if format in READ_ONLY:
        return foreign_files(format, eps, folder)
    part = poke(poke(eps, "act", slice(0, 4), np.nan), "act", 7, np.nan)
    out = []
    for i, one in enumerate((part, make(lengths=(3, 3), n_obs=1, n_act=0, ended=()))):
        path = place(folder, format, f"seed{i}")
        save(one, path, format)
        out.append(path)
    out += foreign_files(format, eps, folder)
    if format == "d4rl":
        out += plain_d4rl(eps, folder)
    if format == "pickle":
        out += plain_pickles(eps, folder)
    if format == "minari":
        out.append(minari_with_text(eps, folder))
    return out


def foreign_files(format: str, eps: Episodes, folder: Path) -> list[Path]:
    """As other packages write them."""
    if format == "robomimic":
        return [foreign.robomimic(folder / f"plain{n}.hdf5", eps, next_obs=bool(n), drop=(1,)) for n in range(2)]
    if format == "aloha":
        return [foreign.aloha(folder / "aloha", eps)]
    if format == "ogbench":
        return [foreign.ogbench(folder / "ogbench.npz", eps)]
    if format == "csv":
        return [foreign.csv_table(folder / f"table{n}.csv", eps, ",;"[n]) for n in range(2)]
    if format == "zarr":
        stores = [foreign.zarr_store(folder / f"plain{v}.zarr", eps, v) for v in (2, 3)]
        return stores + [foreign.zarr_store(folder / f"plain{v}.zip", eps, v, zipped=True) for v in (2, 3)]
    return []


def plain_d4rl(eps: Episodes, folder: Path) -> list[Path]:
    """As D4RL itself writes: no metadata, no compression; and one in the oldest HDF5 style, one in the newest."""
    import h5py

    out = []
    for version in ("earliest", "latest"):
        path = folder / f"hopper-{version}.hdf5"
        with h5py.File(path, "w", libver=version) as file:
            file["observations"] = eps.obs[eps.obs_row]
            file["actions"] = eps.act
            file["rewards"] = eps.rew
            file["terminals"] = eps.terminated
            file["timeouts"] = eps.truncated
            file["infos/qpos"] = eps.obs[eps.obs_row]
        out.append(path)
    return out


def minari_with_text(eps: Episodes, folder: Path) -> Path:
    """Infos may hold text, which HDF5 keeps in a heap of its own."""
    import h5py

    path = place(folder, "minari", "text")
    save(eps, path, "minari")
    with h5py.File(path / "data" / "main_data.hdf5", "r+") as file:
        for e in range(len(eps)):
            file[f"episode_{e}/infos/mission"] = ["go there", "and come back"] * 3
            file[f"episode_{e}/infos/speed"] = [1.0, 2.0]
    return path


def plain_pickles(eps: Episodes, folder: Path) -> list[Path]:
    """Of every protocol."""
    import pickle

    out = []
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        one = [
            {
                "observations": eps[e].obs[:-1],
                "next_observations": eps[e].obs[1:],
                "actions": eps[e].act.tolist(),
                "rewards": np.float64(eps[e].rew),
                "terminals": np.asfortranarray(eps[e].terminated),
                "name": np.float32(3),
            }
            for e in range(2)
        ]
        path = folder / f"p{protocol}.pkl"
        path.write_bytes(pickle.dumps(one, protocol))
        out.append(path)
    return out


def change(file: Path, rng: np.random.Generator) -> None:
    """Mutate one file; of a zip file, as often one of its members, so that the checksums agree."""
    if not zipfile.is_zipfile(file) or rng.random() < 0.3:
        file.write_bytes(mutate(file.read_bytes(), rng))
        return
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    which = list(members)[int(rng.integers(len(members)))]
    with zipfile.ZipFile(file, "w") as archive:
        for name, raw in members.items():
            archive.writestr(name, mutate(raw, rng) if name == which else raw)


def mutate(raw: bytes, rng: np.random.Generator) -> bytes:
    """One to eight changes: flipped bits, chosen bytes, holes, swapped or repeated blocks, cuts, inserted bytes."""
    data = bytearray(raw)
    for _ in range(int(rng.choice([1, 1, 1, 2, 3, 8]))):
        n = len(data)
        if n < 2:
            break
        at, size = int(rng.integers(n)), int(rng.integers(1, 1 + min(n, int(rng.choice([2, 8, 64, 512])))))
        match rng.integers(9):
            case 0:
                data[at] ^= 1 << int(rng.integers(8))
            case 1:
                data[at] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFE, 0xFF, int(rng.integers(256))]))
            case 2:
                data[at : at + size] = bytes(len(data[at : at + size]))
            case 3:
                data[at : at + size] = b"\xff" * len(data[at : at + size])
            case 4:
                to = int(rng.integers(n))
                a, b = bytes(data[at : at + size]), bytes(data[to : to + size])
                data[to : to + size] = a
                data[at : at + size] = b
            case 5:
                del data[at:]
            case 6:
                del data[at : at + size]
            case 7:
                data[at:at] = rng.bytes(size)
            case 8:
                for i in range(at, min(at + 8, n)):  # a huge number of any size
                    data[i] = int(rng.choice([0, 0xFF, 0x7F, data[i]]))
    return bytes(data)


def check(eps: Episodes) -> None:
    """Check that the trajectories are valid."""
    assert isinstance(eps, Episodes)
    assert eps.obs.dtype == eps.act.dtype == eps.rew.dtype == np.float32
    assert eps.terminated.dtype == bool and eps.start.dtype == np.int64
    assert eps.start[0] == 0 and (eps.lengths >= 2).all() and eps.start[-1] == len(eps.rew) == len(eps.act)
    assert eps.obs.shape[0] == eps.n_steps + eps.n_episodes and eps.obs.ndim == eps.act.ndim == 2
    assert eps.rew.shape == eps.terminated.shape == (eps.n_steps,)
    assert np.isfinite(eps.obs).all() and np.array_equal(np.isfinite(eps.rew), np.repeat(eps.rewarded, eps.lengths))
    missing = np.isnan(eps.act)
    assert (missing.all(1) | ~missing.any(1)).all()
    low, high = np.float32(eps.meta.act_low), np.float32(eps.meta.act_high)
    assert low.shape == high.shape == (eps.n_act,) and np.isfinite(low).all() and np.isfinite(high).all()
    assert (missing | ((eps.act >= low) & (eps.act <= high))).all()
    assert np.isin(np.flatnonzero(eps.terminated), eps.start[1:] - 1).all()
    json.dumps(profile(eps), allow_nan=False)


def answer(read: Callable[[Path], object], file: Path, named: Path) -> str:
    """Return `loaded`; `refused` if our own error was raised with the name `named`; or BAD and the reason."""
    faulthandler.dump_traceback_later(patience(60), exit=True)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            read(file)
            told = "loaded"
        except SsorlError as err:
            text = str(err)
            told = "refused" if str(named) in text and "\n" not in text else f"BAD message: {text!r}"
        except BaseException:
            told = "BAD " + traceback.format_exc().replace("\n", " | ")
    faulthandler.cancel_dump_traceback_later()
    if heard and not told.startswith("BAD"):
        told = f"BAD warned: {heard[0].message} {heard[0].filename}:{heard[0].lineno}".replace("\n", " ")
    return told


def run(format: str, count: int, folder: Path, first: int = 0) -> None:
    seeds = originals(format, folder)
    for path in seeds:
        check(load(path))
    for i in range(first, first + count):
        rng = np.random.default_rng([zlib.crc32(format.encode()), i])
        source = seeds[int(rng.integers(len(seeds)))]
        target = folder / f"case{source.suffix}" if source.is_file() else folder / "case-v0"
        if source.is_dir():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)
            file = sorted(p for p in target.rglob("*") if p.is_file())
            file = file[int(rng.integers(len(file)))]
        else:
            shutil.copyfile(source, target)
            file = target
        change(file, rng)
        print(f"{i} {source.name} {file.name}", end=" ", flush=True)
        print(answer(lambda path: check(load(path, format)), target, target), flush=True)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    faulthandler.enable()
    run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:5]))
