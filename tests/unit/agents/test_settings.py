"""The settings of agents are checked wherever an agent is made; agents with equal settings are equal."""

import json
from dataclasses import asdict, fields

import numpy as np
import pytest
from support.episodes import make_episodes

import ssorl
from ssorl.agents import AGENTS, make
from ssorl.utils.errors import SsorlError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 0}, "batch of td3bc is 0; give a whole number from 1 up"),
        ({"updates": 2.5}, "updates of td3bc is 2.5; give a whole number"),
        ({"gamma": 1.0}, "gamma of td3bc is 1.0; give a number from 0 up and below 1"),
        ({"alpha": "much"}, "alpha of td3bc is 'much'; give a number"),
        ({"alpha": float("nan")}, "alpha of td3bc is nan; give a number"),
        ({"alpha": -2.5}, "alpha of td3bc is -2.5; give a number from 0 up"),
        ({"noise_clip": -0.5}, "noise_clip of td3bc is -0.5; give a number from 0 up"),
        ({"hidden": 256}, "hidden of td3bc is 256; give a list of whole numbers"),
        ({"alhpa": 1.0}, "td3bc has no setting 'alhpa'; did you mean alpha"),
    ],
)
def test_python_raises_the_messages_of_the_command_line(settings, message):
    eps = make_episodes([4, 5])
    with pytest.raises(SsorlError, match=message):
        make("td3bc", **settings)
    with pytest.raises(SsorlError, match=message):
        ssorl.train(eps, "td3bc", **settings)


def test_equal_settings_give_equal_agents():
    """Numbers of Python and NumPy are equal, so that compiled programs are reused and files are the same."""
    a = make("td3bc", hidden=(64, 32), batch=128, alpha=2)
    b = make("td3bc", hidden=[64, np.int64(32)], batch=np.int32(128), alpha=np.float32(2))
    assert a == b and hash(a) == hash(b)
    assert json.dumps(asdict(a)) == json.dumps(asdict(b))
    assert isinstance(make("td3bc", alpha=1e38).alpha, float)  # too large for an integer in JAX
    assert make("td3bc", batch=128.0).batch == 128 and isinstance(make("td3bc", batch=128.0).batch, int)


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("dropout", (1, -0.1, True), (0, 0.5)),
        ("target", ("abc", True), (None, 5000)),
        ("scale", ("abc", float("inf")), (None, 0.1)),
        ("temperature", (-1,), (0, 0.1)),
        ("edge", (0, 1, 2), (1e-6,)),
        ("lr", (0, -1e-3), (1e-3,)),
        ("clip", (0,), (0.25,)),
    ],
)
def test_values_that_would_lead_to_nan_raise_an_error(name, wrong, right):
    for value in wrong:
        with pytest.raises(SsorlError, match=f"{name} of dt is {value!r}; give"):
            make("dt", **{name: value})
    for value in right:
        assert getattr(make("dt", **{name: value}), name) == value


def test_widths_are_whole_numbers_from_1_up():
    for wrong in ((12.5, 4), (0, 0), ("a",)):
        with pytest.raises(SsorlError, match="give a list of whole numbers from 1 up"):
            make("bc", hidden=wrong)


@pytest.mark.parametrize("name", AGENTS)
def test_the_settings_of_every_preset_are_valid(name):
    for preset in AGENTS[name].PRESETS:
        agent = make(name, preset)
        assert make(name, preset, **{f.name: getattr(agent, f.name) for f in fields(agent)}) == agent


def test_dt_joint_needs_sequences_of_both_kinds():
    with pytest.raises(SsorlError, match="unlabelled of dt-joint is 0; give a whole number from 1 up"):
        make("dt-joint", unlabelled=0)
