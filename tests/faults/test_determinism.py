"""Each stage gives the same bits in two processes with the same seed on the same machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support.paths import environment

# Calls each stage of Algorithm 1 and prints a digest of its result.
STAGES = """
import hashlib, json
from dataclasses import replace
import jax, numpy as np
import ssorl
from support.systems import TINY
from ssorl.idm import IDMS

def digest(tree):
    leaves = [np.ascontiguousarray(x) for x in jax.tree.leaves(tree)]
    return hashlib.sha256(b"".join(x.tobytes() for x in leaves)).hexdigest()

IDMS["tiny"] = replace(TINY, hidden=(8,), steps=60, validate_every=30)
task = ssorl.split(ssorl.load("builtin/pointmass")[:40], fraction=0.2, seed=3)
model = ssorl.fit_idm(task, "tiny", preset=None, seed=3)
done = ssorl.label(task, model)
policy = ssorl.train(done.eps, "td3bc", seed=3, hidden=(8,), batch=16, updates=20)
scores = ssorl.evaluate(policy, episodes=2, seed=3)
results = {"split": task.data.act, "fit": model.idm.params, "label": done.labels, "train": policy.player.params}
print(json.dumps({k: digest(v) for k, v in {**results, "evaluate": scores.returns}.items()}))
"""


@pytest.fixture(scope="module")
def twice() -> list[dict[str, str]]:
    """Return the digests of two processes, which differ in the order of sets and the hashes of strings."""
    digests = []
    for seed in ("1", "2"):
        env = environment(PYTHONHASHSEED=seed)
        done = subprocess.run([sys.executable, "-c", STAGES], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        digests.append(json.loads(done.stdout))
    return digests


@pytest.mark.parametrize("stage", ["split", "fit", "label", "train", "evaluate"])
def test_two_processes_give_the_same_bits(twice, stage):
    assert twice[0][stage] == twice[1][stage]
