"""The kernels between two products of a transformer, interpreted, against the plain network."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssorl.agents import gpt
from ssorl.utils.kernels import residual_norm as residual

WIDTH = 32
INTERPRET = residual.Tune(rows=8, interpret=True)


def given(*lead):
    """Stream, product, bias and norm; and cotangents of both results."""
    rng = np.random.default_rng(0)

    def drawn(*shape, kind=jnp.float32):
        return jnp.asarray(rng.standard_normal(shape), kind)

    rows = (drawn(*lead, WIDTH, kind=jnp.bfloat16) for _ in range(4))
    stream, product, dnew, dout = rows
    norm = {"gain": 1 + 0.3 * drawn(*lead[:-2], WIDTH), "bias": drawn(*lead[:-2], WIDTH)}
    return (stream, product, drawn(*lead[:-2], WIDTH), norm), (dnew, dout)


def plain(stream, product, bias, norm, rate, seed):
    """By the parts of `gpt`, in float32 but where the kernels round what they give: elsewhere they need not."""
    more = (product.astype(jnp.float32) + bias).astype(jnp.bfloat16)
    new = stream.astype(jnp.float32) + gpt._drop(more, rate, seed).astype(jnp.float32)
    new = new.astype(jnp.bfloat16)
    return new, gpt._norm(norm, new.astype(jnp.float32), jnp.bfloat16)


def compare(f, g, args, cotangents):
    def answers(f):
        found, back = jax.vjp(f, *args)
        return found, back(cotangents)

    ours, theirs = (jax.tree.leaves(jax.jit(partial(answers, h))()) for h in (f, g))
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        assert np.sqrt(np.square(a - b).mean() / np.square(b).mean()) < 0.005
        assert np.abs(a - b).max() < 0.02 * np.abs(b).max()


@pytest.mark.parametrize("tokens", [8, 7], ids=["whole tiles", "a rest"])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_it_is_the_plain_one(rate, tokens):
    """In values and gradients, to the rounding of bfloat16; the coins are those of the plain one."""
    seed = jnp.uint32(7) if rate else None
    ours = partial(residual.add_and_norm, dropout=rate, seed=seed, tune=INTERPRET)
    compare(ours, partial(plain, rate=rate, seed=seed), *given(3, tokens))


def test_runs_at_once():
    args, cotangents = given(2, 3, 5)
    seeds = jnp.arange(2, dtype=jnp.uint32)

    def every(f):
        return lambda *args: jax.vmap(lambda s, *args: f(*args, 0.3, s))(seeds, *args)

    compare(every(partial(residual.add_and_norm, tune=INTERPRET)), every(plain), args, cotangents)


@pytest.mark.parametrize("tokens", [8, 7], ids=["whole tiles", "a rest"])
@pytest.mark.parametrize("kind", [jnp.float32, jnp.bfloat16])
def test_the_norm_alone_is_the_plain_one(kind, tokens):
    """Of several runs; in float32 comes in float32 back."""
    (x, _, _, p), (dout, _) = given(2, 3, tokens)

    def plain(x, p):
        return gpt._norm(p, x.astype(jnp.float32), jnp.bfloat16)

    ours = jax.vmap(partial(residual.norm, tune=INTERPRET))
    compare(ours, jax.vmap(plain), (x.astype(kind), p), dout)


def test_what_suits():
    assert residual.suits(jnp.zeros((2, 512)), jnp.bfloat16)
    assert not residual.suits(jnp.zeros((2, 512)), jnp.float32)
    assert not residual.suits(jnp.zeros((2, 96)), jnp.bfloat16)


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
def test_it_lowers_for_a_gpu():
    """At the paper's width; no GPU is needed to find out what Triton's dialect cannot say."""
    tokens, x = (jax.ShapeDtypeStruct((3, 59, 512), kind) for kind in (jnp.float32, jnp.bfloat16))
    vector = jax.ShapeDtypeStruct((512,), jnp.float32)

    def loss(x, y, b, norm, seed):
        x = residual.norm(x, norm)
        new, out = residual.add_and_norm(x, y, b, norm, 0.1, seed)
        return (new.astype(jnp.float32) * out.astype(jnp.float32)).sum()

    gpu = jax.sharding.AbstractDevice("NVIDIA H200", None, "cuda")  # JAX 0.11 asks which one it is for
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1,), ("x",), abstract_device=gpu)):
        grad, norm = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))), {"gain": vector, "bias": vector}
        traced = grad.trace(tokens, x, vector, norm, jax.ShapeDtypeStruct((), jnp.uint32))
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert all(f"residual_{name}_kernel" in text for name in ("forward", "backward", "norm_forward", "norm_backward"))
