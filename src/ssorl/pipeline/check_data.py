"""Check data before anything is trained on it: are the parts compatible, are actions and labels to be believed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssorl.data import load
from ssorl.data.episodes import Episodes
from ssorl.data.formats import pair
from ssorl.idm.audit import audit
from ssorl.idm.fill import fill, resolve
from ssorl.idm.suggest import Suggestions, suggest
from ssorl.utils.errors import DataError
from ssorl.utils.progress import Progress

BUDGET = 3  # trajectories that are suggested
SHOWN = 6  # trajectories whose proxy actions the page shows
LONGEST = 1000  # steps of each


class Trace(NamedTuple):
    """The proxy actions of one trajectory, in the data's own unit."""

    trajectory: int
    act: np.ndarray  # [T, A]
    std: np.ndarray  # [T, A]
    unseen: np.ndarray  # [T] bool, at states or changes outside the labelled range


@dataclass(frozen=True)
class Check:
    """Result of `ssorl.check`."""

    source: str
    verdict: str
    next: str  # the command to type next
    warnings: list[str]
    findings: list[dict[str, Any]]  # of the audit
    forecast: dict[str, Any] | None
    advice: str | None
    yardsticks: dict[str, float]
    suggestions: list[dict[str, Any]]
    notes: list[str]
    traces: list[Trace] = field(default_factory=list, repr=False)

    def as_json(self) -> dict[str, Any]:
        """Return what `ssorl check --json` prints."""
        names = ("source", "verdict", "next", "warnings", "findings", "forecast", "advice", "yardsticks")
        return {name: getattr(self, name) for name in (*names, "suggestions", "notes")}


def check(
    data: Episodes | str | Path,
    unlabelled: Episodes | str | Path | None = None,
    idm: str = "blend",
    seed: int = 0,
    updates: int | None = None,
    *,
    command: str | None = None,
    quiet: bool = False,
) -> Check:
    """Check one dataset, or a labelled and an unlabelled one, before anything is trained on them.

    Args:
        data: trajectories, some with actions; or a name or path.
        unlabelled: further trajectories, whose actions are absent or ignored.
        idm: the inverse dynamics model.
        seed: of the fit.
        updates: of the model, in place of the preset's.
        command: how a command line names the data, for the next command; by default, its source.
        quiet: show no progress.

    Returns:
        What was found, a verdict, and the next command.

    Raises:
        DataError: the data cannot be read, or no step has an action.
    """
    first = data if isinstance(data, Episodes) else load(data)
    if not first.labelled.any():
        raise DataError(
            f"{first.meta.source}: no step has an action, so there is nothing to check labels by; `ssorl suggest` says "
            "which trajectories to get actions for"
        )
    eps, begin = first, 0
    if unlabelled is not None:
        second = unlabelled if isinstance(unlabelled, Episodes) else load(unlabelled, actions=False)
        eps, begin = pair(first, second), len(first)
    named = command or first.meta.source
    findings, notes = [], []
    with_actions = np.flatnonzero(eps.labelled_share > 0)
    if len(with_actions) > 1:
        findings = audit(eps.take(with_actions)).as_json()["findings"]
    else:
        notes.append("a single trajectory has actions, so they cannot be audited against others")
    if eps.labelled.all():
        verdict = "repair the actions first" if findings else "all actions are known, and no fault was found in them"
        after = findings[0]["cure"] if findings else f"ssorl data show {named}"
        return Check(eps.meta.source, verdict, after, eps.meta.warnings, findings, None, None, {}, [], notes)
    model = resolve(idm, "auto", updates)
    with Progress(_stages(model, eps), quiet=quiet or None) as progress:
        labelled = fill(eps, model, seed, progress=progress)
    report = labelled.report
    made = suggest(eps, BUDGET)
    verdict, after = _conclude(findings, report, made, named)
    return Check(
        eps.meta.source,
        verdict,
        after,
        report["warnings"],
        findings,
        report["forecast"],
        report["advice"],
        report.get("yardsticks", {}),
        [_renumbered(one, begin) for one in made.as_json()["suggestions"]],
        [*notes, *made.notes],
        _traces(labelled.eps, labelled.labels, begin),
    )


def _stages(model: Any, eps: Episodes) -> dict[str, tuple[int, str]]:
    return {
        "fitting": (getattr(model, "work", 0), "updates"),
        "labelling": (int((~eps.labelled).sum()), "steps"),
    }


def _renumbered(suggestion: dict[str, Any], first: int) -> dict[str, Any]:
    """Return a suggestion with the trajectory's number in the unlabelled dataset."""
    return {**suggestion, "trajectory": suggestion["trajectory"] - first}


def _conclude(findings: list[dict], report: dict, made: Suggestions, named: str) -> tuple[str, str]:
    """Return the verdict and the next command."""
    outlook = (report["forecast"] or {}).get("outlook")
    if findings:
        return "repair the actions first: the audit found faults in them", str(findings[0]["cure"])
    if report["warnings"] and outlook != "hurt":
        return "not ready: see the warnings", f"ssorl data show {named}"
    if outlook == "hurt":
        if made.suggestions:
            return "not ready: see the warnings, and get actions for a few more trajectories", (
                f"ssorl suggest {named} --budget {BUDGET}"
            )
        return "not ready: see the warnings", f"ssorl data show {named}"
    if outlook == "help":
        return "ready: the labels should be good enough to train on", f"ssorl run {named}"
    if outlook == "open":
        return "open: the labels may or may not help; more labelled trajectories would decide it", (
            f"ssorl suggest {named} --budget {BUDGET}"
        )
    return "open: too few labelled trajectories for a forecast", f"ssorl suggest {named} --budget {BUDGET}"


def _traces(eps: Episodes, labels: Any, first: int) -> list[Trace]:
    """Return the proxy actions of the trajectories with the largest, the median and the smallest deviation."""
    count = np.add.reduceat(labels.proxy, eps.start[:-1])
    spread = np.add.reduceat((labels.std**2).mean(1), eps.start[:-1]) / np.maximum(count, 1)
    order = np.flatnonzero(count)[np.argsort(-spread[count > 0], kind="stable")]
    chosen = order[np.unique(np.linspace(0, len(order) - 1, min(SHOWN, len(order))).astype(int))]
    parts = [
        (int(e), slice(int(eps.start[e]), min(int(eps.start[e + 1]), int(eps.start[e]) + LONGEST))) for e in chosen
    ]
    return [Trace(e - first, labels.act[part], labels.std[part], labels.unseen[part]) for e, part in parts]
