"""TD3+BC and IQL on problems with known solutions."""

from functools import partial

import jax
import numpy as np
import pytest
from support.problems import SMALL, N, bandit, transitions

from ssorl.agents import iql, make, td3bc
from ssorl.agents.base import Batch
from ssorl.training.engine import TrainingRun, train

FAST = {
    "td3bc": make("td3bc", critic_lr=3e-3, actor_lr=3e-3, **SMALL),
    "iql": make("iql", lr=3e-3, **SMALL),
}
Q = {"td3bc": partial(td3bc.q_value, FAST["td3bc"]), "iql": iql.q_value}


@pytest.mark.parametrize("name", FAST)
def test_q_of_a_bandit_is_the_reward(name):
    eps = bandit(lambda a: 1 - (a - 0.5) ** 2)
    state = train(FAST[name], TrainingRun(eps)).state
    act = np.linspace(-0.9, 0.9, 7)[:, None]
    q = Q[name](state.critics[0], np.zeros((7, 1)), act)
    np.testing.assert_allclose(q, 1 - (act[:, 0] - 0.5) ** 2, atol=0.1)


def test_the_td3bc_policy_of_a_bandit_balances_value_and_data():
    """The optimum is where lambda Q'(pi) = 2 (pi - mean a), with lambda = 2.5 / Q(pi); so pi = 0.359."""
    eps = bandit(lambda a: 1 - (a - 0.5) ** 2)
    agent = FAST["td3bc"]
    act, _ = agent.act(agent.policy(train(agent, TrainingRun(eps)).state), None, np.zeros(1), 0.0, jax.random.key(0))
    np.testing.assert_allclose(act, 0.359, atol=0.1)


def test_the_iql_value_of_a_bandit_is_the_expectile():
    """Rewards are 0 or 1 with equal probability; their 0.7-expectile m has 0.7 (1 - m) = 0.3 m, so m = 0.7."""
    eps = bandit(lambda a: (a > np.median(a)).astype(float))
    state = train(FAST["iql"], TrainingRun(eps)).state
    np.testing.assert_allclose(iql.v_value(state.value, np.zeros((1, 1))), 0.7, atol=0.06)
    act, _ = FAST["iql"].act(state.actor, None, np.zeros(1), 0.0, jax.random.key(0))
    assert act[0] > 0.3  # exp(3 (Q - V)) weights a good action 20 times as much as a bad one


@pytest.mark.parametrize("name", FAST)
def test_q_of_a_two_state_chain(name):
    """Rewards are 1, then 4, then the task ends: Q is 1 + 4 gamma in the first state and 4 in the second."""
    second = np.arange(N) % 2 == 1
    eps = transitions(np.where(second, 1, -1), np.where(second, 0, 1), lambda a: np.where(second, 4, 1), second)
    done = train(FAST[name], TrainingRun(eps))
    q = Q[name](done.state.critics[1], done.scaler(np.array([[-1.0], [1.0]], np.float32)), np.zeros((2, 1)))
    np.testing.assert_allclose(q, [3.0, 4.0], atol=0.1)


@pytest.mark.parametrize("name", FAST)
def test_critics_bootstrap_at_time_limits_only(name):
    """The reward is always 1 and episodes have one step: Q = 1 / (1 - gamma) = 2 if truncated, 1 if terminated."""
    for terminated, value in ((False, 2.0), (True, 1.0)):
        eps = bandit(np.ones_like, terminated)
        state = train(FAST[name], TrainingRun(eps)).state
        np.testing.assert_allclose(Q[name](state.critics[0], np.zeros((1, 1)), np.zeros((1, 1))), value, atol=0.1)


def test_td3bc_with_alpha_0_equals_bc():
    settings = {"hidden": (16, 16), "batch": 32}
    bc, td3 = make("bc", lr=1e-3, **settings), make("td3bc", alpha=0.0, actor_lr=1e-3, policy_every=1, **settings)
    rng = np.random.default_rng(0)
    normal = rng.standard_normal((3, 32, 4)).astype(np.float32)
    batch = Batch(normal[0], np.tanh(normal[1, :, :2]), normal[1, :, 3], np.ones(32, np.float32), normal[2])
    key = jax.random.key(0)
    bc_state = bc.init(key, 4, 2)
    td3_state = td3.init(key, 4, 2)._replace(actor=bc_state.actor, target_actor=bc_state.actor)
    update_bc, update_td3 = jax.jit(bc.update), jax.jit(td3.update)
    for i in range(20):
        k = jax.random.fold_in(key, i)
        bc_state, td3_state = update_bc(bc_state, batch, k)[0], update_td3(td3_state, batch, k)[0]
    for a, b in zip(jax.tree.leaves(bc_state.actor), jax.tree.leaves(td3_state.actor), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
