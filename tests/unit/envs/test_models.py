"""Known models: observations set the state, transitions equal the environments', state maps say what is missing."""

import json

import numpy as np
import pytest

from ssorl import envs
from ssorl.envs.mjcf import compile_mjcf, read_mjcf
from ssorl.envs.models import BUILT_IN, Transitions, known_model
from ssorl.envs.state_map import read_state_map
from ssorl.utils.errors import DataError, SsorlError

CART = """<mujoco><option timestep="0.01"/><worldbody><body><joint name="slide" type="slide" axis="1 0 0"/>
<geom size="0.1" mass="1"/><body pos="0 0 0.5"><joint name="hinge" axis="0 1 0"/><geom size="0.1" mass="0.2"/></body>
</body></worldbody><actuator><motor joint="slide" ctrlrange="-2 2" ctrllimited="true"/></actuator></mujoco>"""
MAP = {
    "frame_skip": 2,
    "observation": ["qpos:hinge", None, "qvel[0]", "qvel:hinge"],
    "clip": {"qvel": [-5, 5], "qvel:hinge": [-3, 3]},
    "free": ["qpos[0]"],
}


def files(folder, mjcf=CART, state_map=MAP):
    (folder / "cart.xml").write_text(mjcf)
    (folder / "map.json").write_text(json.dumps(state_map))
    return str(folder / "cart.xml"), folder / "map.json"


@pytest.mark.parametrize("name", BUILT_IN)
def test_transitions_equal_the_environment(name):
    rng, env, known = np.random.default_rng(0), envs.make(name, 6, 1), known_model(name)
    step = Transitions(known, 2, rows=4)
    obs, compared = env.reset(rng), 0
    assert known.n_obs == env.n_obs and known.n_act == env.n_act
    np.testing.assert_array_equal([known.ctrl_low, known.ctrl_high], [env.act_low, env.act_high])
    for _ in range(10):
        states = known.states(obs)
        act = rng.uniform(-0.2, 0.2, (6, env.n_act))
        obs = env.step(act).obs
        qpos, qvel = step(states.qpos, states.qvel, act)
        full = ~states.unknown.any(axis=1)
        seen = np.empty_like(obs)
        seen[:, known.pos[0]], seen[:, known.vel[0]] = qpos[:, known.pos[1]], known.clip(qvel)[:, known.vel[1]]
        compared += full.sum()
        # The environment's solver starts from its last solution, this one from nothing.
        np.testing.assert_allclose(seen[full], obs[full], atol=1e-5)
    assert compared > 30


def test_unstable_simulations_give_nan_and_write_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    known = known_model("hopper")
    qpos, qvel = np.tile(known.model.qpos0, (4, 1)), np.zeros((4, 6))
    qvel[1], qvel[2], qvel[3] = 1e12, np.nan, 9e8
    after = Transitions(known, 2)(qpos, qvel, np.zeros((4, 3)))
    for values in after:
        assert np.isfinite(values[0]).all() and np.isnan(values[1:]).all()
    assert not list(tmp_path.iterdir()) and capfd.readouterr() == ("", "")


def test_a_state_map_translates_observations(tmp_path):
    known = known_model(*files(tmp_path))
    assert (known.n_obs, known.n_act, known.dt) == (4, 1, 0.02)
    states = known.states(np.array([[0.3, 77, 1.0, -3.0], [0.1, 0, 5.0, 2.0]]))
    np.testing.assert_array_equal(states.qpos, [[0, 0.3], [0, 0.1]])
    np.testing.assert_array_equal(states.unknown, [[False, True], [True, False]])
    np.testing.assert_array_equal(states.high[0], [np.inf, -3])
    np.testing.assert_array_equal(states.low[1], [5, -np.inf])
    assert not known.fully_actuated
    np.testing.assert_allclose(known.speeds(states.qpos[:1], states.qpos[1:]), [[0, -10]])


def test_velocities_that_are_not_observed_are_unknown(tmp_path):
    known = known_model(*files(tmp_path, state_map=MAP | {"observation": ["qpos:hinge", "qvel:hinge"], "clip": {}}))
    assert known.states(np.zeros((1, 2))).unknown.tolist() == [[True, False]]


def test_the_digest_changes_with_the_dynamics(tmp_path):
    first = known_model(*files(tmp_path)).digest
    assert known_model(*files(tmp_path)).digest == first
    heavier = known_model(*files(tmp_path, CART.replace('mass="0.2"', 'mass="0.21"'))).digest
    longer = known_model(*files(tmp_path, state_map=MAP | {"frame_skip": 3})).digest
    assert len({first, heavier, longer}) == 3


@pytest.mark.parametrize(
    "change, message",
    [
        ({"frame_skip": 0}, "frame_skip is 0; give"),
        ({"frame_skip": "2"}, "frame_skip is 2; give"),
        ({"frame_skip": True}, "frame_skip is True; give"),
        ({"observation": []}, "observation must list"),
        ({"observation": ["qpos:knee"]}, "no joint 'knee'|no joint knee"),
        ({"observation": ["qacc[0]"]}, "is no coordinate"),
        ({"observation": ["qpos[7]"]}, "there is no qpos.7.; the model has 2"),
        ({"observation": ["qpos:hinge", "qpos[1]"]}, "lists qpos.1. twice"),
        ({"observation": [None], "free": ["qpos[0]", "qpos[1]"]}, "no number of an observation"),
        ({"free": []}, "position qpos.0. of .* is not observed"),
        ({"free": 3}, "free is 3; give a list"),
        ({"clip": {"qpos:hinge": [-1, 1]}}, "only velocities"),
        ({"clip": {"qvel": [1, -1]}}, "lower and a higher"),
        ({"clip": [1]}, "clip must be an object"),
        ({"ctrl": [[-1, 1], [-1, 1]]}, "ctrl has 2 pairs, but .* has 1 actuators"),
        ({"frames": 2}, "unknown key .*did you mean frame_skip"),
    ],
)
def test_invalid_state_maps_raise(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        known_model(*files(tmp_path, state_map=MAP | change))


def test_files_that_are_no_state_map_raise(tmp_path):
    for content, message in [("[1]", "not a JSON object"), ("{", "cannot be read"), ("{}", "frame_skip is None")]:
        (tmp_path / "map.json").write_text(content)
        with pytest.raises(DataError, match=message):
            read_state_map(tmp_path / "map.json")
    with pytest.raises(DataError, match="cannot be read"):
        read_state_map(tmp_path / "absent.json")


@pytest.mark.parametrize(
    "part, message",
    [
        ('<include file="/etc/passwd"/>', "<include>, which reads another file"),
        ('<worldbody><include xmlns="x" file="a.xml"/></worldbody>', "<include>"),
        ('<extension><plugin plugin="mujoco.pid"/></extension>', "<extension>, which loads code"),
        ('<worldbody><plugin xmlns="x" plugin="mujoco.sdf"/></worldbody>', "<plugin>, which loads code"),
        ('<asset><mesh name="m" file="m.obj"/></asset>', "refers to another file"),
        ('<asset><hfield name="h" file="/dev/zero"/></asset>', "refers to another file"),
        ('<asset><texture name="t" type="cube" fileup="a.png"/></asset>', "refers to another file"),
        ('<asset><skin file="s.skn"/></asset>', "refers to another file"),
        ('<asset><model name="m" file="other.xml"/></asset>', "<model>"),
        ('<worldbody><replicate count="1000000000"><geom size="1"/></replicate></worldbody>', "<replicate>"),
        ('<asset><texture name="t" type="2d" builtin="flat" width="9e9" height="9"/></asset>', "is above 4096"),
        ("<worldbody><body/></worldbody><wrong/>", "MuJoCo cannot compile"),
        ("<worldbody>", "not valid XML"),
        ("<body>" * 5000 + "</body>" * 5000, "MuJoCo cannot compile"),
        ("<worldbody>" + "<body>" * 600 + "</body>" * 600 + "</worldbody>", "MuJoCo cannot compile"),
    ],
)
def test_models_that_reach_beyond_their_file_raise(part, message):
    with pytest.raises(DataError, match=message) as error:
        compile_mjcf(f"<mujoco>{part}</mujoco>".encode(), "robot.xml")
    assert str(error.value).startswith("robot.xml: ") and "\n" not in str(error.value)


def test_other_files_raise(tmp_path):
    bomb = '<!DOCTYPE m [<!ENTITY a "aaaa">]><mujoco model="&a;"/>'
    cases = [(bomb, "document type"), ("<robot/>", "root element is <robot>"), (b"\xff\xfe\x00", "not UTF-8")]
    for content, message in cases:
        with pytest.raises(DataError, match=message):
            compile_mjcf(content if isinstance(content, bytes) else content.encode(), "robot.xml")
    with pytest.raises(DataError, match="cannot be read"):
        read_mjcf(tmp_path / "absent.xml")
    assert compile_mjcf(('\ufeff<?xml version="1.0" encoding="UTF-8"?>' + CART).encode(), "cart.xml").nu == 1


def test_models_that_cannot_be_inverted_raise(tmp_path):
    stateful = CART.replace("<motor joint", '<general dyntype="filter" dynprm="1" joint')
    with pytest.raises(DataError, match="states of their own"):
        known_model(*files(tmp_path, stateful))
    with pytest.raises(DataError, match="no actuators"):
        known_model(*files(tmp_path, CART[: CART.index("<actuator>")] + "</mujoco>"))
    unlimited = CART.replace('ctrlrange="-2 2" ctrllimited="true"', "")
    with pytest.raises(DataError, match="not all actuators have a range"):
        known_model(*files(tmp_path, unlimited))
    known = known_model(*files(tmp_path, unlimited, MAP | {"ctrl": [[-4, 4]]}))
    assert (known.ctrl_low, known.ctrl_high) == (-4, 4)


@pytest.mark.parametrize(
    "name, state_map, message",
    [
        ("Hoper-v4", False, "did you mean Hopper-v4"),
        ("Ant-v4", False, "cannot set the state"),
        ("hopper", True, "is built in, so leave it out"),
        ("robot.xml", False, "needs --state-map"),
    ],
)
def test_unknown_names_raise(tmp_path, name, state_map, message):
    with pytest.raises(SsorlError, match=message):
        known_model(name, files(tmp_path)[1] if state_map else None)
