"""A study's page: one HTML file drawn from the cells of a store, with files for papers beside it.

The charts are SVG written here (svg.py, study_svg.py), as on a run's page, and not Plotly's: pointing at a mark tells
its values, every chart can be saved as an SVG file and its table as CSV, and the page is some hundred kilobytes under a
content security policy that lets nothing else run, where Plotly alone is 4.5 megabytes.
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
from ssorl.study.report import panels as named
from ssorl.study.report.answer import answer, caveats
from ssorl.study.report.charts import Chart, Figure, figures
from ssorl.study.report.claims import ledger_figures, ledger_words
from ssorl.study.report.files import markdown, pictures
from ssorl.study.report.svg import draw
from ssorl.study.results import StudyResults, gather, values
from ssorl.study.revisions import explain_shown, name_revisions
from ssorl.study.scales import find_scale
from ssorl.study.store import lock_folders
from ssorl.utils.files import write_text

OPEN = 8  # rows up to which a table shows at once


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
    """Write the page of a study at a scale into STORE/reports, with PNG, PDF and Markdown beside it; its path.

    With `seeds` or `only` it is of that part, and has a file of its own, as it has with a `policy`, whose weights then
    score in place of those that the scale names. `name` is what the command line calls it; `verdicts` are of a ledger
    that was judged already.
    """
    scale, store = find_scale(scale).name, Path(store)
    found = gather(study, scale, store, seeds, only, policy)
    part = _part(seeds, only or {}, policy)
    title = (study.title or study.name) + (f" ({part})" if part else "")
    if study.figure == "claims":
        verdicts = list(verdicts or judge(found, scale, part=bool(only)))
        drawn, (said, more) = ledger_figures(verdicts), ledger_words(verdicts)
    else:
        drawn, said, more = figures(study, found), answer(study, scale, found), []
    stem = store / "reports" / "-".join(filter(None, (_plain(study.name) or "study", scale, _plain(part))))
    badge = "smoke: no evidence" if scale == "smoke" else f"scale {scale}"
    flags = ["--seeds", str(seeds)] if seeds else []
    flags += ["--only", *(f"{axis}={value}" for axis, some in only.items() for value in some)] if only else []
    more_flags = {"run": [], "report": ["--policy", policy] if policy else []}
    with lock_folders([stem.parent]):  # one at a time, and what a killed one left goes
        beside = [
            markdown(
                title,
                f"{study.paper}. Scale {scale}. {said}".lstrip(". "),
                _tables(drawn),
                stem.with_name(f"{stem.name}.md"),
            )
        ]
        if study.figure != "claims":
            beside += pictures(drawn, title, badge, stem)
        html = render_template(
            "study.html.j2",
            "study",
            title=title,
            badge=badge,
            warn=scale == "smoke",
            answer=said.replace(" %", "\N{NO-BREAK SPACE}%"),
            caveats=caveats(scale, found) + explain_shown(found) + more,
            facts=_facts(study, scale, found),
            sections=[_section(figure) for figure in drawn],
            note="Finished cells are never run again; the second command draws this page anew.",
            command=" && ".join(
                shlex.join(
                    ["ssorl", "study", verb, name or study.name, "--scale", scale, "--store", str(store), *flags, *own]
                )
                for verb, own in more_flags.items()
            ),
            tables=[
                ("Missing cells", _missing(found), True),
                ("Every cell that has finished", _finished(found), False),
            ],
            files=[path.name for path in beside],
        )
        path = stem.with_name(f"{stem.name}.html")
        write_text(path, html)
    return path


def _part(seeds: int | None, only: Mapping[str, Sequence[Any]], policy: str | None = None) -> str:
    """Which part of a study, in words."""
    some = [f"{axis} {', '.join(map(str, values))}" for axis, values in only.items()]
    some += [f"{seeds} {'seed' if seeds == 1 else 'seeds'}"] if seeds else []
    return "; ".join(some + ([f"{policy} weights"] if policy else []))


def _plain(text: str) -> str:
    """As part of a file's name."""
    return re.sub(r"[^a-zA-Z0-9_-]+", "-", text).strip("-")


def _facts(study: Study, scale: str, found: list[StudyResults]) -> list[tuple[str, str]]:
    cells = {one.hash: one for one in found}
    done = sum(one.result is not None for one in cells.values())
    seeds = max((len(values([o for o in found if o.result], "seed")), 0))
    out = [("cells", f"{done:,} of {len(cells):,}"), ("seeds", str(seeds)), ("scale", scale)]
    out += [("revisions", names)] if (names := name_revisions(found)) else []
    return [*out, ("in the paper", study.paper)] if study.paper else out


def _section(figure: Figure) -> Section:
    half = len(figure.charts) > 1
    keys = {tuple(chart.legend) for chart in figure.charts if chart.legend}
    shared = half and len(keys) == 1  # one legend serves all panels
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
    open_ = len(chart.table.rows) <= (OPEN if plot else 2 * OPEN)
    return Panel(chart.title, drawn, chart.table, keys, half and plot, open_)


def _tables(drawn: list[Figure]) -> list[tuple[str, Table]]:
    return [
        (figure.title if chart.title == figure.title else f"{figure.title}: {chart.title}", chart.table)
        for figure in drawn
        for chart in figure.charts
        if chart.table.rows
    ]


def _finished(found: list[StudyResults]) -> Table:
    """Every cell once, with a way to its folder."""
    names = [name for name in named.varied(found) if name != "seed"] + ["seed"]
    head = (*names, "score", "action MSE", "cell")
    rows: list[tuple] = []
    full: list[tuple] = []
    for one in {one.hash: one for one in reversed(found)}.values():
        if one.result is not None:
            at = [one.at.get(name) for name in names]
            values_ = (one.score if known(one.score) else None, one.mse)
            rows.append((*at, *values_, Link(one.hash, f"../cells/{one.hash}/")))
            full.append((*at, *values_, one.hash))
    return Table("cells", head, rows[::-1], [head, *full[::-1]])


def _missing(found: list[StudyResults]) -> Table:
    """What has no result and why, the seeds of one setting in a row."""
    names = [name for name in named.varied(found) if name != "seed"]
    rows: dict[tuple, list[str]] = {}
    for one in {one.hash: one for one in reversed(found)}.values():
        if one.result is None:
            key = (*(one.at.get(name) for name in names), one.why)
            rows.setdefault(key, []).append(str(one.at.get("seed", "")))
    told = [(*key[:-1], ", ".join(reversed(seeds)), key[-1]) for key, seeds in rows.items()]
    return Table("missing", (*names, "seeds", "why"), told[::-1])
