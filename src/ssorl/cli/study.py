"""ssorl study: the paper's figures and tables by name, and grids of your own."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from ssorl.cli.cluster import RayOptions
from ssorl.cli.options import Json, arg, import_idm, note, print_json
from ssorl.utils.errors import SsorlError

Size = Literal["smoke", "lite", "paper"]
Name = Annotated[
    tyro.conf.Positional[str],
    arg("NAME|FILE", "a study of `ssorl study list`, or a .yaml, .toml, .json or .py file of yours"),
]
AtScale = Annotated[
    Size, arg("{smoke,lite,paper}", "minutes on a CPU, an hour or so on a GPU, or the published settings (smoke)")
]
OwnAgents = Annotated[
    tuple[str, ...], arg("MODULE:CLASS …", "import these agents, if the study has some that are not installed")
]
OwnIdms = Annotated[
    tuple[str, ...], arg("MODULE:NAME …", "import these inverse dynamics models, if the study has some not installed")
]
Store = Annotated[Path, arg("FOLDER", "where results are kept and found (runs/study)")]
STORE = Path("runs/study")


@dataclass(frozen=True)
class List:
    """Every study there is: the paper's figures and tables."""

    json: Json = False

    def run(self) -> None:
        """Print a table."""
        from ssorl.study.paper import STUDIES

        rows = [{"name": s.name, "title": s.title, "paper": s.paper} for s in STUDIES.values()]
        if self.json:
            return print_json(rows)
        return _table(("study", "what", "in the paper"), [tuple(row.values()) for row in rows])


@dataclass(frozen=True)
class Part:
    """Which study, at which scale, and which part of it."""

    name: Name
    scale: AtScale = "smoke"
    store: Store = STORE
    seeds: Annotated[int | None, arg("N", "in place of the scale's")] = None
    only: Annotated[
        tuple[str, ...], arg("AXIS=VALUE …", "the part with these values: agent=dt quality=10 quality=30")
    ] = ()

    agent: OwnAgents = ()
    idm: OwnIdms = ()

    def study(self):
        """The study."""
        from ssorl.study.files import find

        _import(self.agent, self.idm)
        return find(self.name)

    def chosen(self) -> dict[str, list[str]]:
        """The values asked for, by axis."""
        only: dict[str, list[str]] = {}
        for text in self.only:
            name, equals, value = text.partition("=")
            if not equals:
                raise SsorlError(f"--only {text}: write AXIS=VALUE, such as agent=dt")
            only.setdefault(name, []).append(value)
        return only

    def points(self):
        """The part of its grid."""
        if self.seeds is not None and self.seeds < 1:
            raise SsorlError(f"--seeds is {self.seeds}; give a whole number from 1 up")
        if self.seeds is not None and self.study().names_seeds:
            raise SsorlError(f"--seeds {self.seeds}: {self.name} says itself which seeds it has; take `seed` out of it")
        return self.study().points(self.scale, self.seeds, self.chosen())

    def cells(self) -> list:
        """Each cell of that part once."""
        return list(dict.fromkeys(point.cell for point in self.points()))


@dataclass(frozen=True)
class Show:
    """What a study is made of: its axes, its cells and how many are there."""

    part: Part
    json: Json = False

    def run(self) -> None:
        """Print the axes and count the cells."""
        from ssorl.study.results import gather
        from ssorl.study.revisions import current, explain_stale, notes
        from ssorl.study.store import state

        study, points, cells = self.part.study(), self.part.points(), self.part.cells()
        axes: dict[str, list] = {}
        for point in points:
            for name, value in point.at.items():
                axes.setdefault(name, [])
                if value not in axes[name]:
                    axes[name].append(value)
        found, revisions = state(self.part.store, cells), current(cells)
        told = {
            "name": study.name,
            "title": study.title,
            "paper": study.paper,
            "scale": self.part.scale,
            "axes": axes,
            "points": len(points),
            "cells": len(cells),
            **found._asdict(),
            "revisions": revisions,
            "stale": explain_stale(self.part.store, cells),
        }
        if self.json:
            rows = [{"cell": p.cell.hash, **p.at} for p in points]
            return print_json({**told, "grid": rows})
        print(f"{study.name}: {study.title}" + (f" ({study.paper})" if study.paper else ""))
        for name, values in axes.items():
            print(f"  {name:20}{' | '.join(map(str, values))}")
        print(f"{len(points):,} points, {len(cells):,} cells at scale {self.part.scale}: {_state(found)}")
        if any(revisions.values()):
            print(
                *notes(gather(study, self.part.scale, self.part.store, self.part.seeds, self.part.chosen())), sep="\n"
            )
        return None


@dataclass(frozen=True)
class Run:
    """Compute what is missing of a study, and draw its page.

    Results are kept by what defines them, so nothing is computed twice, whichever study asked for it. The same command
    goes on where it was stopped, and several may work on one folder at once.
    """

    RESUMES: ClassVar[bool] = True
    part: Part
    cluster: RayOptions
    dry_run: bool = False  # tell what there is to do and how long it takes, and do nothing
    json: Json = False

    def run(self) -> None:
        """Plan, tell, run, draw."""
        from ssorl.study.revisions import explain_stale

        cells = self.part.cells()
        stale = explain_stale(self.part.store, cells)
        if stale:
            note(stale)
        if self.dry_run:
            return self._tell(cells, stale)
        with self.cluster.runner() as run, self._progress(cells) as bar:
            outcome = run(cells, self.part.store, progress=bar, notify=bar.say)
        note(f"{outcome.done:,} of {len(cells):,} cells are done")
        failed = {cell.hash: why for cell, why in outcome.failed.items()}
        _draw(self.part, self.json, {"cells": len(cells), "done": outcome.done, "failed": failed})
        if outcome.failed:
            print(f"ssorl: {len(outcome.failed)} failed; the same command tries again:", file=sys.stderr)
            for cell, why in outcome.failed.items():
                print(f"  {self.part.store / 'cells' / cell.hash / 'error.txt'}: {why}", file=sys.stderr)
            sys.exit(1)
        return None

    def _tell(self, cells: list, stale: str) -> None:
        import jax

        from ssorl.study.cost import DEVICES, cost
        from ssorl.study.paper import STUDIES
        from ssorl.utils.progress import duration

        others = [study for study in STUDIES.values() if study.figure != "claims"]
        found = cost(self.part.study(), self.part.scale, self.part.store, cells, others)
        if self.json:
            return print_json({"study": self.part.name, "scale": self.part.scale, **found._asdict(), "stale": stale})
        here = "cpu" if jax.default_backend() == "cpu" else "gpu"
        print(f"{self.part.name} at scale {self.part.scale}: {found.cells:,} cells, {found.done:,} done")
        print(f"to do: {found.cells - found.done:,} cells, {found.shared:,} of them in other studies too")
        print(f"       {found.models:,} inverse dynamics models, {found.updates:,} updates of agents")
        shapes = "1 shape" if found.shapes == 1 else f"{found.shapes:,} shapes"
        print(f"       in batches that fit the device, of {shapes} to be compiled")
        for kind, device in DEVICES.items():
            mark = "  <- a device of this kind is here" if kind == here else ""
            print(f"about {duration(found.seconds[kind])} on {device.words}{mark}")
        print(f"       {found.seconds['gpu'] / 3600:,.1f} GPU-hours; rough, from rates measured at two sizes")
        return None

    def _progress(self, cells: list):
        from ssorl.study.cost import fits, updates
        from ssorl.study.store import finished
        from ssorl.utils.progress import Progress

        left = [cell for cell in cells if not finished(self.part.store, cell)]
        models = {cell.idm_hash: cell for cell in left if cell.idm_hash}
        missing = [
            cell for name, cell in models.items() if not (self.part.store / f"idms/{name}/report.json").is_file()
        ]
        note(f"{self.part.name}: {len(left):,} of {len(cells):,} cells to do in {self.part.store}")
        return Progress(
            {
                "cells": (len(left), "cells"),
                "fitting": (sum(fits(cell).updates for cell in missing), "updates"),
                "labelling": (0, "steps"),
                "training": (sum(updates(cell) for cell in left), "updates"),
                "evaluating": (0, "steps"),
            }
        )


@dataclass(frozen=True)
class Status:
    """How far the studies are."""

    name: Annotated[tyro.conf.Positional[str | None], arg("[NAME|FILE]", "one study (all that are begun)")] = None
    store: Store = STORE
    agent: OwnAgents = ()
    idm: OwnIdms = ()
    json: Json = False

    def run(self) -> None:
        """Count finished cells, study by study and scale by scale."""
        from ssorl.study.files import find
        from ssorl.study.paper import STUDIES
        from ssorl.study.scales import SCALES
        from ssorl.study.store import state

        _import(self.agent, self.idm)
        rows = []
        for study in [find(self.name)] if self.name else STUDIES.values():
            for scale in SCALES:
                found = state(self.store, study.cells(scale))
                if found.done or found.failed or self.name:
                    rows.append({"study": study.name, "scale": scale, **found._asdict()})
        if self.json:
            return print_json(rows)
        if not rows:
            print(f"{self.store}: nothing is done yet; begin with `ssorl study run main-medium-expert`")
            return None
        return _table(tuple(rows[0]), [tuple(row.values()) for row in rows])


@dataclass(frozen=True)
class Report:
    """Draw a study's page from what is done of it; of a part of it, a page of its own."""

    part: Part
    policy: Annotated[
        Literal["last", "average"] | None,
        arg("{last,average}", "whose weights score: every result keeps both (as the scale says, which is the last)"),
    ] = None
    json: Json = False

    def run(self) -> None:
        """Draw and tell where."""
        _draw(self.part, self.json, {}, self.policy)


@dataclass(frozen=True)
class Study:
    """The paper's figures and tables by name, and grids of your own: list, show, run, status, report."""

    command: (
        Annotated[List, tyro.conf.subcommand("list")]
        | Annotated[Show, tyro.conf.subcommand("show")]
        | Annotated[Run, tyro.conf.subcommand("run")]
        | Annotated[Status, tyro.conf.subcommand("status")]
        | Annotated[Report, tyro.conf.subcommand("report")]
    )

    def run(self) -> None:
        """Run the command."""
        self.command.run()


def _draw(part: Part, as_json: bool, told: dict[str, Any], policy: str | None = None) -> None:
    from ssorl.study.report.claims import claim_json, one_number
    from ssorl.study.report.page import page
    from ssorl.study.revisions import notes

    part.points()  # says what is wrong with the part
    study, claims = part.study(), []
    if study.figure == "claims":
        from ssorl.study.claims.judge import ledger

        claims = ledger(part.store, part.scale, part.seeds, part.chosen(), policy)
    path = page(study, part.scale, part.store, part.seeds, part.chosen(), part.name, policy, claims)
    if as_json:
        rows = [claim_json(v) for v in claims]
        at = {"study": part.name, "scale": part.scale, "page": str(path)}
        return print_json({**at, **told, **({"claims": rows} if claims else {})})
    found = [
        x for verdict in claims for j in verdict.judged for group in j.check.groups for task in group for x in task
    ]
    for verdict in claims:
        print(verdict)
        if verdict.whole.estimate:
            one = one_number(verdict.whole)
            print(f"    {one.name}: {one.value} at {one.places} places, claimed {one.claimed}: {one.so_far}")
    print(*notes(found), path, sep="\n")
    return None


def _import(agents: tuple[str, ...], idms: tuple[str, ...]) -> None:
    """Make agents and inverse dynamics models known that studies may then name."""
    if agents:
        from ssorl.agents import agent_class

        for name in agents:
            agent_class(name)
    for name in idms:
        import_idm(name)


def _state(found) -> str:
    failed = f", {found.failed:,} failed at the last try" if found.failed else ""
    return f"{found.done:,} done, {found.left:,} to do{failed}"


def _table(head: tuple, rows: list[tuple]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*head, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(f"{x:,}" if isinstance(x, int) else str(x) for x in row))
    Console(emoji=False).print(table)
