"""ssorl study: the paper's figures and tables by name, and grids of your own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro

from ssorl.cli.cluster import RayOptions
from ssorl.cli.help import subcommand
from ssorl.cli.options import Json, arg, flag, note, print_json
from ssorl.cli.study_options import STORE, AgentClasses, IdmModules, Store, StudyOptions, import_extensions

if TYPE_CHECKING:
    from ssorl.study.cell import Cell
    from ssorl.study.store import State
    from ssorl.utils.progress import Progress


@dataclass(frozen=True)
class List:
    """List the studies of the paper's figures and tables."""

    json: Json = False

    def run(self) -> None:
        """Print a table."""
        from ssorl.study.paper import STUDIES

        rows = [{"name": s.name, "title": s.title, "paper": s.paper} for s in STUDIES.values()]
        if self.json:
            return print_json(rows)
        return _print_table(("study", "title", "in the paper"), [tuple(row.values()) for row in rows])


@dataclass(frozen=True)
class Show:
    """Show the axes of a study, and how many of its cells are done."""

    study: StudyOptions
    json: Json = False

    def run(self) -> None:
        """Print the axes and count the cells."""
        from ssorl.study.results import gather
        from ssorl.study.revisions import current, explain_stale, notes
        from ssorl.study.store import state

        options = self.study
        study, points, cells = options.load(), options.points(), options.cells()
        axes: dict[str, list] = {}
        for point in points:
            for name, value in point.at.items():
                axes.setdefault(name, [])
                if value not in axes[name]:
                    axes[name].append(value)
        counts, revisions = state(options.store, cells), current(cells)
        if self.json:
            result = {
                "name": study.name,
                "title": study.title,
                "paper": study.paper,
                "scale": options.scale,
                "axes": axes,
                "points": len(points),
                "cells": len(cells),
                **counts._asdict(),
                "revisions": revisions,
                "stale": explain_stale(options.store, cells),
                "grid": [{"cell": point.cell.hash, **point.at} for point in points],
            }
            return print_json(result)
        print(f"{study.name}: {study.title}" + (f" ({study.paper})" if study.paper else ""))
        for name, values in axes.items():
            print(f"  {name:20}{' | '.join(map(str, values))}")
        print(f"{len(points):,} points, {len(cells):,} cells at scale {options.scale}: {_counts(counts)}")
        if any(revisions.values()):
            results = gather(study, options.scale, options.store, options.seeds, options.chosen())
            print(*notes(results), sep="\n")
        return None


@dataclass(frozen=True)
class Run:
    """Compute the missing cells of a study, and draw its page.

    Each result is stored under the hash of its settings, so no cell is computed twice, even for different studies. A
    command that was stopped resumes when it is given again. Several processes may work in one store at the same time.
    """

    RESUMES: ClassVar[bool] = True
    study: StudyOptions
    ray: RayOptions
    dry_run: Annotated[bool, flag("print what would be computed and how long it takes, and compute nothing")] = False
    json: Json = False

    def run(self) -> None:
        """Run the missing cells, draw the page, and report the cells that failed."""
        from ssorl.study.revisions import explain_stale

        store, cells = self.study.store, self.study.cells()
        stale = explain_stale(store, cells)
        if stale:
            note(stale)
        if self.dry_run:
            return self._print_cost(cells, stale)
        with self.ray.runner() as run, self._progress(cells) as bar:
            outcome = run(cells, store, progress=bar, notify=bar.say)
        note(f"{outcome.done:,} of {len(cells):,} cells are done")
        failed = {cell.hash: reason for cell, reason in outcome.failed.items()}
        _draw_page(self.study, self.json, {"cells": len(cells), "done": outcome.done, "failed": failed})
        if outcome.failed:
            n = len(outcome.failed)
            print(f"ssorl: {n} {'cell' if n == 1 else 'cells'} failed; the same command tries again:", file=sys.stderr)
            for cell, reason in outcome.failed.items():
                print(f"  {store / 'cells' / cell.hash / 'error.txt'}: {reason}", file=sys.stderr)
            sys.exit(1)
        return None

    def _print_cost(self, cells: list[Cell], stale: str) -> None:
        import jax

        from ssorl.study.cost import DEVICES, cost
        from ssorl.study.paper import STUDIES
        from ssorl.utils.progress import duration

        options = self.study
        others = [study for study in STUDIES.values() if study.figure != "claims"]
        total = cost(options.load(), options.scale, options.store, cells, others)
        if self.json:
            return print_json({"study": options.name, "scale": options.scale, **total._asdict(), "stale": stale})
        here = "cpu" if jax.default_backend() == "cpu" else "gpu"
        shapes = "1 shape" if total.shapes == 1 else f"{total.shapes:,} shapes"
        print(f"{options.name} at scale {options.scale}: {total.cells:,} cells, {total.done:,} done")
        print(f"to do: {total.cells - total.done:,} cells, {total.shared:,} of them shared with other studies")
        print(f"       {total.models:,} inverse dynamics models, {total.updates:,} updates of agents")
        print(f"       in batches that fit the device; {shapes} to compile")
        for kind, device in DEVICES.items():
            mark = "  <- this machine has such a device" if kind == here else ""
            print(f"about {duration(total.seconds[kind])} on {device.words}{mark}")
        print(f"       {total.seconds['gpu'] / 3600:,.1f} GPU-hours, a rough estimate from rates at two sizes")
        return None

    def _progress(self, cells: list[Cell]) -> Progress:
        from ssorl.study.cost import fits, updates
        from ssorl.study.store import finished
        from ssorl.utils.progress import Progress

        store = self.study.store
        left = [cell for cell in cells if not finished(store, cell)]
        models = {cell.idm_hash: cell for cell in left if cell.idm_hash}
        missing = [cell for name, cell in models.items() if not (store / f"idms/{name}/report.json").is_file()]
        note(f"{self.study.name}: {len(left):,} of {len(cells):,} cells to do in {store}")
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
    """Count the finished cells of the studies."""

    name: Annotated[tyro.conf.Positional[str | None], arg("[NAME|FILE]", "a study", "all that have results")] = None
    store: Store = STORE
    agent: AgentClasses = ()
    idm: IdmModules = ()
    json: Json = False

    def run(self) -> None:
        """Print a table with one row for each study and scale."""
        from ssorl.study.files import find
        from ssorl.study.paper import STUDIES
        from ssorl.study.scales import SCALES
        from ssorl.study.store import state

        import_extensions(self.agent, self.idm)
        rows = []
        for study in [find(self.name)] if self.name else STUDIES.values():
            for scale in SCALES:
                counts = state(self.store, study.cells(scale))
                if counts.done or counts.failed or self.name:
                    rows.append({"study": study.name, "scale": scale, **counts._asdict()})
        if self.json:
            return print_json(rows)
        if not rows:
            print(f"{self.store}: no results yet; begin with `ssorl study run main-medium-expert`")
            return None
        return _print_table(tuple(rows[0]), [tuple(row.values()) for row in rows])


@dataclass(frozen=True)
class Report:
    """Draw the page of a study from its finished cells.

    With --only the page shows that part of the grid, and is a separate file.
    """

    study: StudyOptions
    policy: Annotated[
        Literal["last", "average"] | None,
        arg("{last,average}", "show scores of the last or the averaged weights", "the scale's, which is last"),
    ] = None
    json: Json = False

    def run(self) -> None:
        """Draw the page and print its path."""
        _draw_page(self.study, self.json, {}, self.policy)


@dataclass(frozen=True)
class Study:
    """Reproduce the paper's figures, or run grids of your own."""

    command: (
        Annotated[List, subcommand("list", List)]
        | Annotated[Show, subcommand("show", Show)]
        | Annotated[Run, subcommand("run", Run)]
        | Annotated[Status, subcommand("status", Status)]
        | Annotated[Report, subcommand("report", Report)]
    )

    def run(self) -> None:
        """Run the chosen command."""
        self.command.run()


def _draw_page(options: StudyOptions, as_json: bool, summary: dict[str, Any], policy: str | None = None) -> None:
    """Draw the page and print its path, with the verdicts of a study of claims; `summary` is added to the JSON."""
    from ssorl.study.report.claims import claim_json, one_number
    from ssorl.study.report.page import page
    from ssorl.study.revisions import notes

    options.points()  # raises if the chosen part is invalid
    study, claims = options.load(), []
    if study.figure == "claims":
        from ssorl.study.claims.judge import ledger

        claims = ledger(options.store, options.scale, options.seeds, options.chosen(), policy)
    path = page(study, options.scale, options.store, options.seeds, options.chosen(), options.name, policy, claims)
    if as_json:
        result = {"study": options.name, "scale": options.scale, "page": str(path), **summary}
        return print_json({**result, **({"claims": [claim_json(claim) for claim in claims]} if claims else {})})
    results = [
        result
        for claim in claims
        for judged in claim.judged
        for group in judged.check.groups
        for task in group
        for result in task
    ]
    for claim in claims:
        print(claim)
        if claim.whole.estimate:
            name, value, places, claimed, so_far = one_number(claim.whole)
            print(f"    {name}: {value} at {places} places, claimed {claimed}: {so_far}")
    print(*notes(results), path, sep="\n")
    return None


def _counts(counts: State) -> str:
    failed = f", {counts.failed:,} failed at the last try" if counts.failed else ""
    return f"{counts.done:,} done, {counts.left:,} to do{failed}"


def _print_table(head: Sequence[str], rows: list[tuple]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*head, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(f"{x:,}" if isinstance(x, int) else str(x) for x in row))
    Console(emoji=False).print(table)
