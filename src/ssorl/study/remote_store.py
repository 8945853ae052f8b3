"""Results where no common folder is: finished cells and models copied to and from any fsspec path, such as s3://….

It holds `cells/` and `idms/` as a store does. There are no locks and no checkpoints there, and a file that is cut short
counts as none, so that nothing but whole files is asked of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ssorl.study.cell import Cell
from ssorl.study.store import SCHEMA, finished, folder, holding
from ssorl.utils.errors import SsorlError
from ssorl.utils.extras import require
from ssorl.utils.files import atomic, parse_json


class RemoteStore:
    """A place that every machine reaches by its address."""

    def __init__(self, url: str) -> None:
        require("ray", "fsspec")
        import fsspec

        self.url = url
        try:
            self.files, root = fsspec.core.url_to_fs(url)
        except Exception as err:  # each kind of place has errors of its own, here and below
            raise SsorlError(f"--ray-share {url}: cannot be reached ({err})") from err
        self.root = root.rstrip("/")

    def pull(self, cells: Sequence[Cell], store: Path) -> None:
        """Bring the results that are there and not in the store."""
        missing = [cell for cell in cells if not finished(store, cell)]
        there = self._names("cells") if missing else set()
        for cell in missing:
            if f"{cell.hash}/result.json" in there:
                texts = {name: self._read(f"cells/{cell.hash}/{name}") for name in ("cell.json", "result.json")}
                if _whole(texts["result.json"]):
                    with holding([folder(store, cell)]):
                        _write(folder(store, cell), texts)

    def push(self, cells: Sequence[Cell], store: Path) -> None:
        """Send the results of the store that are not there, and what they tell of their labels."""
        done = [one for cell in cells for one in (cell, cell.labels) if one and finished(store, one)]
        there = self._names("cells") if done else set()
        for cell in done:
            name = f"{cell.hash}/result.json"
            if name not in there or not _whole(self._read(f"cells/{name}")):
                for file in ("cell.json", "result.json"):
                    self._send(f"cells/{cell.hash}/{file}", folder(store, cell) / file)

    def pull_models(self, cells: Sequence[Cell], store: Path) -> None:
        """Bring the inverse dynamics models of these cells, as far as they are there."""
        for name in _models(cells):
            home = store / "idms" / name
            with holding([home]):
                files = sorted(self._names(f"idms/{name}"), key=_last)
                if not (home / "report.json").is_file() and "report.json" in files:
                    for file in files:
                        _write(home, {file: self._read(f"idms/{name}/{file}")})

    def push_models(self, cells: Sequence[Cell], store: Path) -> None:
        """Send those that are not there."""
        for name in _models(cells):
            home = store / "idms" / name
            if (home / "report.json").is_file() and "report.json" not in self._names(f"idms/{name}"):
                for path in sorted((p for p in home.rglob("*") if p.is_file() and p.name[0] != "."), key=_last):
                    self._send(f"idms/{name}/{path.relative_to(home)}", path)

    def _names(self, under: str) -> set[str]:
        """Every file under a folder, by its name from there."""
        self.files.invalidate_cache()  # others write there too
        try:
            found = self.files.find(f"{self.root}/{under}")
        except FileNotFoundError:
            return set()
        except Exception as err:
            raise SsorlError(f"--ray-share {self.url}: cannot be read ({err})") from err
        return {path.partition(f"{self.root}/{under}/")[2] for path in found}

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


def _last(path: str | Path) -> bool:
    """What says that all the rest is there goes last."""
    return Path(path).name == "report.json"


def _write(home: Path, texts: dict[str, bytes]) -> None:
    for name, text in texts.items():
        with atomic(home / name) as fresh:
            fresh.write_bytes(text)


def _whole(text: bytes) -> bool:
    try:
        told = parse_json(text, "result.json")
    except SsorlError:
        return False
    return isinstance(told, dict) and told.get("schema") == SCHEMA
