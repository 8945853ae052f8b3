"""Find the checkpoints of a training run whose data would be nearest to D4RL's hopper-medium, by published statistics.

    python scripts/choose_medium.py RUN --out choice.json       # RUN: output of `python -m ssorl.data.sim.train`

Each snapshot with a similar training return collects STEPS steps. The script compares the mean normalised returns of
the worst 10, 30, ... 100 % of its trajectories (the paper's table of labelled returns) and the mean length of a
trajectory (users of the file report 999,906 steps in 2,186 trajectories). No agent is trained on the data. The script
also compares sets of three checkpoints of one seed in equal parts, as in halfcheetah-medium.
"""

import argparse
import json
from itertools import combinations
from pathlib import Path

import numpy as np

from ssorl import envs
from ssorl.data.sim.collect import collect
from ssorl.data.sim.policy import load_snapshot

QUALITY = (10, 30, 50, 70, 90, 100)
LABELLED = (0.231, 0.310, 0.355, 0.388, 0.418, 0.443)  # of hopper-medium
LENGTH = 999_906 / 2186
STEPS = 40_000
NEAR = (900.0, 2100.0)  # training returns of snapshots that collect data; the target is 1,422


def figures(returns: np.ndarray, lengths: np.ndarray) -> dict:
    """Return labelled returns by q, mean length, and the distance of both from D4RL's (0 is equal)."""
    ranked = np.sort(envs.normalise("hopper", returns))
    worst = [float(ranked[: max(1, round(len(ranked) * q / 100))].mean()) for q in QUALITY]
    length = float(lengths.mean())
    apart = np.abs(np.array(worst) - LABELLED).mean() / LABELLED[-1] + abs(length - LENGTH) / LENGTH
    return {
        "apart": round(float(apart), 4),
        "labelled": [round(x, 3) for x in worst],
        "length": round(length),
        "a_step": round(float(returns.sum() / lengths.sum()), 3),
        "mean": round(float(returns.mean())),
        "std": round(float(returns.std())),
        "min": round(float(returns.min())),
        "max": round(float(returns.max())),
    }


def main() -> None:
    """Collect data with the snapshots, compare them, and write the nearest to a file."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("run", type=Path)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--show", type=int, default=12)
    args = p.parse_args()
    rows = []
    for folder in sorted(args.run.glob("seed-*")):
        seed, played = int(folder.name.removeprefix("seed-")), {}
        for snap in json.loads((folder / "snapshots.json").read_text()):
            if snap["n"] and NEAR[0] < snap["mean"] < NEAR[1]:
                eps = collect("hopper", load_snapshot(folder / "snapshots.npz", snap["step"]), STEPS, snap["step"])
                played[snap["step"]] = eps.returns, eps.lengths
        sets = [(s,) for s in played] + list(combinations(played, 3))
        for steps in sets:
            # Checkpoints have equal numbers of steps, so those with shorter trajectories have more of them.
            mine = [np.concatenate(column) for column in zip(*(played[s] for s in steps), strict=True)]
            rows.append({"seed": seed, "steps": steps, **figures(*mine)})
        print(f"seed {seed}: {len(played)} snapshots played", flush=True)
    rows.sort(key=lambda row: row["apart"])
    for size in (1, 3):
        print(f"\nnearest of {size}:")
        for row in [r for r in rows if len(r["steps"]) == size][: args.show]:
            print(json.dumps(row))
    args.out.write_text(json.dumps([r for n in (1, 3) for r in [r for r in rows if len(r["steps"]) == n][:50]]))


if __name__ == "__main__":
    main()
