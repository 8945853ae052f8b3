"""Count the warnings of `ssorl.data.compare` on data without a fault and on data with one, and time it.

    python benchmarks/compare_table.py
    python benchmarks/compare_table.py --seeds 0 1 2 --no-faults --only hopper
    python benchmarks/compare_table.py --only maze --size 20000

Each dataset is split at q = 10, 50, 100 into a labelled tenth and the rest, in which the faults are then made. The last
column is the share of faults found of: degrees, millimetres, every third step only, and all swaps of two positions,
alone and with their velocities.
"""

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ssorl.data import coupled, load
from ssorl.data.collections import arm
from ssorl.data.compare import compare
from ssorl.data.episodes import Episodes, offsets, ranges
from ssorl.data.sim.datasets import names

QUALITIES = (10, 50, 100)
POSITIONS = {"hopper": range(1, 5), "walker2d": range(1, 8), "halfcheetah": range(1, 8), "maze2d": range(2)}
OFFSET = {"hopper": 6, "walker2d": 9, "halfcheetah": 9, "maze2d": 2}  # from a position to its velocity


def thinned(eps: Episodes, every: int = 3) -> Episodes:
    """Return every third state of each trajectory, as a camera of a third of the frame rate sees it."""
    lengths = eps.lengths // every
    kept = np.flatnonzero(lengths >= 2)
    row = [eps.start[e] + e + every * np.arange(lengths[e] + 1) for e in kept]
    step = ranges(eps.start[kept], lengths[kept])
    return replace(
        eps,
        obs=eps.obs[np.concatenate(row)],
        act=eps.act[step],
        rew=eps.rew[step],
        terminated=np.zeros(len(step), bool),
        start=offsets(lengths[kept]),
    )


def swapped(eps: Episodes, *pairs: tuple[int, int]) -> Episodes:
    order = np.arange(eps.n_obs)
    for i, j in pairs:
        order[[i, j]] = order[[j, i]]
    return replace(eps, obs=eps.obs[:, order])


def faults(eps: Episodes, robot: str) -> Iterator[tuple[str, Episodes, str]]:
    """Yield a name, the faulty data and a word of the warning that is due."""
    dims = list(POSITIONS.get(robot, range(eps.n_obs)))
    for name, factor, part in (("degrees", 180 / np.pi, dims), ("millimetres", 1000, dims[:2])):
        obs = eps.obs.copy()
        obs[:, part] *= factor
        yield name, replace(eps, obs=obs), name
    yield "rate", thinned(eps), "frame rate"
    for i, j in itertools.combinations(dims, 2):
        yield "swap", swapped(eps, (i, j)), "swapped"
        if robot in OFFSET:
            k = OFFSET[robot]
            yield "swap with velocities", swapped(eps, (i, j), (i + k, j + k)), "swapped"


def sets() -> list[str]:
    """Return the thirteen simulated datasets of the studies, and the arm."""
    return [n for n in names() if not n.endswith(("-expert", "-wide")) or n.endswith("medium-expert")] + ["arm"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--size", default="", help="steps of each simulated dataset")
    parser.add_argument("--only", default="", help="datasets whose name contains this")
    parser.add_argument("--no-faults", action="store_true", help="count false alarms only")
    parser.add_argument("--out", type=Path, help="append a JSON line for each cell")
    args = parser.parse_args()
    print("| dataset | q | seconds | false alarms | faults found |\n|---|---|---|---|---|")
    n_false = n_cells = 0
    for name in [n for n in sets() if args.only in n]:
        robot = name.split("-")[0]
        for q, seed in itertools.product(QUALITIES if robot != "arm" else (100,), args.seeds):
            eps = (
                load(f"sim/{name}" + (f":{args.size}" if args.size else ""))
                if robot != "arm"
                else arm.record(1, seed=seed)
            )
            split = coupled(eps, 0.1 if robot != "arm" else 0.5, q, seed)
            known, new = eps.take(split.labelled), eps.take(split.unlabelled)
            began = time.process_time()
            alarms = compare(known, new)
            seconds = time.process_time() - began
            found: dict[str, list[bool]] = {}
            for fault, wrong, word in () if args.no_faults else faults(new, robot):
                found.setdefault(fault, []).append(any(word in line for line in compare(known, wrong)))
            shares = {fault: float(np.mean(hits)) for fault, hits in found.items()}
            listed = ", ".join(f"{fault} {share:.2f}" for fault, share in shares.items())
            print(f"| {name} | {q} | {seconds:.2f} | {len(alarms)} | {listed} |", flush=True)
            for line in alarms:
                print(f"    {line}", flush=True)
            n_cells, n_false = n_cells + 1, n_false + bool(alarms)
            if args.out:
                cell = {"dataset": name, "quality": q, "seed": seed, "alarms": alarms, "found": shares}
                with args.out.open("a") as file:
                    file.write(json.dumps(cell) + "\n")
    print(f"{n_false} of {n_cells} cells without a fault got a warning")


if __name__ == "__main__":
    main()
