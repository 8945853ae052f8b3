"""Studies as grids: common settings, axes that vary, and the cell that each point of a grid resolves to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from ssorl.study.cell import Cell, Pairs, pairs
from ssorl.study.cell import digest as digest
from ssorl.study.scales import Scale, find_scale
from ssorl.study.settings import check_setting
from ssorl.utils.errors import SsorlError, nearest
from ssorl.utils.identity import revision_of
from ssorl.utils.validation import check_settings, plain

if TYPE_CHECKING:
    from ssorl.agents.base import Agent
    from ssorl.idm.base import IdmSpec

Axis = Sequence[Any] | Mapping[Any, Mapping[str, Any]]  # values of one setting, or settings by label

RECIPES = {  # parameters of each setup, with the values that the paper uses most
    "coupled": {"fraction": 0.1, "quality": 50},
    "decoupled": {
        "labelled": "low",
        "labelled_fraction": 0.1,
        "unlabelled": "high",
        "unlabelled_fraction": 0.1,
    },
}
IDM_SETTINGS = ("past", "future", "members")  # settings of the IDM that need no `idm_settings`
DEFAULTS: dict[str, Any] = {
    "kind": "return",
    "dataset": None,
    "size": None,  # size of a sim/ dataset; None: as the scale says
    "setup": "coupled",  # None: the data is used as it is
    **{name: None for recipe in RECIPES.values() for name in recipe},
    "agent": "td3bc",
    "preset": "paper",
    "settings": {},  # settings of the agent; they override those of the preset and of the scale
    "defaults": None,  # the version whose presets and IDMs are used; None: this version
    "variant": "ss",
    "idm": "paper",
    "idm_settings": {},
    **dict.fromkeys(IDM_SETTINGS),
    "rounds": 0,
    "certain": None,
    "env": None,
    "seed": 0,
    "episodes": None,  # None here and in the next three: the value of the scale
    "policy": None,
    "looks": None,
    "seeds": None,
}
FIGURES = ("by-quality", "gap", "iqm", "mse-by-quality", "density", "table", "curves", "score-by-error")
SHOWN = ("dataset", "agent", "variant", *(name for recipe in RECIPES.values() for name in recipe), "idm", "seed")


class Point(NamedTuple):
    """One point of a study's grid. Several points may share a cell: an oracle is the same at every quality."""

    cell: Cell
    at: dict[str, Any]  # coordinates: dataset, agent, variant, quality, …, seed, and the label on each axis


@dataclass(frozen=True)
class Grid:
    """The product of axes, on top of common settings."""

    base: Mapping[str, Any]
    axes: Mapping[str, Axis] = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield the settings of each point and its label on each axis."""
        names = list(self.axes)
        for chosen in product(*(_values(name, axis) for name, axis in self.axes.items())):
            settings = dict(self.base)
            for _, changes in chosen:
                settings = _merge(settings, changes)
            yield settings, dict(zip(names, (label for label, _ in chosen), strict=True))


@dataclass(frozen=True)
class Study:
    """A figure or table: the results that it needs, and how they are shown."""

    name: str
    title: str
    grids: tuple[Grid, ...]
    paper: str = ""  # the figure or table of the paper
    figure: str = "by-quality"  # one of FIGURES, or "claims"
    also: tuple[str, ...] = ()  # further figures of the same results, such as "curves"
    by: str = "variant"  # the coordinate whose values are compared
    panels: tuple[str, ...] = ("dataset", "agent")  # coordinates: one panel for each combination of values
    scales: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # settings that differ, by scale
    parts: tuple[Study, ...] = ()  # further studies that it needs; their points have the coordinate `study`
    _cached: dict[tuple, tuple[Scale, list[Point]]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def points(
        self, scale: str | Scale, seeds: int | None = None, only: Mapping[str, Iterable[Any]] | None = None
    ) -> list[Point]:
        """Return the points of the study at a scale, or those with given coordinates.

        Args:
            scale: a scale or its name.
            seeds: number of seeds; None: the number of the study or of the scale.
            only: allowed values of some coordinates, as values or as text; None: all points.

        Raises:
            SsorlError: a setting is invalid, a coordinate is unknown, or no point is left.
        """
        points = self._all_points(find_scale(scale), seeds)
        known = {name for point in points for name in point.at}
        for name, wanted in (only or {}).items():
            if name not in known:
                raise SsorlError(f"--only {name}: {self.name} has no such axis; {nearest(name, sorted(known))}")
            allowed = {_number_or_text(v) for v in wanted}
            points = [point for point in points if _number_or_text(point.at.get(name)) in allowed]
        if not points and not only:
            raise SsorlError(f"{self.name}: has no points, because an axis has no values; list them")
        if not points:
            raise SsorlError(f"{self.name}: --only leaves no points; `ssorl study show` lists the values of each axis")
        return list(points)

    def _all_points(self, scale: Scale, seeds: int | None) -> list[Point]:
        """Return the whole grid, from a cache: it has thousands of points, and a report asks for it many times."""
        cached = self._cached.get((scale.name, seeds))
        if cached and cached[0] is scale:
            return cached[1]
        parts = [(part.name, point) for part in self.parts for point in part._all_points(scale, seeds)]
        points = [Point(cell, {"study": name, **at}) for name, (cell, at) in parts]
        for grid in self.grids:
            for settings, labels in grid:
                settings = _merge(settings, self.scales.get(scale.name, {}))
                own = settings.get("seeds")
                check_setting("seeds", own)
                n = (own if settings.get("kind") == "data" else seeds) or own or seeds or scale.seeds
                for seed in [settings["seed"]] if "seed" in settings else range(n):
                    points.append(_point({**settings, "seed": seed}, labels, scale))
        _check_distinct(self.name, points)
        self._cached[scale.name, seeds] = scale, points
        return points

    @property
    def names_seeds(self) -> bool:
        """Return whether the study sets `seed` itself, so that a number of seeds has no effect."""
        axes = [axis for grid in self.grids for axis in grid.axes.values()]
        labels = [settings for axis in axes if isinstance(axis, Mapping) for settings in axis.values()]
        tables = [table for grid in self.grids for table in (grid.base, grid.axes)] + [*labels, *self.scales.values()]
        return any("seed" in table for table in tables if table)

    def cells(self, scale: str | Scale, seeds: int | None = None) -> list[Cell]:
        """Return the distinct cells of the study, in the order of the grid.

        Args:
            scale: a scale or its name.
            seeds: number of seeds; None: the number of the study or of the scale.
        """
        return list(dict.fromkeys(point.cell for point in self.points(scale, seeds)))


def resolve(settings: Mapping[str, Any], scale: Scale) -> Cell:
    """Return the cell of settings at a scale: defaults are filled in, and settings without an effect are left out.

    Args:
        settings: values by name, each a key of `DEFAULTS`.
        scale: the scale, which sets what the settings leave open.

    Raises:
        SsorlError: a setting is unknown, invalid, or has no effect together with the others.
    """
    from ssorl.study import reference

    unknown = [name for name in settings if name not in DEFAULTS]
    if unknown:
        raise SsorlError(f"a study has no setting {unknown[0]!r}; {nearest(unknown[0], DEFAULTS)}")
    full = {**DEFAULTS, **settings}
    kind, variant, setup = full["kind"], full["variant"], full["setup"]
    for name, value in full.items():
        check_setting(name, value)
    if not full["dataset"]:
        raise SsorlError("the study names no dataset; add `dataset` to base or to an axis")
    ignored = [n for other, recipe in RECIPES.items() if other != setup for n in recipe if full[n] is not None]
    if ignored:
        raise SsorlError(f"{ignored[0]} has no effect in the {setup} setup; leave it out or name another `setup`")
    trains = kind == "return"
    nothing_hidden = setup is None or (trains and variant == "oracle" and setup == "coupled")
    agent = _agent(full, scale) if trains else None
    labels = agent.view.needs_actions if agent is not None else kind == "idm"
    if kind == "idm" and setup is None:
        raise SsorlError(
            "the error of labels is known only if a `setup` hides actions; name a setup, or leave out `kind: idm`"
        )
    labels = labels and (kind == "idm" or variant == "ss")
    idm = _idm(full, scale) if labels else None
    return Cell(
        kind=kind,
        dataset=_dataset(full, scale),
        setup=None if nothing_hidden else setup,
        recipe=() if nothing_hidden or setup is None else _recipe(setup, full),
        agent=full["agent"] if trains else None,
        settings=pairs(reference.agent_changes(full["agent"], agent)) if agent is not None else (),
        variant=variant if trains else None,
        idm=None if idm is None else pairs(reference.idm_changes(idm)),
        rounds=full["rounds"] if labels else 0,
        certain=plain(full["certain"]) if labels and trains else None,
        env=full["env"] if trains else None,
        seed=0 if kind == "data" and nothing_hidden else full["seed"],
        episodes=(full["episodes"] or scale.episodes) if trains else 0,
        policy=(full["policy"] or scale.policy) if trains else None,
        looks=(full["looks"] or scale.looks) if trains else 0,
        agent_revision=revision_of(agent),
        idm_revision=revision_of(idm),
    )


def _point(settings: dict[str, Any], labels: dict[str, Any], scale: Scale) -> Point:
    cell = resolve(settings, scale)
    full = {**DEFAULTS, **settings}
    recipe = {k: v if full[k] is None else full[k] for k, v in RECIPES.get(full["setup"] or "", {}).items()}
    hidden = () if cell.kind == "return" else ("agent", "variant")
    hidden = hidden if cell.idm is not None else (*hidden, "idm")
    at = {name: recipe.get(name, full[name]) for name in SHOWN if name not in hidden}
    at |= {"dataset": str(full["dataset"]).removeprefix("sim/"), "seed": settings["seed"]}
    at = {name: plain(value) for name, value in at.items() if value is not None}
    # If the axis `dataset` has labels, they replace the names of the datasets.
    if labels.get("dataset") == full["dataset"]:
        labels = {name: label for name, label in labels.items() if name != "dataset"}
    return Point(cell, at | labels)


def _check_distinct(study: str, points: Iterable[Point]) -> None:
    """Raise if two different cells have the same coordinates: a report could show only one of them."""
    at: dict[tuple, Cell] = {}
    for point in points:
        if at.setdefault(tuple(point.at.items()), point.cell) != point.cell:
            place = ", ".join(f"{name} {value}" for name, value in point.at.items())
            raise SsorlError(f"{study}: two different cells have the coordinates {place}; make an axis of what differs")


def _values(name: str, axis: Axis) -> list[tuple[Any, Mapping[str, Any]]]:
    """Return the labels of an axis with their settings."""
    if isinstance(axis, Mapping):
        return list(axis.items())
    if isinstance(axis, str) or not isinstance(axis, Sequence):
        raise SsorlError(f"the axis {name} is {axis!r}; give a list of values, or a table of labels")
    return [(plain(value), {name: value}) for value in axis]


def _merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return both; the second takes precedence, and the tables `settings` and `idm_settings` are merged too."""
    both = {k: {**first[k], **second[k]} for k in ("settings", "idm_settings") if k in first and k in second}
    return {**first, **second, **both}


def _agent(full: dict[str, Any], scale: Scale) -> Agent:
    """Return the agent: its preset, then the scale's settings, then the study's."""
    from ssorl.agents import AGENTS
    from ssorl.study.reference import preset_agent

    name, preset = full["agent"], full["preset"]
    if AGENTS.known(name) and scale.agents and name not in scale.agents:
        preset = "quick" if preset == "paper" else preset
    check_settings(name, full["settings"], None)  # checks that it is a table; `preset_agent` checks names and values
    return preset_agent(name, preset, full["defaults"], {**scale.agents.get(name, {}), **full["settings"]})


def _idm(full: dict[str, Any], scale: Scale) -> IdmSpec:
    """Return the IDM's configuration: its preset, then the scale's settings, then the study's."""
    from ssorl.study.reference import preset_idm

    spec: Any = preset_idm(full["idm"], full["defaults"])
    short = {name: full[name] for name in IDM_SETTINGS if full[name] is not None}
    check_settings("an inverse dynamics model", full["idm_settings"], spec)
    check_settings("an inverse dynamics model", short, spec)
    known = {f.name for f in fields(spec)}  # a scale's settings are for the network; other families may lack them
    scaled = {k: v for k, v in {**scale.idm, **scale.idm_named.get(full["idm"], {})}.items() if k in known}
    changes = {**scaled, **full["idm_settings"], **short}
    return replace(spec, **{k: plain(v) for k, v in changes.items()})


def _dataset(full: dict[str, Any], scale: Scale) -> str:
    name = str(full["dataset"])
    size = full["size"] or scale.size
    return f"{name}:{size}" if name.startswith("sim/") and ":" not in name and size else name


def _recipe(setup: str, full: dict[str, Any]) -> Pairs:
    return pairs({name: default if full[name] is None else full[name] for name, default in RECIPES[setup].items()})


def _number_or_text(value: Any) -> float | str:
    """Return a finite number as a float, so that "1e6" equals 1000000, and any other value as text."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return number if math.isfinite(number) and not isinstance(value, bool) else str(value)
