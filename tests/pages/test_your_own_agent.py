"""The code of docs/your-own-agent.md runs."""

import re

import jax
import numpy as np
import pytest
from support.paths import ROOT

from ssorl.agents import AGENTS, make
from ssorl.training.engine import TrainingRun, train

TEXT = (ROOT / "docs" / "your-own-agent.md").read_text()


def block(name):
    match = re.search(rf"<!-- {name} -->\n```python\n(.*?)```", TEXT, re.S)
    assert match
    return match[1]


@pytest.fixture(scope="module")
def space():
    space = {"__name__": "weighted_bc"}
    exec(block("agent"), space)
    return space


def test_page_has_two_blocks():
    assert TEXT.count("```") == 4


def test_agent_is_short():
    code = [line for line in block("agent").splitlines() if line.strip()]
    assert len(code) <= 60


def test_agent_trains_and_is_evaluated(space, capsys):
    exec(block("use"), dict(space))
    assert "Interval(mean=" in capsys.readouterr().out


def test_one_line_registers_the_agent(space, monkeypatch, pointmass):
    """The advantage weight changes the learnt policy."""
    monkeypatch.setitem(AGENTS, "weighted-bc", space["WeightedBC"])
    small = {"hidden": (8,), "batch": 16, "updates": 20}
    agents = [make("weighted-bc", "quick", beta=beta, **small) for beta in (0.0, 1.0)]
    policies = [train(agent, TrainingRun(pointmass)).policy for agent in agents]
    leaves = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(policy)]) for policy in policies]
    assert np.isfinite(leaves).all() and not np.allclose(*leaves)
