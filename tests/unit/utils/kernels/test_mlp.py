import sys
import warnings
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssorl.training.scan import RUNS
from ssorl.utils import kernels
from ssorl.utils import networks as nn
from ssorl.utils.errors import SsorlError
from ssorl.utils.kernels import mlp as fused

CUT = fused.Cut(tile=32, chunk=64)
INTERPRET = fused.Tune(CUT, CUT, CUT, interpret=True)
ROWS = 75  # not a multiple of the tile


def network(n_in: int, hidden: tuple[int, ...], n_out: int, runs: int | None = None, rows: int = ROWS):
    """Weights, inputs and a cotangent; with a leading axis of runs if asked for."""
    keys = jax.random.split(jax.random.key(n_out), runs or 1)
    layers = jax.vmap(lambda k: nn.init_mlp(k, (n_in, *hidden, n_out)))(keys)
    x, dy = (jax.random.normal(jax.random.key(i), (runs or 1, rows, n)) for i, n in ((1, n_in), (2, n_out)))
    return jax.tree.map(lambda a: a if runs else a[0], (layers, x, dy))


def answers(f, layers, x, dy):
    """Values and gradients in layers and x."""

    def loss(layers, x):
        y = f(layers, x)
        return (y * dy).sum(), y

    return jax.grad(loss, argnums=(0, 1), has_aux=True)(layers, x)


def by_numpy(layers, x, dy):
    """The same in float64, written out."""
    w, b = ([np.asarray(layer[name], np.float64) for layer in layers] for name in ("w", "b"))
    hidden = [np.asarray(x, np.float64)]
    for i in range(len(w) - 1):
        hidden.append(np.maximum(hidden[-1] @ w[i] + b[i], 0))
    y, dz, grad = hidden[-1] @ w[-1] + b[-1], np.asarray(dy, np.float64), []
    for i in reversed(range(len(w))):
        grad.append({"w": hidden[i].T @ dz, "b": dz.sum(0)})
        dz = (dz @ w[i].T) * (hidden[i] > 0 if i else 1)
    return (grad[::-1], dz), y


OURS = jax.jit(partial(answers, partial(fused.fused_mlp, tune=INTERPRET)))  # compiled once a shape


def clear(layers, x):
    """The same network with biases that keep every hidden unit away from 0 at every row, on for some and off for some.

    Where rounding opens or shuts a unit, gradients differ by some per cent, which would hide an error of that size.
    """
    h, moved = np.asarray(x, np.float64), []
    for layer in layers[:-1]:
        z = h @ np.asarray(layer["w"], np.float64)
        middle = np.sort(z, axis=0)[len(z) // 5 : -(len(z) // 5)]
        widest = np.diff(middle, axis=0).argmax(0)[None]
        at = (np.take_along_axis(middle, widest, 0) + np.take_along_axis(middle, widest + 1, 0))[0] / 2
        moved.append(layer | {"b": jnp.asarray(-at, jnp.float32)})
        h = np.maximum(z - at, 0)
    return [*moved, layers[-1]]


def off(a, b) -> float:
    """The root mean square of the difference, relative to b's."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.sqrt(np.square(a - b).mean() / np.square(b).mean()))


@pytest.mark.parametrize(("n_in", "hidden", "n_out"), [(14, (128, 128), 1), (16, (128, 128, 128), 6)])
def test_values_and_gradients_are_those_of_the_plain_network(n_in, hidden, n_out):
    layers, x, dy = network(n_in, hidden, n_out)
    layers = clear(layers, x)
    ours = OURS(layers, x, dy)
    plain = jax.jit(partial(answers, partial(nn.mlp, half=True)))(layers, x, dy)
    exact = by_numpy(layers, x, dy)
    assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, plain)
    leaves = zip(*map(jax.tree.leaves, (ours, plain, exact)), strict=True)
    for mine, theirs, true in leaves:
        assert off(mine, theirs) < 0.01
        assert off(mine, true) < 1.1 * off(theirs, true) + 1e-6


def test_the_last_layer_is_not_in_half_precision():
    """With hidden layers of small whole numbers, exact in bfloat16, what is left is the last layer's error."""
    layers, x, dy = network(14, (128, 128), 1)
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(-1, 2, x.shape), jnp.float32)
    for layer, dense in zip(layers[:-1], (0.5, 0.1), strict=True):
        signs = rng.choice([-1, 0, 1], layer["w"].shape, p=[dense / 2, 1 - dense, dense / 2])
        layer |= {"w": jnp.asarray(signs, jnp.float32), "b": jnp.zeros(128)}
    (grad, _), y = OURS(layers, x, dy)
    (true, _), values = by_numpy(layers, x, dy)
    assert off(y, values) < 1e-4 and off(grad[-1]["w"], true[-1]["w"]) < 1e-4


def test_many_runs_are_one_kernel_with_their_own_weights():
    layers, x, dy = network(14, (128, 128), 1, runs=3)
    f = jax.vmap(partial(answers, partial(fused.fused_mlp, tune=INTERPRET)))
    together = jax.jit(f)(layers, x, dy)
    for i in range(3):
        alone = OURS(*jax.tree.map(lambda a, i=i: a[i], (layers, x, dy)))
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-5, atol=1e-5)
    assert str(jax.make_jaxpr(f)(layers, x, dy)).count("pallas_call[") == 2  # forward and backward, not one a run


def test_only_what_is_asked_for_is_computed():
    """A fixed network gives the gradient in x alone; a fixed input that in the weights; neither keeps anything."""
    layers, x, dy = network(14, (128, 128), 1)
    f = partial(fused.fused_mlp, tune=INTERPRET)
    tall = f"bf16[{ROWS},128]"  # a hidden layer in memory

    def written(g, *args):
        return str(jax.make_jaxpr(g)(*args)).count(tall)

    assert written(f, layers, x) == 0
    of_input = jax.grad(lambda x: (f(layers, x) * dy).sum())
    of_weights = jax.grad(lambda layers: (f(layers, x) * dy).sum())
    assert 0 < written(of_input, x) < written(of_weights, layers)
    (grad, dx), _ = OURS(layers, x, dy)
    np.testing.assert_allclose(jax.jit(of_input)(x), dx, rtol=1e-5, atol=1e-6)
    for a, b in zip(jax.tree.leaves(jax.jit(of_weights)(layers)), jax.tree.leaves(grad), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("n_in", "hidden", "n_out"), [(14, (128, 128), 1), (16, (128, 128, 128), 6)])
def test_a_sweep_over_many_tiles_gives_the_same_gradients(n_in, hidden, n_out):
    """Of several runs, with a last block that is not full; it writes less."""
    layers, x, dy = network(n_in, hidden, n_out, runs=2, rows=175)
    steps = replace(CUT, steps=3)
    swept = replace(INTERPRET, two=steps, three=steps, units=1)

    def of_weights(tune):
        return jax.vmap(jax.grad(lambda layers, x, dy: (fused.fused_mlp(layers, x, tune) * dy).sum()))

    ours, want = (jax.jit(of_weights(tune))(layers, x, dy) for tune in (swept, INTERPRET))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(want), strict=True):
        assert off(a, b) < 1e-6
    less, more = (
        str(jax.make_jaxpr(of_weights(t))(layers, x, dy)).count("bf16[2,175,128]") for t in (swept, INTERPRET)
    )
    assert 0 < less < more


def calls(f, *args):
    """The kernels of a program by their names, and how each is called."""

    def inside(jaxpr):
        for e in jaxpr.eqns:
            if e.primitive.name == "pallas_call":
                yield e.params["name"], e.params
            else:
                for p in e.params.values():
                    p = getattr(p, "jaxpr", p)
                    yield from inside(p) if hasattr(p, "eqns") else ()

    return list(inside(jax.make_jaxpr(f)(*args).jaxpr))


@pytest.mark.parametrize(
    ("rows", "want"),
    [(5120, 4), (31 * 5120, 24), (1024, 1)],  # TD3+BC's critics, CQL's, the fewest
)
def test_a_sweep_has_blocks_for_any_number_of_rows(rows, want):
    layers, x, dy = jax.eval_shape(lambda: network(14, (256, 256), 1, rows=rows))
    f = jax.grad(lambda layers, x, dy: (fused.fused_mlp(layers, x, fused.Tune(units=1)) * dy).sum())
    _, (name, sweep) = calls(f, layers, x, dy)
    assert name == "fused_sweep_kernel" and sweep["grid_mapping"].grid == (want, 2)


@pytest.mark.parametrize(
    ("hidden", "rows", "runs", "want"),
    [
        (2, 5120, None, None),  # TD3+BC's, 8 blocks each, on 132 multiprocessors
        (2, 5120, 5, None),
        (2, 5120, 6, 4),
        (2, 5120, 9, None),  # a second wave for 12 blocks
        (2, 5120, 30, 4),
        (3, 31 * 5120, None, 33),  # critics of CQL
        (3, 31 * 5120, 3, 22),
        (3, 5120, 5, None),  # its actor's size
    ],
)
def test_weights_are_swept_where_that_keeps_the_gpu_busy(hidden, rows, runs, want):
    """Two networks on the same rows, runs of them in a scan: neither number is seen by the function that decides."""
    layers, x, dy = jax.eval_shape(lambda: network(14, (256,) * hidden, 1, runs=2, rows=rows))
    x, dy = (jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in (x, dy))

    def step(layers, x, dy):
        two = jax.vmap(jax.grad(lambda layers, x: (fused.fused_mlp(layers, x) * dy).sum()), (0, None))
        return jax.lax.scan(lambda layers, _: (two(layers, x), None), layers, length=3)[0]

    if runs:
        step = jax.vmap(step)
        layers, x, dy = jax.tree.map(lambda a: jax.ShapeDtypeStruct((runs, *a.shape), a.dtype), (layers, x, dy))
    found = calls(step, layers, x, dy)
    back = ["backward"] if not want else ["sweep"] if hidden == 2 else ["backward", "sweep"]
    assert [name for name, _ in found] == [f"fused_{name}_kernel" for name in ["forward", *back]]
    if want:
        assert found[-1][1]["grid_mapping"].grid == (*(() if runs is None else (runs,)), 2, want, 2)


def test_in_a_scan_with_leading_axes():
    layers, x, _ = network(14, (128, 128), 1)
    x = x.reshape(3, 25, 14)

    def step(layers, _):
        loss, grad = jax.value_and_grad(lambda p: jnp.square(fused.fused_mlp(p, x, INTERPRET) - 1).mean())(layers)
        return jax.tree.map(lambda p, g: p - 0.1 * g, layers, grad), loss

    _, losses = jax.jit(lambda p: jax.lax.scan(step, p, length=4), donate_argnums=0)(layers)
    assert np.all(np.diff(losses) < 0)


def test_not_a_number_is_not_hidden():
    layers, x, dy = network(14, (128, 128), 1)
    _, y = OURS(layers, x.at[3, 0].set(jnp.nan), dy)
    assert np.isnan(y[:, 0]).tolist() == [i == 3 for i in range(ROWS)]


@pytest.mark.parametrize(
    ("hidden", "n_in", "n_out", "fits"),
    [
        ((256, 256), 14, 1, True),
        ((128, 128, 128), 63, 16, True),
        ((128, 256), 14, 1, False),  # unequal
        ((96, 96), 14, 1, False),  # not a power of two
        ((512, 512), 14, 1, False),  # too wide for the registers
        ((256,), 14, 1, False),  # too few layers
        ((256,) * 4, 14, 1, False),  # too many
        ((256, 256), 64, 1, False),  # inputs
        ((256, 256), 14, 17, False),  # outputs
    ],
)
def test_what_does_not_suit_is_left_to_the_plain_network(hidden, n_in, n_out, fits):
    layers = jax.eval_shape(lambda: nn.init_mlp(jax.random.key(0), (n_in, *hidden, n_out)))
    x = jax.ShapeDtypeStruct((2048, n_in), jnp.float32)
    assert fused.suits(layers, x) == fits  # type: ignore[arg-type]
    assert ("pallas_call" in str(jax.make_jaxpr(partial(fused.fused_mlp, tune=INTERPRET))(layers, x))) == fits


@pytest.mark.parametrize(
    ("hidden", "n_in", "n_out", "want"),
    [
        ((256, 256), 14, 1, 3),
        ((256, 256, 256), 23, 1, 3),  # CQL's critic on walker2d
        ((256, 256, 256), 17, 12, 2),  # its actor: three buffers would need 232 KB, a block can have 227
        ((256, 256, 256), 63, 16, 2),
    ],
)
def test_each_kernel_has_a_cut_of_its_own_that_fits(hidden, n_in, n_out, want):
    layers, x, dy = jax.eval_shape(lambda: network(n_in, hidden, n_out, rows=1024))

    def cuts(*argnums):
        """Tiles and buffers, forward and back."""
        f = jax.grad(lambda layers, x, dy: (fused.fused_mlp(layers, x) * dy).sum(), argnums)
        told = [params for _, params in calls(f, layers, x, dy)]
        return [(1024 // params["grid_mapping"].grid[0], params["compiler_params"].num_stages) for params in told]

    assert cuts(0) == cuts(0, 1) == [(64, 3), (128, want)]
    assert cuts(1) == [(64, 3), (64, 2)]


# When it is used -------------------------------------------------------------------------------------------


LAYERS, X, _ = network(14, (128, 128), 1, rows=1024)


def used(x=X, half=True, **options):
    return "pallas_call" in str(jax.make_jaxpr(partial(nn.mlp, half=half, **options))(LAYERS, x))


@pytest.fixture
def here(monkeypatch):
    """Sets SSORL_FUSED and what this machine's devices say they are."""

    def set_up(choice, *capabilities):
        (monkeypatch.delenv if choice is None else partial(monkeypatch.setenv, value=choice))("SSORL_FUSED")
        devices = [SimpleNamespace(**({} if c is None else {"compute_capability": c})) for c in capabilities]
        monkeypatch.setattr(jax, "local_devices", lambda: devices)
        monkeypatch.setattr(jax, "default_backend", lambda: "cpu" if None in capabilities else "gpu")

    monkeypatch.setenv("SSORL_FUSED", "0")
    return set_up


@pytest.fixture
def no_fused(monkeypatch):
    """As if nothing had imported the kernels yet."""
    monkeypatch.delitem(sys.modules, "ssorl.utils.kernels.mlp")
    monkeypatch.delattr(kernels, "mlp")


@pytest.mark.parametrize(
    ("choice", "capabilities", "want"),
    [
        (None, ["9.0"], True),
        (None, ["9.0", "9.0"], True),
        (None, ["9.0", "8.0"], False),  # one program for all
        (None, ["8.0"], False),
        (None, ["10.0"], False),
        (None, ["12.0"], False),  # newer, with less shared memory
        (None, ["gfx942"], False),  # AMD
        (None, [None], False),  # a CPU
        ("0", ["9.0"], False),
        ("1", ["9.0"], True),
        ("1", ["8.0"], True),  # at one's own risk
        ("1", [None], False),
        ("interpret", [None], True),
    ],
)
def test_it_is_used_where_it_was_measured_or_where_one_wants_it(here, choice, capabilities, want):
    here(choice, *capabilities)
    assert used() == want


def test_a_program_told_to_run_elsewhere_does_without(here):
    here(None, "9.0")
    with jax.default_device(jax.devices("cpu")[0]):
        assert not used()


def test_only_plain_networks_in_half_precision_with_rows_enough_use_it(here):
    here("interpret", None)
    assert used() and used(dropout=0.1) and used(X.reshape(4, 256, 14))
    key = jax.random.key(0)
    assert not used(half=False) and not used(norm=True) and not used(dropout=0.1, key=key) and not used(X[:-1])


def test_another_word_is_refused(here):
    here("yes", "9.0")
    with pytest.raises(SsorlError, match="SSORL_FUSED is 'yes'"):
        used()


def test_a_cpu_never_imports_it(here, no_fused):
    here(None, None)
    assert not used() and "ssorl.utils.kernels.mlp" not in sys.modules


def test_a_jax_without_it_has_the_plain_network_unless_told_otherwise(here, no_fused, monkeypatch):
    monkeypatch.delattr(jax.experimental.pallas, "triton")
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    here(None, "9.0")
    assert not used()
    here("1", "9.0")
    with pytest.raises(SsorlError, match=r"SSORL_FUSED is 1, but this JAX .* has no Triton"):
        used()


def test_no_other_warning_than_its_own_is_hushed(here):
    here(None, "9.0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernels.wanted("mlp.fused_mlp", LAYERS, X)
        warnings.warn("The Pallas Triton backend is deprecated and will be removed", DeprecationWarning, stacklevel=1)
        with pytest.raises(DeprecationWarning):
            warnings.warn("Pallas is deprecated", DeprecationWarning, stacklevel=1)


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("hidden", "tune", "argnums", "want"),
    [
        ((256, 256), fused.Tune(), (0, 1), ["backward"]),
        ((256, 256, 256), fused.Tune(), (0, 1), ["backward"]),
        ((256, 256), fused.Tune(), (0,), ["backward"]),
        ((256, 256), fused.Tune(units=1), (0, 1), ["backward"]),
        ((256, 256), fused.Tune(units=1), (0,), ["sweep"]),
        ((256, 256, 256), fused.Tune(units=1), (0,), ["backward", "sweep"]),
    ],
)
def test_it_lowers_for_a_gpu(hidden, tune, argnums, want):
    layers, x, dy = jax.eval_shape(lambda: network(14, hidden, 1, runs=2, rows=256))
    gpu = jax.sharding.AbstractDevice("NVIDIA H200", None, "cuda")  # JAX 0.11 asks which one it is for
    f = jax.grad(lambda layers, x, dy: (fused.fused_mlp(layers, x, tune) * dy).sum(), argnums)
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1,), ("x",), abstract_device=gpu)):
        text = jax.jit(jax.vmap(f)).trace(layers, x, dy).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("xla.gpu.triton") + text.count("triton_kernel_call") == 1 + len(want)
    assert all(f"fused_{name}_kernel" in text for name in ("forward", *want))


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
def test_each_of_several_gpus_has_the_kernels_of_its_own_runs():
    gpu = jax.sharding.AbstractDevice("NVIDIA H200", None, "cuda")
    mesh = jax.sharding.AbstractMesh((2,), ("runs",), abstract_device=gpu)
    cut = jax.sharding.NamedSharding(mesh, RUNS)
    like = jax.eval_shape(lambda: network(14, (256, 256), 1, runs=6, rows=1024))
    like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=cut), like)
    f = jax.vmap(partial(answers, fused.fused_mlp))
    f = jax.shard_map(f, mesh=mesh, in_specs=RUNS, out_specs=RUNS, check_vma=False)  # as in `scan.chunk`
    with jax.sharding.use_abstract_mesh(mesh):
        text = jax.jit(f).trace(*like).lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in text.splitlines() if "xla.gpu.triton" in line or "triton_kernel_call" in line]
    assert len(calls) == 2 and all("tensor<3x1024x14xf32>" in call and "tensor<6x" not in call for call in calls)
