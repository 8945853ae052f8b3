"""Measure the error of self-trained labels by time of the episode, after the first and after the last round.

    python benchmarks/self_training.py walker2d --quality 50 100 --seeds 0 1    # lines to results/self-training.jsonl
    python benchmarks/self_training.py                                           # docs/idm.md's table

Default-size medium-expert sets, a tenth labelled, the model `paper-quick`, m = 2, N = 3.
"""

import argparse
import json
import re
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

import ssorl
from ssorl.idm import IDMS
from ssorl.idm.label import predict
from ssorl.idm.selftrain import Round, self_train
from ssorl.utils import provenance

ROOT = Path(__file__).parents[1]
STORE, PAGE = ROOT / "results" / "self-training.jsonl", ROOT / "docs" / "idm.md"
TIMES = {"0 to 29": (0, 30), "30 to 99": (30, 100), "100 on": (100, 10**9)}
MEMBERS, ROUNDS = 2, 3


def errors(fitted: Round, task, steps: np.ndarray, true: np.ndarray, at: np.ndarray) -> dict[str, float]:
    """Return the mean squared error of a round's labels, over all steps and by time of the episode."""
    off = np.square(np.clip(predict(fitted.idm, task.data, steps).mean, -1, 1) - true).mean(1)
    by_time = {name: float(off[(at >= low) & (at < high)].mean()) for name, (low, high) in TIMES.items()}
    return {"all": float(off.mean())} | by_time


def measure(env: str, quality: float, seed: int) -> dict:
    """Return, for one split, the errors after each round, and the times of the steps that each round trained on."""
    began = time.perf_counter()
    task = ssorl.split(ssorl.load(f"sim/{env}-medium-expert"), fraction=0.1, quality=quality, seed=seed)
    rounds = self_train(task.data, IDMS["paper-quick"], MEMBERS, ROUNDS, seed)
    eps, steps = task.data, np.flatnonzero(~task.data.labelled)
    at = np.arange(eps.n_steps) - eps.start[eps.episode_of_step]
    return {
        "env": env,
        "quality": quality,
        "seed": seed,
        "by_round": [errors(fitted, task, steps, task.whole.scaled_actions()[steps], at[steps]) for fitted in rounds],
        "first_100": float((at[steps] < 100).mean()),
        "first_100_of_added": [float((at[fitted.added] < 100).mean()) for fitted in rounds[1:]],
        "members": MEMBERS,
        "settings": asdict(IDMS["paper-quick"]),
        "seconds": round(time.perf_counter() - began),
        **provenance.everything(),
    }


def table() -> str:
    """Print a row for each dataset and quality: means over seeds."""
    places: dict[tuple, list[dict]] = {}
    for record in map(json.loads, STORE.read_text().splitlines()):
        places.setdefault((record["env"], record["quality"]), []).append(record)
    heads = ["trajectories", "q", "seeds", "all steps", *(f"steps {name}" for name in TIMES)]
    heads += ["first 100 steps: share of all", "of what each round adds"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for (env, quality), records in sorted(places.items()):
        row = [f"{env}-medium-expert", f"{quality:g}", f"{len(records)}"]
        for name in ("all", *TIMES):
            once, last = (np.mean([record["by_round"][i][name] for record in records]) for i in (0, -1))
            row.append(f"{once:.3f} → {last:.3f}")
        added = np.mean([record["first_100_of_added"] for record in records], axis=0)
        row += [
            f"{np.mean([record['first_100'] for record in records]):.0%}",
            ", ".join(f"{share:.0%}" for share in added),
        ]
        lines.append(f"| {' | '.join(row)} |".replace("%", " %"))
    return "\n".join(lines)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("envs", nargs="*")
    p.add_argument("--quality", type=float, nargs="+", default=[50, 100])
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    args = p.parse_args()
    for env, seed, quality in [(e, s, q) for e in args.envs for s in args.seeds for q in args.quality]:
        record = measure(env, quality, seed)
        print({k: v for k, v in record.items() if k not in ("settings", "versions", "hardware")}, flush=True)
        with STORE.open("a") as file:
            file.write(json.dumps(record) + "\n")
    mark = r"(<!-- generated: self-training -->\n).*?(<!-- end -->)"
    PAGE.write_text(re.sub(mark, lambda m: m[1] + table() + "\n" + m[2], PAGE.read_text(), flags=re.S))
    print(table())


if __name__ == "__main__":
    main()
