"""The ledger of the paper's claims as charts and tables."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

from ssorl.report import summary as words
from ssorl.report import svg
from ssorl.report.blocks import Table
from ssorl.study.claims.judge import PART, CheckResult, Verdict
from ssorl.study.report import panels as parts
from ssorl.study.report.charts import Chart, Figure

KINDS = {"holds": "c2", "fails": "c1", "open": "plain"}
SO_FAR = {"holds": "as claimed", "fails": "the other way", "open": "too wide to tell"}
ONE = "Each claim in one number"
NUMBERS = (
    "Over all places that the claim speaks of, or those that are there, with a 95 % interval: which way the results "
    "point. It decides nothing; the verdicts rest on the checks below."
)
DRAWN = 40  # checks that are drawn; more are in the table alone
UNITS = {"points": "points of the score", "share": "%"}


def ledger_words(verdicts: list[Verdict]) -> tuple[str, list[str]]:
    """All verdicts in a sentence, and what to know about them."""
    n = Counter(verdict.outcome for verdict in verdicts)
    said = f"Of the paper's {len(verdicts)} claims: {n['confirmed']} confirmed, {n['refuted']} refuted, "
    said += f"{n['undecided']} undecided."
    way = Counter(verdict.whole.so_far for verdict in verdicts if verdict.whole.estimate)
    if way:
        said += f" In one number each, {way['holds']} point as claimed, {way['fails']} the other way, and "
        said += f"{way['open']} are too wide to tell."
    note = "A claim is confirmed if the 95 % interval of every check lies in the range claimed, refuted if one lies "
    note += "outside even when widened for the number of checks and of seeds, and else undecided."
    parted = [f"{PART[:1].upper()}{PART[1:]}."] if any(verdict.note == PART for verdict in verdicts) else []
    return said, [note, *parted]


def ledger_figures(verdicts: list[Verdict]) -> list[Figure]:
    """The ledger, and the checks of each claim."""
    head = ("claim", "verdict", "what it says", "checks hold", "fail", "open", "cells missing")
    rows = [(v.claim.number, v.outcome, v.claim.statement, *v.counts.values(), len(v.missing)) for v in verdicts]
    ledger = Figure("ledger", "The ledger", "", [Chart("The ledger", Table("claims", head, rows))])
    head = ("claim", "in one number", "value", "places", "claimed", "so far")
    rows = [(v.claim.number, *one_number(v.whole)) for v in verdicts]
    numbers = Figure("numbers", ONE, NUMBERS, [Chart(ONE, Table("claims-in-one-number", head, rows))])
    return [ledger, numbers, *map(_figure, verdicts)]


class OneNumber(NamedTuple):
    """A claim as a whole, in words."""

    name: str  # what was taken of all places
    value: str
    places: str  # how many of them it is of
    claimed: str
    so_far: str  # which way it points


def one_number(whole: CheckResult) -> OneNumber:
    """A claim as a whole, to be read."""
    check, percent = whole.check, whole.check.unit == "share"
    value = parts.text(whole.estimate, percent, words.share if percent else lambda x: f"{x:.1f}".replace("-", "−"))
    places = f"{whole.places} of {len(check.groups[0]) if check.groups else 0}"
    so_far = SO_FAR[whole.so_far] if whole.estimate else "–"
    return OneNumber(check.name, value.replace(" ", "\N{NO-BREAK SPACE}"), places, check.claimed, so_far)


def claim_json(verdict: Verdict) -> dict[str, Any]:
    """A claim for another program."""
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
    claim = verdict.claim
    charts = []
    for unit in dict.fromkeys(j.check.unit for j in verdict.judged):
        mine = [j for j in verdict.judged if j.check.unit == unit]
        charts.append(_chart(f"Claim {claim.number}, {UNITS[unit]}", mine, unit))
    note = f" {verdict.note[:1].upper()}{verdict.note[1:]}." if verdict.note else ""
    return Figure(
        f"claim-{claim.number}", f"{claim.number}. {verdict.outcome}: {claim.statement}", claim.method + note, charts
    )


def _chart(title: str, judged: list[CheckResult], unit: str) -> Chart:
    """Values with their intervals, and for each what was claimed."""
    percent = unit == "share"
    factor = 100 if percent else 1
    rows, bars = [], []
    full: list[tuple] = [("check", "value", "low", "high", "claimed", "result", "why", "cells missing")]
    for j in judged:
        text = parts.text(j.estimate, percent) if j.estimate else "–"
        rows.append((j.check.name, text, j.check.claimed, j.says, j.note or None, len(j.missing)))
        ends = j.estimate or (None, None, None)
        full.append((j.check.name, *ends, j.check.claimed, j.says, j.note, len(j.missing)))
        value, low, high = (None if v is None else factor * v for v in ends)
        bounds = [factor * v for v in (j.check.low, j.check.high) if math.isfinite(v) and v]
        goal = bounds[0] if len(bounds) == 1 else None
        bars.append(svg.Bar(j.check.name, value, text, KINDS[j.says], low, high, goal=goal))
    head = ("check", "value", "claimed", "result", "why open", "cells missing")
    drawn = bars if len(bars) <= DRAWN and any(bar.value is not None for bar in bars) else ()
    marked = "; an upright line is the bound claimed" if any(bar.goal is not None for bar in bars) else ""
    axes = (UNITS[unit] + marked, "") if drawn else ("", "")
    legend = [(KINDS[says], says) for says in dict.fromkeys(j.says for j in judged)] if drawn else ()
    return Chart(title, Table(title, head, rows, full), axes, bars=drawn, legend=legend)
