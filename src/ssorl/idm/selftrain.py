"""Self-training (the paper's Algorithm 2): an ensemble labels what it is surest of and learns from that too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ssorl.data.episodes import Episodes, unscale
from ssorl.idm.base import FittedIdm, IdmSpec
from ssorl.idm.label import predict

FAR = 1_000_003


@dataclass(frozen=True)
class Round:
    """One round: the ensemble it ended with and what it had learnt from."""

    idm: FittedIdm
    added: np.ndarray  # steps that moved into the training set before this round's fit, [n]
    threshold: float  # the largest variance among them


def self_train(
    eps: Episodes,
    config: IdmSpec,
    members: int | None = 3,
    rounds: int = 3,
    seed: int = 0,
    report: Callable[[int, Round], None] | None = None,
) -> list[Round]:
    """Round 0 fits on the labelled steps; each of `rounds` more moves the surest |unlabelled|/N steps over and refits.

    The variance of the mixture, summed over action dimensions, ranks the steps. Every fit starts afresh and holds out
    its own tenth of the trajectories it may learn from. The last round's ensemble is the result.
    """
    tell = report and (lambda r, latest: report(r, latest[0]))
    return self_train_many([(eps, seed)], config, members, rounds, tell)[0]


def self_train_many(
    tasks: Sequence[tuple[Episodes, int]],
    config: IdmSpec,
    members: int | None = 3,
    rounds: int = 3,
    report: Callable[[int, list[Round]], None] | None = None,
) -> list[list[Round]]:
    """Every task, a dataset with a seed, as `self_train` would alone; a round's fits are one program on a GPU.

    `report` hears of each round and of all tasks' ensembles after it.
    """
    config = config.resized(members=members)
    done = [[Round(idm, np.array([], np.int64), 0.0)] for idm in config.fit_many(tasks)]
    growing = [eps for eps, _ in tasks]
    rest = [np.flatnonzero(~eps.labelled) for eps in growing]
    n_add = [-(-len(steps) // rounds) if rounds else 0 for steps in rest]
    missing = [i for i, steps in enumerate(rest) if len(steps)]  # the others are done
    for r in range(rounds if missing else 0):
        if report:
            report(r, [one[-1] for one in done])
        moved = {i: _surest(done[i][-1].idm, tasks[i][0], rest[i], n_add[i]) for i in missing}
        for i, (steps, act, _) in moved.items():
            grown = growing[i].act.copy()
            grown[steps] = act
            growing[i] = growing[i].with_actions(grown)
            rest[i] = np.setdiff1d(rest[i], steps, assume_unique=True)
        # Far from the seeds of other tasks, which are small numbers: no two fits are to draw alike.
        fitted = config.fit_many([(growing[i], tasks[i][1] + FAR * (r + 1)) for i in missing])
        for i, idm in zip(missing, fitted, strict=True):
            done[i].append(Round(idm, np.sort(moved[i][0]), moved[i][2]))
    if report:
        report(rounds if missing else 0, [one[-1] for one in done])
    return done


def _surest(idm: FittedIdm, eps: Episodes, rest: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, float]:
    """The `n` of the steps `rest` that the mixture is surest of, its actions there, and the largest variance."""
    out = predict(idm, eps, rest)
    doubt = (out.std**2).sum(1)
    chosen = np.argsort(doubt, kind="stable")[:n]
    threshold = float(doubt[chosen].max()) if len(chosen) else 0.0
    return rest[chosen], unscale(np.clip(out.mean[chosen], -1, 1), eps.meta), threshold
