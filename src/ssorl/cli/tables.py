"""Tables and sentences of the commands' results, for the terminal."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

FILMED = ("hopper", "walker2d", "halfcheetah", "maze2d", "pointmass")  # prefixes of environments that can be filmed


def _sentence(console: Console, text: str) -> None:
    """Print a sentence: wrapped between words on a terminal, on one line elsewhere."""
    console.print(text, soft_wrap=not console.is_terminal, highlight=False)


def _line(console: Console, text: str) -> None:
    """Print a path or a command, which stays on one line so that it can be copied."""
    console.print(escape(text), soft_wrap=True, highlight=False)


def show_profile(facts: dict) -> None:
    """Print the facts about a dataset.

    Args:
        facts: the result of `data.stats.profile`.
    """
    console = Console(emoji=False)
    env = f"  (environment {escape(facts['env'])})" if facts["env"] else ""
    console.print(f"[bold]{escape(facts['source'])}[/]{env}")
    table = Table.grid(padding=(0, 2))
    table.add_row("trajectories", f"{facts['trajectories']:,}")
    table.add_row("steps", f"{facts['steps']:,}")
    table.add_row("observation, action", f"{facts['observation_size']} and {facts['action_size']} numbers")
    partly = facts["partly_labelled_trajectories"]
    table.add_row(
        "with actions",
        f"{facts['labelled_share']:.1%} of the steps, {facts['labelled_trajectories']:,} complete trajectories"
        + (f", {partly:,} partly" if partly else ""),
    )
    table.add_row("terminated", f"{facts['terminated_share']:.0%} of the trajectories; the others are truncated")
    low, high = facts["action_range"]["low"], facts["action_range"]["high"]
    if low:
        same = len(set(low)) == 1 and len(set(high)) == 1
        ends = (
            f"[{low[0]:g}, {high[0]:g}]"
            if same
            else ", ".join(f"[{a:g}, {b:g}]" for a, b in zip(low, high, strict=True))
        )
        table.add_row("action range", escape(f"{ends} ({facts['action_range']['known']})"))
    console.print(table)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("", "mean", "std", "min", "max"):
        table.add_column(name, justify="right" if name else "left")
    for name, digits in (("return", 1), ("normalised_return", 3), ("length", 1)):
        if facts[name] is not None:
            numbers = (f"{facts[name][k]:,.{digits}f}" for k in ("mean", "std", "min", "max"))
            table.add_row(name.replace("_", " "), *numbers)
    console.print(table)
    for note in facts["notes"]:
        _sentence(console, f"note: {escape(note)}")
    for warning in facts["warnings"]:
        _sentence(console, f"[yellow]warning:[/] {escape(warning)}")
    if facts.get("plot"):
        _line(console, f"plot: {facts['plot']}")


def show_catalogue(rows: list[dict]) -> None:
    """Print the datasets that have a name, one row each."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("name", no_wrap=True)
    for name in ("steps", "episodes", "norm. return"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("where", no_wrap=True)
    for row in rows:
        score = row.get("normalised_return")
        table.add_row(
            escape(row["name"]),
            f"{row['steps']:,}" if row.get("steps") else "",
            f"{row['trajectories']:,}" if row.get("trajectories") else "",
            f"{score['mean']:.3f} ± {score['std']:.3f}" if score else "",
            row["where"],
        )
    Console(emoji=False).print(table)


def show_policies(rows: list[dict]) -> None:
    """Print the bundled behaviour policies, one row each."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("environment", "training steps", "return", "normalised", "datasets"):
        table.add_column(name, justify="left" if name in ("environment", "datasets") else "right", no_wrap=True)
    for row in rows:
        score = row["return"]
        table.add_row(
            row["env"],
            f"{row['steps']:,}",
            f"{score['mean']:,.0f} ± {score['std']:,.0f}",
            f"{row['normalised_return']:.3f}",
            ", ".join(row["serves"]),
        )
    Console(emoji=False).print(table)


def show_labels(report: dict, written: list[str]) -> None:
    """Print the quality of labels.

    Args:
        report: the report of the labels.
        written: paths of the files that were written.
    """
    from ssorl.idm.quality import summary

    console = Console(emoji=False)
    for line in summary(report):
        _sentence(console, line)
    if "simulator" in report:
        from ssorl.idm.certify import sentences

        for line in sentences(report["simulator"]):
            _sentence(console, line)
    for number in report.get("rounds", ()):
        errors = ", ".join(f"{e:.4g}" for e in number["validation_error"])
        mse = f", MSE {number['mse']:.4g}" if "mse" in number else ""
        _sentence(
            console, f"round {number['round']}: {number['added_steps']:,} steps added, validation error {errors}{mse}"
        )
    _line(console, f"written: {', '.join(written)}")


def show_run(result: dict, folder: Path) -> None:
    """Print the scores of a run, what the unlabelled data was worth, and the commands to continue with.

    Args:
        result: the content of result.json.
        folder: the run folder.
    """
    from ssorl.report import summary

    console = Console(emoji=False)
    cells = result.get("cells") or [{**result, "folder": "."}]
    estimate = result["kind"] == "fqe"
    unit = "est. value" if estimate else "norm. return" if result["normalised"] else "return"
    for cell in cells:
        if "cells" in result:
            console.print(f"[bold]labelled from the bottom {cell['quality']:g} %[/]")
        table = _score_table(cell, unit, result["normalised"])
        unlimited = console.options.update(width=1000)
        if Measurement.get(console, unlimited, table).maximum > console.width:
            table = _score_table(cell, unit, result["normalised"], described=False)
        console.print(table)
    _sentence(console, summary.answer_cells(result) if "cells" in result else summary.answer(result))
    for caveat in summary.caveats_cells(result) if "cells" in result else summary.caveats(result):
        _sentence(console, f"[dim]{escape(caveat)}[/]")
    _line(console, f"report: {folder}/report.html")
    if not estimate:
        path = shlex.quote(str(folder / cells[0]["folder"]))
        variant = "" if "ss" in cells[0]["scores"] else f" --variant {next(iter(cells[0]['scores']), 'all')}"
        film = " --video policy.gif" if str(result.get("env")).startswith(FILMED) else ""
        _line(console, f"next: ssorl evaluate {path}{variant}{film}")


def _score_table(cell: dict, unit: str, normalised: bool, described: bool = True) -> Table:
    """Return a table with a row for each variant; in a narrow terminal long numbers are folded, never cut."""
    from ssorl.report import summary

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    for name in (unit, "95 % interval", "relative gap"):
        table.add_column(name, justify="right", overflow="fold")
    for variant, score in cell["scores"].items():
        mean, ends = summary.mean_and_ends(score, normalised)
        gap = (cell["relative_gap"] or {}).get(variant)
        name = f"{variant:8}  [dim]{summary.DESCRIPTIONS[variant]}[/]" if described else variant
        table.add_row(name, mean, escape(ends), "" if gap is None else summary.share(gap))
    return table


def show_scores(result: dict) -> None:
    """Print the scores of `ssorl evaluate`.

    Args:
        result: the JSON result.
    """
    console = Console(emoji=False)
    _sentence(
        console, f"{escape(result['env'])}, {result['episodes']} episodes of each policy; 95 % intervals over episodes"
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
