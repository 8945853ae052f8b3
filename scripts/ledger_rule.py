"""The decision rule of docs/ledger-rule.md: estimands of the twelve claims, their tests, and Holm's correction.

Each claim has one primary estimand: a mean over places of a difference of late scores, one number for each seed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtr

from ssorl.study.grid import Cell
from ssorl.study.paper import STUDIES
from ssorl.study.revisions import choose, shown

SCALE = "lite"
LEVEL = 0.05  # probability of one or more false verdicts over both families
FAMILY = LEVEL / 2  # the share of each family: the twelve primary estimands, and the parts of a round
MARGIN = 5.0  # points of normalised score
LOOKS = {4: 0.1, 6: 0.2, 8: 0.3, 10: 0.4}  # confirmatory seeds at a look -> share of the level spent there
FIRST_FRESH = 3  # seeds of scale lite from here on are confirmatory
SWING = 10.0  # points: the largest std of a steady oracle's evaluations within the second half of a training
BELOW = (10, 30, 50, 70, 90)
SEVERAL = 2  # fewest seeds of a t statistic

Place = tuple[Any, ...]
Table = dict[Place, dict[int, float]]  # place -> seed -> difference


@dataclass(frozen=True)
class Result:
    """A finished cell: the mean of the second half of its evaluations during training, and how much these vary."""

    late: float
    swing: float
    last: float  # mean score of the last weights, which the paper reports


Results = Mapping[str, Result]


def read(paths: Iterable[Path]) -> dict[str, Result]:
    """Return the results of packed cells with a learning curve, by the hash of the cell."""
    results = {}
    for path in paths:
        for entry in map(json.loads, path.read_text().splitlines()):
            curve = [x for x in (entry["result"].get("curve") or {}).get("score", []) if x is not None]
            if len(curve) >= 2 * SEVERAL:
                half = curve[len(curve) // 2 :]
                result = Result(float(np.mean(half)), float(np.std(half, ddof=1)), entry["result"]["score"])
                results[Cell.from_json(entry["cell"]).hash] = result
    return results


# Estimands -------------------------------------------------------------------------------------------------

Arm = tuple[dict[str, Any], float]  # coordinates, weight
SS_BASELINE: tuple[Arm, ...] = (({"variant": "ss"}, 1.0), ({"variant": "baseline"}, -1.0))


def _matches(at: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    return all(at.get(k) in (v if isinstance(v, tuple) else (v,)) for k, v in where.items())


def contrast(
    results: Results,
    studies: Sequence[str],
    by: Sequence[str],
    arms: Sequence[Arm],
    where: Mapping[str, Any],
    seeds: int,
    of: Callable[[Result], float] = lambda result: result.late,
) -> Table:
    """Return the weighted sum of the arms at each place and seed where all arms have results.

    Args:
        results: results by hash of the cell.
        studies: names of the studies.
        by: coordinates that define a place.
        arms: coordinates and weight of each arm.
        where: coordinates that all points must have; a tuple allows several values.
        seeds: number of seeds.
        of: the number of a result.
    """
    sums: dict[Place, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for study in studies:
        points = STUDIES[study].points(SCALE, seeds)
        chosen = choose(points, lambda cell: cell.hash in results)
        for point in points:
            result = results.get(shown(point, chosen).hash)
            if result is None or not _matches(point.at, where):
                continue
            for i, (own, weight) in enumerate(arms):
                if _matches(point.at, own):
                    sums[tuple(point.at[name] for name in by)][point.at["seed"]][i] = weight * of(result)
    return {
        place: complete
        for place, each in sums.items()
        if (complete := {seed: sum(terms.values()) for seed, terms in each.items() if len(terms) == len(arms)})
    }


def oracles(results: Results, study: str, seeds: int, of: Callable[[Result], float]) -> Table:
    """Return a property of the oracles by dataset and agent."""
    where = {"variant": "oracle", "quality": 10}  # an oracle is the same cell at each q
    return contrast(results, [study], ("dataset", "agent"), [({}, 1.0)], where, seeds, of)


def steady(results: Results, study: str, seeds: int) -> dict[Place, float]:
    """Return the mean swing of the oracles that are steady, by dataset and agent."""
    swings = oracles(results, study, seeds, lambda result: result.swing)
    means = {place: float(np.mean(list(each.values()))) for place, each in swings.items()}
    return {place: swing for place, swing in means.items() if swing <= SWING}


@dataclass(frozen=True)
class Estimand:
    """The primary estimand of a claim, or of a part of one, and the kind of its test."""

    name: str
    kind: str  # a key of KINDS
    table: Callable[[Results, int], Table]
    places: int  # number of places of the complete claim


def _gain(studies: Sequence[str], by: Sequence[str], **where: Any) -> Callable[[Results, int], Table]:
    return lambda results, n: contrast(results, studies, by, SS_BASELINE, {"quality": BELOW} | where, n)


def _arms(study: str, by: Sequence[str], *arms: Arm, **where: Any) -> Callable[[Results, int], Table]:
    return lambda results, n: contrast(results, [study], by, arms, where, n)


def _reach(**where: Any) -> Callable[[Results, int], Table]:
    def table(results: Results, n: int) -> Table:
        study, by = "main-medium-expert", ("dataset", "agent")
        arms: tuple[Arm, ...] = (({"variant": "ss"}, 1.0), ({"variant": "oracle"}, -1.0))
        table = contrast(results, [study], by, arms, {"quality": 100} | where, n)
        # Only exploratory seeds decide which oracles are steady, so that later results cannot change what counts.
        counts = steady(results, study, FIRST_FRESH)
        return {place: each for place, each in table.items() if place in counts}

    return table


def _smallest_gap(results: Results, n: int) -> Table:
    """Return the mean gap of DT and CQL less that of TD3+BC, in % of the oracle's mean, by dataset and quality."""
    study = "gap-by-agent"
    best = oracles(results, study, n, lambda result: result.late)
    by = ("dataset", "quality", "agent")
    scores = contrast(results, [study], by, [({"variant": "ss"}, 1.0)], {"quality": BELOW}, n)
    out: Table = {}
    for dataset, quality in dict.fromkeys(place[:2] for place in scores):
        gaps = {}
        for agent in ("dt", "cql", "td3bc"):
            bound, own = best.get((dataset, agent)), scores.get((dataset, quality, agent))
            if bound and own:
                mean = float(np.mean(list(bound.values())))
                gaps[agent] = {seed: 100 * (mean - value) / mean for seed, value in own.items()}
        if len(gaps) == len(("dt", "cql", "td3bc")):
            common = set.intersection(*(set(each) for each in gaps.values()))
            out[dataset, quality] = {s: (gaps["dt"][s] + gaps["cql"][s]) / 2 - gaps["td3bc"][s] for s in sorted(common)}
    return out


_AT = ("dataset", "agent", "quality")
_ELSEWHERE = ("main-medium", "main-medium-replay", "main-halfcheetah", "wide-subsample")
_SELF = [f"m = {m}, N = {n}" for m in (2, 3) for n in (3, 5)]
_THIRDS = ("dataset", "agent")
_TOP: Arm = ({"labelled": "high"}, 1.0)

CLAIMS: dict[int, Estimand] = {
    1: Estimand("SS − baseline, q ≤ 90", "better", _gain(["main-medium-expert"], _AT), 30),
    2: Estimand("SS − oracle, q = 100, steady oracles", "reach", _reach(), 6),
    3: Estimand("SS − baseline, q ≤ 90, 1–8 % labelled", "better", _gain(["low-label"], ("fraction", *_AT[1:])), 60),
    4: Estimand("SS − baseline, q ≤ 90, other robot datasets", "better", _gain(_ELSEWHERE, _AT), 120),
    5: Estimand(
        "SS-DT − DT-Joint",
        "far",
        _arms("dt-joint", ("quality",), ({"agent": "dt", "variant": "ss"}, 1.0), ({"agent": "dt-joint"}, -1.0)),
        6,
    ),
    6: Estimand(
        "one round − mean of four self-trained",
        "better",
        _arms("self-training", _AT[1:], ({"idm": "ours"}, 1.0), *(({"idm": name}, -0.25) for name in _SELF)),
        12,
    ),
    7: Estimand(
        "k = 1 − mean of k = 0 and k = 2",
        "better",
        _arms("idm-architecture", _AT[1:], ({"idm": "k = 1"}, 1.0), ({"idm": "k = 0"}, -0.5), ({"idm": "k = 2"}, -0.5)),
        12,
    ),
    8: Estimand(
        "labelled third: high − low",
        "far",
        _arms("labelled-quality", (*_THIRDS, "unlabelled"), _TOP, ({"labelled": "low"}, -1.0)),
        12,
    ),
    9: Estimand(
        "unlabelled third: high − low",
        "better",
        _arms("labelled-quality", (*_THIRDS, "labelled"), ({"unlabelled": "high"}, 1.0), ({"unlabelled": "low"}, -1.0)),
        12,
    ),
    10: Estimand(
        "50 % − 10 % labelled",
        "alike",
        _arms(
            "labelled-size",
            ("agent", "labelled", "unlabelled"),
            ({"labelled_fraction": 0.5}, 1.0),
            ({"labelled_fraction": 0.1}, -1.0),
        ),
        18,
    ),
    11: Estimand(
        "DT, labelled high, unlabelled low or med: 10 % − 50 % unlabelled",
        "better",
        _arms(
            "unlabelled-size",
            ("labelled", "unlabelled"),
            ({"unlabelled_fraction": 0.1}, 1.0),
            ({"unlabelled_fraction": 0.5}, -1.0),
            agent="dt",
            labelled="high",
            unlabelled=("low", "med"),
        ),
        2,
    ),
    12: Estimand("mean gap of SS-DT and SS-CQL − gap of SS-TD3BC, % of the oracle", "better", _smallest_gap, 30),
}

# The parts that round 1 tests; a part can make its claim `in part`, never `confirmed` or `refuted`.
_HOPPER, _WALKER, _CHEETAH = (f"{env}-medium-expert" for env in ("hopper", "walker2d", "halfcheetah"))
PARTS: dict[str, Estimand] = {
    "1 TD3BC hopper": Estimand(
        "SS − baseline, q ≤ 90", "better", _gain(["main-medium-expert"], _AT, agent="td3bc", dataset=_HOPPER), 5
    ),
    "1 TD3BC walker2d": Estimand(
        "SS − baseline, q ≤ 90", "better", _gain(["main-medium-expert"], _AT, agent="td3bc", dataset=_WALKER), 5
    ),
    "2 TD3BC walker2d": Estimand("SS − oracle, q = 100", "reach", _reach(agent="td3bc", dataset=_WALKER), 1),
    "4 TD3BC halfcheetah-me": Estimand(
        "SS − baseline, q ≤ 90", "better", _gain(["main-halfcheetah"], _AT, agent="td3bc", dataset=_CHEETAH), 5
    ),
}


def by_seed(table: Table) -> dict[int, float]:
    """Return the mean over all places for each seed that has every place."""
    if not table:
        return {}
    seeds = set.intersection(*(set(each) for each in table.values()))
    return {seed: float(np.mean([each[seed] for each in table.values()])) for seed in sorted(seeds)}


# Tests -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """The meaning of verdicts: `confirmed` if the truth is above `low`, `refuted` if it is below `high`."""

    low: float
    high: float
    words: str


KINDS = {
    "better": Kind(0.0, MARGIN, "above 0"),
    "far": Kind(MARGIN, 2 * MARGIN, "above 5"),
    "reach": Kind(-MARGIN, 0.0, "above −5"),
    "alike": Kind(-MARGIN, MARGIN, "within ±5"),
}


def p_values(kind: str, values: np.ndarray) -> np.ndarray:
    """Return the p-values of both verdicts by one-sided t tests.

    Args:
        kind: a key of `KINDS`.
        values: the estimand of each seed, [..., seeds].

    Returns:
        P-values [2, ...] of `confirmed` and `refuted`; 1 with fewer than two seeds.
    """
    n = values.shape[-1]
    if n < SEVERAL:
        return np.ones((2, *values.shape[:-1]))
    mean, error = values.mean(-1), np.maximum(values.std(-1, ddof=1) / np.sqrt(n), 1e-12)

    def above(bound: float) -> np.ndarray:
        return stdtr(n - 1, (bound - mean) / error)

    def below(bound: float) -> np.ndarray:
        return stdtr(n - 1, (mean - bound) / error)

    equivalent = np.maximum(above(-MARGIN), below(MARGIN))
    if kind == "alike":
        return np.stack([equivalent, np.minimum(1, 2 * np.minimum(above(0), below(0)))])
    ends = KINDS[kind]
    refuted = np.minimum(below(0), equivalent) if kind == "better" else below(ends.high)
    return np.stack([above(ends.low), refuted])


def sequential(kind: str, values: np.ndarray) -> np.ndarray:
    """Return p-values [2, ...] adjusted for the looks: the minimum over looks of p / share of the level at the look."""
    n = values.shape[-1]
    looks = [p_values(kind, values[..., :at]) / share for at, share in LOOKS.items() if at <= n]
    return np.minimum(1, np.min(looks, 0)) if looks else np.ones((2, *values.shape[:-1]))


def holm(p: np.ndarray, level: float) -> np.ndarray:
    """Return which hypotheses along the first axis Holm's procedure rejects at the level."""
    order = np.argsort(p, 0)
    m = len(p)
    ends = level / (m - np.arange(m)).reshape(-1, *[1] * (p.ndim - 1))
    through = np.logical_and.accumulate(np.take_along_axis(p, order, 0) <= ends, 0)
    out = np.zeros_like(through)
    np.put_along_axis(out, order, through, 0)
    return out


def verdicts(p: np.ndarray, level: float = FAMILY) -> np.ndarray:
    """Return 1 (confirmed), -1 (refuted) or 0 (undecided) from p-values [claims, 2, ...], by Holm over all."""
    rejected = holm(p.reshape(-1, *p.shape[2:]), level).reshape(p.shape)
    return np.where(rejected[:, 0], 1, np.where(rejected[:, 1], -1, 0))
