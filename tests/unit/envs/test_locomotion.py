"""The batched simulators equal Gymnasium's environments step by step."""

import sys
import types
import warnings
from collections import OrderedDict

import gymnasium as gym
import numpy as np
import pytest

from ssorl import envs
from ssorl.envs.locomotion import BY_ID

N = 3


def gymnasium_env(name):
    with warnings.catch_warnings():
        # Gymnasium warns that v4 is deprecated.
        warnings.filterwarnings("ignore", message=".*is out of date.*", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=".*deprecated.*", category=DeprecationWarning)
        return gym.make(name, disable_env_checker=True).unwrapped


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", sorted(BY_ID))
def test_rollouts_equal_gymnasium(name, dtype):
    rng = np.random.default_rng(0)
    batch = envs.make(name, N, threads=2)
    theirs = [gymnasium_env(name) for _ in range(N)]
    n_steps, ended = 250, 0
    batch.reset(rng)
    for i, env in enumerate(theirs):
        env.reset(seed=i)
        env.set_state(batch._qpos[i].copy(), batch._qvel[i].copy())
    for _ in range(n_steps):
        act = rng.uniform(-1, 1, (N, batch.n_act)).astype(dtype)
        ours = batch.step(act)
        for i, env in enumerate(theirs):
            obs, rew, terminated, _, _ = env.step(act[i])
            np.testing.assert_allclose(ours.obs[i], obs, rtol=0, atol=1e-9)
            np.testing.assert_allclose(ours.rew[i], rew, rtol=0, atol=1e-9)
            assert ours.terminated[i] == terminated
        if ours.terminated.any():
            ended += int(ours.terminated.sum())
            obs = batch.reset(rng, ours.terminated)
            for i in np.flatnonzero(ours.terminated):
                theirs[i].reset(seed=100 + int(i))
                theirs[i].set_state(batch._qpos[i].copy(), batch._qvel[i].copy())
                np.testing.assert_array_equal(theirs[i]._get_obs(), obs[i])
    assert ended > 0 or "Cheetah" in name


@pytest.mark.parametrize("name", sorted(envs.SPECS))
def test_reset_distribution_matches_gymnasium(name):
    gym_id = {"hopper": "Hopper-v4", "walker2d": "Walker2d-v4", "halfcheetah": "HalfCheetah-v4"}[name]
    env = gymnasium_env(gym_id)
    theirs = np.stack([env.reset(seed=i)[0] for i in range(400)])
    ours = envs.make(name, 400, threads=1).reset(np.random.default_rng(0))
    np.testing.assert_allclose(ours.mean(0), theirs.mean(0), atol=0.03)
    np.testing.assert_allclose(ours.std(0), theirs.std(0), rtol=0.2)


def test_results_do_not_depend_on_the_number_of_threads():
    runs = []
    for threads in (1, 3):
        rng = np.random.default_rng(5)
        env = envs.make("walker2d", 7, threads=threads)
        env.reset(rng)
        for _ in range(40):
            step = env.step(rng.uniform(-1, 1, (7, env.n_act)))
            env.reset(rng, step.terminated)
        runs.append(env.save())
    np.testing.assert_array_equal(*runs)


def test_partial_resets_change_only_the_masked_environments():
    rng = np.random.default_rng(1)
    env = envs.make("hopper", 4)
    env.reset(rng)
    for _ in range(10):
        before = env.step(rng.uniform(-1, 1, (4, 3))).obs
    mask = np.array([False, True, False, True])
    after = env.reset(rng, mask)
    np.testing.assert_array_equal(after[~mask], before[~mask])
    assert np.abs(after[mask, 0] - 1.25).max() <= 5e-3
    np.testing.assert_array_equal(env.reset(rng, np.zeros(4, bool)), after)


def test_a_restored_state_continues_with_identical_bits():
    rng = np.random.default_rng(2)
    act = rng.uniform(-1, 1, (20, 3, 6))
    env = envs.make("halfcheetah", 3)
    env.reset(rng)
    for a in act[:10]:
        env.step(a)
    saved = env.save()
    first = [env.step(a).obs for a in act[10:]]
    other = envs.make("halfcheetah", 3)
    other.load(saved)
    np.testing.assert_array_equal(first, [other.step(a).obs for a in act[10:]])


def test_gymnasium_environments_have_the_same_interface():
    rng = np.random.default_rng(0)
    env = envs.make("Pendulum-v1", 3)
    assert (env.n_obs, env.n_act, env.horizon) == (3, 1, 200)
    np.testing.assert_array_equal(env.act_high, [2.0])
    start = env.reset(rng)
    step = env.step(rng.uniform(-2, 2, (3, 1)))
    assert step.obs.shape == (3, 3) and step.rew.shape == (3,) and not step.terminated.any()
    mask = np.array([True, False, False])
    obs = env.reset(rng, mask)
    np.testing.assert_array_equal(obs[1:], step.obs[1:])
    assert not np.array_equal(obs[0], step.obs[0])
    np.testing.assert_array_equal(envs.make("Pendulum-v1", 3).reset(np.random.default_rng(0)), start)


class Odd(gym.Env):
    """An environment that truncates after five steps, has keys b and a in this order, and rewards integer actions."""

    action_space = gym.spaces.Box(0, 9, (1,), np.int64)
    observation_space = gym.spaces.Dict(
        OrderedDict(b=gym.spaces.Box(-np.inf, np.inf, (2,)), a=gym.spaces.Box(-np.inf, np.inf, (1,)))
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.seen(), {}

    def step(self, action):
        self.time += 1
        return self.seen(), float(action[0]), False, self.time >= 5, {}

    def seen(self):
        return {"b": np.float32([1, 2]), "a": np.float32([self.time])}


@pytest.fixture
def odd(monkeypatch):
    """The id of the environment, with the module that registers it."""
    monkeypatch.setitem(sys.modules, "odd_module", types.ModuleType("odd_module"))
    gym.register("Odd-v0", lambda **_: Odd())
    yield envs.TrustedName("odd_module:Odd-v0")
    gym.registry.pop("Odd-v0")


def test_an_environment_of_a_module_may_truncate_its_episodes(odd):
    env = envs.make(odd, 2)
    np.testing.assert_array_equal(
        env.reset(np.random.default_rng(0)), [[0, 1, 2]] * 2
    )  # keys are sorted, as in datasets
    ended = [env.step(np.zeros((2, 1))).terminated.tolist() for _ in range(5)]
    assert ended == [[False] * 2] * 4 + [[True] * 2] and env.horizon == 1000
    assert env.cut.tolist() == [True, True]  # truncated, not terminated
    env.reset(np.random.default_rng(0), np.array([True, True]))
    step = env.step(np.array([[2.4], [2.6]]))
    assert not step.terminated.any() and step.rew.tolist() == [2, 3]  # actions are rounded
    assert not env.cut.any()


def test_discrete_actions_raise():
    with pytest.raises(ValueError, match="CartPole-v1"):
        envs.make("CartPole-v1", 1)


def test_normalised_scores_equal_d4rls():
    assert envs.normalise("hopper", 3234.3) == 1.0
    assert envs.normalise("walker2d", 1.629008) == 0.0
    np.testing.assert_allclose(envs.normalise("halfcheetah", np.array([4770.3])), [0.40683], atol=1e-4)
    with pytest.raises(KeyError, match="ant"):
        envs.normalise("ant", 0.0)
