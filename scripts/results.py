"""Published results: cells of studies packed into results/cells.jsonl, and docs/results.md drawn from them.

python scripts/results.py pack STORE …   # add what these stores have finished; what is there already stays
python scripts/results.py draw           # docs/results.md and docs/figures/, without a GPU
"""

import json
import shlex
import shutil
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

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
ORACLES = ROOT / "results" / "oracle.jsonl"  # of benchmarks/oracle.py
PUBLISHED = tomllib.loads((ROOT / "results" / "published.toml").read_text())
SCALES = ("paper", "lite")  # a smoke run is no result
TITLES = {"paper": "the paper's training", "lite": "lite"}


def packed() -> list[dict]:
    return [json.loads(line) for line in PACKED.read_text().splitlines()] if PACKED.exists() else []


def pack(stores: list[Path]) -> None:
    """Append cells that are not there yet, without the metrics of their training.

    What a cell of returns says of its labels is not packed a second time: `unpack` finds it there.
    """
    there = packed()
    known = {Cell.from_json(told["cell"]).hash for told in there}
    drawn = {cell.hash for study in STUDIES.values() if study.figure == "density" for cell in study.cells("paper")}
    fresh = []
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
        fresh.append({"cell": cell.as_json(), "result": rounded(result), "about": about})
        known.add(cell.hash)
    told_already = {cell.labels for cell in _labelled(there + fresh)}
    fresh = [told for told in fresh if Cell.from_json(told["cell"]) not in told_already]
    with PACKED.open("a") as file:
        file.writelines(json.dumps(told, separators=(",", ":")) + "\n" for told in fresh)
    print(f"{len(fresh)} cells added, {len(there) + len(fresh)} in all")


def _labelled(some: list[dict]) -> dict[Cell, dict]:
    """Those that learnt from proxies and tell how good they were."""
    by = {Cell.from_json(told["cell"]): told for told in some}
    return {cell: told for cell, told in by.items() if cell.labels and told["result"].get("idm")}


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
    for cell, told in _labelled(list(some.values())).items():
        if cell.labels not in some:
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
        first = [tell(store) for tell in (in_short, worth, gap, scales, lengths)]
        body = [HEAD, made_with(some), *first, *sections]
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

WORDS = tomllib.loads((ROOT / "results" / "words.toml").read_text())
COMPUTED = {"idm-robust": labels_and_returns}  # a study's note that is counted anew from what was found


def words(*keys: str) -> str:
    """What the numbers do not say by themselves; nothing where there is nothing to say."""
    told: Any = WORDS
    for key in keys:
        told = told.get(key, {})
    return told.strip() if told else ""


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


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
            rows.append([told, *scores])
    lines = ["## In short", "", table(["TD3+BC, averaged weights", *sides], rows) if rows else "", ""]
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
    return "\n\n".join(["## Do better labels close the gap?", words("page", "gap"), table(head, rows)])


def closed(found: list[Found], scale: str) -> list[list[str]]:
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
    return [row[:1] + [text.replace("-", "−") for text in row[1:]]]


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
                ss, base = parts.paired(found, {"variant": "ss"}, {"variant": "baseline"})
                more = parts.estimate(stats.difference(stats.mean), ss, base)
                ends = (base, ss, parts.tasks(found, {"variant": "oracle"}))
                told = [parts.estimate(stats.mean, one) for one in ends]
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


def surely(some: list[stats.Estimate], wider: float = 1.0) -> tuple[int, int]:
    """How many are above zero and how many below, by intervals that many times as wide."""
    above = sum(one.value - wider * (one.value - one.low) > 0 for one in some)
    return above, sum(one.value + wider * (one.high - one.value) < 0 for one in some)


MAINS = ("main-medium-expert", "main-medium", "main-medium-replay", "main-halfcheetah", "wide-subsample", "maze2d")


def mains() -> list:
    """The studies that set baseline, SS and oracle with a tenth labelled against q."""
    return [STUDIES[name] for name in MAINS if name in STUDIES]


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
    told += filter(None, [words("studies", scale, study.name)])
    return told + [part(study, scale, store, only, policy) for only in some]


def part(study, scale: str, store: Path, only: dict[str, list], policy: str | None) -> str:
    """What was found of one part of a study."""
    html = page(study, scale, store, only=only or None, policy=policy)
    some = gather(study, scale, store, only=only or None, policy=policy)
    answered = answer(study, scale, some) if study.figure != "claims" else ""
    names = [str(value) for axis in ("agent", "dataset") for value in only.get(axis, ())]
    name = f"{', '.join(names)}: " if names else ""
    lines = [f"{name}{sum(o.result is not None for o in some):,} of {len(some):,} points. {answered}".strip()]
    lines += [COMPUTED[study.name](some)] if study.name in COMPUTED else []
    curves = len(only.get("quality", ())) != 1  # a point is none
    for picture in sorted(html.parent.glob(f"{html.stem}*.png")) if curves else ():
        if any(
            picture.name.startswith(f"{other.stem}-") for other in html.parent.glob("*.html") if extends(other, html)
        ):
            continue
        shutil.copy(picture, FIGURES / picture.name)
        lines.append(f"![{study.title}](figures/{picture.name})")
    tables = html.with_suffix(".md").read_text().split("\n## ")[1:]
    # A histogram is no table to be read, nor is a curve of ten points beside eight others.
    if tables := [text for text in tables if study.figure != "density" and not text.startswith("Learning curves")]:
        lines.append(explained(decided("## " + "\n## ".join(tables), scale).replace("## ", "#### ").strip(), scale))
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


TRAINING = {"lite": "the paper's updates at a twentieth of its batch", "paper": "the paper's training"}
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


def decided(tables: str, scale: str) -> str:
    """Without the rows of claims that wait for cells, and without tables that then are empty.

    Of a claim that has none but has its words the heading stays.
    """
    kept, told = [], set()
    for table in tables.split("\n## "):
        rows = [row for row in table.split("\n") if "| cells are missing |" not in row]
        number = claim(table)
        if rows != table.split("\n") and sum(row.startswith("|") for row in rows) < 3:
            if number in told or not words("claims", scale, number):
                continue
            rows = [rows[0], ""]
        told.add(number)
        kept.append("\n".join(rows))
    return "\n## ".join(kept)


def claim(table: str) -> str:
    """The number of the claim whose table it is."""
    number = table.lstrip("# ").partition(". ")[0]
    return number if number.isdigit() else ""


def explained(tables: str, scale: str) -> str:
    """With the paragraph that a claim has under its table, or the last of its tables."""
    each = tables.split("\n#### ")
    for number, i in {claim(table): i for i, table in enumerate(each)}.items():
        if said := words("claims", scale, number):
            each[i] = f"{each[i].strip()}\n\n{said}\n"
    return "\n#### ".join(each)


def extends(other: Path, html: Path) -> bool:
    return other.stem.startswith(html.stem) and len(other.stem) > len(html.stem)


def left(store: Path) -> str:
    head, rows = ["study", "cells left at lite", "GPU hours", "cells left at paper", "GPU hours"], []
    for study in STUDIES.values():
        told = [cost(study, scale, store, study.cells(scale)) for scale in reversed(SCALES)]
        if not study.parts and any(one.done < one.cells for one in told):
            rest = ((f"{one.cells - one.done:,} of {one.cells:,}", f"{one.seconds['gpu'] / 3600:.1f}") for one in told)
            rows.append([f"`{study.name}`", *(text for pair in rest for text in pair)])
    return table(head, rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["pack"] and len(sys.argv) > 2:
        pack([Path(name) for name in sys.argv[2:]])
    elif sys.argv[1:] == ["draw"]:
        draw()
    else:
        sys.exit(__doc__)
