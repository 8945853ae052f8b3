"""Measure the quality of labels as JSON values; errors and standard deviations are of actions scaled to [-1, 1]."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from ssorl.data.episodes import Episodes, Meta, scale, unscale
from ssorl.idm.calibrate import LEVELS, count_inside, format_factors
from ssorl.idm.label import Labeller, Labels, predict, proxies_in, worst_share
from ssorl.idm.outlook import doubtful_sentence
from ssorl.idm.selftrain import Round

BINS, WORST = 12, 10  # groups of trajectories by return; trajectories with the largest errors that are listed
NEGLIGIBLE = (
    1e-4  # mean squared error (0.5 % of the range) below which no warning is given, for nearly constant actions
)
RANKED = 2_000_000  # proxy actions that are sorted at most; of more, every k-th is used


def report(eps: Episodes, labels: Labels, ready: Labeller, truth: np.ndarray | None = None) -> dict:
    """Return the label report of some trajectories.

    Args:
        eps: the trajectories, without the proxy actions.
        labels: their labels.
        ready: the model that made the labels.
        truth: true actions [S, A], NaN where unknown. The model never saw them.

    Returns:
        JSON values with the schema `ssorl.idm.schema.LABEL_REPORT`.
    """
    tally = Tally(ready, int(labels.proxy.sum()))
    tally.add(eps, labels, truth)
    return tally.report(eps.meta)


class Tally:
    """Collect the numbers of a label report part by part."""

    def __init__(self, ready: Labeller, n_proxies: int) -> None:
        """Start with no trajectories; `n_proxies` proxy actions will be added in total."""
        self.ready = ready
        self.every = max(1, -(-n_proxies // RANKED))
        n_act = len(ready.meta.act_low)
        self.moving = ready.taught.moving
        self.steps = self.labelled = self.proxies = self.trajectories = self.unseen = 0
        self.spread = np.zeros(n_act)  # sum of predicted variances
        self.known = True  # whether the true action of every proxy so far is known
        self.error = np.zeros((2, n_act))  # sum of squared errors, at steps inside and outside the labelled range
        self.inside = np.zeros(len(LEVELS), np.int64)
        self.sizes: list[np.ndarray] = []  # squared errors to rank, mean over the dimensions
        self.variances: list[np.ndarray] = []  # predicted variances of the same steps
        self.episodes: list[dict[str, np.ndarray]] = []

    def add(self, eps: Episodes, labels: Labels, truth: np.ndarray | None = None) -> None:
        """Add the next trajectories.

        Args:
            eps: the trajectories.
            labels: their labels.
            truth: true actions [S, A], NaN where unknown.
        """
        steps = np.flatnonzero(labels.proxy)
        half = (self.ready.meta.high - self.ready.meta.low) / 2
        std, unseen = labels.std[steps] / np.where(half > 0, half, 1), labels.unseen[steps]
        error = None
        if truth is None:
            self.known = False
        else:
            error = scale(labels.act[steps], self.ready.meta) - scale(truth[steps], self.ready.meta)
            if not np.isfinite(error).all():  # a part of the truth says nothing about all proxies
                self.known, error = False, None
        self.episodes.append(_by_episode(eps, unseen, steps, std, error, self.trajectories))
        if error is not None:
            self.error += [_squares(error[~unseen]), _squares(error[unseen])]
            self.inside += count_inside(error[:, self.moving], std[:, self.moving])
            every = slice(-self.proxies % self.every, None, self.every)
            self.sizes.append((error[every] ** 2).mean(1))
            self.variances.append((std[every] ** 2).mean(1))
        self.spread += _squares(std)
        self.unseen += int(unseen.sum())
        self.proxies += len(steps)
        self.steps += eps.n_steps
        self.labelled += eps.n_steps - len(steps)
        self.trajectories += eps.n_episodes

    def report(self, meta: Meta) -> dict:
        """Return the label report of all trajectories so far; `meta` describes the dataset."""
        ready = self.ready
        names = self.episodes[0] if self.episodes else {}
        known = self.known and self.proxies > 0
        by_episode = {k: np.concatenate([e[k] for e in self.episodes]) for k in names if k != "mse" or known}
        spread = self.spread / max(self.proxies, 1)
        return {
            "data": {
                "source": meta.source,
                "env": meta.env,
                "trajectories": self.trajectories,
                "steps": self.steps,
                "labelled_steps": self.labelled,
                "proxy_steps": self.proxies,
                "trajectories_with_proxies": len(by_episode["trajectory"]),
                "proxies_before": proxies_in(meta),  # notes on proxy actions in the input
            },
            "model": {
                "fitted_to": ready.meta.source,
                "labelled_trajectories": ready.taught.trajectories,
                "labelled_steps": ready.taught.steps,
                "labelled_returns": [ready.taught.lowest, ready.taught.highest],
                "labelled_variance": list(ready.taught.variance),
                **ready.idm.facts(),
            },
            "validation": _validation(ready),
            "coverage": _coverage(ready, (self.inside / (self.proxies * len(self.moving))).tolist() if known else None),
            "proxies": {
                "std": float(np.sqrt(spread.mean())),
                "std_by_dimension": np.sqrt(spread).tolist(),
                "unseen_share": self.unseen / max(self.proxies, 1),
            },
            "truth": self._truth() if known else None,
            "by_return": _by_return(by_episode),
            "worst": _worst(by_episode),
        }

    def _truth(self) -> dict:
        size, variance = np.concatenate(self.sizes), np.concatenate(self.variances)
        ranked = len(size) > 2 and np.ptp(size) > 0 and np.ptp(variance) > 0
        n_seen, by_dimension = self.proxies - self.unseen, self.error.sum(0) / self.proxies
        return {
            "mse": float(by_dimension.mean()),
            "mse_by_dimension": by_dimension.tolist(),
            "worst_5_percent_share": worst_share(size[:, None] ** 0.5),
            # of predicted std and error
            "rank_correlation": float(np.corrcoef(_ranks(variance), _ranks(size))[0, 1]) if ranked else None,
            "mse_seen": float(self.error[0].mean() / n_seen) if n_seen else None,
            "mse_unseen": float(self.error[1].mean() / self.unseen) if self.unseen else None,
        }


def summary(report: dict) -> list[str]:
    """Return a label report as a few sentences, one a line.

    Args:
        report: what `report` returns, or a report that was read from a file.
    """
    data, validation, coverage, truth = (report[key] for key in ("data", "validation", "coverage", "truth"))
    before = "; ".join(data.get("proxies_before", []))  # reports of version 0.1 lack this key
    known = f"{data['labelled_steps']:,} {'' if before else 'true '}actions are unchanged"
    lines = [
        f"{data['proxy_steps']:,} proxy actions in {_count_trajectories(data['trajectories_with_proxies'])}; {known}"
        + (f", but may be proxies themselves ({before})" if before else "")
    ]
    constant = float(np.mean(report["model"]["labelled_variance"]))
    if validation:
        held_out = f"{validation['steps']:,} held-out steps of {_count_trajectories(validation['trajectories'])}"
        lines.append(
            f"RMS error on {held_out}: "
            f"{_percent(validation['mse'])} of the action range (constant prediction: {_percent(constant)})"
        )
    if validation and validation["mse"] >= max(constant, NEGLIGIBLE):
        lines.append(
            "warning: on held-out steps the model is no better than a constant prediction, so do not trust these "
            "labels; try more labelled trajectories, a declared action range or more updates"
        )
    if truth:
        reference = "actions that may be proxies too" if before else "the true actions"
        lines.append(
            f"RMS error on the proxy actions, measured against {reference}: {_percent(truth['mse'])}; "
            f"the worst 5 % of the steps carry {100 * truth['worst_5_percent_share']:.0f} % of the squared error"
        )
    elif validation:
        lines.append(f"Expected RMS error on the proxy actions: {_percent(report['proxies']['std'] ** 2)}")
    if coverage:
        factors = format_factors(coverage["scale"])
        lines.append(
            f"Coverage of the {_percents(coverage['levels'])} intervals on held-out actions: "
            f"{_percents(coverage['after'])}"
            + (f" (predicted std scaled by {factors} to calibrate)" if factors else "")
        )
    if advice := report.get("advice"):
        lines.append(f"{advice[0].upper()}{advice[1:]}")
    if doubtful := doubtful_sentence(report.get("doubtful")):
        lines.append(doubtful)
    if lag := (report["model"].get("window") or {}).get("lag"):
        lines.append(
            f"An action takes effect {abs(lag)} step{'s' if abs(lag) > 1 else ''} {'after' if lag < 0 else 'before'} "
            f"it is recorded (lag {lag})"
        )
    lines += [f"warning: {text}" for text in report.get("warnings", ())]
    if unseen := report["proxies"]["unseen_share"]:
        lines.append(
            f"{100 * unseen:.1f} % of the proxy actions are at states or state changes outside the labelled range"
        )
    return lines


def _count_trajectories(n: int) -> str:
    return f"{n:,} trajector{'y' if n == 1 else 'ies'}"


def _percent(mse: float) -> str:
    """Return the root of a mean squared error of actions in [-1, 1] as a share of their range."""
    return f"{50 * np.sqrt(mse):.1f} %"


def _percents(shares: list[float]) -> str:
    return f"{' / '.join(f'{100 * x:.0f}' for x in shares)} %"


def report_rounds(rounds: list[Round], eps: Episodes, truth: np.ndarray | None = None) -> list[dict]:
    """Return the entries of a label report that describe self-training.

    Args:
        rounds: the rounds of `ssorl.idm.selftrain.self_train`.
        eps: the trajectories that the model was fitted to.
        truth: true actions [S, A], which add the error on all unlabelled steps.

    Returns:
        One table a round: steps added, threshold, and the validation error of each member.
    """
    out = []
    missing = np.flatnonzero(~eps.labelled)
    for number, done in enumerate(rounds):
        entry = {
            "round": number,
            "added_steps": len(done.added),
            "threshold": done.threshold,
            "best_update": done.idm.facts().get("best_update", []),
            "validation_error": done.idm.validation_errors(),
        }
        if truth is not None:
            proxy = unscale(np.clip(predict(done.idm, eps, missing).mean, -1, 1), eps.meta)
            entry["mse"] = _mean_square(scale(proxy, eps.meta) - scale(truth[missing], eps.meta))
        out.append(entry)
    return out


def _validation(ready: Labeller) -> dict | None:
    if ready.validation is None:
        return None
    validation = ready.validation
    return {
        "trajectories": validation.trajectories,
        "steps": validation.steps,
        "mse": float(validation.mse.mean()),
        "mse_by_dimension": validation.mse.tolist(),
        "worst_5_percent_share": validation.worst,
    }


def _coverage(ready: Labeller, truth: list[float] | None) -> dict | None:
    if ready.calibration is None:
        return None
    entries = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(ready.calibration).items()}
    return {**entries, "truth": truth}


def _ranks(values: np.ndarray) -> np.ndarray:
    out = np.empty(len(values), np.int64)
    out[np.argsort(values, kind="stable")] = np.arange(len(values))
    return out


def _by_episode(
    eps: Episodes, unseen: np.ndarray, steps: np.ndarray, std: np.ndarray, error: np.ndarray | None, first: int
) -> dict[str, np.ndarray]:
    """Return number, return, count of proxies and mean squares over them, of each trajectory that has proxies."""
    episode = np.searchsorted(eps.start, steps, side="right") - 1
    count = np.bincount(episode, minlength=eps.n_episodes)
    has = np.flatnonzero(count)

    def mean(values: np.ndarray) -> np.ndarray:
        return np.bincount(episode, values, eps.n_episodes)[has] / count[has]

    columns = {
        "trajectory": first + has,
        "return": eps.returns[has],
        "proxy_steps": count[has],
        "variance": mean((std**2).mean(1)),
        "unseen_share": mean(unseen.astype(np.float64)),
    }
    return columns if error is None else {**columns, "mse": mean((error**2).mean(1))}


def _by_return(columns: dict) -> list[dict]:
    """Return groups of equally many trajectories, by ascending return; trajectories without rewards are left out."""
    order = np.argsort(columns["return"], kind="stable")[: np.isfinite(columns["return"]).sum()]  # NaN comes last
    groups = [g for g in np.array_split(order, min(BINS, len(order))) if len(g)] if len(order) else []

    def mean(name: str, group: np.ndarray) -> float:
        return float(np.average(columns[name][group], weights=columns["proxy_steps"][group]))

    return [
        {
            "trajectories": len(g),
            "return": float(columns["return"][g].mean()),
            "std": float(np.sqrt(mean("variance", g))),
            "rmse": float(np.sqrt(mean("mse", g))) if "mse" in columns else None,
            "unseen_share": mean("unseen_share", g),
        }
        for g in groups
    ]


def _worst(columns: dict) -> list[dict]:
    """Return the trajectories with the largest error if it is known, else with the largest predicted variance."""
    size = columns["variance"] if "mse" not in columns else columns["mse"]
    return [
        {
            "trajectory": int(columns["trajectory"][i]),
            "return": None if np.isnan(columns["return"][i]) else float(columns["return"][i]),
            "proxy_steps": int(columns["proxy_steps"][i]),
            "std": float(np.sqrt(columns["variance"][i])),
            "rmse": None if "mse" not in columns else float(np.sqrt(columns["mse"][i])),
            "unseen_share": float(columns["unseen_share"][i]),
        }
        for i in np.argsort(-size, kind="stable")[:WORST]
    ]


def _mean_square(error: np.ndarray) -> float:
    return float(np.mean(np.square(error, dtype=np.float64)))


def _squares(values: np.ndarray) -> np.ndarray:
    """Return the sum of squares of each column."""
    return np.square(values, dtype=np.float64).sum(0)
