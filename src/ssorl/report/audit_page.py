"""The page of an audit: a picture for each finding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from markupsafe import Markup

from ssorl.idm.audit import Audit, Details, Finding
from ssorl.idm.audit_judge import correlations
from ssorl.report import svg
from ssorl.report.blocks import Panel, Section, Table, wide_and_narrow
from ssorl.report.markup import legend
from ssorl.report.page import render_template
from ssorl.utils.files import atomic

SHOWN = 150  # steps of a trajectory that a picture shows
KINDS = ("labelled", "unlabelled")  # classes of the two lines
TITLES = {
    "lag": "Actions are recorded too late or too early",
    "flipped": "A dimension has the opposite sign",
    "permuted": "Dimensions are in another order",
    "frozen": "A dimension stands still",
    "rescaled": "Actions are scaled",
    "clipped": "Actions are clipped",
    "copies_state": "The action is the state",
    "next_state": "The action is the next state",
    "units": "Actions are in other units",
    "unexplained": "The states do not explain the actions",
    "leak": "The state holds the action",
    "dropped": "Frames are missing",
    "duplicated": "Frames are repeated",
}


def write(audit: Audit, path: Path) -> None:
    """Write the page of an audit.

    Args:
        audit: result of `ssorl.audit`.
        path: the HTML file.
    """
    html = render(audit)
    with atomic(path) as temporary:
        temporary.write_text(html, encoding="utf-8")


def render(audit: Audit) -> str:
    """Return the page of an audit as HTML."""
    n = len(audit.findings)
    if n:
        kinds = ", ".join(dict.fromkeys(finding.kind for finding in audit.findings))
        answer = f"{n} finding{'s' * (n > 1)}: {kinds}."
    else:
        answer = f"No fault was found in the actions of {audit.trajectories:,} trajectories."
    facts = [("Trajectories with actions", f"{audit.trajectories:,}"), ("Steps with actions", f"{audit.steps:,}")]
    if audit.explained:
        facts.append(("Explained by the states", ", ".join(f"{share:.0%}" for share in audit.explained)))
    caveats = ["A fault that all trajectories share cannot be found by comparing them."]
    return render_template(
        title=f"Audit of {audit.source}",
        estimate=False,
        answer=answer,
        caveats=[*caveats, *(observation.text + "." for observation in audit.observations)],
        facts=facts,
        sections=[_section(i, finding, audit.details) for i, finding in enumerate(audit.findings) if audit.details],
        command=f"ssorl audit {audit.source}",
        made_from=f"{audit.source} by `ssorl audit`",
    )


def _section(number: int, finding: Finding, details: Details) -> Section:
    """Return the section of one finding."""
    draw = _draw_lag if finding.kind == "lag" and details.windows is not None else _draw_steps
    text = f"{finding.text[0].upper()}{finding.text[1:]}. Confidence {finding.confidence:.2f}. Cure: {finding.cure}"
    return Section(f"finding-{number}", TITLES[finding.kind], text, [draw(number, finding, details)])


def _panel(number: int, title: str, lines: list[svg.Line], axes: tuple[str, str]) -> Panel:
    """Return a panel with lines over common x values."""

    def picture(key: str, width: int) -> Markup:
        return svg.lines(key, title, title, lines, width, axes)

    rows = [(x, *(line.y[i] for line in lines)) for i, x in enumerate(lines[0].x)]
    return Panel(
        title,
        wide_and_narrow(picture, f"finding-{number}"),
        Table(f"finding-{number}", (axes[0], *(line.name for line in lines)), rows),
        legend([(line.kind, line.name) for line in lines]),
    )


def _draw_lag(number: int, finding: Finding, details: Details) -> Panel:
    """Draw how well actions that were recorded some steps later agree with the model."""
    data, judged = details.windows, details.judged
    assert data is not None and judged is not None
    faulty = np.isin(details.labelled[data.episodes], finding.trajectories)
    lines = []
    for members, kind, name in ((faulty, KINDS[0], "these trajectories"), (~faulty, KINDS[1], "the others")):
        chosen = [int(e) for e in np.flatnonzero(members)[:20]]
        if chosen:
            predicted = {e: judged.predicted[data.rows(e)] for e in chosen}
            agreement = [
                float(np.mean([correlations(predicted[e], data.recorded(e, k)).diagonal() for e in chosen]))
                for k in data.lags
            ]
            lines.append(svg.Line(name, list(data.lags), agreement, kind))
    axes = ("steps by which the record is late", "correlation with the predicted action")
    return _panel(number, "Agreement of actions with the states, by lag", lines, axes)


def _draw_steps(number: int, finding: Finding, details: Details) -> Panel:
    """Draw some steps of one trajectory: the recorded action, and what it should be or what it copies."""
    eps, e = details.eps, int(np.flatnonzero(details.labelled == finding.trajectories[0])[0])
    first, n = int(eps.start[e]), int(eps.lengths[e])
    d = finding.dimension or 0
    recorded = eps.act[first : first + n, d].astype(float)
    states = eps.obs[first + e : first + e + n + 1].astype(float)
    steps, axes = np.arange(n), ("step", f"action dimension {d}")
    title = f"Trajectory {finding.trajectories[0]}, action dimension {d}"
    if finding.kind in ("dropped", "duplicated"):
        spread = eps.obs.std(0)
        move = np.abs(np.diff(states, axis=0) / np.where(spread > 0, spread, 1)).max(1)
        lines = [("change of the state", steps, move)]
        title, axes = f"Trajectory {finding.trajectories[0]}, change of the state", ("step", "change")
    elif finding.kind in ("copies_state", "next_state", "leak"):
        column = states[:, int(finding.value)]
        copy = column[1:] if finding.kind != "copies_state" else column[:-1]
        if finding.kind == "leak" and np.nanstd(recorded - column[:-1]) < np.nanstd(recorded - column[1:]):
            copy = column[:-1]
        lines = [("recorded action", steps, recorded), (f"state dimension {finding.value}", steps, copy)]
    else:
        lines = [("recorded action", steps, recorded)]
        predicted = _predicted(e, d, details)
        if predicted is not None and finding.kind not in ("frozen",):
            lines.append(("predicted from the states", *predicted))
    shown = [
        svg.Line(name, steps[:SHOWN].tolist(), _on(steps[:SHOWN], at, values), kind)
        for (name, at, values), kind in zip(lines, KINDS, strict=False)
    ]
    return _panel(number, title, shown, axes)


def _on(steps: np.ndarray, at: np.ndarray, values: np.ndarray) -> list[float | None]:
    """Return values at steps, None where there is none."""
    known = dict(zip(at.tolist(), values.tolist(), strict=True))
    return [known.get(int(step)) for step in steps]


def _predicted(e: int, d: int, details: Details) -> tuple[np.ndarray, np.ndarray] | None:
    """Return steps of a trajectory and what models of others predict there, in the units of the recorded action."""
    data, judged = details.windows, details.judged
    if data is None or judged is None or e not in data.episodes:
        return None
    i = int(np.flatnonzero(data.episodes == e)[0])
    rows = data.rows(i)
    unit = details.eps.act[data.step, d].astype(float)
    scaled = data.act[data.step, d]
    slope, offset = np.polyfit(scaled, unit, 1) if np.ptp(scaled) > 0 else (1.0, 0.0)
    return data.step[rows] - int(details.eps.start[e]), judged.predicted[rows, d] * slope + offset
