"""One update of CQL against NumPy in float64, with the gradients written out by hand.

The random numbers are the update's own, drawn again from its key and turned normal by SciPy.
"""

import jax
import numpy as np
import pytest
from scipy.special import erfinv, logsumexp
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
    fixed,
    forward,
    moved,
    q_of,
)

from ssorl.agents import make

N = 3  # sampled actions of each kind
ALL = 3 * N
WEIGHT = 5.0


def numbers():
    """Uniform [N, B, A] and normal [2 N + 2, B, A]."""
    low = np.nextafter(np.float32(-1), np.float32(0))
    draws = jax.random.uniform(jax.random.key(KEY), (3 * N + 2, B, N_ACT), minval=low)
    draws = np.asarray(draws, np.float64)
    return draws[:N], np.sqrt(2) * erfinv(draws[N:])


def gaussian(actor, obs):
    """Mean and deviation before the tanh, where the latter was not clipped, and what the backward pass needs."""
    out, inputs = forward(actor, obs)
    mean, log_std = out[:, :N_ACT], out[:, N_ACT:]
    inside = (log_std > -5) & (log_std < 2)
    return mean, np.exp(np.clip(log_std, -5, 2)), inside, inputs


def squash(mean, std, noise):
    """Actions and log densities, by the change of variables: d tanh(u) / du = 1 / cosh(u)^2."""
    raw = mean + std * noise
    density = np.exp(-0.5 * ((raw - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi)) * np.cosh(raw) ** 2
    return np.tanh(raw), np.log(density).sum(-1)


def numpy_critic(net, batch, target, tried, log_density):
    """Gradient, Bellman error, conservative gap and mean value of one critic; state by state, source by source."""
    out, inputs = forward(net, np.concatenate([batch.obs, batch.act], 1))
    q = out[:, 0]
    grads, _ = backward(net, inputs, ((2 * (q - target) - WEIGHT) / B)[:, None])
    values = np.stack([q_of(net, batch.obs, act) for act in tried]) - log_density
    total = logsumexp(values, axis=0)
    for act, value in zip(tried, values, strict=True):
        _, inputs = forward(net, np.concatenate([batch.obs, act], 1))
        more, _ = backward(net, inputs, (WEIGHT * np.exp(value - total) / B)[:, None])
        grads = jax.tree.map(np.add, grads, more)
    return grads, ((q - target) ** 2).mean(), (total - np.log(ALL) - q).mean(), q.mean()


def numpy_cql(state, batch):
    uniform, normal = numbers()
    mean, std, inside, actor_inputs = gaussian(state.actor, batch.obs)
    next_mean, next_std, _, _ = gaussian(state.actor, batch.next_obs)

    next_act, _ = squash(next_mean, next_std, normal[2 * N])
    lowest = np.min([q_of(c, batch.next_obs, next_act) for c in state.target_critics], axis=0)
    target = batch.rew + 0.99 * batch.cont * lowest
    here = [squash(mean, std, z) for z in normal[:N]]
    there = [squash(next_mean, next_std, z) for z in normal[N : 2 * N]]
    tried = [*uniform, *(act for act, _ in here + there)]
    log_density = np.stack([*np.full((N, B), N_ACT * np.log(0.5)), *(d for _, d in here + there)])
    parts = [numpy_critic(c, batch, target, tried, log_density) for c in state.critics]
    bellman, gap = sum(p[1] for p in parts), sum(p[2] for p in parts)
    metrics = {"critic_loss": bellman + WEIGHT * gap, "bellman": bellman, "gap": gap, "q": parts[0][3]}
    critics, opt_critics = adam_step(state.critics, [p[0] for p in parts], state.opt_critics, LR)

    # With u = mean + std z: log pi = -z^2/2 - log std - log(1 - tanh(u)^2) + c, whose slope in u is 2 tanh(u).
    noise, alpha = normal[2 * N + 1], np.exp(state.log_alpha)
    act, log_prob = squash(mean, std, noise)
    both = [forward(c, np.concatenate([batch.obs, act], 1)) for c in critics]
    first = both[0][0] < both[1][0]
    assert first.any() and not first.all()
    slopes = [
        backward(c, inputs, np.where(mine, -1 / B, 0.0))[1][:, N_OBS:]
        for c, (_, inputs), mine in zip(critics, both, (first, ~first), strict=True)
    ]
    d_raw = sum(slopes) * (1 - act**2) + alpha / B * 2 * act
    d_log_std = (d_raw * std * noise - alpha / B) * inside
    grads, _ = backward(state.actor, actor_inputs, np.concatenate([d_raw, d_log_std], 1))
    actor, opt_actor = adam_step(state.actor, grads, state.opt_actor, LR)
    q = np.minimum(both[0][0], both[1][0])[:, 0]

    # alpha's loss, -log alpha (log pi + target entropy), with target entropy -A
    grad = np.array(-(log_prob - N_ACT).mean())
    log_alpha, opt_alpha = adam_step(state.log_alpha, grad, state.opt_alpha, LR)
    metrics |= {"actor_loss": (alpha * log_prob - q).mean(), "entropy": -log_prob.mean(), "alpha": np.exp(log_alpha)}
    targets = moved(state.target_critics, critics, 0.005)
    return type(state)(actor, critics, targets, log_alpha, opt_actor, opt_critics, opt_alpha), metrics


@pytest.fixture(scope="module")
def agent():
    rates = dict.fromkeys(("actor_lr", "critic_lr", "temperature_lr"), LR)
    return make("cql", n_actions=N, min_q_weight=WEIGHT, **rates, **SETTINGS)


@pytest.mark.parametrize("shift", [0.0, 1.5, -5.5])
def test_cql(agent, shift):
    """Also with some deviations beyond their upper limit, and below their lower."""
    state, batch = fixed(agent)
    state.actor[-1]["b"][N_ACT:] += shift
    inside = gaussian(state.actor, batch.obs)[2]
    assert inside.all() if not shift else 0.1 < inside.mean() < 0.9
    check(agent, state, batch, numpy_cql(state, batch))
