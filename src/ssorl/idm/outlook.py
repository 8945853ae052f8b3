"""Advise whether labels are good enough to train on, from the forecast of their error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from ssorl.data.compare import compare_parts
from ssorl.data.episodes import Episodes
from ssorl.idm.forecast import Checked, Forecast, forecast
from ssorl.idm.label import Labeller
from ssorl.idm.yardsticks import worse_than, yardsticks

GOOD = 0.02  # mean squared label error below which SS came close to the oracle
POOR = 0.05  # mean squared label error above which SS was worse than the baseline
DOUBTFUL = ("keep", "weight", "drop")
Doubtful = Literal["keep", "weight", "drop"]
Outlook = Literal["help", "open", "hurt"]


def predict_error(
    eps: Episodes,
    ready: Labeller,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    data: Episodes | None = None,
) -> Forecast | None:
    """Forecast the error of a model's labels on the unlabelled steps of the trajectories that it was fitted to.

    Args:
        eps: trajectories, the labelled ones to fit fast models to and the unlabelled ones to forecast.
        ready: the fitted model.
        seed: seed of the holdouts.
        progress: called after each fit of a fast model, with 1.
        data: the trajectories that it labels, if they are the last ones of `eps`; None: all of `eps`.

    Returns:
        The forecast, by trajectory of `data`; None if there are too few labelled trajectories for one, or if `eps`
        does not end with `data`.
    """
    if data is not None and data is not eps and not _ends_with(eps, data):
        return None
    checked = None
    own = ready.meta.source == eps.meta.source and ready.taught.steps == int(eps.labelled.sum())
    if ready.validation is not None and own:
        checked = Checked(np.asarray(ready.idm.validation), float(ready.validation.mse.mean()))
    found = forecast(eps, seed, checked, progress)
    if found is None or data is None or data is eps:
        return found
    return found._replace(by_trajectory=found.by_trajectory[len(eps) - len(data) :])


def _ends_with(eps: Episodes, data: Episodes) -> bool:
    """Return whether `data` are the last trajectories of `eps`."""
    return (
        len(data) <= len(eps)
        and np.array_equal(eps.lengths[len(eps) - len(data) :], data.lengths)
        and np.array_equal(eps.obs[len(eps.obs) - len(data.obs) :], data.obs)
    )


def outlook(mse: float) -> Outlook:
    """Return whether labels of this error help: see docs/choosing-idm.md, "how good must labels be"."""
    return "help" if mse < GOOD else "open" if mse < POOR else "hurt"


def advice(expected: Forecast) -> str:
    """Return one sentence on whether the unlabelled data should be used."""
    return advise(expected.mse, expected.low, expected.high)


def advise(mse: float, low: float, high: float) -> str:
    """Return `advice` of a forecast with these numbers."""
    verdict = {
        "help": "the unlabelled data should help",
        "open": "the unlabelled data may or may not help",
        "hurt": "the unlabelled data will probably hurt",
    }[outlook(mse)]
    return f"forecast label error (MSE): {mse:.3g} [{low:.2g}, {high:.2g}]; {verdict}"


def warnings(expected: Forecast | None) -> list[str]:
    """Return the warnings for a label report with this forecast."""
    if expected is None or outlook(expected.mse) != "hurt":
        return []
    return [
        f"the forecast label error (MSE) is {expected.mse:.3g}; above {POOR:g}, SS was no better than the labelled "
        "trajectories alone; get actions for a few more trajectories, or use --when-doubtful drop"
    ]


def doubtful_sentence(entry: dict[str, Any] | None) -> str | None:
    """Return how doubtful trajectories are used, as a sentence without a full stop.

    Args:
        entry: what `idm.worth.doubtful_report` returned.

    Returns:
        None if all proxy actions are kept, and none is doubtful or there is no forecast.
    """
    if entry is None:
        return None
    action, n = entry["action"], entry["trajectories"]
    if n is None:
        return f"there is no forecast of the label error, so --when-doubtful {action} keeps all proxy actions"
    if n == 0:
        return None if action == "keep" else f"no trajectory has a forecast label error (MSE) above {POOR:g}"
    several = "1 trajectory" if n == 1 else f"{n:,} trajectories"
    use = {"keep": "used like all others", "weight": "used with a smaller weight", "drop": "left out"}[action]
    return (
        f"the {entry['proxy_actions']:,} proxy actions of {several} with a forecast label error (MSE) above {POOR:g} "
        f"are {use}"
    )


class Assessment(NamedTuple):
    """What is known of labels before anything is trained on them."""

    forecast: Forecast | None
    yardsticks: dict[str, float]  # errors of simple rules on the steps on which the model was checked
    warnings: list[str]

    def as_json(self) -> dict[str, Any]:
        """Return the entries of a label report."""
        found = self.forecast
        result = {
            "forecast": found and {**found.as_json(), "outlook": outlook(found.mse)},
            "advice": found and advice(found),
            "warnings": self.warnings,
        }
        return result | ({"yardsticks": self.yardsticks} if self.yardsticks else {})


def assess(eps: Episodes, ready: Labeller, seed: int = 0, data: Episodes | None = None) -> Assessment:
    """Forecast the error of a model's labels, compare it with simple rules, and compare the two parts of the data.

    Args:
        eps: the trajectories that taught the model, and those that it labels.
        ready: the fitted model.
        seed: of the holdouts.
        data: the trajectories that it labels, if they are the last ones of `eps`; None: all of `eps`.

    Returns:
        The assessment; without forecast and yardsticks if the model was loaded or its family asks for none.
    """
    if not getattr(ready.idm.config, "forecast", False) or not eps.labelled.any():
        return Assessment(None, {}, eps.meta.warnings)
    found = predict_error(eps, ready, seed, data=data)
    compared: dict[str, float] = {}
    checked = ready.idm.held_out_predictions()
    if checked is not None and ready.validation is not None:
        labelled = np.flatnonzero(eps.labelled)
        rest = labelled[~np.isin(eps.episode_of_step[labelled], ready.idm.validation)]
        compared = yardsticks(eps, checked.steps, rest)
    worse = worse_than(float(ready.validation.mse.mean()), compared) if ready.validation is not None else []
    parts = [] if eps.labelled.all() else compare_parts(eps)
    said = dict.fromkeys([*eps.meta.warnings, *parts, *worse, *warnings(found)])
    return Assessment(found, compared, list(said))
