"""Find studies by name or in the user's file: YAML, TOML or JSON of one structure (docs/studies.md), or Python."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssorl.study.grid import DEFAULTS, FIGURES, SHOWN, Grid, Study
from ssorl.study.paper import STUDIES
from ssorl.study.scales import SCALES
from ssorl.study.settings import check_setting
from ssorl.study.yaml_reader import EXAMPLE, READERS, Keys, StudyFile, read
from ssorl.utils.errors import SsorlError, nearest

TEXT_KEYS = ("name", "title", "paper", "figure", "by")
LIST_KEYS = ("panels", "also")
STUDY_KEYS = (*TEXT_KEYS, *LIST_KEYS, "scales")  # keys of a study besides those of its grids


def find(name: str | Path) -> Study:
    """Return the paper's study of that name, or the study in a file.

    Args:
        name: name of a study, or path of a .yaml, .yml, .toml, .json or .py file. A .py file is executed and must
            define STUDY.

    Raises:
        SsorlError: there is no such study or file, or the file does not describe a valid study.
    """
    if str(name) in STUDIES:
        return STUDIES[str(name)]
    path = Path(name)
    if path.suffix in (*READERS, ".py"):
        if not path.is_file():
            raise SsorlError(f"{path}: there is no such file; check the name")
        return _from_python(path) if path.suffix == ".py" else _from_values(read(path))
    hint = nearest(name, STUDIES, "`ssorl study list` lists all studies")
    raise SsorlError(f"{name}: is neither a study nor a .yaml, .toml, .json or .py file; {hint}")


def _from_python(path: Path) -> Study:
    """Execute the file, which the user named on the command line, and return its STUDY."""
    study = runpy.run_path(str(path)).get("STUDY")
    if not isinstance(study, Study):
        raise SsorlError(f"{path}: defines no STUDY; add STUDY = ssorl.study.grid.Study(…)")
    return study


def _from_values(file: StudyFile) -> Study:
    top = file.values
    file.check_keys((), top, (*STUDY_KEYS, "base", "axes", "grids"), "a study")
    if "grids" in top and ("base" in top or "axes" in top):
        raise file.error(
            ("grids",), "each grid has a base and axes of its own; move the study's base and axes into a grid"
        )
    listed = top.get("grids", [top])
    if not isinstance(listed, list) or not listed:
        raise file.error(("grids",), f"grids is {listed!r}; give a list of grids, each with base and axes")
    grids = tuple(_grid(file, ("grids", i) if "grids" in top else (), grid) for i, grid in enumerate(listed))
    study = Study(**_description(file), scales=_scales(file), grids=grids)
    _check_varied_once(file, study.scales, grids)
    if not study.name.replace("-", "").replace("_", "").isalnum():
        raise SsorlError(f"{file.path}: the name {study.name!r} is also a file name; use only letters, digits, - and _")
    coordinates = (*SHOWN, *(axis for grid in grids for axis in grid.axes))
    for key, names, known in (
        ("figure", (study.figure,), FIGURES),
        ("also", study.also, FIGURES),
        ("by", (study.by,), coordinates),
        ("panels", study.panels, coordinates),
    ):
        unknown = [name for name in names if name not in known]
        if unknown:
            raise file.error((key,), f"{key} names {unknown[0]!r}; {nearest(unknown[0], dict.fromkeys(known))}")
    try:
        study.points("smoke")
    except SsorlError as err:  # errors of settings in combination, such as a setting that the agent does not have
        raise SsorlError(f"{file.path}: {err}") from None
    return study


def _description(file: StudyFile) -> dict[str, Any]:
    """Return the fields of `Study` that are texts or lists of names."""
    top = file.values
    values: dict[str, Any] = {"name": file.path.stem, "title": file.path.stem}
    for key in TEXT_KEYS:
        if key in top and not isinstance(top[key], str):
            raise file.error((key,), f"{key} is {top[key]!r}; give text")
        values |= {key: top[key]} if key in top else {}
    for key in LIST_KEYS:
        names = [top[key]] if isinstance(top.get(key), str) else top.get(key, [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise file.error((key,), f"{key} is {names!r}; give a list of names")
        values |= {key: tuple(names)} if key in top else {}
    return values


def _grid(file: StudyFile, at: Keys, grid: Any) -> Grid:
    if not isinstance(grid, dict):
        raise file.error(at, f"a grid is a table with base and axes; {EXAMPLE}")
    if at:
        file.check_keys(at, grid, ("base", "axes"), "a grid")
    base, axes = (grid.get(key) if grid.get(key) is not None else {} for key in ("base", "axes"))
    if not (isinstance(base, dict) and isinstance(axes, dict)):
        raise file.error((*at, "base"), f"base and axes are tables; {EXAMPLE}")
    _settings(file, (*at, "base"), base)
    for name, axis in axes.items():
        where = (*at, "axes", name)
        if isinstance(axis, dict):
            labels = {label: _settings(file, (*where, label), settings) for label, settings in axis.items()}
            axes = axes | {name: labels}
        elif isinstance(axis, list):
            for value in axis:
                _settings(file, where[:-1], {name: value})
            if not axis:
                raise file.error(where, f"the axis {name} has no values; list its values, or leave it out")
        else:
            raise file.error(where, f"the axis {name} is {axis!r}; give a list of values, or a table of labels")
    return Grid(base, axes)


def _settings(file: StudyFile, at: Keys, settings: Any) -> dict[str, Any]:
    """Return settings by name after checking them; an empty YAML value is an empty table."""
    if not isinstance(settings, dict | None):
        raise file.error(at, f"{at[-1]} is {settings!r}; give settings, such as `agent: dt`")
    file.check_keys(at, settings or {}, DEFAULTS, "a study")
    for name, value in (settings or {}).items():
        is_table = isinstance(DEFAULTS[name], dict)
        if isinstance(value, dict) != is_table or isinstance(value, list):
            cure = "give a table of names and values" if is_table else "give one value, or make it an axis"
            raise file.error((*at, name), f"{name} is {value!r}; {cure}")
        try:
            check_setting(name, value)
            if name == "agent":
                _check_agent(value)
        except SsorlError as err:
            raise file.error((*at, name), str(err)) from None
    return settings or {}


def _check_agent(name: Any) -> None:
    from ssorl.agents import AGENTS

    AGENTS.find(str(name))


def _scales(file: StudyFile) -> dict[str, dict[str, Any]]:
    scales = file.values.get("scales") or {}
    if not isinstance(scales, dict):
        raise file.error(("scales",), f"scales is {scales!r}; give a table with the settings of each scale")
    file.check_keys(("scales",), scales, SCALES, "ssorl")
    return {name: _settings(file, ("scales", name), settings) for name, settings in scales.items()}


def _check_varied_once(file: StudyFile, scales: Mapping[str, Mapping[str, Any]], grids: tuple[Grid, ...]) -> None:
    """Raise if an axis varies a setting that a scale or another axis also sets, since several points would be equal."""
    for i, grid in enumerate(grids):
        axis_of: dict[str, str] = {}
        for axis, values in grid.axes.items():
            for name in _varied_by(axis, values):
                if (other := axis_of.setdefault(name, axis)) != axis:
                    text = f"the axes {other} and {axis} both set {name}; remove it from one of them"
                    raise file.error((*(("grids", i) if "grids" in file.values else ()), "axes", axis), text)
                for scale, settings in scales.items():
                    if name in _varied_by(scale, {scale: settings}):
                        text = f"the axis {axis} and `scales` both set {name}; remove it from one of them"
                        raise file.error(("scales", scale, *name.split(".")), text)


def _varied_by(axis: str, values: Any) -> set[str]:
    """Return the settings that an axis sets; a table such as `settings` counts key by key (`settings.lr`)."""
    if not isinstance(values, dict):
        return {axis}
    items = [item for settings in values.values() for item in (settings or {}).items()]
    return {
        f"{name}.{key}" if key else name
        for name, value in items
        for key in (value if isinstance(value, dict) else [""])
    }
