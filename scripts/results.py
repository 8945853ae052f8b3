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
from pathlib import Path

from ssorl.report.study import page
from ssorl.report.study_answer import answer
from ssorl.study import cells
from ssorl.study.cost import cost
from ssorl.study.found import gather, values
from ssorl.study.grid import Cell
from ssorl.study.paper import STUDIES

ROOT = Path(__file__).parents[1]
PACKED = ROOT / "results" / "cells.jsonl"
PAGE, FIGURES = ROOT / "docs" / "results.md", ROOT / "docs" / "figures"
SCALES = ("paper", "lite")  # a smoke run is no result


def packed() -> list[dict]:
    return [json.loads(line) for line in PACKED.read_text().splitlines()] if PACKED.exists() else []


def pack(stores: list[Path]) -> None:
    """Append cells that are not there yet, without the metrics of their training."""
    known = {Cell.from_json(told["cell"]).hash for told in packed()}
    drawn = {cell.hash for study in STUDIES.values() if study.figure == "density" for cell in study.cells("paper")}
    added = 0
    with PACKED.open("a") as file:
        for folder in sorted(path for store in stores for path in (store / "cells").iterdir()):
            about, result = (cells.read_json(folder / name) for name in ("cell.json", "result.json"))
            if folder.name in known:
                continue
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
    some = packed()
    for told in some:
        cells.write(store, Cell.from_json(told["cell"]), told["result"], told["about"])
    return some


def draw() -> None:
    shutil.rmtree(FIGURES, ignore_errors=True)
    FIGURES.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        some = unpack(store)
        sections: list[str] = []
        for study in STUDIES.values():
            shown: set[str] = set()  # what is the same at both scales is told once
            sections += [text for scale in SCALES if (text := section(study, scale, store, shown)) is not None]
        body = [HEAD, made_with(some), *sections, "## Not run yet", NOT_RUN, left(store)]
    PAGE.write_text("\n\n".join(body) + "\n")
    print(f"{PAGE.relative_to(ROOT)}: {len(sections)} studies, {len(some)} cells")


HEAD = """# Results

Drawn by `scripts/results.py` from `results/cells.jsonl`, a line a result: every cell with its settings, its seed, what
its policy earned in each episode, the commit, the versions and the hardware. The data are simulated anew
([datasets](datasets.md)), not D4RL's files: levels differ by some points from the published ones."""

NOT_RUN = """What is missing at the published settings, by what it would take. Hours are estimates for one H200
([engine](engine.md)); cells that two studies share are counted in both, and run once."""


def made_with(some: list[dict]) -> str:
    places = Counter((c["about"]["hardware"]["device"], c["about"]["commit"]) for c in some)
    told = ", ".join(f"{n:,} on {device} at `{commit}`" for (device, commit), n in places.most_common())
    return f"{len(some):,} results so far: {told}."


def section(study, scale: str, store: Path, shown: set[str]) -> str | None:
    """A study's figures and tables, of the agents that were run alone; None: nothing of it was."""
    found = gather(study, scale, store)
    there = [one for one in found if one.result]
    if {one.hash for one in there} <= shown:
        return None
    shown |= {one.hash for one in there}
    agents = values(there, "agent")
    only = {"agent": agents} if 0 < len(agents) < len(values(found, "agent")) and study.figure != "claims" else None
    html = page(study, scale, store, only=only)
    some = gather(study, scale, store, only=only)
    asked = ["--only", *(f"agent={a}" for a in agents)] if only else []
    lines = [f"## {study.title}", f"`{study.name}`, scale {scale}; in the paper: {study.paper}."]
    lines.append(f"{sum(o.result is not None for o in some):,} of {len(some):,} points. {answer(study, scale, some)}")
    for picture in sorted(html.parent.glob(f"{html.stem}*.png")):
        if any(
            picture.name.startswith(f"{other.stem}-") for other in html.parent.glob("*.html") if longer(other, html)
        ):
            continue
        shutil.copy(picture, FIGURES / picture.name)
        lines.append(f"![{study.title}](figures/{picture.name})")
    tables = html.with_suffix(".md").read_text().partition("\n## ")[2]
    if tables and study.figure != "density":  # a histogram is no table to be read
        lines.append("## ".join(["", tables]).replace("\n## ", "\n#### ").replace("## ", "#### ", 1))
    lines.append("```text\n" + shlex.join(["ssorl", "study", "run", study.name, "--scale", scale, *asked]) + "\n```")
    return "\n\n".join(lines)


def longer(other: Path, html: Path) -> bool:
    return other.stem.startswith(html.stem) and len(other.stem) > len(html.stem)


def left(store: Path) -> str:
    lines = ["| study | cells left | of | GPU hours | command |", "|---|---|---|---|---|"]
    for study in STUDIES.values():
        if study.parts:
            continue
        told = cost(study, "paper", store, study.cells("paper"))
        if told.done < told.cells:
            hours = f"{told.seconds['gpu'] / 3600:.1f}"
            command = f"`ssorl study run {study.name} --scale paper`"
            lines.append(f"| {study.name} | {told.cells - told.done:,} | {told.cells:,} | {hours} | {command} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["pack"] and len(sys.argv) > 2:
        pack([Path(name) for name in sys.argv[2:]])
    elif sys.argv[1:] == ["draw"]:
        draw()
    else:
        sys.exit(__doc__)
