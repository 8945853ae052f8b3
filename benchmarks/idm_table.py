"""Action MSE of the IDM presets on the thirteen sets at q = 10, 50, 100: all fits of one robot in one program.

    python benchmarks/idm_table.py --idm paper robust --max-seconds 500    # on a GPU; goes on where it stopped
    python benchmarks/idm_table.py --idm paper-quick --only hopper --seeds 0 --steps 200
    python benchmarks/idm_table.py --table

Cells are appended to results/idm-table.jsonl (or --store) with all that made them.
"""

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path

import jax
import numpy as np

from ssorl.behaviour.datasets import names
from ssorl.data import apply, coupled, load, truth
from ssorl.idm import IDMS
from ssorl.idm.fit import fit_many
from ssorl.idm.label import predict

STORE = Path(__file__).parents[1] / "results" / "idm-table.jsonl"
QUALITIES = (10, 50, 100)
ROBOTS = ("hopper", "walker2d", "halfcheetah", "maze2d")
N_MEASURE = 40_000  # unlabelled steps the error is measured on


def sets(robot: str) -> list[str]:
    return [n for n in names() if n.startswith(robot) and n != f"{robot}-expert"]


def stored(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def key_of(cell: dict) -> tuple:
    return cell["idm"], cell["dataset"], cell["quality"], cell["seed"]


def run(robot: str, idm: str, config, seeds: list[int], store: Path) -> None:
    done = {key_of(c) for c in stored(store)}
    cells = [{"idm": idm, "dataset": n, "quality": q, "seed": s} for n in sets(robot) for q in QUALITIES for s in seeds]
    cells = [c for c in cells if key_of(c) not in done]
    if not cells:
        return
    whole = {n: load(f"sim/{n}") for n in {c["dataset"] for c in cells}}
    splits = [coupled(whole[c["dataset"]], 0.1, c["quality"], c["seed"]) for c in cells]
    data = [apply(split, whole[c["dataset"]]) for split, c in zip(splits, cells, strict=True)]
    began = time.perf_counter()
    idms = fit_many([(d, c["seed"]) for d, c in zip(data, cells, strict=True)], config)
    seconds = time.perf_counter() - began
    rate = len(cells) * config.members * config.steps / seconds
    print(f"{robot} {idm}: {len(cells)} fits x {config.members} in {seconds:.0f} s, {rate:,.0f} updates/s", flush=True)
    about = {
        "updates_per_second": round(rate),
        "config": asdict(config),
        "hardware": jax.devices()[0].device_kind,
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
    }
    with store.open("a") as file:
        for cell, fitted, d, split in zip(cells, idms, data, splits, strict=True):
            hidden = np.flatnonzero(~d.labelled)
            hidden = np.sort(np.random.default_rng(0).choice(hidden, min(len(hidden), N_MEASURE), replace=False))
            true = truth(split, whole[cell["dataset"]])[hidden]
            mse = float(((np.clip(predict(fitted, d, hidden).mean, -1, 1) - true) ** 2).mean())
            file.write(json.dumps({**cell, "mse": mse, "best_step": fitted.best_step.tolist(), **about}) + "\n")


def table(store: Path) -> str:
    cells = stored(store)
    idms = sorted({c["idm"] for c in cells})
    lines = ["| dataset | " + " | ".join(f"{i} q={q}" for q in QUALITIES for i in idms) + " |"]
    lines.append("|---" * (len(idms) * len(QUALITIES) + 1) + "|")
    for name in [n for robot in ROBOTS for n in sets(robot)]:
        row = []
        for q in QUALITIES:
            for idm in idms:
                found = [c["mse"] for c in cells if (c["idm"], c["dataset"], c["quality"]) == (idm, name, q)]
                row.append(f"{np.mean(found):.4f} ± {np.std(found):.4f}" if found else "")
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--idm", nargs="+", default=["paper", "robust"], choices=list(IDMS))
    p.add_argument("--only", nargs="+", default=list(ROBOTS), choices=ROBOTS)
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    p.add_argument("--steps", type=int)
    p.add_argument("--half", action="store_true", help="hidden layers in bfloat16")
    p.add_argument("--max-seconds", type=float, default=float("inf"), help="begin no group after so long")
    p.add_argument("--store", type=Path, default=STORE)
    p.add_argument("--table", action="store_true", help="only print what is stored")
    args = p.parse_args()
    args.store.parent.mkdir(exist_ok=True)
    began = time.perf_counter()
    for robot in args.only if not args.table else ():
        for idm in args.idm:
            if time.perf_counter() - began < args.max_seconds:
                config = replace(IDMS[idm], half=args.half, steps=args.steps or IDMS[idm].steps)
                run(robot, idm, config, args.seeds, args.store)
    print(table(args.store))


if __name__ == "__main__":
    main()
