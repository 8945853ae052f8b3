"""Use proxy actions according to their worth: drop or weigh those that are probably wrong, or draw them at random."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ssorl.idm.fill import LabelledData
from ssorl.idm.label import PROXIES, Labeller, Labels
from ssorl.idm.outlook import DOUBTFUL, POOR, Doubtful
from ssorl.idm.stream import StreamLabelling
from ssorl.utils.errors import SsorlError, nearest
from ssorl.utils.identity import since
from ssorl.utils.validation import number


@dataclass(frozen=True)
class LabelUse:
    """How the training of SS uses proxy actions. By default it uses them as if they were true actions.

    Raises:
        SsorlError: a value is invalid.
    """

    # What to do with the proxy actions of trajectories whose forecast error is too large to help.
    when_doubtful: Doubtful = since("0.2", "keep")
    label_weights: bool = since("0.2", False)  # weigh each proxy action by its predicted variance
    true_share: float | None = since("0.2", None)  # share of true actions in the batches; None: that of the data
    label_samples: bool = since("0.2", False)  # draw proxy actions from their distribution, in place of its mean

    def __post_init__(self) -> None:
        if self.when_doubtful not in DOUBTFUL:
            raise SsorlError(f"--when-doubtful is {self.when_doubtful!r}; {nearest(self.when_doubtful, DOUBTFUL)}")
        if self.true_share is not None and not (number(self.true_share) and 0 < self.true_share < 1):
            raise SsorlError(f"--true-share is {self.true_share!r}; give a share above 0 and below 1")

    @property
    def given(self) -> dict[str, Any]:
        """Return the command-line options that differ from the defaults, the others as None."""
        return {
            "--when-doubtful": None if self.when_doubtful == "keep" else self.when_doubtful,
            "--label-weights": self.label_weights or None,
            "--true-share": self.true_share,
            "--label-samples": self.label_samples or None,
        }

    @property
    def weighs(self) -> bool:
        """Whether steps have different weights."""
        return self.when_doubtful == "weight" or self.label_weights or self.true_share is not None


def makes_forecast(model: Any) -> bool:
    """Return whether a model forecasts the error of its labels.

    Args:
        model: a configuration, a fitted model that is ready to label, or None.
    """
    config = model.idm.config if isinstance(model, Labeller) else model
    return bool(getattr(config, "forecast", False))


def check_drop(when_doubtful: str, model: Any, name: str = "this model") -> None:
    """Raise SsorlError unless labelling can treat doubtful trajectories in this way.

    Args:
        when_doubtful: the choice; "weight" needs a training.
        model: a configuration or a fitted model.
        name: the model's name in messages.
    """
    if when_doubtful not in ("keep", "drop"):
        known = "acts on a training, so `ssorl run` has it" if when_doubtful == "weight" else "does not exist"
        raise SsorlError(f"--when-doubtful {when_doubtful} {known}; choose keep or drop")
    if when_doubtful == "drop" and not makes_forecast(model):
        raise SsorlError(no_forecast(when_doubtful, name))


def no_forecast(when_doubtful: str, name: str) -> str:
    """Return the message for a model that makes no forecast."""
    return (
        f"--when-doubtful {when_doubtful} needs a forecast of the label error, which {name} does not make; choose "
        "--idm blend, or leave it out"
    )


# Trajectories whose labels will probably hurt ----------------------------------------------------------------


def forecast_errors(labelled: LabelledData) -> np.ndarray | None:
    """Return the forecast label error (MSE) of each trajectory [E], NaN if it has no proxy action.

    Returns:
        None if no forecast was made: the model makes none, or fewer than four trajectories are labelled.
    """
    found = labelled.report.get("forecast")  # the report is stored with the labels, so a resumed run has it, too
    each = None if found is None else np.array(found["by_trajectory"], np.float64)
    return each if each is not None and len(each) == len(labelled.eps) else None


def doubtful_trajectories(labelled: LabelledData) -> np.ndarray:
    """Return which trajectories [E] have proxy actions whose forecast error is too large to help."""
    errors = forecast_errors(labelled)
    return np.zeros(len(labelled.eps), bool) if errors is None else np.nan_to_num(errors, nan=0.0) > POOR


def doubtful_steps(labelled: LabelledData) -> np.ndarray:
    """Return which steps [S] have a proxy action of a doubtful trajectory that no simulator has verified."""
    sure = labelled.more.get("verified", np.zeros(labelled.eps.n_steps, bool))
    return labelled.labels.proxy & ~sure & doubtful_trajectories(labelled)[labelled.eps.episode_of_step]


def drop_doubtful(labelled: LabelledData) -> LabelledData:
    """Return the data without the proxy actions of doubtful trajectories, which become missing (NaN) again.

    Args:
        labelled: the labelled data; its report, which describes all proxy actions, is kept.
    """
    steps = doubtful_steps(labelled)
    if not steps.any():
        return labelled
    eps, labels = labelled.eps, labelled.labels
    left = labels.proxy & ~steps
    before, after = (f"{proxy.sum()} of {eps.n_steps} {PROXIES}" for proxy in (labels.proxy, left))
    notes = tuple(after if note == before else note for note in eps.meta.notes)
    missing = steps[:, None]
    return replace(
        labelled,
        eps=replace(eps, act=np.where(missing, np.nan, eps.act), meta=replace(eps.meta, notes=notes)),
        labels=Labels(
            np.where(missing, np.nan, labels.act), np.where(missing, 0, labels.std), left, labels.unseen & ~steps
        ),
    )


def doubtful_report(labelled: LabelledData, action: Doubtful) -> dict[str, Any] | None:
    """Return the JSON entry that says how doubtful trajectories are used.

    Args:
        labelled: the labelled data, before anything is dropped.
        action: how they are used.

    Returns:
        `action`, and the numbers of `trajectories` and `proxy_actions`, None without a forecast; or None if there is no
        forecast and the user asked for none.
    """
    if forecast_errors(labelled) is None:
        return None if action == "keep" else {"action": action, "trajectories": None, "proxy_actions": None}
    trajectories = int(doubtful_trajectories(labelled).sum())
    return {"action": action, "trajectories": trajectories, "proxy_actions": int(doubtful_steps(labelled).sum())}


def treat_doubtful(labelled: LabelledData | StreamLabelling, when_doubtful: Doubtful) -> LabelledData | StreamLabelling:
    """Return the data without doubtful proxy actions if the user asked for that, and say so in its report.

    Args:
        labelled: the labelled data; a stream is returned unchanged.
        when_doubtful: "keep" or "drop".
    """
    if when_doubtful == "keep" or not isinstance(labelled, LabelledData):
        return labelled
    report = labelled.report | {"doubtful": doubtful_report(labelled, when_doubtful)}
    return replace(drop_doubtful(labelled), report=report)


# Weights and samples ------------------------------------------------------------------------------------------


def variances(labelled: LabelledData) -> np.ndarray:
    """Return the predicted variance of each step's action [S], actions in [-1, 1], mean over the dimensions."""
    half_range = (labelled.eps.meta.high - labelled.eps.meta.low) / 2
    return ((labelled.labels.std / np.where(half_range > 0, half_range, 1)) ** 2).mean(1)


def step_weights(labelled: LabelledData, use: LabelUse) -> np.ndarray:
    """Return the weight of each step [S] in training; true actions have weight 1 unless `true_share` is given.

    With c = 0.05, the error above which labels do not help: `label_weights` gives a proxy action of predicted variance
    v the weight c / (c + v), and `when_doubtful="weight"` multiplies the weights of a trajectory of forecast error
    e > c by c / e. `true_share` then scales the weights of true and of proxy actions to sums of F and 1 - F.

    Args:
        labelled: the labelled data.
        use: how to use it.
    """
    proxy, missing = labelled.labels.proxy, ~labelled.eps.labelled
    weights = np.ones(labelled.eps.n_steps)
    if use.label_weights:
        weights[proxy] *= (POOR / (POOR + variances(labelled)))[proxy]
    errors = forecast_errors(labelled)
    if use.when_doubtful == "weight" and errors is not None:
        each = POOR / np.maximum(np.nan_to_num(errors, nan=0.0), POOR)
        weights[proxy] *= each[labelled.eps.episode_of_step][proxy]
    weights[missing] = 0
    if use.true_share is not None:
        for group, share in ((~proxy, use.true_share), (proxy, 1 - use.true_share)):
            total = weights[group].sum()
            weights[group] *= share / total if total > 0 else 0
    return weights


def draw_actions(labelled: LabelledData, seed: int) -> LabelledData:
    """Return the data with each proxy action drawn from a normal distribution with its mean and predicted std.

    Args:
        labelled: the labelled data.
        seed: seed of the draws; each action is drawn once, and clipped to the action range.
    """
    eps, proxy = labelled.eps, labelled.labels.proxy
    noise = np.random.default_rng([seed, 0x1ABE1]).standard_normal(eps.act.shape, np.float32)
    drawn = np.clip(eps.act + noise * labelled.labels.std, eps.meta.low, eps.meta.high).astype(eps.act.dtype)
    return replace(labelled, eps=eps.with_actions(np.where(proxy[:, None], drawn, eps.act)))
