"""The page of a check: the verdict, what it rests on, and the proxy actions to move through."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from ssorl.report.blocks import Panel, Section, Table
from ssorl.report.page import render_template
from ssorl.utils.files import atomic

DIGITS = 5  # of a proxy action in the page


def write(result: dict[str, Any], traces: Sequence[Any], path: Path) -> None:
    """Write the page of a check.

    Args:
        result: what `Check.as_json` returned.
        traces: trajectories to show; each has `trajectory`, `act` [T, A], `std` [T, A] and `unseen` [T].
        path: the HTML file.
    """
    with atomic(path) as temporary:
        temporary.write_text(render(result, traces), encoding="utf-8")


def render(result: dict[str, Any], traces: Sequence[Any]) -> str:
    """Return the page as HTML; the arguments are those of `write`."""
    facts = []
    if found := result["forecast"]:
        interval = f"{found['mse']:.3g}, 90 % interval {found['low']:.2g} to {found['high']:.2g}"
        facts.append(("Forecast label error (MSE)", interval))
    errors = {name: value for name, value in result["yardsticks"].items() if not name.endswith("_lag")}
    facts += [(f"Error of {name.replace('_', ' ')}", f"{value:.3g}") for name, value in errors.items()]
    facts += [(f"Finding: {one['kind']}", str(one["cure"])) for one in result["findings"]]
    for number, one in enumerate(result["suggestions"], start=1):
        facts.append((f"Label next, {number}", f"trajectory {one['trajectory']}"))
    facts.append(("Next command", result["next"]))
    verdict = result["verdict"]
    return render_template(
        own="check",
        title=f"Check of {result['source']}",
        estimate=False,
        answer=f"{verdict[0].upper()}{verdict[1:]}.",
        caveats=[f"{text[0].upper()}{text[1:]}." for text in (*result["warnings"], *result["notes"])],
        facts=facts,
        sections=[_section(traces)] if traces else [],
        command=f"ssorl check {result['source']}",
        made_from=f"{result['source']} by `ssorl check`",
    )


def _section(traces: Sequence[Any]) -> Section:
    """Return the section with the proxy actions."""
    text = (
        "The line is the proxy action, the band holds 95 % of the true ones if the predicted std is right, and dots "
        "mark steps whose states or changes lie outside the labelled range. The slider moves through the steps."
    )
    rows = [(t.trajectory, len(t.act), float(np.sqrt(np.mean(t.std**2)))) for t in traces]
    table = Table("proxies", ("trajectory", "steps shown", "predicted std"), rows)
    return Section("proxies", "Proxy actions", text, [Panel("Proxy actions", [_scrubber(traces)], table)])


def _scrubber(traces: Sequence[Any]) -> Markup:
    data = [
        {
            "act": np.round(t.act.astype(float), DIGITS).tolist(),
            "std": np.round(t.std.astype(float), DIGITS).tolist(),
            "unseen": t.unseen.astype(int).tolist(),
        }
        for t in traces
    ]
    picks = Markup("").join(
        Markup('<option value="{}">trajectory {}</option>').format(i, t.trajectory) for i, t in enumerate(traces)
    )
    dims = Markup("").join(
        Markup('<option value="{}">dimension {}</option>').format(i, i) for i in range(traces[0].act.shape[1])
    )
    return Markup(
        '<div data-scrub="{}"><label>Trajectory <select class="pick">{}</select></label> '
        '<label>Action <select class="dim">{}</select></label>'
        '<svg class="plot" viewBox="0 0 640 240" role="img" aria-label="Proxy action by step"></svg>'
        '<label>First step <input class="at" type="range" min="0" max="0" value="0"></label><p class="said"></p></div>'
    ).format(escape(json.dumps(data)), picks, dims)
