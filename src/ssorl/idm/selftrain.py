"""Self-training (the paper's Algorithm 2): an ensemble labels what it is surest of and learns from that too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ssorl.data.episodes import Episodes, unscale
from ssorl.idm.fit import Idm, fit
from ssorl.idm.label import predict
from ssorl.idm.model import IdmConfig


@dataclass(frozen=True)
class Round:
    """One round: the ensemble it ended with and what it had learnt from."""

    idm: Idm
    added: np.ndarray  # steps that moved into the training set before this round's fit, [n]
    threshold: float  # the largest variance among them


def self_train(
    eps: Episodes,
    config: IdmConfig,
    members: int = 3,
    rounds: int = 3,
    seed: int = 0,
    report: Callable[[int, Round], None] | None = None,
) -> list[Round]:
    """Round 0 fits on the labelled steps; each of `rounds` more moves the surest |unlabelled|/N steps over and refits.

    The variance of the mixture, summed over action dimensions, ranks the steps. Every fit starts afresh and holds out
    its own tenth of the trajectories it may learn from. The last round's ensemble is the result.
    """
    config = replace(config, members=members)
    rest = np.flatnonzero(~eps.labelled)
    n_add = -(-len(rest) // rounds) if rounds else 0
    growing = eps
    done = [Round(fit(growing, config, seed), np.array([], np.int64), 0.0)]
    for r in range(rounds if len(rest) else 0):
        if report:
            report(r, done[-1])
        out = predict(done[-1].idm, eps, rest)
        doubt = (out.std**2).sum(1)
        order = np.argsort(doubt, kind="stable")
        chosen, kept = order[:n_add], np.sort(order[n_add:])
        act = growing.act.copy()
        act[rest[chosen]] = unscale(np.clip(out.mean[chosen], -1, 1), eps.meta)
        growing = growing.with_actions(act)
        fitted = fit(growing, config, seed + r + 1)
        threshold = float(doubt[chosen].max()) if len(chosen) else 0.0
        done.append(Round(fitted, np.sort(rest[chosen]), threshold))
        rest = rest[kept]
    if report:
        report(len(done) - 1, done[-1])
    return done
