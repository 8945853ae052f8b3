"""What each of the paper's claims is put to the test by (claims.py judges the checks)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from ssorl.study import statistics
from ssorl.study.claims.judge import Check, Group, of_study, tasks
from ssorl.study.results import StudyResults, values

REACHES = 0.10  # relative gap below which an agent reaches the oracle
ALIKE = 0.05  # difference of relative gaps that is none
SAME = 5.0  # points of normalised return that are no difference
FAR = 10.0  # points that are a large one
ELSEWHERE = ("main-medium", "main-medium-replay", "main-halfcheetah", "wide-subsample", "maze2d")
COMPARABLE = 0.20  # share of an error by which a comparable one differs at most

better = partial(
    Check, statistic=statistics.difference(statistics.mean), low=0.0
)  # at one task, or each counting the same
better_iqm = partial(Check, statistic=statistics.difference(statistics.iqm), low=0.0)
same_iqm = partial(Check, statistic=statistics.difference(statistics.iqm), low=-SAME, high=SAME)
gap = partial(Check, statistic=statistics.relative_gap, high=REACHES, unit="share")


def _places(found: list[StudyResults], study: str, *names: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Every combination of coordinates that a study has, with its name."""
    seen: dict[tuple, dict] = {}
    for one in of_study(found, study):
        at = {name: one.at[name] for name in names if name in one.at}
        seen.setdefault(tuple(at.items()), at)
    for at in seen.values():
        yield (
            at,
            " ".join(
                f"q = {v:g}" if k == "quality" else share(v) if k == "fraction" else str(v) for k, v in at.items()
            ),
        )


def _beats(found: list[StudyResults], study: str, *names: str) -> Iterator[Check]:
    """SS against the baseline at every place."""
    for at, name in _places(found, study, *names):
        pair = (tasks(found, study, **at, variant="ss"), tasks(found, study, **at, variant="baseline"))
        yield better(name=name, groups=pair)


def _reaches(found: list[StudyResults], study: str, *names: str) -> Iterator[Check]:
    """SS against the oracle with labels from all trajectories."""
    for at, name in _places(found, study, *names):
        pair = (tasks(found, study, **at, quality=100, variant=v) for v in ("ss", "oracle"))
        yield gap(name=f"{name} q = 100: relative gap of SS", groups=tuple(pair))


def one(found: list[StudyResults]) -> Iterator[Check]:
    """SS against the baseline everywhere."""
    yield from _beats(found, "main-medium-expert", "dataset", "agent", "quality")


def two(found: list[StudyResults]) -> Iterator[Check]:
    """SS against the oracle at q = 100."""
    yield from _reaches(found, "main-medium-expert", "dataset", "agent")


def three(found: list[StudyResults]) -> Iterator[Check]:
    """Both, with few labels."""
    yield from _beats(found, "low-label", "fraction", "agent", "quality")
    yield from _reaches(found, "low-label", "fraction", "agent")


def four(found: list[StudyResults]) -> Iterator[Check]:
    """SS against the baseline over all q, and its growth with q."""
    for study in ELSEWHERE:
        yield from _beats(found, study, "dataset", "agent")
        for at, name in _places(found, study, "dataset", "agent"):
            best, worst = (tasks(found, study, **at, variant="ss", quality=q) for q in (100, 10))
            yield better(name=f"{name}: SS, q = 100 − q = 10", groups=(best, worst))


def five(found: list[StudyResults]) -> Iterator[Check]:
    """SS agents against DT-Joint, and that against the baseline."""

    def of(agent: str, variant: str = "ss") -> Group:
        return tasks(found, "dt-joint", agent=agent, variant=variant)

    joint = of("dt-joint")
    yield better_iqm(name="SS-DT − DT-Joint", groups=(of("dt"), joint), low=FAR)
    yield better_iqm(name="DT-Joint − baseline", groups=(joint, of("dt", "baseline")), high=FAR)
    yield better_iqm(name="SS-CQL − DT-Joint", groups=(of("cql"), joint))
    yield better_iqm(name="SS-TD3BC − DT-Joint", groups=(of("td3bc"), joint))


def six(found: list[StudyResults]) -> Iterator[Check]:
    """Returns and errors of one round against those of self-training."""
    others = [name for name in idms(found, "self-training") if name != "ours"]
    for words, at in (("", {}), (" at q ≤ 50", {"quality": (10, 30, 50)})):
        for name in others:
            pair = (tasks(found, "self-training", idm=who, **at) for who in ("ours", name))
            yield better_iqm(name=f"return over {name}{words}", groups=tuple(pair))
    for words, qualities, claimed in (
        ("q ≤ 50", (10, 30, 50), (-COMPARABLE, COMPARABLE)),
        ("q > 50", (70, 90, 100), (-math.inf, 0.0)),
    ):
        for name in others:
            pair = (tasks(found, "self-training-mse", idm=who, quality=qualities) for who in ("ours", name))
            yield Check(
                name=f"error at {words} relative to {name}",
                statistic=_relative_error,
                groups=tuple(pair),
                unit="share",
                of=lambda one: one.mse,
                low=claimed[0],
                high=claimed[1],
            )


def seven(found: list[StudyResults]) -> Iterator[Check]:
    """Windows against each other."""
    of = {name: tasks(found, "idm-architecture", idm=name) for name in idms(found, "idm-architecture")}
    for other in ("k = 0", "k = 2"):
        yield better_iqm(name=f"k = 1 − {other}", groups=(of.get("k = 1", []), of.get(other, [])))
    for k in (1, 2):
        pair = (of.get(f"k = {k}, symmetric", []), of.get(f"k = {k}", []))
        yield same_iqm(name=f"k = {k}: symmetric − asymmetric", groups=pair)


def _thirds(found: list[StudyResults], axis: str, apart: dict[tuple[str, str], float]) -> Iterator[Check]:
    for at, name in _places(found, "labelled-quality", "dataset", "agent"):
        for (above, below), least in apart.items():
            pair = (tasks(found, "labelled-quality", **at, **{axis: third}) for third in (above, below))
            yield better_iqm(name=f"{name}: {axis} {above} − {below}", groups=tuple(pair), low=least)


def eight(found: list[StudyResults]) -> Iterator[Check]:
    """Labelled thirds against each other."""
    return _thirds(found, "labelled", {("med", "low"): 0.0, ("high", "med"): 0.0, ("high", "low"): FAR})


def nine(found: list[StudyResults]) -> Iterator[Check]:
    """Unlabelled thirds against each other."""
    return _thirds(found, "unlabelled", {("med", "low"): 0.0, ("high", "med"): 0.0, ("high", "low"): 0.0})


def ten(found: list[StudyResults]) -> Iterator[Check]:
    """More labelled trajectories against 10 %."""
    for at, name in _places(found, "labelled-size", "agent"):
        for more in (0.25, 0.5):
            pair = (tasks(found, "labelled-size", **at, labelled_fraction=f) for f in (more, 0.1))
            yield same_iqm(name=f"{name}: {share(more)} labelled − 10 %", groups=tuple(pair))


def eleven(found: list[StudyResults]) -> Iterator[Check]:
    """More unlabelled trajectories against 10 %."""
    for more in (0.25, 0.5):
        pair = (tasks(found, "unlabelled-size", agent="cql", unlabelled_fraction=f) for f in (more, 0.1))
        yield same_iqm(name=f"cql: {share(more)} unlabelled − 10 %", groups=tuple(pair))
    at = {"agent": "dt", "labelled": "high", "unlabelled": ("low", "med")}
    pair = (tasks(found, "unlabelled-size", **at, unlabelled_fraction=f) for f in (0.5, 0.1))
    name = "dt, high with low or med: 50 % unlabelled − 10 %"
    yield better_iqm(name=name, groups=tuple(pair), low=-math.inf, high=0.0)


def twelve(found: list[StudyResults]) -> Iterator[Check]:
    """Relative gaps of the agents against each other."""

    def of(agent: str) -> tuple[Group, Group]:
        ss, oracle = (tasks(found, "gap-by-agent", agent=agent, variant=v) for v in ("ss", "oracle"))
        return ss, oracle

    apart = partial(Check, statistic=_gap_difference, unit="share")
    for agent in ("dt", "cql"):
        yield apart(name=f"gap of SS-{agent.upper()} − of SS-TD3BC", groups=(*of(agent), *of("td3bc")), low=0.0)
    yield apart(name="gap of SS-DT − of SS-CQL", groups=(*of("dt"), *of("cql")), low=-ALIKE, high=ALIKE)


def _relative_error(ours: statistics.Strata, theirs: statistics.Strata):
    """(ours - theirs) / theirs."""
    return -statistics.relative_gap(ours, theirs)


def _gap_difference(a: statistics.Strata, best_a: statistics.Strata, b: statistics.Strata, best_b: statistics.Strata):
    return statistics.iqm_gap(a, best_a) - statistics.iqm_gap(b, best_b)


def idms(found: list[StudyResults], study: str) -> list[str]:
    """The inverse dynamics models that a study compares."""
    return values(of_study(found, study), "idm")


def share(value: float) -> str:
    """As a percentage."""
    return f"{100 * value:g} %"
