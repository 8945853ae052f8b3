"""Exported policies agree with the originals in the runtimes for which they are made."""

import json
import subprocess
import sys
from dataclasses import dataclass, fields

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest
from jax.export import symbolic_shape

import ssorl
from ssorl.agents import AGENTS, make
from ssorl.data.stats import Standardiser
from ssorl.evaluation import onnx as module
from ssorl.evaluation.export import export, load_jax
from ssorl.evaluation.onnx import translate
from ssorl.evaluation.policy import TrainedPolicy
from ssorl.evaluation.policy_file import save_policy
from ssorl.utils.errors import SsorlError

SCALER = Standardiser(np.float32([0, 1, -2]), np.float32([1, 2, 0.5]))
LOW, HIGH = np.float32([-1, -30]), np.float32([1, 50])
SMALL = {"hidden": (16, 16), "width": 8, "layers": 1, "heads": 2, "context": 4, "max_time": 20, "target": 7.0}


def small_player(name):
    known = {f.name for f in fields(AGENTS[name])}
    agent = make(name, "quick", **{key: value for key, value in SMALL.items() if key in known})
    state = jax.jit(agent.init, static_argnums=(1, 2))(jax.random.key(0), 3, 2)
    return TrainedPolicy(agent, jax.device_get(agent.policy(state)), SCALER, LOW, HIGH)


@pytest.fixture(scope="module", params=AGENTS)
def player(request):
    return small_player(request.param)


@pytest.fixture(scope="module")
def episode(player, tmp_path_factory):
    """Observations, rewards and the actions of the policy loaded from its file, so that scaling is tested, too."""
    path = tmp_path_factory.mktemp("policy") / "p.npz"
    save_policy(path, *player, env="hopper")
    rng = np.random.default_rng(1)
    obs, rew = rng.standard_normal((10, 3)).astype(np.float32), rng.standard_normal(10).astype(np.float32)
    rew[0], policy = 0, ssorl.load_policy(path)
    assert policy.env == "hopper"
    return obs, rew, np.stack([policy(o, r) for o, r in zip(obs, rew, strict=True)])


def play(call, inputs, begin, obs, rew):
    """Return the actions of an exported policy along an episode, passing its memory from step to step."""
    if not begin:
        return call({"obs": obs})[0]
    memory, acts = begin, []
    for o, r in zip(obs, rew, strict=True):
        act, *after = call({"obs": o, "rew": np.asarray(r), **memory})
        memory = {name: np.asarray(x) for name, x in zip(begin, after, strict=True)}
        acts.append(act)
    return np.stack(acts)


def test_onnx_policies_act_like_the_originals(player, episode, tmp_path):
    exported = export(player, tmp_path / "p.onnx", "onnx", {"env": "hopper"})
    assert exported.error <= 1e-5 and exported.outputs[0] == "act"
    session = onnxruntime.InferenceSession(str(tmp_path / "p.onnx"))
    meta = session.get_modelmeta().custom_metadata_map
    assert meta["env"] == "hopper" and meta["agent"] in AGENTS
    kinds = {x.name: np.int32 if "int32" in x.type else np.float32 for x in session.get_inputs()}
    begin = {name: np.array(x, kinds[name]) for name, x in json.loads(meta["begin"]).items()}
    act = play(lambda inputs: session.run(None, inputs), kinds, begin, *episode[:2])
    np.testing.assert_allclose(act, episode[2], atol=4e-4)  # 1e-5 of half the second action's range
    assert np.ptp(episode[2], axis=0).min() > 1e-4  # the actions are not constant


def test_jax_policies_act_like_the_originals(player, episode, tmp_path):
    exported = export(player, tmp_path / "p.jax", "jax")
    f, metadata = load_jax(tmp_path / "p.jax"), tmp_path / "p.jax.json"
    names = list(exported.inputs)
    begin = json.loads(metadata.read_text())["begin"] if metadata.exists() else {}
    whole = {"memory/time", "memory/now"}
    begin = {name: np.array(x, np.int32 if name in whole else np.float32) for name, x in begin.items()}
    act = play(lambda inputs: f(*(inputs[n] for n in names)), names, begin, *episode[:2])
    np.testing.assert_allclose(act, episode[2], atol=4e-4)


ODD = {
    "loop": lambda obs, key: jax.lax.fori_loop(0, 3, lambda i, x: jnp.sin(x), obs[:2]),
    "draw": lambda obs, key: obs[:2] + jax.random.normal(key, (2,)),
    "sort": lambda obs, key: jnp.sort(obs)[:2],
    "log": lambda obs, key: jnp.log(obs[:2] - 1e9),
}


@dataclass(frozen=True)
class Odd:
    """An agent that cannot be exported."""

    kind: str

    def begin(self, n_obs, n_act):
        return None

    def act(self, params, carry, obs, rew, key):
        return ODD[self.kind](obs, key), carry


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("loop", "'scan', which has no translation to ONNX here; export it with --format jax"),
        ("draw", "the policy acts at random; only a deterministic"),
        ("sort", "'sort'"),
        ("log", "differ from the original by inf of their range, so nothing was written"),
    ],
)
def test_a_policy_that_cannot_be_exported_leaves_no_file(kind, message, tmp_path):
    with pytest.raises(SsorlError, match=message):
        export(TrainedPolicy(Odd(kind), {}, SCALER, LOW, HIGH), tmp_path / "p.onnx")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_wrong_translation_raises_an_error(tmp_path, monkeypatch):
    monkeypatch.setitem(module.PLAIN, "tanh", "Sigmoid")
    with pytest.raises(SsorlError, match=r"differ from the original by .* of their range, so nothing was written"):
        export(small_player("bc"), tmp_path / "p.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("package", "format"), [("onnxruntime", "onnx"), ("flatbuffers", "jax")])
def test_a_missing_package_is_named(package, format, tmp_path):
    """This needs a subprocess, because loaded packages stay loaded."""
    code = f"""
import sys
sys.modules["{package}"] = None
from ssorl.evaluation.policy_file import load_policy_file
from ssorl.evaluation.export import export
from ssorl.evaluation.policy import TrainedPolicy
export(TrainedPolicy(*load_policy_file("p.npz")[:5]), "out", "{format}")
"""
    save_policy(tmp_path / "p.npz", *small_player("bc"))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert f"exported policies need {package}, which is not installed; run: pip install 'ssorl[export]'" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["p.npz"]


# The translation's rules, each against JAX -----------------------------------------------------------------


def run(f, *arrays):
    names = [f"x{i}" for i in range(len(arrays))]
    shapes = [jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype) for x in arrays]
    want = f(*map(jnp.asarray, arrays))
    model = translate(f, dict(zip(names, shapes, strict=True)), [f"y{i}" for i in range(len(want))], {})
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, dict(zip(names, map(np.asarray, arrays), strict=True))), want


X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
TWO = np.array(2, np.int32)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: [jnp.tanh(x), jnp.exp(x), jax.nn.sigmoid(x), -x, abs(x), jnp.sign(x), jnp.floor(x), jnp.sin(x)],
        lambda x, i: [x**2, x**3, jnp.sqrt(x * x), jax.lax.rsqrt(x * x + 1), jnp.log1p(x * x), jnp.clip(x, -0.5, 0.5)],
        lambda x, i: [
            x / 3,
            2 - x,
            jnp.maximum(x, 0.1),
            jnp.minimum(x, x[0]),
            x == x[0],
            x != x[1],
            i % 2,
            (x > 0) & (x < 1),
        ],
        lambda x, i: [~(x > 0) | (x <= -1), jnp.where(x >= 0, x, -1), jnp.where(i > 1, x, 0), x.astype(jnp.int32)],
        lambda x, i: [x.sum(), x.sum(1), x.max(0), x.min(), x.mean(0, keepdims=True), x.var(1), jax.nn.softmax(x)],
        lambda x, i: [x @ x.T, x[0] @ x.T, x @ x[0], jnp.einsum("ab,cb->ca", x, x), jnp.einsum("ab,ab->a", x, x)],
        lambda x, i: [
            jnp.einsum("bqhd,bthd->bhqt", *[x.reshape(2, 2, 3, 2)] * 2),
            x.reshape(-1, 3).T,
            x[None, :, None],
        ],
        lambda x, i: [
            x[1:, ::2],
            jnp.concatenate([x, x[:, :1]], 1),
            *jnp.split(x, 3, 1),
            jnp.stack([x, x], 1),
            x[::-1] * 0,
        ],
        lambda x, i: [
            x.at[i].set(x[0]),
            x.at[1].set(0),
            x.at[i + 2].set(0),  # out of range: dropped
            x.at[jnp.stack([i, i + 2, i + 1])].set(x[:3]),
            x.at[i + 2, i].set(0),
            x.at[i, jnp.stack([i, i + 4])].set(x[0, :2]),
            x.at[i + 2].set(0, mode="clip"),
            x[i],
            x[jnp.clip(i - jnp.arange(5), 0, 3)],
            jnp.roll(x, -1, 0),
        ],
        lambda x, i: [
            jax.lax.dynamic_slice(x, (i, i), (2, 5)),
            jax.lax.dynamic_update_slice(x, x[:2], (i + 1, 0)),
            i + 1,
        ],
        lambda x, i: [jnp.repeat(x, 2, 1), jnp.tile(x, (2, 1)), jnp.tril(x), jnp.ones((3, 3))],
        lambda x, i: [
            jax.vmap(lambda r: jnp.take(r, jnp.array([0, 2])))(x),
            jnp.take(x, jnp.array([[0, 1], [5, 2]]), axis=1),
        ],
    ],
)
def test_the_rules_agree_with_jax(f):
    got, want = run(f, X, TWO)
    for x, y in zip(got, want, strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        np.testing.assert_allclose(x, y, atol=2e-6)


def test_the_batch_can_have_any_size():
    """This holds also where the graph must read the size from the input's shape."""

    def f(x):
        with_one = jnp.concatenate([x, jnp.ones((x.shape[0], 1))], 1)
        return [with_one, jnp.broadcast_to(x[:, :, None], (*x.shape, 2)).reshape(x.shape[0], -1)]

    shape = jax.ShapeDtypeStruct((*symbolic_shape("n"), 6), np.float32)
    model = translate(f, {"x": shape}, ["a", "b"], {})
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for n in (1, 3):
        for got, want in zip(session.run(None, {"x": X[:n]}), f(X[:n]), strict=True):
            np.testing.assert_array_equal(got, want)
