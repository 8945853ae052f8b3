"""Decision Transformers on problems with known solutions."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.episodes import make_episodes

from ssorl.agents import make
from ssorl.agents.dt import STATES, normal
from ssorl.agents.gpt import _drop, gpt
from ssorl.agents.windows import Window
from ssorl.data.episodes import Episodes, Meta
from ssorl.training.engine import TrainingRun, train
from ssorl.utils.errors import SsorlError

TINY = {"layers": 1, "heads": 2, "width": 16, "context": 3, "batch": 64, "warmup": 10, "max_time": 64, "dropout": 0.0}
N_OBS, N_ACT, K = 3, 2, 4


# --- learning ------------------------------------------------------------------------------------------------


def test_the_policy_reaches_its_target_return():
    """Episodes have three steps, and the reward is the action, so all returns from -3 to 3 are possible."""
    rng = np.random.default_rng(0)
    n, steps = 400, 3
    act = rng.uniform(-0.95, 0.95, (n * steps, 1)).astype(np.float32)
    start, obs = np.arange(0, n * steps + 1, steps), rng.standard_normal((n * (steps + 1), 1)).astype(np.float32)
    eps = Episodes(obs, act, act[:, 0], np.zeros(n * steps, bool), start, Meta(act_low=(-1.0,), act_high=(1.0,)))
    agent = make("dt", "quick", **TINY, lr=5e-3, scale=1.0, updates=1000)
    params = agent.policy(train(agent, TrainingRun(eps)).state)

    def episode(carry):
        def step(memory, _):
            carry, rew = memory
            act, carry = agent.act(params, carry, jnp.zeros(1), rew, jax.random.key(0))
            return (carry, act[0]), act[0]

        return jax.lax.scan(step, (carry, jnp.zeros(())), None, steps)[1]

    targets = [-1.5, 0.0, 1.5]
    carries = [replace(agent, target=target).begin(1, 1) for target in targets]
    acts = jax.jit(jax.vmap(episode))(jax.tree.map(lambda *x: jnp.stack(x), *carries))
    np.testing.assert_allclose(acts.sum(1), targets, atol=0.15)
    assert (np.diff(acts, axis=0) > 0.1).all()  # at each step, a higher target gives a higher action


@pytest.fixture(scope="module")
def turning():
    """States rotate by a fixed angle per step for all actions; the reward is the state's first coordinate."""
    rng = np.random.default_rng(0)
    n, steps = 40, 12
    phase = rng.uniform(0, 2 * np.pi, (n, 1)) + 0.7 * np.arange(steps + 1)
    obs = np.stack([np.cos(phase), np.sin(phase)], -1).astype(np.float32)
    act = np.tanh(obs[:, :-1, :1]).reshape(-1, 1)
    rew, start = obs[:, :-1, 0].reshape(-1), np.arange(0, n * steps + 1, steps)
    meta = Meta(act_low=(-1.0,), act_high=(1.0,))
    return Episodes(obs.reshape(-1, 2), act, rew, np.zeros(n * steps, bool), start, meta)


def test_joint_learns_from_trajectories_without_actions(turning):
    """Four trajectories have actions. The states are learnt from all trajectories, the actions from these four."""
    act = turning.act.copy()
    act[48:] = np.nan
    small = TINY | {"batch": 16, "unlabelled": 16, "lr": 1e-2, "lambda_s": 1.0, "lambda_r": 1.0}
    curve = train(
        make("dt-joint", "quick", **small, updates=800), TrainingRun(turning.with_actions(act)), every=200
    ).curve
    assert curve["obs_loss"][-1] < 0.1  # of both kinds; 4 for the mean state, 1.9 for an unchanged state
    assert curve["rew_loss"][-1] < 0.05  # 1 for the mean reward
    assert curve["nll"][-1] < curve["nll"][0] - 1

    hidden = turning.with_actions(np.full_like(act, np.nan))
    unlabelled = train(make("dt-joint", "quick", **small, updates=500), TrainingRun(hidden), every=100).curve
    assert unlabelled["obs_loss"][-1] < 0.1
    assert (unlabelled["nll"] == 0).all() and (unlabelled["entropy"] == 0).all()
    np.testing.assert_allclose(unlabelled["temperature"], 0.1, rtol=1e-4)  # unchanged, because there is no entropy


def test_the_target_return():
    """A target that is set counts; else the paper's for its environments, and the highest return of other data."""
    eps, agent = make_episodes([5, 4, 6]), make("dt")
    best, largest = eps.returns.max(), np.abs(eps.returns).max()
    for env in ("walker2d", "Walker2d-v4"):
        assert agent.fitted_to(env, eps) == make("dt", target=5000.0, scale=0.001)
    assert agent.fitted_to(None, eps.with_meta(env="hopper")).target == 3600
    assert agent.fitted_to("pointmass", eps) == make("dt", target=best, scale=5 / largest)
    assert make("dt", target=7.0, scale=0.5).fitted_to("hopper", eps) == make("dt", target=7.0, scale=0.5)
    with pytest.raises(SsorlError, match="DT has no return to ask for; set `target`"):
        agent.begin(N_OBS, N_ACT)


def test_the_defaults_are_those_of_the_paper():
    got = make("dt-joint")
    assert (got.layers, got.heads, got.width, got.context, got.dropout, got.batch) == (4, 4, 512, 20, 0.1, 256)
    assert (got.lr, got.decay, got.warmup, got.clip, got.updates) == (1e-4, 1e-3, 10_000, 0.25, 200_000)
    assert (got.temperature, got.temperature_lr, got.lambda_s, got.lambda_r) == (0.1, 1e-4, 0.01, 0.1)


def test_a_width_that_is_not_a_multiple_of_the_heads_raises():
    with pytest.raises(SsorlError, match="width is 512 and heads is 3; choose a width that is a multiple"):
        make("dt", heads=3).init(jax.random.key(0), N_OBS, N_ACT)


# --- the network ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def agent():
    return make("dt", layers=2, heads=2, width=8, context=K, max_time=6, scale=0.1, half=False)


@pytest.fixture(scope="module")
def params(agent):
    """Weights large enough for every token to affect the output."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: agent.init(jax.random.key(0), N_OBS, N_ACT)).params
    return jax.tree.map(lambda x: (0.5 * rng.standard_normal(x.shape)).astype(np.float32), shapes)


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(1)
    shapes = (K,), (K, N_OBS), (K, N_ACT)
    return *(rng.standard_normal(s).astype(np.float32) for s in shapes), np.arange(2, 2 + K, dtype=np.int32)


@pytest.mark.parametrize("kind", range(3))
def test_tokens_do_not_attend_to_later_tokens(params, inputs, kind):
    read = jax.jit(lambda *x: gpt(params["body"], *x, heads=2))
    before = read(*inputs)
    for t in range(K):
        changed = [x.copy() for x in inputs]
        changed[kind][t] += 1
        changes = np.abs(read(*changed) - before).max(1) > 1e-6
        np.testing.assert_array_equal(changes, np.arange(3 * K) >= 3 * t + kind)


def test_computing_state_tokens_only_gives_the_same_outputs(params, inputs):
    whole, states = jax.jit(lambda *x: [gpt(params["body"], *x, heads=2, out_tokens=t) for t in (slice(None), STATES)])(
        *inputs
    )
    np.testing.assert_allclose(states, whole[STATES], atol=1e-5)


def test_half_precision_is_close_to_single_precision(params, inputs):
    whole, half = jax.jit(lambda *x: [gpt(params["body"], *x, heads=2, half=half) for half in (False, True)])(*inputs)
    assert half.dtype == jnp.float32
    assert 0 < np.abs(whole - half).max() < 0.1


def test_acting_step_by_step_equals_the_window_of_training(agent, params):
    """The trajectory is longer than the context and the table of times, and its actions are used as history."""
    eps = make_episodes([9], N_OBS, N_ACT)
    n, obs, act = 9, eps.obs[:-1], eps.act
    rtg, time = eps.returns_to_go().astype(np.float32), np.arange(n, dtype=np.int32)
    step = jax.jit(agent.act)
    carry, rew = replace(agent, target=float(rtg[0])).begin(N_OBS, N_ACT), 0.0
    for t in range(n):
        got, carry = step(params, carry, obs[t], rew, jax.random.key(0))
        slot = min(t, K - 1)
        carry, rew = carry._replace(act=carry.act.at[slot].set(act[t])), eps.rew[t]

        first = max(0, t - K + 1)
        own = np.minimum(np.arange(first, first + K), n - 1)
        true = np.ones(K, bool)
        window = Window(obs[own], act[own], eps.rew[own], obs[own], rtg[own], time[own], true, true)
        want = np.tanh(normal(params, agent.features(params, window, STATES))[0])[t - first]
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_dropout_masks_are_independent_with_the_given_rate():
    first, second = (np.asarray(_drop(jnp.ones((300, 1000)), 0.1, jnp.uint32(seed))) for seed in (1, 2))
    np.testing.assert_allclose(np.unique(first), [0, 1 / 0.9], rtol=1e-6)
    for mask in (first, second):
        np.testing.assert_allclose((mask == 0).mean(), 0.1, atol=0.003)  # five standard deviations
    pairs = [(first, second), (first[:, 1:], first[:, :-1]), (first[1:], first[:-1]), (first[:, 1:], second[:, :-1])]
    for a, b in pairs:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.01


def test_dropout_needs_a_key(agent, params, inputs):
    read = jax.jit(lambda key: gpt(params["body"], *inputs, 2, STATES, 0.5, key))
    np.testing.assert_allclose(read(None), gpt(params["body"], *inputs, 2, STATES), atol=1e-5)
    first, second = read(jax.random.key(0)), read(jax.random.key(1))
    assert np.abs(first - second).max() > 0.01
    np.testing.assert_array_equal(first, read(jax.random.key(0)))
