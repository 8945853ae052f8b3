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
def hopper_data():
    return collect("hopper", random_policy(11, 3), 3000, seed=1)


def test_collect_returns_the_fewest_complete_episodes(hopper_data):
    assert hopper_data.n_steps >= 3000 > hopper_data.n_steps - hopper_data.lengths[-1]
    assert hopper_data.terminated[hopper_data.start[1:] - 1].all() and hopper_data.terminated.sum() == len(
        hopper_data
    )  # a random hopper falls


def test_replayed_actions_give_the_same_states(hopper_data):
    env = envs.make("hopper", 1)
    for e in (0, len(hopper_data) // 2, len(hopper_data) - 1):
        episode = hopper_data[e]
        first = np.float64(episode.obs[0])
        env.reset(np.random.default_rng(0))
        env.set_state(np.concatenate([[0.0], first[:5]])[None], first[None, 5:])
        for t in range(min(5, episode.n_steps)):
            step = env.step(episode.act[t : t + 1])
            # States are stored in float32, so the replay starts with a rounding error, which may grow a little.
            assert np.allclose(step.obs[0], episode.obs[t + 1], atol=2e-3)
            assert np.isclose(step.rew[0], episode.rew[t], atol=2e-2)
            assert step.terminated[0] == episode.terminated[t]


def test_the_seed_determines_the_data(hopper_data):
    policy = random_policy(11, 3)
    assert collect("hopper", policy, 3000, seed=1).same(hopper_data)
    assert not collect("hopper", policy, 3000, seed=2).same(hopper_data)


def test_long_episodes_are_included():
    counts = []
    data = collect("halfcheetah", random_policy(17, 6), 2500, seed=0, progress=counts.append)
    assert data.lengths.tolist() == [1000, 1000, 1000] and not data.terminated.any()
    assert sum(counts) == 3000  # three lanes without a wasted step
    assert data.meta.env == "halfcheetah" and data.meta.act_range == "declared"
