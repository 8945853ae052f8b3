"""Measure labelling of 2M hopper-size steps on this machine: python benchmarks/label.py [--idm NAME] [--json]

The weights are random, which takes as long as any. A fresh process measures, so its peak memory is its own.
"""

import argparse
import json
import subprocess
import sys
import time

from load import N_ACT, N_EPISODES, N_OBS, N_STEPS, peak_bytes

TARGETS = {"label_s": 10.0, "peak_over_data": 1.0}


def measure(name: str) -> dict:
    """Return seconds, with compilation separately, and peak memory beyond the input."""
    import jax
    import numpy as np

    from ssorl.data import Episodes, Meta
    from ssorl.data.episodes import offsets
    from ssorl.idm import IDMS
    from ssorl.idm.calibrate import span
    from ssorl.idm.fit import Idm
    from ssorl.idm.inputs import inputs
    from ssorl.idm.label import Labeller, Taught, label
    from ssorl.idm.model import init, n_inputs

    rng, config = np.random.default_rng(0), IDMS[name]
    lengths = np.full(N_EPISODES, N_STEPS // N_EPISODES)
    act = rng.uniform(-1, 1, (N_STEPS, N_ACT)).astype(np.float32)
    act[N_STEPS // 100 :] = np.nan
    meta = Meta(act_low=(-1.0,) * N_ACT, act_high=(1.0,) * N_ACT, act_range="declared")
    obs = rng.standard_normal((N_STEPS + N_EPISODES, N_OBS), np.float32)
    eps = Episodes(obs, act, np.zeros(N_STEPS, np.float32), np.zeros(N_STEPS, bool), offsets(lengths), meta)
    seen, keys = n_inputs(config, N_OBS), jax.random.split(jax.random.key(0), config.members)
    params = jax.vmap(lambda key: init(config, seen, N_ACT, key))(keys)
    record = np.zeros((config.members, 1)), np.zeros(config.members), np.array([0])
    shown = inputs(eps[:60], config.ranks), np.ones(seen, np.float32)
    idm = Idm(config, jax.tree.map(np.asarray, params), *shown, *record)
    ready = Labeller(idm, meta, Taught(20, N_STEPS // 100, 0.0, 0.0, (1.0,) * N_ACT), span(eps), None, None)
    began = time.perf_counter()
    label(ready, eps[:60])
    compiled = time.perf_counter()
    before, busy = peak_bytes(), time.process_time()
    out = label(ready, eps)
    done, busy = time.perf_counter(), time.process_time() - busy
    data = sum(a.nbytes for a in (eps.obs, eps.act, eps.rew, eps.terminated, eps.start))
    return {
        "steps": int(out.proxy.sum()),
        "members": config.members,
        "compile_s": compiled - began,
        "label_s": done - compiled,
        "label_cpu_s": busy,  # of all cores; on a busy machine this is more reliable than wall time
        "data_mb": data / 1e6,
        "peak_mb": (peak_bytes() - before) / 1e6,
        "peak_over_data": (peak_bytes() - before) / data,
    }


def main() -> None:
    args = argparse.ArgumentParser()
    args.add_argument("--idm", default="robust-quick")
    args.add_argument("--json", action="store_true")
    args.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = args.parse_args()
    if args.measure:
        return print(json.dumps(measure(args.idm)))
    command = [sys.executable, __file__, "--measure", "--idm", args.idm]
    record = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if args.json:
        return print(json.dumps(record, indent=1))
    for name, value in record.items():
        limit = TARGETS.get(name)
        target = "" if limit is None else f"   target {limit:g}: {'met' if value <= limit else 'MISSED'}"
        print(f"{name.replace('_', ' '):20s}{value:14,.2f}{target}")
    return None


if __name__ == "__main__":
    main()
