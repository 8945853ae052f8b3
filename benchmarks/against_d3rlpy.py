"""Compare updates per second with d3rlpy on this machine's CPU: TD3+BC and CQL at batch 256, same networks and data.

    python benchmarks/against_d3rlpy.py                   # makes an environment for d3rlpy in a temporary folder
    python benchmarks/against_d3rlpy.py --python PATH     # uses an interpreter that has d3rlpy

Each library runs in its own process, which waits while the other is timed. They alternate in slices of a few seconds,
and the medians are compared. Run it on an idle machine: load slows d3rlpy far more, because its threads wait for each
other, so the ratio would favour ssorl; the load is stored with the result. For ssorl, whole calls of `train` are timed,
including copies to the device; for d3rlpy, only sampling and updates, without the logs that `fit` writes.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

D3RLPY = "d3rlpy==2.8.1"
DATA = "sim/hopper-medium-expert"
STORE = Path(__file__).parents[1] / "results" / "against-d3rlpy.json"
TARGETS = {"td3bc": 2.5, "cql": 1.0}
UPDATES = {"td3bc": 1000, "cql": 40}  # per slice of ssorl
SECONDS = 3.0  # per slice of d3rlpy
NETS = {"td3bc": (256, 256), "cql": (256, 256, 256)}
BATCH, N_ACTIONS = 256, 10


# The two processes: each prints its version, then times a slice for every name that it reads. ----------------------


def ssorl_side(path: str) -> tuple[str, dict]:
    import jax

    from ssorl.agents import make
    from ssorl.data import load
    from ssorl.training.engine import TrainingRun, train

    run = TrainingRun(load(path))
    settings = {"td3bc": {}, "cql": {"n_actions": N_ACTIONS}}
    agents = {
        name: make(name, batch=BATCH, hidden=NETS[name], updates=UPDATES[name], **more)
        for name, more in settings.items()
    }

    def slice_of(agent):
        def run_it() -> int:
            train(agent, run)
            return agent.updates

        return run_it

    return f"jax {jax.__version__}", {name: slice_of(agent) for name, agent in agents.items()}


def d3rlpy_side(path: str) -> tuple[str, dict]:
    import d3rlpy  # type: ignore[import-not-found]
    import torch  # type: ignore[import-not-found]

    with np.load(path) as file:
        data = d3rlpy.dataset.MDPDataset(**file)
    nets = {name: d3rlpy.models.encoders.VectorEncoderFactory(list(width)) for name, width in NETS.items()}
    configs = {
        "td3bc": d3rlpy.algos.TD3PlusBCConfig(
            batch_size=BATCH, actor_encoder_factory=nets["td3bc"], critic_encoder_factory=nets["td3bc"]
        ),
        "cql": d3rlpy.algos.CQLConfig(
            batch_size=BATCH,
            actor_encoder_factory=nets["cql"],
            critic_encoder_factory=nets["cql"],
            n_action_samples=N_ACTIONS,
            temp_learning_rate=3e-4,
            alpha_learning_rate=0.0,  # no Lagrange multiplier
        ),
    }

    def slice_of(algo):
        def run_it() -> int:
            n, end = 0, time.perf_counter() + SECONDS
            while time.perf_counter() < end:
                algo.update(data.sample_transition_batch(BATCH))
                n += 1
            return n

        return run_it

    work = {}
    for name, config in configs.items():
        algo = config.create(device="cpu:0")
        algo.build_with_dataset(data)
        work[name] = slice_of(algo)
    return f"d3rlpy {d3rlpy.__version__}, torch {torch.__version__}", work


def serve(side: str, path: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of the libraries goes to stderr
    version, work = (ssorl_side if side == "ssorl" else d3rlpy_side)(path)
    print(json.dumps(version), file=answers, flush=True)
    for name in map(str.strip, sys.stdin):
        began = time.perf_counter()
        n = work[name]()
        print(json.dumps(n / (time.perf_counter() - began)), file=answers, flush=True)


# The process that compares -----------------------------------------------------------------------------------------


def write_data(path: Path) -> None:
    """Write the data for d3rlpy, with observations standardised as ssorl does before training."""
    from ssorl.data import load
    from ssorl.data.stats import standardiser

    eps = load(DATA)
    last = np.zeros(eps.n_steps, np.float32)
    last[eps.start[1:] - 1] = 1
    np.savez(
        path,
        observations=standardiser(eps)(eps.obs)[eps.obs_row],
        actions=eps.scaled_actions(),
        rewards=eps.rew,
        terminals=eps.terminated.astype(np.float32),
        timeouts=last * ~eps.terminated,
    )


def environment(folder: Path) -> str:
    """Return the interpreter of a new environment with d3rlpy and torch; this takes gigabytes and minutes."""
    print(f"installing {D3RLPY} in a temporary folder", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", D3RLPY], check=True)
    return python


class Side:
    """A process that answers each line with a line."""

    def __init__(self, python: str, name: str, path: str, log: Path):
        # Both processes use all cores of the CPU.
        env = {**os.environ, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        self.log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [python, __file__, "--serve", name, path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=env,
            )

    def answer(self):
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.process.args} stopped:\n{self.log.read_text()[-2000:]}")
        return json.loads(line)

    def ask(self, name: str) -> float:
        assert self.process.stdin
        time.sleep(0.5)  # the other side's threads spin for a moment after their last work
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        return self.answer()

    def stop(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def compare(sides: dict[str, Side], rounds: int) -> dict:
    results = {}
    for name, target in TARGETS.items():
        for side in sides.values():
            side.ask(name)  # the first slice compiles, on either side
        slices = {side: [] for side in sides}
        for _ in range(rounds):
            for side, process in sides.items():
                slices[side].append(round(process.ask(name), 2))
        rate = {side: median(values) for side, values in slices.items()}
        ratio = rate["ssorl"] / rate["d3rlpy"]
        verdict = "met" if ratio >= target else "MISSED"
        print(f"{name}: {rate['ssorl']:.1f} updates/s, d3rlpy {rate['d3rlpy']:.1f}: {ratio:.2f} times, ", end="")
        print(f"target {target:g}: {verdict}", flush=True)
        results[name] = {"updates_per_second": rate, "ratio": round(ratio, 3), "target": target, "slices": slices}
    return results


def commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, cwd=STORE.parent.parent).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + (" and changes" if git("status", "--porcelain", "src") else "")


def cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        return serve(*sys.argv[2:4])
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--python", help="interpreter that has d3rlpy; by default a temporary environment is created")
    p.add_argument("--rounds", type=int, default=7, help="slices of each library and agent")
    p.add_argument("--store", type=Path, default=STORE)
    args = p.parse_args()
    began = {"commit": commit(), "load_average": os.getloadavg()[0]}  # read at the start
    if began["load_average"] > 0.5:
        print(f"the machine is busy (load {began['load_average']:.1f}), so the ratios favour ssorl", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder / "data.npz")
        python = args.python or environment(folder / "env")
        sides = {
            "ssorl": Side(sys.executable, "ssorl", DATA, folder / "ssorl.log"),
            "d3rlpy": Side(python, "d3rlpy", str(folder / "data.npz"), folder / "d3rlpy.log"),
        }
        versions = {side: process.answer() for side, process in sides.items()}
        results = compare(sides, args.rounds)
        for process in sides.values():
            process.stop()
    result = {
        "data": DATA,
        "batch": BATCH,
        "networks": NETS,
        "sampled_actions": N_ACTIONS,
        "agents": results,
        **began,
        "load_average_after": os.getloadavg()[0],
        "hardware": cpu(),
        "versions": {**versions, "python": platform.python_version(), "numpy": np.__version__},
        "date": time.strftime("%Y-%m-%d"),
    }
    args.store.parent.mkdir(exist_ok=True)
    args.store.write_text(json.dumps(result, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
