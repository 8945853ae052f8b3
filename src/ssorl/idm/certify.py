"""Labelled data with labels from a known simulator: learnt labels are replaced where an inverted action is verified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ssorl.data.episodes import Episodes, scale
from ssorl.envs.models import KnownModel
from ssorl.idm.fill import LabelledData
from ssorl.idm.invert import Inverted, invert
from ssorl.idm.label import Labels, filled
from ssorl.idm.quality import report


def certify(
    labelled: LabelledData,
    data: Episodes,
    simulator: KnownModel,
    known: Episodes | None = None,
    truth: np.ndarray | None = None,
    progress: Callable[[int], None] | None = None,
) -> LabelledData:
    """Return the labelled data with verified actions, and `residual` and `verified` among its further arrays.

    Args:
        labelled: the result of `fill`.
        data: the trajectories before they were filled.
        simulator: the dynamics.
        known: trajectories with known actions, if they are not among `data`.
        truth: true actions [S, A], used for the report only.
        progress: called with the number of steps done since the last call.

    Raises:
        DataError: the simulator has other sizes than the data.
    """
    found = invert(data, labelled.labels.act, simulator, known, progress=progress)
    sure, old = found.verified, labelled.labels
    labels = Labels(found.act, np.where(sure[:, None], found.std, old.std), old.proxy, old.unseen & ~sure)
    about = labelled.report | report(data, labels, labelled.ready, truth)
    about["simulator"] = found.facts | {"verified_mse": _mse(found, data, truth)}
    return replace(
        labelled,
        eps=filled(data, labels, labelled.ready),
        labels=labels,
        report=about,
        more={"residual": found.residual, "verified": found.verified},
    )


def _mse(found: Inverted, data: Episodes, truth: np.ndarray | None) -> float | None:
    """Return the squared error of the verified labels, of actions in [-1, 1]; None if the truth is not known."""
    if truth is None or not found.verified.any():
        return None
    error = scale(found.act[found.verified], data.meta) - scale(truth[found.verified], data.meta)
    mse = float(np.mean(np.square(error, dtype=np.float64)))
    return mse if np.isfinite(mse) else None


def sentences(facts: dict[str, Any]) -> list[str]:
    """Return the result of an inversion in sentences.

    Args:
        facts: the entry `simulator` of a report.
    """
    share = f"{facts['verified_steps']:,} of {facts['steps']:,} proxy actions ({facts['verified_share']:.1%})"
    line = f"{share} are verified: {facts['simulator']} reproduces the next observation with them"
    if facts["replayed_share"] is not None:
        line += f"; it reproduces {facts['replayed_share']:.1%} of {facts['replayed_steps']:,} known steps"
    if facts["verified_mse"] is not None:
        line += f"; their mean squared error is {facts['verified_mse']:.2g}"
    return [line, *facts["notes"]]
