"""What to expect of a set of labels before anything is trained on them: a forecast of their error, and what follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.idm.forecast import Checked, Forecast, forecast
from ssorl.idm.label import Labeller, Labels

GOOD, POOR = (
    0.02,
    0.05,
)  # mean squared errors of labels below which SS came close to the oracle, and above which it lost
DOUBTFUL = ("keep", "weight", "drop")
Doubtful = Literal["keep", "weight", "drop"]
Outlook = Literal["help", "open", "hurt"]


def predict_error(
    eps: Episodes, ready: Labeller, seed: int = 0, progress: Callable[[int], None] | None = None
) -> Forecast | None:
    """Forecast the error of a model's labels on the unlabelled steps of the trajectories that it was fitted to.

    Args:
        eps: the trajectories that taught the model, and those that it labels.
        ready: the fitted model.
        seed: of the holdouts.
        progress: called after each fit of a fast model, with 1.

    Returns:
        The forecast; None if there are too few labelled trajectories for one.
    """
    checked = None
    own = ready.meta.source == eps.meta.source and ready.taught.steps == int(eps.labelled.sum())
    if ready.validation is not None and own:
        checked = Checked(np.asarray(ready.idm.validation), float(ready.validation.mse.mean()))
    return forecast(eps, seed, checked, progress)


def outlook(mse: float) -> Outlook:
    """Return what labels of this error are worth: from docs/choosing-idm.md, "how good must labels be"."""
    return "help" if mse < GOOD else "open" if mse < POOR else "hurt"


def advice(found: Forecast) -> str:
    """Return one sentence on whether the unlabelled data should be used."""
    said = {
        "help": "the unlabelled data should help",
        "open": "the unlabelled data may or may not help",
        "hurt": "the unlabelled data will probably hurt",
    }[outlook(found.mse)]
    return f"forecast label error (MSE) {found.mse:.3g} [{found.low:.2g}, {found.high:.2g}]: {said}"


def warnings(found: Forecast | None) -> list[str]:
    """Return the warnings that follow from a forecast."""
    if found is None or outlook(found.mse) != "hurt":
        return []
    return [
        f"the forecast label error (MSE) is {found.mse:.3g}; above {POOR:g}, SS was no better than the labelled "
        "trajectories alone; get actions for a few more trajectories, or use --when-doubtful drop"
    ]


def doubtful(found: Forecast, labels: Labels, eps: Episodes) -> np.ndarray:
    """Mark the proxy actions [S] bool of trajectories whose forecast error is too large to help."""
    each = found.by_trajectory
    return labels.proxy & (np.nan_to_num(each, nan=0.0) > POOR)[eps.episode_of_step]


def as_json(found: Forecast | None) -> dict[str, Any]:
    """Return the entries of a label report that come from a forecast."""
    if found is None:
        return {"forecast": None, "advice": None, "warnings": []}
    return {
        "forecast": {**found.as_json(), "outlook": outlook(found.mse)},
        "advice": advice(found),
        "warnings": warnings(found),
    }
