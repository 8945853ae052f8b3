"""The twelve claims of the paper, each with the checks that it stands on (claims.py judges them)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from ssorl.study import stats
from ssorl.study.claims import Check, Claim, Group, of_study, tasks
from ssorl.study.found import Found, values

REACHES = 0.10  # relative gap below which an agent reaches the oracle
ALIKE = 0.05  # difference of relative gaps that is none
SAME = 5.0  # points of normalised return that are no difference
FAR = 10.0  # points that are a large one
COMPARABLE = 0.20  # share of an error by which a comparable one differs at most

_better = partial(Check, statistic=stats.difference(stats.mean), low=0.0)  # at one task, or each counting the same
_better_iqm = partial(Check, statistic=stats.difference(stats.iqm), low=0.0)
_same_iqm = partial(Check, statistic=stats.difference(stats.iqm), low=-SAME, high=SAME)
_gap = partial(Check, statistic=stats.relative_gap, high=REACHES, unit="share")


def _places(found: list[Found], study: str, *names: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Every combination of coordinates that a study has, with its name."""
    seen: dict[tuple, dict] = {}
    for one in of_study(found, study):
        at = {name: one.at[name] for name in names if name in one.at}
        seen.setdefault(tuple(at.items()), at)
    for at in seen.values():
        yield (
            at,
            " ".join(
                f"q = {v:g}" if k == "quality" else _share(v) if k == "fraction" else str(v) for k, v in at.items()
            ),
        )


def _beats(found: list[Found], study: str, *names: str) -> Iterator[Check]:
    """SS against the baseline at every place."""
    for at, name in _places(found, study, *names):
        pair = (tasks(found, study, **at, variant="ss"), tasks(found, study, **at, variant="baseline"))
        yield _better(name=name, groups=pair)


def _reaches(found: list[Found], study: str, *names: str) -> Iterator[Check]:
    """SS against the oracle with labels from all trajectories."""
    for at, name in _places(found, study, *names):
        pair = (tasks(found, study, **at, quality=100, variant=v) for v in ("ss", "oracle"))
        yield _gap(name=f"{name} q = 100: relative gap of SS", groups=tuple(pair))


def _one(found: list[Found]) -> Iterator[Check]:
    yield from _beats(found, "main-medium-expert", "dataset", "agent", "quality")


def _two(found: list[Found]) -> Iterator[Check]:
    yield from _reaches(found, "main-medium-expert", "dataset", "agent")


def _three(found: list[Found]) -> Iterator[Check]:
    yield from _beats(found, "low-label", "fraction", "agent", "quality")
    yield from _reaches(found, "low-label", "fraction", "agent")


def _four(found: list[Found]) -> Iterator[Check]:
    for study in ("main-medium", "main-medium-replay", "main-halfcheetah", "wide-subsample", "maze2d"):
        yield from _beats(found, study, "dataset", "agent")
        for at, name in _places(found, study, "dataset", "agent"):
            best, worst = (tasks(found, study, **at, variant="ss", quality=q) for q in (100, 10))
            yield _better(name=f"{name}: SS, q = 100 − q = 10", groups=(best, worst))


def _five(found: list[Found]) -> Iterator[Check]:
    def of(agent: str, variant: str = "ss") -> Group:
        return tasks(found, "dt-joint", agent=agent, variant=variant)

    joint = of("dt-joint")
    yield _better_iqm(name="SS-DT − DT-Joint", groups=(of("dt"), joint), low=FAR)
    yield _better_iqm(name="DT-Joint − baseline", groups=(joint, of("dt", "baseline")), high=FAR)
    yield _better_iqm(name="SS-CQL − DT-Joint", groups=(of("cql"), joint))
    yield _better_iqm(name="SS-TD3BC − DT-Joint", groups=(of("td3bc"), joint))


def _six(found: list[Found]) -> Iterator[Check]:
    others = [name for name in _idms(found, "self-training") if name != "ours"]
    for words, at in (("", {}), (" at q ≤ 50", {"quality": (10, 30, 50)})):
        for name in others:
            pair = (tasks(found, "self-training", idm=who, **at) for who in ("ours", name))
            yield _better_iqm(name=f"return over {name}{words}", groups=tuple(pair))
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


def _seven(found: list[Found]) -> Iterator[Check]:
    of = {name: tasks(found, "idm-architecture", idm=name) for name in _idms(found, "idm-architecture")}
    for other in ("k = 0", "k = 2"):
        yield _better_iqm(name=f"k = 1 − {other}", groups=(of.get("k = 1", []), of.get(other, [])))
    for k in (1, 2):
        pair = (of.get(f"k = {k}, symmetric", []), of.get(f"k = {k}", []))
        yield _same_iqm(name=f"k = {k}: symmetric − asymmetric", groups=pair)


def _thirds(found: list[Found], axis: str, apart: dict[tuple[str, str], float]) -> Iterator[Check]:
    for at, name in _places(found, "labelled-quality", "dataset", "agent"):
        for (better, worse), least in apart.items():
            pair = (tasks(found, "labelled-quality", **at, **{axis: third}) for third in (better, worse))
            yield _better_iqm(name=f"{name}: {axis} {better} − {worse}", groups=tuple(pair), low=least)


def _eight(found: list[Found]) -> Iterator[Check]:
    return _thirds(found, "labelled", {("med", "low"): 0.0, ("high", "med"): 0.0, ("high", "low"): FAR})


def _nine(found: list[Found]) -> Iterator[Check]:
    return _thirds(found, "unlabelled", {("med", "low"): 0.0, ("high", "med"): 0.0, ("high", "low"): 0.0})


def _ten(found: list[Found]) -> Iterator[Check]:
    for at, name in _places(found, "labelled-size", "agent"):
        for more in (0.25, 0.5):
            pair = (tasks(found, "labelled-size", **at, labelled_fraction=f) for f in (more, 0.1))
            yield _same_iqm(name=f"{name}: {_share(more)} labelled − 10 %", groups=tuple(pair))


def _eleven(found: list[Found]) -> Iterator[Check]:
    for more in (0.25, 0.5):
        pair = (tasks(found, "unlabelled-size", agent="cql", unlabelled_fraction=f) for f in (more, 0.1))
        yield _same_iqm(name=f"cql: {_share(more)} unlabelled − 10 %", groups=tuple(pair))
    at = {"agent": "dt", "labelled": "high", "unlabelled": ("low", "med")}
    pair = (tasks(found, "unlabelled-size", **at, unlabelled_fraction=f) for f in (0.5, 0.1))
    name = "dt, high with low or med: 50 % unlabelled − 10 %"
    yield _better_iqm(name=name, groups=tuple(pair), low=-math.inf, high=0.0)


def _twelve(found: list[Found]) -> Iterator[Check]:
    def of(agent: str) -> tuple[Group, Group]:
        ss, oracle = (tasks(found, "gap-by-agent", agent=agent, variant=v) for v in ("ss", "oracle"))
        return ss, oracle

    apart = partial(Check, statistic=_gap_difference, unit="share")
    for agent in ("dt", "cql"):
        yield apart(name=f"gap of SS-{agent.upper()} − of SS-TD3BC", groups=(*of(agent), *of("td3bc")), low=0.0)
    yield apart(name="gap of SS-DT − of SS-CQL", groups=(*of("dt"), *of("cql")), low=-ALIKE, high=ALIKE)


def _relative_error(ours: stats.Strata, theirs: stats.Strata):
    """(ours - theirs) / theirs."""
    return -stats.relative_gap(ours, theirs)


def _gap_difference(a: stats.Strata, best_a: stats.Strata, b: stats.Strata, best_b: stats.Strata):
    return stats.iqm_gap(a, best_a) - stats.iqm_gap(b, best_b)


def _idms(found: list[Found], study: str) -> list[str]:
    return values(of_study(found, study), "idm")


def _share(value: float) -> str:
    return f"{100 * value:g} %"


CLAIMS = (
    Claim(
        1,
        "SS beats the baseline at every q, on hopper and walker2d medium-expert, for each of DT, CQL and TD3BC.",
        "The difference of the mean scores of SS and baseline at each dataset, agent and q is above 0.",
        _one,
    ),
    Claim(
        2,
        "SS reaches the oracle as q goes to 100.",
        f"The relative gap of SS at q = 100 is below {_share(REACHES)} for each dataset and agent.",
        _two,
    ),
    Claim(
        3,
        "Both hold with 1, 3, 5 and 8 % labelled.",
        "The checks of the first two claims on walker2d medium-expert at each share of labels.",
        _three,
    ),
    Claim(
        4,
        "The trend holds on medium, medium-replay, halfcheetah, the wide subsample and maze2d.",
        "For each dataset and agent, SS is above the baseline over all q together, and higher at q = 100 than at 10.",
        _four,
    ),
    Claim(
        5,
        "SS-DT is far better than DT-Joint, which is only slightly better than the baseline; SS-CQL and SS-TD3BC "
        "beat it too.",
        f"Differences of IQMs over all q: above {FAR:g} points for far, between 0 and {FAR:g} for slightly better.",
        _five,
    ),
    Claim(
        6,
        "The inverse dynamics model of one round beats self-training in return, though its action error is only "
        "comparable at q ≤ 50 and better above.",
        "Differences of IQMs over all q and agents are above 0; the error of one round differs by less than "
        f"{_share(COMPARABLE)} at q ≤ 50 and is lower above.",
        _six,
    ),
    Claim(
        7,
        "Windows with k = 1 beat k = 0 and k = 2; symmetric and asymmetric ones are alike.",
        f"Differences of IQMs over all q and agents: above 0 for better, within {SAME:g} points for alike.",
        _seven,
    ),
    Claim(
        8,
        "Better labelled data make SS much better.",
        f"Differences of IQMs between thirds are above 0, and above {FAR:g} points from low to high.",
        _eight,
    ),
    Claim(
        9,
        "Better unlabelled data make SS better, and high is clearly best.",
        "Differences of IQMs between thirds are above 0.",
        _nine,
    ),
    Claim(
        10,
        "The size of the labelled data, 10 to 50 %, changes little.",
        f"Differences of IQMs to 10 % are within {SAME:g} points.",
        _ten,
    ),
    Claim(
        11,
        "The size of the unlabelled data leaves CQL indifferent; DT gets worse where the labelled are high and the "
        "unlabelled are worse and grow.",
        f"For CQL, differences of IQMs to 10 % are within {SAME:g} points; for DT there, 50 % is below 10 %.",
        _eleven,
    ),
    Claim(
        12,
        "TD3BC has the smallest relative gap; DT and CQL are alike.",
        f"Differences of the IQMs of relative gaps: above 0, and within {_share(ALIKE)} for alike.",
        _twelve,
    ),
)
