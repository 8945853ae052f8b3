"""What is known of a set of labels, as plain values for JSON; errors and deviations are of actions in [-1, 1]."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from ssorl.data.episodes import Episodes, Meta, scale, unscale
from ssorl.idm.calibrate import LEVELS, factors, inside
from ssorl.idm.label import Labeller, Labels, predict, proxies_in, worst_share
from ssorl.idm.selftrain import Round

BINS, WORST = 12, 10  # groups of trajectories by return, and how many of the worst are named
NOUGHT = 1e-4  # a squared error that is none to speak of, half a percent of the range: of actions that hardly vary
RANKED = 2_000_000  # proxies that are sorted at most: 5 % of them, and their ranks, are as good as of all


def report(eps: Episodes, labels: Labels, ready: Labeller, truth: np.ndarray | None = None) -> dict:
    """Numbers about the proxies in `labels`; `truth` [S, A] is NaN where nothing is known and never met the model."""
    tally = Tally(ready, int(labels.proxy.sum()))
    tally.add(eps, labels, truth)
    return tally.report(eps.meta)


class Tally:
    """The numbers of a report, gathered some trajectories at a time."""

    def __init__(self, ready: Labeller, n_proxies: int) -> None:
        """`n_proxies` will come in all; past `RANKED` only every k-th is kept for what needs them sorted."""
        self.ready = ready
        self.every = max(1, -(-n_proxies // RANKED))
        n_act = len(ready.meta.act_low)
        self.moving = ready.taught.moving
        self.steps = self.labelled = self.proxies = self.trajectories = self.unseen = 0
        self.spread = np.zeros(n_act)  # sum of squared deviations
        self.known = True  # whether the truth is, of every proxy so far
        self.error = np.zeros((2, n_act))  # sum of squared errors, at steps that are seen and that are not
        self.inside = np.zeros(len(LEVELS), np.int64)
        self.sizes: list[np.ndarray] = []  # squared errors to be ranked, mean over the dimensions
        self.doubts: list[np.ndarray] = []  # and variances
        self.episodes: list[dict[str, np.ndarray]] = []

    def add(self, eps: Episodes, labels: Labels, truth: np.ndarray | None = None) -> None:
        """Count these trajectories, which follow those before."""
        steps = np.flatnonzero(labels.proxy)
        half = (self.ready.meta.high - self.ready.meta.low) / 2
        std, unseen = labels.std[steps] / np.where(half > 0, half, 1), labels.unseen[steps]
        error = None
        if truth is None:
            self.known = False
        else:
            error = scale(labels.act[steps], self.ready.meta) - scale(truth[steps], self.ready.meta)
            if not np.isfinite(error).all():  # known in part: nothing about the whole can be said
                self.known, error = False, None
        self.episodes.append(_by_episode(eps, unseen, steps, std, error, self.trajectories))
        if error is not None:
            self.error += [_squares(error[~unseen]), _squares(error[unseen])]
            self.inside += inside(error[:, self.moving], std[:, self.moving])
            some = slice(-self.proxies % self.every, None, self.every)
            self.sizes.append((error[some] ** 2).mean(1))
            self.doubts.append((std[some] ** 2).mean(1))
        self.spread += _squares(std)
        self.unseen += int(unseen.sum())
        self.proxies += len(steps)
        self.steps += eps.n_steps
        self.labelled += eps.n_steps - len(steps)
        self.trajectories += eps.n_episodes

    def report(self, meta: Meta) -> dict:
        """All of it."""
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
                "proxies_before": proxies_in(meta),  # what was said of the actions that were there
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
        size, doubt = np.concatenate(self.sizes), np.concatenate(self.doubts)
        ranked = len(size) > 2 and np.ptp(size) > 0 and np.ptp(doubt) > 0
        n_seen, by_dimension = self.proxies - self.unseen, self.error.sum(0) / self.proxies
        return {
            "mse": float(by_dimension.mean()),
            "mse_by_dimension": by_dimension.tolist(),
            "worst_5_percent_share": worst_share(size[:, None] ** 0.5),
            "rank_correlation": float(np.corrcoef(_ranks(doubt), _ranks(size))[0, 1])
            if ranked
            else None,  # of deviation with error
            "mse_seen": float(self.error[0].mean() / n_seen) if n_seen else None,
            "mse_unseen": float(self.error[1].mean() / self.unseen) if self.unseen else None,
        }


def summary(told: dict) -> list[str]:
    """The report in a few sentences."""
    data, valid, cover, proxies, truth = (told[k] for k in ("data", "validation", "coverage", "proxies", "truth"))
    some = f"{data['proxy_steps']:,} proxy actions in {_counted(data['trajectories_with_proxies'])}"
    before = data.get("proxies_before", [])  # reports of before have no such key
    doubt = f", which may be proxies themselves ({'; '.join(before)})" if before else ""
    lines = [f"{some}; {data['labelled_steps']:,} {'' if before else 'true '}actions as they were{doubt}"]
    guess = float(np.mean(told["model"]["labelled_variance"]))
    if valid:
        how = f"{valid['steps']:,} held-out steps of {_counted(valid['trajectories'])}"
        off = percent(valid["mse"])
        lines.append(f"off by {off} of the action range on {how} (RMS; a constant guess: {percent(guess)})")
    if valid and valid["mse"] >= max(guess, NOUGHT):
        lines.append(
            "warning: on held-out steps no better than a constant guess, so do not trust these labels; try more "
            "labelled trajectories, a declared action range or more updates"
        )
    if truth:
        against = "held against actions that may be proxies too" if before else "whose truth is known"
        lines.append(
            f"off by {percent(truth['mse'])} on the proxies themselves, {against}; the worst 5% of the "
            f"steps carry {truth['worst_5_percent_share']:.0%} of the squared error"
        )
    elif valid:
        lines.append(f"expected to be off by {proxies['std'] / 2:.1%} on the proxies")
    if cover:
        inside = " / ".join(f"{x:.0%}" for x in cover["after"])
        asked = " / ".join(f"{x:.0%}" for x in cover["levels"])
        by = f" once scaled by {by}" if (by := factors(cover["scale"])) else ""
        lines.append(f"{inside} of the held-out actions lie in the {asked} intervals{by}")
    if told.get("advice"):
        lines.append(told["advice"])
    model = told["model"]
    if lag := (model.get("window") or {}).get("lag"):
        when = "after it is recorded" if lag < 0 else "before it is recorded"
        lines.append(f"an action takes effect {abs(lag)} step{'s' if abs(lag) > 1 else ''} {when} (lag {lag})")
    lines += [f"warning: {text}" for text in told.get("warnings", ())]
    if proxies["unseen_share"]:
        lines.append(f"{proxies['unseen_share']:.1%} of the proxies are for states or moves unlike any labelled one")
    return lines


def _counted(n: int) -> str:
    return f"{n:,} trajector{'y' if n == 1 else 'ies'}"


def percent(mse: float) -> str:
    """A mean squared error of actions in [-1, 1] as a share of their range."""
    return f"{np.sqrt(mse) / 2:.1%}"


def report_rounds(rounds: list[Round], eps: Episodes, truth: np.ndarray | None = None) -> list[dict]:
    """Self-training round by round, member by member; with the truth also the error on all that was unlabelled."""
    out = []
    missing = np.flatnonzero(~eps.labelled)
    for number, done in enumerate(rounds):
        told = {
            "round": number,
            "added_steps": len(done.added),
            "threshold": done.threshold,
            "best_update": done.idm.facts().get("best_update", []),
            "validation_error": done.idm.validation_errors(),
        }
        if truth is not None:
            proxy = unscale(np.clip(predict(done.idm, eps, missing).mean, -1, 1), eps.meta)
            told["mse"] = _mean(scale(proxy, eps.meta) - scale(truth[missing], eps.meta))
        out.append(told)
    return out


def _validation(ready: Labeller) -> dict | None:
    if ready.validation is None:
        return None
    found = ready.validation
    return {
        "trajectories": found.trajectories,
        "steps": found.steps,
        "mse": float(found.mse.mean()),
        "mse_by_dimension": found.mse.tolist(),
        "worst_5_percent_share": found.worst,
    }


def _coverage(ready: Labeller, truth: list[float] | None) -> dict | None:
    if ready.calibration is None:
        return None
    told = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(ready.calibration).items()}
    return {**told, "truth": truth}


def _ranks(values: np.ndarray) -> np.ndarray:
    out = np.empty(len(values), np.int64)
    out[np.argsort(values, kind="stable")] = np.arange(len(values))
    return out


def _by_episode(
    eps: Episodes, unseen: np.ndarray, steps: np.ndarray, std: np.ndarray, error: np.ndarray | None, first: int
) -> dict[str, np.ndarray]:
    """Per trajectory that has proxies: its number, return, count, and mean squares over the proxies in it."""
    episode = np.searchsorted(eps.start, steps, side="right") - 1
    count = np.bincount(episode, minlength=eps.n_episodes)
    has = np.flatnonzero(count)

    def mean(values: np.ndarray) -> np.ndarray:
        return np.bincount(episode, values, eps.n_episodes)[has] / count[has]

    found = {
        "trajectory": first + has,
        "return": eps.returns[has],
        "proxy_steps": count[has],
        "variance": mean((std**2).mean(1)),
        "unseen_share": mean(unseen.astype(np.float64)),
    }
    return found if error is None else {**found, "mse": mean((error**2).mean(1))}


def _by_return(found: dict) -> list[dict]:
    """Equally many trajectories a group, from the lowest returns to the highest; without those that have no rewards."""
    order = np.argsort(found["return"], kind="stable")[: np.isfinite(found["return"]).sum()]  # NaN comes last
    groups = [g for g in np.array_split(order, min(BINS, len(order))) if len(g)] if len(order) else []
    return [
        {
            "trajectories": len(g),
            "return": float(found["return"][g].mean()),
            "std": float(np.sqrt(np.average(found["variance"][g], weights=found["proxy_steps"][g]))),
            "rmse": None
            if "mse" not in found
            else float(np.sqrt(np.average(found["mse"][g], weights=found["proxy_steps"][g]))),
            "unseen_share": float(np.average(found["unseen_share"][g], weights=found["proxy_steps"][g])),
        }
        for g in groups
    ]


def _worst(found: dict) -> list[dict]:
    """The trajectories with the largest error where it is known, else with the largest deviation."""
    by = found["variance"] if "mse" not in found else found["mse"]
    return [
        {
            "trajectory": int(found["trajectory"][i]),
            "return": None if np.isnan(found["return"][i]) else float(found["return"][i]),
            "proxy_steps": int(found["proxy_steps"][i]),
            "std": float(np.sqrt(found["variance"][i])),
            "rmse": None if "mse" not in found else float(np.sqrt(found["mse"][i])),
            "unseen_share": float(found["unseen_share"][i]),
        }
        for i in np.argsort(-by, kind="stable")[:WORST]
    ]


def _mean(error: np.ndarray) -> float:
    return float(np.mean(np.square(error, dtype=np.float64)))


def _squares(values: np.ndarray) -> np.ndarray:
    """The sum of squares of each column."""
    return np.square(values, dtype=np.float64).sum(0)
