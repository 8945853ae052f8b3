"""Measure how fast datasets are collected, including the policy: python benchmarks/collect.py [STEPS]"""

import json
import os
import sys
import time

from ssorl.data.sim.collect import collect
from ssorl.data.sim.datasets import ROSTERS, policy


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
    rows = []
    for env, roster in ROSTERS.items():
        for use in ("medium", "expert"):
            step = getattr(roster, use)[0]
            made = [0]
            began = time.perf_counter()
            eps = collect(
                env, policy(env, step), n, seed=0, progress=lambda k, made=made: made.__setitem__(0, made[0] + k)
            )
            seconds = time.perf_counter() - began
            rows.append({"env": env, "use": use, "kept": eps.n_steps, "made": made[0], "seconds": round(seconds, 1)})
            rate, waste = eps.n_steps / seconds, made[0] / eps.n_steps
            print(f"{env:12s} {use:7s} {rate:8,.0f} stored steps/s ({waste:.2f} simulated per stored step)")
    print(json.dumps({"load": os.getloadavg()[0], "cores": os.cpu_count(), "rows": rows}))


if __name__ == "__main__":
    main()
