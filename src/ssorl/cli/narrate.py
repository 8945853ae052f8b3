"""Reports of a run on standard error, stage by stage."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.envs.registry import horizon
from ssorl.idm.base import IdmSpec
from ssorl.idm.fill import LabelledData
from ssorl.idm.outlook import doubtful_sentence
from ssorl.idm.quality import summary
from ssorl.idm.worth import doubtful_report
from ssorl.pipeline.algorithm1 import SplitData
from ssorl.pipeline.hooks import Listener
from ssorl.pipeline.plan import Plan, SplitKey, TrainingKey
from ssorl.pipeline.scoring import FQE_UPDATES
from ssorl.training.engine import Trained
from ssorl.utils.progress import Progress


class RunNarrator(Listener):
    """Reports the stages of a run as sentences, with a progress bar for the long ones."""

    def __init__(self, eps: Episodes, plan: Plan) -> None:
        """Count the work of a plan.

        Args:
            eps: the trajectories.
            plan: what will be done.
        """
        self.eps, self.plan = eps, plan
        n_trainings = len(plan.training_keys)
        fits = plan.idm.work * len(plan.split_keys) if isinstance(plan.idm, IdmSpec) else 0
        evaluation = n_trainings * (plan.episodes * horizon(plan.env) if plan.env else FQE_UPDATES)
        self.bar = Progress(
            {
                "fitting": (fits, "updates"),
                "labelling": (0, "steps"),
                "training": (plan.agent.updates * n_trainings, "updates"),
                "evaluating": (evaluation, "steps" if plan.env else "updates"),
            }
        )

    def __enter__(self) -> RunNarrator:
        """Start the progress bar and describe the plan."""
        self.bar.__enter__()
        names, n_seeds = self.plan.names, len(self.plan.seeds)
        seeds = "1 seed" if n_seeds == 1 else f"{n_seeds} seeds"
        self.say("data", f"{self.eps.meta.source}, {len(self.eps):,} trajectories, {self.eps.n_steps:,} steps")
        self.say("plan", f"{names['agent']} ({names['preset']}): {', '.join(self.plan.variants)}; {seeds}")
        for note in self.plan.notes:
            self.say("note", note)
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop the progress bar."""
        self.bar.__exit__(*error)

    def say(self, stage: str, text: str) -> None:
        """Print a line about a stage, wrapped on a terminal."""
        line, indent = f"{stage:>9}  {text}", " " * 11
        if self.bar.bar is not None:
            width = shutil.get_terminal_size().columns
            line = textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        self.bar.say(line)

    def progress(self, what: str, n: int, note: str = "") -> None:
        """Advance the progress bar."""
        self.bar(what, n, note)

    def has_opened(self, folder: Path, begun: bool, finished: bool) -> None:
        """Print the run folder, and whether the run is finished or resumes."""
        state = " (finished: nothing is left to do)" if finished else " (resumes)" if begun else ""
        self.say("folder", f"{folder}{state}")

    def has_split(self, plan: Plan, tasks: dict[SplitKey, SplitData]) -> None:
        """Describe the first seed's split of each quality."""
        for key, task in tasks.items():
            if key.seed == plan.seeds[0]:
                share, returns = task.data.labelled_share, task.data.returns
                labelled, unlabelled = share > 0, share == 0
                means = f"; mean return {returns[labelled].mean():,.0f}"
                means += f", of the others {returns[unlabelled].mean():,.0f}" if unlabelled.any() else ""
                means = "" if np.isnan(returns).any() else means
                pool = "" if key.quality is None else f" from the bottom {key.quality:g} %"
                self.say("split", f"{labelled.sum():,} of {len(share):,} trajectories keep their actions{pool}{means}")

    def has_labelled(self, plan: Plan, filled: dict[SplitKey, LabelledData]) -> None:
        """Describe the labels of the first seed."""
        for key, labelled in filled.items():
            if key.seed == plan.seeds[0]:
                report = labelled.report
                for line in summary(report)[:3]:
                    self.say("labels", line)
                doubtful = doubtful_sentence(doubtful_report(labelled, plan.use.when_doubtful))
                for line in filter(None, (report.get("advice"), doubtful)):
                    self.say("forecast", line)
                for line in report.get("warnings", ()):
                    self.say("warning", line)

    def has_trained(self, plan: Plan, trained: dict[TrainingKey, Trained]) -> None:
        """Count the trained agents."""
        self.say("agents", f"{len(trained)} trained, {plan.agent.updates:,} updates each; {plan.policy} weights")
