"""Tables for the terminal."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

FILMED = ("hopper", "walker2d", "halfcheetah", "maze2d", "pointmass")  # environments that a video can be drawn of


def show_profile(told: dict) -> None:
    """What `profile` found, for reading."""
    console = Console(emoji=False)
    console.print(
        f"[bold]{escape(told['source'])}[/]" + (f"  (environment {escape(told['env'])})" if told["env"] else "")
    )
    facts = Table.grid(padding=(0, 2))
    facts.add_row("trajectories", f"{told['trajectories']:,}")
    facts.add_row("steps", f"{told['steps']:,}")
    facts.add_row("observation, action", f"{told['observation_size']} and {told['action_size']} numbers")
    partly = told["partly_labelled_trajectories"]
    facts.add_row(
        "with actions",
        f"{told['labelled_share']:.1%} of the steps, {told['labelled_trajectories']:,} whole trajectories"
        + (f", {partly:,} in part" if partly else ""),
    )
    facts.add_row("ended by the task", f"{told['terminated_share']:.0%} of the trajectories, the rest truncated")
    low, high = told["action_range"]["low"], told["action_range"]["high"]
    if low:
        same = len(set(low)) == 1 and len(set(high)) == 1
        text = (
            f"[{low[0]:g}, {high[0]:g}]"
            if same
            else ", ".join(f"[{a:g}, {b:g}]" for a, b in zip(low, high, strict=True))
        )
        facts.add_row("action range", escape(f"{text} ({told['action_range']['known']})"))
    console.print(facts)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("", "mean", "std", "min", "max"):
        table.add_column(name, justify="right" if name else "left")
    for name, digits in (("return", 1), ("normalised_return", 3), ("length", 1)):
        if told[name] is not None:
            table.add_row(
                name.replace("_", " "),
                *(f"{told[name][k]:,.{digits}f}" for k in ("mean", "std", "min", "max")),
            )
    console.print(table)
    for note in told["notes"]:
        console.print(f"note: {escape(note)}", soft_wrap=True)
    for warning in told["warnings"]:
        console.print(f"[yellow]warning:[/] {escape(warning)}", soft_wrap=True)
    if told.get("plot"):
        console.print(f"densities drawn to {escape(told['plot'])}", soft_wrap=True)


def show_catalogue(rows: list[dict]) -> None:
    """The datasets that can be named."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("name", no_wrap=True)
    for name in ("steps", "episodes", "norm. return"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("where", no_wrap=True)
    for row in rows:
        ret = row.get("normalised_return")
        table.add_row(
            escape(row["name"]),
            f"{row['steps']:,}" if row.get("steps") else "",
            f"{row['trajectories']:,}" if row.get("trajectories") else "",
            f"{ret['mean']:.3f} ± {ret['std']:.3f}" if ret else "",
            row["where"],
        )
    Console(emoji=False).print(table)


def show_policies(rows: list[dict]) -> None:
    """The bundled policies."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("environment", "training steps", "return", "normalised", "serves"):
        table.add_column(name, justify="left" if name in ("environment", "serves") else "right", no_wrap=True)
    for row in rows:
        ret = row["return"]
        table.add_row(
            row["env"],
            f"{row['steps']:,}",
            f"{ret['mean']:,.0f} ± {ret['std']:,.0f}",
            f"{row['normalised_return']:.3f}",
            ", ".join(row["serves"]),
        )
    Console(emoji=False).print(table)


def show_labels(told: dict, written: list[str]) -> None:
    """What a set of labels is like, and where it went."""
    from ssorl.idm.quality import summary

    console = Console(emoji=False)
    for line in summary(told):
        console.print(line, soft_wrap=True, highlight=False)
    for done in told.get("rounds", ()):
        errors = ", ".join(f"{e:.4g}" for e in done["validation_error"])
        true = f", MSE {done['mse']:.4g}" if "mse" in done else ""
        console.print(f"round {done['round']}: {done['added_steps']:,} steps added, validation error {errors}{true}")
    console.print(f"written: {escape(', '.join(written))}", soft_wrap=True, highlight=False)


def show_run(told: dict, folder: Path) -> None:
    """The end of a run: who reached what, what the unlabelled data was worth, and where to look further."""
    from ssorl.report import summary as words

    console = Console(emoji=False)
    cells = told.get("cells") or [{**told, "folder": "."}]
    estimate = told["kind"] == "fqe"
    unit = "est. value" if estimate else "norm. return" if told["normalised"] else "return"
    for cell in cells:
        if "cells" in told:
            console.print(f"[bold]labelled from the bottom {cell['quality']:g} %[/]")
        table = _agents(cell, unit, told["normalised"])
        wide = console.options.update(width=1000)
        if Measurement.get(console, wide, table).maximum > console.width:  # numbers are worth more than names
            table = _agents(cell, unit, told["normalised"], named=False)
        console.print(table)
    console.print(words.answer_cells(told) if "cells" in told else words.answer(told), soft_wrap=True, highlight=False)
    for caveat in words.caveats_cells(told) if "cells" in told else words.caveats(told):
        console.print(f"[dim]{escape(caveat)}[/]", soft_wrap=True, highlight=False)
    console.print(f"report: {escape(str(folder))}/report.html", soft_wrap=True, highlight=False)
    if not estimate:
        first = escape(shlex.quote(str(folder / cells[0]["folder"])))
        which = "" if "ss" in cells[0]["scores"] else f" --variant {next(iter(cells[0]['scores']), 'all')}"
        film = " --video policy.gif" if str(told.get("env")).startswith(FILMED) else ""
        console.print(f"further: ssorl evaluate {first}{which}{film}", soft_wrap=True, highlight=False)


def _agents(cell: dict, unit: str, normalised: bool, named: bool = True) -> Table:
    """Who reached what; where it is too narrow a number goes on in the next line, none is cut short."""
    from ssorl.report import summary as words

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    for name in (unit, "95 % interval", "relative gap"):
        table.add_column(name, justify="right", overflow="fold")
    for variant, score in cell["scores"].items():
        mean, ends = words.mean_and_ends(score, normalised)
        gap = (cell["relative_gap"] or {}).get(variant)
        name = f"{variant:8}  [dim]{words.DESCRIPTIONS[variant]}[/]" if named else variant
        table.add_row(name, mean, escape(ends), "" if gap is None else words.share(gap))
    return table


def show_scores(result: dict) -> None:
    """Print the scores of `ssorl evaluate`.

    Args:
        result: the JSON result.
    """
    console = Console(emoji=False)
    console.print(
        f"{escape(result['env'])}, {result['episodes']} episodes of each policy; 95 % intervals over episodes",
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("policy", "return", "", "normalised", "", "length"):
        table.add_column(name, justify="left" if name == "policy" else "right", overflow="fold")
    for row in result["policies"]:
        cells = []
        for interval in (row["return"], row["normalised"]):
            ends = "" if interval is None else f"[{interval['low']:,.1f}, {interval['high']:,.1f}]"
            cells += ["" if interval is None else f"{interval['mean']:,.1f}", escape(ends)]
        table.add_row(escape(Path(row["policy"]).stem), *cells, f"{row['length']:,.0f}")
    console.print(table)
