"""Export a policy for use without this package: as an ONNX graph or as JAX's StableHLO.

Both take raw observations and return actions in the environment's range. A policy without memory maps obs [n, O] to act
[n, A] for any n. A policy with memory (a Decision Transformer) computes one step in one environment: its inputs are
obs [O], rew (the reward of the last action, 0 at first) and `memory/...`; its outputs are act [A] and `next/...`, the
memory of the next step. The memory of the first step is in the metadata of the ONNX file under `begin`; for a .jax file
it is in a second file, FILE.json.

`load_jax` reads .jax files. They contain no pickle: they are flatbuffers of shapes and StableHLO bytes. But they are
programs, and JAX's documentation of `jax.export.deserialize` says that its input must be trusted, because a program may
use any custom call of jaxlib. So run only .jax files from people you trust. An ONNX graph can only use ONNX operators.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.agents.serialise import describe
from ssorl.evaluation.policy import TrainedPolicy, advance, weights
from ssorl.utils.errors import SsorlError
from ssorl.utils.extras import require
from ssorl.utils.files import atomic
from ssorl.utils.trees import flat

# Largest difference between the actions of the exported policy and of the original, as a share of half their range.
TOLERANCE = 1e-5
# The difference may also be up to this many times the change of the original's action when its observation changes in
# the last bit; that change exceeds TOLERANCE if the weights are large.
ROUNDING = 4
STEPS = 32  # random steps of the comparison

Format = Literal["onnx", "jax"]
Call = Callable[[dict[str, np.ndarray]], list[np.ndarray]]  # inputs by name -> outputs in order


class Exported(NamedTuple):
    """An exported policy file."""

    path: Path
    inputs: dict[str, tuple]  # name -> shape
    outputs: list[str]
    error: float  # largest difference from the original policy in the comparison, as a share of half the range


class _Step(NamedTuple):
    """One step of a policy as a function of a random key, which must have no effect, and of named arrays."""

    f: Callable[..., list[jax.Array]]
    inputs: dict[str, jax.ShapeDtypeStruct]
    outputs: list[str]
    begin: dict[str, np.ndarray]  # the memory before the first step


def export(player: TrainedPolicy, path: Path | str, format: Format = "onnx", note: dict | None = None) -> Exported:
    """Write a policy to a file, after comparing the exported policy with the original on random observations.

    Args:
        player: the policy.
        path: the file to write.
        format: "onnx" or "jax".
        note: metadata for the file (ONNX) or for FILE.json (a policy with memory in format "jax").

    Raises:
        SsorlError: the actions differ, the policy acts at random, a package is missing, or the file cannot be written.
    """
    with jax.default_matmul_precision("highest"):
        step = _step(player)
        about = {**(note or {}), **describe(player.agent), "begin": {k: v.tolist() for k, v in step.begin.items()}}
        write, read = {"onnx": (_write_onnx, _read_onnx), "jax": (_write_jax, _read_jax)}[format]
        path = Path(path)
        with atomic(path) as fresh:
            write(step, fresh, about)
            error, rounding = _compare(player, step, read(fresh, step))
            if not error <= max(TOLERANCE, ROUNDING * rounding):
                raise SsorlError(
                    f"{path}: the actions of the exported policy differ from the original by {error:.2g} of their "
                    "range, so nothing was written; try the other --format"
                )
        if format == "jax" and step.begin:
            with atomic(path.with_name(path.name + ".json")) as metadata:
                metadata.write_text(json.dumps(about, indent=1, allow_nan=False))
    return Exported(path, {name: x.shape for name, x in step.inputs.items()}, step.outputs, error)


def load_jax(path: Path | str) -> Callable[..., Any]:
    """Return the function in a file of format "jax". Load only files from people you trust, see the module's docstring.

    Args:
        path: the file.
    """
    from jax.export import deserialize

    return deserialize(bytearray(Path(path).read_bytes())).call


def _step(player: TrainedPolicy) -> _Step:
    agent = player.agent
    if getattr(agent, "half", False) is not False:
        agent = replace(agent, half=False)  # type: ignore[type-var]  # float32 on every device
    own = jax.tree.map(jnp.asarray, weights(player))
    begin, dtype = player.begin(), np.float32
    names = list(flat(begin, "memory"))

    def act_on_batch(key: jax.Array, obs: jax.Array) -> list[jax.Array]:
        return [jax.vmap(lambda o: advance(agent, own, begin, o, jnp.float32(0), key)[0])(obs)]

    def act_with_memory(key: jax.Array, obs: jax.Array, rew: jax.Array, *memory: jax.Array) -> list[jax.Array]:
        act, after = advance(agent, own, jax.tree.unflatten(jax.tree.structure(begin), memory), obs, rew, key)
        return [act, *jax.tree.leaves(after)]

    if not names:
        from jax.export import symbolic_shape

        obs = jax.ShapeDtypeStruct((*symbolic_shape("n"), player.n_obs), dtype)
        return _Step(act_on_batch, {"obs": obs}, ["act"], {})
    memory = dict(zip(names, (np.asarray(x) for x in jax.tree.leaves(begin)), strict=True))
    inputs = {"obs": jax.ShapeDtypeStruct((player.n_obs,), dtype), "rew": jax.ShapeDtypeStruct((), dtype)}
    inputs |= {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in memory.items()}
    return _Step(act_with_memory, inputs, ["act", *(name.replace("memory", "next", 1) for name in names)], memory)


def _compare(player: TrainedPolicy, step: _Step, call: Call) -> tuple[float, float]:
    """Compare the exported policy with the original on random observations; each keeps its own memory.

    Returns:
        The largest difference of actions, and the largest change of the original's action when its observation changes
        in the last bit; both as shares of half the range.
    """
    original = jax.jit(step.f)
    rng, own = np.random.default_rng(0), weights(player)
    half = np.where(own.half > 0, own.half, 1)

    def difference(a: Any, b: Any) -> float:
        gap = np.abs((np.asarray(a) - np.asarray(b)) / half).max()
        return float(gap) if np.isfinite(gap) else np.inf

    def act(key: int, inputs: dict[str, Any]) -> list[jax.Array]:
        return original(jax.random.key(key), *(inputs[name] for name in step.inputs))

    memory, exported_memory, error, rounding = dict(step.begin), dict(step.begin), 0.0, 0.0
    for time in range(STEPS if step.begin else 1):
        size = () if step.begin else (STEPS,)
        obs = (own.mean + 2 * own.std * rng.standard_normal((*size, player.n_obs))).astype(np.float32)
        inputs = {"obs": obs} | ({"rew": np.array(time and rng.standard_normal(), np.float32)} if step.begin else {})
        outputs, exported = act(0, {**inputs, **memory}), call({**inputs, **exported_memory})
        error = max(error, difference(outputs[0], exported[0]))
        if not np.isfinite(error):
            break
        nudged = {**inputs, **memory, "obs": np.nextafter(obs, np.float32(np.inf))}
        rounding = max(rounding, difference(outputs[0], act(0, nudged)[0]))
        if not np.array_equal(outputs[0], act(1, {**inputs, **memory})[0]):
            raise SsorlError("the policy acts at random; only a deterministic policy can be exported")
        memory = dict(zip(step.begin, map(np.asarray, outputs[1:]), strict=True))
        exported_memory = dict(zip(step.begin, exported[1:], strict=True))
    return error, rounding


def _keyless(step: _Step) -> Callable[..., list[jax.Array]]:
    return partial(step.f, jax.random.key(0))


# The two formats -------------------------------------------------------------------------------------------


def _write_onnx(step: _Step, path: Path, about: dict) -> None:
    require("export", "onnx")
    from ssorl.evaluation.onnx import translate

    note = {name: x if isinstance(x, str) else json.dumps(x, allow_nan=False) for name, x in about.items()}
    path.write_bytes(translate(_keyless(step), step.inputs, step.outputs, note).SerializeToString())


def _read_onnx(path: Path, step: _Step) -> Call:
    require("export", "onnxruntime")
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda inputs: list(map(np.asarray, session.run(step.outputs, inputs)))


def _write_jax(step: _Step, path: Path, about: dict) -> None:
    require("export", "flatbuffers")
    from jax.export import export as lower

    # Lower for both platforms, so that a policy trained on a GPU runs on a robot without a GPU.
    lowered = lower(jax.jit(_keyless(step)), platforms=("cpu", "cuda"))(*step.inputs.values())
    path.write_bytes(lowered.serialize())


def _read_jax(path: Path, step: _Step) -> Call:
    f = load_jax(path)
    return lambda inputs: [np.asarray(x) for x in f(*(inputs[name] for name in step.inputs))]
