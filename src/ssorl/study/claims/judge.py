"""The paper's twelve claims, each judged by what a store holds.

A claim stands on checks. A check is a statistic with its 95 % stratified bootstrap interval (stats.py) and the range
in which the claim says that it lies: above 0 for "better", within a margin for "alike". The rule is one for all:

- a check **holds** if its interval lies within the range, **fails** if the interval lies outside, and is open else;
- a claim is **confirmed** if every check holds;
- it is **refuted** if a check fails by an interval widened for the number of checks (level 1 - 0.05 / n, after
  Bonferroni) and for the number of seeds (`stats.student`) too, because of many checks some fail by chance; that all
  of them hold by chance needs no such care;
- otherwise, and while a cell that it needs is missing or a task has fewer than three seeds, it is **undecided**; so
  is every claim where only a part of its cells was asked for.

Beside its checks a claim has one number, over all places that it speaks of and of what is there so far: how far the
results as a whole bear it out. That decides nothing, for a claim of every place is not one of their mean.

The 95 % intervals that are told are plain percentile ones, as in the paper; of so few seeds they are rather too
narrow. Results of the scale `smoke` decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ssorl.study import statistics
from ssorl.study.results import StudyResults, gather, select, strata
from ssorl.study.statistics import Estimate, Statistic

SEEDS = 3  # the fewest of a task that an interval can be told from

PART = "only a part was asked for, which decides no claim"

Outcome = Literal["confirmed", "refuted", "undecided"]
Says = Literal["holds", "fails", "open"]
Group = list[list[StudyResults]]  # tasks, each with its seeds


@dataclass(frozen=True)
class Check:
    """One comparison: the claim says that the statistic lies between `low` and `high`."""

    name: str
    statistic: Statistic
    groups: tuple[Group, ...]
    low: float = -math.inf
    high: float = math.inf
    unit: str = "points"  # or "share"
    of: Callable[[StudyResults], float | None] = lambda found: found.score

    @property
    def claimed(self) -> str:
        """The range in words."""
        show = (lambda v: f"{100 * v:g} %") if self.unit == "share" else (lambda v: f"{v:g}")
        if self.low == -self.high:
            return f"within ±{show(self.high)}"
        low, high = (f"above {show(self.low)}", f"below {show(self.high)}")
        told = " and ".join(t for t, v in ((low, self.low), (high, self.high)) if math.isfinite(v))
        return told.replace("-", "−")


@dataclass(frozen=True)
class CheckResult:
    """What became of a check."""

    check: Check
    estimate: Estimate | None  # None: cells are missing; of some places only: of the others, as `note` says
    says: Says
    note: str  # why it is open
    missing: tuple[StudyResults, ...]
    places: int = 0  # that the estimate is of

    @property
    def so_far(self) -> Says:
        """What it would say if nothing were missing."""
        return _says(self.check, self.estimate) if self.estimate else "open"


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and how it is put to the test."""

    number: int
    statement: str
    method: str
    checks: Callable[[list[StudyResults]], Iterator[Check]]
    whole: Callable[[list[StudyResults]], Check]  # all places in one number


@dataclass(frozen=True)
class Verdict:
    """What the results say of a claim."""

    claim: Claim
    outcome: Outcome
    judged: tuple[CheckResult, ...]
    missing: tuple[StudyResults, ...]  # each cell once
    whole: CheckResult
    note: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """How many checks hold, fail, are open."""
        return {says: sum(j.says == says for j in self.judged) for says in ("holds", "fails", "open")}

    def __str__(self) -> str:
        """One line for a terminal."""
        n = self.counts
        told = f"{n['holds']} of {len(self.judged)} checks hold, {n['fails']} fail"
        lacks = f"; {len(self.missing)} cells missing" if self.missing else ""
        return f"{self.claim.number:>2}. {self.outcome:<9}  {self.claim.statement} ({told}{lacks})"


def ledger(
    store: Path | str,
    scale: str,
    seeds: int | None = None,
    only: Mapping[str, Iterable[Any]] | None = None,
    policy: str | None = None,
) -> list[Verdict]:
    """Every claim, judged by what the store holds at a scale, or by a part of it."""
    from ssorl.study.paper import STUDIES

    return judge(gather(STUDIES["claims"], scale, store, seeds, only, policy), scale, part=bool(only))


def judge(found: list[StudyResults], scale: str, part: bool = False) -> list[Verdict]:
    """Every claim, judged by these results; by a part of what it needs none is decided."""
    from ssorl.study.claims.statements import CLAIMS

    found = Results(found)
    return [_verdict(claim, found, scale, part) for claim in CLAIMS]


class Results(list[StudyResults]):
    """Results with those of each study at hand: a check asks for one study's, and there are hundreds of checks."""

    def __init__(self, found: Iterable[StudyResults]) -> None:
        super().__init__(found)
        self.by_study: dict[Any, list[StudyResults]] = {}
        for one in self:
            self.by_study.setdefault(one.at.get("study"), []).append(one)


def of_study(found: list[StudyResults], study: str) -> list[StudyResults]:
    """Those of one study."""
    return found.by_study.get(study, []) if isinstance(found, Results) else select(found, {"study": study})


def _verdict(claim: Claim, found: list[StudyResults], scale: str, part: bool = False) -> Verdict:
    checks = [check for check in claim.checks(found) if all(check.groups) or not part]
    strict = 1 - (1 - statistics.LEVEL) / max(len(checks), 1)
    judged = tuple(_judge(check) for check in checks)
    missing = tuple({one.hash: one for j in judged for one in j.missing}.values())
    whole = _judge(claim.whole(found))
    outcome: Outcome = "undecided"
    if scale == "smoke":
        return Verdict(claim, outcome, judged, missing, whole, "results of the scale smoke decide nothing")
    if part:
        return Verdict(claim, outcome, judged, missing, whole, PART)
    if any(
        j.says == "fails" and not j.missing and _judge(j.check, strict, statistics.student).says == "fails"
        for j in judged
    ):
        outcome = "refuted"
    elif judged and not missing and all(j.says == "holds" for j in judged):
        outcome = "confirmed"
    return Verdict(claim, outcome, judged, missing, whole)


def _judge(
    check: Check, level: float = statistics.LEVEL, interval: Callable[..., Estimate] | None = None
) -> CheckResult:
    missing = tuple(one for group in check.groups for task in group for one in task if check.of(one) is None)
    lacks, numbers = "cells are missing", _numbers(check, check.groups)
    if not statistics.fewest(*numbers) and (there := _there(check)):
        lacks += f": told of the {len(there[0])} of {len(check.groups[0])} places that are there"
        numbers = _numbers(check, there)
    fewest = statistics.fewest(*numbers) if all(numbers) else 0
    if not fewest:
        return CheckResult(check, None, "open", lacks, missing)
    found, places = (interval or statistics.estimate)(check.statistic, *numbers, level=level), len(numbers[0])
    if not all(map(math.isfinite, found)):
        return CheckResult(check, None, "open", "an oracle earns nothing, so there is no relative gap", missing)
    if fewest < SEEDS:
        note = f"only {fewest} {'seed' if fewest == 1 else 'seeds'} of a task"
        return CheckResult(check, found, "open", note, missing, places)
    if missing:
        return CheckResult(check, found, "open", lacks, missing, places)
    says = _says(check, found)
    return CheckResult(check, found, says, "the interval is too wide" if says == "open" else "", missing, places)


def _says(check: Check, found: Estimate) -> Says:
    """Whether an interval lies within the range claimed, outside, or across an end of it."""
    if check.low < found.low and found.high < check.high:
        return "holds"
    return "fails" if found.high < check.low or found.low > check.high else "open"


def _numbers(check: Check, groups: Iterable[Group]) -> list[list[list[float]]]:
    groups = list(groups)
    told = iter(strata((task for group in groups for task in group), check.of))
    return [[next(told) for _ in group] for group in groups]


def _there(check: Check) -> list[Group]:
    """Of each group the tasks at the places where no group lacks a cell. A place is what groups do not differ in."""
    varied = [{k: {task[0].at.get(k) for task in group} for k in group[0][0].at} for group in check.groups if group]
    keys = [k for k in varied[0] if k != "seed" and all(one.get(k) == varied[0][k] for one in varied)] if varied else []
    placed = [{tuple(task[0].at[k] for k in keys): task for task in group} for group in check.groups]
    if any(len(one) != len(group) for one, group in zip(placed, check.groups, strict=True)):
        return []
    whole = [{at for at, task in one.items() if all(check.of(x) is not None for x in task)} for one in placed]
    there = [at for at in placed[0] if all(at in one for one in whole)]
    return [[one[at] for at in there] for one in placed] if there else []


def tasks(found: list[StudyResults], study: str, **at: Any) -> Group:
    """The results of a study with these coordinates, seeds of one task together; in the order of the grid."""
    groups: dict[tuple, list[StudyResults]] = {}
    for one in select(of_study(found, study), at):
        groups.setdefault(tuple((k, v) for k, v in one.at.items() if k != "seed"), []).append(one)
    return list(groups.values())
