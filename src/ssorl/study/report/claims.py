"""The ledger of the paper's claims as charts and tables."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

from ssorl.report import svg
from ssorl.report.blocks import Table
from ssorl.report.summary import share
from ssorl.study.claims.judge import PART, CheckResult, Verdict
from ssorl.study.report import panels
from ssorl.study.report.charts import Chart, Figure

KINDS = {"holds": "c2", "fails": "c1", "open": "plain"}
SO_FAR = {"holds": "as claimed", "fails": "against the claim", "open": "too wide to tell"}
ONE = "Each claim in one number"
NUMBERS = (
    "Each number is over all grid points of the claim that have results, with a 95 % interval. It shows the direction "
    "of the results and decides nothing; the verdicts follow from the checks below."
)
MAX_BARS = 40  # checks in a chart; with more checks there is only the table
UNITS = {"points": "points of the score", "share": "%"}


def ledger_words(verdicts: list[Verdict]) -> tuple[str, list[str]]:
    """Return all verdicts in two sentences, and the caveats."""
    n = Counter(verdict.outcome for verdict in verdicts)
    text = f"Of the paper's {len(verdicts)} claims: {n['confirmed']} confirmed, {n['refuted']} refuted, "
    text += f"{n['undecided']} undecided."
    directions = Counter(verdict.whole.so_far for verdict in verdicts if verdict.whole.estimate)
    if directions:
        n_claims = f"{directions['holds']} claim{'s' if directions['holds'] != 1 else ''}"
        text += f" In one number each, results agree with {n_claims}, contradict {directions['fails']}, and are too "
        text += f"uncertain for {directions['open']}."
    note = "A claim is confirmed if the 95 % interval of every check lies in the claimed range. It is refuted if the "
    note += "interval of a check lies outside, even when widened for the number of checks and of seeds. Otherwise it "
    note += "is undecided."
    part = [f"{_capitalise(PART)}."] if any(verdict.note == PART for verdict in verdicts) else []
    return text, [note, *part]


def ledger_figures(verdicts: list[Verdict]) -> list[Figure]:
    """Return the ledger, the table of numbers, and a figure with the checks of each claim."""
    head = ("claim", "verdict", "statement", "checks that hold", "fail", "open", "missing cells")
    rows = [(v.claim.number, v.outcome, v.claim.statement, *v.counts.values(), len(v.missing)) for v in verdicts]
    ledger = Figure("ledger", "The ledger", "", [Chart("The ledger", Table("claims", head, rows))])
    head = ("claim", "number", "value", "grid points", "claimed", "so far")
    rows = [(v.claim.number, *one_number(v.whole)) for v in verdicts]
    numbers = Figure("numbers", ONE, NUMBERS, [Chart(ONE, Table("claims-in-one-number", head, rows))])
    return [ledger, numbers, *map(_figure, verdicts)]


class OneNumber(NamedTuple):
    """A claim in one number, as text."""

    name: str  # name of the statistic
    value: str
    places: str  # grid points with results, of all
    claimed: str  # range of the claim
    so_far: str  # direction of the results


def one_number(whole: CheckResult) -> OneNumber:
    """Return a claim in one number, given its check over all grid points."""
    check, percent = whole.check, whole.check.unit == "share"
    show = share if percent else lambda x: f"{x:.1f}".replace("-", "−")
    value = panels.estimate_text(whole.estimate, percent, show)
    places = f"{whole.places} of {len(check.groups[0]) if check.groups else 0}"
    so_far = SO_FAR[whole.so_far] if whole.estimate else "–"
    return OneNumber(check.name, value.replace(" ", "\N{NO-BREAK SPACE}"), places, check.claimed, so_far)


def claim_json(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain values for JSON."""
    whole, claim = verdict.whole, verdict.claim
    number = {"name": whole.check.name, "claimed": whole.check.claimed, "unit": whole.check.unit, "says": whole.so_far}
    number |= whole.estimate._asdict() if whole.estimate else {}
    return {
        "number": claim.number,
        "claim": claim.statement,
        "outcome": verdict.outcome,
        "checks": verdict.counts,
        "cells_missing": len(verdict.missing),
        "in_one_number": number,
    }


def _figure(verdict: Verdict) -> Figure:
    """Return the checks of a claim, with a chart for each unit."""
    claim = verdict.claim
    charts = []
    for unit in dict.fromkeys(j.check.unit for j in verdict.judged):
        checks = [j for j in verdict.judged if j.check.unit == unit]
        charts.append(_chart(f"Claim {claim.number}, {UNITS[unit]}", checks, unit))
    note = f" {_capitalise(verdict.note)}." if verdict.note else ""
    return Figure(
        f"claim-{claim.number}", f"{claim.number}. {verdict.outcome}: {claim.statement}", claim.method + note, charts
    )


def _chart(title: str, judged: list[CheckResult], unit: str) -> Chart:
    """Return the values of checks with their intervals and the claimed bounds."""
    percent = unit == "share"
    factor = 100 if percent else 1
    rows, bars = [], []
    full: list[tuple] = [("check", "value", "low", "high", "claimed", "result", "why open", "missing cells")]
    for j in judged:
        text = panels.estimate_text(j.estimate, percent)
        rows.append((j.check.name, text, j.check.claimed, j.says, j.note or None, len(j.missing)))
        ends = j.estimate or (None, None, None)
        full.append((j.check.name, *ends, j.check.claimed, j.says, j.note, len(j.missing)))
        value, low, high = (None if v is None else factor * v for v in ends)
        bounds = [factor * v for v in (j.check.low, j.check.high) if math.isfinite(v) and v]
        goal = bounds[0] if len(bounds) == 1 else None
        bars.append(svg.Bar(j.check.name, value, text, KINDS[j.says], low, high, goal=goal))
    head = ("check", "value", "claimed", "result", "why open", "missing cells")
    drawn = bars if len(bars) <= MAX_BARS and any(bar.value is not None for bar in bars) else ()
    bound = "; vertical line: claimed bound" if any(bar.goal is not None for bar in bars) else ""
    axes = (UNITS[unit] + bound, "") if drawn else ("", "")
    legend = [(KINDS[says], says) for says in dict.fromkeys(j.says for j in judged)] if drawn else ()
    return Chart(title, Table(title, head, rows, full), axes, bars=drawn, legend=legend)


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]
