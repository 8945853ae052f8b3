"""Published results: cells of studies packed into results/cells.jsonl, and docs/results.md drawn from them.

python scripts/results.py pack STORE …   # add what these stores have finished; what is there already stays
python scripts/results.py draw           # docs/results.md and docs/figures/, without a GPU
"""

import json
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ssorl.report import study_parts as parts
from ssorl.report.study import page
from ssorl.report.study_answer import answer
from ssorl.study import cells, stats
from ssorl.study.claims import Verdict, ledger
from ssorl.study.cost import cost
from ssorl.study.execute import BLANK
from ssorl.study.found import Found, gather, select, values
from ssorl.study.grid import Cell
from ssorl.study.paper import STUDIES

ROOT = Path(__file__).parents[1]
PACKED = ROOT / "results" / "cells.jsonl"
README, PAGE, FIGURES = ROOT / "README.md", ROOT / "docs" / "results.md", ROOT / "docs" / "figures"
SCALES = ("paper", "lite")  # a smoke run is no result
TITLES = {"paper": "the paper's training", "lite": "lite"}


def packed() -> list[dict]:
    return [json.loads(line) for line in PACKED.read_text().splitlines()] if PACKED.exists() else []


def pack(stores: list[Path]) -> None:
    """Append cells that are not there yet, without the metrics of their training."""
    known = {Cell.from_json(told["cell"]).hash for told in packed()}
    drawn = {cell.hash for study in STUDIES.values() if study.figure == "density" for cell in study.cells("paper")}
    added = 0
    with PACKED.open("a") as file:
        for folder in sorted(path for store in stores for path in (store / "cells").iterdir()):
            if folder.name in known or not (folder / "result.json").exists():
                continue
            about, result = (cells.read_json(folder / name) for name in ("cell.json", "result.json"))
            cell = Cell.from_json(about.pop("cell"))
            if cell.hash != folder.name:
                sys.exit(f"{folder}: made by a version whose cells are called otherwise; pack it with that version")
            result = {k: v for k, v in result.items() if k not in ("cell", "schema")}
            if cell.hash not in drawn:
                result["data"] = None  # the return of every trajectory, where only their mean is told
            if result.get("curve"):
                result["curve"] = {k: v for k, v in result["curve"].items() if k in ("at", "score")}
            told = {"cell": cell.as_json(), "result": rounded(result), "about": about}
            file.write(json.dumps(told, separators=(",", ":")) + "\n")
            known.add(cell.hash)
            added += 1
    print(f"{added} cells added, {len(known)} in all")


def rounded(value):
    """Six digits tell all that a return or an error can."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value


def unpack(store: Path) -> list[dict]:
    """Packed cells as a store's, with those that ask for their labels alone."""
    some = {Cell.from_json(told["cell"]): told for told in packed()}
    for cell, told in some.items():
        cells.write(store, cell, told["result"], told["about"])
        if cell.labels and cell.labels not in some and told["result"].get("idm"):
            known = {name: told["result"][name] for name in ("labelled_return", "idm", "timings")}
            cells.write(store, cell.labels, {**BLANK, **known}, told["about"])
    return list(some.values())


def draw() -> None:
    shutil.rmtree(FIGURES, ignore_errors=True)
    FIGURES.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        some = unpack(store)
        sections: list[str] = []
        for study in STUDIES.values():
            shown: set[str] = set()  # what is the same at both scales is told once
            for scale in SCALES:
                sections += section(study, scale, store, shown, POLICIES.get(study.name))
        front(store)
        body = [HEAD, made_with(some), in_short(store), gap(store), scales(store), *sections]
        body += ["## Not run yet", NOT_RUN, left(store)]
    PAGE.write_text("\n\n".join(filter(None, body)) + "\n")
    titles = [text for text in sections if text.startswith("## ")]
    print(f"{PAGE.relative_to(ROOT)}: {len(titles)} studies, {len(some)} cells")


HEAD = """# Results

Drawn by `scripts/results.py` from `results/cells.jsonl`, a line a result: every cell with its settings, its seed, what
its policy earned in each episode, the commit, the versions and the hardware. The data are simulated anew
([datasets](datasets.md)), not D4RL's files: levels differ by some points from the published ones.

Intervals are stratified bootstraps over seeds, as the paper's. Of few seeds they are too narrow: an interval at one
place from three seeds, as at scale lite, goes from the lowest of them to the highest, and holds the true mean in 75 of
100 cases rather than 95. What lite calls sure is to be read with that in mind."""

NOT_RUN = """What is missing, by what it would take, at scale lite and at the published settings. Hours are estimates
for one H200 ([engine](engine.md)); cells that two studies share are counted in both, and run once. The command:
`ssorl study run STUDY --scale SCALE`."""


POLICIES = {"idm-robust": "average"}  # the product's own way; a study of the paper scores as the paper does


def labels_and_returns(found: list[Found]) -> str:
    """The rank correlation of label error and return within a dataset."""
    said = []
    for dataset in values(found, "dataset"):
        ss, mean = select(found, {"dataset": dataset, "variant": "ss"}), []
        for idm, quality in dict.fromkeys((one.at["idm"], one.at["quality"]) for one in ss):
            some = select(ss, {"idm": idm, "quality": quality})
            mean.append((np.mean([one.mse for one in some]), np.mean([one.score for one in some])))
        ranks = np.argsort(np.argsort(np.array(mean), axis=0), axis=0)
        said.append(f"{dataset} {np.corrcoef(ranks.T)[0, 1]:.2f}".replace(" -", " −"))
    return (
        "Scores are of averaged weights, the product's default. Rank correlation of the labels' error and the return, "
        f"over the qualities and both models: {', '.join(said)}. Quality moves both, so that alone proves nothing; the "
        "table near the top holds the two models against each other on the same splits."
    )


IDMS = ("paper", "robust")

# Of each claim that is not as the paper has it, why.
SAID: dict[tuple[str, int], str] = {
    ("paper", 1): """On hopper SS is far above the baseline until the expert's trajectories are among the labelled
ones. On walker2d at q = 30 and 50 its mean is below: two trainings of five end with policies that fall soon (5 to
14 points), one more is below at q = 50, and the others are above it. Five such seeds prove neither the claim nor
its contrary by the last weights; by averaged ones q = 50 is 32 points below, with an interval that does not reach
zero. From q = 70 up the labelled tenth is within 20 points of the oracle, and little is left to gain. With robust
labels all twenty trainings of q = 10 to 70 are above the baseline of their seed, by either weights.""",
    ("paper", 2): """Below zero on hopper, whose oracle ends now in the one gait and now in the other and is below what
a tenth of its data gives.""",
    ("lite", 1): """Where it fails: DT and CQL on walker2d at q = 70 and 100, and DT on hopper at q = 10 by a few
points. Up there the labelled tenth alone is within 6 points of DT's oracle, so proxies can add little but error (CQL's
oracle, one seed of which has lost its gait at the end, is no bound); and DT on hopper at q = 10 would have to leave the
medium gait, the only one that its true actions show. So far "at every q" is not what our data shows with the paper's
labels, though no failure is sure enough to refute it. With robust ones, the paper's training and averaged weights
TD3+BC is below the baseline nowhere on walker2d, and on hopper at q = 100 alone, where the intervals overlap.""",
    ("lite", 2): """On hopper SS-DT reaches the oracle. TD3+BC's check holds there because its oracle fails: at 52
it is below the labelled tenth of q = 100. On walker2d, where the labels' squared error is nearly three times hopper's,
SS-DT ends below; CQL's interval is as wide as its oracle is unsteady. With the paper's training the one cell of DT and
of CQL that was run on walker2d earns 114 and 101.""",
    ("lite", 5): """DT-Joint is where the labelled data alone is, half a point above in the mean over q, above it at
q = 70 and 90 and below elsewhere. The unlabelled data does more by SS than by DT-Joint for all agents at q = 30 to 70
(DT by averaged weights not at 50), and for CQL and TD3+BC at q = 10, where SS-DT falls below both; at q = 90 and 100
DT-Joint is above SS-CQL and SS-TD3BC, as the labelled data alone is, and at 90 above SS-DT. Where DT-Joint drew from
all steps alike, so that 6 to 10 % of a batch had actions, it ended at 55 at q = 30 and 64 at q = 90 (this file's
history before 2a14aa3): how it draws, which the paper leaves open, matters as much as anything here.""",
    ("lite", 6): """So far as it was run, as the paper says and more so: for DT at q ≤ 50 one round is above each of the
four by 50 to 57 points (the least of them 49.8 [24.5, 60.7]), with errors 7 to 10 % lower; above, m = 2, N = 3, run at
every q, is 45.0 [22.7, 64.5] below. The checks of returns are of DT and CQL together, and wait for CQL. Why the
return falls so much further than the error rises, which the paper leaves open:
[the start of an episode](idm.md#why-self-training-hurts).""",
    ("lite", 8): """On walker2d as the paper says for DT; CQL's three seeds leave high and med apart by less than they
swing.""",
    ("lite", 9): """For DT the thirds are in the paper's order by last weights, a few points apart; by averaged ones
there is no order (high − low 0.4 [−8.4, 5.1]), and CQL's med is below its low by either. The labelled third does much
more.""",
    ("lite", 10): """From 10 to 25 % nothing changes that three seeds would show. From 10 to 50 %, where the labelled
third is low, five times as much of it is a larger share of what DT imitates, and the last weights end lower; where it
is high, little changes. By averaged weights the two differences are −1.9 [−5.4, 1.8] and −3.1 [−9.6, 2.4].""",
    ("lite", 11): """For DT the paper's finding is wider on our data than it says and weaker where it says it. Over all
nine pairs of thirds more unlabelled trajectories do harm: −8.2 [−13.0, −3.9] at 25 % and −12.9 [−18.8, −7.3] at 50 %
(by averaged weights −9.3 [−13.8, −5.0] and −5.6 [−11.5, −0.5]). Where the labelled third is high and the other worse,
25 % is 8.2 [4.5, 10.9] below by last weights and level by averaged ones, and 50 % is surely below by neither. The more
proxies there are, the smaller the share of true actions in what DT imitates.""",
}

# What a reader must know of a result that its numbers do not say.
NOTES: dict[tuple[str, str], str | Callable[[list[Found]], str]] = {
    ("main-medium-expert", "paper"): """On hopper the other nine tenths are worth as much without their actions as with
them: where the labelled tenth alone hops like the medium policy (q = 10 to 70) SS is level with the oracle. That oracle
swings between two gaits, those of the medium and the expert half of its data, and is no upper bound: a tenth of the
same trajectories, drawn from all (q = 100), does better alone, and why it does we do not know. On walker2d, whose
oracle is steady, the paper's labels are worth much where the labelled trajectories fall (q = 10), some points at q =
70 and 90, and nothing at q = 100, where the labelled tenth alone is level with the oracle; at q = 30 and 50 some
trainings end far below the baseline, with policies that fall soon after the start. With robust labels, below, on the
same splits, none does.""",
    ("main-medium-expert", "lite"): """Read hopper's panels of CQL and TD3+BC with care. A policy there walks like the
expert (107) or like the medium one (40) from a given start, and the last weights change between the two from one look
to the next: of the TD3+BC oracle's 90 episodes 69 are of the second kind and 11 of the first. Such an oracle bounds
nothing; at the paper's settings it earns 76, above. CQL's oracle on walker2d swings too: one seed of
three had lost its gait at the end. DT's oracles end alike in all seeds and where the published ones are, so it shows
most: with the paper's labels the unlabelled data does not help it where the labelled trajectories are good, and on
walker2d costs 18 points even at q = 100 ([less](#do-the-scales-agree) in the one cell with the paper's training). A
tenth of our trajectories, drawn from all, suffices there to reach the oracle, so
that nothing is to be gained, and the proxies do harm: most of all in the first steps of an episode
([labels at the limits](agents.md#labels-at-the-limits)).""",
    ("self-training", "lite"): """At q ≤ 50, 24 of 36 policies that learn from self-trained labels end at 4 to 7 points,
as a walker does that falls soon after its start, though the labels' mean error is but 3 to 16 % higher. It is not
higher by as much everywhere: the surest steps, which are learnt from first, are those of a steady gait, and where an
episode starts the error grows most ([why](idm.md#why-self-training-hurts)). m = 2, N = 3 was run at every q: over all
six one round has 74.2 [62.9, 78.3] and it 21.2 [12.3, 33.5].""",
    ("idm-architecture", "lite"): """By last weights no window is sure to be better than another; by averaged ones,
which swing less, k = 1 is below k = 0 by 7.5 [1.8, 18.4], against the paper, and nothing else is sure. The models'
squared errors, mean of three seeds at q = 10, 30, 50 and 100: 0.092, 0.072, 0.072 and 0.0204 with k = 0; 0.098, 0.070,
0.073 and 0.0198 with k = 1; 0.102, 0.073, 0.071 and 0.0199 with k = 2; 0.099, 0.070, 0.069 and 0.0195 with k = 1 and
symmetric. At q = 10, where the other trajectories are least like the labelled ones, a past misleads.""",
    ("idm-robust", "paper"): labels_and_returns,
    ("idm-robust", "lite"): labels_and_returns,
    ("claims", "lite"): """A claim holds when all its checks do. Three seeds leave wide intervals, so most checks are
open; those that fail do so on walker2d, but for one of DT on hopper, with the labels of the paper's own model. Our
data is simulated anew with other behaviour policies than D4RL's, and a tenth of it often does what all of it does,
which leaves little to gain; whether D4RL's files leave more we could not try.""",
}


def in_short(store: Path) -> str:
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
            scores = [interval(parts.estimate(stats.mean, parts.tasks(mine, at))) for at in sides.values()]
            told = f"{' and '.join(where)}, {about}" if where == names else f"… {where[0]} alone"
            rows.append(f"| {' | '.join([told, *scores])} |")
    head = [f"| TD3+BC, averaged weights | {' | '.join(sides)} |", "|---|---|---|---|---|"]
    lines = ["## In short", "", *(head + rows if rows else []), ""]
    for scale in SCALES:
        last, average = (ledger(store, scale, policy=policy) for policy in (None, "average"))
        outcomes = Counter(verdict.outcome for verdict in last)
        told = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.most_common())
        lines.append(
            f"- The paper's twelve claims at scale {scale}: {told}. Of the checks whose cells are there {says(last)}; "
            f"by averaged weights, which swing less, {says(average)} "
            f"(`ssorl study report claims --scale {scale} --policy average`)."
        )
    return "\n".join(lines)


def gap(store: Path) -> str:
    """What better labels are worth: every split on which an agent was trained with the labels of both models."""
    rows = []
    for scale in SCALES:
        for study in (STUDIES[name] for name in ("idm-robust", "idm-robust-agents") if name in STUDIES):
            found = [one for one in gather(study, scale, store, policy="average") if one.result]
            for agent, dataset in dict.fromkeys((one.at["agent"], one.at["dataset"]) for one in found):
                rows += closed(select(found, {"agent": agent, "dataset": dataset}), scale)
    if not rows:
        return ""
    head = ["trained", "splits", "MSE of the labels", "SS", "difference", "oracle", "of the gap", "more in"]
    return "\n".join(
        ["## Do better labels close the gap?", "", GAP, "", f"| {' | '.join(head)} |", "|---" * 8 + "|", *rows]
    )


GAP = """Each row is of the same splits, agents and seeds, labelled by the paper's model and then by `robust`: mean over
qualities and seeds, scores of averaged weights, 95 % interval of the difference. *Of the gap*: how much of the way from
SS with the paper's labels to the oracle robust labels go, where there is a way of more than 5 points. *More in*: the
share of splits in which robust labels earn more. On walker2d better labels go a good part of the way, most of it by
saving trainings that the paper's labels lose. On hopper there is no way to go: with the paper's labels SS is level with
an oracle that swings between two gaits."""


def closed(found: list[Found], scale: str) -> list[str]:
    """One row, of the splits that have both models; none if there are none."""
    ss = (select(found, {"variant": "ss", "idm": idm}) for idm in IDMS)
    both = [{(one.at["quality"], one.at["seed"]): one for one in some} for some in ss]
    pairs = [(both[0][at], both[1][at]) for at in both[0] if at in both[1]]
    bound = [one.score for one in select(found, {"variant": "oracle"})]
    if not pairs or not bound:
        return []
    (mse, better), (low, high) = (
        [np.mean([getattr(pair[i], what) for pair in pairs]) for i in (0, 1)] for what in ("mse", "score")
    )
    qualities = dict.fromkeys(one.at["quality"] for one, _ in pairs)
    by = [[[pair[i].score for pair in pairs if pair[0].at["quality"] == q] for q in qualities] for i in (1, 0)]
    told = parts.estimate(stats.difference(stats.mean), *by)
    way = np.mean(bound) - low
    at = found[0].at
    row = [
        f"{at['agent'].upper()}, {at['dataset']}, {TITLES[scale]}",
        f"{len(pairs)}",
        f"{mse:.4f} → {better:.4f}",
        f"{low:.1f} → {high:.1f}",
        f"{told.value:.1f} [{told.low:.1f}, {told.high:.1f}]" if told else "–",
        f"{np.mean(bound):.1f}",
        f"{100 * (high - low) / way:.0f} %" if way > 5 else "–",
        f"{sum(ours.score > theirs.score for theirs, ours in pairs)} of {len(pairs)}",
    ]
    return [f"| {' | '.join(row).replace(' -', ' −').replace('[-', '[−')} |"]


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
        rows.append(
            f"| {agent.upper()} | {dataset} | {variant} | {qualities} | {' → '.join(seeds)} | {' | '.join(scores)} |"
        )
    if not rows:
        return ""
    head = ["agent", "dataset", "variant", "q", "seeds", "last weights", "averaged weights"]
    table = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows]
    return "\n".join(["## Do the scales agree?", "", AGREE, "", *table])


AGREE = """What was run both at scale lite and with the paper's training, lite → paper: mean over the qualities that
both have, and over seeds. TD3+BC's levels at lite are lower, its oracles' by about 20 points and more. On hopper both
say the same: SS at or above its oracle, and far above the labelled tenth. On walker2d SS with the paper's labels is
some points above that tenth at lite and some below it with the paper's training, and the oracle is far above both. Of
CQL and DT one cell each has the paper's training: walker2d, SS, q = 100, seed 0. CQL ends at 101, or 112 by averaged
weights; at lite the three seeds of SS have a mean of 54 and 89, of the labelled tenth 100 and 108, of the oracle 74
and 109. DT ends at 114, or 103 by averaged weights; at lite SS has 92 and 98, the labelled tenth 110 and 109, the
oracle 109 and 113. So the levels of SS at lite are in part those of a short training. Whether SS still falls below
the labelled tenth was not run with the paper's training."""


def says(verdicts: list[Verdict]) -> str:
    """How many checks hold, of those that can be made."""
    n = Counter(one.says for verdict in verdicts for one in verdict.judged if not one.missing)
    return f"{n['holds']} hold, {n['fails']} fail, and of {n['open']} the interval is too wide to tell"


NAMED = {"paper": "the paper's", "robust": "robust"}


def made_with(some: list[dict]) -> str:
    places = Counter((c["about"]["hardware"]["device"], c["about"]["commit"]) for c in some)
    told = ", ".join(f"{n:,} on {device} at `{commit}`" for (device, commit), n in places.most_common())
    return f"{len(some):,} results so far: {told}."


def section(study, scale: str, store: Path, shown: set[str], policy: str | None = None) -> list[str]:
    """A study's figures and tables, of each part that was run whole; none: nothing of it was, or it was told before."""
    there = {one.hash for one in gather(study, scale, store) if one.result}
    some = [{}] if study.figure == "claims" else wholes(study, scale, store)
    if not some or there <= shown:
        return []
    shown |= there
    where = f"; in the paper: {study.paper}" if study.paper else "; beyond the paper"
    trained = "" if study.figure in ("density", "table") else f" ({TITLES[scale]})"
    told = [f"## {study.title}{trained}\n\n`{study.name}`, scale {scale}{where}."]
    if (note := NOTES.get((study.name, scale), "")) and not callable(note):
        told.append(note.replace("\n", " "))
    return told + [part(study, scale, store, only, policy) for only in some]


def part(study, scale: str, store: Path, only: dict[str, list], policy: str | None) -> str:
    """What was found of one part of a study."""
    html = page(study, scale, store, only=only or None, policy=policy)
    some = gather(study, scale, store, only=only or None, policy=policy)
    answered = answer(study, scale, some) if study.figure != "claims" else ""
    names = [str(value) for axis in ("agent", "dataset") for value in only.get(axis, ())]
    name = f"{', '.join(names)}: " if names else ""
    lines = [f"{name}{sum(o.result is not None for o in some):,} of {len(some):,} points. {answered}".strip()]
    note = NOTES.get((study.name, scale), "")
    lines += [note(some)] if callable(note) else []
    curves = len(only.get("quality", ())) != 1  # a point is none
    for picture in sorted(html.parent.glob(f"{html.stem}*.png")) if curves else ():
        if any(
            picture.name.startswith(f"{other.stem}-") for other in html.parent.glob("*.html") if longer(other, html)
        ):
            continue
        shutil.copy(picture, FIGURES / picture.name)
        lines.append(f"![{study.title}](figures/{picture.name})")
    tables = html.with_suffix(".md").read_text().split("\n## ")[1:]
    # A histogram is no table to be read, nor is a curve of ten points beside eight others.
    if tables := [text for text in tables if study.figure != "density" and not text.startswith("Learning curves")]:
        lines.append(explained(decided("## " + "\n## ".join(tables)).replace("## ", "#### ").strip(), scale))
    asked = [f"{axis}={value}" for axis, values in only.items() for value in values]
    command = ["ssorl", "study", "run", study.name, "--scale", scale, *(["--only", *asked] if asked else [])]
    lines.append(f"```text\n{shlex.join(command)}\n```")
    return "\n\n".join(lines)


def front(store: Path) -> None:
    """The README's figure and three numbers, from what is there at the largest scale."""
    study = STUDIES.get("idm-robust")
    complete = (scale for scale in SCALES if study and all(one.result for one in gather(study, scale, store)))
    if not study or not (scale := next(complete, None)):
        return
    found = gather(study, scale, store, policy="average")
    ss = {"variant": "ss", "idm": "robust"}
    base, ours, theirs, bound = (
        interval(parts.estimate(stats.mean, parts.tasks(found, at)))
        for at in ({"variant": "baseline"}, ss, ss | {"idm": "paper"}, {"variant": "oracle"})
    )
    lines = map(json.loads, (ROOT / "results" / "idm-table.jsonl").read_text().splitlines())
    errors = [c for c in lines if c["dataset"] == "hopper-medium-expert" and c["quality"] == 50]
    paper, robust = (np.mean([c["mse"] for c in errors if c["idm"] == idm]) for idm in IDMS)
    speeds = map(json.loads, (ROOT / "results" / "agent-speed.jsonl").read_text().splitlines())
    speed = [c for c in speeds if c["case"] == "td3bc:5120:30" and c.get("fused")][-1]
    rows = {
        f"{base.split()[0]} → {ours.split()[0]}": "normalised score when a tenth of the trajectories has actions: "
        f"without and with the other nine tenths. {base} → {ours}, and {bound} with all actions known; TD3+BC, both "
        f"tasks above, six qualities of labelled data, {len(values(found, 'seed'))} seeds, {TRAINING[scale]}, averaged "
        f"weights, our `robust` labels; with the paper's labels {theirs}",
        f"{robust:.3f}": "mean squared error of the filled-in actions on hopper-medium-expert at q = 50, where the "
        f"paper's model leaves {paper:.3f}: [all sets](docs/idm.md#at-full-size)",
        f"{speed['updates_per_second']:,}/s": "updates of TD3+BC at the paper's batch of 5120, thirty trainings in one "
        f"program on one {speed['device']}: [all agents, and beside d3rlpy on a CPU](docs/agents.md#speed)",
    }
    picture = f"docs/figures/idm-robust-{scale}-average-weights-by-quality.png"
    told = [f"![Score against the quality of the labelled trajectories]({picture})", "", "| | |", "|---|---|"]
    told += [f"| **{number}** | {what} |" for number, what in rows.items()]
    begin, rest = README.read_text().split(f"{MARK}\n")
    README.write_text("\n".join([begin + MARK, *told, "<!-- end -->"]) + rest.partition("<!-- end -->")[2])


TRAINING = {"lite": "a quarter of the paper's updates at a fifth of its batch", "paper": "the paper's training"}
MARK = "<!-- generated: results -->"


def interval(told: stats.Estimate | None) -> str:
    return f"{told.value:.0f} [{told.low:.0f}, {told.high:.0f}]" if told else "unknown"


def wholes(study, scale: str, store: Path) -> list[dict[str, list]]:
    """The part that `whole` finds, and beside it what further places have, if it is more than one quality."""
    first, found = whole(study, scale, store), gather(study, scale, store)
    if not first or "quality" in first or study.by in first or study.by == "agent":
        return [] if first is None else [first]
    axes = [axis for axis in ("agent", "dataset") if len(values(found, axis)) > 1]
    some: dict[tuple, list] = {}
    for *place, quality in complete(found, [*axes, "quality"]):
        if any(value not in first.get(axis, [value]) for axis, value in zip(axes, place, strict=True)):
            some.setdefault(tuple(place), []).append(quality)
    more = [
        {axis: [value] for axis, value in zip(axes, place, strict=True)} | {"quality": qualities}
        for place, qualities in some.items()
        if len(qualities) > 1
    ]
    return [first, *more]


def whole(study, scale: str, store: Path) -> dict[str, list] | None:
    """The agents and datasets of which every point is there, as `only` takes them; {}: all are, None: none is.

    One agent alone says nothing where agents are compared. Where no dataset is whole, the one with most qualities that
    are; or, where a study has several sizes or models and no quality is whole, with most of those, two at least.
    """
    found = gather(study, scale, store)
    if all(one.result for one in found):
        return {}
    axes = [axis for axis in ("agent", "dataset") if len(values(found, axis)) > 1]
    there = complete(found, axes)
    if axes and there:
        # The first that is there with most of the second axis, and those that are there with the same.
        of = {first: [at[1:] for at in there if at[0] == first] for first in dict.fromkeys(at[0] for at in there)}
        most = max(of.values(), key=len)
        only = {axes[0]: [first for first, some in of.items() if set(some) >= set(most)]}
        only |= {axis: [at[0] for at in most] for axis in axes[1:]}
    else:
        only = most_of(found, axes, "quality", 1) or most_of(found, axes, study.by, 2)
    if only is None:
        return None
    if study.by == "agent" and len(only.get("agent", ())) < 2:
        return None
    return {axis: some for axis, some in only.items() if set(some) != set(values(found, axis))}


def most_of(found: list[Found], axes: list[str], inner: str, least: int) -> dict[str, list] | None:
    """The place on these axes at which most values of the inner one are whole, and those values."""
    there = [] if inner in axes else complete(found, [*axes, inner])
    places = [at[:-1] for at in there]
    if not there or max(map(places.count, places)) < least:
        return None
    place = max(places, key=places.count)
    only = {axis: [value] for axis, value in zip(axes, place, strict=True)}
    return only | {inner: [at[-1] for at in there if at[:-1] == place]}


def complete(found: list[Found], axes: list[str]) -> list[tuple]:
    """The values of these axes for which every point is there."""
    places: dict[tuple, bool] = {}
    for one in found:
        if all(axis in one.at for axis in axes):
            at = tuple(one.at[axis] for axis in axes)
            places[at] = places.get(at, True) and one.result is not None
    return [at for at, all_there in places.items() if all_there]


def decided(tables: str) -> str:
    """Without the rows of claims that wait for cells, and without tables that then are empty."""
    kept = []
    for table in tables.split("\n## "):
        rows = [row for row in table.split("\n") if "| cells are missing |" not in row]
        if rows != table.split("\n") and sum(row.startswith("|") for row in rows) < 3:
            continue
        kept.append("\n".join(rows))
    return "\n## ".join(kept)


def explained(tables: str, scale: str) -> str:
    """With the paragraph that a claim has under its table."""
    out = []
    for table in tables.split("\n#### "):
        number = table.removeprefix("#### ").partition(". ")[0]
        said = SAID.get((scale, int(number))) if number.isdigit() else None
        out.append(f"{table.strip()}\n\n{said.replace(chr(10), ' ')}\n" if said else table)
    return "\n#### ".join(out)


def longer(other: Path, html: Path) -> bool:
    return other.stem.startswith(html.stem) and len(other.stem) > len(html.stem)


def left(store: Path) -> str:
    lines = ["| study | cells left at lite | GPU hours | cells left at paper | GPU hours |", "|---|---|---|---|---|"]
    for study in STUDIES.values():
        told = [cost(study, scale, store, study.cells(scale)) for scale in reversed(SCALES)]
        if not study.parts and any(one.done < one.cells for one in told):
            rest = (f"{one.cells - one.done:,} of {one.cells:,} | {one.seconds['gpu'] / 3600:.1f}" for one in told)
            lines.append(f"| `{study.name}` | {' | '.join(rest)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["pack"] and len(sys.argv) > 2:
        pack([Path(name) for name in sys.argv[2:]])
    elif sys.argv[1:] == ["draw"]:
        draw()
    else:
        sys.exit(__doc__)
