"""ssorl audit: is the action column believable?"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from ssorl.cli.options import DataOptions, Force, Json, arg, flag, print_json
from ssorl.utils.errors import SsorlError

if TYPE_CHECKING:
    from ssorl.idm.audit import Audit as Result

FINDINGS = 1  # exit code of --strict


@dataclass(frozen=True)
class Audit:
    """Check whether recorded actions agree with the states.

    Faults of some trajectories are found against the others: shifted, reversed, reordered, scaled, clipped or frozen
    actions, copies of states, missing and repeated frames. A fault that all trajectories share shows only where names
    pair actions with joints. The exit code is 0 whatever is found, unless --strict is given.
    """

    data: DataOptions
    action_names: Annotated[tuple[str, ...], arg("NAME …", "name of each action dimension", "the dataset's")] = ()
    state_names: Annotated[tuple[str, ...], arg("NAME …", "name of each state dimension", "the dataset's")] = ()
    report: Annotated[Path | None, arg("FILE", "also write a page with a picture of each finding (page.html)")] = None
    strict: Annotated[tyro.conf.FlagCreatePairsOff[bool], flag("exit with code 1 if there are findings")] = False
    force: Force = False
    json: Json = False

    def run(self) -> None:
        """Load, audit, draw, print."""
        from ssorl.idm.audit import audit

        if self.report is not None:
            _check_page(self.report, self.force)
        result = audit(self.data.load(), self.action_names, self.state_names)
        if self.report is not None:
            from ssorl.report.audit_page import write

            write(result, self.report)
        if self.json:
            print_json(result.as_json())
        else:
            _show(result, self.report)
        if self.strict and result.findings:
            sys.stdout.flush()
            raise SystemExit(FINDINGS)


def _check_page(path: Path, force: bool) -> None:
    """Raise SsorlError if the page cannot be written there."""
    if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
        raise SsorlError(f"--report {path}: name a file that ends in .html")
    if path.exists() and not force:
        raise SsorlError(f"{path}: exists already; choose another name or pass --force")


def _show(result: Result, page: Path | None) -> None:
    """Print the audit for a reader."""
    from rich.console import Console

    console = Console(emoji=False, markup=False, highlight=False, soft_wrap=True)
    n = len(result.findings)
    answer = f"{n} finding{'s' * (n != 1)}" if n else "no fault was found"
    console.print(
        f"{result.source}: {answer} in {result.trajectories:,} trajectories with actions ({result.steps:,} steps)"
    )
    if result.explained:
        shares = ", ".join(f"{share:.0%}" for share in result.explained)
        console.print(f"models of other trajectories explain this share of each action dimension: {shares}")
    for finding in result.findings:
        console.print(f"{finding.kind}: {finding.text} (confidence {finding.confidence:.2f})")
        console.print(f"  {finding.cure}")
    for observation in result.observations:
        console.print(f"note: {observation.text}")
    console.print("A fault that all trajectories share cannot be seen this way (docs/audit.md).")
    if page is not None:
        console.print(f"page: {page}")
