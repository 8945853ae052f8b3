"""Training on several devices: four on one CPU, in a subprocess because the number is fixed when JAX starts."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from support.episodes import make_episodes

from ssorl.agents import make
from ssorl.training import engine
from ssorl.training.engine import TrainingRun, train_many
from ssorl.training.scan import mesh_for

AGENT = make("bc", hidden=(8,), batch=16, updates=20, lr=1e-3)


def make_runs():
    """Return six runs that alternate between two sets of trajectories."""
    data = [make_episodes([12, 9, 11]), make_episodes([20, 7, 12], seed=1)]
    pairs = [(i, data[i % 2]) for i in range(6)]
    return [TrainingRun(eps.with_actions(eps.act * (1 - i / 10)), i, np.arange(30 - 3 * i)) for i, eps in pairs]


def numbers(trained):
    return [
        {
            "state": np.concatenate(
                [np.ravel(x) for x in jax.tree.leaves((run.state, run.average, run.best))]
            ).tolist(),
            "curve": [run.curve[name].tolist() for name in sorted(run.curve)],
        }
        for run in trained
    ]


def worker(folder):
    """Train six runs on four devices, stopped and resumed, and without a stop; print results and places of arrays."""
    sizes, parts, collectives, stop = [], [], [], True
    train_chunk = engine.train_chunk

    def callback(snapshot):
        sizes.append(len(jax.tree.leaves(snapshot.state)[0]))
        if stop and snapshot.at == 20:
            raise KeyboardInterrupt
        return [snapshot.at + i for i in snapshot.runs]

    def recorded(*args):
        """Do a chunk; record the devices of the arrays and the program's communication."""
        if not collectives:
            text = train_chunk.lower(*args).compile().as_text()
            collectives.append([w for w in ("all-gather", "all-reduce", "all-to-all", "collective") if w in text])
        learner, metrics = train_chunk(*args)
        for leaf in jax.tree.leaves(learner):
            parts.append([(s.device.id, len(s.data), len(leaf)) for s in leaf.addressable_shards])
        return learner, metrics

    engine.train_chunk = recorded
    options = {"every": 10, "callback": callback, "together": True}
    try:
        train_many(AGENT, make_runs(), **options, folder=folder)
    except KeyboardInterrupt:
        stop = False
    done, whole = train_many(AGENT, make_runs(), **options, folder=folder), train_many(AGENT, make_runs(), **options)
    a, b = (jax.tree.leaves([run[:3] for run in x]) for x in (done, whole))
    same = all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    result = {"runs": numbers(done), "same": same, "sizes": sizes, "parts": parts, "collectives": collectives[0]}
    print(json.dumps(result))


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    env = {
        **os.environ,
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, __file__, str(tmp_path_factory.mktemp("shared"))]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_each_device_has_its_own_runs_and_does_not_communicate(shared):
    assert shared["parts"] and all(leaf == [[i, 2, 8] for i in range(4)] for leaf in shared["parts"])
    assert shared["collectives"] == []


def test_snapshots_contain_no_padding(shared):
    assert set(shared["sizes"]) == {6}


def test_runs_on_four_devices_equal_runs_on_one(shared):
    alone = train_many(AGENT, make_runs(), every=10, callback=lambda s: [s.at + i for i in s.runs])
    for got, want in zip(shared["runs"], numbers(alone), strict=True):
        np.testing.assert_allclose(got["state"], want["state"], atol=1e-4)
        np.testing.assert_allclose(got["curve"], want["curve"], atol=1e-4)


def test_resumed_runs_on_four_devices_have_the_same_bits(shared):
    assert shared["same"]


def test_a_single_device_needs_no_mesh():
    assert mesh_for(5) is None


if __name__ == "__main__":
    worker(sys.argv[1])
