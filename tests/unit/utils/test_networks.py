"""Dropout, gradients and half precision of perceptrons."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssorl.utils.networks import halved, init_mlp, keep_mask, mlp


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_keeps_the_right_share_of_elements_independently(rate):
    number = jnp.arange(1 << 18, dtype=jnp.uint32)
    mask, other = (np.asarray(keep_mask(number, rate, jnp.uint32(seed))) for seed in (7, 8))
    five_sigma = 5 * (rate * (1 - rate) / number.size) ** 0.5
    for kept in (mask, other):
        assert abs(kept.mean() - (1 - rate)) < five_sigma
    for a, b in ((mask, other), (mask[1:], mask[:-1]), (mask[1024:], mask[:-1024])):  # seeds, neighbours, rows
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / number.size**0.5


def test_dropout_keeps_the_mean_and_needs_a_key():
    # The hidden layer copies its input, so the output is the share of kept units, divided by its expectation.
    n = 1 << 14
    layers = [{"w": jnp.ones((1, n)), "b": jnp.zeros(n)}, {"w": jnp.full((n, 1), 1 / n), "b": jnp.zeros(1)}]
    x = jnp.ones((4, 1))
    dropped = np.asarray(mlp(layers, x, dropout=0.1, key=jax.random.key(0)))
    np.testing.assert_allclose(dropped, 1, atol=5 * (0.1 / 0.9 / n) ** 0.5)
    assert len(np.unique(dropped)) == 4  # each row has its own mask
    assert (mlp(layers, x, dropout=0.1) == mlp(layers, x)).all()
    again, other = (np.asarray(mlp(layers, x, dropout=0.1, key=jax.random.key(k))) for k in (0, 1))
    assert (again == dropped).all() and (other != dropped).any()


def reference_mlp(layers, x, dropout, key):
    """Apply `mlp` in plain JAX, which derives the gradients."""
    seeds = jax.random.bits(key, (len(layers) - 1,), jnp.uint32)
    for layer, seed in zip(layers[:-1], seeds, strict=True):
        x = jnp.maximum(x @ layer["w"] + layer["b"], 0)
        if dropout:
            number = jnp.arange(x.size, dtype=jnp.uint32).reshape(x.shape)
            x = x * keep_mask(number, dropout, seed) / (1 - dropout)
    return x @ layers[-1]["w"] + layers[-1]["b"]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_equal_those_of_the_reference(dropout):
    # Two runs at once and two leading axes: the gradient of a bias is the sum over all rows of its own run.
    keys = jax.random.split(jax.random.key(0), 2)
    layers = jax.vmap(lambda k: init_mlp(k, (5, 16, 16, 2)))(keys)
    x = jax.random.normal(jax.random.key(1), (2, 4, 3, 5))

    def gradients(f):
        loss = lambda layers, x, key: (f(layers, x, dropout=dropout, key=key) ** 2).sum()  # noqa: E731
        return jax.jit(jax.vmap(jax.value_and_grad(loss, argnums=(0, 1))))(layers, x, keys)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *map(gradients, (mlp, reference_mlp))
    )


@pytest.mark.parametrize("kernels", ["0", "interpret"])
def test_layers_cast_before_the_call_give_the_same_results(kernels, monkeypatch):
    monkeypatch.setenv("SSORL_FUSED", kernels)
    layers, x = init_mlp(jax.random.key(0), (3, 128, 128, 2)), jax.random.normal(jax.random.key(1), (1024, 3))
    small = jnp.bfloat16
    cast = [*halved(layers), layers[-1]]
    assert [layer["w"].dtype for layer in cast] == [small, small, jnp.float32]
    both = jax.jit(jax.value_and_grad(lambda layers: (mlp(layers, x, half=True) ** 2).mean()))
    (inside, grad), (before, other) = both(layers), both(cast)
    assert all(g.dtype == layer.dtype for g, layer in zip(*map(jax.tree.leaves, (other, cast)), strict=True))
    # The kernels use float32 biases of hidden layers.
    rtol, atol = (0.02, 1e-4) if kernels == "interpret" else (0, 0)
    np.testing.assert_allclose(inside, before, rtol=rtol, atol=atol)
    for a, b in zip(jax.tree.leaves(grad), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a.astype(b.dtype).astype(np.float32), b.astype(np.float32), rtol=rtol, atol=atol)
