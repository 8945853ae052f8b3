"""`ssorl.audit`: is an action column believable? Faults of trajectories, found against the other trajectories."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.data.split import first_copies
from ssorl.idm.audit_exact import FEW_VALUES, Suspect
from ssorl.idm.audit_model import Judged, Windows
from ssorl.idm.audit_names import against_names
from ssorl.idm.audit_suspects import examine
from ssorl.idm.audit_words import cure, sentence
from ssorl.utils.display import html_table, short_repr
from ssorl.utils.errors import DataError

KINDS = ("lag", "flipped", "permuted", "frozen", "rescaled", "clipped", "copies_state", "next_state", "units")
KINDS += ("unexplained", "leak", "dropped", "duplicated")
SHARES = ("frozen", "unexplained", "dropped", "duplicated")  # kinds whose value is a share, of which the median counts
AMBIGUOUS = ("lag", "flipped", "permuted", "rescaled", "units")  # which half is wrong if it is half of them?
HALF = 0.45
SAME_VALUE = 0.25  # factors and limits that differ by less are one fault


@dataclass(frozen=True)
class Finding:
    """A fault that some trajectories share."""

    kind: str  # one of KINDS
    trajectories: tuple[int, ...]  # 0-based, in the dataset
    dimension: int | None  # of the action; None: all, or none in particular
    value: Any  # steps, factor, limit, state dimension, order of the dimensions, or share
    confidence: float
    cure: str  # a command
    text: str


@dataclass(frozen=True)
class Observation:
    """Something worth knowing about the actions that is no fault."""

    kind: str
    dimension: int | None
    value: Any
    text: str


@dataclass(frozen=True)
class Details:
    """What the pictures of an audit are drawn from."""

    eps: Episodes  # the trajectories with actions
    labelled: np.ndarray  # their numbers in the dataset
    windows: Windows | None
    judged: Judged | None


@dataclass(frozen=True)
class Audit:
    """Result of `ssorl.audit`."""

    source: str
    trajectories: int  # that have actions
    steps: int  # that have an action
    explained: tuple[float, ...]  # share of each dimension's variance that models of other trajectories explain
    findings: tuple[Finding, ...]
    observations: tuple[Observation, ...]
    details: Details | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        return short_repr("Audit", self._facts())

    def _repr_html_(self) -> str:
        return html_table("Audit", self._facts() | {f"finding {i + 1}": f.text for i, f in enumerate(self.findings)})

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {"source": self.source, "trajectories": self.trajectories, "steps": self.steps}
        return facts | {"findings": len(self.findings), "observations": len(self.observations)}

    def as_json(self) -> dict[str, Any]:
        """Return what `ssorl audit --json` prints."""
        result = asdict(replace(self, details=None))
        del result["details"]
        return result


def audit(data: Episodes | str | Path, action_names: Sequence[str] = (), state_names: Sequence[str] = ()) -> Audit:
    """Look for faults of the known actions.

    Inverse models of some trajectories predict the actions of the others. A fault that all trajectories share cannot
    be found so, except exact copies of states and what contradicts the names of dimensions.

    Args:
        data: the trajectories, or a name or path for `ssorl.load`; trajectories without actions are not looked at.
        action_names: name of each action dimension; by default those that the dataset has.
        state_names: name of each state dimension; by default those that the dataset has.

    Returns:
        Findings and observations.

    Raises:
        DataError: fewer than two trajectories have actions.
        SsorlError: the names do not fit the dimensions.
    """
    if not isinstance(data, Episodes):
        from ssorl.data import load

        data = load(data)
    source, labelled = data.meta.source, np.flatnonzero(data.labelled_share > 0)
    if not len(labelled):
        raise DataError(f"{source}: no step has an action, so there is nothing to audit")
    if len(labelled) < 2:
        raise DataError(
            f"{source}: only trajectory {labelled[0]} has actions, and faults are found against other trajectories; "
            "give at least two with actions"
        )
    eps = data if len(labelled) == len(data) else data.take(labelled)
    suspects = examine(eps)
    groups = _groups(suspects.suspects)
    actions, states = action_names or eps.meta.action_names, state_names or eps.meta.state_names
    if actions and states:
        everyone = range(len(eps))
        groups += [
            [Suspect(f.kind, e, f.dimension, f.value, f.confidence) for e in everyone]
            for f in against_names(eps, actions, states)
        ]
    observations = [Observation(kind, None, value, text) for kind, value, text in suspects.observations]
    return Audit(
        source,
        len(eps),
        int(eps.labelled.sum()),
        tuple(float(share) for share in suspects.explained),
        tuple(_finding(group, labelled, source) for group in groups),
        (*observations, *_observe(eps, suspects.suspects)),
        Details(eps, labelled, suspects.windows, suspects.judged),
    )


def _groups(suspects: list[Suspect]) -> list[list[Suspect]]:
    """Put suspects together that are one fault: of one kind, dimension and about one value."""
    groups: dict[tuple, list[list[Suspect]]] = {}
    for s in sorted(suspects, key=lambda s: (s.kind, -1 if s.dimension is None else s.dimension, s.trajectory)):
        exact = s.kind in ("lag", "permuted", "copies_state", "next_state", "leak")
        same = groups.setdefault((s.kind, s.dimension, s.value if exact else None), [])
        group = next((group for group in same if exact or s.kind in SHARES or _same_value(s, group)), None)
        if group is None:
            same.append([s])
        elif group[-1].trajectory != s.trajectory:  # of a limit on both sides, one is enough
            group.append(s)
    return [group for same in groups.values() for group in same]


def _same_value(suspect: Suspect, group: list[Suspect]) -> bool:
    value, usual = float(suspect.value), float(np.median([s.value for s in group]))  # type: ignore[arg-type]
    if suspect.kind == "clipped" and suspect.trajectory == group[-1].trajectory:
        return abs(abs(value) - abs(usual)) < 0.02 * abs(value)
    return abs(abs(value) - abs(usual)) <= SAME_VALUE * abs(usual)


def _finding(group: list[Suspect], labelled: np.ndarray, source: str) -> Finding:
    """Return a group of suspects as one finding."""
    first, numbers = group[0], tuple(int(labelled[s.trajectory]) for s in group)
    value: Any = list(first.value) if isinstance(first.value, tuple) else first.value
    if first.kind in SHARES or first.kind in ("rescaled", "units", "clipped"):
        value = float(np.median([s.value for s in group]))
    half = HALF * len(labelled) <= len(group) < len(labelled)
    confidence = float(np.mean([s.confidence for s in group])) * (0.6 if half and first.kind in AMBIGUOUS else 1)
    place = (first.kind, numbers, first.dimension, value)
    return Finding(
        first.kind,
        numbers,
        first.dimension,
        value,
        round(confidence, 3),
        cure(*place, shlex.quote(source), len(labelled)),
        sentence(*place, half, len(numbers) == len(labelled)),
    )


def _observe(eps: Episodes, suspects: list[Suspect]) -> list[Observation]:
    """Return what is true of the whole column and no fault: constants, saturation, copies of trajectories."""
    act, result = eps.act[eps.labelled], []
    faulty = {s.dimension for s in suspects if s.kind in ("clipped", "frozen")}
    for d in range(eps.n_act):
        low, high = float(act[:, d].min()), float(act[:, d].max())
        if low == high:
            result.append(Observation("frozen", d, low, f"dimension {d} is {low:g} everywhere"))
        elif d not in faulty and len(np.unique(act[:: max(1, len(act) // 20_000), d])) > FEW_VALUES:
            slack = 1e-6 * (high - low)
            share = float(((act[:, d] <= low + slack) | (act[:, d] >= high - slack)).mean())
            if share > 0.02:
                text = f"dimension {d} is at {low:g} or {high:g}, where it ends, at {share:.0%} of the steps"
                result.append(Observation("clipped", d, share, text))
    copies = int((first_copies(eps) != np.arange(len(eps))).sum())
    if copies:
        result.append(Observation("duplicated", None, copies, f"{copies} trajectories repeat an earlier one's states"))
    return result
