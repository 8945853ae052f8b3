"""A run told stage by stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.envs.registry import horizon
from ssorl.idm.base import IdmSpec
from ssorl.idm.fill import LabelledData
from ssorl.idm.quality import summary
from ssorl.pipeline.algorithm1 import SplitData
from ssorl.pipeline.hooks import Listener
from ssorl.pipeline.plan import Plan, SplitKey, TrainingKey
from ssorl.pipeline.scoring import FQE_UPDATES
from ssorl.training.engine import Trained
from ssorl.utils.progress import Progress


class RunNarrator(Listener):
    """Tells a run stage by stage on standard error: sentences, and a bar for what takes long."""

    def __init__(self, eps: Episodes, plan: Plan) -> None:
        """Name the work before it begins."""
        self.eps, self.plan = eps, plan
        config, cells, jobs = plan.idm, len(plan.split_keys), len(plan.training_keys)
        updates = config.work * cells if isinstance(config, IdmSpec) else 0
        played = jobs * (plan.episodes * horizon(plan.env) if plan.env else FQE_UPDATES)
        self.bar = Progress(
            {
                "fitting": (updates, "updates"),
                "labelling": (0, "steps"),
                "training": (plan.agent.updates * jobs, "updates"),
                "evaluating": (played, "steps" if plan.env else "updates"),
            }
        )

    def __enter__(self) -> RunNarrator:
        """Say what is about to be done."""
        self.bar.__enter__()
        names, n = self.plan.names, len(self.plan.seeds)
        seeds = "one seed" if n == 1 else f"{n} seeds"
        self.say("data", f"{self.eps.meta.source}, {len(self.eps):,} trajectories, {self.eps.n_steps:,} steps")
        self.say("plan", f"{names['agent']} ({names['preset']}): {', '.join(self.plan.variants)}; {seeds}")
        for note in self.plan.notes:
            self.say("note", note)
        return self

    def __exit__(self, *error: Any) -> None:
        """Leave the terminal as it was."""
        self.bar.__exit__(*error)

    def say(self, stage: str, text: str) -> None:
        """One line of a stage."""
        self.bar.say(f"{stage:>9}  {text}")

    def progress(self, what: str, n: int, note: str = "") -> None:
        """Move the bar."""
        self.bar(what, n, note)

    def has_opened(self, folder: Path, begun: bool, finished: bool) -> None:
        """Tell where it is and whether it goes on."""
        how = "finished: nothing is left to do" if finished else "goes on where it stopped" if begun else ""
        self.say("folder", f"{folder}{how and f' ({how})'}")

    def has_split(self, plan: Plan, tasks: dict[SplitKey, SplitData]) -> None:
        """Tell the first seed's split of each quality."""
        for cell, task in tasks.items():
            if cell.seed == plan.seeds[0]:
                share, returns = task.data.labelled_share, task.data.returns
                kept, rest = share > 0, share == 0
                means = f"; mean return {returns[kept].mean():,.0f}"
                means += f", the others {returns[rest].mean():,.0f}" if rest.any() else ""
                means = "" if np.isnan(returns).any() else means
                from_ = "" if cell.quality is None else f" from the bottom {cell.quality:g} %"
                self.say("split", f"{kept.sum():,} of {len(share):,} trajectories keep their actions{from_}{means}")

    def has_labelled(self, plan: Plan, filled: dict[SplitKey, LabelledData]) -> None:
        """Tell what the first seed's labels are like."""
        for cell, done in filled.items():
            if cell.seed == plan.seeds[0]:
                for line in summary(done.report)[:3]:
                    self.say("labels", line)

    def has_trained(self, plan: Plan, trained: dict[TrainingKey, Trained]) -> None:
        """Tell how long the training was."""
        self.say("agents", f"{len(trained)} trained, {plan.agent.updates:,} updates each; {plan.policy} weights")
