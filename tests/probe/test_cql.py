"""CQL where the answer is known: soft actor-critic's without its conservative term, and what that term adds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.problems import SMALL, N, bandit, transitions

from ssorl.agents import cql
from ssorl.training.engine import TrainingRun, train

RATES = dict.fromkeys(("critic_lr", "actor_lr", "temperature_lr"), 3e-3)
PLAIN, WARY = (cql.CQL(min_q_weight=w, n_actions=4, **RATES, **SMALL) for w in (0.0, 5.0))
ACT = jnp.linspace(-0.9, 0.9, 7)[:, None]


def values(state, obs=0.0, act=ACT):
    """Both critics' values [2, n] of some actions in one state."""
    return np.stack([cql.q_value(c, jnp.full((len(act), 1), obs), act) for c in state.critics])


def choice(agent, state):
    return float(agent.act(agent.policy(state), None, jnp.zeros(1), jnp.zeros(()), jax.random.key(0))[0][0])


@pytest.fixture(scope="module")
def one_sided():
    """The reward 1 + a, told of the left half of the actions alone: what plain and wary critics make of it."""
    eps = bandit(lambda a: 1 + a)
    left = np.resize(np.flatnonzero(eps.act[:, 0] < 0), N)  # repeated, so that all problems are one compiled program
    return {agent.min_q_weight: train(agent, TrainingRun(eps, steps=left)).state for agent in (PLAIN, WARY)}


def test_without_the_term_q_is_the_reward():
    eps = bandit(lambda a: 1 - (a - 0.5) ** 2)
    state = train(PLAIN, TrainingRun(eps)).state
    want = 1 - (ACT[:, 0] - 0.5) ** 2
    np.testing.assert_allclose(values(state), np.stack([want, want]), atol=0.1)
    assert abs(choice(PLAIN, state) - 0.5) < 0.15


def test_without_the_term_two_state_chain():
    """Rewards 1 then 4, then the end: Q = 4 in the second state and 1 + 4 gamma in the first; no entropy is added."""
    second = np.arange(N) % 2 == 1
    eps = transitions(np.where(second, 1, -1), np.where(second, 0, 1), lambda a: np.where(second, 4, 1), second)
    done = train(PLAIN, TrainingRun(eps))
    for obs, q in ((-1.0, 3.0), (1.0, 4.0)):
        scaled = done.scaler(np.array([[obs]], np.float32))[0, 0]
        np.testing.assert_allclose(values(done.state, scaled), q, atol=0.15)


def test_unseen_actions_are_held_below_their_true_value(one_sided):
    seen, unseen = ACT[:3], ACT[4:]
    plain, wary = one_sided[0.0], one_sided[5.0]
    assert (values(plain, act=unseen) > 1).all()  # above all it ever saw: it draws the line on
    assert (values(wary, act=unseen) < unseen[:, 0]).all()  # by more than 1: the truth is 1 + a
    assert (values(wary, act=seen) > values(wary, act=unseen).max()).all()


def test_the_policy_stays_with_the_data(one_sided):
    assert choice(PLAIN, one_sided[0.0]) > 0.5
    assert choice(WARY, one_sided[5.0]) < 0.1


def test_the_term_does_nothing_where_the_data_covers_all_actions():
    """Uniform data and a reward alike for all: the softmax of a constant Q is the data's own density, so Q = reward."""
    state = train(WARY, TrainingRun(bandit(lambda a: np.full_like(a, 2.0)))).state
    np.testing.assert_allclose(values(state), 2.0, atol=0.5)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, -0.3), (0.7, 0.0)])
def test_importance_weights_measure_the_space_of_actions(mean, log_std):
    """For Q = 0 each of the three sources estimates the integral of 1, the volume 2^A, whatever the policy."""
    n_act, n = 2, 40_000
    at = cql.Normal(jnp.full((1, n_act), mean), jnp.full((1, n_act), log_std))
    tried = cql.sample_candidates(at, at._replace(mean=-at.mean), cql.draw_noise(jax.random.key(1), n, 1, n_act))
    volumes = np.exp(-np.asarray(tried.log_prob)).reshape(3, n).mean(1)
    np.testing.assert_allclose(volumes, 4.0, rtol=0.03)
    assert np.abs(tried.act).max() <= 1 and tried.act.shape == (3 * n, 1, n_act)


def test_half_precision_is_near_and_its_values_are_whole():
    """Hidden layers alone are rounded: a value of some 300 must not move in bfloat16's steps of 2."""
    state = PLAIN.init(jax.random.key(0), 3, 2)
    critic = state.critics[0]
    critic[-1]["b"] += 300.0
    obs, act = jax.random.normal(jax.random.key(1), (20, 3)), jax.random.uniform(jax.random.key(2), (5, 20, 2))
    whole, half = (cql.q_value(critic, obs, act, half) for half in (False, True))
    assert half.dtype == jnp.float32 and half.shape == (5, 20)
    assert 0 < jnp.abs(whole - half).max() < 0.02
