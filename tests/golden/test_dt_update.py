"""One update of DT and of DT-Joint against NumPy.

The second opinion is the loss in complex numbers: its derivative by a weight is the imaginary part of the loss after a
step of 1e-30 i in it, as exact as the loss, so that there is no second backward pass to get wrong. Weights and moments
start away from zero and the learning rate is large, as in the golden updates of the other agents.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ssorl.agents import make
from ssorl.agents.windows import Window
from ssorl.utils.networks import Adam

N_OBS, N_ACT, B, K = 3, 2, 3, 3
LAYERS, HEADS, WIDTH, MAX_TIME = 2, 2, 4, 5
LR, DECAY, DONE, WARMUP, KEY = 0.02, 0.1, 10, 40, 5
EDGE = float(np.float32(1) - np.float32(1e-6))
SETTINGS = {
    "layers": LAYERS,
    "heads": HEADS,
    "width": WIDTH,
    "context": K,
    "batch": B,
    "max_time": MAX_TIME,
    "dropout": 0.0,
    "lr": LR,
    "decay": DECAY,
    "warmup": WARMUP,
    "temperature_lr": LR,
    "scale": 0.1,
}
JOINT = {"batch": 2, "unlabelled": B - 2, "lambda_s": 0.03, "lambda_r": 0.2}


# --- a second opinion, in NumPy ------------------------------------------------------------------------------


def apply(layer, x):
    return x @ layer["w"] + layer["b"]


def norm(layer, x):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * layer["gain"] + layer["bias"]


def relu(x):
    return np.where(x.real > 0, x, 0)


def attend(block, x):
    """Attention of sequences x[B, T, width], head by head: a token sees itself and what came before."""
    q, k, v = np.split(apply(block["qkv"], x), 3, axis=-1)
    size, mixed = WIDTH // HEADS, []
    for head in range(HEADS):
        own = slice(head * size, (head + 1) * size)
        weight = np.tril(np.exp(q[..., own] @ k[..., own].swapaxes(1, 2) / np.sqrt(size)))
        mixed.append(weight @ v[..., own] / weight.sum(-1, keepdims=True))
    return apply(block["join"], np.concatenate(mixed, -1))


def transformer(body, batch):
    """Outputs of all tokens, padding and unread ones included, [B, K, 3, width]."""
    when = body["time"][np.minimum(batch.time, MAX_TIME - 1)]
    x = np.empty((B, 3 * K, WIDTH), complex)
    x[:, 0::3] = apply(body["rtg"], 0.1 * batch.rtg[:, :, None]) + when
    x[:, 1::3] = apply(body["obs"], batch.obs) + when
    x[:, 2::3] = apply(body["act"], batch.act) + when
    x = norm(body["norm"], x)
    for block in body["blocks"]:
        x = x + attend(block, norm(block["norm1"], x))
        x = x + apply(block["down"], relu(apply(block["up"], norm(block["norm2"], x))))
    return norm(body["out"], x).reshape(B, K, 3, WIDTH)


def log_density(mean, log_std, raw):
    """Of tanh(raw): the normal's density over the slope of tanh."""
    normal = -((raw - mean) ** 2) / (2 * np.exp(2 * log_std)) - log_std - np.log(2 * np.pi) / 2
    return (normal - np.log(1 - np.tanh(raw) ** 2)).sum(-1)


def losses(params, batch, noise, temperature, joint):
    """The loss and its parts, over the steps that exist and those whose action is known."""
    out = transformer(params["body"], batch)
    state = out[batch.labelled][:, 1]
    mean = apply(params["mean"], state)
    log_std = -5 + 3.5 * (np.tanh(apply(params["log_std"], state)) + 1)
    raw = np.arctanh(np.clip(batch.act[batch.labelled], -EDGE, EDGE))
    sample = mean + np.exp(log_std) * noise[batch.labelled]
    parts = {name: -log_density(mean, log_std, x).mean() for name, x in (("nll", raw), ("entropy", sample))}
    parts["actor_loss"] = loss = parts["nll"] - temperature * parts["entropy"]
    if joint:
        parts |= {"obs_loss": 0, "rew_loss": 0}
        for own in ([0, 1], [2]):  # sequences with actions, and one without
            mask = np.zeros_like(batch.mask)
            mask[own] = batch.mask[own]
            action = out[mask][:, 2]
            parts["obs_loss"] += ((apply(params["next_obs"], action) - batch.next_obs[mask]) ** 2).sum(-1).mean()
            parts["rew_loss"] += ((apply(params["rew"], action)[:, 0] - batch.rew[mask]) ** 2).mean()
        parts["loss"] = loss = loss + 0.03 * parts["obs_loss"] + 0.2 * parts["rew_loss"]
    return loss, {name: value.real for name, value in parts.items()}


def gradient(params, loss):
    """By a complex step in each weight."""
    flat, tree = jax.tree.flatten(jax.tree.map(lambda x: x.astype(complex), params))
    grads = [np.zeros(x.shape) for x in flat]
    for x, g in zip(flat, grads, strict=True):
        for i in range(x.size):
            x.flat[i] += 1e-30j
            g.flat[i] = loss(jax.tree.unflatten(tree, flat)).imag / 1e-30
            x.flat[i] = x.flat[i].real
    return jax.tree.unflatten(tree, grads)


def lamb_step(params, grads, adam, clip):
    """New weights and moments, as [You et al. 2020, algorithm 2] with the whole gradient clipped first."""
    size = np.sqrt(sum((g**2).sum() for g in jax.tree.leaves(grads)))
    grads = jax.tree.map(lambda g: g * min(1, clip / size), grads)
    t = DONE + 1
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, adam.mu, grads)
    nu = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, adam.nu, grads)

    def move(w, m, v):
        step = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8) + DECAY * w
        return w - LR * t / WARMUP * np.linalg.norm(w) / np.linalg.norm(step) * step

    return jax.tree.map(move, params, mu, nu), optax.ScaleByAdamState(t, mu, nu), size


def temperature_step(log_temperature, adam, slope):
    mean, square = 0.9 * adam.mean + 0.1 * slope, 0.999 * adam.square + 0.001 * slope**2
    t = DONE + 1
    new = log_temperature - LR * mean / (1 - 0.9**t) / (np.sqrt(square / (1 - 0.999**t)) + 1e-8)
    return new, Adam(mean, square, t)


# --- the comparison ------------------------------------------------------------------------------------------

KINDS = (Adam, optax.ScaleByAdamState, optax.ScaleByScheduleState)


def replaced(tree, new):
    """The tree with each optimiser's state x replaced by new(x)."""
    return jax.tree.map(lambda x: new(x) if isinstance(x, KINDS) else x, tree, is_leaf=lambda x: isinstance(x, KINDS))


def fixed(agent):
    """A state whose every number is drawn by NumPy, with moments as after ten steps, and a batch."""
    rng = np.random.default_rng(3)

    def normal(shape, size):
        return (size * rng.standard_normal(shape)).astype(np.float32).astype(np.float64)

    def fill(part):
        if isinstance(part, optax.ScaleByScheduleState):
            return optax.ScaleByScheduleState(DONE)
        first = part.mean if isinstance(part, Adam) else part.mu
        mean = jax.tree.map(lambda x: normal(x.shape, 0.1), first)
        square = jax.tree.map(lambda x: np.abs(normal(x.shape, 0.1)) + 0.01, first)
        return Adam(mean, square, DONE) if isinstance(part, Adam) else optax.ScaleByAdamState(DONE, mean, square)

    shapes = jax.eval_shape(lambda: agent.init(jax.random.key(0), N_OBS, N_ACT))
    params = jax.tree.map(lambda x: normal(x.shape, 0.5), shapes.params)
    opt, opt_temperature = replaced(shapes.opt, fill), replaced(shapes.opt_temperature, fill)
    state = type(shapes)(params, np.float64(np.float32(-0.7)), opt, opt_temperature)

    act = np.tanh(normal((B, K, N_ACT), 1)).astype(np.float32).astype(np.float64)
    act[0, 0, 0] = 1.0  # on the edge
    mask = np.ones((B, K), bool)
    mask[2, 2:] = False  # a trajectory that has ended
    labelled = mask.copy()
    labelled[1, :2] = False
    act[1, :2] = 0
    time = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 7]])  # past the table's end
    batch = Window(
        normal((B, K, N_OBS), 1),
        act,
        normal((B, K), 1),
        normal((B, K, N_OBS), 1),
        normal((B, K), 5),
        time,
        mask,
        labelled,
    )
    return state, batch


def on_device(x):
    x = np.asarray(x)
    return jnp.asarray(x, {"f": jnp.float32, "i": jnp.int32, "b": jnp.bool}[x.dtype.kind])


@pytest.mark.parametrize(("name", "clip"), [("dt", 0.25), ("dt-joint", 100.0)])
def test_update(name, clip):
    joint = name == "dt-joint"
    agent = make(name, clip=clip, **(SETTINGS | (JOINT if joint else {})))
    state, batch = fixed(agent)
    key = jax.random.key(KEY)
    noise = np.asarray(jax.random.normal(jax.random.split(key)[1], (B, K, N_ACT)), np.float64)
    temperature = np.exp(state.log_temperature)

    want, numbers = losses(state.params, batch, noise, temperature, joint)
    grads = gradient(state.params, lambda p: losses(p, batch, noise, temperature, joint)[0])
    before = next(x for x in jax.tree.leaves(state.opt, is_leaf=lambda x: isinstance(x, KINDS)) if hasattr(x, "mu"))
    params, after, size = lamb_step(state.params, grads, before, clip)
    assert (size > clip) == (name == "dt")  # one is clipped, the other not
    slope = temperature * (numbers["entropy"] + N_ACT)
    log_temperature, opt_temperature = temperature_step(state.log_temperature, state.opt_temperature, slope)
    opt = replaced(state.opt, lambda x: after if hasattr(x, "mu") else optax.ScaleByScheduleState(DONE + 1))
    want = type(state)(params, log_temperature, opt, opt_temperature)

    got, metrics = jax.jit(agent.update)(jax.tree.map(on_device, state), jax.tree.map(on_device, batch), key)
    numbers["temperature"] = temperature
    assert sorted(metrics) == sorted(numbers)
    for metric, number in numbers.items():
        np.testing.assert_allclose(metrics[metric], number, rtol=1e-5, atol=1e-5, err_msg=metric)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5, err_msg=jax.tree_util.keystr(path))
