"""`d4rl/NAME`: D4RL's files by name, fetched into D4RL's usual folder so that both share one copy."""

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
    """Every D4RL name that can be asked for."""
    return list(FILES)


def folder() -> Path:
    """D4RL's own dataset folder."""
    return Path(os.environ.get("D4RL_DATASET_DIR", Path.home() / ".d4rl" / "datasets"))


def load_id(name: str, options: ReadOptions = READ_ALL) -> Episodes:
    """Read a D4RL dataset by name, downloading it if need be."""
    from ssorl.data.formats import d4rl

    eps = d4rl.load(local_path(name), options)
    return eps.with_meta(source=f"d4rl/{name}")


def local_path(name: str) -> Path:
    """The file of a D4RL dataset, downloaded if need be."""
    if name not in FILES:
        import difflib

        near = difflib.get_close_matches(name, FILES, n=1)
        hint = f"did you mean d4rl/{near[0]}?" if near else "`ssorl data list` shows them"
        raise DataError(f"d4rl/{name}: is not a D4RL dataset ssorl knows; {hint}")
    return fetch(name)


def fetch(name: str) -> Path:
    """The local file of a dataset; downloads resume where they stopped and must reach their full size."""
    base = os.environ.get("SSORL_D4RL_URL", BASE)
    url, path = f"{base}/{FILES[name]}", folder() / Path(FILES[name]).name
    if path.is_file():
        return path
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _resume(url, part)
    except urllib.error.HTTPError as err:
        err.close()  # it holds the connection open
        raise DataError(
            f"d4rl/{name}: the server answered {err.code} for {url}; copy the file to {path} by hand"
        ) from err
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException, ValueError) as err:
        reason = escaped(getattr(err, "reason", err))
        raise DataError(
            f"d4rl/{name}: is not on this machine and {url} cannot be reached ({reason}); fetch it on another machine "
            f"and copy it to {path}"
        ) from err
    except OSError as err:
        raise SsorlError(
            f"d4rl/{name}: {part} cannot be written ({err.strerror}); free space or set D4RL_DATASET_DIR"
        ) from err
    _whole(part, name, url, path)
    os.replace(part, path)
    return path


def _whole(part: Path, name: str, url: str, path: Path) -> None:
    """HDF5 knows its own length, so what is no file, half a file or parts of two does not get its final name."""
    import h5py

    try:
        h5py.File(part, "r").close()
    except OSError as err:
        part.unlink()
        raise DataError(
            f"d4rl/{name}: what {url} sent is not a whole HDF5 file and was thrown away; ask again, or fetch it on "
            f"another machine and copy it to {path}"
        ) from err


def _resume(url: str, part: Path) -> None:
    """Fetch what `part` lacks of `url`, and compare the size with what the server said."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as err:
        if err.code != 416 or not have:  # 416: nothing left to send, or a part longer than the file: start again
            raise
        err.close()
        part.unlink()
        return _resume(url, part)
    with answer:
        if answer.status != 206:  # the server sends everything: so do not append
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if have else "wb") as out:
            _copy(answer, out, have, total)
    size = part.stat().st_size
    if total is not None and size != total:
        raise urllib.error.URLError(f"{size} of {total} bytes arrived; ask again and it goes on from there")
    return None


def _copy(answer, out, have: int, total: int | None) -> None:
    from ssorl.utils.progress import Progress

    title = f"downloading {Path(out.name).stem}"
    with Progress({title: (total or 0, "bytes")}) as bar:
        bar(title, have)  # what an earlier try left
        while block := answer.read(1 << 20):
            out.write(block)
            bar(title, len(block))
