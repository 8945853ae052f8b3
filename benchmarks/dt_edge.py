"""How close to the limits DT lets an action be, when it learns from true actions and from proxies, on a CPU.

    python benchmarks/dt_edge.py walker2d --seeds 0 1    # lines to results/dt-edge.jsonl
    python benchmarks/dt_edge.py --table

DT takes an action apart by atanh, which is 3.8 at 0.999 and 7.3 at 0.999999. A behaviour policy is seldom that close to
a limit; proxies are cut at it and so lie on it. Default-size medium-expert sets, the presets `quick`, a tenth of all
trajectories labelled (q = 100), last and averaged weights, 20 episodes.
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

import ssorl
from ssorl import about
from ssorl.agents import make
from ssorl.evaluate import Player, evaluate
from ssorl.train import Run, train

STORE = Path(__file__).parents[1] / "results" / "dt-edge.jsonl"
LABELS = ("true", "paper-quick", "robust-quick")
EDGES = (1e-6, 1e-3, 1e-2)
EPISODES = 20


def labelled(env: str, labels: str, seed: int):
    """The trajectories with those actions where they are not known."""
    eps = ssorl.load(f"sim/{env}-medium-expert")
    if labels == "true":
        return eps
    task = ssorl.split(eps, fraction=0.1, quality=100, seed=seed)
    return ssorl.label(task, ssorl.fit_idm(task, labels, seed=seed)).eps


def one(env: str, labels: str, seed: int):
    """A training at each edge."""
    from ssorl.plan import suited

    eps = labelled(env, labels, seed)
    on_it = float((np.abs(eps.scaled_actions()) > 1 - 1e-6).any(1).mean())
    for edge in EDGES:
        agent = suited(make("dt", "quick", edge=edge), env, eps)
        began = time.perf_counter()
        done = train(agent, Run(eps, seed))
        trees = (done.policy, done.average)
        scores = evaluate([Player(agent, x, done.scaler, eps.meta.low, eps.meta.high) for x in trees], env, EPISODES)
        assert scores.normalised is not None
        last, average = (round(float(own.mean()), 1) for own in scores.normalised)
        told = {"env": env, "labels": labels, "edge": edge, "seed": seed, "last": last, "average": average}
        told |= {"steps_on_a_limit": round(on_it, 4), "nll": round(float(done.curve["nll"][-1]), 3)}
        yield told | {"seconds": round(time.perf_counter() - began), "settings": asdict(agent), **about.everything()}


def table() -> str:
    lines = ["| dataset | labels | steps on a limit | edge | last weights | averaged weights |", "|---" * 6 + "|"]
    cells = [json.loads(line) for line in STORE.read_text().splitlines()]
    for env, labels, edge in sorted({(c["env"], c["labels"], c["edge"]) for c in cells}):
        mine = [c for c in cells if (c["env"], c["labels"], c["edge"]) == (env, labels, edge)]
        mine.sort(key=lambda c: c["seed"])
        scores = (
            f"{np.mean([c[kind] for c in mine]):.0f} ({' '.join(f'{c[kind]:.0f}' for c in mine)})"
            for kind in ("last", "average")
        )
        share = f"{100 * np.mean([c['steps_on_a_limit'] for c in mine]):.1f} %"
        lines.append(f"| {env}-medium-expert | {labels} | {share} | {edge:g} | {' | '.join(scores)} |")
    return "\n".join(lines)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("env", nargs="?")
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    p.add_argument("--labels", nargs="+", default=LABELS)
    p.add_argument("--table", action="store_true")
    args = p.parse_args()
    for seed in args.seeds if args.env else ():
        for labels in args.labels:
            for cell in one(args.env, labels, seed):
                print({k: v for k, v in cell.items() if k not in ("settings", "versions", "hardware")}, flush=True)
                with STORE.open("a") as file:
                    file.write(json.dumps(cell) + "\n")
    if args.table:
        print(table())


if __name__ == "__main__":
    main()
