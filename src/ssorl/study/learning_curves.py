"""Learning curves of a batch: at each look its policies are set aside, and all play together when they are trained.

To play at every look would stop the device for seconds, twenty times over, while a simulator works for a few policies.
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
from ssorl.pipeline.plan import Plan
from ssorl.training.engine import Snapshot, Trained, TrainingRun
from ssorl.utils.errors import SsorlError
from ssorl.utils.files import read_npz, write_npz
from ssorl.utils.trees import flat, unflat

LARGEST = 1 << 30  # bytes set aside of a group; policies that come to more train too slowly to mind being played
LANES = 2048  # episodes in one simulator


class LearningCurves:
    """The looks at a batch, each in a file, so that a batch that was stopped still has those from before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, plan: Plan, runs: list[TrainingRun], log: Any, look: Snapshot) -> np.ndarray | None:
        """Set the policies aside, or let them play now if they are large."""
        params = scoring.snapshot_params(plan, look)
        if plan.looks * sum(x.nbytes for x in jax.tree.leaves(params)) <= LARGEST:
            name = f"{look.at}-{look.runs.start}-{look.runs.stop}.npz"
            return write_npz(self.folder / name, flat(params, "policy"))
        return scoring.score_snapshot(plan, runs, log, look)

    def play(self, plan: Plan, runs: list[TrainingRun], trained: list[Trained], watch: Listener) -> np.ndarray:
        """What each run's policy earned at each look, [N, C]; NaN where one could not be played."""
        nothing, at = (
            np.full(len(plan.snapshot_updates), np.nan),
            {n: place for place, n in enumerate(plan.snapshot_updates)},
        )
        scores = np.stack([done.curve.get("score", nothing) for done in trained])

        for files in self._together():
            players, where = [], []
            for file in files:
                n, *ends = map(int, file.stem.split("-"))
                own = slice(*ends)
                with suppress(SsorlError):  # a damaged file: its points are missing
                    params = unflat(read_npz(file), trained[0].policy, "policy")
                    players += scoring.snapshot_policies(
                        plan, runs[own], [done.scaler for done in trained[own]], params
                    )
                    where += [(run, at[n]) for run in range(*ends)]
            if players:
                earned = scoring.quick_scores(plan, players, partial(watch.progress, "evaluating"))
                scores[tuple(np.transpose(where))] = earned
        return scores

    def _together(self) -> Iterator[list[Path]]:
        """All files, so many at a time as one simulator takes."""
        some: list[Path] = []
        lanes = 0
        for file in sorted(self.folder.glob("*-*-*.npz")):
            _, first, stop = map(int, file.stem.split("-"))
            more = scoring.CURVE_EPISODES * (stop - first)
            if some and lanes + more > LANES:
                yield some
                some, lanes = [], 0
            some.append(file)
            lanes += more
        if some:
            yield some
