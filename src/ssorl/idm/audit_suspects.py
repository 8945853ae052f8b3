"""All checks of an action column in order: exact ones, inverse models, then frames that are missing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.data.repair import action_centre
from ssorl.idm import audit_exact as exact
from ssorl.idm.audit_exact import Suspect
from ssorl.idm.audit_frames import dropped
from ssorl.idm.audit_gauge import AMPLITUDE
from ssorl.idm.audit_judge import judge
from ssorl.idm.audit_model import Judged, Windows, windows
from ssorl.idm.audit_verdict import explained_by_clip, hypotheses, unexplained, usual_lag

EVERYWHERE = 0.9  # of the trajectories
RELATED = 0.3  # unexplained share of an action's variance below which a column of the state has to do with it
AS_WELL = 5.0  # a model may leave this many times as much unexplained as a copy
LEAST_EXPLAINED = 0.15  # share of the variance below which a model says nothing about leaks


class Suspects(NamedTuple):
    """Result of all checks."""

    suspects: list[Suspect]
    observations: list[tuple[str, float | None, str]]  # kind, value, sentence
    explained: np.ndarray  # [A] share of the variance that models explain; empty without models
    windows: Windows | None
    judged: Judged | None


def examine(eps: Episodes) -> Suspects:
    """Run all checks.

    Args:
        eps: trajectories with actions.
    """
    centre = action_centre(eps.meta)
    size, factor = _sizes(eps)
    nothing, plain = np.zeros(eps.act.shape, bool), factor == 1
    _, limited = exact.clipped(eps, nothing, plain)
    _, still = exact.frozen(eps, limited)
    copied = _true_copies(eps, exact.copies(eps, limited | still), (eps.act - centre) / size, limited | still)
    copying = nothing.copy()
    for s in copied:
        copying[eps.start[s.trajectory] : eps.start[s.trajectory + 1], s.dimension] = True
    clips, limited = exact.clipped(eps, copying, plain)
    stuck, still = exact.frozen(eps, limited | copying)
    repeats, usual = exact.duplicated(eps)
    observations: list[tuple[str, float | None, str]] = []
    if usual:
        observations.append(
            ("duplicated", usual, f"in most trajectories {usual:.1%} of the frames repeat the one before")
        )
    columns = np.unique([s.column for s in copied if s.column is not None]).astype(int)
    everywhere = len({s.trajectory for s in copied}) > EVERYWHERE * len(eps)
    bad = still | limited | exact.repeated_frames(eps)[:, None] | (nothing if everywhere else copying)
    data = windows(eps, (eps.act - centre) / size, bad, columns)
    known = {s.trajectory for s in (*repeats, *stuck, *clips, *([] if everywhere else copied))}
    if data is None or not data.usable.any() or len(columns) == eps.n_obs:
        text = "too few steps or states to fit a model, so lags, signs, orders and factors were not checked"
        observations.append(("unexplained", None, text))
        return Suspects([*repeats, *copied, *stuck, *clips], observations, np.zeros(0), None, None)
    judged = judge(data, np.isin(data.episodes, list(known)))
    if lag := usual_lag(data, judged):
        when = f"{-lag} steps after" if lag < 0 else f"{lag} steps before"
        observations.append(("lag", lag, f"in most trajectories actions act {when} they are recorded"))
    untold = {s.trajectory for s in (*copied, *repeats, *stuck)}
    by_model = [s for s in hypotheses(data, judged) if s.trajectory not in untold]
    clips, by_model = _clip_or_factor(data, judged, clips, by_model, (size, centre))
    suspects = [*repeats, *_leaks(data, judged, copied), *stuck, *clips, *by_model]
    strange = unexplained(data, judged, np.isin(data.episodes, [s.trajectory for s in suspects])).suspects
    sound = ~np.isin(data.episodes, [s.trajectory for s in suspects])
    jumps = dropped(eps, data, sound)[0] if sound.sum() >= 4 else []
    jumping = {s.trajectory for s in jumps}  # which is why their actions are not explained
    suspects += [*jumps, *(s for s in strange if s.trajectory not in jumping)]
    return Suspects(suspects, observations, judged.usual**2, data, judged)


def _true_copies(eps: Episodes, copies: exact.Copies, act: np.ndarray, bad: np.ndarray) -> list[Suspect]:
    """Return the copies without those that are physics: a joint that follows its late command closely looks like one.

    There, the column has to do with an action in other trajectories too, and models explain the action as well.
    """
    doubtful = [s for s in copies.suspects if 1 - s.confidence > exact.CLOSE]
    if not doubtful:
        return copies.suspects
    copying = {s.trajectory for s in copies.suspects}
    others = np.setdiff1d(np.arange(len(eps)), list(copying))
    data = windows(eps, act, bad, np.zeros(0, int))
    if data is None or not data.usable.any() or not len(others):
        return copies.suspects
    judged = judge(data, np.isin(data.episodes, list(copying)))
    place, left = {int(e): i for i, e in enumerate(data.episodes)}, judged.error / np.maximum(judged.spread, 1e-12)
    physics = set()
    for s in doubtful:
        related = np.median(copies.unexplained[others][:, :, s.column].min(1), 0).min() < RELATED
        i = place.get(s.trajectory)
        true = s.dimension if i is None else judged.hypotheses[i].order.index(s.dimension)
        if related and (i is None or left[i, true] < AS_WELL * (1 - s.confidence) + 0.01):
            physics.add((s.trajectory, s.dimension))
    return [s for s in copies.suspects if (s.trajectory, s.dimension) not in physics]


def _sizes(eps: Episodes) -> tuple[np.ndarray, np.ndarray]:
    """Return the usual size of each dimension, [A], and factors of trajectories in other units, otherwise 1, [E]."""
    size = np.zeros((len(eps), eps.n_act))
    for e in range(len(eps)):
        act = eps.act[eps.start[e] : eps.start[e + 1]]
        act = act[~np.isnan(act[:, 0])]
        size[e] = act.std(0) if len(act) else 0
    usual = np.median(size, 0)
    usual = np.where(usual > 0, usual, np.where(size.max(0) > 0, size.max(0), 1.0))
    common = np.exp(np.median(np.log(np.maximum(size / usual, 1e-9)), 1))
    return usual, np.where((common > AMPLITUDE) | (common < 1 / AMPLITUDE), common, 1.0)


def _leaks(data: Windows, judged: Judged, copied: list[Suspect]) -> list[Suspect]:
    """Return the copies; if the other columns explain the actions too, it is the state that holds the action."""
    share = 1 - judged.error / np.maximum(judged.spread, 1e-12)
    place, shares = {int(e): i for i, e in enumerate(data.episodes)}, {}
    for s in copied:
        if s.trajectory in place:
            shares.setdefault((s.dimension, s.column), []).append(share[place[s.trajectory], s.dimension])
    leaks = {
        key for key, values in shares.items() if np.median(values) > 0.5 * judged.usual[key[0]] ** 2 > LEAST_EXPLAINED
    }
    return [s._replace(kind="leak") if (s.dimension, s.column) in leaks else s for s in copied]


def _clip_or_factor(
    data: Windows,
    judged: Judged,
    clips: list[Suspect],
    by_model: list[Suspect],
    scales: tuple[np.ndarray, np.ndarray],
) -> tuple[list[Suspect], list[Suspect]]:
    """Decide for each trajectory with a limit whether the limit or a factor explains it.

    Returns:
        The limits and the other suspects that remain.
    """
    (size, centre), place = scales, {int(e): i for i, e in enumerate(data.episodes)}
    remaining: list[Suspect] = []
    for e in {s.trajectory for s in clips}:
        own = [s for s in clips if s.trajectory == e]
        if e in place and any(s.trajectory == e and s.kind in ("rescaled", "units") for s in by_model):
            limits: dict[int, tuple[float, float]] = {}
            for s in own:
                d = int(s.dimension or 0)
                limit = (float(s.value) - centre[d]) / size[d]  # type: ignore[arg-type]
                low, high = limits.get(d, (-np.inf, np.inf))
                limits[d] = (low, min(high, limit)) if limit > 0 else (max(low, limit), high)
            if not explained_by_clip(data, judged, place[e], limits):
                continue
        remaining += own
        by_model = [s for s in by_model if s.trajectory != e or s.kind not in ("rescaled", "units")]
    return remaining, by_model
