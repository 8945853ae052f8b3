"""The first sections of the results page: what all studies show together."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
from results_labels import gap_by_labels, required_accuracy
from results_shared import (
    IDMS,
    NAMED,
    PUBLISHED,
    ROOT,
    SCALES,
    TITLES,
    TRAINING,
    interval,
    main_studies,
    parts_to_show,
    table,
    words,
)

from ssorl.study import statistics
from ssorl.study.claims.judge import Verdict, ledger
from ssorl.study.paper import STUDIES
from ssorl.study.report import panels
from ssorl.study.report.claims import one_number
from ssorl.study.results import gather, select, values

ORACLES = ROOT / "results" / "oracle.jsonl"  # written by benchmarks/oracle.py
POLICIES = ("last", "average")  # weights that are scored
Ledgers = dict[tuple[str, str], list[Verdict]]  # by scale and policy


def first(store: Path, figures: Path) -> list[str]:
    """Return the sections before those of the studies."""
    ledgers = {(scale, policy): ledger(store, scale, policy=policy) for scale in SCALES for policy in POLICIES}
    sections = [summary(store, ledgers), claims_table(ledgers), unlabelled_gain(store), gap_by_labels(store)]
    return [*sections, required_accuracy(store, figures), compare_scales(store), training_lengths(store)]


def summary(store: Path, ledgers: Ledgers) -> str:
    """Return a short table of the gain by better labels, and the counts of verdicts."""
    study, sides = STUDIES.get("idm-robust"), {"labelled tenth alone": {"variant": "baseline"}}
    sides |= {f"SS, {NAMED[idm]} labels": {"variant": "ss", "idm": idm} for idm in IDMS}
    sides["all actions known"] = {"variant": "oracle"}
    rows = []
    for scale, only in [(name, entry) for name in SCALES if study for entry in parts_to_show(study, name, store)]:
        results = gather(study, scale, store, only=only or None, policy="average")
        names, qualities = values(results, "dataset"), ", ".join(f"{q:g}" for q in values(results, "quality"))
        about = f"q = {qualities}; {TRAINING[scale]}, {len(values(results, 'seed'))} seeds"
        for where in [names, *([name] for name in names)] if len(names) > 1 else [names]:
            mine = [entry for entry in results if entry.at["dataset"] in where]
            scores = [interval(panels.estimate(statistics.mean, panels.tasks(mine, at))) for at in sides.values()]
            place = f"{' and '.join(where)}, {about}" if where == names else f"… {where[0]} alone"
            rows.append([place, *scores])
    lines = ["## In short", "", table(["TD3+BC, averaged weights", *sides], rows) if rows else "", ""]
    for scale in SCALES:
        last, average = (ledgers[scale, policy] for policy in POLICIES)
        outcomes = Counter(verdict.outcome for verdict in last)
        counts = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.most_common())
        lines.append(
            f"- The paper's twelve claims at scale {scale}: {counts}. Of the checks with all cells, "
            f"{check_counts(last)}; by averaged weights, which vary less during training, {check_counts(average)} "
            f"(`ssorl study report claims --scale {scale} --policy average`)."
        )
    return "\n".join(lines)


def claims_table(ledgers: Ledgers) -> str:
    """Return a table of each claim's one number and verdict, at the scales with results."""
    scales = [scale for scale in SCALES[::-1] if any(entry.whole.estimate for entry in ledgers[scale, "last"])]
    if not scales:
        return ""
    rows = []
    for i, first in enumerate(ledgers[scales[0], "last"]):
        number, claim = one_number(first.whole), first.claim
        row = [str(claim.number), f"{claim.statement}<br>*{number.name}: {number.claimed}*"]
        rows.append(row + [claim_cell([ledgers[scale, policy][i] for policy in POLICIES]) for scale in scales])
    head = ["", "the paper says, *and as claimed in one number*", *(TITLES[scale] for scale in scales)]
    return "\n\n".join(["## The paper's claims in one number each", words("page", "claims"), table(head, rows)])


def claim_cell(by_policy: list[Verdict]) -> str:
    """Return one table cell: the number by both weights, the number of places if incomplete, and the verdict."""
    if not any(entry.whole.estimate for entry in by_policy):
        return "–"
    last = by_policy[0]
    lines = [f"{POINTS[entry.whole.so_far]} {one_number(entry.whole).value}" for entry in by_policy]
    lines += [f"at {one_number(last.whole).places} places"] if last.whole.missing else []
    n = last.counts
    return "<br>".join([*lines, f"{last.outcome}: {n['holds']} hold, {n['fails']} fail, {n['open']} open"])


POINTS = {"holds": "✓", "fails": "✗", "open": "?"}


def unlabelled_gain(store: Path) -> str:
    """Return a table of the gain of SS over the baseline, where all qualities were run."""
    rows, added, ratios = [], [], []
    for scale in SCALES:
        for study in main_studies():
            whole = gather(study, scale, store)
            for agent, dataset in dict.fromkeys((entry.at["agent"], entry.at["dataset"]) for entry in whole):
                results = select(whole, {"agent": agent, "dataset": dataset})
                if not all(entry.result for entry in results):
                    continue
                ss, base = panels.paired(results, {"variant": "ss"}, {"variant": "baseline"})
                more = panels.estimate(statistics.difference(statistics.mean), ss, base)
                ends = (base, ss, panels.tasks(results, {"variant": "oracle"}))
                means = [panels.estimate(statistics.mean, group) for group in ends]
                added += filter(None, [more])
                ratios.append(shared_luck(ss, base))
                scores = (interval(mean).replace("-", "−") for mean in (*means[:2], more, means[2]))
                rows.append([agent.upper(), dataset, TITLES[scale], *scores])
    if not rows:
        return ""
    head = ["agent", "dataset", "training", "labelled tenth alone", "SS", "SS − alone", "all actions known"]
    above, below = count_sure(added)
    texts = ["## What is the unlabelled data worth?", words("page", "worth"), table(head, rows)]
    texts += [f"Of {len(rows)} differences {above} are surely above zero, and {below} surely below."]
    if known := [ratio for ratio in ratios if ratio is not None]:
        times = float(np.mean(known))
        above, below = count_sure(added, times**0.5)
        texts += [words("page", "alike").format(more=times, wider=times**0.5, above=above, below=below)]
    return "\n\n".join(texts)


def shared_luck(x: list[list[float]], y: list[list[float]]) -> float | None:
    """Return the variance of the seeds' mean differences x − y relative to that of independent tasks.

    Args:
        x: scores [tasks, seeds] of one variant.
        y: scores [tasks, seeds] of the other.

    Returns:
        The ratio: 1 if the tasks of a seed are independent; None if the scores do not vary.
    """
    a, b = np.asarray(x), np.asarray(y)  # [tasks, seeds]
    independent = (a.var(1, ddof=1) + b.var(1, ddof=1)).mean() / len(a)
    return float((a - b).mean(0).var(ddof=1) / independent) if independent else None


def count_sure(estimates: list[statistics.Estimate], wider: float = 1.0) -> tuple[int, int]:
    """Return how many estimates are above zero and how many below, with intervals `wider` times as wide."""
    above = sum(x.value - wider * (x.value - x.low) > 0 for x in estimates)
    return above, sum(x.value + wider * (x.high - x.value) < 0 for x in estimates)


def compare_scales(store: Path) -> str:
    """Return a table of the places with results at both scales."""
    places: dict[tuple, dict[str, list[dict]]] = {}
    for scale in SCALES:
        for entry in gather(STUDIES["main-medium-expert"], scale, store) if "main-medium-expert" in STUDIES else ():
            if entry.result:
                where = tuple(entry.at.get(axis) for axis in ("agent", "dataset", "variant", "quality"))
                places.setdefault(where, {}).setdefault(scale, []).append(entry.result["scores"])
    both = {where: by_scale for where, by_scale in places.items() if len(by_scale) == len(SCALES)}
    rows = []
    for agent, dataset, variant in dict.fromkeys(where[:3] for where in both):
        own = {where[3]: by_scale for where, by_scale in both.items() if where[:3] == (agent, dataset, variant)}
        qualities = "–" if variant == "oracle" else ", ".join(f"{q:g}" for q in own)
        seeds = (" and ".join(sorted({str(len(runs[scale])) for runs in own.values()})) for scale in ("lite", "paper"))
        scores = (
            " → ".join(
                f"{np.mean([np.mean([scores[policy] for scores in runs[scale]]) for runs in own.values()]):.1f}"
                for scale in ("lite", "paper")
            )
            for policy in ("last", "average")
        )
        rows.append([agent.upper(), dataset, variant, qualities, " → ".join(seeds), *scores])
    if not rows:
        return ""
    head = ["agent", "dataset", "variant", "q", "seeds", "last weights", "averaged weights"]
    return "\n\n".join(["## Do the scales agree?", words("page", "agree"), table(head, rows)])


def training_lengths(store: Path) -> str:
    """Return a table of the oracles' scores half way and at the end, beside published scores on D4RL's files."""
    rows = []
    for study in main_studies():
        for scale in SCALES:
            results = [
                entry for entry in gather(study, scale, store) if entry.result and entry.at["variant"] == "oracle"
            ]
            for agent, dataset in dict.fromkeys((entry.at["agent"], entry.at["dataset"]) for entry in results):
                mine = {entry.hash: entry.result for entry in select(results, {"agent": agent, "dataset": dataset})}
                at = next(iter(mine.values()))["curve"]["at"]
                half = np.mean([entry["curve"]["score"][np.searchsorted(at, at[-1] / 2)] for entry in mine.values()])
                ends = [np.mean([entry["scores"][policy] for entry in mine.values()]) for policy in ("last", "average")]
                scores = [f"{score:.0f}".replace("-", "−") for score in (half, *ends)]
                known = PUBLISHED.get(dataset, {}).get(agent)
                rows.append(
                    [agent.upper(), dataset, TITLES[scale], str(len(mine)), *scores, f"{known:.0f}" if known else "–"]
                )
    head = ["agent", "all actions known", "training", "seeds", "half way", "last weights", "averaged", "published"]
    texts = ["## Were the trainings long enough?", words("page", "lengths"), table(head, rows), words("page", "longer")]
    return "\n\n".join([*texts, longer_trainings()]) if rows else ""


def longer_trainings() -> str:
    """Return a table of TD3+BC oracles at the published batch, by updates."""
    lines = map(json.loads, ORACLES.read_text().splitlines())
    looks: dict[tuple[str, str], dict[int, float]] = {}
    for line in lines:
        if line["device"] == "cpu" and line["agent"] == "td3bc" and line["settings"]["batch"] == 256:
            looks.setdefault((f"{line['env']}-{line['level']}", line["kind"]), {})[line["at"]] = line["score"]
    at = sorted({at for entry in looks.values() for at in entry})
    rows = [
        [f"{dataset}, {kind} weights", *(f"{entry[n]:.0f}" for n in at)] for (dataset, kind), entry in looks.items()
    ]
    head = ["updates, thousands", *(f"{n / 1000:g}" for n in at)]
    return table(head, rows)


def check_counts(verdicts: list[Verdict]) -> str:
    """Return the numbers of checks with all cells that hold, fail and are open."""
    n = Counter(entry.says for verdict in verdicts for entry in verdict.judged if not entry.missing)
    return f"{n['holds']} hold, {n['fails']} fail, and {n['open']} have an interval that is too wide"
