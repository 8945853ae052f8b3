"""Minari datasets, by id or by folder, read and written through Minari itself."""

from __future__ import annotations

import json
import os
import re
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import h5py
import numpy as np

from ssorl.data.episodes import Episodes, Meta
from ssorl.data.formats.hdf5 import check_free_space, link_error, storage_fault
from ssorl.data.formats.npz import meta_from_json
from ssorl.data.join import Trajectory, gather, is_terminated, join
from ssorl.data.stream import Header, LabelledPart, PartReader, header_of
from ssorl.data.validate import READ_ALL, Raw, ReadOptions, escaped, parser_errors
from ssorl.utils.errors import DataError
from ssorl.utils.extras import require

KIND = "a Minari dataset"


def sniff(path: Path) -> bool:
    """Return whether it is the folder of a Minari dataset, or the `data` folder in one."""
    return _data_folder(path) is not None


def load(path: Path, options: ReadOptions = READ_ALL) -> Episodes:
    """Read and check the dataset in a folder."""
    return _load(path, str(path), options)


def load_id(name: str, options: ReadOptions = READ_ALL) -> Episodes:
    """Read and check the dataset with this Minari id; Minari downloads it if it is not on this machine."""
    return _load(local_path(name), f"minari/{name}", options)


def local_path(name: str) -> Path:
    """Return the folder of the dataset with this Minari id; Minari downloads it if it is not on this machine."""
    folder = _root() / name
    if _data_folder(folder) is None:
        with _quiet():
            _download(name)
    return folder


def _load(path: Path, src: str, options: ReadOptions) -> Episodes:
    require("minari")
    with _quiet(), parser_errors(src, KIND), _without_infos():
        dataset = _open(path, src)
        # Minari hands out one episode at a time, so here alone a loop over trajectories is what its format asks for.
        return join((_trajectory(ep, src) for ep in dataset.iterate_episodes()), _meta(dataset, src), options)


def open_parts(path: Path, options: ReadOptions = READ_ALL) -> PartReader:
    """Return a reader of some episodes at a time."""
    src = str(path)
    with _quiet(), parser_errors(src, KIND):
        dataset = _open(path, src)
        meta, n_steps = _meta(dataset, src), int(dataset.total_steps)

    def read(size: int) -> Iterator[Raw]:
        episodes, first, some, steps = dataset.iterate_episodes(), 0, [], 0
        while True:
            with _quiet(), _without_infos():  # not held while the caller works on a part
                one = next(episodes, None)
            if one is None or (some and steps + np.size(one.rewards) > size):
                yield gather(some, meta, replace(options, first=first))
                first, some, steps = first + len(some), [], 0
            if one is None:
                return
            some.append(_trajectory(one, src))
            steps += np.size(one.rewards)

    return PartReader(meta, n_steps, KIND, read)


def _open(path: Path, src: str):
    require("minari")
    import minari

    folder = _data_folder(path)
    if folder is None:
        raise DataError(
            f"{src}: is not a Minari dataset; such a folder has data/metadata.json: choose another --format"
        )
    _guard(folder, src)
    return minari.MinariDataset(folder)


def _guard(folder: Path, src: str) -> None:
    """Raise DataError if a file makes Minari follow links, run code or reserve too much memory."""
    stored = json.loads((folder / "metadata.json").read_text())
    if not all(isinstance(stored.get(f"{kind}_space"), str) for kind in ("observation", "action")):
        # Minari would look them up in the environment, whose code the file names and gym.make would run.
        raise DataError(
            f"{src}: its metadata.json has no observation_space or action_space; write the set with Minari 0.5"
        )
    file = folder / "main_data.hdf5"
    n = stored.get("total_episodes")
    there = len(list(folder.iterdir()))
    if file.is_file():
        with h5py.File(file) as data:
            there = len(data)
            # Both walks end at the first name they are given; an error must not pass through HDF5's own code.
            link = data.visititems_links(lambda name, link: None if isinstance(link, h5py.HardLink) else name)
            if link is not None:
                raise link_error(link, src)
            fault = data.visititems(_fault)
            if fault is not None:
                raise DataError(f"{src}: {fault}")
    if not isinstance(n, int) or not 0 <= n <= there:
        raise DataError(
            f"{src}: its metadata.json speaks of {n} episodes where {there} are there at most; fetch it again"
        )


def _fault(name: str, item: object) -> str | None:
    """Return what is wrong with an object in Minari's HDF5 file, or None."""
    if not isinstance(item, h5py.Dataset):
        return None
    if item.dtype.kind not in "fiub" and "/infos/" not in name:
        return f"{name} holds {item.dtype} and only numbers are read; leave text and images out of the observations"
    fault = storage_fault(item)
    return fault and f"{name} {fault}"


@contextmanager
def _without_infos() -> Iterator[None]:
    # Infos are not needed, and libhdf5 loops forever on damaged text in them (see hdf5.py).
    from minari.dataset._storages import hdf5_storage as storage

    kept = storage._decode_info
    storage._decode_info = lambda info_group: {}
    try:
        yield
    finally:
        storage._decode_info = kept


def save(eps: Episodes, path: Path, extras: dict[str, np.ndarray]) -> None:
    """Write a Minari dataset folder with the extras as infos; the name of the folder becomes the id of the dataset."""
    save_parts(header_of(eps), iter([(eps, extras)]), path)


def save_parts(header: Header, parts: Iterator[LabelledPart], path: Path) -> None:
    """Write the same from trajectories that are read in parts."""
    check_free_space(path, header)
    require("minari")
    with _quiet():
        from gymnasium.spaces import Box
        from minari.dataset.minari_storage import MinariStorage

        (path / "data").mkdir(parents=True)
        meta = header.meta
        storage = MinariStorage.new(
            (path / "data").resolve(),  # Minari joins a relative path to itself
            observation_space=Box(-np.inf, np.inf, (header.n_obs,), np.float32),
            action_space=Box(meta.low, meta.high, (header.n_act,), np.float32),
        )
        name = re.sub(r"[^-\w]", "-", path.name)  # an id that Minari can take apart again
        name = name if re.search(r"[^-]-v\d+$", name) else f"{name}-v0"
        metadata = {"dataset_id": name, "ssorl": json.dumps(asdict(meta)), "minari_version": _version()}
        if meta.random_return is not None and meta.expert_return is not None:
            metadata |= {"ref_min_score": meta.random_return, "ref_max_score": meta.expert_return}
        storage.update_metadata(metadata)
        storage.update_episodes(_buffers(parts))


def _buffers(parts: Iterator[LabelledPart]):
    """Yield episodes as Minari's buffers."""
    from minari.data_collector import EpisodeBuffer

    number = 0
    for eps, extras in parts:
        for e in range(eps.n_episodes):
            one = eps[e]
            yield EpisodeBuffer(
                id=number,
                observations=one.obs,  # type: ignore[arg-type]  Minari takes stacked arrays as well as lists
                actions=one.act,  # type: ignore[arg-type]
                rewards=one.rew,  # type: ignore[arg-type]
                terminations=one.terminated,  # type: ignore[arg-type]
                truncations=one.truncated,  # type: ignore[arg-type]
                infos=_infos(extras, eps.start[e], eps.start[e + 1]),
            )
            number += 1


def _infos(extras: dict[str, np.ndarray], a: int, b: int) -> dict[str, np.ndarray] | None:
    """Return the extras of steps a to b as Minari keeps infos: zeros for `reset`, then a row per step."""
    if not extras:
        return None
    return {name: np.concatenate([np.zeros_like(rows[:1]), rows[a:b]]) for name, rows in extras.items()}


def _version() -> str:
    import minari

    return minari.__version__


def _download(name: str) -> None:
    require("minari")
    import minari

    try:
        if os.environ.get("MINARI_REMOTE", "hf:").startswith("hf:"):
            socket.getaddrinfo("huggingface.co", 443)  # its client would ask for half a minute before giving up
        minari.download_dataset(name)
    except Exception as err:  # Minari's remotes raise errors of many kinds; to the user they mean one thing
        reason = escaped((str(err).strip().splitlines() or [type(err).__name__])[0])
        raise DataError(
            f"minari/{name}: is not on this machine and could not be downloaded ({reason}); check the name with "
            f"`minari list remote`, or download it elsewhere and copy it into {_root()}"
        ) from err


def _root() -> Path:
    return Path(os.environ.get("MINARI_DATASETS_PATH", Path.home() / ".minari" / "datasets"))


def local_ids() -> list[str]:
    """Return the ids of the Minari datasets on this machine."""
    root = _root()
    return sorted(str(p.parent.parent.relative_to(root)) for p in root.rglob("data/metadata.json"))


def _data_folder(path: Path) -> Path | None:
    return next((p for p in (path / "data", path) if (p / "metadata.json").is_file()), None)


def _meta(dataset, src: str) -> Meta:
    space = dataset.action_space
    if space.__class__.__name__ != "Box" or len(space.shape) != 1:
        raise DataError(f"{src}: has actions of {space}; only vectors of real numbers (Box) are supported")
    own = dataset.storage.metadata.get("ssorl")
    if isinstance(own, str):
        return meta_from_json(own, src)
    stored, spec = dataset.storage.metadata, dataset.spec.env_spec
    bounded = bool(np.isfinite(space.low).all() and np.isfinite(space.high).all())
    meta = Meta(
        source=src,
        env=spec.id if spec is not None else None,
        act_low=tuple(float(x) for x in space.low) if bounded else (),
        act_high=tuple(float(x) for x in space.high) if bounded else (),
        act_range="declared" if bounded else "inferred",
    )
    scores = [float(stored[k]) for k in ("ref_min_score", "ref_max_score") if stored.get(k) is not None]
    if len(scores) == 2 and np.isfinite(scores).all() and scores[0] != scores[1]:
        meta = replace(meta, random_return=scores[0], expert_return=scores[1])
    return meta


def _trajectory(ep, src: str) -> Trajectory:
    ended = is_terminated(src, ep.id, ep.terminations, np.size(ep.rewards))
    return Trajectory(_flatten(ep.observations), ep.actions, ep.rewards, ended)


def _flatten(obs: object) -> np.ndarray:
    """Return arrays [T+1, …], or a dict or tuple of them, as [T+1, O], keys in alphabetical order as in Gymnasium."""
    if isinstance(obs, dict):
        return np.concatenate([_flatten(obs[k]) for k in sorted(obs)], axis=1)
    if isinstance(obs, tuple):
        return np.concatenate([_flatten(o) for o in obs], axis=1)
    array = np.asarray(obs)
    return array.reshape(len(array), -1)


@contextmanager
def _quiet() -> Iterator[None]:
    # Minari and Gymnasium warn about versions and missing descriptions, which is not the user's to mend here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
