"""Self-training (Algorithm 2 of the paper): an ensemble is refitted to its own labels, most certain ones first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ssorl.data.episodes import Episodes, unscale
from ssorl.idm.base import FittedIdm, IdmSpec
from ssorl.idm.label import predict

SEED_STRIDE = 1_000_003  # distance between the seeds of two rounds


@dataclass(frozen=True)
class Round:
    """One round of self-training."""

    idm: FittedIdm  # fitted in this round
    added: np.ndarray  # [n] steps that were added to the labelled ones before this fit
    threshold: float  # largest predicted variance of the added steps


def self_train(
    eps: Episodes,
    config: IdmSpec,
    members: int | None = 3,
    rounds: int = 3,
    seed: int = 0,
    report: Callable[[int, Round], None] | None = None,
) -> list[Round]:
    """Fit a model to the labelled steps, then in each round add its most certain labels and fit again.

    Each round adds |unlabelled| / `rounds` steps, those with the smallest predicted variance summed over the action
    dimensions. Each fit starts from new weights and holds out trajectories of its own.

    Args:
        eps: trajectories, some steps labelled.
        config: the model.
        members: networks in the ensemble; None: as many as the configuration says.
        rounds: rounds after the first fit.
        seed: of the first fit; later fits derive their seeds from it.
        report: called with the number of each finished round and the round.

    Returns:
        All rounds; the model of the last one is the result.
    """
    report_one = report and (lambda number, latest: report(number, latest[0]))
    return self_train_many([(eps, seed)], config, members, rounds, report_one)[0]


def self_train_many(
    tasks: Sequence[tuple[Episodes, int]],
    config: IdmSpec,
    members: int | None = 3,
    rounds: int = 3,
    report: Callable[[int, list[Round]], None] | None = None,
) -> list[list[Round]]:
    """Self-train one model for each task; each result equals that of `self_train`, and a GPU fits all models together.

    Args:
        tasks: pairs of trajectories and seed.
        config: the model.
        members: networks in each ensemble; None: as many as the configuration says.
        rounds: rounds after the first fit.
        report: called with the number of each finished round and the latest round of every task.

    Returns:
        The rounds of each task.
    """
    config = config.resized(members=members)
    done = [[Round(idm, np.array([], np.int64), 0.0)] for idm in config.fit_many(tasks)]
    growing = [eps for eps, _ in tasks]
    rest = [np.flatnonzero(~eps.labelled) for eps in growing]
    n_add = [-(-len(steps) // rounds) if rounds else 0 for steps in rest]
    missing = [i for i, steps in enumerate(rest) if len(steps)]  # tasks with unlabelled steps
    for r in range(rounds if missing else 0):
        if report:
            report(r, [history[-1] for history in done])
        added = {i: _most_certain(done[i][-1].idm, tasks[i][0], rest[i], n_add[i]) for i in missing}
        for i, (steps, act, _) in added.items():
            grown = growing[i].act.copy()
            grown[steps] = act
            growing[i] = growing[i].with_actions(grown)
            rest[i] = np.setdiff1d(rest[i], steps, assume_unique=True)
        # The seeds of all rounds and tasks differ, because the seeds of tasks are small numbers.
        fitted = config.fit_many([(growing[i], tasks[i][1] + SEED_STRIDE * (r + 1)) for i in missing])
        for i, idm in zip(missing, fitted, strict=True):
            done[i].append(Round(idm, np.sort(added[i][0]), added[i][2]))
    if report:
        report(rounds if missing else 0, [history[-1] for history in done])
    return done


def _most_certain(idm: FittedIdm, eps: Episodes, rest: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the `n` steps of `rest` with the smallest variance, their predicted actions, and the largest variance."""
    out = predict(idm, eps, rest)
    variance = (out.std**2).sum(1)
    chosen = np.argsort(variance, kind="stable")[:n]
    threshold = float(variance[chosen].max()) if len(chosen) else 0.0
    return rest[chosen], unscale(np.clip(out.mean[chosen], -1, 1), eps.meta), threshold
