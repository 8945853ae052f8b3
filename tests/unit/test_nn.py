"""Dropout of plain networks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssorl.nn import coins, mlp


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
