"""Pack finished cells of studies into results/cells/, and draw docs/results.md from them.

python scripts/results.py pack STORE …   # add finished cells of these stores; packed cells stay as they are
python scripts/results.py draw           # write docs/results.md and docs/figures/; needs no GPU
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
from results_shared import IDMS, ROOT, SCALES, TITLES, TRAINING, interval, parts_to_show, table, words

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

PACKED = ROOT / "results" / "cells"  # one file for each agent, and one for each kind without an agent
README, PAGE, FIGURES = ROOT / "README.md", ROOT / "docs" / "results.md", ROOT / "docs" / "figures"


def packed() -> list[dict]:
    """Return all packed cells, each with `cell`, `result` and `about`."""
    return [json.loads(line) for path in sorted(PACKED.glob("*.jsonl")) for line in path.read_text().splitlines()]


def pack(stores: list[Path]) -> None:
    """Append cells that are not packed yet, without the metrics of their training.

    Results of labels that a cell of kind "return" holds too are not packed again; `unpack` restores them.
    """
    old = packed()
    known = {Cell.from_json(entry["cell"]).hash for entry in old}
    drawn = {cell.hash for study in STUDIES.values() if study.figure == "density" for cell in study.cells("paper")}
    fresh = []
    for folder in sorted(path for store in stores for path in (store / "cells").iterdir()):
        if folder.name in known or not (folder / "result.json").exists():
            continue
        about, result = (cells.read_json(folder / name) for name in ("cell.json", "result.json"))
        cell = Cell.from_json(about.pop("cell"))
        if cell.hash != folder.name:
            sys.exit(f"{folder}: written by a version with other hashes of cells; pack it with that version")
        result = {k: v for k, v in result.items() if k not in ("cell", "schema")}
        if cell.hash not in drawn:
            result["data"] = None  # the returns of all trajectories; other figures need only their mean
        if result.get("curve"):
            result["curve"] = {k: v for k, v in result["curve"].items() if k in ("at", "score")}
        fresh.append({"cell": cell.as_json(), "result": rounded(result), "about": about})
        known.add(cell.hash)
    implied = {cell.labels for cell in _labelled(old + fresh)}
    fresh = [entry for entry in fresh if Cell.from_json(entry["cell"]) not in implied]
    PACKED.mkdir(parents=True, exist_ok=True)
    for entry in fresh:
        with (PACKED / f"{entry['cell']['agent'] or entry['cell']['kind']}.jsonl").open("a") as file:
            file.write(json.dumps(entry, separators=(",", ":")) + "\n")
    print(f"{len(fresh)} cells added, {len(old) + len(fresh)} in total")


def _labelled(entries: list[dict]) -> dict[Cell, dict]:
    """Those that learnt from proxies and tell how good they were."""
    by_cell = {Cell.from_json(entry["cell"]): entry for entry in entries}
    return {cell: entry for cell, entry in by_cell.items() if cell.labels and entry["result"].get("idm")}


def rounded(value):
    """Return a value with floats rounded to six digits, which is finer than the noise of returns and errors."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value


def unpack(store: Path) -> list[dict]:
    """Write the packed cells to a store, with the cells of their labels, and return them."""
    entries = {Cell.from_json(entry["cell"]): entry for entry in packed()}
    for cell, entry in entries.items():
        cells.write(store, cell, entry["result"], entry["about"])
    for cell, entry in _labelled(list(entries.values())).items():
        if cell.labels not in entries:
            known = {name: entry["result"][name] for name in ("labelled_return", "idm", "timings")}
            cells.write(store, cell.labels, {**BLANK, **known}, entry["about"])
    return list(entries.values())


def draw() -> None:
    """Write docs/results.md, its figures, and the results in README.md."""
    shutil.rmtree(FIGURES, ignore_errors=True)
    FIGURES.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        entries = unpack(store)
        sections: list[str] = []
        for study in STUDIES.values():
            shown: set[str] = set()  # results that are the same at both scales are shown once
            for scale in SCALES:
                sections += draw_section(study, scale, store, shown, SCORED_BY.get(study.name))
        draw_readme(store)
        body = [HEAD, provenance(entries), *first(store, FIGURES), *sections]
        body += ["## Not run yet", NOT_RUN, remaining(store)]
    PAGE.write_text("\n\n".join(filter(None, body)) + "\n")
    titles = [text for text in sections if text.startswith("## ")]
    print(f"{PAGE.relative_to(ROOT)}: {len(titles)} studies, {len(entries)} cells")


HEAD = """# Results

Drawn by `scripts/results.py` from `results/cells/`, which has one line for each result: its settings, its seed, the
return of each episode, the commit, the versions and the hardware. The data come from our own simulations
([datasets](datasets.md)), not from D4RL's files, so scores differ by some points from the published ones.

Intervals are stratified bootstraps over seeds, as in the paper. With few seeds they are too narrow: with three seeds,
as at scale lite, an interval at one place extends from the lowest seed to the highest, and contains the true mean in 75
of 100 cases instead of 95. Keep that in mind where the page calls a difference at scale lite sure."""

NOT_RUN = """The missing cells and their cost, at scale lite and at the published settings. Hours are estimates for one
H200 ([engine](engine.md)); cells that two studies share are counted in both but run only once. The command is
`ssorl study run STUDY --scale SCALE`."""


SCORED_BY = {"idm-robust": "average"}  # the default of `ssorl run`; studies of the paper score the last weights
COMPUTED = {"idm-robust": labels_and_returns}  # functions that write a study's note from its results


def provenance(entries: list[dict]) -> str:
    """Return a sentence on the devices and commits that computed the results."""
    places = Counter((entry["about"]["hardware"]["device"], entry["about"]["commit"]) for entry in entries)
    counts = ", ".join(f"{n:,} on {device} at `{commit}`" for (device, commit), n in places.most_common())
    return f"{len(entries):,} results so far: {counts}."


def draw_section(study, scale: str, store: Path, shown: set[str], policy: str | None = None) -> list[str]:
    """Return the figures and tables of a study's complete parts; [] if there are none or all were shown before."""
    finished = {entry.hash for entry in gather(study, scale, store) if entry.result}
    parts = [{}] if study.figure == "claims" else parts_to_show(study, scale, store)
    if not parts or finished <= shown:
        return []
    shown |= finished
    where = f"; in the paper: {study.paper}" if study.paper else "; beyond the paper"
    trained = "" if study.figure in ("density", "table") else f" ({TITLES[scale]})"
    texts = [f"## {study.title}{trained}\n\n`{study.name}`, scale {scale}{where}."]
    texts += filter(None, [words("studies", scale, study.name)])
    return texts + [draw_part(study, scale, store, only, policy) for only in parts]


def draw_part(study, scale: str, store: Path, only: dict[str, list], policy: str | None) -> str:
    """Return the figures, tables and the command of one part of a study."""
    html = page(study, scale, store, only=only or None, policy=policy)
    entries = gather(study, scale, store, only=only or None, policy=policy)
    answered = answer(study, scale, entries) if study.figure != "claims" else ""
    names = [str(value) for axis in ("agent", "dataset") for value in only.get(axis, ())]
    name = f"{', '.join(names)}: " if names else ""
    lines = [f"{name}{sum(o.result is not None for o in entries):,} of {len(entries):,} points. {answered}".strip()]
    lines += [COMPUTED[study.name](entries)] if study.name in COMPUTED else []
    curves = len(only.get("quality", ())) != 1  # one point is no curve
    for picture in sorted(html.parent.glob(f"{html.stem}*.png")) if curves else ():
        if any(
            picture.name.startswith(f"{other.stem}-")
            for other in html.parent.glob("*.html")
            if is_longer_name(other, html)
        ):
            continue
        shutil.copy(picture, FIGURES / picture.name)
        lines.append(f"![{study.title}](figures/{picture.name})")
    tables = html.with_suffix(".md").read_text().split("\n## ")[1:]
    # Tables of histograms and learning curves are too long to read. The claims' numbers are near the top of the page.
    if tables := [
        text for text in tables if study.figure != "density" and not text.startswith(("Learning curves", ONE))
    ]:
        lines.append(
            with_comments(
                without_waiting_checks("## " + "\n## ".join(tables), scale).replace("## ", "#### ").strip(), scale
            )
        )
    asked = [f"{axis}={value}" for axis, values in only.items() for value in values]
    command = ["ssorl", "study", "run", study.name, "--scale", scale, *(["--only", *asked] if asked else [])]
    lines.append(f"```text\n{shlex.join(command)}\n```")
    return "\n\n".join(lines)


def draw_readme(store: Path) -> None:
    """Write the README's figure and three numbers, from the largest scale with complete results."""
    study = STUDIES.get("idm-robust")
    complete = (scale for scale in SCALES if study and all(entry.result for entry in gather(study, scale, store)))
    if not study or not (scale := next(complete, None)):
        return
    results = gather(study, scale, store, policy="average")
    ss = {"variant": "ss", "idm": "robust"}
    base, ours, theirs, bound = (
        interval(panels.estimate(statistics.mean, panels.tasks(results, at)))
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
        f"tasks above, six qualities of labelled data, {len(values(results, 'seed'))} seeds, {TRAINING[scale]}, "
        f"averaged weights, our `robust` labels; with the paper's labels {theirs}",
        f"{robust:.3f}": "mean squared error of the filled-in actions on hopper-medium-expert at q = 50, where the "
        f"paper's model leaves {paper:.3f}: [all sets](docs/idm.md#at-full-size)",
        f"{speed['updates_per_second']:,}/s": "updates of TD3+BC at the paper's batch of 5120, thirty trainings in one "
        f"program on one {speed['device']}: [all agents, and beside d3rlpy on a CPU](docs/agents.md#speed)",
    }
    picture = f"docs/figures/idm-robust-{scale}-average-weights-by-quality.png"
    lines = [f"![Score against the quality of the labelled trajectories]({picture})", "", "| | |", "|---|---|"]
    lines += [f"| **{number}** | {meaning} |" for number, meaning in rows.items()]
    begin, rest = README.read_text().split(f"{MARK}\n")
    README.write_text("\n".join([begin + MARK, *lines, "<!-- end -->"]) + rest.partition("<!-- end -->")[2])


MARK = "<!-- generated: results -->"


def without_waiting_checks(tables: str, scale: str) -> str:
    """Return the tables without rows of checks that wait for cells, and without tables that are empty then.

    The heading of an empty table stays if its claim has a comment.
    """
    kept, shown = [], set()
    for text in tables.split("\n## "):
        rows = [row for row in text.split("\n") if "| cells are missing |" not in row]
        number = claim_number(text)
        if rows != text.split("\n") and sum(row.startswith("|") for row in rows) < 3:
            if number in shown or not words("claims", scale, number):
                continue
            rows = [rows[0], ""]
        shown.add(number)
        kept.append("\n".join(rows))
    return "\n## ".join(kept)


def claim_number(text: str) -> str:
    """Return the number of the claim in a heading, or ""."""
    number = text.lstrip("# ").partition(". ")[0]
    return number if number.isdigit() else ""


def with_comments(tables: str, scale: str) -> str:
    """Return the tables with the comment on each claim under the last of its tables."""
    texts = tables.split("\n#### ")
    for number, i in {claim_number(text): i for i, text in enumerate(texts)}.items():
        if comment := words("claims", scale, number):
            texts[i] = f"{texts[i].strip()}\n\n{comment}\n"
    return "\n#### ".join(texts)


def is_longer_name(other: Path, html: Path) -> bool:
    """Return whether the name of another page begins with the name of this page."""
    return other.stem.startswith(html.stem) and len(other.stem) > len(html.stem)


def remaining(store: Path) -> str:
    """Return a table of the unfinished cells of each study and their cost."""
    head, rows = ["study", "cells left at lite", "GPU hours", "cells left at paper", "GPU hours"], []
    for study in STUDIES.values():
        costs = [cost(study, scale, store, study.cells(scale)) for scale in reversed(SCALES)]
        if not study.parts and any(own.done < own.cells for own in costs):
            texts = (
                (f"{own.cells - own.done:,} of {own.cells:,}", f"{own.seconds['gpu'] / 3600:.1f}") for own in costs
            )
            rows.append([f"`{study.name}`", *(text for pair in texts for text in pair)])
    return table(head, rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["pack"] and len(sys.argv) > 2:
        pack([Path(name) for name in sys.argv[2:]])
    elif sys.argv[1:] == ["draw"]:
        draw()
    else:
        sys.exit(__doc__)
