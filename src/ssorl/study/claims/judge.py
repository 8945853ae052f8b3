"""Judge the paper's twelve claims by the results in a store.

A claim has checks. A check is a statistic with its 95 % stratified bootstrap interval (statistics.py) and a range that
the claim states: above 0 for "better", within a margin for "alike". The rules are the same for all claims:

- A check **holds** if its interval lies within the range, **fails** if the interval lies outside, and is open
  otherwise. It is also open while a cell is missing or a task has fewer than three seeds.
- A claim is **confirmed** if every check holds.
- It is **refuted** if a check fails even with a wider interval, which corrects for the number of checks (level
  1 - 0.05 / n, after Bonferroni) and for the number of seeds (`statistics.student`): some of many checks fail by
  chance. Confirmation needs no correction, because that all checks hold by chance is much less likely.
- Otherwise it is **undecided**. Results at scale smoke decide nothing, nor does a part of the cells (`--only`).

Besides its checks, each claim has one number over all its places, computed from the results that exist. It shows in
which direction the results point but decides nothing, because a claim about every place is not about their mean.

The reported 95 % intervals are percentile intervals, as in the paper. With so few seeds they are too narrow.
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

MIN_SEEDS = 3  # seeds of a task that an interval needs
PART = "only a part of the cells was selected, which decides no claim"

Outcome = Literal["confirmed", "refuted", "undecided"]
CheckOutcome = Literal["holds", "fails", "open"]
Group = list[list[StudyResults]]  # tasks, each with the results of its seeds


@dataclass(frozen=True)
class Check:
    """One comparison: the claim states that a statistic lies between `low` and `high`."""

    name: str
    statistic: Statistic
    groups: tuple[Group, ...]  # arguments of the statistic
    low: float = -math.inf
    high: float = math.inf
    unit: str = "points"  # or "share"
    measure: Callable[[StudyResults], float | None] = lambda result: result.score  # the number of a result

    @property
    def claimed(self) -> str:
        """Return the claimed range in words, such as "above 0"."""
        show = (lambda v: f"{100 * v:g} %") if self.unit == "share" else (lambda v: f"{v:g}")
        if self.low == -self.high:
            return f"within ±{show(self.high)}"
        low, high = (f"above {show(self.low)}", f"below {show(self.high)}")
        text = " and ".join(t for t, v in ((low, self.low), (high, self.high)) if math.isfinite(v))
        return text.replace("-", "−")


@dataclass(frozen=True)
class CheckResult:
    """The outcome of a check."""

    check: Check
    estimate: Estimate | None  # estimate from the complete places; None: cells are missing at every place
    says: CheckOutcome
    note: str  # why the outcome is open
    missing: tuple[StudyResults, ...]  # cells without results
    places: int = 0  # number of places that the estimate uses

    @property
    def so_far(self) -> CheckOutcome:
        """Return the outcome of the estimate as if no cell were missing."""
        return _compare(self.check, self.estimate) if self.estimate else "open"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and its checks."""

    number: int
    statement: str
    method: str
    checks: Callable[[list[StudyResults]], Iterator[Check]]  # the checks, given the results
    whole: Callable[[list[StudyResults]], Check]  # the one number over all places, given the results


@dataclass(frozen=True)
class Verdict:
    """The outcome of a claim."""

    claim: Claim
    outcome: Outcome
    judged: tuple[CheckResult, ...]
    missing: tuple[StudyResults, ...]  # cells without results, each once
    whole: CheckResult  # the one number over all places
    note: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """Return the numbers of checks that hold, fail and are open."""
        return {says: sum(j.says == says for j in self.judged) for says in ("holds", "fails", "open")}

    def __str__(self) -> str:
        """Return one line for a terminal."""
        n = self.counts
        checks = f"{n['holds']} of {len(self.judged)} checks hold, {n['fails']} fail"
        missing = f"; {len(self.missing)} cells missing" if self.missing else ""
        return f"{self.claim.number:>2}. {self.outcome:<9}  {self.claim.statement} ({checks}{missing})"


def ledger(
    store: Path | str,
    scale: str,
    seeds: int | None = None,
    only: Mapping[str, Iterable[Any]] | None = None,
    policy: str | None = None,
) -> list[Verdict]:
    """Return the verdict on each claim, given the results in a store.

    Args:
        store: the store's folder.
        scale: name of the scale.
        seeds: number of seeds; None: the number of the scale.
        only: allowed values of some coordinates; if given, no claim is decided.
        policy: weights to score, "last" or "average"; None: those that the scale names.
    """
    from ssorl.study.paper import STUDIES

    return judge(gather(STUDIES["claims"], scale, store, seeds, only, policy), scale, part=bool(only))


def judge(results: list[StudyResults], scale: str, part: bool = False) -> list[Verdict]:
    """Return the verdict on each claim, given results.

    Args:
        results: results of the study `claims`.
        scale: name of the scale.
        part: the results are only a part of what the claims need, so no claim is decided.
    """
    from ssorl.study.claims.statements import CLAIMS

    results = Results(results)
    return [_verdict(claim, results, scale, part) for claim in CLAIMS]


class Results(list[StudyResults]):
    """A list of results with an index by study, because each of hundreds of checks needs the results of one study.

    Args:
        results: results of the study `claims`.
    """

    def __init__(self, results: Iterable[StudyResults]) -> None:
        super().__init__(results)
        self.by_study: dict[Any, list[StudyResults]] = {}
        for result in self:
            self.by_study.setdefault(result.at.get("study"), []).append(result)


def of_study(results: list[StudyResults], study: str) -> list[StudyResults]:
    """Return the results of one study."""
    return results.by_study.get(study, []) if isinstance(results, Results) else select(results, {"study": study})


def _verdict(claim: Claim, results: list[StudyResults], scale: str, part: bool = False) -> Verdict:
    checks = [check for check in claim.checks(results) if all(check.groups) or not part]
    corrected = 1 - (1 - statistics.LEVEL) / max(len(checks), 1)
    judged = tuple(_judge(check) for check in checks)
    missing = tuple({result.hash: result for j in judged for result in j.missing}.values())
    whole = _judge(claim.whole(results))
    outcome: Outcome = "undecided"
    if scale == "smoke":
        return Verdict(claim, outcome, judged, missing, whole, "results at scale smoke decide nothing")
    if part:
        return Verdict(claim, outcome, judged, missing, whole, PART)
    if any(
        j.says == "fails" and not j.missing and _judge(j.check, corrected, statistics.student).says == "fails"
        for j in judged
    ):
        outcome = "refuted"
    elif judged and not missing and all(j.says == "holds" for j in judged):
        outcome = "confirmed"
    return Verdict(claim, outcome, judged, missing, whole)


def _judge(
    check: Check, level: float = statistics.LEVEL, interval: Callable[..., Estimate] | None = None
) -> CheckResult:
    missing = tuple(cell for group in check.groups for task in group for cell in task if check.measure(cell) is None)
    note, numbers = "cells are missing", _numbers(check, check.groups)
    if not statistics.fewest(*numbers) and (complete := _complete_places(check)):
        note += f"; the estimate uses the {len(complete[0])} complete places of {len(check.groups[0])}"
        numbers = _numbers(check, complete)
    fewest = statistics.fewest(*numbers) if all(numbers) else 0
    if not fewest:
        return CheckResult(check, None, "open", note, missing)
    estimate, places = (interval or statistics.estimate)(check.statistic, *numbers, level=level), len(numbers[0])
    if not all(map(math.isfinite, estimate)):
        undefined = "the mean of an oracle is not above 0, so the relative gap is undefined"
        return CheckResult(check, None, "open", undefined, missing)
    if fewest < MIN_SEEDS:
        few = f"a task has only {fewest} {'seed' if fewest == 1 else 'seeds'}"
        return CheckResult(check, estimate, "open", few, missing, places)
    if missing:
        return CheckResult(check, estimate, "open", note, missing, places)
    says = _compare(check, estimate)
    return CheckResult(check, estimate, says, "the interval is too wide" if says == "open" else "", missing, places)


def _compare(check: Check, estimate: Estimate) -> CheckOutcome:
    """Return whether an interval lies within the claimed range, outside it, or across one of its ends."""
    if check.low < estimate.low and estimate.high < check.high:
        return "holds"
    return "fails" if estimate.high < check.low or estimate.low > check.high else "open"


def _numbers(check: Check, groups: Iterable[Group]) -> list[list[list[float]]]:
    """Return the strata of each group: a list of numbers for each task."""
    groups = list(groups)
    numbers = iter(strata((task for group in groups for task in group), check.measure))
    return [[next(numbers) for _ in group] for group in groups]


def _complete_places(check: Check) -> list[Group]:
    """Return the tasks of each group at the places where no group lacks a cell.

    A place is the coordinates in which the groups do not differ, such as dataset and quality.
    """
    fixed = [{k: {task[0].at.get(k) for task in group} for k in group[0][0].at} for group in check.groups if group]
    keys = [k for k in fixed[0] if k != "seed" and all(own.get(k) == fixed[0][k] for own in fixed)] if fixed else []
    by_place = [{tuple(task[0].at[k] for k in keys): task for task in group} for group in check.groups]
    if any(len(tasks) != len(group) for tasks, group in zip(by_place, check.groups, strict=True)):
        return []
    complete = [
        {at for at, task in tasks.items() if all(check.measure(cell) is not None for cell in task)}
        for tasks in by_place
    ]
    places = [at for at in by_place[0] if all(at in group for group in complete)]
    return [[tasks[at] for at in places] for tasks in by_place] if places else []


def tasks(results: list[StudyResults], study: str, **at: Any) -> Group:
    """Return the results of a study with given coordinates, the seeds of each task together, in the grid's order.

    Args:
        results: results of the study `claims`.
        study: name of the study.
        at: a value for each coordinate, or a tuple of allowed values.
    """
    groups: dict[tuple, list[StudyResults]] = {}
    for result in select(of_study(results, study), at):
        groups.setdefault(tuple((k, v) for k, v in result.at.items() if k != "seed"), []).append(result)
    return list(groups.values())
