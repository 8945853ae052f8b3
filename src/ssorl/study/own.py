"""Studies by name or from a file of the user's: TOML (docs/studies.md), JSON of the same shape, or Python."""

from __future__ import annotations

import difflib
import json
import runpy
import tomllib
from pathlib import Path
from typing import Any

from ssorl.errors import SsorlError
from ssorl.study.grid import Grid, Study
from ssorl.study.paper import STUDIES

READERS = {".toml": tomllib.loads, ".json": json.loads}
TOLD = ("name", "title", "paper", "figure", "by", "panels", "also", "scales")  # of a study, besides its grids


def find(name: str | Path) -> Study:
    """The paper's study of that name, or the one in a file."""
    if str(name) in STUDIES:
        return STUDIES[str(name)]
    path = Path(name)
    if path.suffix in (*READERS, ".py"):
        if not path.is_file():
            raise SsorlError(f"{path}: there is no such file")
        return _python(path) if path.suffix == ".py" else _data(path)
    near = difflib.get_close_matches(str(name), STUDIES, n=1)
    hint = f"did you mean {near[0]}?" if near else "`ssorl study list` names those there are"
    raise SsorlError(f"{name}: is neither a study nor a .toml, .json or .py file; {hint}")


def _python(path: Path) -> Study:
    """Run the file, which is the user's own, and take its STUDY."""
    found = runpy.run_path(str(path)).get("STUDY")
    if not isinstance(found, Study):
        raise SsorlError(f"{path}: defines no STUDY = ssorl.study.grid.Study(…)")
    return found


def _data(path: Path) -> Study:
    try:
        told = READERS[path.suffix](path.read_text())
    except (OSError, ValueError) as err:
        raise SsorlError(f"{path}: cannot be read ({err}); see docs/studies.md for an example") from err
    if not isinstance(told, dict):
        raise SsorlError(f"{path}: holds no table; see docs/studies.md for an example")
    odd = [k for k in told if k not in (*TOLD, "base", "axes", "grids")]
    if odd:
        raise SsorlError(f"{path}: a study has no {odd[0]!r}; there are {', '.join(TOLD)}, base, axes and grids")
    grids = told.get("grids") or [{"base": told.get("base", {}), "axes": told.get("axes", {})}]
    words: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in told.items() if k in TOLD}
    study = Study(**{"name": path.stem, "title": path.stem, **words}, grids=tuple(_grid(path, grid) for grid in grids))
    if not study.name.replace("-", "").replace("_", "").isalnum():
        raise SsorlError(f"{path}: the name {study.name!r} serves for files too; use letters, digits and - alone")
    return study


def _grid(path: Path, told: Any) -> Grid:
    if not isinstance(told, dict) or set(told) - {"base", "axes"}:
        raise SsorlError(f"{path}: a grid has base and axes, nothing else; see docs/studies.md for an example")
    base, axes = told.get("base", {}), told.get("axes", {})
    if not (isinstance(base, dict) and isinstance(axes, dict)):
        raise SsorlError(f"{path}: base and axes are tables; see docs/studies.md for an example")
    return Grid(base, axes)
