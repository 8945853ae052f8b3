"""The attention kernels, interpreted, against the plain network's attention."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssorl.agents import gpt
from ssorl.utils import kernels
from ssorl.utils.kernels import attention

INTERPRET = attention.Tune(interpret=True)
BATCH, TOKENS, HEADS, SIZE = 3, 11, 2, 16
ALL, STATES = slice(None), slice(1, None, 3)
RATE = 0.3


def inputs_of(queries, runs=None, tokens=TOKENS):
    """Return parts without their biases, biases and a cotangent."""
    n = len(range(tokens)[queries])
    parts = [(tokens, 3)] if n == tokens else [(n, 1), (tokens, 2)]
    lead = () if runs is None else (runs,)

    def normal(seed, *shape):
        return jnp.asarray(np.random.default_rng(seed).standard_normal((*lead, *shape)), jnp.float32)

    x = tuple(normal(i, BATCH, *part, HEADS, SIZE).astype(jnp.bfloat16) for i, part in enumerate(parts))
    bias = tuple(0.5 * normal(2 + i, k, HEADS, SIZE) for i, (_, k) in enumerate(parts))
    return x, bias, normal(5, BATCH, n, HEADS, SIZE).astype(jnp.bfloat16)


def plain(parts, biases, queries, rate, seed):
    """Add the biases and apply `gpt._attention`, in float32."""
    sums = [(x.astype(jnp.float32) + b).astype(jnp.bfloat16) for x, b in zip(parts, biases, strict=True)]
    sums = [x.astype(jnp.float32) for x in sums]
    q, k, v = (x[..., i, :, :] for x in sums for i in range(x.shape[-3]))
    position = np.arange(k.shape[-3])
    return gpt._attention(q, k, v, position[queries][:, None] >= position, rate, seed)


def values_and_gradients(f, parts, biases, dy):
    """Return the result and its gradients."""
    y, back = jax.vjp(f, parts, biases)
    return y, back(dy.astype(y.dtype))


def compare(f, g, parts, biases, dy, limit):
    both = (jax.tree.leaves(jax.jit(partial(values_and_gradients, h))(parts, biases, dy)) for h in (f, g))
    for a, b in zip(*both, strict=True):
        assert a.shape == b.shape
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        assert np.sqrt(np.square(a - b).mean() / np.square(b).mean()) < limit
        assert np.abs(a - b).max() < 4 * limit * np.abs(b).max()


@pytest.mark.parametrize("rate", [0.0, RATE])
@pytest.mark.parametrize("queries", [ALL, STATES], ids=["every token", "states"])
def test_the_kernels_equal_plain_attention(queries, rate):
    """Values and gradients equal those of float32, except for the rounding of bfloat16; dropout masks are the same."""
    seed = jnp.uint32(7) if rate else None
    ours = partial(attention.attention, queries=queries, dropout=rate, seed=seed, tune=INTERPRET)
    compare(ours, partial(plain, queries=queries, rate=rate, seed=seed), *inputs_of(queries), limit=0.005)


def test_another_seed_has_another_dropout_mask():
    parts, biases, _ = inputs_of(ALL)
    a, b = (attention.attention(parts, biases, ALL, RATE, jnp.uint32(seed), INTERPRET) for seed in (1, 2))
    assert np.abs(a.astype(jnp.float32) - b.astype(jnp.float32)).max() > 0.1


def test_several_runs_at_once():
    """Each run has its own dropout mask, as in plain JAX under `vmap`."""
    parts, biases, dy = inputs_of(STATES, runs=2)
    seeds = jnp.arange(2, dtype=jnp.uint32)

    def over_runs(f):
        return lambda p, b: jax.vmap(lambda p, b, s: f(p, b, seed=s))(p, b, seeds)

    ours = over_runs(partial(attention.attention, queries=STATES, dropout=RATE, tune=INTERPRET))
    compare(ours, over_runs(partial(plain, queries=STATES, rate=RATE)), parts, biases, dy, limit=0.005)


def test_no_leading_axes():
    """Inputs without leading axes, as when acting."""
    parts, biases, _ = inputs_of(ALL)
    whole = attention.attention(parts, biases, tune=INTERPRET)
    alone = attention.attention((parts[0][1],), biases, tune=INTERPRET)
    np.testing.assert_array_equal(alone, whole[1])


# --- in the network ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network():
    rng = np.random.default_rng(0)
    shapes = gpt.initial_gpt(3, 2, HEADS * SIZE, layers=2, max_time=8)
    params = jax.tree.map(
        lambda d: (d.mean + 0.1 * rng.standard_normal(d.shape)).astype(np.float32),
        shapes,
        is_leaf=lambda d: isinstance(d, gpt.Initial),
    )
    obs, act = (rng.standard_normal((BATCH, 4, n)).astype(np.float32) for n in (3, 2))
    return params, (obs[..., 0], obs, act, np.tile(np.arange(4, dtype=np.int32), (BATCH, 1)))


def test_the_network_is_the_same(network, monkeypatch):
    """The network's outputs are the same with and without kernels, also with dropout."""
    params, inputs = network

    def states(choice):
        monkeypatch.setenv("SSORL_FUSED", choice)
        # A new function each time, so that JAX does not reuse the program compiled for the other choice.
        return jax.jit(lambda p: gpt.gpt(p, *inputs, HEADS, STATES, 0.1, jax.random.key(1), True))(params)

    ours, theirs = states("interpret"), states("0")
    assert 0 < np.abs(ours - theirs).max() < 0.05
    assert np.sqrt(np.square(ours - theirs).mean()) < 0.01


@pytest.mark.parametrize(
    ("choice", "half", "want"), [(None, True, 16), (None, False, 0), ("0", True, 0), ("1", True, 16)]
)
def test_when_the_kernels_are_used(network, choice, half, want, monkeypatch):
    """Each pass uses three kernels per block (attention, two norms) and two before the blocks."""
    params, inputs = network
    monkeypatch.setenv("SSORL_FUSED", choice or "")
    if choice is None:
        monkeypatch.delenv("SSORL_FUSED")
    monkeypatch.setattr(kernels, "is_gpu", lambda: True)
    monkeypatch.setattr(kernels, "is_measured", lambda: True)
    program = jax.make_jaxpr(jax.grad(lambda p: gpt.gpt(p, *inputs, HEADS, STATES, half=half).sum()))(params)
    assert str(program).count("pallas_call[") == want


def test_supported_sizes():
    assert attention.suits(SIZE, TOKENS, jnp.bfloat16) and attention.suits(128, 64, jnp.bfloat16)
    assert not attention.suits(24, TOKENS, jnp.bfloat16) and not attention.suits(SIZE, 65, jnp.bfloat16)
    assert not attention.suits(SIZE, TOKENS, jnp.float32)


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize("queries", [ALL, STATES], ids=["every token", "states"])
def test_the_kernels_lower_for_a_gpu(queries):
    """At the paper's size the kernels lower to Triton; this needs no GPU."""
    n = len(range(59)[queries])
    cut = [(59, 3)] if n == 59 else [(n, 1), (59, 2)]
    parts = tuple(jax.ShapeDtypeStruct((2, *c, 4, 128), jnp.bfloat16) for c in cut)
    biases = tuple(jax.ShapeDtypeStruct((c[1], 4, 128), jnp.float32) for c in cut)

    def loss(parts, biases, seed):
        return jnp.square(attention.attention(parts, biases, queries, 0.1, seed).astype(jnp.float32)).sum()

    gpu = jax.sharding.AbstractDevice("NVIDIA H200", None, "cuda")  # JAX 0.11 needs the GPU's name
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1,), ("x",), abstract_device=gpu)):
        traced = jax.jit(jax.grad(loss, argnums=(0, 1))).trace(parts, biases, jax.ShapeDtypeStruct((), jnp.uint32))
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "attention_forward_kernel" in text and "attention_backward_kernel" in text
