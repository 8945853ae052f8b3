"""One update of each agent against NumPy in float64, with the gradients written out by hand.

Weights and moments start away from zero and the learning rate is large, so that a wrong factor anywhere moves a weight
by far more than the tolerance.
"""

import jax
import numpy as np
import pytest
from support.numpy_updates import (
    KEY,
    LR,
    N_ACT,
    N_OBS,
    SETTINGS,
    B,
    adam_step,
    backward,
    check,
    fit_critics,
    fixed,
    forward,
    moved,
    q_of,
)

from ssorl.agents import make

# --- a second opinion, in NumPy ------------------------------------------------------------------------------


def numpy_bc(state, batch):
    raw, inputs = forward(state.actor, batch.obs)
    pi = np.tanh(raw)
    d_raw = 2 * (pi - batch.act) / (B * N_ACT) * (1 - pi**2)
    actor, opt = adam_step(state.actor, backward(state.actor, inputs, d_raw)[0], state.opt, LR)
    return type(state)(actor, opt), {"actor_loss": ((pi - batch.act) ** 2).mean()}


def numpy_td3bc(state, batch, normal, phase):
    noise = np.clip(0.4 * normal, -0.5, 0.5)
    assert 0 < (np.abs(noise) == 0.5).mean() < 0.5
    next_act = np.clip(np.tanh(forward(state.target_actor, batch.next_obs)[0]) + noise, -1, 1)
    lowest = np.min([q_of(c, batch.next_obs, next_act) for c in state.target_critics], axis=0)
    target = batch.rew + 0.99 * batch.cont * lowest
    grads, loss = fit_critics(state.critics, batch, target)
    metrics = {"critic_loss": loss, "q": q_of(state.critics[0], batch.obs, batch.act).mean()}
    critics, opt_critics = adam_step(state.critics, grads, state.opt_critics, LR)
    state = state._replace(critics=critics, opt_critics=opt_critics)
    if phase == 0:
        return state, metrics

    raw, inputs = forward(state.actor, batch.obs)
    pi = np.tanh(raw)
    q, q_inputs = forward(critics[0], np.concatenate([batch.obs, pi], 1))
    lam = 2.5 / np.abs(q).mean()
    _, d_input = backward(critics[0], q_inputs, np.full((B, 1), -lam / B))
    d_pi = d_input[:, N_OBS:] + 2 * (pi - batch.act) / (B * N_ACT)
    actor, opt_actor = adam_step(state.actor, backward(state.actor, inputs, d_pi * (1 - pi**2))[0], state.opt_actor, LR)
    imitation = ((pi - batch.act) ** 2).mean()
    metrics |= {"imitation": imitation, "actor_loss": imitation - lam * q.mean()}
    targets = moved(state.target_actor, actor, 0.005), moved(state.target_critics, critics, 0.005)
    return type(state)(actor, critics, *targets, opt_actor, opt_critics), metrics


def numpy_iql(state, batch, updates):
    q = np.min([q_of(c, batch.obs, batch.act) for c in state.target_critics], axis=0)
    v, inputs = forward(state.value, batch.obs)
    error = q - v[:, 0]
    side = np.where(error > 0, 0.7, 0.3)
    grads, _ = backward(state.value, inputs, (-2 * side * error / B)[:, None])
    value, opt_value = adam_step(state.value, grads, state.opt_value, LR)
    metrics = {"value_loss": (side * error**2).mean(), "v": v.mean()}

    weight = np.minimum(np.exp(6 * (q - forward(value, batch.obs)[0][:, 0])), 100)
    assert (weight == 100).any() and (weight < 100).any()
    raw, inputs = forward(state.actor["mean"], batch.obs)
    mean, var = np.tanh(raw), np.exp(2 * state.actor["log_std"])
    off = batch.act - mean
    density = (-0.5 * off**2 / var - 0.5 * np.log(2 * np.pi * var)).sum(1)
    d_raw = -weight[:, None] / B * off / var * (1 - mean**2)
    d_log_std = -(weight[:, None] * (off**2 / var - 1)).mean(0)
    grads = {"mean": backward(state.actor["mean"], inputs, d_raw)[0], "log_std": d_log_std}
    lr = LR * 0.5 * (1 + np.cos(np.pi * int(state.opt_actor.step) / updates))
    actor, opt_actor = adam_step(state.actor, grads, state.opt_actor, lr)
    metrics |= {"actor_loss": -(weight * density).mean(), "weight": weight.mean()}

    target = batch.rew + 0.99 * batch.cont * forward(value, batch.next_obs)[0][:, 0]
    grads, loss = fit_critics(state.critics, batch, target)
    metrics |= {"critic_loss": loss, "q": q_of(state.critics[0], batch.obs, batch.act).mean()}
    critics, opt_critics = adam_step(state.critics, grads, state.opt_critics, LR)
    targets = moved(state.target_critics, critics, 0.005)
    return type(state)(actor, value, critics, targets, opt_actor, opt_value, opt_critics), metrics


# --- the comparison ------------------------------------------------------------------------------------------


def test_bc():
    agent = make("bc", lr=LR, **SETTINGS)
    state, batch = fixed(agent)
    check(agent, state, batch, numpy_bc(state, batch))


@pytest.mark.parametrize("phase", [0, 1])
def test_td3bc(phase):
    agent = make("td3bc", actor_lr=LR, critic_lr=LR, noise=0.4, **SETTINGS)
    state, batch = fixed(agent)
    normal = np.asarray(jax.random.normal(jax.random.key(KEY), (B, N_ACT)), np.float64)
    check(agent, state, batch, numpy_td3bc(state, batch, normal, phase), phase)


def test_iql():
    agent = make("iql", lr=LR, updates=40, temperature=6.0, **SETTINGS)
    state, batch = fixed(agent)
    check(agent, state, batch, numpy_iql(state, batch, 40))


@pytest.mark.parametrize("d", [0, 1])
def test_the_second_opinion_agrees_with_finite_differences(d):
    """The backward pass above, checked against the definition of a derivative."""
    rng = np.random.default_rng(0)
    net = [{"w": rng.standard_normal(s), "b": rng.standard_normal(s[1])} for s in ((3, 5), (5, 4), (4, 2))]
    x, out_weight, h = rng.standard_normal((6, 3)), rng.standard_normal((6, 2)), 1e-6
    grads, d_x = backward(net, forward(net, x)[1], out_weight)
    for values, slope in ((net[d]["w"], grads[d]["w"]), (net[d]["b"], grads[d]["b"]), (x, d_x)):
        ends = []
        for sign in (1, -2):
            values.flat[2] += sign * h
            ends.append((forward(net, x)[0] * out_weight).sum())
        values.flat[2] += h
        np.testing.assert_allclose((ends[0] - ends[1]) / (2 * h), slope.flat[2], rtol=1e-5, atol=1e-7)
