"""Compare label models with the best linear model on `builtin/arm`, on whole windows and overall, at lags 0 to 3.

    nice python benchmarks/arm_table.py --idm blend-quick robust-quick --seeds 0 1    # resumes where it stopped
    python benchmarks/arm_table.py --lags 20                                          # how often the lag is found
    python benchmarks/arm_table.py --table

Each arm has 40 trajectories of 119 steps, 20 of them labelled; errors are of the other 20. The linear model is least
squares on s_{t-p} … s_{t+1+f}, p ≤ 3 and f ≤ lag + 3, fitted apart wherever the end of a trajectory cuts the window, at
the p and f that have the least error on the unlabelled steps themselves. `longer` is the same with f ≤ 6 at every lag:
these commands are so smooth that each further state averages more of the encoders' noise. A whole window has 3 states
before s_t and 6 after s_{t+1}. Cells are appended to results/arm.jsonl (or --store) with all that made them.
"""

import argparse
import json
import subprocess
import time
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ssorl.data import apply, coupled
from ssorl.data.collections import arm
from ssorl.data.episodes import Episodes
from ssorl.idm import IDMS
from ssorl.idm.blend.linear import find_delay
from ssorl.idm.label import predict

STORE = Path(__file__).parents[1] / "results" / "arm.jsonl"
LABELLED, PAST, FUTURE = 0.5, 3, 6  # share of the trajectories, and the largest window of the linear models
PARTS = ("whole", "overall")
LIMIT = 1.1  # of the aim: the error of a label model, relative to the best linear model's


class Case(NamedTuple):
    """An arm with half of its actions hidden."""

    whole: Episodes
    data: Episodes
    hidden: np.ndarray  # [N] steps without an action
    inner: np.ndarray  # [N] bool, whether the largest window fits into the trajectory


def case(lag: int, seed: int, **sizes: int) -> Case:
    """Return the arm of a lag and a seed; `sizes` are `n_episodes` and `n_steps`."""
    whole = arm.record(lag, seed=seed, **sizes)
    data = apply(coupled(whole, LABELLED, 100, seed), whole)
    hidden = np.flatnonzero(~data.labelled)
    before, after = places(data, hidden)
    return Case(whole, data, hidden, (before >= PAST) & (after >= FUTURE))


def places(eps: Episodes, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how many states come before s_t and after s_{t+1} in the trajectory of each step, [N] each."""
    episode = np.searchsorted(eps.start, steps, side="right") - 1
    return steps - eps.start[episode], eps.start[episode + 1] - steps - 1


def linear(c: Case, past: int, future: int) -> np.ndarray:
    """Return the predictions of least squares on a window at the hidden steps, [N, A], scaled to [-1, 1]."""
    train, targets = np.flatnonzero(c.data.labelled), c.data.scaled_actions()
    ends = [np.minimum(p, most) for p, most in zip(places(c.data, c.hidden), (past, future), strict=True)]
    room = places(c.data, train)
    out = np.empty((len(c.hidden), c.data.n_act))
    for before, after in set(zip(*(e.tolist() for e in ends), strict=True)):
        fits = train[(room[0] >= before) & (room[1] >= after)]
        mine = (ends[0] == before) & (ends[1] == after)
        x, new = (_window(c.data, s, before, after) for s in (fits, c.hidden[mine]))
        out[mine] = new @ np.linalg.lstsq(x, targets[fits].astype(np.float64), rcond=None)[0]
    return np.clip(out, -1, 1)


def _window(eps: Episodes, steps: np.ndarray, before: int, after: int) -> np.ndarray:
    row = eps.obs_row[steps]
    states = [eps.obs[row + k] for k in range(-before, after + 2)]
    return np.concatenate([*states, np.ones((len(steps), 1))], axis=1).astype(np.float64)


def errors(c: Case, predicted: np.ndarray) -> dict[str, float]:
    """Return the mean squared error on whole windows and overall."""
    square = np.square(predicted - c.whole.scaled_actions()[c.hidden], dtype=np.float64).mean(1)
    return {"whole": float(square[c.inner].mean()), "overall": float(square.mean())}


def best_linear(c: Case, future: int) -> dict[str, float]:
    """Return the least errors of linear models, on whole windows and overall, with at most so many later states."""
    found = [errors(c, linear(c, p, f)) for p, f in product(range(PAST + 1), range(min(future, FUTURE) + 1))]
    return {name: min(f[name] for f in found) for name in PARTS}


def label_errors(c: Case, config, seed: int) -> tuple[dict[str, float], dict]:
    """Return the errors of a label model, and its facts."""
    idm = config.fit(c.data, seed)
    return errors(c, np.clip(predict(idm, c.data, c.hidden).mean, -1, 1)), idm.facts()


def lag_found(lag: int, seed: int) -> int:
    """Return the lag that the blend finds in the labelled half."""
    data = case(lag, seed).data
    steps = np.flatnonzero(data.labelled)
    episode = np.unique(data.episode_of_step[steps], return_inverse=True)[1]
    return find_delay(data, steps, data.scaled_actions()[steps].astype(np.float64), episode % 2 == 0)[0]


def stored(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(args) -> None:
    done = {(c["idm"], c["lag"], c["seed"]) for c in stored(args.store)}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    for seed, lag in product(args.seeds, arm.LAGS):
        missing = [name for name in args.idm if (name, lag, seed) not in done]
        if not missing:
            continue
        c = case(lag, seed)
        reference, longer = best_linear(c, lag + 3), best_linear(c, FUTURE)
        for name in missing:
            config, began = IDMS[name], time.process_time()
            found, facts = label_errors(c, config, seed)
            cell = {"idm": name, "lag": lag, "seed": seed, "mse": found, "linear": reference, "longer": longer}
            cell |= {"window": facts.get("window"), "weights": facts.get("weights"), "config": asdict(config)}
            cell |= {"cpu_seconds": round(time.process_time() - began, 1), "commit": args.commit or commit or None}
            with args.store.open("a") as file:
                file.write(json.dumps(cell) + "\n")
            ratios = ", ".join(f"{k} {found[k] / reference[k]:.2f}" for k in found)
            print(f"{name} lag {lag} seed {seed}: {ratios} of the best linear error", flush=True)


def table(store: Path) -> str:
    """Return a table of errors in % of the action range (RMS), and of ratios of mean squared errors."""
    cells = stored(store)
    head = ["% RMS", "linear", "longer", "ratio"]
    lines = ["| " + " | ".join(["model", "lag", "seeds", *(f"{p}: {h}" for p in PARTS for h in head)]) + " |"]
    lines.append("|---" * 11 + "|")
    for name, lag in dict.fromkeys((c["idm"], c["lag"]) for c in cells):
        mine = [c for c in cells if (c["idm"], c["lag"]) == (name, lag)]
        row = [name, str(lag), str(len(mine))]
        for part in PARTS:
            mse, least, longer = (np.array([c[k][part] for c in mine]) for k in ("mse", "linear", "longer"))
            row += [f"{50 * np.sqrt(x.mean()):.3f}" for x in (mse, least, longer)] + [f"{(mse / least).max():.2f}"]
        lines.append("| " + " | ".join(row) + " |")
    worst = {
        n: max(c["mse"][p] / c["linear"][p] for c in cells if c["idm"] == n for p in c["mse"]) for n in _names(cells)
    }
    held = ", ".join(f"{n} {'holds' if w <= LIMIT else 'does not hold'} ({w:.2f})" for n, w in worst.items())
    return "\n".join([*lines, "", f"Ratios are of mean squared errors, the largest of the seeds. Aim {LIMIT}: {held}."])


def _names(cells: list[dict]) -> list[str]:
    return list(dict.fromkeys(c["idm"] for c in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idm", nargs="+", default=["blend-quick"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--commit", help="commit of the code, where there is no repository")
    parser.add_argument("--lags", type=int, metavar="SEEDS", help="only count how often the lag is found")
    parser.add_argument("--table", action="store_true", help="only print the table")
    args = parser.parse_args()
    if args.lags:
        for lag in arm.LAGS:
            found = [lag_found(lag, seed) for seed in range(args.lags)]
            print(f"lag {lag}: found in {np.mean(np.array(found) == lag):.0%} of {args.lags} seeds")
    elif args.table:
        print(table(args.store))
    else:
        run(args)


if __name__ == "__main__":
    main()
