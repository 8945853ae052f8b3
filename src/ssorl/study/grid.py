"""What a study is: settings in common, axes that vary, and the cell that each point of the grid comes down to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from ssorl.study import settings as values
from ssorl.study.cell import Cell, Pairs, pairs
from ssorl.study.cell import digest as digest
from ssorl.study.scales import Scale, find_scale
from ssorl.utils.errors import SsorlError, nearest
from ssorl.utils.identity import revision_of
from ssorl.utils.validation import check_settings, plain

if TYPE_CHECKING:
    from ssorl.agents.base import Agent
    from ssorl.idm.base import IdmSpec

Axis = Sequence[Any] | Mapping[Any, Mapping[str, Any]]  # values of the setting it names; or labels, each with settings

RECIPES = {  # the settings of each way to hide actions, with what the paper mostly uses
    "coupled": {"fraction": 0.1, "quality": 50},
    "decoupled": {
        "labelled": "low",
        "labelled_fraction": 0.1,
        "unlabelled": "high",
        "unlabelled_fraction": 0.1,
    },
}
IDM_SETTINGS = ("past", "future", "members")  # of the inverse dynamics model, so common that they have a name here
DEFAULTS: dict[str, Any] = {
    "kind": "return",
    "dataset": None,
    "size": None,  # of a sim/ dataset; None: the scale's
    "setup": "coupled",  # None: the data as it is
    **{name: None for recipe in RECIPES.values() for name in recipe},
    "agent": "td3bc",
    "preset": "paper",
    "settings": {},  # of the agent, over those of the preset and of the scale
    "defaults": None,  # the version whose presets and IDMs are meant; None: this one
    "variant": "ss",
    "idm": "paper",
    "idm_settings": {},
    **dict.fromkeys(IDM_SETTINGS),
    "rounds": 0,
    "certain": None,
    "env": None,
    "seed": 0,
    "episodes": None,  # None: the scale's, as for the next three
    "policy": None,
    "looks": None,
    "seeds": None,
}
FIGURES = ("by-quality", "gap", "iqm", "mse-by-quality", "density", "table", "curves", "score-by-error")
SHOWN = ("dataset", "agent", "variant", *(name for recipe in RECIPES.values() for name in recipe), "idm", "seed")


class Point(NamedTuple):
    """One place in a study's grid. Several may come down to one cell: an oracle is the same at every quality."""

    cell: Cell
    at: dict[str, Any]  # coordinates: dataset, agent, variant, quality, …, seed, and the label on each axis


@dataclass(frozen=True)
class Grid:
    """The product of some axes over settings in common."""

    base: Mapping[str, Any]
    axes: Mapping[str, Axis] = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Each point's settings and its labels."""
        names = list(self.axes)
        for chosen in product(*(_values(name, axis) for name, axis in self.axes.items())):
            asked = dict(self.base)
            for _, changes in chosen:
                asked = _merge(asked, changes)
            yield asked, dict(zip(names, (label for label, _ in chosen), strict=True))


@dataclass(frozen=True)
class Study:
    """A figure or table: which results, and how they are shown."""

    name: str
    title: str
    grids: tuple[Grid, ...]
    paper: str = ""  # which figure or table of the paper it is
    figure: str = "by-quality"  # one of FIGURES, or claims
    also: tuple[str, ...] = ()  # further figures of the same results, such as curves
    by: str = "variant"  # the coordinate whose values are compared
    panels: tuple[str, ...] = ("dataset", "agent")  # coordinates that have a panel for each value
    scales: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # settings that differ at a scale
    parts: tuple[Study, ...] = ()  # studies whose results it needs; their points have `study` among the coordinates
    _made: dict[tuple, tuple[Scale, list[Point]]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def points(
        self, scale: str | Scale, seeds: int | None = None, only: Mapping[str, Iterable[Any]] | None = None
    ) -> list[Point]:
        """The whole grid at a scale, or the part whose coordinates have one of the values asked for."""
        found = self._whole(find_scale(scale), seeds)
        known = {name for point in found for name in point.at}
        for name, wanted in (only or {}).items():
            if name not in known:
                raise SsorlError(f"--only {name}: {self.name} has no such axis; {nearest(name, sorted(known))}")
            some = {_one(v) for v in wanted}
            found = [point for point in found if _one(point.at.get(name)) in some]
        if not found and not only:
            raise SsorlError(f"{self.name}: has no points; an axis of it has no values")
        if not found:
            raise SsorlError(f"nothing of {self.name} is left after --only; `ssorl study show` tells what there is")
        return list(found)

    def _whole(self, scale: Scale, seeds: int | None) -> list[Point]:
        """The whole grid: thousands of points, which a report asks for again and again, made once."""
        made = self._made.get((scale.name, seeds))
        if made and made[0] is scale:
            return made[1]
        found = [Point(c, {"study": part.name, **at}) for part in self.parts for c, at in part._whole(scale, seeds)]
        for grid in self.grids:
            for asked, labels in grid:
                asked = _merge(asked, self.scales.get(scale.name, {}))
                own = asked.get("seeds")
                values.check("seeds", own)
                n = (own if asked.get("kind") == "data" else seeds) or own or seeds or scale.seeds
                for seed in [asked["seed"]] if "seed" in asked else range(n):
                    found.append(_point({**asked, "seed": seed}, labels, scale))
        _check_apart(self.name, found)
        self._made[scale.name, seeds] = scale, found
        return found

    @property
    def names_seeds(self) -> bool:
        """Whether a grid says itself which seeds it has."""
        axes = [axis for grid in self.grids for axis in grid.axes.values()]
        labels = [one for axis in axes if isinstance(axis, Mapping) for one in axis.values()]
        told = [one for grid in self.grids for one in (grid.base, grid.axes)] + [*labels, *self.scales.values()]
        return any("seed" in one for one in told if one)

    def cells(self, scale: str | Scale, seeds: int | None = None) -> list[Cell]:
        """Each cell once."""
        return list(dict.fromkeys(point.cell for point in self.points(scale, seeds)))


def resolve(asked: Mapping[str, Any], scale: Scale) -> Cell:
    """The cell that some settings come down to at a scale: defaults filled in, what has no effect left out."""
    from ssorl.study import reference

    odd = [name for name in asked if name not in DEFAULTS]
    if odd:
        raise SsorlError(f"a study has no setting {odd[0]!r}; {nearest(odd[0], DEFAULTS)}")
    want = {**DEFAULTS, **asked}
    kind, variant, setup = want["kind"], want["variant"], want["setup"]
    for name, value in want.items():
        values.check(name, value)
    if not want["dataset"]:
        raise SsorlError("a study names its dataset: base or an axis needs `dataset`")
    foreign = [n for how, r in RECIPES.items() if how != setup for n in r if want[n] is not None]
    if foreign:
        raise SsorlError(f"{foreign[0]} means nothing in the {setup} setup; leave it out or name another `setup`")
    learns = kind == "return"
    whole = setup is None or (learns and variant == "oracle" and setup == "coupled")  # all trajectories, all actions
    agent = _agent(want, scale) if learns else None
    labels = agent.view.needs_actions if agent is not None else kind == "idm"
    if kind == "idm" and setup is None:
        raise SsorlError(
            "how good labels are is known where a `setup` hides actions; name one, or leave out `kind: idm`"
        )
    labels = labels and (kind == "idm" or variant == "ss")
    idm = _idm(want, scale) if labels else None
    return Cell(
        kind=kind,
        dataset=_dataset(want, scale),
        setup=None if whole else setup,
        recipe=() if whole or setup is None else _recipe(setup, want),
        agent=want["agent"] if learns else None,
        settings=pairs(reference.agent_changes(want["agent"], agent)) if agent is not None else (),
        variant=variant if learns else None,
        idm=None if idm is None else pairs(reference.idm_changes(idm)),
        rounds=want["rounds"] if labels else 0,
        certain=plain(want["certain"]) if labels and learns else None,
        env=want["env"] if learns else None,
        seed=0 if kind == "data" and whole else want["seed"],
        episodes=(want["episodes"] or scale.episodes) if learns else 0,
        policy=(want["policy"] or scale.policy) if learns else None,
        looks=(want["looks"] or scale.looks) if learns else 0,
        agent_revision=revision_of(agent),
        idm_revision=revision_of(idm),
    )


# From settings to a cell -----------------------------------------------------------------------------------


def _point(asked: dict[str, Any], labels: dict[str, Any], scale: Scale) -> Point:
    cell = resolve(asked, scale)
    want = {**DEFAULTS, **asked}
    recipe = {k: v if want[k] is None else want[k] for k, v in RECIPES.get(want["setup"] or "", {}).items()}
    without = () if cell.kind == "return" else ("agent", "variant")
    without = without if cell.idm is not None else (*without, "idm")
    at = {name: recipe.get(name, want[name]) for name in SHOWN if name not in without}
    at |= {"dataset": str(want["dataset"]).removeprefix("sim/"), "seed": asked["seed"]}
    at = {name: plain(value) for name, value in at.items() if value is not None}
    # Where the datasets of an axis have names of their own, those are shown.
    if labels.get("dataset") == want["dataset"]:
        labels = {name: label for name, label in labels.items() if name != "dataset"}
    return Point(cell, at | labels)


def _check_apart(study: str, points: Iterable[Point]) -> None:
    """Refuse two results at one place: the later would stand for both."""
    at: dict[tuple, Cell] = {}
    for point in points:
        if at.setdefault(tuple(point.at.items()), point.cell) != point.cell:
            place = ", ".join(f"{name} {value}" for name, value in point.at.items())
            raise SsorlError(
                f"{study}: two different results are both called {place}; make an axis of what they differ in"
            )


def _values(name: str, axis: Axis) -> list[tuple[Any, Mapping[str, Any]]]:
    """Labels with their settings."""
    if isinstance(axis, Mapping):
        return list(axis.items())
    if isinstance(axis, str) or not isinstance(axis, Sequence):
        raise SsorlError(f"the axis {name} is {axis!r}; give a list of values, or labels with settings each")
    return [(plain(value), {name: value}) for value in axis]


def _merge(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    """The second over the first; settings of agent and model join."""
    both = {k: {**one[k], **two[k]} for k in ("settings", "idm_settings") if k in one and k in two}
    return {**one, **two, **both}


def _agent(want: dict[str, Any], scale: Scale) -> Agent:
    """Return the agent: its preset, then the scale's settings, then the study's."""
    from ssorl.agents import AGENTS
    from ssorl.study.reference import preset_agent

    name, preset = want["agent"], want["preset"]
    if AGENTS.known(name) and scale.agents and name not in scale.agents:
        preset = "quick" if preset == "paper" else preset
    check_settings(name, want["settings"], None)  # that it is a table; `preset_agent` checks names and values
    return preset_agent(name, preset, want["defaults"], {**scale.agents.get(name, {}), **want["settings"]})


def _idm(want: dict[str, Any], scale: Scale) -> IdmSpec:
    """Return the IDM's configuration: its preset, then the scale's settings, then the study's."""
    from ssorl.study.reference import preset_idm

    spec: Any = preset_idm(want["idm"], want["defaults"])
    short = {name: want[name] for name in IDM_SETTINGS if want[name] is not None}
    check_settings("an inverse dynamics model", want["idm_settings"], spec)
    check_settings("an inverse dynamics model", short, spec)
    known = {f.name for f in fields(spec)}  # a scale's settings are those of the network; other families may lack some
    scaled = {k: v for k, v in {**scale.idm, **scale.idm_named.get(want["idm"], {})}.items() if k in known}
    changes = {**scaled, **want["idm_settings"], **short}
    return replace(spec, **{k: plain(v) for k, v in changes.items()})


def _dataset(want: dict[str, Any], scale: Scale) -> str:
    name = str(want["dataset"])
    size = want["size"] or scale.size
    return f"{name}:{size}" if name.startswith("sim/") and ":" not in name and size else name


def _recipe(setup: str, want: dict[str, Any]) -> Pairs:
    return pairs({name: default if want[name] is None else want[name] for name, default in RECIPES[setup].items()})


def _one(value: Any) -> float | str:
    """A number as such, however it is written, or else text."""
    try:
        told = float(value)
    except (TypeError, ValueError):
        return str(value)
    return told if math.isfinite(told) and not isinstance(value, bool) else str(value)
