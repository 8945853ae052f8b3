"""LAMB in few kernels equals optax's LAMB."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ssorl.agents.lamb import clipped_lamb, sums_of_squares

SHAPES = {"large": (32, 48), "odd": (7, 11), "zeros": (3,), "prime": (521,), "scalar": (), "constant": (5,)}


@pytest.mark.parametrize("clip", [0.25, 1000.0])
def test_ten_updates_equal_those_of_optax(clip):
    """One array starts at zero; another starts at zero and stays there, because its gradient is zero."""
    rng = np.random.default_rng(0)

    def lr(count):
        return 0.1 * jnp.minimum((count + 1) / 5, 1)

    ours = clipped_lamb(clip, lr, 0.01)
    theirs = optax.chain(optax.clip_by_global_norm(clip), optax.lamb(lr, eps=1e-8, weight_decay=0.01))
    params = {name: jnp.asarray(rng.standard_normal(shape), jnp.float32) for name, shape in SHAPES.items()}
    params |= {name: jnp.zeros(SHAPES[name]) for name in ("zeros", "constant")}
    a, b = [(params, opt.init(params)) for opt in (ours, theirs)]
    assert jax.tree.structure(a) == jax.tree.structure(b)  # checkpoints have optax's names

    @jax.jit
    def step(a, b, grad):
        after = []
        for opt, (params, state) in ((ours, a), (theirs, b)):
            change, state = opt.update(grad, state, params)
            after.append((optax.apply_updates(params, change), state))
        return after

    for _ in range(10):
        grad = {name: jnp.asarray(rng.standard_normal(shape), jnp.float32) for name, shape in SHAPES.items()}
        a, b = step(a, b, grad | {"constant": jnp.zeros(SHAPES["constant"])})
        assert jax.tree.structure(a) == jax.tree.structure(b)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), a, b)
    assert (a[0]["constant"] == 0).all() and (a[0]["zeros"] != 0).all()


def test_sums_of_squares_equal_numpy():
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES.values()]
    want = [np.square(x.astype(np.float64)).sum() for x in arrays]
    np.testing.assert_allclose(sums_of_squares([jnp.asarray(x) for x in arrays]), want, rtol=1e-6)
