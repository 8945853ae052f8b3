"""One update worked out in NumPy, with the gradients written out by hand, and the comparison with an agent."""

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.agents.base import Batch
from ssorl.utils.networks import Adam

N_OBS, N_ACT, HIDDEN, B = 4, 2, (8, 7), 16
LR, KEY = 0.03, 5
SETTINGS = {"hidden": HIDDEN, "batch": B}


def forward(net, x):
    """Output [B, n] and what the backward pass needs: the input of each layer."""
    inputs = []
    for i, layer in enumerate(net):
        inputs.append(x)
        x = x @ layer["w"] + layer["b"]
        if i < len(net) - 1:
            x = np.maximum(x, 0)
    return x, inputs


def backward(net, inputs, d_out):
    """Gradients of the weights and of the input, from that of the output."""
    grads = [None] * len(net)
    for i in reversed(range(len(net))):
        grads[i] = {"w": inputs[i].T @ d_out, "b": d_out.sum(0)}
        d_out = d_out @ net[i]["w"].T
        if i:  # the input of every layer but the first came out of a ReLU
            d_out = d_out * (inputs[i] > 0)
    return grads, d_out


def q_of(net, obs, act):
    return forward(net, np.concatenate([obs, act], 1))[0][:, 0]


def adam_step(params, grads, opt, lr):
    """New weights and new moments, as [Kingma & Ba 2015, algorithm 1]."""
    p, tree = jax.tree.flatten(params)
    t = int(opt.step) + 1
    m = [0.9 * a + 0.1 * g for a, g in zip(jax.tree.leaves(opt.mean), jax.tree.leaves(grads), strict=True)]
    v = [0.999 * a + 0.001 * g**2 for a, g in zip(jax.tree.leaves(opt.square), jax.tree.leaves(grads), strict=True)]
    new = [w - lr * (a / (1 - 0.9**t)) / (np.sqrt(b / (1 - 0.999**t)) + 1e-8) for w, a, b in zip(p, m, v, strict=True)]
    return jax.tree.unflatten(tree, new), Adam(jax.tree.unflatten(tree, m), jax.tree.unflatten(tree, v), t)


def fit_critics(critics, batch, target):
    """Gradients of the squared errors of both critics, each a mean over the batch."""
    grads, loss = [], 0.0
    for net in critics:
        out, inputs = forward(net, np.concatenate([batch.obs, batch.act], 1))
        error = out[:, 0] - target
        loss += (error**2).mean()
        grads.append(backward(net, inputs, (2 * error / B)[:, None])[0])
    return grads, loss


def moved(target, params, tau):
    return jax.tree.map(lambda t, p: (1 - tau) * t + tau * p, target, params)


def fixed(agent):
    """A state whose every number is drawn by NumPy, with moments as after ten steps, and a batch."""
    rng = np.random.default_rng(3)

    def normal(shape, size):
        return (size * rng.standard_normal(shape)).astype(np.float32).astype(np.float64)

    shapes = jax.eval_shape(lambda: agent.init(jax.random.key(0), N_OBS, N_ACT))

    def fill(part):
        if isinstance(part, Adam):
            mean = jax.tree.map(lambda x: normal(x.shape, 0.1), part.mean)
            square = jax.tree.map(lambda x: np.abs(normal(x.shape, 0.1)) + 0.01, part.square)
            return Adam(mean, square, 10)
        return jax.tree.map(lambda x: normal(x.shape, 0.4), part)

    state = type(shapes)(*(fill(part) for part in shapes))
    cont = np.ones(B)
    cont[::5] = 0
    act = np.tanh(normal((B, N_ACT), 1))
    batch = Batch(normal((B, N_OBS), 1), act, normal(B, 1), cont, normal((B, N_OBS), 1))
    return state, batch


def on_device(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.int32 if isinstance(x, int) else jnp.float32), tree)


def check(agent, state, batch, reference, phase=0):
    update = jax.jit(agent.update, static_argnames="phase")
    got, metrics = update(on_device(state), on_device(batch), jax.random.key(KEY), phase=phase)
    want, numbers = reference
    assert sorted(metrics) == sorted(numbers)
    for name, number in numbers.items():
        np.testing.assert_allclose(metrics[name], number, rtol=1e-5, atol=1e-5, err_msg=name)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5, err_msg=jax.tree_util.keystr(path))
