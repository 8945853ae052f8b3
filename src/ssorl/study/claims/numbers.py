"""One number for each of the paper's claims, over all places that the claim is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

from ssorl.study import statistics
from ssorl.study.claims.checks import ELSEWHERE, better, better_iqm, claim_5, claim_11, gap, idms, same_iqm
from ssorl.study.claims.judge import Check, Group, tasks
from ssorl.study.results import StudyResults


def _ss_and_baseline(results: list[StudyResults], *studies: str) -> tuple[Group, Group]:
    variants = ("ss", "baseline")
    ss, baseline = ([task for study in studies for task in tasks(results, study, variant=v)] for v in variants)
    return ss, baseline


def mean_gain(study: str) -> Callable[[list[StudyResults]], Check]:
    """Return a function that makes the check of the mean difference of SS and baseline in a study."""
    return lambda results: better(name="mean of SS − mean of the baseline", groups=_ss_and_baseline(results, study))


def iqm_gain_elsewhere(results: list[StudyResults]) -> Check:
    """Return the check of the difference of SS and baseline on the further datasets."""
    # Scores of mazes have a larger range than those of robots: one maze would dominate a mean, but not an IQM.
    return better_iqm(name="IQM of SS − IQM of the baseline", groups=_ss_and_baseline(results, *ELSEWHERE))


def mean_gap_at_100(results: list[StudyResults]) -> Check:
    """Return the check of the relative gap of SS to the oracle at q = 100."""
    pair = (tasks(results, "main-medium-expert", quality=100, variant=v) for v in ("ss", "oracle"))
    return gap(name="mean relative gap of SS at q = 100", groups=tuple(pair))


def _against_others(results: list[StudyResults], study: str, comparison: str, ours: str, *others: str) -> Check:
    groups = [tasks(results, study, idm=name) for name in others] or [[]]  # empty if --only leaves no other
    return Check(f"IQM with {comparison}", _minus_mean_of_others, (tasks(results, study, idm=ours), *groups), low=0.0)


def one_round_gain(results: list[StudyResults]) -> Check:
    """Return the check of one round against self-training."""
    others = (name for name in idms(results, "self-training") if name != "ours")
    return _against_others(results, "self-training", "one round − mean of self-training", "ours", *others)


def one_step_gain(results: list[StudyResults]) -> Check:
    """Return the check of the paper's window against the shorter and the longer window."""
    return _against_others(results, "idm-architecture", "k = 1 − mean of k = 0 and k = 2", "k = 1", "k = 0", "k = 2")


def high_minus_low(axis: str, least: float) -> Callable[[list[StudyResults]], Check]:
    """Return a function that makes the check of the best third against the worst.

    Args:
        axis: "labelled" or "unlabelled".
        least: lower end of the claimed range.
    """

    def check(results: list[StudyResults]) -> Check:
        pair = (tasks(results, "labelled-quality", **{axis: third}) for third in ("high", "low"))
        return better_iqm(name=f"IQM with {axis} high − low", groups=tuple(pair), low=least)

    return check


def ss_dt_minus_joint(results: list[StudyResults]) -> Check:
    """Return the check of SS-DT against DT-Joint."""
    first, *_ = claim_5(results)
    return replace(first, name=f"IQM of {first.name}")


def dt_with_more_unlabelled(results: list[StudyResults]) -> Check:
    """Return the check of DT with more unlabelled trajectories of lower quality."""
    *_, last = claim_11(results)
    return replace(last, name=f"IQM of {last.name}")


def half_minus_tenth_labelled(results: list[StudyResults]) -> Check:
    """Return the check of 50 % labelled against 10 %."""
    pair = (tasks(results, "labelled-size", labelled_fraction=f) for f in (0.5, 0.1))
    return same_iqm(name="IQM with 50 % labelled − 10 %", groups=tuple(pair))


def gap_minus_td3bc(results: list[StudyResults]) -> Check:
    """Return the check of the gaps of DT and CQL against that of TD3+BC."""
    both = product(("dt", "cql", "td3bc"), ("ss", "oracle"))
    groups = (tasks(results, "gap-by-agent", agent=agent, variant=variant) for agent, variant in both)
    name = "IQM of the gap: mean of SS-DT and SS-CQL − SS-TD3BC"
    return Check(name, _gap_minus_third, tuple(groups), low=0.0, unit="share")


def _minus_mean_of_others(ours: statistics.Strata, *others: statistics.Strata):
    return statistics.iqm(ours) - sum(map(statistics.iqm, others)) / len(others)


def _gap_minus_third(*groups: statistics.Strata):
    """Return the mean gap of the first two agents minus that of the third; each agent is followed by its oracle."""
    first, second, third = (statistics.iqm_gap(*groups[i : i + 2]) for i in (0, 2, 4))
    return (first + second) / 2 - third
