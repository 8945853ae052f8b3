"""D4RL's datasets by name, `d4rl/NAME`: files are downloaded to the folder that D4RL itself uses."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

from ssorl.data.episodes import Episodes
from ssorl.data.validate import READ_ALL, ReadOptions, escaped
from ssorl.utils.errors import DataError, SsorlError

BASE = "http://rail.eecs.berkeley.edu/datasets/offline_rl"
GYM = ("hopper", "walker2d", "halfcheetah")
LEVELS = ("random", "medium", "medium-replay", "medium-expert", "expert", "full-replay")
FILES: dict[str, str] = {
    **{
        f"{env}-{level}-v2": f"gym_mujoco_v2/{env}_{level.replace('-', '_')}-v2.hdf5" for env in GYM for level in LEVELS
    },
    "maze2d-open-dense-v0": "maze2d/maze2d-open-dense.hdf5",
    "maze2d-umaze-dense-v1": "maze2d/maze2d-umaze-dense-v1.hdf5",
    "maze2d-medium-dense-v1": "maze2d/maze2d-medium-dense-v1.hdf5",
    "maze2d-large-dense-v1": "maze2d/maze2d-large-dense-v1.hdf5",
}


def names() -> list[str]:
    """Return the names of all known D4RL datasets, without `d4rl/`."""
    return list(FILES)


def folder() -> Path:
    """Return D4RL's dataset folder: `$D4RL_DATASET_DIR`, or `~/.d4rl/datasets`."""
    return Path(os.environ.get("D4RL_DATASET_DIR", Path.home() / ".d4rl" / "datasets"))


def load_id(name: str, options: ReadOptions = READ_ALL) -> Episodes:
    """Return a D4RL dataset; its file is downloaded if it is not in D4RL's folder.

    Args:
        name: name without `d4rl/`.
        options: options of reading.

    Raises:
        DataError: the name is unknown, or the file cannot be downloaded or read.
    """
    from ssorl.data.formats import d4rl

    eps = d4rl.load(local_path(name), options)
    return eps.with_meta(source=f"d4rl/{name}")


def local_path(name: str) -> Path:
    """Return the local file of a D4RL dataset, see `fetch`; raise DataError if the name is unknown."""
    if name not in FILES:
        import difflib

        near = difflib.get_close_matches(name, FILES, n=1)
        hint = f"did you mean d4rl/{near[0]}?" if near else "`ssorl data list` shows the known names"
        raise DataError(f"d4rl/{name}: is not a known D4RL dataset; {hint}")
    return fetch(name)


def fetch(name: str) -> Path:
    """Return the local file of a dataset; download it if it does not exist, or resume an interrupted download.

    The environment variable `SSORL_D4RL_URL` replaces the server's address.

    Args:
        name: one of `names()`.

    Raises:
        DataError: the server cannot be reached, or it sent an incomplete or invalid file.
        SsorlError: the file cannot be written.
    """
    base = os.environ.get("SSORL_D4RL_URL", BASE)
    url, path = f"{base}/{FILES[name]}", folder() / Path(FILES[name]).name
    if path.is_file():
        return path
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _resume(url, part)
    except urllib.error.HTTPError as err:
        err.close()  # closes the connection
        raise DataError(
            f"d4rl/{name}: the server answered {err.code} for {url}; copy the file to {path} by hand"
        ) from err
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException, ValueError) as err:
        reason = escaped(getattr(err, "reason", err))
        raise DataError(
            f"d4rl/{name}: is not on this machine and {url} cannot be downloaded ({reason}); download it on another "
            f"machine and copy it to {path}"
        ) from err
    except OSError as err:
        raise SsorlError(
            f"d4rl/{name}: {part} cannot be written ({err.strerror}); free space or set D4RL_DATASET_DIR"
        ) from err
    _check_hdf5(part, name, url, path)
    os.replace(part, path)
    return path


def _check_hdf5(part: Path, name: str, url: str, path: Path) -> None:
    """Delete the file and raise unless it is a complete HDF5 file; h5py compares its length with its header."""
    import h5py

    try:
        h5py.File(part, "r").close()
    except OSError as err:
        part.unlink()
        raise DataError(
            f"d4rl/{name}: {url} sent a file that is not a complete HDF5 file, so it was deleted; run the command "
            f"again, or download the file on another machine and copy it to {path}"
        ) from err


def _resume(url: str, part: Path) -> None:
    """Download the bytes that `part` still lacks, and compare its size with the size that the server announced."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as err:
        if err.code != 416 or not have:  # 416: `part` is at least as long as the file, so start again
            raise
        err.close()
        part.unlink()
        return _resume(url, part)
    with answer:
        if answer.status != 206:  # the server sends the whole file, so overwrite `part`
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if have else "wb") as out:
            _copy(answer, out, have, total)
    size = part.stat().st_size
    if total is not None and size != total:
        raise urllib.error.URLError(f"received {size} of {total} bytes; run the command again to resume")
    return None


def _copy(answer, out, have: int, total: int | None) -> None:
    from ssorl.utils.progress import Progress

    title = f"downloading {Path(out.name).stem}"
    with Progress({title: (total or 0, "bytes")}) as bar:
        bar(title, have)  # bytes of an earlier, interrupted download
        while block := answer.read(1 << 20):
            out.write(block)
            bar(title, len(block))
