"""The page of a study: one HTML file made from the cells of a store, with files for papers beside it.

The charts are inline SVG (svg.py), as on a run's page. Plotly is not used: it alone is 4.5 MB, while these pages have a
few hundred kilobytes and a content security policy that lets nothing else run. They have the same functions: tooltips
with the values, and downloads of each chart as SVG and of each table as CSV.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ssorl.report.axes import known
from ssorl.report.blocks import Link, Panel, Section, Table, wide_and_narrow
from ssorl.report.markup import NARROW, legend
from ssorl.report.page import render_template
from ssorl.study.claims.judge import Verdict, judge
from ssorl.study.grid import Study
from ssorl.study.report.answer import answer, caveats
from ssorl.study.report.charts import Chart, Figure, figures
from ssorl.study.report.claims import ledger_figures, ledger_words
from ssorl.study.report.files import markdown, pictures
from ssorl.study.report.panels import varying
from ssorl.study.report.svg import draw
from ssorl.study.results import StudyResults, gather, values
from ssorl.study.revisions import explain_shown, name_revisions
from ssorl.study.scales import find_scale
from ssorl.study.store import lock_folders
from ssorl.utils.files import write_text

MAX_OPEN = 8  # a table with at most this many rows is open at first


def page(
    study: Study,
    scale: str,
    store: Path | str,
    seeds: int | None = None,
    only: Mapping[str, Sequence[Any]] | None = None,
    name: str | None = None,
    policy: str | None = None,
    verdicts: Sequence[Verdict] | None = None,
) -> Path:
    """Write the page of a study into STORE/reports, with figures (PNG, PDF) and tables (Markdown) beside it.

    With `seeds`, `only` or `policy` the page covers a part of the study and has a file name of its own.

    Args:
        study: the study.
        scale: name of the scale.
        store: folder with the cells.
        seeds: number of seeds to show; by default, those of the scale and all others in the store.
        only: values to show, by axis of the grid.
        name: name or file of the study on the command line; by default, the study's own name.
        policy: "last" or "average": score these weights instead of those that the scale names.
        verdicts: verdicts on the claims, if they are known; by default, the results are judged.

    Returns:
        The path of the page.
    """
    scale, store = find_scale(scale).name, Path(store)
    entries = gather(study, scale, store, seeds, only, policy)
    part = _part(seeds, only or {}, policy)
    title = (study.title or study.name) + (f" ({part})" if part else "")
    if study.figure == "claims":
        verdicts = list(verdicts or judge(entries, scale, part=bool(only)))
        drawn, (text, notes) = ledger_figures(verdicts), ledger_words(verdicts)
    else:
        drawn, text, notes = figures(study, entries), answer(study, scale, entries), []
    stem = store / "reports" / "-".join(filter(None, (_file_name(study.name) or "study", scale, _file_name(part))))
    badge = "smoke: no evidence" if scale == "smoke" else f"scale {scale}"
    flags = ["--seeds", str(seeds)] if seeds else []
    flags += ["--only", *(f"{axis}={value}" for axis, chosen in only.items() for value in chosen)] if only else []
    own_flags = {"run": [], "report": ["--policy", policy] if policy else []}
    with lock_folders([stem.parent]):  # one process at a time; removes what a killed one left
        files = [
            markdown(
                title,
                f"{study.paper}. Scale {scale}. {text}".lstrip(". "),
                _tables(drawn),
                stem.with_name(f"{stem.name}.md"),
            )
        ]
        if study.figure != "claims":
            files += pictures(drawn, title, badge, stem)
        html = render_template(
            "study.html.j2",
            "study",
            title=title,
            badge=badge,
            warn=scale == "smoke",
            answer=text,
            caveats=caveats(scale, entries) + explain_shown(entries) + notes,
            facts=_facts(study, scale, entries),
            sections=[_section(figure) for figure in drawn],
            note="The first command runs the missing cells and keeps finished ones; the second writes this page again:",
            command=" && ".join(
                shlex.join(
                    ["ssorl", "study", verb, name or study.name, "--scale", scale, "--store", str(store), *flags, *own]
                )
                for verb, own in own_flags.items()
            ),
            tables=[
                ("Missing cells", _missing(entries), True),
                ("Finished cells", _finished(entries), False),
            ],
            files=[path.name for path in files],
        )
        path = stem.with_name(f"{stem.name}.html")
        write_text(path, html)
    return path


def _part(seeds: int | None, only: Mapping[str, Sequence[Any]], policy: str | None = None) -> str:
    """Return which part of a study the page covers, in words; "" for all of it."""
    parts = [f"{axis} {', '.join(map(str, values))}" for axis, values in only.items()]
    parts += [f"{seeds} {'seed' if seeds == 1 else 'seeds'}"] if seeds else []
    return "; ".join(parts + ([f"{policy} weights"] if policy else []))


def _file_name(text: str) -> str:
    """Return the text without characters that file names may not have."""
    return re.sub(r"[^a-zA-Z0-9_-]+", "-", text).strip("-")


def _facts(study: Study, scale: str, entries: list[StudyResults]) -> list[tuple[str, str]]:
    cells = {entry.hash: entry for entry in entries}
    finished = sum(entry.result is not None for entry in cells.values())
    seeds = len(values([entry for entry in entries if entry.result], "seed"))
    out = [("cells", f"{finished:,} of {len(cells):,}"), ("seeds", str(seeds)), ("scale", scale)]
    out += [("revisions", names)] if (names := name_revisions(entries)) else []
    return [*out, ("in the paper", study.paper)] if study.paper else out


def _section(figure: Figure) -> Section:
    half = len(figure.charts) > 1
    keys = {tuple(chart.legend) for chart in figure.charts if chart.legend}
    shared = half and len(keys) == 1  # all panels have the same legend
    panels = [_panel(chart, f"{figure.key}-{i}", half, not shared) for i, chart in enumerate(figure.charts)]
    shared_legend = legend(next(iter(keys))) if shared else ""
    return Section(figure.key, figure.title, figure.text, panels, shared_legend)


def _panel(chart: Chart, key: str, half: bool, own_legend: bool) -> Panel:
    plot = bool(chart.lines or chart.bars or chart.columns or chart.densities or chart.axes != ("", ""))
    if not plot:
        drawn: Sequence[Any] = ()
    elif half:
        drawn = [draw(chart, key, NARROW)]
    else:
        drawn = wide_and_narrow(lambda name, width: draw(chart, name, width), key)
    keys = legend(chart.legend) if own_legend and len(chart.legend) > 1 else ""
    open_ = len(chart.table.rows) <= (MAX_OPEN if plot else 2 * MAX_OPEN)
    return Panel(chart.title, drawn, chart.table, keys, half and plot, open_)


def _tables(drawn: list[Figure]) -> list[tuple[str, Table]]:
    return [
        (figure.title if chart.title == figure.title else f"{figure.title}: {chart.title}", chart.table)
        for figure in drawn
        for chart in figure.charts
        if chart.table.rows
    ]


def _finished(entries: list[StudyResults]) -> Table:
    """Return the finished cells, with links to their folders."""
    names = [name for name in varying(entries) if name != "seed"] + ["seed"]
    head = (*names, "score", "action MSE", "cell")
    rows: list[tuple] = []
    full: list[tuple] = []
    for entry in {entry.hash: entry for entry in reversed(entries)}.values():
        if entry.result is not None:
            at = [entry.at.get(name) for name in names]
            numbers = (entry.score if known(entry.score) else None, entry.mse)
            rows.append((*at, *numbers, Link(entry.hash, f"../cells/{entry.hash}/")))
            full.append((*at, *numbers, entry.hash))
    return Table("cells", head, rows[::-1], [head, *full[::-1]])


def _missing(entries: list[StudyResults]) -> Table:
    """Return the cells without a result and the reason, with all seeds of a setting in one row."""
    names = [name for name in varying(entries) if name != "seed"]
    rows: dict[tuple, list[str]] = {}
    for entry in {entry.hash: entry for entry in reversed(entries)}.values():
        if entry.result is None:
            key = (*(entry.at.get(name) for name in names), entry.why)
            rows.setdefault(key, []).append(str(entry.at.get("seed", "")))
    settings = [(*key[:-1], ", ".join(reversed(seeds)), key[-1]) for key, seeds in rows.items()]
    return Table("missing", (*names, "seeds", "reason"), settings[::-1])
