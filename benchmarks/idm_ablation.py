"""Measure the effect of each part of the robust IDM: action MSE on the unlabelled trajectories, for each variant.

    python benchmarks/idm_ablation.py            # small networks, a CPU; about 40 minutes; resumes where it stopped.
    python benchmarks/idm_ablation.py --table    # only write the table of docs/idm.md from stored results

Cells are appended to results/idm-ablation.jsonl with all that made them.
"""

import json
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import jax
import numpy as np

from ssorl.data import apply, coupled, load, truth
from ssorl.idm.fit import fit
from ssorl.idm.label import predict
from ssorl.idm.model import IdmConfig

# Read at the start, because commits made during the run did not run.
COMMIT = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
COMMIT = COMMIT or os.environ.get("COMMIT")  # if the code is not in a repository
STORE = Path(__file__).parents[1] / "results" / "idm-ablation.jsonl"
SMALL = {"hidden": (256, 256), "batch": 256, "steps": 4000, "validate_every": 250}
PAPER = IdmConfig(**SMALL, lr=3e-4)  # 4,000 updates are too few for the paper's 1e-4
ROBUST = replace(
    PAPER, beta=0.5, differences=True, dropout=0.0, select="mse", lr=1e-3, schedule="cosine", hidden=(256, 256, 256)
)
VARIANTS = {
    "paper": PAPER,
    "+ β-NLL": replace(PAPER, beta=0.5),
    "+ differences": replace(PAPER, beta=0.5, differences=True),
    "+ no dropout, best MSE": replace(PAPER, beta=0.5, differences=True, dropout=0.0, select="mse"),
    "+ cosine from 1e-3": replace(ROBUST, hidden=(256, 256)),
    "+ third layer": ROBUST,
    "+ three members": replace(ROBUST, members=3),
    "third layer, k = 0": replace(ROBUST, past=0),
    "third layer, k = 2": replace(ROBUST, past=2),
    "third layer, affine term": replace(ROBUST, affine=True),
    "third layer, width 512": replace(ROBUST, hidden=(512, 512, 512)),
    "third layer, ranks": replace(ROBUST, ranks=True),
    "third layer, ranks, affine term": replace(ROBUST, ranks=True, affine=True),
    "third layer, ranks, affine term, dropout": replace(ROBUST, ranks=True, affine=True, dropout=0.1),
    "third layer, ranks, affine term, s_{t+2}": replace(ROBUST, ranks=True, affine=True, future=1),
    "third layer, ranks, affine term, s_{t+2} for s_{t−1}": replace(ROBUST, ranks=True, affine=True, past=0, future=1),
    "paper, ranks": replace(PAPER, ranks=True),
    "paper, affine term": replace(PAPER, affine=True),
    "paper, no dropout": replace(PAPER, dropout=0.0),
}
CASES = [
    ("sim/hopper-medium-expert", 50),
    ("sim/hopper-medium-expert", 100),
    ("sim/walker2d-medium-expert", 50),
    ("sim/walker2d-medium-expert", 100),
    ("sim/halfcheetah-medium-expert", 50),
    ("sim/halfcheetah-medium-replay:full", 10),
    ("sim/maze2d-open-dense:full", 10),
]
N_MEASURE = 40_000  # unlabelled steps on which the error is measured


def cell(dataset: str, quality: float, variant: str, seed: int) -> dict:
    eps = load(dataset)
    split = coupled(eps, 0.1, quality, seed)
    data, true = apply(split, eps), truth(split, eps)
    hidden = np.flatnonzero(~data.labelled)
    hidden = np.sort(np.random.default_rng(0).choice(hidden, min(len(hidden), N_MEASURE), replace=False))
    began = time.perf_counter()
    idm = fit(data, VARIANTS[variant], seed)
    seconds = time.perf_counter() - began
    error = np.clip(predict(idm, data, hidden).mean, -1, 1) - true[hidden]
    return {
        "dataset": dataset,
        "quality": quality,
        "variant": variant,
        "seed": seed,
        "mse": float((error**2).mean()),
        "seconds": round(seconds, 1),
        "config": asdict(VARIANTS[variant]),
        "commit": COMMIT,
        "hardware": f"{jax.default_backend()} {platform.machine()}",
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
    }


def stored() -> list[dict]:
    return [json.loads(line) for line in STORE.read_text().splitlines()] if STORE.exists() else []


def table() -> str:
    cells = {(c["dataset"], c["quality"], c["variant"]): c["mse"] for c in stored()}
    heads = [f"{re.sub('sim/|-medium-expert|-dense|:full', '', d)} q={q}" for d, q in CASES]
    lines = ["| variant | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for variant in VARIANTS:
        row = [cells.get((d, q, variant)) for d, q in CASES]
        lines.append(f"| {variant} | " + " | ".join("" if x is None else f"{x:.4f}" for x in row) + " |")
    return "\n".join(lines)


def main() -> None:
    done = {(c["dataset"], c["quality"], c["variant"], c["seed"]) for c in stored()}
    STORE.parent.mkdir(exist_ok=True)
    for variant in VARIANTS if "--table" not in sys.argv else ():
        for dataset, quality in reversed(CASES):
            if (dataset, quality, variant, 0) not in done:
                row = cell(dataset, quality, variant, 0)
                print(f"{dataset} q={quality} {variant}: {row['mse']:.4f} in {row['seconds']} s", flush=True)
                with STORE.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    print(table())
    page = Path(__file__).parents[1] / "docs" / "idm.md"
    mark = r"(<!-- generated: ablation -->\n).*?(<!-- end -->)"
    page.write_text(re.sub(mark, lambda m: m[1] + table() + "\n" + m[2], page.read_text(), flags=re.S))


if __name__ == "__main__":
    main()
