"""Measure steps per second of the batched simulators: python benchmarks/simulator.py"""

import time

import numpy as np

from ssorl import envs

N_ENVS, THREADS, SECONDS = 256, 2, 3.0


def steps_per_second(name: str) -> float:
    rng = np.random.default_rng(0)
    env = envs.make(name, N_ENVS, threads=THREADS)
    env.reset(rng)
    act = rng.uniform(env.act_low, env.act_high, (64, N_ENVS, env.n_act))
    n, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        step = env.step(act[n % 64])
        if step.terminated.any():
            env.reset(rng, step.terminated)
        n += 1
    return n * N_ENVS / (time.perf_counter() - start)


if __name__ == "__main__":
    print(f"{N_ENVS} environments, {THREADS} threads, random actions")
    for name in envs.SPECS:
        print(f"{name:12s} {steps_per_second(name):10,.0f} steps/s")
