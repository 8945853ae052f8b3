"""Published results: cells of studies packed into results/cells/, and docs/results.md drawn from them.

python scripts/results.py pack STORE …   # add what these stores have finished; what is there already stays
python scripts/results.py draw           # docs/results.md and docs/figures/, without a GPU
"""

import json
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from results_first import first
from results_labels import labels_and_returns
from results_shared import IDMS, ROOT, SCALES, TITLES, TRAINING, interval, table, wholes, words

from ssorl.study import statistics
from ssorl.study import store as cells
from ssorl.study.cost import cost
from ssorl.study.executor import BLANK
from ssorl.study.grid import Cell
from ssorl.study.paper import STUDIES
from ssorl.study.report import panels
from ssorl.study.report.answer import answer
from ssorl.study.report.claims import ONE
from ssorl.study.report.page import page
from ssorl.study.results import gather, values

PACKED = ROOT / "results" / "cells"  # a file an agent, and one for what needs none
README, PAGE, FIGURES = ROOT / "README.md", ROOT / "docs" / "results.md", ROOT / "docs" / "figures"


def packed() -> list[dict]:
    return [json.loads(line) for path in sorted(PACKED.glob("*.jsonl")) for line in path.read_text().splitlines()]


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
    PACKED.mkdir(parents=True, exist_ok=True)
    for told in fresh:
        with (PACKED / f"{told['cell']['agent'] or told['cell']['kind']}.jsonl").open("a") as file:
            file.write(json.dumps(told, separators=(",", ":")) + "\n")
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
                sections += section(study, scale, store, shown, SCORED_BY.get(study.name))
        front(store)
        body = [HEAD, made_with(some), *first(store, FIGURES), *sections]
        body += ["## Not run yet", NOT_RUN, left(store)]
    PAGE.write_text("\n\n".join(filter(None, body)) + "\n")
    titles = [text for text in sections if text.startswith("## ")]
    print(f"{PAGE.relative_to(ROOT)}: {len(titles)} studies, {len(some)} cells")


HEAD = """# Results

Drawn by `scripts/results.py` from `results/cells/`, a line a result: every cell with its settings, its seed, what
its policy earned in each episode, the commit, the versions and the hardware. The data are simulated anew
([datasets](datasets.md)), not D4RL's files: levels differ by some points from the published ones.

Intervals are stratified bootstraps over seeds, as the paper's. Of few seeds they are too narrow: an interval at one
place from three seeds, as at scale lite, goes from the lowest of them to the highest, and holds the true mean in 75 of
100 cases rather than 95. What lite calls sure is to be read with that in mind."""

NOT_RUN = """What is missing, by what it would take, at scale lite and at the published settings. Hours are estimates
for one H200 ([engine](engine.md)); cells that two studies share are counted in both, and run once. The command:
`ssorl study run STUDY --scale SCALE`."""


SCORED_BY = {"idm-robust": "average"}  # the product's own way; a study of the paper scores as the paper does


COMPUTED = {"idm-robust": labels_and_returns}  # a study's note that is counted anew from what was found


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
    # The claims' one numbers stand near the top, all scales beside each other.
    if tables := [
        text for text in tables if study.figure != "density" and not text.startswith(("Learning curves", ONE))
    ]:
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
        interval(panels.estimate(statistics.mean, panels.tasks(found, at)))
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


MARK = "<!-- generated: results -->"


def decided(tables: str, scale: str) -> str:
    """Without the rows of claims that wait for cells, and without tables that then are empty.

    Of a claim that has none but has its words the heading stays.
    """
    kept, told = [], set()
    for one in tables.split("\n## "):
        rows = [row for row in one.split("\n") if "| cells are missing |" not in row]
        number = claim(one)
        if rows != one.split("\n") and sum(row.startswith("|") for row in rows) < 3:
            if number in told or not words("claims", scale, number):
                continue
            rows = [rows[0], ""]
        told.add(number)
        kept.append("\n".join(rows))
    return "\n## ".join(kept)


def claim(text: str) -> str:
    """The number of the claim whose table it is."""
    number = text.lstrip("# ").partition(". ")[0]
    return number if number.isdigit() else ""


def explained(tables: str, scale: str) -> str:
    """With the paragraph that a claim has under its table, or the last of its tables."""
    each = tables.split("\n#### ")
    for number, i in {claim(one): i for i, one in enumerate(each)}.items():
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
