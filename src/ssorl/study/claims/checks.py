"""The checks of each of the paper's claims; judge.py judges them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from ssorl.study import statistics
from ssorl.study.claims.judge import Check, Group, of_study, tasks
from ssorl.study.results import StudyResults, values

REACHES = 0.10  # relative gap below which an agent reaches the oracle
ALIKE = 0.05  # largest difference of relative gaps that counts as alike
SAME = 5.0  # largest difference that counts as alike, in points of normalised return
FAR = 10.0  # smallest difference that counts as large, in points of normalised return
ELSEWHERE = ("main-medium", "main-medium-replay", "main-halfcheetah", "wide-subsample", "maze2d")
COMPARABLE = 0.20  # largest relative difference of errors that counts as comparable

better = partial(Check, statistic=statistics.difference(statistics.mean), low=0.0)
better_iqm = partial(Check, statistic=statistics.difference(statistics.iqm), low=0.0)
same_iqm = partial(Check, statistic=statistics.difference(statistics.iqm), low=-SAME, high=SAME)
gap = partial(Check, statistic=statistics.relative_gap, high=REACHES, unit="share")


def _places(results: list[StudyResults], study: str, *names: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each combination of coordinates in a study, and its name."""
    seen: dict[tuple, dict] = {}
    for result in of_study(results, study):
        at = {name: result.at[name] for name in names if name in result.at}
        seen.setdefault(tuple(at.items()), at)
    for at in seen.values():
        words = (f"q = {v:g}" if k == "quality" else share(v) if k == "fraction" else str(v) for k, v in at.items())
        yield at, " ".join(words)


def _beats(results: list[StudyResults], study: str, *names: str) -> Iterator[Check]:
    """Yield a check for each place: SS is better than the baseline."""
    for at, name in _places(results, study, *names):
        pair = (tasks(results, study, **at, variant="ss"), tasks(results, study, **at, variant="baseline"))
        yield better(name=name, groups=pair)


def _reaches(results: list[StudyResults], study: str, *names: str) -> Iterator[Check]:
    """Yield a check for each place: the relative gap of SS to the oracle at q = 100 is small."""
    for at, name in _places(results, study, *names):
        pair = (tasks(results, study, **at, quality=100, variant=v) for v in ("ss", "oracle"))
        yield gap(name=f"{name} q = 100: relative gap of SS", groups=tuple(pair))


def claim_1(results: list[StudyResults]) -> Iterator[Check]:
    """Yield the checks of claim 1: SS against the baseline at each dataset, agent and q."""
    yield from _beats(results, "main-medium-expert", "dataset", "agent", "quality")


def claim_2(results: list[StudyResults]) -> Iterator[Check]:
    """Yield the checks of claim 2: SS against the oracle at q = 100."""
    yield from _reaches(results, "main-medium-expert", "dataset", "agent")


def claim_3(results: list[StudyResults]) -> Iterator[Check]:
    """Yield the checks of claim 3: those of claims 1 and 2 with 1 to 8 % labelled."""
    yield from _beats(results, "low-label", "fraction", "agent", "quality")
    yield from _reaches(results, "low-label", "fraction", "agent")


def claim_4(results: list[StudyResults]) -> Iterator[Check]:
    """Yield the checks of claim 4: SS against the baseline over all q, and SS at q = 100 against q = 10."""
    for study in ELSEWHERE:
        yield from _beats(results, study, "dataset", "agent")
        for at, name in _places(results, study, "dataset", "agent"):
            best, worst = (tasks(results, study, **at, variant="ss", quality=q) for q in (100, 10))
            yield better(name=f"{name}: SS, q = 100 − q = 10", groups=(best, worst))


def claim_5(results: list[StudyResults]) -> Iterator[Check]:
    """Yield the checks of claim 5: SS agents against DT-Joint, and DT-Joint against the baseline."""

    def of(agent: str, variant: str = "ss") -> Group:
        return tasks(results, "dt-joint", agent=agent, variant=variant)

    joint = of("dt-joint")
    yield better_iqm(name="SS-DT − DT-Joint", groups=(of("dt"), joint), low=FAR)
    yield better_iqm(name="DT-Joint − baseline", groups=(joint, of("dt", "baseline")), high=FAR)
    yield better_iqm(name="SS-CQL − DT-Joint", groups=(of("cql"), joint))
    yield better_iqm(name="SS-TD3BC − DT-Joint", groups=(of("td3bc"), joint))


def claim_6(results: list[StudyResults]) -> Iterator[Check]:
    """Yield the checks of claim 6: returns and action errors of one round against those of self-training."""
    others = [name for name in idms(results, "self-training") if name != "ours"]
    for words, at in (("", {}), (" at q ≤ 50", {"quality": (10, 30, 50)})):
        for name in others:
            pair = (tasks(results, "self-training", idm=idm, **at) for idm in ("ours", name))
            yield better_iqm(name=f"return over {name}{words}", groups=tuple(pair))
    for words, qualities, (low, high) in (
        ("q ≤ 50", (10, 30, 50), (-COMPARABLE, COMPARABLE)),
        ("q > 50", (70, 90, 100), (-math.inf, 0.0)),
    ):
        for name in others:
            pair = (tasks(results, "self-training-mse", idm=idm, quality=qualities) for idm in ("ours", name))
            yield Check(
                name=f"error at {words} relative to {name}",
                statistic=_relative_error,
                groups=tuple(pair),
                unit="share",
                measure=lambda result: result.mse,
                low=low,
                high=high,
            )


def claim_7(results: list[StudyResults]) -> Iterator[Check]:
    """Yield the checks of claim 7: windows of the IDM against each other."""
    of = {name: tasks(results, "idm-architecture", idm=name) for name in idms(results, "idm-architecture")}
    for other in ("k = 0", "k = 2"):
        yield better_iqm(name=f"k = 1 − {other}", groups=(of.get("k = 1", []), of.get(other, [])))
    for k in (1, 2):
        pair = (of.get(f"k = {k}, symmetric", []), of.get(f"k = {k}", []))
        yield same_iqm(name=f"k = {k}: symmetric − asymmetric", groups=pair)


def _thirds(results: list[StudyResults], axis: str, pairs: dict[tuple[str, str], float]) -> Iterator[Check]:
    for at, name in _places(results, "labelled-quality", "dataset", "agent"):
        for (above, below), least in pairs.items():
            pair = (tasks(results, "labelled-quality", **at, **{axis: third}) for third in (above, below))
            yield better_iqm(name=f"{name}: {axis} {above} − {below}", groups=tuple(pair), low=least)


def claim_8(results: list[StudyResults]) -> Iterator[Check]:
    """Return the checks of claim 8: labelled thirds against each other."""
    return _thirds(results, "labelled", {("med", "low"): 0.0, ("high", "med"): 0.0, ("high", "low"): FAR})


def claim_9(results: list[StudyResults]) -> Iterator[Check]:
    """Return the checks of claim 9: unlabelled thirds against each other."""
    return _thirds(results, "unlabelled", {("med", "low"): 0.0, ("high", "med"): 0.0, ("high", "low"): 0.0})


def claim_10(results: list[StudyResults]) -> Iterator[Check]:
    """Yield the checks of claim 10: 25 and 50 % labelled against 10 %."""
    for at, name in _places(results, "labelled-size", "agent"):
        for more in (0.25, 0.5):
            pair = (tasks(results, "labelled-size", **at, labelled_fraction=f) for f in (more, 0.1))
            yield same_iqm(name=f"{name}: {share(more)} labelled − 10 %", groups=tuple(pair))


def claim_11(results: list[StudyResults]) -> Iterator[Check]:
    """Yield the checks of claim 11: 25 and 50 % unlabelled against 10 %."""
    for more in (0.25, 0.5):
        pair = (tasks(results, "unlabelled-size", agent="cql", unlabelled_fraction=f) for f in (more, 0.1))
        yield same_iqm(name=f"cql: {share(more)} unlabelled − 10 %", groups=tuple(pair))
    at = {"agent": "dt", "labelled": "high", "unlabelled": ("low", "med")}
    pair = (tasks(results, "unlabelled-size", **at, unlabelled_fraction=f) for f in (0.5, 0.1))
    name = "dt, high with low or med: 50 % unlabelled − 10 %"
    yield better_iqm(name=name, groups=tuple(pair), low=-math.inf, high=0.0)


def claim_12(results: list[StudyResults]) -> Iterator[Check]:
    """Yield the checks of claim 12: relative gaps of the agents against each other."""

    def of(agent: str) -> tuple[Group, Group]:
        ss, oracle = (tasks(results, "gap-by-agent", agent=agent, variant=v) for v in ("ss", "oracle"))
        return ss, oracle

    gap_check = partial(Check, statistic=_gap_difference, unit="share")
    for agent in ("dt", "cql"):
        yield gap_check(name=f"gap of SS-{agent.upper()} − gap of SS-TD3BC", groups=(*of(agent), *of("td3bc")), low=0.0)
    yield gap_check(name="gap of SS-DT − gap of SS-CQL", groups=(*of("dt"), *of("cql")), low=-ALIKE, high=ALIKE)


def _relative_error(ours: statistics.Strata, theirs: statistics.Strata):
    """Return (ours - theirs) / theirs, [block]."""
    return -statistics.relative_gap(ours, theirs)


def _gap_difference(a: statistics.Strata, best_a: statistics.Strata, b: statistics.Strata, best_b: statistics.Strata):
    return statistics.iqm_gap(a, best_a) - statistics.iqm_gap(b, best_b)


def idms(results: list[StudyResults], study: str) -> list[str]:
    """Return the names of the inverse dynamics models that a study compares."""
    return values(of_study(results, study), "idm")


def share(value: float) -> str:
    """Return a share as a percentage, such as "10 %"."""
    return f"{100 * value:g} %"
