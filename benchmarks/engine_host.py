"""Measure what the host costs the engine, and compare the estimated memory of a run with the compiled program's.

python benchmarks/engine_host.py                      # the numbers of docs/engine.md, on a GPU
python benchmarks/engine_host.py --updates 2000 --batch 64 --agents bc     # a trial on a CPU
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace

import jax
import numpy as np

from ssorl.agents import make
from ssorl.data.episodes import Meta
from ssorl.data.stats import standardiser
from ssorl.data.validate import build
from ssorl.training.checks import training_steps
from ssorl.training.engine import CHUNK, TrainingRun, train
from ssorl.training.memory import sizes
from ssorl.training.scan import init_learner, train_chunk
from ssorl.training.tables import Dataset, make_pool, make_table


def noise(steps=200_000, length=1000, n_obs=11, n_act=3):
    rng, n = np.random.default_rng(0), steps // length
    obs = rng.standard_normal((steps + n, n_obs)).astype(np.float32)
    act = rng.uniform(-1, 1, (steps, n_act)).astype(np.float32)
    return build(obs, act, rng.random(steps).astype(np.float32), np.zeros(steps, bool), np.full(n, length), Meta())


def parts(agent, eps):
    run, key = TrainingRun(eps), jax.random.key(0)
    pool = jax.device_put(make_pool(run.eps, training_steps(run, 0), eps.n_steps))
    return make_table([Dataset(eps, standardiser(eps))]), pool, key, init_learner(agent, eps.n_obs, eps.n_act, key)


def rates(agent, eps):
    """Yield updates per second: the device only, with metrics fetched after each chunk, and the engine."""
    table, pool, key, learner = parts(agent, eps)

    def loop(fetch):
        nonlocal learner
        learner, metrics = train_chunk(agent, CHUNK, None, table, pool, key, learner, 0, 0.999)
        jax.block_until_ready(metrics)
        start = time.perf_counter()
        for at in range(0, agent.updates, CHUNK):
            learner, metrics = train_chunk(agent, CHUNK, None, table, pool, key, learner, at, 0.999)
            if fetch:
                jax.tree.map(np.asarray, metrics)
        jax.block_until_ready(learner)
        return agent.updates / (time.perf_counter() - start)

    def engine(**options):
        at = []
        train(agent, TrainingRun(eps), progress=lambda n, note: at.append((time.perf_counter(), n)), **options)
        return sum(n for _, n in at[1:]) / (at[-1][0] - at[0][0])

    for repeat in range(2):
        with tempfile.TemporaryDirectory() as folder:
            yield {"agent": type(agent).__name__, "batch": agent.batch, "half": agent.half, "again": repeat} | {
                "device": loop(False),
                "fetched": loop(True),
                "engine": engine(),
                "engine, callback": engine(callback=lambda snapshot: None),
                "engine, folder": engine(folder=folder),
            }


def memory(agent, eps):
    """Return the estimated and the compiled bytes of one run's update."""
    compiled = train_chunk.lower(agent, 10 * agent.period, None, *parts(agent, eps), 0, 0.999).compile()
    began = time.perf_counter()
    need = sizes(agent, eps.n_steps, len(eps), eps.n_obs, eps.n_act)
    return {
        "agent": type(agent).__name__,
        "seconds": time.perf_counter() - began,
        **need._asdict(),
        "compiled": compiled.memory_analysis().temp_size_in_bytes,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=30_000)
    parser.add_argument("--batch", type=int, default=5120)
    parser.add_argument("--agents", nargs="*", default=["td3bc", "bc", "iql", "cql", "dt"])
    args = parser.parse_args()
    half, eps = jax.default_backend() != "cpu", noise()
    print(json.dumps({"device": str(jax.devices()[0]), "jax": jax.__version__}), flush=True)
    first = replace(make(args.agents[0], batch=args.batch, updates=args.updates), half=half)
    for row in rates(first, eps):
        print(json.dumps(row), flush=True)
    for name in args.agents:
        print(json.dumps(memory(replace(make(name), half=half), eps)), flush=True)


if __name__ == "__main__":
    main()
