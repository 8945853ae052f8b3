"""What Algorithm 1 asks of those around it: someone who keeps the stages' results, someone who is told of them.

Both do nothing here, so that the pipeline runs alone; `folder.Folder` keeps files, `report.teller` tells the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssorl.data.episodes import Episodes
    from ssorl.data.split import Split
    from ssorl.evaluation.policy import TrainedPolicy
    from ssorl.idm.fill import LabelledData
    from ssorl.pipeline.algorithm1 import EvalResult, SplitData
    from ssorl.pipeline.plan import Plan, SplitKey, TrainingKey
    from ssorl.training.engine import Trained

Log = Callable[..., None]  # called with each look at a training, and `score=` where policies were played


class StageStore:
    """Where the stages' results go. This one forgets."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Around a stage."""
        yield

    def split(self, cell: SplitKey) -> Split | None:
        """A split from before."""

    def splits(self, tasks: dict[SplitKey, SplitData]) -> None:
        """All splits, as drawn."""

    def filled(self, cell: SplitKey, data: Episodes) -> LabelledData | None:
        """Labels from before."""

    def labels(self, cell: SplitKey, done: LabelledData) -> None:
        """Labels, just made."""

    def checkpoints(self) -> Path | None:
        """Where the trainings are kept."""

    def log(self, jobs: list[TrainingKey]) -> Log:
        """Where the metrics of the trainings go."""
        return lambda look, **more: None

    def players(self, players: dict[TrainingKey, TrainedPolicy]) -> None:
        """The trained policies."""

    def judged(self) -> EvalResult | None:
        """An evaluation from before."""

    def judgement(self, judged: EvalResult) -> None:
        """The evaluation."""


class Listener:
    """Who is told how it goes. This one tells nobody."""

    def has_opened(self, folder: Path, begun: bool, finished: bool) -> None:
        """Where the run is kept, and how much of it was there already."""

    def has_split(self, plan: Plan, tasks: dict[SplitKey, SplitData]) -> None:
        """Which actions are hidden is settled."""

    def has_labelled(self, plan: Plan, filled: dict[SplitKey, LabelledData]) -> None:
        """Every proxy is there."""

    def has_trained(self, plan: Plan, trained: dict[TrainingKey, Trained]) -> None:
        """Every agent is trained."""

    def progress(self, what: str, n: int, note: str = "") -> None:
        """`n` more of fitting, labelling, training or evaluating are done."""
