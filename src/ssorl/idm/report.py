"""What is known of a set of labels, as plain values for JSON; errors and deviations are of actions in [-1, 1]."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from ssorl.data.episodes import Episodes, scale, unscale
from ssorl.idm.calibrate import coverage
from ssorl.idm.label import Labeller, Labels, predict, worst_share
from ssorl.idm.selftrain import Round

BINS, WORST = 12, 10  # groups of trajectories by return, and how many of the worst are named


def report(eps: Episodes, labels: Labels, ready: Labeller, truth: np.ndarray | None = None) -> dict:
    """Numbers about the proxies in `labels`; `truth` [S, A] is NaN where nothing is known and never met the model."""
    steps = np.flatnonzero(labels.proxy)
    half = (ready.meta.high - ready.meta.low) / 2
    std = labels.std[steps] / np.where(half > 0, half, 1)
    error = None
    if truth is not None:
        error = scale(labels.act[steps], ready.meta) - scale(truth[steps], ready.meta)
        if not np.isfinite(error).all():  # known in part: nothing about the whole can be said
            error = None
    by_episode = _by_episode(eps, labels, steps, std, error)
    return {
        "data": _data(eps, labels),
        "model": {
            "fitted_to": ready.meta.source,
            "labelled_trajectories": ready.taught.trajectories,
            "labelled_steps": ready.taught.steps,
            "labelled_returns": [ready.taught.lowest, ready.taught.highest],
            "labelled_variance": list(ready.taught.variance),
            "members": ready.idm.config.members,
            "updates": ready.idm.config.steps,
            "best_update": ready.idm.best_step.tolist(),
        },
        "validation": _validation(ready),
        "coverage": _coverage(ready, error, std),
        "proxies": {
            "std": _rms(std),
            "std_by_dimension": [_rms(std[:, i]) for i in range(std.shape[1])],
            "unseen_share": float(labels.unseen[steps].mean()) if len(steps) else 0.0,
        },
        "truth": None if error is None or not len(steps) else _truth(error, std, labels.unseen[steps]),
        "by_return": _by_return(by_episode),
        "worst": _worst(by_episode),
    }


def summary(told: dict) -> list[str]:
    """The report in a few sentences."""
    data, valid, cover, proxies, truth = (told[k] for k in ("data", "validation", "coverage", "proxies", "truth"))
    some = f"{data['proxy_steps']:,} proxy actions in {_counted(data['trajectories_with_proxies'])}"
    lines = [f"{some}; {data['labelled_steps']:,} true actions as they were"]
    guess = percent(float(np.mean(told["model"]["labelled_variance"])))
    if valid:
        how = f"{valid['steps']:,} held-out steps of {_counted(valid['trajectories'])}"
        lines.append(f"off by {percent(valid['mse'])} of the action range on {how} (RMS; a constant guess: {guess})")
    if truth:
        lines.append(
            f"off by {percent(truth['mse'])} on the proxies themselves, whose truth is known; the worst 5% of the "
            f"steps carry {truth['worst_5_percent_share']:.0%} of the squared error"
        )
    elif valid:
        lines.append(f"expected to be off by {proxies['std'] / 2:.1%} on the proxies")
    if cover:
        inside = " / ".join(f"{x:.0%}" for x in cover["after"])
        asked = " / ".join(f"{x:.0%}" for x in cover["levels"])
        by = "" if cover["scale"] == 1 else f" once scaled by {cover['scale']:.2f}"
        lines.append(f"{inside} of the held-out actions lie in the {asked} intervals{by}")
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
            "best_update": done.idm.best_step.tolist(),
            "validation_error": done.idm.curve.min(1).tolist(),
        }
        if truth is not None:
            proxy = unscale(np.clip(predict(done.idm, eps, missing).mean, -1, 1), eps.meta)
            told["mse"] = _mean(scale(proxy, eps.meta) - scale(truth[missing], eps.meta))
        out.append(told)
    return out


def _data(eps: Episodes, labels: Labels) -> dict:
    has = np.add.reduceat(~labels.proxy, eps.start[:-1], dtype=np.int64)
    return {
        "source": eps.meta.source,
        "env": eps.meta.env,
        "trajectories": eps.n_episodes,
        "steps": eps.n_steps,
        "labelled_steps": int(has.sum()),
        "proxy_steps": int(labels.proxy.sum()),
        "trajectories_with_proxies": int((has < eps.lengths).sum()),
    }


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


def _coverage(ready: Labeller, error: np.ndarray | None, std: np.ndarray) -> dict | None:
    if ready.calibration is None:
        return None
    told = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(ready.calibration).items()}
    return {**told, "truth": None if error is None or not len(std) else list(coverage(error, std))}


def _truth(error: np.ndarray, std: np.ndarray, unseen: np.ndarray) -> dict:
    size = (error**2).mean(1)
    doubt = (std**2).mean(1)
    ranked = len(size) > 2 and np.ptp(size) > 0 and np.ptp(doubt) > 0
    return {
        "mse": _mean(error),
        "mse_by_dimension": [_mean(error[:, i]) for i in range(error.shape[1])],
        "worst_5_percent_share": worst_share(error),
        "rank_correlation": float(np.corrcoef(_ranks(doubt), _ranks(size))[0, 1])
        if ranked
        else None,  # of deviation with error
        "mse_seen": _mean(error[~unseen]) if (~unseen).any() else None,
        "mse_unseen": _mean(error[unseen]) if unseen.any() else None,
    }


def _ranks(values: np.ndarray) -> np.ndarray:
    out = np.empty(len(values), np.int64)
    out[np.argsort(values, kind="stable")] = np.arange(len(values))
    return out


def _by_episode(eps: Episodes, labels: Labels, steps: np.ndarray, std: np.ndarray, error: np.ndarray | None) -> dict:
    """Per trajectory that has proxies: its number, return, count, and mean squares over the proxies in it."""
    episode = np.searchsorted(eps.start, steps, side="right") - 1
    count = np.bincount(episode, minlength=eps.n_episodes)
    has = np.flatnonzero(count)

    def mean(values: np.ndarray) -> np.ndarray:
        return np.bincount(episode, values, eps.n_episodes)[has] / count[has]

    return {
        "trajectory": has,
        "return": eps.returns[has],
        "proxy_steps": count[has],
        "variance": mean((std**2).mean(1)),
        "mse": None if error is None else mean((error**2).mean(1)),
        "unseen_share": mean(labels.unseen[steps].astype(np.float64)),
    }


def _by_return(found: dict) -> list[dict]:
    """Equally many trajectories a group, from the lowest returns to the highest."""
    order = np.argsort(found["return"], kind="stable")
    groups = [g for g in np.array_split(order, min(BINS, len(order))) if len(g)] if len(order) else []
    return [
        {
            "trajectories": len(g),
            "return": float(found["return"][g].mean()),
            "std": float(np.sqrt(np.average(found["variance"][g], weights=found["proxy_steps"][g]))),
            "rmse": None
            if found["mse"] is None
            else float(np.sqrt(np.average(found["mse"][g], weights=found["proxy_steps"][g]))),
            "unseen_share": float(np.average(found["unseen_share"][g], weights=found["proxy_steps"][g])),
        }
        for g in groups
    ]


def _worst(found: dict) -> list[dict]:
    """The trajectories with the largest error where it is known, else with the largest deviation."""
    by = found["variance"] if found["mse"] is None else found["mse"]
    return [
        {
            "trajectory": int(found["trajectory"][i]),
            "return": float(found["return"][i]),
            "proxy_steps": int(found["proxy_steps"][i]),
            "std": float(np.sqrt(found["variance"][i])),
            "rmse": None if found["mse"] is None else float(np.sqrt(found["mse"][i])),
            "unseen_share": float(found["unseen_share"][i]),
        }
        for i in np.argsort(-by, kind="stable")[:WORST]
    ]


def _mean(error: np.ndarray) -> float:
    return float(np.mean(np.square(error, dtype=np.float64)))


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(_mean(values))) if len(values) else 0.0
