"""Dropout, gradients and half precision of plain networks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssorl.utils.networks import coins, halved, init_mlp, mlp


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_coins_fall_as_often_as_they_should_and_each_on_its_own(rate):
    number = jnp.arange(1 << 18, dtype=jnp.uint32)
    some, others = (np.asarray(coins(number, rate, jnp.uint32(seed))) for seed in (7, 8))
    sure = 5 * (rate * (1 - rate) / number.size) ** 0.5
    for kept in (some, others):
        assert abs(kept.mean() - (1 - rate)) < sure
    for a, b in ((some, others), (some[1:], some[:-1]), (some[1024:], some[:-1024])):  # seeds, neighbours, rows
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / number.size**0.5


def test_dropout_keeps_the_mean_and_acts_with_a_key_alone():
    # One hidden layer that passes its input on: the output is the share of units kept, over what it should be.
    n = 1 << 14
    layers = [{"w": jnp.ones((1, n)), "b": jnp.zeros(n)}, {"w": jnp.full((n, 1), 1 / n), "b": jnp.zeros(1)}]
    x = jnp.ones((4, 1))
    dropped = np.asarray(mlp(layers, x, dropout=0.1, key=jax.random.key(0)))
    np.testing.assert_allclose(dropped, 1, atol=5 * (0.1 / 0.9 / n) ** 0.5)
    assert len(np.unique(dropped)) == 4  # each row has coins of its own
    assert (mlp(layers, x, dropout=0.1) == mlp(layers, x)).all()
    again, other = (np.asarray(mlp(layers, x, dropout=0.1, key=jax.random.key(k))) for k in (0, 1))
    assert (again == dropped).all() and (other != dropped).any()


def written_out(layers, x, dropout, key):
    """`mlp` in plain JAX, which finds the gradients by itself."""
    seeds = jax.random.bits(key, (len(layers) - 1,), jnp.uint32)
    for layer, seed in zip(layers[:-1], seeds, strict=True):
        x = jnp.maximum(x @ layer["w"] + layer["b"], 0)
        if dropout:
            number = jnp.arange(x.size, dtype=jnp.uint32).reshape(x.shape)
            x = x * coins(number, dropout, seed) / (1 - dropout)
    return x @ layers[-1]["w"] + layers[-1]["b"]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_those_of_the_network_written_out(dropout):
    # Two runs at once and two leading axes: a bias is summed over its own run's rows, all of them.
    keys = jax.random.split(jax.random.key(0), 2)
    layers = jax.vmap(lambda k: init_mlp(k, (5, 16, 16, 2)))(keys)
    x = jax.random.normal(jax.random.key(1), (2, 4, 3, 5))

    def gradients(f):
        loss = lambda layers, x, key: (f(layers, x, dropout=dropout, key=key) ** 2).sum()  # noqa: E731
        return jax.jit(jax.vmap(jax.value_and_grad(loss, argnums=(0, 1))))(layers, x, keys)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *map(gradients, (mlp, written_out))
    )


@pytest.mark.parametrize("kernels", ["0", "interpret"])
def test_layers_cast_before_are_as_good_as_layers_cast_inside(kernels, monkeypatch):
    monkeypatch.setenv("SSORL_FUSED", kernels)
    layers, x = init_mlp(jax.random.key(0), (3, 128, 128, 2)), jax.random.normal(jax.random.key(1), (1024, 3))
    small = jnp.bfloat16
    cast = [*halved(layers), layers[-1]]
    assert [layer["w"].dtype for layer in cast] == [small, small, jnp.float32]
    both = jax.jit(jax.value_and_grad(lambda layers: (mlp(layers, x, half=True) ** 2).mean()))
    (inside, grad), (before, other) = both(layers), both(cast)
    assert all(g.dtype == layer.dtype for g, layer in zip(*map(jax.tree.leaves, (other, cast)), strict=True))
    # The kernels know the biases of hidden layers in float32.
    rtol, atol = (0.02, 1e-4) if kernels == "interpret" else (0, 0)
    np.testing.assert_allclose(inside, before, rtol=rtol, atol=atol)
    for a, b in zip(jax.tree.leaves(grad), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a.astype(b.dtype).astype(np.float32), b.astype(np.float32), rtol=rtol, atol=atol)
