"""Copy snapshots of a training run into the package as behaviour policies, each with a record of its provenance.

    python -m ssorl.data.sim.bundle runs/behaviour/hopper --seed 2 --steps 10000 230000 2000000 --commit eb1043f

The record is a JSON file next to the policy. It holds the config and command of the run, the commit, the learning curve
of the seed up to the snapshot, and the policy's return in new stochastic episodes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from ssorl import envs
from ssorl.data.sim.collect import collect
from ssorl.data.sim.policy import load_snapshot, save

N_EVALUATE = 100_000  # environment steps of the evaluation, 100 episodes of full length


def bundle(run: Path, seed: int, steps: list[int], commit: str, hardware: str, out: Path) -> None:
    """Write `out/ENV/STEP.npz` and `out/ENV/STEP.json` for each snapshot.

    Args:
        run: folder of the training run.
        seed: seed of the run to take snapshots from.
        steps: training steps of the snapshots.
        commit: commit of the code that trained the run.
        hardware: description of the machine.
        out: folder of the policies.
    """
    config = json.loads((run / "config.json").read_text())
    lines = [json.loads(line) for line in (run / "curve.jsonl").read_text().splitlines()]
    curve = [[x["step"], x["eval"]["mean"], x["eval"]["std"]] for x in lines if x["seed"] == seed]
    env = config["env"]
    for step in steps:
        policy = load_snapshot(run / f"seed-{seed}" / "snapshots.npz", step)
        returns = collect(env, policy, N_EVALUATE, seed=step).returns
        record = {
            "env": env,
            "seed": seed,
            "training_steps": step,
            "return": {
                "mean": round(float(returns.mean()), 2),
                "std": round(float(returns.std()), 2),
                "n": len(returns),
            },
            "normalised_return": round(float(envs.normalise(env, returns).mean()), 4),
            "command": _command(config),
            "config": config,
            "commit": commit,
            "hardware": hardware,
            "curve": {"columns": ["step", "mean", "std"], "rows": [row for row in curve if row[0] <= step]},
        }
        save(out / env / f"{step}.npz", policy, record)
        print(f"{env} {step:>9,d}: {returns.mean():8.1f} ± {returns.std():.1f} over {len(returns)} episodes")


def _command(config: dict) -> str:
    seeds = " ".join(str(s) for s in config["seeds"])
    norm = " --critic-norm" if config["critic_norm"] else " --no-critic-norm"
    arguments = f"--env {config['env']} --seeds {seeds} --steps {config['steps']}{norm}"
    return f"python -m ssorl.data.sim.train {arguments} --out RUN"


def main() -> None:
    """Run the command line: RUN --seed K --steps N [N ...] --commit HASH."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("run", type=Path)
    p.add_argument("--seed", type=int, required=True)
    p.add_argument("--steps", type=int, nargs="+", required=True)
    p.add_argument("--commit", required=True)
    p.add_argument("--hardware", default="one NVIDIA H200, 16 cores")
    p.add_argument("--out", type=Path, default=Path(__file__).parent / "policies")
    args = p.parse_args()
    bundle(args.run, args.seed, sorted(np.unique(args.steps).tolist()), args.commit, args.hardware, args.out)


if __name__ == "__main__":
    main()
