import itertools

import numpy as np
import pytest

from ssorl import envs
from ssorl.data.sim.collect import collect
from ssorl.data.sim.policy import Policy


def random_policy(n_obs: int, n_act: int, scale: float = 0.3) -> Policy:
    rng = np.random.default_rng(0)
    sizes = (n_obs, 16, 2 * n_act)
    layers = tuple(
        (scale * rng.standard_normal((a, b)).astype(np.float32), np.zeros(b, np.float32))
        for a, b in itertools.pairwise(sizes)
    )
    return Policy(layers, -np.ones(n_act, np.float32), np.ones(n_act, np.float32))


@pytest.fixture(scope="module")
def hops():
    return collect("hopper", random_policy(11, 3), 3000, seed=1)


def test_whole_episodes_that_just_reach_the_mark(hops):
    assert hops.n_steps >= 3000 > hops.n_steps - hops.lengths[-1]
    assert hops.terminated[hops.start[1:] - 1].all() and hops.terminated.sum() == len(hops)  # a random hopper falls


def test_replaying_the_actions_gives_the_same_states(hops):
    env = envs.make("hopper", 1)
    for e in (0, len(hops) // 2, len(hops) - 1):
        one = hops[e]
        first = np.float64(one.obs[0])
        env.reset(np.random.default_rng(0))
        env.set_state(np.concatenate([[0.0], first[:5]])[None], first[None, 5:])
        for t in range(min(5, one.n_steps)):
            step = env.step(one.act[t : t + 1])
            # States were stored in float32, so the replay starts a rounding away and may drift a little.
            assert np.allclose(step.obs[0], one.obs[t + 1], atol=2e-3)
            assert np.isclose(step.rew[0], one.rew[t], atol=2e-2)
            assert step.terminated[0] == one.terminated[t]


def test_same_seed_same_bytes_other_seed_other_bytes(hops):
    policy = random_policy(11, 3)
    assert collect("hopper", policy, 3000, seed=1).same(hops)
    assert not collect("hopper", policy, 3000, seed=2).same(hops)


def test_long_episodes_are_not_left_out():
    told = []
    runs = collect("halfcheetah", random_policy(17, 6), 2500, seed=0, progress=told.append)
    assert runs.lengths.tolist() == [1000, 1000, 1000] and not runs.terminated.any()
    assert sum(told) == 3000  # three lanes, not one step in vain
    assert runs.meta.env == "halfcheetah" and runs.meta.act_range == "declared"
