"""ssorl check: all checks of data in one command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ssorl.cli.options import DataOptions, Force, Json, arg, print_json
from ssorl.utils.errors import SsorlError

if TYPE_CHECKING:
    from ssorl.data import Episodes
    from ssorl.pipeline.check_data import Check as Result


@dataclass(frozen=True)
class Check:
    """Check data in a minute, before anything is trained on it.

    Are the two parts compatible, is the action column believable, what error will the labels have, will they help, and
    what to label next. It ends in a verdict and the next command.
    """

    data: DataOptions
    idm: Annotated[str, arg("NAME", "model that is fitted: blend, robust or paper", "blend")] = "blend"
    steps: Annotated[int | None, arg("N", "updates of the model, in place of the preset's")] = None
    seed: Annotated[int, arg("N", "seed of the model", 0)] = 0
    report: Annotated[Path | None, arg("FILE", "also write a page on which proxy actions can be moved through")] = None
    force: Force = False
    json: Json = False

    def run(self) -> None:
        """Load, check, draw, print."""
        from ssorl.pipeline.check_data import check

        if self.report is not None:
            if self.report.suffix.lower() not in (".html", ".htm") or self.report.is_dir():
                raise SsorlError(f"--report {self.report}: name a file that ends in .html")
            if self.report.exists() and not self.force:
                raise SsorlError(f"{self.report}: exists already; choose another name or pass --force")
        two = f"--labelled {self.data.labelled} --unlabelled {self.data.unlabelled}"
        named = self.data.dataset or two
        first, second = self._load()
        result = check(first, second, self.idm, self.seed, self.steps, command=named)
        if self.report is not None:
            from ssorl.report.check_page import write

            write(result.as_json(), result.traces, self.report)
        if self.json:
            return print_json(result.as_json())
        return _show(result, self.report)

    def _load(self) -> tuple[Episodes, Episodes | None]:
        """Return the dataset, or the labelled and the unlabelled one."""
        data = self.data
        if not (data.labelled and data.unlabelled) or data.dataset:
            return data.load(), None
        from ssorl.data import load

        first, second = (
            load(name, data.format, data.min_length, actions=i == 0, **data.columns)
            for i, name in enumerate((data.labelled, data.unlabelled))
        )
        return first, second


def _show(result: Result, page: Path | None) -> None:
    """Print the check for a reader."""
    from rich.console import Console

    console = Console(emoji=False, markup=False, highlight=False, soft_wrap=True)
    for text in result.warnings:
        console.print(f"warning: {text}")
    for finding in result.findings:
        console.print(f"finding: {finding['kind']} in {len(finding['trajectories'])} trajectories; {finding['cure']}")
    if not result.findings:
        console.print("actions: no fault was found")
    if result.yardsticks:
        errors = {name: value for name, value in result.yardsticks.items() if not name.endswith("_lag")}
        rules = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in errors.items())
        console.print(f"errors of simple rules on held-out steps (MSE): {rules}")
    if result.advice:
        console.print(result.advice)
    for number, one in enumerate(result.suggestions, start=1):
        after = "" if one["expected_mse"] is None else f", expected error then {one['expected_mse']:.3g}"
        console.print(f"label next, {number}: trajectory {one['trajectory']}{after}")
    for text in result.notes:
        console.print(f"note: {text}")
    if page is not None:
        console.print(f"page: {page}")
    console.print(f"verdict: {result.verdict}")
    console.print(f"next: {result.next}")
