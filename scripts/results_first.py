"""What stands first on the results page: what all studies say together."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
from results_labels import gap, needed
from results_shared import (
    IDMS,
    NAMED,
    PUBLISHED,
    ROOT,
    SCALES,
    TITLES,
    TRAINING,
    interval,
    mains,
    table,
    wholes,
    words,
)

from ssorl.study import statistics
from ssorl.study.claims.judge import Verdict, ledger
from ssorl.study.paper import STUDIES
from ssorl.study.report import panels
from ssorl.study.report.claims import one_number
from ssorl.study.results import gather, select, values

ORACLES = ROOT / "results" / "oracle.jsonl"  # of benchmarks/oracle.py


POLICIES = ("last", "average")  # whose weights score
Ledgers = dict[tuple[str, str], list[Verdict]]  # by scale and policy


def first(store: Path, figures: Path) -> list[str]:
    """All that stands before the studies."""
    ledgers = {(scale, policy): ledger(store, scale, policy=policy) for scale in SCALES for policy in POLICIES}
    told = [in_short(store, ledgers), claims(ledgers), worth(store), gap(store), needed(store, figures)]
    return [*told, scales(store), lengths(store)]


def in_short(store: Path, ledgers: Ledgers) -> str:
    """What the better labels are worth and how the claims stand, in a few lines."""
    study, sides = STUDIES.get("idm-robust"), {"labelled tenth alone": {"variant": "baseline"}}
    sides |= {f"SS, {NAMED[idm]} labels": {"variant": "ss", "idm": idm} for idm in IDMS}
    sides["all actions known"] = {"variant": "oracle"}
    rows = []
    for scale, only in [(name, one) for name in SCALES if study for one in wholes(study, name, store)]:
        found = gather(study, scale, store, only=only or None, policy="average")
        names, qualities = values(found, "dataset"), ", ".join(f"{q:g}" for q in values(found, "quality"))
        about = f"q = {qualities}; {TRAINING[scale]}, {len(values(found, 'seed'))} seeds"
        for where in [names, *([name] for name in names)] if len(names) > 1 else [names]:
            mine = [one for one in found if one.at["dataset"] in where]
            scores = [interval(panels.estimate(statistics.mean, panels.tasks(mine, at))) for at in sides.values()]
            told = f"{' and '.join(where)}, {about}" if where == names else f"… {where[0]} alone"
            rows.append([told, *scores])
    lines = ["## In short", "", table(["TD3+BC, averaged weights", *sides], rows) if rows else "", ""]
    for scale in SCALES:
        last, average = (ledgers[scale, policy] for policy in POLICIES)
        outcomes = Counter(verdict.outcome for verdict in last)
        told = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.most_common())
        lines.append(
            f"- The paper's twelve claims at scale {scale}: {told}. Of the checks whose cells are there {says(last)}; "
            f"by averaged weights, which swing less, {says(average)} "
            f"(`ssorl study report claims --scale {scale} --policy average`)."
        )
    return "\n".join(lines)


def claims(ledgers: Ledgers) -> str:
    """Each of the paper's claims in one number and its verdict, at the scales that have any."""
    there = [scale for scale in SCALES[::-1] if any(one.whole.estimate for one in ledgers[scale, "last"])]
    if not there:
        return ""
    rows = []
    for i, first in enumerate(ledgers[there[0], "last"]):
        told, claim = one_number(first.whole), first.claim
        row = [str(claim.number), f"{claim.statement}<br>*{told.name}: {told.claimed}*"]
        rows.append(row + [judged([ledgers[scale, policy][i] for policy in POLICIES]) for scale in there])
    head = ["", "the paper says, *and as claimed in one number*", *(TITLES[scale] for scale in there)]
    return "\n\n".join(["## The paper's claims in one number each", words("page", "claims"), table(head, rows)])


def judged(by_policy: list[Verdict]) -> str:
    """The number by each policy, which way it points, of how many places where some are missing; and the verdict."""
    if not any(one.whole.estimate for one in by_policy):
        return "–"
    last = by_policy[0]
    lines = [f"{POINTS[one.whole.so_far]} {one_number(one.whole).value}" for one in by_policy]
    lines += [f"at {one_number(last.whole).places} places"] if last.whole.missing else []
    n = last.counts
    return "<br>".join([*lines, f"{last.outcome}: {n['holds']} hold, {n['fails']} fail, {n['open']} open"])


POINTS = {"holds": "✓", "fails": "✗", "open": "?"}


def worth(store: Path) -> str:
    """What the unlabelled data adds over all qualities, wherever all of them were run."""
    rows, added, alike = [], [], []
    for scale in SCALES:
        for study in mains():
            whole = gather(study, scale, store)
            for agent, dataset in dict.fromkeys((one.at["agent"], one.at["dataset"]) for one in whole):
                found = select(whole, {"agent": agent, "dataset": dataset})
                if not all(one.result for one in found):
                    continue
                ss, base = panels.paired(found, {"variant": "ss"}, {"variant": "baseline"})
                more = panels.estimate(statistics.difference(statistics.mean), ss, base)
                ends = (base, ss, panels.tasks(found, {"variant": "oracle"}))
                told = [panels.estimate(statistics.mean, one) for one in ends]
                added += filter(None, [more])
                alike.append(seeds_alike(ss, base))
                scores = (interval(one).replace("-", "−") for one in (*told[:2], more, told[2]))
                rows.append([agent.upper(), dataset, TITLES[scale], *scores])
    if not rows:
        return ""
    head = ["agent", "dataset", "training", "labelled tenth alone", "SS", "SS − alone", "all actions known"]
    above, below = surely(added)
    told = ["## What is the unlabelled data worth?", words("page", "worth"), table(head, rows)]
    told += [f"Of {len(rows)} differences {above} are surely above zero, and {below} surely below."]
    if known := [one for one in alike if one is not None]:
        times = float(np.mean(known))
        above, below = surely(added, times**0.5)
        told += [words("page", "alike").format(more=times, wider=times**0.5, above=above, below=below)]
    return "\n\n".join(told)


def seeds_alike(x: list[list[float]], y: list[list[float]]) -> float | None:
    """How the means of seeds over all tasks vary, of x less y, against what separate luck at each task would give."""
    a, b = np.asarray(x), np.asarray(y)  # [tasks, seeds]
    apart = (a.var(1, ddof=1) + b.var(1, ddof=1)).mean() / len(a)
    return float((a - b).mean(0).var(ddof=1) / apart) if apart else None


def surely(some: list[statistics.Estimate], wider: float = 1.0) -> tuple[int, int]:
    """How many are above zero and how many below, by intervals that many times as wide."""
    above = sum(one.value - wider * (one.value - one.low) > 0 for one in some)
    return above, sum(one.value + wider * (one.high - one.value) < 0 for one in some)


def scales(store: Path) -> str:
    """The same places at both scales: what of lite's results is the scale's own."""
    places: dict[tuple, dict[str, list[dict]]] = {}
    for scale in SCALES:
        for one in gather(STUDIES["main-medium-expert"], scale, store) if "main-medium-expert" in STUDIES else ():
            if one.result:
                where = tuple(one.at.get(axis) for axis in ("agent", "dataset", "variant", "quality"))
                places.setdefault(where, {}).setdefault(scale, []).append(one.result["scores"])
    both = {where: told for where, told in places.items() if len(told) == len(SCALES)}
    rows = []
    for agent, dataset, variant in dict.fromkeys(where[:3] for where in both):
        some = {where[3]: told for where, told in both.items() if where[:3] == (agent, dataset, variant)}
        qualities = "–" if variant == "oracle" else ", ".join(f"{q:g}" for q in some)
        seeds = (" and ".join(sorted({str(len(told[scale])) for told in some.values()})) for scale in ("lite", "paper"))
        scores = (
            " → ".join(
                f"{np.mean([np.mean([one[policy] for one in told[scale]]) for told in some.values()]):.1f}"
                for scale in ("lite", "paper")
            )
            for policy in ("last", "average")
        )
        rows.append([agent.upper(), dataset, variant, qualities, " → ".join(seeds), *scores])
    if not rows:
        return ""
    head = ["agent", "dataset", "variant", "q", "seeds", "last weights", "averaged weights"]
    return "\n\n".join(["## Do the scales agree?", words("page", "agree"), table(head, rows)])


def lengths(store: Path) -> str:
    """How far the oracles came, half way and at the end, beside what others report on D4RL's files."""
    rows = []
    for study in mains():
        for scale in SCALES:
            found = [one for one in gather(study, scale, store) if one.result and one.at["variant"] == "oracle"]
            for agent, dataset in dict.fromkeys((one.at["agent"], one.at["dataset"]) for one in found):
                mine = {one.hash: one.result for one in select(found, {"agent": agent, "dataset": dataset})}
                at = next(iter(mine.values()))["curve"]["at"]
                half = np.mean([one["curve"]["score"][np.searchsorted(at, at[-1] / 2)] for one in mine.values()])
                ends = [np.mean([one["scores"][policy] for one in mine.values()]) for policy in ("last", "average")]
                scores = [f"{score:.0f}".replace("-", "−") for score in (half, *ends)]
                known = PUBLISHED.get(dataset, {}).get(agent)
                rows.append(
                    [agent.upper(), dataset, TITLES[scale], str(len(mine)), *scores, f"{known:.0f}" if known else "–"]
                )
    head = ["agent", "all actions known", "training", "seeds", "half way", "last weights", "averaged", "published"]
    told = ["## Were the trainings long enough?", words("page", "lengths"), table(head, rows), words("page", "longer")]
    return "\n\n".join([*told, longer()]) if rows else ""


def longer() -> str:
    """Oracles at the batch that TD3+BC was published with, as they went on."""
    lines = map(json.loads, ORACLES.read_text().splitlines())
    looks: dict[tuple[str, str], dict[int, float]] = {}
    for told in lines:
        if told["device"] == "cpu" and told["agent"] == "td3bc" and told["settings"]["batch"] == 256:
            looks.setdefault((f"{told['env']}-{told['level']}", told["kind"]), {})[told["at"]] = told["score"]
    at = sorted({at for one in looks.values() for at in one})
    rows = [[f"{dataset}, {kind} weights", *(f"{one[n]:.0f}" for n in at)] for (dataset, kind), one in looks.items()]
    head = ["updates, thousands", *(f"{n / 1000:g}" for n in at)]
    return table(head, rows)


def says(verdicts: list[Verdict]) -> str:
    """How many checks hold, of those that can be made."""
    n = Counter(one.says for verdict in verdicts for one in verdict.judged if not one.missing)
    return f"{n['holds']} hold, {n['fails']} fail, and of {n['open']} the interval is too wide to tell"
