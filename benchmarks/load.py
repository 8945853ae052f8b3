"""Measure loading of 2M transitions of a D4RL file, and a coupled split: python benchmarks/load.py [--json]

The file is written into a temporary folder; a fresh process loads it, so its peak memory is that of the load alone.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

N_STEPS, N_EPISODES, N_OBS, N_ACT = 2_000_000, 2000, 11, 3
TARGETS = {"load_s": 6.0, "peak_over_raw": 2.2, "split_s": 0.2}


def write(path: Path) -> None:
    """Write a file like D4RL's scripts, with gzip; states change smoothly like a robot's, unlike white noise."""
    import h5py
    import numpy as np

    rng = np.random.default_rng(0)
    obs = rng.standard_normal((N_STEPS + 1, N_OBS), np.float32)
    obs[1:] += 0.9 * obs[:-1]
    ends = rng.choice(np.arange(9, N_STEPS - 10, 10), N_EPISODES - 1, replace=False)
    last = np.zeros(N_STEPS, bool)
    last[ends] = last[-1] = True
    failed = last & (rng.random(N_STEPS) < 0.5)
    options = {"compression": "gzip", "chunks": True}
    with h5py.File(path, "w") as file:
        file.create_dataset("observations", data=obs[:-1], **options)
        file.create_dataset("next_observations", data=obs[1:], **options)
        file.create_dataset("actions", data=rng.uniform(-1, 1, (N_STEPS, N_ACT)).astype(np.float32), **options)
        file.create_dataset("rewards", data=rng.standard_normal(N_STEPS, np.float32), **options)
        file.create_dataset("terminals", data=failed, **options)
        file.create_dataset("timeouts", data=last & ~failed, **options)


def measure(path: Path) -> dict:
    """Return times and peak memory of this process, which has done nothing else."""
    import ssorl.data.formats.d4rl  # noqa: F401  the import is not part of the measurement
    from ssorl.data import apply, coupled, load

    before = peak_bytes()
    began = time.perf_counter()
    eps = load(path)
    loaded = time.perf_counter()
    peak = peak_bytes() - before
    held = sum(a.nbytes for a in (eps.obs, eps.act, eps.rew, eps.terminated, eps.start))
    assert peak >= held, f"the peak, {peak}, cannot be less than what is held, {held}: the baseline is wrong"
    ready = time.perf_counter()
    hidden = apply(coupled(eps, fraction=0.1, quality=50, seed=0), eps)
    split = time.perf_counter()
    raw = N_STEPS * (4 * (N_OBS + N_ACT + 1) + 2)
    raw_next = raw + N_STEPS * 4 * N_OBS
    return {
        "transitions": eps.n_steps,
        "trajectories": len(eps),
        "file_mb": path.stat().st_size / 1e6,
        "raw_mb": raw / 1e6,
        "raw_with_next_observations_mb": raw_next / 1e6,
        "load_s": loaded - began,
        "held_mb": held / 1e6,
        "peak_mb": peak / 1e6,
        "peak_over_raw": peak / raw,
        "peak_over_raw_with_next_observations": peak / raw_next,
        "split_s": split - ready,
        "labelled_share": float(hidden.labelled.mean()),
    }


def peak_bytes() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def main() -> None:
    if sys.argv[1:2] == ["--write"]:
        return write(Path(sys.argv[2]))
    if sys.argv[1:2] == ["--measure"]:
        return print(json.dumps(measure(Path(sys.argv[2]))))
    with tempfile.TemporaryDirectory() as folder:
        # Each step runs in its own process, because a child inherits the peak memory (ru_maxrss) of its parent.
        path = str(Path(folder) / "benchmark.hdf5")
        subprocess.run([sys.executable, __file__, "--write", path], check=True)
        done = subprocess.run([sys.executable, __file__, "--measure", path], check=True, capture_output=True, text=True)
        record = json.loads(done.stdout)
    if "--json" in sys.argv:
        print(json.dumps(record, indent=1))
        return None
    for name, value in record.items():
        target = (
            f"   target {TARGETS[name]:g}: {'met' if value <= TARGETS[name] else 'MISSED'}" if name in TARGETS else ""
        )
        print(f"{name.replace('_', ' '):38s}{value:14,.2f}{target}")
    return None


if __name__ == "__main__":
    main()
