"""Hooks of Algorithm 1: a store that persists the result of each stage, and a listener that reports progress.

Both classes here do nothing, so that the pipeline runs alone. `runs.folder.RunFolder` and `study.idm_cache.IdmCache`
are stores that write files; `cli.narrate.RunNarrator` is a listener that reports to the user.
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
    from ssorl.pipeline.algorithm1 import SplitData
    from ssorl.pipeline.plan import Plan, SplitKey, TrainingKey
    from ssorl.pipeline.scoring import EvalResult
    from ssorl.training.engine import Trained

Log = Callable[..., None]  # called with each snapshot of a training, and with `score=` if its policies were evaluated


class StageStore:
    """Storage for the results of the stages. This base class stores nothing, and every `load_…` returns None."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Surround a stage, for example to measure its time.

        Args:
            name: "split", "labels", "training" or "evaluation".
        """
        yield

    def load_split(self, key: SplitKey) -> Split | None:
        """Return the stored split, or None."""

    def save_splits(self, tasks: dict[SplitKey, SplitData]) -> None:
        """Store the splits of all tasks."""

    def load_labels(self, key: SplitKey, data: Episodes) -> LabelledData | None:
        """Return the stored labels of a split, or None.

        Args:
            key: the split.
            data: its trajectories, with NaN for the hidden actions.
        """

    def save_labels(self, key: SplitKey, labelled: LabelledData) -> None:
        """Store the model and the labels of a split; called as soon as they are made, by several threads at once."""

    def checkpoint_folder(self) -> Path | None:
        """Return the folder for checkpoints of the trainings, or None to write no checkpoints."""

    def open_log(self, keys: list[TrainingKey]) -> Log:
        """Return a function that records the metrics of snapshots.

        Args:
            keys: the trainings, in the order in which snapshots number them.
        """
        return lambda snapshot, **more: None

    def save_policies(self, players: dict[TrainingKey, TrainedPolicy]) -> None:
        """Store the trained policies."""

    def load_evaluation(self) -> EvalResult | None:
        """Return the stored evaluation, or None."""

    def save_evaluation(self, result: EvalResult) -> None:
        """Store the evaluation; also called with one that was loaded."""


class Listener:
    """Reports of progress. This base class reports nothing."""

    def has_opened(self, folder: Path, begun: bool, finished: bool) -> None:
        """Called when the run folder is open.

        Args:
            folder: the run folder.
            begun: an earlier command began this run.
            finished: the run is complete.
        """

    def has_split(self, plan: Plan, tasks: dict[SplitKey, SplitData]) -> None:
        """Called when all splits are drawn."""

    def has_labelled(self, plan: Plan, filled: dict[SplitKey, LabelledData]) -> None:
        """Called when all labels are made; `filled` is empty if the agent needs none."""

    def has_trained(self, plan: Plan, trained: dict[TrainingKey, Trained]) -> None:
        """Called when all agents are trained."""

    def progress(self, what: str, n: int, note: str = "") -> None:
        """Called when more work is done.

        Args:
            what: "fitting", "labelling", "training" or "evaluating".
            n: units of work done since the last call: updates or steps.
            note: detail for the progress bar.
        """
