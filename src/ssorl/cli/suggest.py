"""ssorl suggest: which trajectories to get actions for next."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ssorl.cli.options import DataOptions, Force, Json, SplitOrFileOptions, arg, check_plot, print_json
from ssorl.utils.errors import SsorlError

if TYPE_CHECKING:
    from ssorl.data import Episodes
    from ssorl.idm.suggest import Suggestions


@dataclass(frozen=True)
class Suggest:
    """Suggest which trajectories to get actions for next.

    They come in order, each with the label error that is expected then. The suggestions cover the unlabelled states
    best. Hidden actions and rewards are not read. With split options, actions of a complete dataset are hidden
    first, and --reveal writes what would be known afterwards.
    """

    data: DataOptions
    split: SplitOrFileOptions
    budget: Annotated[float | None, arg("K", "number of suggestions; with --cost, what they may cost in all", 3)] = None
    budget_steps: Annotated[int | None, arg("N", "in place of --budget: number of steps in all")] = None
    segments: Annotated[int | None, arg("N", "suggest parts of N steps", "whole trajectories")] = None
    cost: Annotated[Path | None, arg("FILE", "cost of each trajectory: a JSON list, or one number a line")] = None
    plot: Annotated[Path | None, arg("FILE", "draw what is covered now and afterwards (.png, .pdf or .svg)")] = None
    reveal: Annotated[
        Path | None, arg("FILE", "with a split: write the dataset with the suggested actions known, the others hidden")
    ] = None
    force: Force = False
    json: Json = False

    def run(self) -> None:
        """Load, hide, suggest, draw, print.

        Raises:
            SsorlError: the options do not go together, or there is nothing to suggest.
        """
        from ssorl.idm.suggest import suggest

        if self.plot is not None:
            check_plot(self.plot)
        if self.reveal is not None:
            from ssorl.data.formats import writer

            writer(self.reveal, None, self.force)
        eps, second, truth = self._load()
        options: dict[str, Any] = {"budget_steps": self.budget_steps, "segments": self.segments}
        costs = None if self.cost is None else read_costs(self.cost)
        seed = self.split.seed or 0
        result = suggest(eps, self.budget, unlabelled=second, costs=costs, seed=seed, **options)
        if self.plot is not None:
            from ssorl.report.coverage import plot

            plot(result, self.plot)
        if self.reveal is not None:
            _reveal(eps, truth, result, self.reveal, self.force)
        if self.json:
            return print_json(result.as_json())
        return _show(result, self.plot, self.reveal)

    def _load(self) -> tuple[Episodes, Episodes | None, Any]:
        """Return the trajectories, those of a second file, and the actions that a split hides."""
        from ssorl.data import apply, load, truth

        first, second = self.data.labelled, self.data.unlabelled
        if first and second and not self.data.dataset:
            if self.split.given("seed"):
                raise SsorlError("a split hides actions of one dataset; with two files the second has none already")
            if self.reveal is not None:
                raise SsorlError("--reveal needs a dataset with all actions and a split, such as --quality 10")
            load_one = {"format": self.data.format, "min_length": self.data.min_length, **self.data.columns}
            return load(first, **load_one), load(second, actions=False, **load_one), None
        eps = self.data.load()
        split = self.split.choose(eps)
        if split is None:
            if self.reveal is not None:
                raise SsorlError("--reveal needs a dataset with all actions and a split, such as --quality 10")
            return eps, None, None
        return apply(split, eps), None, truth(split, eps)


def read_costs(path: Path) -> list[float]:
    """Return the costs in a file: a JSON list, or one number a line.

    Args:
        path: the file.

    Raises:
        SsorlError: it cannot be read or is neither.
    """
    try:
        text = path.read_text(encoding="utf-8").strip()
        values = json.loads(text) if text.startswith("[") else text.split()
        costs = [float(value) for value in values]
        if not costs or not all(math.isfinite(cost) for cost in costs):
            raise ValueError
    except (OSError, ValueError, TypeError, RecursionError) as err:
        raise SsorlError(f"--cost {path}: give a JSON list of numbers, or one number a line") from err
    return costs


def _reveal(eps: Episodes, truth: Any, result: Suggestions, path: Path, force: bool) -> None:
    """Write the dataset with the suggested actions known."""
    import numpy as np

    from ssorl.data import save

    act = eps.act.copy()
    for s in result.suggestions:
        start = int(eps.start[s.trajectory])
        first = start + (s.first_step or 0)
        last = int(eps.start[s.trajectory + 1]) if s.last_step is None else start + s.last_step + 1
        known = ~np.isnan(truth[first:last, :1])
        act[first:last] = np.where(known, truth[first:last], act[first:last])
    save(eps.with_actions(act), path, force=force)


def _show(result: Suggestions, plot: Path | None, revealed: Path | None) -> None:
    """Print the suggestions for a reader."""
    from rich.console import Console

    console = Console(emoji=False, markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"{result.source}: {result.labelled_trajectories:,} trajectories with all actions, "
        f"{result.unlabelled_trajectories:,} without"
    )
    if result.expected_mse_now is not None:
        console.print(f"forecast label error (MSE) now: {result.expected_mse_now:.3g}")
    for s in result.suggestions:
        part = "" if s.first_step is None else f", steps {s.first_step} to {s.last_step}"
        after = "" if s.expected_mse is None else f"; then {s.expected_mse:.3g}"
        console.print(
            f"trajectory {s.trajectory}{part} ({s.steps:,} steps): brings {s.covers:.0%} of the states nearer{after}"
        )
    for note in result.notes:
        console.print(f"note: {note}")
    for what, path in (("picture", plot), ("revealed", revealed)):
        if path is not None:
            console.print(f"{what}: {path}")
