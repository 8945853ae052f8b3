"""Compare temperatures for IQL's quick preset on a CPU: oracles of the default-size medium-expert datasets.

    python benchmarks/quick_iql.py hopper            # four seeds at each temperature, lines to results/quick-iql.jsonl
    python benchmarks/quick_iql.py --table

The published temperature is 3, the preset `quick` has 0.3; all else is the preset's. Last and averaged weights, 20
episodes.
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from ssorl.agents import make
from ssorl.data import load
from ssorl.evaluation.policy import TrainedPolicy
from ssorl.evaluation.rollout import evaluate
from ssorl.training.engine import TrainingRun, train
from ssorl.utils import provenance

STORE = Path(__file__).parents[1] / "results" / "quick-iql.jsonl"
TEMPERATURES = (3.0, 0.3)
SEEDS = (10, 11, 12, 13)
EPISODES = 20


def train_oracle(env: str, temperature: float, seed: int) -> dict:
    eps, agent = load(f"sim/{env}-medium-expert"), make("iql", "quick", temperature=temperature)
    began = time.perf_counter()
    done = train(agent, TrainingRun(eps, seed))
    seconds = time.perf_counter() - began
    players = [
        TrainedPolicy(agent, tree, done.scaler, eps.meta.low, eps.meta.high) for tree in (done.policy, done.average)
    ]
    scores = evaluate(players, env, EPISODES).normalised
    assert scores is not None
    last, average = (round(float(own.mean()), 1) for own in scores)
    record = {"env": env, "temperature": temperature, "seed": seed, "last": last, "average": average}
    return record | {"seconds": round(seconds), "settings": asdict(agent), **provenance.everything()}


def table() -> str:
    lines = ["| dataset | temperature | last weights | averaged weights |", "|---|---|---|---|"]
    cells = [json.loads(line) for line in STORE.read_text().splitlines()]
    for env, temperature in dict.fromkeys((c["env"], c["temperature"]) for c in cells):
        mine = [c for c in cells if (c["env"], c["temperature"]) == (env, temperature)]
        scores = (" ".join(f"{c[kind]:.0f}" for c in mine) for kind in ("last", "average"))
        lines.append(f"| {env}-medium-expert | {temperature:g} | {' | '.join(scores)} |")
    return "\n".join(lines)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("env", nargs="?")
    p.add_argument("--table", action="store_true")
    args = p.parse_args()
    for seed in SEEDS if args.env else ():
        for temperature in TEMPERATURES:
            cell = train_oracle(args.env, temperature, seed)
            print({k: cell[k] for k in ("env", "temperature", "seed", "last", "average", "seconds")}, flush=True)
            with STORE.open("a") as file:
                file.write(json.dumps(cell) + "\n")
    if args.table:
        print(table())


if __name__ == "__main__":
    main()
