"""Compare ssorl's statistics with those of rliable (arXiv 2108.13264) on the same scores.

    python benchmarks/against_rliable.py                   # makes an environment for rliable in a temporary folder
    python benchmarks/against_rliable.py --python PATH     # uses an interpreter that has rliable

Point estimates must agree to rounding. Intervals are two bootstraps with their own random numbers: their ends may
differ by a few hundredths of their width. What rliable finds is stored in tests/unit/study/test_statistics.py.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

RLIABLE = ("rliable==1.2.0", "pandas<3")  # arch, a dependency of rliable, does not support pandas 3
REPLICATIONS = 50_000
CLOSE = 0.05  # largest difference of an interval's ends, as a share of its width


def scores(phase: float, n_tasks: int = 6, n_seeds: int = 5) -> np.ndarray:
    """Return scores [tasks, seeds] that do not depend on a random generator."""
    task, seed = np.meshgrid(np.arange(n_tasks), np.arange(n_seeds), indexing="ij")
    return np.round(40 + 9 * task + 12 * np.sin(7.3 * task + 2.9 * seed**1.5 + phase), 3)


def rliable_side() -> dict:
    """Return rliable's statistics; rliable takes scores [runs, tasks]."""
    from importlib.metadata import version

    from rliable import library, metrics

    x, y = scores(0.0).T, scores(1.0).T - 6
    results: dict = {"version": version("rliable"), "numpy": np.__version__}
    alone = {"iqm": metrics.aggregate_iqm, "mean": metrics.aggregate_mean, "median": metrics.aggregate_median}
    started = time.perf_counter()
    np.random.seed(0)  # noqa: NPY002 - rliable draws from the global generator
    for name, function in alone.items():
        point, ends = library.get_interval_estimates(
            {"x": x}, lambda s, f=function: np.array([f(s)]), reps=REPLICATIONS
        )
        results[name] = [float(point["x"][0]), *ends["x"].ravel().tolist()]
    point, ends = library.get_interval_estimates(
        {"xy": (x, y)},
        lambda a, b: np.array([metrics.probability_of_improvement(a, b)]),
        reps=2000,  # few, because it calls SciPy for each resample of each task
    )
    results["improvement"] = [float(point["xy"][0]), *ends["xy"].ravel().tolist()]
    return {**results, "seconds": time.perf_counter() - started}


def ours() -> dict:
    from ssorl.study import statistics

    x, y = list(scores(0.0)), list(scores(1.0) - 6)
    started = time.perf_counter()
    results: dict = {
        f.__name__: list(statistics.estimate(f, x)) for f in (statistics.iqm, statistics.mean, statistics.median)
    }
    results["improvement"] = list(statistics.estimate(statistics.improvement, x, y))
    return {**results, "seconds": time.perf_counter() - started}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="interpreter that has rliable")
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(rliable_side()))
        return
    with tempfile.TemporaryDirectory() as folder:
        python = args.python
        if python is None:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            python = f"{folder}/bin/python"
            subprocess.run([python, "-m", "pip", "install", "-q", *RLIABLE], check=True)
        output = subprocess.run([python, Path(__file__), "--side"], check=True, capture_output=True, text=True).stdout
    theirs, mine, fine = json.loads(output.splitlines()[-1]), ours(), True
    print(f"rliable {theirs['version']}: {theirs['seconds']:.1f} s; ours: {mine['seconds']:.2f} s")
    for name in ("iqm", "mean", "median", "improvement"):
        (a, low, high), (b, *ends) = theirs[name], mine[name]
        off = max(abs(low - ends[0]), abs(high - ends[1])) / (high - low)
        fine &= bool(np.isclose(a, b, rtol=1e-12)) and off < CLOSE
        print(f"{name:12} rliable {theirs[name]}\n{'':12} ours    {mine[name]}  ends off by {off:.3f} of the width")
    print("they agree" if fine else "they do NOT agree")
    sys.exit(not fine)


if __name__ == "__main__":
    main()
