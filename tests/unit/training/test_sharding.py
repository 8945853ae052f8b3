"""Many devices: four on one CPU, in a process of their own, since the number is fixed when JAX starts."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from support.episodes import make_episodes

from ssorl.agents import make
from ssorl.training.engine import TrainingRun, train_many
from ssorl.training.scan import mesh_for

AGENT = make("bc", hidden=(8,), batch=16, updates=20, lr=1e-3)


def some_runs():
    """Every other one on other trajectories."""
    data = [make_episodes([12, 9, 11]), make_episodes([20, 7, 12], seed=1)]
    some = [(i, data[i % 2]) for i in range(6)]
    return [TrainingRun(eps.with_actions(eps.act * (1 - i / 10)), i, np.arange(30 - 3 * i)) for i, eps in some]


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
    """Six runs on four devices, stopped, resumed, and once unbroken; tells what came out and where it was."""
    sizes, parts, talk, stop = [], [], [], True
    engine = sys.modules["ssorl.training.engine"]  # the package has a function of that name
    chunk = engine.chunk

    def look(look):
        sizes.append(len(jax.tree.leaves(look.state)[0]))
        if stop and look.at == 20:
            raise KeyboardInterrupt
        return [look.at + i for i in look.runs]

    def watched(*args):
        """Notes where the arrays lie, and whether the program makes the devices talk."""
        if not talk:
            text = chunk.lower(*args).compile().as_text()
            talk.append([w for w in ("all-gather", "all-reduce", "all-to-all", "collective") if w in text])
        learnt, metrics = chunk(*args)
        for leaf in jax.tree.leaves(learnt):
            parts.append([(s.device.id, len(s.data), len(leaf)) for s in leaf.addressable_shards])
        return learnt, metrics

    engine.chunk = watched
    options = {"every": 10, "callback": look, "together": True}
    try:
        train_many(AGENT, some_runs(), **options, folder=folder)
    except KeyboardInterrupt:
        stop = False
    done, whole = train_many(AGENT, some_runs(), **options, folder=folder), train_many(AGENT, some_runs(), **options)
    a, b = (jax.tree.leaves([run[:3] for run in x]) for x in (done, whole))
    same = all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    print(json.dumps({"runs": numbers(done), "same": same, "sizes": sizes, "parts": parts, "talk": talk[0]}))


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


def test_all_devices_have_runs_of_their_own(shared):
    assert shared["parts"] and all(leaf == [[i, 2, 8] for i in range(4)] for leaf in shared["parts"])
    assert shared["talk"] == []  # runs have nothing to say to each other


def test_a_callback_sees_no_padding(shared):
    assert set(shared["sizes"]) == {6}


def test_shared_is_alone(shared):
    alone = train_many(AGENT, some_runs(), every=10, callback=lambda look: [look.at + i for i in look.runs])
    for got, want in zip(shared["runs"], numbers(alone), strict=True):
        np.testing.assert_allclose(got["state"], want["state"], atol=1e-4)
        np.testing.assert_allclose(got["curve"], want["curve"], atol=1e-4)


def test_shared_and_resumed_is_shared(shared):
    assert shared["same"]


def test_one_device_is_no_mesh():
    assert mesh_for(5) is None


if __name__ == "__main__":
    worker(sys.argv[1])
