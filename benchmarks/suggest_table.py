"""What suggested labels are worth: the label error after 1, 3 and 10 more trajectories, by criterion, with trees.

    python benchmarks/suggest_table.py --max-seconds 400     # continues where it stopped
    python benchmarks/suggest_table.py --table               # only print

A cell is a set, a quality q and a seed. Its labels are a tenth of the trajectories, from the bottom q % by return.
Extremely randomised trees on (s, s' - s, s') are fitted to at most 8,000 labelled steps, and their error is measured on
4,000 steps that are unlabelled still. Results are appended to results/suggest.jsonl.
"""

import argparse
import json
import re
import time
from pathlib import Path

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor

from ssorl.data import apply, coupled, load
from ssorl.data.cover import candidates, cover
from ssorl.data.stats import standardiser
from ssorl.idm.suggest import suggest

STORE = Path(__file__).parents[1] / "results" / "suggest.jsonl"
DOCS = Path(__file__).parents[1] / "docs" / "suggest.md"
SETS = [
    f"{r}-{level}"
    for r in ("hopper", "walker2d", "halfcheetah")
    for level in ("medium-expert", "medium-replay", "medium")
]
QUALITIES, BUDGETS, DRAWS = (10, 50), (1, 3, 10), 2
N_TRAIN, N_TEST = 8_000, 4_000


def features(eps, steps):
    now, after = eps.obs[eps.obs_row[steps]], eps.obs[eps.obs_row[steps] + 1]
    return np.concatenate([now, after - now, after], 1)


def fit(whole, labelled, seed):
    steps = np.flatnonzero(np.repeat(np.isin(np.arange(len(whole)), labelled), whole.lengths))
    rng = np.random.default_rng(seed)
    steps = rng.choice(steps, min(N_TRAIN, len(steps)), replace=False)
    trees = ExtraTreesRegressor(15, min_samples_leaf=3, max_features=0.5, random_state=seed)
    return trees.fit(features(whole, steps), whole.scaled_actions()[steps])


def error(whole, labelled, spared, seed):
    """Mean squared error on steps of the trajectories that are still unlabelled."""
    steps = np.flatnonzero(np.repeat(np.isin(np.arange(len(whole)), spared), whole.lengths))
    steps = np.random.default_rng(0).choice(steps, min(N_TEST, len(steps)), replace=False)
    found = fit(whole, labelled, seed).predict(features(whole, steps))
    return float(((found.reshape(len(steps), -1) - whole.scaled_actions()[steps]) ** 2).mean())


def variance_order(whole, labelled, rest, seed):
    """Trajectories by the variance between the trees, summed over their steps."""
    trees, sums = fit(whole, labelled, seed), []
    for e in rest:
        steps = np.arange(whole.start[e], whole.start[e + 1])
        x = features(whole, steps[:: max(1, len(steps) // 50)]).astype(np.float32)
        sums.append(np.var([t.predict(x) for t in trees.estimators_], 0).mean() * len(steps))
    return rest[np.argsort(-np.array(sums), kind="stable")]


def centre_order(whole, labelled, rest):
    """Greedy k-centre on the mean standardised state of trajectories."""
    z = standardiser(whole)(whole.obs)
    first = whole.start + np.arange(len(whole.start))
    means = np.add.reduceat(z, first[:-1]) / (whole.lengths + 1)[:, None]
    near = np.linalg.norm(means[:, None] - means[labelled], axis=2).min(1)
    order = []
    for _ in range(max(BUDGETS)):
        near[[*labelled, *order]] = -1
        order.append(int(np.argmax(near)))
        near = np.minimum(near, np.linalg.norm(means - means[order[-1]], axis=1))
    return np.array(order)


def measure(cell):
    whole = load(f"sim/{cell['set']}")
    split = coupled(whole, 0.1, cell["quality"], cell["seed"])
    hidden, seed = apply(split, whole), cell["seed"]
    labelled, rest = split.labelled, split.unlabelled
    rng = np.random.default_rng(seed)
    picks = cover(hidden, candidates(hidden), max(BUDGETS), seed=seed).picks
    orders = {
        "cover": np.array([p.candidate.trajectory for p in picks]),
        "best return": rest[np.argsort(-whole.returns[rest], kind="stable")],
        "summed variance": variance_order(whole, labelled, rest, seed),
        "k-centre": centre_order(whole, labelled, rest),
        **{f"random {i}": rng.permutation(rest) for i in range(DRAWS)},
    }
    if len(rest) <= 2 * max(BUDGETS):
        return {**cell, "skipped": "too few trajectories"}
    suggested = suggest(hidden, max(BUDGETS), seed=seed)
    forecast = [suggested.expected_mse_now, *(s.expected_mse for s in suggested.suggestions)]
    out = {**cell, "labelled": len(labelled), "before": error(whole, labelled, rest, seed), "forecast": forecast}
    for name, order in orders.items():
        more = [order[:k] for k in BUDGETS]
        out[name] = [error(whole, np.concatenate([labelled, m]), np.setdiff1d(rest, m), seed) for m in more]
    return out


def stored(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(cells):
    cells = [c for c in cells if "before" in c]
    if not cells:
        return "no cells"
    lines = [
        "| set | q | seed | before | "
        + " | ".join(f"{n}, 3 more" for n in ("cover", "best return"))
        + " | random, 3 more |"
    ]
    lines.append("|---" * 7 + "|")
    random = [np.mean([c[f"random {i}"] for i in range(DRAWS)], 0) for c in cells]
    for c, r in zip(cells, random, strict=True):
        row = (c["before"], c["cover"][1], c["best return"][1], r[1])
        lines.append(f"| {c['set']} | {c['quality']} | {c['seed']} | " + " | ".join(f"{x:.4f}" for x in row) + " |")
    lines += ["", "Median error relative to random's:", "", "| criterion | 1 more | 3 | 10 |", "|---|---|---|---|"]
    for name in ("cover", "best return", "summed variance", "k-centre"):
        ratio = np.median([np.array(c[name]) / r for c, r in zip(cells, random, strict=True)], 0)
        lines.append(f"| {name} | " + " | ".join(f"{x:.2f}" for x in ratio) + " |")
    best = np.median([c["cover"][1] / c["best return"][1] for c in cells])
    lines += ["", f"Cover's error at 3 more is {best:.2f} times best return's in the median of {len(cells)} cells."]
    for title, k, true in (("before", 0, lambda c: c["before"]), ("after 3 more", 3, lambda c: c["cover"][1])):
        ratios = np.array([c["forecast"][k] / true(c) for c in cells if c["forecast"][0]])
        near = np.mean((ratios < 1.5) & (ratios > 1 / 1.5))
        lines += [f"Forecast {title}: within 1.5 times the truth in {near:.0%} of {len(ratios)} cells."]
    return "\n".join(lines)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    p.add_argument("--max-seconds", type=float, default=float("inf"), help="begin no cell after so many")
    p.add_argument("--store", type=Path, default=STORE)
    p.add_argument("--table", action="store_true", help="only print what is stored")
    p.add_argument("--docs", action="store_true", help="put the table into docs/suggest.md")
    args = p.parse_args()
    done, began = {(c["set"], c["quality"], c["seed"]) for c in stored(args.store)}, time.process_time()
    cells = [{"set": n, "quality": q, "seed": s} for s in args.seeds for n in args.sets for q in QUALITIES]
    for cell in [] if args.table else cells:
        if tuple(cell.values()) in done or time.process_time() - began > args.max_seconds:
            continue
        line = json.dumps(measure(cell))
        with args.store.open("a") as file:
            file.write(line + "\n")
    body = table(stored(args.store))
    print(body)
    if args.docs:
        pattern = re.compile(r"(<!-- generated: suggest -->\n).*?(<!-- end -->)", re.S)
        DOCS.write_text(pattern.sub(lambda m: f"{m[1]}\n{body}\n\n{m[2]}", DOCS.read_text()))


if __name__ == "__main__":
    main()
