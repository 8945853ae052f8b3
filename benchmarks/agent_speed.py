"""Measure updates per second of the agents, for one run and for many in one program, on data of hopper's shapes.

    python benchmarks/agent_speed.py                                # the table of docs/engine.md, on a GPU
    python benchmarks/agent_speed.py --case td3bc:5120:30 --half False
    python benchmarks/agent_speed.py --case td3bc:256:1 --seconds 5   # on a CPU

A case is AGENT:BATCH:RUNS, with the paper's settings but for the batch; lines go to --store as JSON. `fused` tells
whether any kernels of ssorl.utils.kernels were used; SSORL_FUSED=0 does without.
"""

import argparse
import json
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from unittest import mock

import jax
import numpy as np

from ssorl.agents import make
from ssorl.data.episodes import Episodes, Meta
from ssorl.data.validate import build
from ssorl.training.engine import TrainingRun, train_many
from ssorl.utils import kernels
from ssorl.utils.kernels import kernel_for

CASES = (
    "td3bc:5120:1",
    "td3bc:5120:30",
    "td3bc:256:45",
    "cql:5120:1",
    "cql:5120:5",
    "dt:256:1",
    "iql:256:45",
    "bc:5120:30",
)


def noise(steps: int = 200_000, length: int = 1000, n_obs: int = 11, n_act: int = 3) -> Episodes:
    """Return random data of hopper's shapes; the values do not affect the speed."""
    rng = np.random.default_rng(0)
    n = steps // length
    obs = rng.standard_normal((steps + n, n_obs)).astype(np.float32)
    act = rng.uniform(-1, 1, (steps, n_act)).astype(np.float32)
    return build(obs, act, rng.random(steps).astype(np.float32), np.zeros(steps, bool), np.full(n, length), Meta())


class EnoughError(Exception):
    """The measurement is long enough."""


def measure(case: str, half: bool | None, seconds: float) -> dict:
    name, batch, runs = case.split(":")
    agent = make(name, batch=int(batch))
    agent = agent if half is None else replace(agent, half=half)
    at: list[float] = []
    counts: list[int] = []
    fused: list[bool] = []

    def watched(*args):
        kernel = kernel_for(*args)
        fused.append(kernel is not None)
        return kernel

    def progress(n: int, note: str) -> None:
        at.append(time.perf_counter())
        counts.append(n)
        if len(at) > 4 and at[-1] - at[2] > seconds:
            raise EnoughError

    eps = noise()
    began = time.perf_counter()
    with suppress(EnoughError), mock.patch.object(kernels, "wanted", watched):
        train_many(agent, [TrainingRun(eps, s) for s in range(int(runs))], every=agent.updates, progress=progress)
    # The first chunk is compiled, and a later one may wait for it; both are left out.
    rate = sum(counts[3:]) / (at[-1] - at[2])
    return {
        "case": case,
        "half": half,
        "fused": any(fused),
        "updates_per_second": round(rate),
        "seconds_to_first": round(at[0] - began, 1),
        "settings": asdict(agent),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
    }


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--case", nargs="+", default=list(CASES))
    p.add_argument("--half", choices=("True", "False"), help="hidden layers in bfloat16 (default: the engine decides)")
    p.add_argument("--seconds", type=float, default=8.0, help="duration of the measurement, after compilation")
    p.add_argument("--store", type=Path)
    p.add_argument("--commit", help="the commit, if the code is not in a repository")
    args = p.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    for case in args.case:
        half = None if args.half is None else args.half == "True"
        record = measure(case, half, args.seconds) | {"commit": args.commit or commit or None}
        print(json.dumps({k: v for k, v in record.items() if k != "settings"}), flush=True)
        if args.store:
            with args.store.open("a") as file:
                file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
