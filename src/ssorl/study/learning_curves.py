"""Learning curves of a batch: policies are saved during training, and evaluated together when training ends.

Evaluating during training would stop the device for seconds at each of about twenty points of the curve.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ssorl.pipeline import scoring
from ssorl.pipeline.hooks import Listener
from ssorl.pipeline.plan import TrainingPlan
from ssorl.training.engine import Snapshot, Trained, TrainingRun
from ssorl.utils.errors import SsorlError
from ssorl.utils.files import read_npz, write_npz
from ssorl.utils.trees import flat, unflat

MAX_BYTES = 1 << 30  # size of one group's saved policies; larger policies train so slowly that evaluations cost little
MAX_EPISODES = 2048  # episodes in one simulator


class LearningCurves:
    """Snapshots of a batch's policies, one file for each point of the curve, so that a stopped batch can resume.

    Args:
        folder: the folder of the files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, plan: TrainingPlan, runs: list[TrainingRun], log: Any, snapshot: Snapshot) -> np.ndarray | None:
        """Save the policies of a snapshot, or evaluate them at once if they are large.

        Args:
            plan: the plan of the batch.
            runs: the trainings of the snapshot's group.
            log: receives the metrics of an evaluation.
            snapshot: the snapshot.

        Returns:
            Scores of the policies if they were evaluated, else None.
        """
        params = scoring.snapshot_params(plan, snapshot)
        if plan.looks * sum(x.nbytes for x in jax.tree.leaves(params)) <= MAX_BYTES:
            name = f"{snapshot.at}-{snapshot.runs.start}-{snapshot.runs.stop}.npz"
            return write_npz(self.folder / name, flat(params, "policy"))
        return scoring.score_snapshot(plan, runs, log, snapshot)

    def evaluate(
        self, plan: TrainingPlan, runs: list[TrainingRun], trained: list[Trained], listener: Listener
    ) -> np.ndarray:
        """Evaluate the saved policies and return the scores of the learning curves.

        Args:
            plan: the plan of the batch.
            runs: the N trainings.
            trained: their results.
            listener: receives progress.

        Returns:
            Scores [N, C] at the C points of the curve; NaN where a policy could not be evaluated.
        """
        missing = np.full(len(plan.snapshot_updates), np.nan)
        column = {n: i for i, n in enumerate(plan.snapshot_updates)}
        scores = np.stack([done.curve.get("score", missing) for done in trained])

        for files in self._batches():
            policies, where = [], []
            for file in files:
                n, *ends = map(int, file.stem.split("-"))
                own = slice(*ends)
                with suppress(SsorlError):  # if a file is damaged, its scores stay NaN
                    params = unflat(read_npz(file), trained[0].policy, "policy")
                    scalers = [done.scaler for done in trained[own]]
                    policies += scoring.snapshot_policies(plan, runs[own], scalers, params)
                    where += [(run, column[n]) for run in range(*ends)]
            if policies:
                scored = scoring.quick_scores(plan, policies, partial(listener.progress, "evaluating"))
                scores[tuple(np.transpose(where))] = scored
        return scores

    def _batches(self) -> Iterator[list[Path]]:
        """Yield all files, in batches whose policies fit into one simulator."""
        batch: list[Path] = []
        episodes = 0
        for file in sorted(self.folder.glob("*-*-*.npz")):
            _, first, stop = map(int, file.stem.split("-"))
            more = scoring.CURVE_EPISODES * (stop - first)
            if batch and episodes + more > MAX_EPISODES:
                yield batch
                batch, episodes = [], 0
            batch.append(file)
            episodes += more
        if batch:
            yield batch
