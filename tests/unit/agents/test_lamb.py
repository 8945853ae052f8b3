"""LAMB in few kernels is optax's LAMB."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ssorl.agents.lamb import clipped_lamb, squares

SHAPES = {"large": (32, 48), "odd": (7, 11), "zeros": (3,), "prime": (521,), "one": (), "still": (5,)}


@pytest.mark.parametrize("clip", [0.25, 1000.0])
def test_it_takes_the_steps_of_optax(clip):
    """Ten of them, with an array that starts at zero and one whose gradient and decay leave it there."""
    rng = np.random.default_rng(0)

    def lr(count):
        return 0.1 * jnp.minimum((count + 1) / 5, 1)

    ours = clipped_lamb(clip, lr, 0.01)
    theirs = optax.chain(optax.clip_by_global_norm(clip), optax.lamb(lr, eps=1e-8, weight_decay=0.01))
    params = {name: jnp.asarray(rng.standard_normal(shape), jnp.float32) for name, shape in SHAPES.items()}
    params |= {name: jnp.zeros(SHAPES[name]) for name in ("zeros", "still")}
    one, two = [(params, opt.init(params)) for opt in (ours, theirs)]
    assert jax.tree.structure(one) == jax.tree.structure(two)  # checkpoints have optax's names

    @jax.jit
    def step(one, two, grad):
        found = []
        for opt, (params, state) in ((ours, one), (theirs, two)):
            move, state = opt.update(grad, state, params)
            found.append((optax.apply_updates(params, move), state))
        return found

    for _ in range(10):
        grad = {name: jnp.asarray(rng.standard_normal(shape), jnp.float32) for name, shape in SHAPES.items()}
        one, two = step(one, two, grad | {"still": jnp.zeros(SHAPES["still"])})
        assert jax.tree.structure(one) == jax.tree.structure(two)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), one, two)
    assert (one[0]["still"] == 0).all() and (one[0]["zeros"] != 0).all()


def test_squares():
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES.values()]
    want = [np.square(x.astype(np.float64)).sum() for x in arrays]
    np.testing.assert_allclose(squares([jnp.asarray(x) for x in arrays]), want, rtol=1e-6)
