"""docs/your-own-agent.md: its code is run as it stands there."""

import re

import jax
import numpy as np
import pytest
from support.paths import ROOT

from ssorl.agents import AGENTS, make
from ssorl.training.engine import TrainingRun, train

TEXT = (ROOT / "docs" / "your-own-agent.md").read_text()


def block(name):
    found = re.search(rf"<!-- {name} -->\n```python\n(.*?)```", TEXT, re.S)
    assert found
    return found[1]


@pytest.fixture(scope="module")
def space():
    space = {"__name__": "weighted_bc"}
    exec(block("agent"), space)
    return space


def test_there_is_no_other_block():
    assert TEXT.count("```") == 4


def test_it_is_short():
    code = [line for line in block("agent").splitlines() if line.strip()]
    assert len(code) <= 60


def test_it_trains_and_plays(space, capsys):
    exec(block("use"), dict(space))
    assert "Interval(mean=" in capsys.readouterr().out


def test_one_line_makes_it_known(space, monkeypatch, pointmass):
    """And an advantage that counts changes what is learnt."""
    monkeypatch.setitem(AGENTS, "weighted-bc", space["WeightedBC"])
    small = {"hidden": (8,), "batch": 16, "updates": 20}
    one, two = (train(make("weighted-bc", "quick", beta=beta, **small), TrainingRun(pointmass)) for beta in (0.0, 1.0))
    leaves = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(done.policy)]) for done in (one, two)]
    assert np.isfinite(leaves).all() and not np.allclose(*leaves)
