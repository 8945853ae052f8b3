"""Measure action MSE of the IDM presets on the thirteen datasets at q = 10, 50, 100; a robot's fits are one program.

    python benchmarks/idm_table.py --idm paper robust --max-seconds 500    # on a GPU; resumes where it stopped
    python benchmarks/idm_table.py --idm robust --change past=0 --only hopper --sets medium-expert
    python benchmarks/idm_table.py --idm paper-quick --only hopper --seeds 0 --steps 200 --size 20000
    python benchmarks/idm_table.py --table

`short` is the medium-expert set with only 40 labelled trajectories, and of those only the first 99 steps.
Cells are appended to results/idm-table.jsonl (or --store) with all that made them.
"""

import argparse
import ast
import json
import re
import subprocess
import time
from dataclasses import asdict, replace
from pathlib import Path

import jax
import numpy as np

from ssorl.data import apply, coupled, load
from ssorl.data.sim.datasets import names
from ssorl.idm import IDMS
from ssorl.idm.fit import fit_many
from ssorl.idm.label import predict

STORE = Path(__file__).parents[1] / "results" / "idm-table.jsonl"
QUALITIES = (10, 50, 100)
ROBOTS = ("hopper", "walker2d", "halfcheetah", "maze2d")
N_MEASURE = 40_000  # unlabelled steps on which the error is measured


def sets(robot: str) -> list[str]:
    sets = [n for n in names() if n.startswith(robot) and n != f"{robot}-expert"]
    return sets + ([] if robot == "maze2d" else [f"{robot}-short"])


def stored(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def key_of(cell: dict) -> tuple:
    return cell["idm"], cell["dataset"], cell["quality"], cell["seed"]


def cells_of(robot: str, idm: str, args) -> list[dict]:
    chosen = [n for n in sets(robot) if not args.sets or any(n.endswith(end) for end in args.sets)]
    # 40 short trajectories: from the bottom half alone, one cell says enough.
    pairs = [(n, q) for n in chosen for q in ((50,) if n.endswith("short") else args.quality)]
    return [{"idm": idm, "dataset": n, "quality": q, "seed": s} for n, q in pairs for s in args.seeds]


def hidden_data(whole, cell: dict):
    """Return the dataset without the actions that the cell hides."""
    short = cell["dataset"].endswith("short")
    fraction = 40 / len(whole) if short else 0.1
    split = coupled(whole, fraction, cell["quality"], cell["seed"])
    data = apply(split, whole)
    if short:
        late = np.arange(whole.n_steps) - whole.start[whole.episode_of_step] >= 99
        data = data.with_actions(np.where(late[:, None], np.nan, data.act))
    return data


def run(robot: str, idm: str, config, args) -> None:
    done = {key_of(c) for c in stored(args.store)}
    cells = [c for c in cells_of(robot, idm, args) if key_of(c) not in done]
    if not cells:
        return
    source = {c["dataset"]: f"sim/{c['dataset'].replace('short', 'medium-expert')}:{args.size}" for c in cells}
    loaded = {s: load(s) for s in set(source.values())}
    whole = {n: loaded[s] for n, s in source.items()}
    data = [hidden_data(whole[c["dataset"]], c) for c in cells]
    began = time.perf_counter()
    idms = fit_many([(d, c["seed"]) for d, c in zip(data, cells, strict=True)], config)
    seconds = time.perf_counter() - began
    rate = len(cells) * config.members * config.steps / seconds
    print(f"{robot} {idm}: {len(cells)} fits x {config.members} in {seconds:.0f} s, {rate:,.0f} updates/s", flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    about = {
        "updates_per_second": round(rate),
        "size": args.size,
        "config": asdict(config),
        "hardware": jax.devices()[0].device_kind,
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
        "commit": args.commit or commit or None,
    }
    lines = []
    for cell, fitted, d in zip(cells, idms, data, strict=True):
        eps = whole[cell["dataset"]]
        steps = np.flatnonzero(~d.labelled)
        steps = np.sort(np.random.default_rng(0).choice(steps, min(len(steps), N_MEASURE), replace=False))
        mse = float(((np.clip(predict(fitted, d, steps).mean, -1, 1) - eps.scaled_actions()[steps]) ** 2).mean())
        lines.append(json.dumps({**cell, "mse": mse, "best_step": fitted.best_step.tolist(), **about}) + "\n")
    with args.store.open("a") as file:
        file.writelines(lines)


def table(store: Path) -> str:
    cells = stored(store)
    idms = list(dict.fromkeys(c["idm"] for c in cells))
    lines = ["| dataset | " + " | ".join(f"{i} q={q}" for q in QUALITIES for i in idms) + " |"]
    lines.append("|---" * (len(idms) * len(QUALITIES) + 1) + "|")
    for name in [n for robot in ROBOTS for n in sets(robot)]:
        row = []
        for q in QUALITIES:
            for idm in idms:
                errors = [c["mse"] for c in cells if (c["idm"], c["dataset"], c["quality"]) == (idm, name, q)]
                row.append(f"{np.mean(errors):.4f} ± {np.std(errors):.4f}" if errors else "")
        if any(row):
            lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def variants(cells: list[dict], seeds: list[int]) -> str:
    """Return a table with a row for each IDM and a column for each dataset and quality: means over `seeds`."""
    idms = list(dict.fromkeys(c["idm"] for c in cells))
    columns = list(dict.fromkeys((c["dataset"], c["quality"]) for c in cells))
    lines = ["| | " + " | ".join(f"{n} q={q}" for n, q in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for idm in idms:
        row = []
        for name, q in columns:
            place = [c for c in cells if (c["idm"], c["dataset"], c["quality"]) == (idm, name, q)]
            errors = [c["mse"] for c in place if c["seed"] in seeds]
            row.append(f"{np.mean(errors):.4f}" if errors else "")
        lines.append(f"| {idm} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def tables(args) -> str:
    """Return the rows that --docs selects; without it, all stored rows."""
    if args.docs == "variants":
        return variants(stored(args.store), [0])  # other seeds are not stored for all variants
    if args.docs == "dropout":
        cells = stored(args.store)
        places = {(c["dataset"], c["quality"]) for c in cells}
        return variants([c for c in stored(STORE) if (c["dataset"], c["quality"]) in places] + cells, args.seeds)
    return table(args.store)


def into_docs(mark: str, body: str) -> None:
    page = Path(__file__).parents[1] / "docs" / "idm.md"
    pattern = rf"(<!-- generated: {mark} -->\n).*?(<!-- end -->)"
    page.write_text(re.sub(pattern, lambda m: f"{m[1]}{body}\n{m[2]}", page.read_text(), flags=re.S))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--idm", nargs="+", default=["paper", "robust"], choices=list(IDMS))
    p.add_argument(
        "--change", nargs="*", default=[], help="settings to change, such as past=0; stored in the cells' idm"
    )
    p.add_argument("--only", nargs="+", default=list(ROBOTS), choices=ROBOTS)
    p.add_argument("--sets", nargs="+", help="suffixes of the datasets' names (default: all)")
    p.add_argument("--quality", type=int, nargs="+", default=list(QUALITIES))
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    p.add_argument("--steps", type=int)
    p.add_argument("--size", default="full", help="size of the datasets")
    p.add_argument("--max-seconds", type=float, default=float("inf"), help="start no group after this")
    p.add_argument("--store", type=Path, default=STORE)
    p.add_argument("--commit", help="the commit, if the code is not in a repository")
    p.add_argument("--table", action="store_true", help="only print stored results")
    p.add_argument("--docs", metavar="MARK", help="write the table to docs/idm.md: full, variants or dropout")
    args = p.parse_args()
    args.store.parent.mkdir(exist_ok=True)
    began = time.perf_counter()
    changes = {k: ast.literal_eval(v) for k, v in (c.split("=") for c in args.change)}
    for robot in args.only if not args.table else ():
        for idm in args.idm:
            if time.perf_counter() - began < args.max_seconds:
                config = replace(IDMS[idm], steps=args.steps or IDMS[idm].steps)
                run(robot, " ".join([idm, *args.change]), replace(config, **changes), args)
    text = tables(args)
    print(text)
    if args.docs:
        into_docs(args.docs, text)


if __name__ == "__main__":
    main()
