"""Measure labelling of 20M hopper-size steps in bounded memory: python benchmarks/label_large.py [--json FILE]

A tenth of the trajectories has actions; the others are to be filled. The file is written some trajectories at a time by
a process of its own, then `ssorl label --stream --preset quick` labels it, and the system tells that process's peak
memory. `--at-once` measures the same command without `--stream`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LENGTH, N_OBS, N_ACT = 1000, 11, 3
TOGETHER = 200  # trajectories simulated and written together


def write(path: Path, n_steps: int) -> None:
    """Write a file in D4RL's layout with gzip: a stable linear system with bounded actions and noise."""
    import h5py
    import numpy as np

    rng = np.random.default_rng(0)
    turn = 0.95 * np.linalg.qr(rng.standard_normal((N_OBS, N_OBS)))[0]
    push = rng.standard_normal((N_ACT, N_OBS)) / 2
    n_episodes = n_steps // LENGTH
    with h5py.File(path, "w") as file:
        shapes = {"observations": (N_OBS,), "next_observations": (N_OBS,), "actions": (N_ACT,), "rewards": ()}
        made = {
            name: file.create_dataset(name, (n_episodes * LENGTH, *row), "f4", compression="gzip", compression_opts=1)
            for name, row in shapes.items()
        }
        flags = {
            name: file.create_dataset(name, (n_episodes * LENGTH,), "?", compression="gzip")
            for name in ("terminals", "timeouts")
        }
        for first in range(0, n_episodes, TOGETHER):
            n = min(TOGETHER, n_episodes - first)
            act = np.clip(rng.standard_normal((n, LENGTH, N_ACT)), -1, 1)
            obs = np.empty((n, LENGTH + 1, N_OBS))
            obs[:, 0] = rng.standard_normal((n, N_OBS))
            for t in range(LENGTH):
                obs[:, t + 1] = obs[:, t] @ turn + act[:, t] @ push + 0.02 * rng.standard_normal((n, N_OBS))
            hidden = (first + np.arange(n)) % 10 != 0
            rewards = obs[:, 1:, 0] - 0.1 * (act**2).sum(2)
            act[hidden] = np.nan
            rows = slice(first * LENGTH, (first + n) * LENGTH)
            columns = {"observations": obs[:, :-1], "next_observations": obs[:, 1:], "actions": act, "rewards": rewards}
            for name, values in columns.items():
                made[name][rows] = values.reshape(n * LENGTH, *shapes[name])
            flags["terminals"][rows] = False
            flags["timeouts"][rows] = np.arange(n * LENGTH) % LENGTH == LENGTH - 1


def label(source: Path, out: Path, flags: list[str]) -> dict:
    """Return seconds and peak memory of the command."""
    command = [Path(sys.executable).with_name("ssorl"), "label", source, "--out", out, "--preset", "quick", "--json"]
    began = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        job = subprocess.Popen([*map(str, command), *flags], stdout=output)
        _, status, used = os.wait4(job.pid, 0)
        job.returncode = os.waitstatus_to_exitcode(status)
        took = time.perf_counter() - began
        if job.returncode:
            raise SystemExit(job.returncode)
        output.seek(0)
        report = json.load(output)
    return {
        "seconds": round(took, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_mb": round(used.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6),
        "proxies": report["data"]["proxy_steps"],
        "validation_mse": report["validation"]["mse"],
        "out_mb": round(out.stat().st_size / 1e6),
    }


def main() -> None:
    args = argparse.ArgumentParser()
    args.add_argument("--steps", type=int, default=20_000_000)
    args.add_argument("--folder", type=Path, help="folder of the files (default: a temporary folder)")
    args.add_argument("--to", default=".hdf5", choices=[".hdf5", ".npz"])
    args.add_argument("--at-once", action="store_true")
    args.add_argument("--json", type=Path, help="append the measurements to this file")
    args.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    args = args.parse_args()
    if args.write:
        return write(args.write, args.steps)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        source = Path(args.folder or folder) / f"large-{args.steps}.hdf5"
        if not source.exists():
            command = [sys.executable, __file__, "--write", str(source), "--steps", str(args.steps)]
            subprocess.run(command, check=True)
        record = {
            "steps": args.steps,
            "file_mb": round(source.stat().st_size / 1e6),
            "arrays_mb": round(args.steps * (4 * (N_OBS + N_ACT + 1) + 1) / 1e6),
            "streamed": not args.at_once,
            "to": args.to,
            "cores": os.cpu_count(),
            **label(source, Path(folder) / f"out{args.to}", [] if args.at_once else ["--stream"]),
        }
    print(json.dumps(record, indent=1))
    if args.json:
        with args.json.open("a") as file:
            file.write(json.dumps(record) + "\n")
    return None


if __name__ == "__main__":
    main()
