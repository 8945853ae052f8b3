"""Label error of the blend beside simple rivals, with its forecast: one cell a set, quality and seed.

    python benchmarks/label_table.py --max-seconds 1200     # resumes; cells are appended to results/labels.jsonl
    python benchmarks/label_table.py --table                # writes the tables of docs/blend.md

Rivals: `robust-quick`; HistGB, scikit-learn's HistGradientBoostingRegressor (300 rounds, rate 0.1, on s, s' - s,
s'); the mean of these two; ridge on s_{t-1} … s_{t+2}. Errors are mean squared errors on at most 20,000 unlabelled
steps, actions scaled to [-1, 1]. Sets marked D were looked at while the blend was developed.
"""

import argparse
import json
import re
import time
from pathlib import Path

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from ssorl.data import apply, coupled, load, truth
from ssorl.data.episodes import scale
from ssorl.idm import IDMS
from ssorl.idm.blend.windows import gather
from ssorl.idm.calibrate import NORMAL
from ssorl.idm.label import labeller, predict
from ssorl.idm.limits import AT_LIMIT
from ssorl.idm.outlook import predict_error
from ssorl.utils.provenance import commit, hardware, versions

ROOT = Path(__file__).parents[1]
STORE = ROOT / "results" / "labels.jsonl"
PAGE = ROOT / "docs" / "blend.md"
SETS = (
    "hopper-medium-expert",
    "halfcheetah-medium-expert",
    "walker2d-medium-expert",
    "hopper-medium-replay",
    "walker2d-medium-replay",
    "maze2d-umaze-dense",
)
DEVELOPED = {("hopper-medium-expert", 50, 0), ("halfcheetah-medium-expert", 50, 0), ("walker2d-medium-expert", 50, 0)}
TEST = 20_000  # unlabelled steps that are measured


def cells() -> list[tuple[str, int, int]]:
    """All cells, the ones that tell most first."""
    return [(name, q, seed) for seed in (1, 0) for q in (50, 10, 100) for name in SETS]


def measure(name: str, quality: int, seed: int) -> dict:
    """Fit all models on one split and return their errors."""
    whole = load(f"sim/{name}")
    split = coupled(whole, 0.1, quality, seed)
    eps = apply(split, whole)
    act = scale(np.where(eps.labelled[:, None], eps.act, truth(split, whole)), eps.meta)
    known = np.flatnonzero(eps.labelled)
    steps = np.flatnonzero(~eps.labelled)
    steps = np.sort(np.random.default_rng(123).choice(steps, min(TEST, len(steps)), replace=False))

    def rows(chosen: np.ndarray, past: int, future: int) -> np.ndarray:
        states, _ = gather(eps, chosen, past, future)
        now = states.reshape(len(chosen), -1)
        return now if past else np.concatenate([now, states[:, 1] - states[:, 0]], 1)

    def mse(mean: np.ndarray) -> float:
        return float(((np.clip(mean, -1, 1) - act[steps]) ** 2).mean())

    seconds, errors = {}, {}
    start = time.perf_counter()
    with threadpool_limits(1, "openmp"):
        x, new = rows(known, 0, 0), rows(steps, 0, 0)
        trees = [
            HistGradientBoostingRegressor(max_iter=300, learning_rate=0.1, random_state=seed).fit(x, y).predict(new)
            for y in act[known].T
        ]
    trees = np.stack(trees, 1)
    errors["histgb"], seconds["histgb"] = mse(trees), time.perf_counter() - start
    ridge = make_pipeline(StandardScaler(), Ridge(1.0)).fit(rows(known, 1, 1), act[known])
    errors["ridge"] = mse(ridge.predict(rows(steps, 1, 1)).reshape(len(steps), -1))
    start = time.perf_counter()
    network = predict(IDMS["robust-quick"].fit(eps, seed), eps, steps).mean
    errors["robust-quick"], seconds["robust-quick"] = mse(network), time.perf_counter() - start
    errors["mean"] = mse((network + trees) / 2)
    start = time.perf_counter()
    ready = labeller(IDMS["blend-quick"].fit(eps, seed), eps)
    out = predict(ready.idm, eps, steps)
    label = ready.actions(out.mean)
    std = out.std * np.array(ready.calibration.scale if ready.calibration else 1.0)
    errors["blend"], seconds["blend"] = mse(label), time.perf_counter() - start
    start = time.perf_counter()
    found = predict_error(eps, ready, seed)
    seconds["forecast"] = time.perf_counter() - start
    return {
        "dataset": name,
        "quality": quality,
        "seed": seed,
        "labelled_steps": len(known),
        "mse": errors,
        "seconds": {k: round(v, 1) for k, v in seconds.items()},
        "weights": ready.idm.facts()["weights"],
        "lag": ready.idm.facts()["window"]["lag"],
        "validation": float(ready.validation.mse.mean()) if ready.validation else None,
        "forecast": None if found is None else {k: v for k, v in found.as_json().items() if k != "by_trajectory"},
        "coverage": [float((np.abs(label - act[steps]) <= w * std).mean()) for w in NORMAL],
        "at_limit": {
            "labels": float((np.abs(label) >= AT_LIMIT).any(1).mean()),
            "labelled": float((np.abs(act[known]) >= AT_LIMIT).any(1).mean()),
            "truth": float((np.abs(act[steps]) >= AT_LIMIT).any(1).mean()),
        },
        "commit": commit(),
        "hardware": hardware(),
        "versions": versions(),
    }


def stored() -> list[dict]:
    """All cells that were measured."""
    return [json.loads(line) for line in STORE.read_text().splitlines()] if STORE.exists() else []


def table(found: list[dict]) -> str:
    """Return the tables of docs/blend.md."""
    lines = [
        "| set, q, seed | | robust-quick | HistGB | mean of both | ridge | **blend** | blend / best rival |",
        "|---|---|---|---|---|---|---|---|",
    ]
    ratios, fresh = [], []
    for c in sorted(found, key=lambda c: (c["dataset"], c["quality"], c["seed"])):
        e, key = c["mse"], (c["dataset"], c["quality"], c["seed"])
        rival = min(e[k] for k in ("robust-quick", "histgb", "mean", "ridge"))
        ratios.append(e["blend"] / rival)
        seen = key in DEVELOPED
        fresh += [] if seen else [ratios[-1]]
        values = " | ".join(f"{e[k]:.4f}" for k in ("robust-quick", "histgb", "mean", "ridge", "blend"))
        lines.append(f"| {key[0]} {key[1]}, {key[2]} | {'D' if seen else ''} | {values} | {ratios[-1]:.2f} |")
    lines += ["", f"Geometric mean of the last column: {np.exp(np.mean(np.log(ratios))):.2f} over {len(ratios)} cells"]
    if fresh:
        lines[-1] += f", {np.exp(np.mean(np.log(fresh))):.2f} over the {len(fresh)} that were not developed on"
    lines[-1] += f"; largest {max(ratios):.2f}."
    lines += [
        "",
        "| set, q, seed | true error | forecast | interval | holds it | random holdout | 95 % band | at a limit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for c in sorted(found, key=lambda c: (c["dataset"], c["quality"], c["seed"])):
        f, true = c["forecast"], c["mse"]["blend"]
        said = (
            "– | – | –"
            if f is None
            else (
                f"{f['mse']:.4f} | {f['low']:.4f}–{f['high']:.4f} | {'yes' if f['low'] <= true <= f['high'] else 'no'}"
            )
        )
        random = "–" if f is None else f"{f['random_holdout']:.4f}"
        limit = c["at_limit"]
        lines.append(
            f"| {c['dataset']} {c['quality']}, {c['seed']} | {true:.4f} | {said} | {random} | {c['coverage'][2]:.0%} | "
            f"{limit['labels']:.1%} (true actions {limit['truth']:.1%}, labelled {limit['labelled']:.1%}) |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-seconds", type=float, default=1e9, help="begin no cell after this time")
    parser.add_argument("--table", action="store_true", help="print the tables from the stored cells")
    args = parser.parse_args()
    if args.table:
        text = table(stored())
        page = re.sub(
            r"(<!-- generated: labels -->\n).*?(<!-- end -->)", rf"\g<1>{text}\n\g<2>", PAGE.read_text(), flags=re.S
        )
        PAGE.write_text(page)
        return print(text)
    start = time.perf_counter()
    done = {(c["dataset"], c["quality"], c["seed"]) for c in stored()}
    for cell in cells():
        if cell in done or time.perf_counter() - start > args.max_seconds:
            continue
        result = measure(*cell)
        with STORE.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(cell, {k: round(v, 5) for k, v in result["mse"].items()}, result["seconds"], flush=True)
    return None


if __name__ == "__main__":
    main()
