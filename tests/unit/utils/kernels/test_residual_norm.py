"""The kernels for residual connections and layer norm, interpreted, against the plain network."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssorl.agents import gpt
from ssorl.utils.kernels import residual_norm as residual

WIDTH = 32
INTERPRET = residual.Tune(rows=8, interpret=True)


def inputs_of(*lead):
    """Return (stream, product, bias, norm) and the cotangents of both results."""
    rng = np.random.default_rng(0)

    def normal(*shape, kind=jnp.float32):
        return jnp.asarray(rng.standard_normal(shape), kind)

    rows = (normal(*lead, WIDTH, kind=jnp.bfloat16) for _ in range(4))
    stream, product, dnew, dout = rows
    norm = {"gain": 1 + 0.3 * normal(*lead[:-2], WIDTH), "bias": normal(*lead[:-2], WIDTH)}
    return (stream, product, normal(*lead[:-2], WIDTH), norm), (dnew, dout)


def plain(stream, product, bias, norm, rate, seed):
    """Apply the functions of `gpt` in float32, rounded to bfloat16 only where the kernels round their outputs."""
    update = (product.astype(jnp.float32) + bias).astype(jnp.bfloat16)
    new = stream.astype(jnp.float32) + gpt._drop(update, rate, seed).astype(jnp.float32)
    new = new.astype(jnp.bfloat16)
    return new, gpt._norm(norm, new.astype(jnp.float32), jnp.bfloat16)


def compare(f, g, args, cotangents):
    def values_and_gradients(f):
        values, back = jax.vjp(f, *args)
        return values, back(cotangents)

    ours, theirs = (jax.tree.leaves(jax.jit(partial(values_and_gradients, h))()) for h in (f, g))
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        assert np.sqrt(np.square(a - b).mean() / np.square(b).mean()) < 0.005
        assert np.abs(a - b).max() < 0.02 * np.abs(b).max()


@pytest.mark.parametrize("tokens", [8, 7], ids=["whole tiles", "a partial tile"])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_the_kernels_equal_plain_jax(rate, tokens):
    """Values and gradients are equal except for the rounding of bfloat16; dropout masks are the same."""
    seed = jnp.uint32(7) if rate else None
    ours = partial(residual.add_and_norm, dropout=rate, seed=seed, tune=INTERPRET)
    compare(ours, partial(plain, rate=rate, seed=seed), *inputs_of(3, tokens))


def test_several_runs_at_once():
    args, cotangents = inputs_of(2, 3, 5)
    seeds = jnp.arange(2, dtype=jnp.uint32)

    def over_runs(f):
        return lambda *args: jax.vmap(lambda s, *args: f(*args, 0.3, s))(seeds, *args)

    compare(over_runs(partial(residual.add_and_norm, tune=INTERPRET)), over_runs(plain), args, cotangents)


@pytest.mark.parametrize("tokens", [8, 7], ids=["whole tiles", "a partial tile"])
@pytest.mark.parametrize("kind", [jnp.float32, jnp.bfloat16])
def test_the_norm_alone_equals_plain_jax(kind, tokens):
    """There are several runs; a float32 input has a float32 gradient."""
    (x, _, _, p), (dout, _) = inputs_of(2, 3, tokens)

    def plain(x, p):
        return gpt._norm(p, x.astype(jnp.float32), jnp.bfloat16)

    ours = jax.vmap(partial(residual.norm, tune=INTERPRET))
    compare(ours, jax.vmap(plain), (x.astype(kind), p), dout)


def test_supported_sizes():
    assert residual.suits(jnp.zeros((2, 512)), jnp.bfloat16)
    assert not residual.suits(jnp.zeros((2, 512)), jnp.float32)
    assert not residual.suits(jnp.zeros((2, 96)), jnp.bfloat16)


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
def test_the_kernels_lower_for_a_gpu():
    """At the paper's width the kernels lower to Triton; this needs no GPU."""
    tokens, x = (jax.ShapeDtypeStruct((3, 59, 512), kind) for kind in (jnp.float32, jnp.bfloat16))
    vector = jax.ShapeDtypeStruct((512,), jnp.float32)

    def loss(x, y, b, norm, seed):
        x = residual.norm(x, norm)
        new, out = residual.add_and_norm(x, y, b, norm, 0.1, seed)
        return (new.astype(jnp.float32) * out.astype(jnp.float32)).sum()

    gpu = jax.sharding.AbstractDevice("NVIDIA H200", None, "cuda")  # JAX 0.11 needs the GPU's name
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1,), ("x",), abstract_device=gpu)):
        grad, norm = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))), {"gain": vector, "bias": vector}
        traced = grad.trace(tokens, x, vector, norm, jax.ShapeDtypeStruct((), jnp.uint32))
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert all(f"residual_{name}_kernel" in text for name in ("forward", "backward", "norm_forward", "norm_backward"))
