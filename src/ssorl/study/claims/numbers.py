"""Each of the paper's claims in one number, over all places that it speaks of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

from ssorl.study import statistics
from ssorl.study.claims.checks import ELSEWHERE, better, better_iqm, eleven, five, gap, idms, same_iqm
from ssorl.study.claims.judge import Check, Group, tasks
from ssorl.study.results import StudyResults


def _ss_and_alone(found: list[StudyResults], *studies: str) -> tuple[Group, Group]:
    ss, alone = ([one for study in studies for one in tasks(found, study, variant=v)] for v in ("ss", "baseline"))
    return ss, alone


def gain(study: str) -> Callable[[list[StudyResults]], Check]:
    """What the unlabelled data adds in a study."""
    return lambda found: better(name="mean of SS − of the labelled data alone", groups=_ss_and_alone(found, study))


def gain_elsewhere(found: list[StudyResults]) -> Check:
    """What it adds on the further datasets."""
    # A maze's points are of another size than a robot's, and in a mean one maze would be most of it.
    return better_iqm(name="IQM of SS − of the labelled data alone", groups=_ss_and_alone(found, *ELSEWHERE))


def all_reach(found: list[StudyResults]) -> Check:
    """How far SS stays below the oracle."""
    pair = (tasks(found, "main-medium-expert", quality=100, variant=v) for v in ("ss", "oracle"))
    return gap(name="mean relative gap of SS at q = 100", groups=tuple(pair))


def _rivals(found: list[StudyResults], study: str, named: str, ours: str, *others: str) -> Check:
    rivals = [tasks(found, study, idm=name) for name in others] or [[]]  # in a part of the results there may be none
    return Check(f"IQM with {named}", _above_others, (tasks(found, study, idm=ours), *rivals), low=0.0)


def one_round(found: list[StudyResults]) -> Check:
    """One round against all that train themselves."""
    others = (name for name in idms(found, "self-training") if name != "ours")
    return _rivals(found, "self-training", "one round − mean of the self-trained", "ours", *others)


def one_step(found: list[StudyResults]) -> Check:
    """The window of the paper against the shorter and the longer one."""
    return _rivals(found, "idm-architecture", "k = 1 − mean of k = 0 and k = 2", "k = 1", "k = 0", "k = 2")


def high_and_low(axis: str, least: float) -> Callable[[list[StudyResults]], Check]:
    """The best third against the worst."""

    def of(found: list[StudyResults]) -> Check:
        pair = (tasks(found, "labelled-quality", **{axis: third}) for third in ("high", "low"))
        return better_iqm(name=f"IQM with {axis} high − low", groups=tuple(pair), low=least)

    return of


def far_above_joint(found: list[StudyResults]) -> Check:
    """SS-DT against DT-Joint."""
    first, *_ = five(found)
    return replace(first, name=f"IQM of {first.name}")


def worse_with_more(found: list[StudyResults]) -> Check:
    """DT with more and worse unlabelled trajectories."""
    *_, last = eleven(found)
    return replace(last, name=f"IQM of {last.name}")


def most_and_least(found: list[StudyResults]) -> Check:
    """Half of the data labelled against a tenth."""
    pair = (tasks(found, "labelled-size", labelled_fraction=f) for f in (0.5, 0.1))
    return same_iqm(name="IQM with 50 % labelled − 10 %", groups=tuple(pair))


def least_gap(found: list[StudyResults]) -> Check:
    """TD3+BC's gap against the others'."""
    both = product(("dt", "cql", "td3bc"), ("ss", "oracle"))
    groups = (tasks(found, "gap-by-agent", agent=agent, variant=variant) for agent, variant in both)
    name = "IQM of the gap: mean of SS-DT and SS-CQL − SS-TD3BC"
    return Check(name, _gap_above, tuple(groups), low=0.0, unit="share")


def _above_others(ours: statistics.Strata, *others: statistics.Strata):
    return statistics.iqm(ours) - sum(map(statistics.iqm, others)) / len(others)


def _gap_above(*groups: statistics.Strata):
    """Of three agents, each with its oracle: the mean gap of the first two less the third's."""
    first, second, third = (statistics.iqm_gap(*groups[i : i + 2]) for i in (0, 2, 4))
    return (first + second) / 2 - third
