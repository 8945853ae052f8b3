"""The perceptron's kernels, interpreted, against the plain network and NumPy; and when they are used."""

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
from ssorl.utils import kernels, networks
from ssorl.utils.errors import SsorlError
from ssorl.utils.kernels import mlp as fused

CUT = fused.Cut(tile=32, chunk=64)
INTERPRET = fused.Tune(CUT, CUT, CUT, interpret=True)
ROWS = 75  # not a multiple of the tile


def network(n_in: int, hidden: tuple[int, ...], n_out: int, runs: int | None = None, rows: int = ROWS):
    """Return weights, inputs and a cotangent, with a leading axis of runs if `runs` is given."""
    keys = jax.random.split(jax.random.key(n_out), runs or 1)
    layers = jax.vmap(lambda k: networks.init_mlp(k, (n_in, *hidden, n_out)))(keys)
    x, dy = (jax.random.normal(jax.random.key(i), (runs or 1, rows, n)) for i, n in ((1, n_in), (2, n_out)))
    return jax.tree.map(lambda a: a if runs else a[0], (layers, x, dy))


def values_and_gradients(f, layers, x, dy):
    """Return the gradients of layers and x, and the values."""

    def loss(layers, x):
        y = f(layers, x)
        return (y * dy).sum(), y

    return jax.grad(loss, argnums=(0, 1), has_aux=True)(layers, x)


def by_numpy(layers, x, dy):
    """Return the same from NumPy in float64."""
    w, b = ([np.asarray(layer[name], np.float64) for layer in layers] for name in ("w", "b"))
    hidden = [np.asarray(x, np.float64)]
    for i in range(len(w) - 1):
        hidden.append(np.maximum(hidden[-1] @ w[i] + b[i], 0))
    y, dz, grad = hidden[-1] @ w[-1] + b[-1], np.asarray(dy, np.float64), []
    for i in reversed(range(len(w))):
        grad.append({"w": hidden[i].T @ dz, "b": dz.sum(0)})
        dz = (dz @ w[i].T) * (hidden[i] > 0 if i else 1)
    return (grad[::-1], dz), y


OURS = jax.jit(partial(values_and_gradients, partial(fused.fused_mlp, tune=INTERPRET)))  # compiled once per shape


def away_from_zero(layers, x):
    """Return the network with biases that keep every hidden unit away from 0 at every row, active for some rows only.

    If rounding switched a unit on or off, gradients would differ by a few per cent and hide errors of that size.
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


def relative_error(a, b) -> float:
    """Return the root mean square of a - b, relative to that of b."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.sqrt(np.square(a - b).mean() / np.square(b).mean()))


@pytest.mark.parametrize(("n_in", "hidden", "n_out"), [(14, (128, 128), 1), (16, (128, 128, 128), 6)])
def test_values_and_gradients_equal_those_of_the_plain_network(n_in, hidden, n_out):
    layers, x, dy = network(n_in, hidden, n_out)
    layers = away_from_zero(layers, x)
    ours = OURS(layers, x, dy)
    plain = jax.jit(partial(values_and_gradients, partial(networks.mlp, half=True)))(layers, x, dy)
    exact = by_numpy(layers, x, dy)
    assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, plain)
    leaves = zip(*map(jax.tree.leaves, (ours, plain, exact)), strict=True)
    for fast, slow, true in leaves:
        assert relative_error(fast, slow) < 0.01
        assert relative_error(fast, true) < 1.1 * relative_error(slow, true) + 1e-6


def test_the_last_layer_is_not_in_half_precision():
    """Hidden layers of small integers are exact in bfloat16, so only the last layer has an error."""
    layers, x, dy = network(14, (128, 128), 1)
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(-1, 2, x.shape), jnp.float32)
    for layer, dense in zip(layers[:-1], (0.5, 0.1), strict=True):
        signs = rng.choice([-1, 0, 1], layer["w"].shape, p=[dense / 2, 1 - dense, dense / 2])
        layer |= {"w": jnp.asarray(signs, jnp.float32), "b": jnp.zeros(128)}
    (grad, _), y = OURS(layers, x, dy)
    (true, _), values = by_numpy(layers, x, dy)
    assert relative_error(y, values) < 1e-4 and relative_error(grad[-1]["w"], true[-1]["w"]) < 1e-4


def test_many_runs_are_one_kernel_with_their_own_weights():
    layers, x, dy = network(14, (128, 128), 1, runs=3)
    f = jax.vmap(partial(values_and_gradients, partial(fused.fused_mlp, tune=INTERPRET)))
    together = jax.jit(f)(layers, x, dy)
    for i in range(3):
        alone = OURS(*jax.tree.map(lambda a, i=i: a[i], (layers, x, dy)))
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-5, atol=1e-5)
    assert str(jax.make_jaxpr(f)(layers, x, dy)).count("pallas_call[") == 2  # forward and backward, not one per run


def test_only_wanted_gradients_are_computed():
    """With fixed weights that is the gradient of x, with fixed inputs that of the weights."""
    layers, x, dy = network(14, (128, 128), 1)
    f = partial(fused.fused_mlp, tune=INTERPRET)
    hidden_layer = f"bf16[{ROWS},128]"  # in memory

    def written(g, *args):
        return str(jax.make_jaxpr(g)(*args)).count(hidden_layer)

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
    """The sweep covers several runs and a last block that is not full; it writes fewer arrays."""
    layers, x, dy = network(n_in, hidden, n_out, runs=2, rows=175)
    steps = replace(CUT, steps=3)
    swept = replace(INTERPRET, two=steps, three=steps, units=1)

    def of_weights(tune):
        return jax.vmap(jax.grad(lambda layers, x, dy: (fused.fused_mlp(layers, x, tune) * dy).sum()))

    ours, want = (jax.jit(of_weights(tune))(layers, x, dy) for tune in (swept, INTERPRET))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(want), strict=True):
        assert relative_error(a, b) < 1e-6
    less, more = (
        str(jax.make_jaxpr(of_weights(t))(layers, x, dy)).count("bf16[2,175,128]") for t in (swept, INTERPRET)
    )
    assert 0 < less < more


def calls(f, *args):
    """Return names and parameters of a program's kernels."""

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
    [(5120, 4), (31 * 5120, 24), (1024, 1)],  # TD3+BC's critics, CQL's, the minimum
)
def test_the_number_of_blocks_of_a_sweep_fits_the_rows(rows, want):
    layers, x, dy = jax.eval_shape(lambda: network(14, (256, 256), 1, rows=rows))
    f = jax.grad(lambda layers, x, dy: (fused.fused_mlp(layers, x, fused.Tune(units=1)) * dy).sum())
    _, (name, sweep) = calls(f, layers, x, dy)
    assert name == "fused_sweep_kernel" and sweep["grid_mapping"].grid == (want, 2)


@pytest.mark.parametrize(
    ("hidden", "rows", "runs", "want"),
    [
        (2, 5120, None, None),  # TD3+BC's critics, 8 blocks each, on 132 multiprocessors
        (2, 5120, 5, None),
        (2, 5120, 6, 4),
        (2, 5120, 9, None),  # a second wave would have only 12 blocks
        (2, 5120, 30, 4),
        (3, 31 * 5120, None, 33),  # critics of CQL
        (3, 31 * 5120, 3, 22),
        (3, 5120, 5, None),  # size of CQL's actor
    ],
)
def test_a_sweep_is_used_where_it_keeps_the_gpu_busy(hidden, rows, runs, want):
    """Two networks on the same rows, with several runs in a scan: the decision counts both `vmap`s."""
    layers, x, dy = jax.eval_shape(lambda: network(14, (256,) * hidden, 1, runs=2, rows=rows))
    x, dy = (jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in (x, dy))

    def step(layers, x, dy):
        two = jax.vmap(jax.grad(lambda layers, x: (fused.fused_mlp(layers, x) * dy).sum()), (0, None))
        return jax.lax.scan(lambda layers, _: (two(layers, x), None), layers, length=3)[0]

    if runs:
        step = jax.vmap(step)
        layers, x, dy = jax.tree.map(lambda a: jax.ShapeDtypeStruct((runs, *a.shape), a.dtype), (layers, x, dy))
    programs = calls(step, layers, x, dy)
    backward = ["backward"] if not want else ["sweep"] if hidden == 2 else ["backward", "sweep"]
    assert [name for name, _ in programs] == [f"fused_{name}_kernel" for name in ["forward", *backward]]
    if want:
        assert programs[-1][1]["grid_mapping"].grid == (*(() if runs is None else (runs,)), 2, want, 2)


def test_training_in_a_scan_with_leading_axes_of_the_input():
    layers, x, _ = network(14, (128, 128), 1)
    x = x.reshape(3, 25, 14)

    def step(layers, _):
        loss, grad = jax.value_and_grad(lambda p: jnp.square(fused.fused_mlp(p, x, INTERPRET) - 1).mean())(layers)
        return jax.tree.map(lambda p, g: p - 0.1 * g, layers, grad), loss

    _, losses = jax.jit(lambda p: jax.lax.scan(step, p, length=4), donate_argnums=0)(layers)
    assert np.all(np.diff(losses) < 0)


def test_nan_in_an_input_is_nan_in_its_output():
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
def test_unsupported_networks_use_plain_jax(hidden, n_in, n_out, fits):
    layers = jax.eval_shape(lambda: networks.init_mlp(jax.random.key(0), (n_in, *hidden, n_out)))
    x = jax.ShapeDtypeStruct((2048, n_in), jnp.float32)
    assert fused.suits(layers, x) == fits  # type: ignore[arg-type]
    assert ("pallas_call" in str(jax.make_jaxpr(partial(fused.fused_mlp, tune=INTERPRET))(layers, x))) == fits


@pytest.mark.parametrize(
    ("hidden", "n_in", "n_out", "want"),
    [
        ((256, 256), 14, 1, 3),
        ((256, 256, 256), 23, 1, 3),  # CQL's critic on walker2d
        ((256, 256, 256), 17, 12, 2),  # CQL's actor: three buffers would need 232 KB, a block can have 227
        ((256, 256, 256), 63, 16, 2),
    ],
)
def test_each_kernel_has_its_own_cut_that_fits_into_memory(hidden, n_in, n_out, want):
    layers, x, dy = jax.eval_shape(lambda: network(n_in, hidden, n_out, rows=1024))

    def cuts(*argnums):
        """Return (tile, buffers) of the forward and the backward kernel."""
        f = jax.grad(lambda layers, x, dy: (fused.fused_mlp(layers, x) * dy).sum(), argnums)
        kernels = [params for _, params in calls(f, layers, x, dy)]
        return [(1024 // params["grid_mapping"].grid[0], params["compiler_params"].num_stages) for params in kernels]

    assert cuts(0) == cuts(0, 1) == [(64, 3), (128, want)]
    assert cuts(1) == [(64, 3), (64, 2)]


# When kernels are used --------------------------------------------------------------------------------------


LAYERS, X, _ = network(14, (128, 128), 1, rows=1024)


def uses_kernel(x=X, half=True, **options):
    return "pallas_call" in str(jax.make_jaxpr(partial(networks.mlp, half=half, **options))(LAYERS, x))


@pytest.fixture
def set_machine(monkeypatch):
    """Return a function that sets SSORL_FUSED and the compute capabilities of this machine's devices."""

    def set_up(choice, *capabilities):
        (monkeypatch.delenv if choice is None else partial(monkeypatch.setenv, value=choice))("SSORL_FUSED")
        devices = [SimpleNamespace(**({} if c is None else {"compute_capability": c})) for c in capabilities]
        monkeypatch.setattr(jax, "local_devices", lambda: devices)
        monkeypatch.setattr(jax, "default_backend", lambda: "cpu" if None in capabilities else "gpu")

    monkeypatch.setenv("SSORL_FUSED", "0")
    return set_up


@pytest.fixture
def no_fused(monkeypatch):
    """Undo the import of the kernels."""
    monkeypatch.delitem(sys.modules, "ssorl.utils.kernels.mlp")
    monkeypatch.delattr(kernels, "mlp")


@pytest.mark.parametrize(
    ("choice", "capabilities", "want"),
    [
        (None, ["9.0"], True),
        (None, ["9.0", "9.0"], True),
        (None, ["9.0", "8.0"], False),  # the program is the same for all devices
        (None, ["8.0"], False),
        (None, ["10.0"], False),
        (None, ["12.0"], False),  # newer, with less shared memory
        (None, ["gfx942"], False),  # AMD
        (None, [None], False),  # a CPU
        ("0", ["9.0"], False),
        ("1", ["9.0"], True),
        ("1", ["8.0"], True),  # at the user's risk
        ("1", [None], False),
        ("interpret", [None], True),
    ],
)
def test_kernels_are_used_on_measured_gpus_or_if_the_user_wants_them(set_machine, choice, capabilities, want):
    set_machine(choice, *capabilities)
    assert uses_kernel() == want


def test_a_program_for_the_default_device_cpu_uses_plain_jax(set_machine):
    set_machine(None, "9.0")
    with jax.default_device(jax.devices("cpu")[0]):
        assert not uses_kernel()


def test_only_networks_in_half_precision_without_norm_and_with_enough_rows_use_kernels(set_machine):
    set_machine("interpret", None)
    assert uses_kernel() and uses_kernel(dropout=0.1) and uses_kernel(X.reshape(4, 256, 14))
    key = jax.random.key(0)
    assert (
        not uses_kernel(half=False)
        and not uses_kernel(norm=True)
        and not uses_kernel(dropout=0.1, key=key)
        and not uses_kernel(X[:-1])
    )


def test_an_unknown_value_of_the_variable_raises_an_error(set_machine):
    set_machine("yes", "9.0")
    with pytest.raises(SsorlError, match="SSORL_FUSED is 'yes'"):
        uses_kernel()


def test_a_cpu_does_not_import_the_kernels(set_machine, no_fused):
    set_machine(None, None)
    assert not uses_kernel() and "ssorl.utils.kernels.mlp" not in sys.modules


def test_a_jax_without_triton_uses_plain_jax_unless_the_user_wants_kernels(set_machine, no_fused, monkeypatch):
    monkeypatch.delattr(jax.experimental.pallas, "triton")
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    set_machine(None, "9.0")
    assert not uses_kernel()
    set_machine("1", "9.0")
    with pytest.raises(SsorlError, match=r"SSORL_FUSED is 1, but JAX .* has no Triton"):
        uses_kernel()


def test_only_the_deprecation_of_triton_is_ignored(set_machine):
    set_machine(None, "9.0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernels.kernel_for("mlp.fused_mlp", LAYERS, X)
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
def test_the_kernels_lower_for_a_gpu(hidden, tune, argnums, want):
    layers, x, dy = jax.eval_shape(lambda: network(14, hidden, 1, runs=2, rows=256))
    gpu = jax.sharding.AbstractDevice("NVIDIA H200", None, "cuda")  # JAX 0.11 needs the GPU's name
    f = jax.grad(lambda layers, x, dy: (fused.fused_mlp(layers, x, tune) * dy).sum(), argnums)
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1,), ("x",), abstract_device=gpu)):
        text = jax.jit(jax.vmap(f)).trace(layers, x, dy).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("xla.gpu.triton") + text.count("triton_kernel_call") == 1 + len(want)
    assert all(f"fused_{name}_kernel" in text for name in ("forward", *want))


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
def test_each_of_several_gpus_runs_the_kernels_of_its_own_runs():
    gpu = jax.sharding.AbstractDevice("NVIDIA H200", None, "cuda")
    mesh = jax.sharding.AbstractMesh((2,), ("runs",), abstract_device=gpu)
    cut = jax.sharding.NamedSharding(mesh, RUNS)
    like = jax.eval_shape(lambda: network(14, (256, 256), 1, runs=6, rows=1024))
    like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=cut), like)
    f = jax.vmap(partial(values_and_gradients, fused.fused_mlp))
    f = jax.shard_map(f, mesh=mesh, in_specs=RUNS, out_specs=RUNS, check_vma=False)  # as in `scan.train_chunk`
    with jax.sharding.use_abstract_mesh(mesh):
        text = jax.jit(f).trace(*like).lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in text.splitlines() if "xla.gpu.triton" in line or "triton_kernel_call" in line]
    assert len(calls) == 2 and all("tensor<3x1024x14xf32>" in call and "tensor<6x" not in call for call in calls)
