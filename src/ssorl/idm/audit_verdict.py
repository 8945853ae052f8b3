"""From the models' hypotheses to suspects: which of them the data supports."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ssorl.idm.audit_exact import Suspect
from ssorl.idm.audit_model import Hypothesis, Judged, Windows, repaired

RATIO = 0.75  # a hypothesis must leave less than this share of the error
T_VALUE = 4.0  # and do so in most parts of the trajectory
N_BLOCKS = 10
LEAST_BLOCKS = 8  # if so many parts all speak for a hypothesis, that is enough
SCALED = 1.15  # factors nearer to 1 are none
SCALED_ALONE = 1.5  # of a single dimension
ALIKE = 1.5  # dimensions whose factors differ by less share one
UNITS = {57.29578: "degrees for radians", 1000.0: "thousandths", 100.0: "hundredths", 10.0: "tenths", 25.4: "inches"}
LEAST_UNITS = 5.0  # a factor of this size is a matter of units
N_BINS = 20
HALF = 0.5  # explained share relative to other trajectories',
LEAST_EXCESS = 0.2  # and the unexplained share above theirs
LEAST_ROWS = 16
MANY_ROWS = 100
SEVERAL = 3
LEAST_RATIO = 2.2  # times the error that is usual in the better third,
UNUSUAL = 6.5  # and farther from it than this many times the spread within that third


class Evidence(NamedTuple):
    """How much better a hypothesis explains a trajectory than its actions as they are."""

    ratio: float  # of the errors
    t: float
    rows: int

    @property
    def holds(self) -> bool:
        """Whether it is believed."""
        return self.ratio < RATIO and self.t > T_VALUE

    @property
    def confidence(self) -> float:
        """Return 0.5 at the threshold, near 1 where hardly any error is left."""
        return float(np.clip(1 - 0.5 * self.ratio / RATIO * min(1.0, T_VALUE / max(self.t, 1e-9)) ** 0.5, 0.5, 0.99))


def usual_lag(data: Windows, judged: Judged) -> int:
    """Return the lag of most steps; of two that are about as frequent the one nearer to 0."""
    size = np.diff(data.first)
    lags = np.array([h.lag for h in judged.hypotheses])
    held = {int(k): int(size[lags == k].sum()) for k in np.unique(lags)}
    return min((k for k, n in held.items() if n >= 0.9 * max(held.values())), key=abs)


def evidence(data: Windows, judged: Judged, e: int, plain: Hypothesis, dims: np.ndarray) -> Evidence:
    """Compare a trajectory's hypothesis with a plain one in some dimensions."""
    rows, h = data.rows(e), judged.hypotheses[e]
    predicted, alike = judged.predicted[rows], judged.alike[rows]
    if alike.sum() < LEAST_ROWS:
        return Evidence(1.0, 0.0, int(alike.sum()))
    gaps = [
        (((repaired(data, e, each) - predicted) ** 2 / judged.noise)[alike][:, dims]).mean(1) for each in (plain, h)
    ]
    # Repaired by a factor, the noise grows or shrinks with the action: the logarithm in the Gaussian's density.
    stretch = 2 * float(np.log(np.abs(np.array(h.factor) / np.array(plain.factor)))[dims].mean())
    gain = np.array([p.mean() for p in np.array_split(gaps[0] - gaps[1] - stretch, min(N_BLOCKS, len(gaps[0]) // 4))])
    t = float(gain.mean() / (gain.std(ddof=1) / np.sqrt(len(gain)) + 1e-12))
    if (gain > 0).all() and len(gain) >= LEAST_BLOCKS:
        t = max(t, 2 * T_VALUE)  # heavy tails make t small where every part agrees
    ratio = gaps[1].mean() / max(gaps[0].mean(), 1e-12)
    if abs(stretch) > 0.1:
        ratio = np.exp(-max(gain.mean(), -50.0))
    return Evidence(float(ratio), t, len(gaps[0]))


def hypotheses(data: Windows, judged: Judged) -> list[Suspect]:
    """Return the lags, signs, orders and factors that the data supports.

    Where several trajectories have the same fault beyond doubt, others whose best hypothesis is the same need less.
    """
    claims = [claim for e in range(len(judged.hypotheses)) for claim in _claims(data, judged, e)]
    sure: dict[tuple, int] = {}
    for suspect, support in claims:
        key = (suspect.kind, suspect.dimension, suspect.value if suspect.kind == "lag" else None)
        sure[key] = sure.get(key, 0) + support.holds
    suspects = []
    for suspect, support in claims:
        key = (suspect.kind, suspect.dimension, suspect.value if suspect.kind == "lag" else None)
        shared = suspect.kind in ("lag", "flipped", "permuted")
        alone = support.holds and support.ratio < 0.5 and support.rows >= MANY_ROWS
        alike = sure[key] >= SEVERAL and (support.holds or (shared and support.ratio < 0.95 and support.t > 1))
        if alone or alike:
            suspects.append(suspect)
    return suspects


def _claims(data: Windows, judged: Judged, e: int) -> list[tuple[Suspect, Evidence]]:
    """Return each way in which the hypothesis of a trajectory is not the plain one, and how much speaks for it."""
    h, usual, out = judged.hypotheses[e], usual_lag(data, judged), []
    name, factor, order = int(data.episodes[e]), np.array(h.factor), np.array(h.order)
    own = np.arange(len(order))

    def claim(kind: str, dimension: int | None, value, plain: Hypothesis, dims: np.ndarray) -> None:
        support = evidence(data, judged, e, plain, dims)
        out.append((Suspect(kind, name, dimension, value, support.confidence), support))

    if h.lag != usual:
        claim("lag", None, h.lag - usual, Hypothesis(usual, h.order, h.factor), own)
        return out
    if (order != own).any():
        plain = Hypothesis(h.lag, tuple(own.tolist()), tuple(np.ones(len(own))))
        claim("permuted", None, tuple(int(d) for d in order), plain, order != own)
    for d in np.flatnonzero(factor < 0):
        other = np.where(own == d, -factor, factor)
        claim("flipped", int(order[d]), -1.0, Hypothesis(h.lag, h.order, tuple(other)), own == d)
    if (order != own).any():  # dimensions of unequal spread that change places look scaled
        return out
    size, sign = np.abs(factor), np.sign(factor)
    worth = judged.usual**2 / (1 - np.minimum(judged.usual**2, 0.98))
    common = float(np.exp((worth * np.log(size)).sum() / worth.sum()))
    near = np.abs(np.log(size / common)) < np.log(ALIKE)
    shared = abs(np.log(common)) > np.log(SCALED) and len(own) > 1 and worth[near].sum() > 0.6 * worth.sum()
    if shared:
        kind, value = _scaled(common)
        claim(kind, None, value, Hypothesis(h.lag, h.order, tuple(sign)), near)
    for d in np.flatnonzero((np.abs(np.log(size)) > np.log(SCALED_ALONE)) & ~(near & shared)):
        kind, value = _scaled(float(size[d]))
        claim(kind, int(d), value, Hypothesis(h.lag, h.order, tuple(np.where(own == d, sign, factor))), own == d)
    return out


def _scaled(factor: float) -> tuple[str, float]:
    """Return the kind of a factor, and the factor, exact where it is that of known units."""
    kind = "units" if max(factor, 1 / factor) >= LEAST_UNITS else "rescaled"
    for known in UNITS if kind == "units" else ():
        for exact in (known, 1 / known):
            if abs(np.log(factor / exact)) < 0.12:
                factor = exact
    return kind, factor


def explained_by_clip(data: Windows, judged: Judged, e: int, limits: dict[int, tuple[float, float]]) -> bool:
    """Return whether limits explain a trajectory's dimensions better than a factor does.

    Args:
        data: the windows.
        judged: what the models say.
        e: the trajectory.
        limits: lowest and highest action of each dimension, in the units of the windows.
    """
    rows, h = data.rows(e), judged.hypotheses[e]
    error = [0.0, 0.0]
    for d, (low, high) in limits.items():
        true, recorded = judged.predicted[rows, d], data.recorded(e, h.lag)[:, d]
        error[0] += float(((np.clip(true, low, high) - recorded) ** 2).mean() / judged.noise[d])
        error[1] += float(((true * h.factor[d] - recorded) ** 2).mean() / judged.noise[d])
    return error[0] <= error[1]


class Unexplained(NamedTuple):
    """Trajectories whose actions the models of the others do not explain."""

    suspects: list[Suspect]
    share: np.ndarray  # [E] explained share of the variance where states are like those of others
    excess: np.ndarray  # [E] error relative to the usual one at such states


def unexplained(data: Windows, judged: Judged, skip: np.ndarray) -> Unexplained:
    """Find trajectories whose actions have a much larger error than those of others in like states.

    Args:
        data: the windows.
        judged: what the models say.
        skip: [E] bool: trajectories with a fault that is known.
    """
    n, episode = len(data.episodes), np.repeat(np.arange(len(data.episodes)), np.diff(data.first))
    target = np.concatenate([repaired(data, e, h) for e, h in enumerate(judged.hypotheses)])
    error = ((target - judged.predicted) ** 2 / judged.noise).mean(1)
    far = judged.unlike
    bins = np.searchsorted(np.quantile(far, np.linspace(0, 1, N_BINS + 1)[1:-1]), far)
    rows = np.zeros((n, N_BINS))
    np.add.at(rows, (episode, bins), 1)
    middle = np.full((n, N_BINS), np.nan)
    for e in range(n):
        own = slice(data.first[e], data.first[e + 1])
        for b in np.flatnonzero(rows[e] >= 2):
            middle[e, b] = np.median(error[own][bins[own] == b])
    enough = (rows >= 2).sum(0) >= max(5, 0.3 * n)
    usual = np.array([np.nanquantile(m, 0.4) if np.isfinite(m).any() else np.nan for m in middle.T])
    common = enough[bins] & (usual[bins] > 0) & judged.alike
    ratio = np.where(common, error / np.where(common, usual[bins], 1), np.nan)
    excess, lack = np.full(n, np.nan), np.full(n, np.nan)
    plain = ((target - judged.predicted) ** 2 / np.maximum(judged.spread, 1e-12).repeat(np.diff(data.first), 0)).mean(1)
    for e in range(n):
        own = slice(data.first[e], data.first[e + 1])
        if common[own].sum() >= max(LEAST_ROWS, 0.5 * rows[e].sum()):
            excess[e], lack[e] = np.nanmedian(ratio[own]), plain[own][common[own]].mean()
    eligible = np.isfinite(excess) & ~skip
    if eligible.sum() < 4:
        return Unexplained([], 1 - lack, excess)
    low, better = np.quantile(excess[eligible], [0.1, 0.3])  # of the better half: the other may be at fault
    limit = better * max(LEAST_RATIO, np.exp(UNUSUAL * np.log(better / low)))
    usual_lack = float(np.quantile(lack[eligible], 0.3))
    bad = eligible & (excess > limit) & (lack > usual_lack + LEAST_EXCESS)
    bad &= 1 - lack < HALF * (1 - usual_lack)
    if bad.sum() < SEVERAL:  # a trajectory that differs from all others may do so for good reasons
        bad &= (excess > 2 * limit) & (lack > 0.9) & (rows.sum(1) >= MANY_ROWS)
    suspects = [
        Suspect("unexplained", int(data.episodes[e]), None, float(max(1 - lack[e], 0)), 0.9)
        for e in np.flatnonzero(bad)
    ]
    return Unexplained(suspects, 1 - lack, excess)
