"""Measure the evaluation of many policies at once: 45 TD3+BC policies (2x256) with 30 hopper episodes each.

    python benchmarks/evaluate.py [--players 45] [--episodes 30] [--threads N]

The policies are the bundled expert's mean actor in TD3+BC's shape, so that episodes last their 1000 steps: random
weights fall at once and measure nothing.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np

import ssorl.data.sim
from ssorl import envs
from ssorl.agents import make
from ssorl.data.sim.policy import load
from ssorl.data.stats import Standardiser
from ssorl.evaluation.policy import TrainedPolicy
from ssorl.evaluation.rollout import evaluate


def expert() -> TrainedPolicy:
    policy = load(Path(ssorl.data.sim.__path__[0]) / "policies" / "hopper" / "2150000.npz")
    layers = [{"w": w, "b": b} for w, b in policy.layers]
    # Only the mean, without the standard deviation.
    layers[-1] = {name: x[..., : policy.n_act] for name, x in layers[-1].items()}
    plain = Standardiser(np.zeros(policy.n_obs, np.float32), np.ones(policy.n_obs, np.float32))
    return TrainedPolicy(make("td3bc"), layers, plain, policy.act_low, policy.act_high)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--players", type=int, default=45)
    p.add_argument("--episodes", type=int, default=30)
    p.add_argument("--threads", type=int, default=None)
    args = p.parse_args()
    lanes = args.players * args.episodes

    sim = envs.make("hopper", lanes, args.threads)
    sim.reset(np.random.default_rng(0))
    rng, began = np.random.default_rng(0), time.perf_counter()
    for _ in range(30):
        sim.step(rng.uniform(-1, 1, (lanes, 3)))
    alone = (time.perf_counter() - began) / 30

    began, before = time.perf_counter(), time.process_time()
    scores = evaluate([expert()] * args.players, "hopper", args.episodes, threads=args.threads)
    seconds, steps = time.perf_counter() - began, int(scores.lengths.sum())
    record = {
        "players": args.players,
        "episodes": args.episodes,
        "cores": len(os.sched_getaffinity(0)),
        "load_at_end": round(os.getloadavg()[0], 1),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(
            time.process_time() - before, 1
        ),  # of all threads; on a busy machine more reliable than wall time
        "steps": steps,
        "steps_per_second": round(steps / seconds),
        "simulator_alone_steps_per_second": round(lanes / alone),
        "mean_length": float(scores.lengths.mean()),
        "mean_return": float(scores.returns.mean()),
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
