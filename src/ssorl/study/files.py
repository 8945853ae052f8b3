"""Studies by name or from a file of the user's: YAML, TOML or JSON of one shape (docs/studies.md), or Python."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssorl.study import settings as values
from ssorl.study.grid import DEFAULTS, FIGURES, SHOWN, Grid, Study
from ssorl.study.paper import STUDIES
from ssorl.study.scales import SCALES
from ssorl.study.yaml_reader import EXAMPLE, READERS, Keys, Told, read
from ssorl.utils.errors import SsorlError, nearest

TEXTS = ("name", "title", "paper", "figure", "by")
LISTS = ("panels", "also")
TOLD = (*TEXTS, *LISTS, "scales")  # of a study, besides its grids


def find(name: str | Path) -> Study:
    """The paper's study of that name, or the one in a file."""
    if str(name) in STUDIES:
        return STUDIES[str(name)]
    path = Path(name)
    if path.suffix in (*READERS, ".py"):
        if not path.is_file():
            raise SsorlError(f"{path}: there is no such file")
        return _python(path) if path.suffix == ".py" else _data(read(path))
    hint = nearest(name, STUDIES, "`ssorl study list` names those there are")
    raise SsorlError(f"{name}: is neither a study nor a .yaml, .toml, .json or .py file; {hint}")


def _python(path: Path) -> Study:
    """Run the file, which is the user's own, and take its STUDY."""
    found = runpy.run_path(str(path)).get("STUDY")
    if not isinstance(found, Study):
        raise SsorlError(f"{path}: defines no STUDY = ssorl.study.grid.Study(…)")
    return found


def _data(told: Told) -> Study:
    top, path = told.values, told.path
    told.check((), top, (*TOLD, "base", "axes", "grids"), "a study")
    if "grids" in top and ("base" in top or "axes" in top):
        raise told.error(("grids",), "grids have each a base and axes of their own; move those of the study into one")
    many = top.get("grids", [top])
    if not isinstance(many, list) or not many:
        raise told.error(("grids",), f"grids is {many!r}; give a list, each with base and axes")
    grids = tuple(_grid(told, ("grids", i) if "grids" in top else (), grid) for i, grid in enumerate(many))
    words: dict[str, Any] = {"name": path.stem, "title": path.stem}
    for key in TEXTS:
        if key in top and not isinstance(top[key], str):
            raise told.error((key,), f"{key} is {top[key]!r}; give text")
        words |= {key: top[key]} if key in top else {}
    for key in LISTS:
        some = [top[key]] if isinstance(top.get(key), str) else top.get(key, [])
        if not isinstance(some, list) or not all(isinstance(one, str) for one in some):
            raise told.error((key,), f"{key} is {some!r}; give a list of names")
        words |= {key: tuple(some)} if key in top else {}
    study = Study(**words, scales=_scales(told), grids=grids)
    _clash(told, study.scales, grids)
    if not study.name.replace("-", "").replace("_", "").isalnum():
        raise SsorlError(f"{path}: the name {study.name!r} serves for files too; use letters, digits and - alone")
    for key, names, known in (
        ("figure", (study.figure,), FIGURES),
        ("also", study.also, FIGURES),
        ("by", (study.by,), (*SHOWN, *(axis for grid in grids for axis in grid.axes))),
        ("panels", study.panels, (*SHOWN, *(axis for grid in grids for axis in grid.axes))),
    ):
        odd = [name for name in names if name not in known]
        if odd:
            raise told.error((key,), f"{key} names {odd[0]!r}; {nearest(odd[0], dict.fromkeys(known))}")
    try:
        study.points("smoke")
    except SsorlError as err:  # what shows only where settings meet, such as an agent with a setting it does not have
        raise SsorlError(f"{path}: {err}") from None
    return study


def _grid(told: Told, at: Keys, grid: Any) -> Grid:
    if not isinstance(grid, dict):
        raise told.error(at, f"a grid has base and axes; {EXAMPLE}")
    if at:
        told.check(at, grid, ("base", "axes"), "a grid")
    base, axes = (grid.get(key) if grid.get(key) is not None else {} for key in ("base", "axes"))
    if not (isinstance(base, dict) and isinstance(axes, dict)):
        raise told.error((*at, "base"), f"base and axes are tables; {EXAMPLE}")
    _settings(told, (*at, "base"), base)
    for name, axis in axes.items():
        where = (*at, "axes", name)
        if isinstance(axis, dict):
            axes = axes | {name: {label: _settings(told, (*where, label), one) for label, one in axis.items()}}
        elif isinstance(axis, list):
            for value in axis:
                _settings(told, where[:-1], {name: value})
            if not axis:
                raise told.error(where, f"the axis {name} has no values; give a list of some, or leave it out")
        else:
            raise told.error(where, f"the axis {name} is {axis!r}; give a list of values, or labels with settings each")
    return Grid(base, axes)


def _settings(told: Told, at: Keys, settings: Any) -> dict[str, Any]:
    """Settings by name; nothing at all is none of them."""
    if not isinstance(settings, dict | None):
        raise told.error(at, f"{at[-1]} is {settings!r}; give settings, such as `agent: dt`")
    told.check(at, settings or {}, DEFAULTS, "a study")
    for name, value in (settings or {}).items():
        table = isinstance(DEFAULTS[name], dict)
        if isinstance(value, dict) != table or isinstance(value, list):
            cure = "give a table of names and values" if table else "give one value; what varies goes into axes"
            raise told.error((*at, name), f"{name} is {value!r}; {cure}")
        try:
            values.check(name, value)
            if name == "agent":
                _agent(value)
        except SsorlError as err:
            raise told.error((*at, name), str(err)) from None
    return settings or {}


def _agent(name: Any) -> None:
    from ssorl.agents import AGENTS

    AGENTS.find(str(name))


def _scales(told: Told) -> dict[str, dict[str, Any]]:
    scales = told.values.get("scales") or {}
    if not isinstance(scales, dict):
        raise told.error(("scales",), f"scales is {scales!r}; give the settings that differ, by scale")
    told.check(("scales",), scales, SCALES, "ssorl")
    return {name: _settings(told, ("scales", name), settings) for name, settings in scales.items()}


def _clash(told: Told, scales: Mapping[str, Mapping[str, Any]], grids: tuple[Grid, ...]) -> None:
    """Refuse a scale or another axis that sets what an axis varies: some of its values would come down to one."""
    for i, grid in enumerate(grids):
        by: dict[str, str] = {}
        for axis, some in grid.axes.items():
            for name in _varied(axis, some):
                if (other := by.setdefault(name, axis)) != axis:
                    text = f"{name} is what the axis {other} varies; take it out of one of the two"
                    raise told.error((*(("grids", i) if "grids" in told.values else ()), "axes", axis), text)
                for scale in (one for one, settings in scales.items() if name in _varied(one, {one: settings})):
                    text = f"{name} is what the axis {axis} varies; take it out of `scales` or out of the axis"
                    raise told.error(("scales", scale, *name.split(".")), text)


def _varied(axis: str, some: Any) -> set[str]:
    """What an axis sets; of the settings of agent and model, which join, each one."""
    if not isinstance(some, dict):
        return {axis}
    tables = [(name, value) for one in some.values() for name, value in (one or {}).items()]
    return {
        f"{name}.{key}" if key else name
        for name, value in tables
        for key in (value if isinstance(value, dict) else [""])
    }
