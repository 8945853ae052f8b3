"""CQL on problems with known solutions, with and without its conservative term."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.problems import SMALL, N, bandit, transitions

from ssorl.agents import cql
from ssorl.training.engine import TrainingRun, train

RATES = dict.fromkeys(("critic_lr", "actor_lr", "temperature_lr"), 3e-3)
PLAIN, CONSERVATIVE = (cql.CQL(min_q_weight=w, n_actions=4, **RATES, **SMALL) for w in (0.0, 5.0))
ACT = jnp.linspace(-0.9, 0.9, 7)[:, None]


def values(state, obs=0.0, act=ACT):
    """Return both critics' values [2, n] of n actions in one state."""
    return np.stack([cql.q_value(c, jnp.full((len(act), 1), obs), act) for c in state.critics])


def choice(agent, state):
    return float(agent.act(agent.policy(state), None, jnp.zeros(1), jnp.zeros(()), jax.random.key(0))[0][0])


@pytest.fixture(scope="module")
def one_sided():
    """States trained on the reward 1 + a with data of negative actions only, by weight of the conservative term."""
    eps = bandit(lambda a: 1 + a)
    left = np.resize(np.flatnonzero(eps.act[:, 0] < 0), N)  # repeated, so that all problems use one compiled program
    return {agent.min_q_weight: train(agent, TrainingRun(eps, steps=left)).state for agent in (PLAIN, CONSERVATIVE)}


def test_without_the_conservative_term_q_of_a_bandit_is_the_reward():
    eps = bandit(lambda a: 1 - (a - 0.5) ** 2)
    state = train(PLAIN, TrainingRun(eps)).state
    want = 1 - (ACT[:, 0] - 0.5) ** 2
    np.testing.assert_allclose(values(state), np.stack([want, want]), atol=0.1)
    assert abs(choice(PLAIN, state) - 0.5) < 0.15


def test_without_the_conservative_term_q_of_a_two_state_chain():
    """Rewards are 1, then 4, then the task ends: Q is 1 + 4 gamma, then 4; targets include no entropy."""
    second = np.arange(N) % 2 == 1
    eps = transitions(np.where(second, 1, -1), np.where(second, 0, 1), lambda a: np.where(second, 4, 1), second)
    done = train(PLAIN, TrainingRun(eps))
    for obs, q in ((-1.0, 3.0), (1.0, 4.0)):
        scaled = done.scaler(np.array([[obs]], np.float32))[0, 0]
        np.testing.assert_allclose(values(done.state, scaled), q, atol=0.15)


def test_unseen_actions_are_valued_below_their_reward(one_sided):
    seen, unseen = ACT[:3], ACT[4:]
    plain, conservative = one_sided[0.0], one_sided[5.0]
    assert (values(plain, act=unseen) > 1).all()  # above all rewards in the data: the critic extrapolates
    assert (values(conservative, act=unseen) < unseen[:, 0]).all()  # lower by more than 1, since the reward is 1 + a
    assert (values(conservative, act=seen) > values(conservative, act=unseen).max()).all()


def test_the_conservative_policy_stays_close_to_the_data(one_sided):
    assert choice(PLAIN, one_sided[0.0]) > 0.5
    assert choice(CONSERVATIVE, one_sided[5.0]) < 0.1


def test_the_conservative_term_has_no_effect_if_the_data_covers_all_actions():
    """Data are uniform and the reward is constant: the softmax of Q equals the density of the data, so Q = reward."""
    state = train(CONSERVATIVE, TrainingRun(bandit(lambda a: np.full_like(a, 2.0)))).state
    np.testing.assert_allclose(values(state), 2.0, atol=0.5)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, -0.3), (0.7, 0.0)])
def test_importance_weights_estimate_the_volume_of_the_action_space(mean, log_std):
    """For Q = 0, each of the three sources of candidates estimates the volume 2^A, for any policy."""
    n_act, n = 2, 40_000
    at = cql.Normal(jnp.full((1, n_act), mean), jnp.full((1, n_act), log_std))
    candidates = cql.sample_candidates(at, at._replace(mean=-at.mean), cql.draw_noise(jax.random.key(1), n, 1, n_act))
    volumes = np.exp(-np.asarray(candidates.log_prob)).reshape(3, n).mean(1)
    np.testing.assert_allclose(volumes, 4.0, rtol=0.03)
    assert np.abs(candidates.act).max() <= 1 and candidates.act.shape == (3 * n, 1, n_act)


def test_half_precision_affects_hidden_layers_only():
    """A value of about 300 is not rounded to bfloat16's steps of 2."""
    state = PLAIN.init(jax.random.key(0), 3, 2)
    critic = state.critics[0]
    critic[-1]["b"] += 300.0
    obs, act = jax.random.normal(jax.random.key(1), (20, 3)), jax.random.uniform(jax.random.key(2), (5, 20, 2))
    whole, half = (cql.q_value(critic, obs, act, half) for half in (False, True))
    assert half.dtype == jnp.float32 and half.shape == (5, 20)
    assert 0 < jnp.abs(whole - half).max() < 0.02
