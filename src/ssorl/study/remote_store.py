"""Exchange results between machines without a common folder, by any fsspec path such as s3://….

The path holds finished cells in `cells/` and models in `idms/`, as a store does, but no locks and no checkpoints. A
result that is cut short counts as missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ssorl.study.cell import Cell
from ssorl.study.store import SCHEMA, finished, folder, lock_folders
from ssorl.utils.errors import SsorlError
from ssorl.utils.extras import require
from ssorl.utils.files import atomic, parse_json


class RemoteStore:
    """Results and models at an fsspec path.

    Args:
        url: the path, such as s3://bucket/study.

    Raises:
        SsorlError: the path cannot be reached.
    """

    def __init__(self, url: str) -> None:
        require("ray", "fsspec")
        import fsspec

        self.url = url
        try:
            self.files, root = fsspec.core.url_to_fs(url)
        except Exception as err:  # each fsspec file system has its own errors, here and below
            raise SsorlError(f"--ray-share {url}: cannot be reached ({err})") from err
        self.root = root.rstrip("/")

    def pull(self, cells: Sequence[Cell], store: Path) -> None:
        """Copy remote results to the store.

        Args:
            cells: the cells to copy, if the store does not have them.
            store: the store's folder.
        """
        missing = [cell for cell in cells if not finished(store, cell)]
        remote = self._names("cells") if missing else set()
        for cell in missing:
            if f"{cell.hash}/result.json" in remote:
                texts = {name: self._read(f"cells/{cell.hash}/{name}") for name in ("cell.json", "result.json")}
                if _is_complete(texts["result.json"]):
                    with lock_folders([folder(store, cell)]):
                        _write(folder(store, cell), texts)

    def push(self, cells: Sequence[Cell], store: Path) -> None:
        """Copy the store's results of cells, and of the cells of their labels, to the remote path.

        Args:
            cells: the cells to copy, if they are finished and the path does not have them.
            store: the store's folder.
        """
        candidates = [own for cell in cells for own in (cell, cell.labels) if own]
        done = [cell for cell in candidates if finished(store, cell)]
        remote = self._names("cells") if done else set()
        for cell in done:
            name = f"{cell.hash}/result.json"
            if name not in remote or not _is_complete(self._read(f"cells/{name}")):
                for file in ("cell.json", "result.json"):
                    self._send(f"cells/{cell.hash}/{file}", folder(store, cell) / file)

    def pull_models(self, cells: Sequence[Cell], store: Path) -> None:
        """Copy the remote inverse dynamics models of cells to the store.

        Args:
            cells: the cells.
            store: the store's folder.
        """
        for name in _models(cells):
            home = store / "idms" / name
            with lock_folders([home]):
                files = sorted(self._names(f"idms/{name}"), key=_is_report)
                if not (home / "report.json").is_file() and "report.json" in files:
                    for file in files:
                        _write(home, {file: self._read(f"idms/{name}/{file}")})

    def push_models(self, cells: Sequence[Cell], store: Path) -> None:
        """Copy the store's inverse dynamics models of cells to the remote path, if it does not have them.

        Args:
            cells: the cells.
            store: the store's folder.
        """
        for name in _models(cells):
            home = store / "idms" / name
            if (home / "report.json").is_file() and "report.json" not in self._names(f"idms/{name}"):
                for path in sorted((p for p in home.rglob("*") if p.is_file() and p.name[0] != "."), key=_is_report):
                    self._send(f"idms/{name}/{path.relative_to(home)}", path)

    def _names(self, under: str) -> set[str]:
        """Return the paths of all files under a remote folder, relative to the folder."""
        self.files.invalidate_cache()  # other machines write there too
        try:
            paths = self.files.find(f"{self.root}/{under}")
        except FileNotFoundError:
            return set()
        except Exception as err:
            raise SsorlError(f"--ray-share {self.url}: cannot be read ({err})") from err
        return {path.partition(f"{self.root}/{under}/")[2] for path in paths}

    def _read(self, name: str) -> bytes:
        try:
            return self.files.cat_file(f"{self.root}/{name}")
        except FileNotFoundError:
            return b""
        except Exception as err:
            raise SsorlError(f"--ray-share {self.url}: {name} cannot be read ({err})") from err

    def _send(self, name: str, path: Path) -> None:
        try:
            self.files.makedirs(f"{self.root}/{name}".rpartition("/")[0], exist_ok=True)
            self.files.pipe_file(f"{self.root}/{name}", path.read_bytes())
        except Exception as err:
            raise SsorlError(f"--ray-share {self.url}: {name} cannot be written ({err})") from err


def _models(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.idm_hash for cell in cells if cell.idm_hash))


def _is_report(path: str | Path) -> bool:
    """Sort key: report.json is copied last, because it marks a complete model."""
    return Path(path).name == "report.json"


def _write(home: Path, texts: dict[str, bytes]) -> None:
    for name, text in texts.items():
        with atomic(home / name) as fresh:
            fresh.write_bytes(text)


def _is_complete(text: bytes) -> bool:
    try:
        stored = parse_json(text, "result.json")
    except SsorlError:
        return False
    return isinstance(stored, dict) and stored.get("schema") == SCHEMA
