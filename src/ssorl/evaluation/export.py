"""A policy for use without this package: an ONNX graph, or JAX's own StableHLO.

Both take raw observations and give actions in the environment's range. A policy without memory maps obs [n, O] to act
[n, A] for any n. One with memory (a Decision Transformer) is one step in one environment: obs [O], what the last action
earned, rew (0 at first), and `memory/...` go in, act [A] and `next/...`, the memory of the next step, come out; the
memory of the first step is in the ONNX file's metadata under `begin`, and beside a .jax file in FILE.json.

`load_jax` reads the second kind. Such a file holds no pickle: it is a flatbuffer of shapes and StableHLO's bytes, and
only trees of a type that the reader registered are built by a function of its own. It is a program all the same: JAX
says of `jax.export.deserialize` that its input must be trusted, because a program may call whatever custom call jaxlib
has. So run only files whose maker you trust. An ONNX graph is held to ONNX's operators.
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

# How far an exported policy's actions may be off, as a share of half their range; or so many times as far as the
# original's own move when its observations change in the last bit, which is more where the weights are large.
TOLERANCE, ROUNDING = 1e-5, 4
STEPS = 32  # steps it is tried for

Format = Literal["onnx", "jax"]
Call = Callable[[dict[str, np.ndarray]], list[np.ndarray]]  # inputs by name -> outputs in order


class Exported(NamedTuple):
    """What was written."""

    path: Path
    inputs: dict[str, tuple]  # name -> shape
    outputs: list[str]
    error: float  # the largest difference from the original in the trial


class Step(NamedTuple):
    """A policy's step as a function of a random key, which it must not need, and of named arrays."""

    f: Callable[..., list[jax.Array]]
    inputs: dict[str, jax.ShapeDtypeStruct]
    outputs: list[str]
    begin: dict[str, np.ndarray]  # the memory before the first step


def export(player: TrainedPolicy, path: Path | str, format: Format = "onnx", note: dict | None = None) -> Exported:
    """Write a player to `path`, tried against the original before the file gets its name; `note` goes beside it."""
    with jax.default_matmul_precision("highest"):
        step = _step(player)
        about = {**(note or {}), **describe(player.agent), "begin": {k: v.tolist() for k, v in step.begin.items()}}
        write, read = {"onnx": (_write_onnx, _read_onnx), "jax": (_write_jax, _read_jax)}[format]
        path = Path(path)
        with atomic(path) as fresh:
            write(step, fresh, about)
            error, rounding = _trial(player, step, read(fresh, step))
            if not error <= max(TOLERANCE, ROUNDING * rounding):
                raise SsorlError(f"{path}: the exported policy is off by {error:.2g} of its range; nothing was written")
        if format == "jax" and step.begin:
            with atomic(path.with_name(path.name + ".json")) as beside:
                beside.write_text(json.dumps(about, indent=1, allow_nan=False))
    return Exported(path, {name: x.shape for name, x in step.inputs.items()}, step.outputs, error)


def load_jax(path: Path | str) -> Callable[..., Any]:
    """The function in a file of format `jax`; see above whom to trust."""
    from jax.export import deserialize

    return deserialize(bytearray(Path(path).read_bytes())).call


def _step(player: TrainedPolicy) -> Step:
    agent = player.agent
    if getattr(agent, "half", False) is not False:
        agent = replace(agent, half=False)  # type: ignore[type-var]  # float32 wherever it will run
    own = jax.tree.map(jnp.asarray, weights(player))
    begin, kind = player.begin(), np.float32
    names = list(flat(begin, "memory"))

    def batch(key: jax.Array, obs: jax.Array) -> list[jax.Array]:
        return [jax.vmap(lambda o: advance(agent, own, begin, o, jnp.float32(0), key)[0])(obs)]

    def one(key: jax.Array, obs: jax.Array, rew: jax.Array, *memory: jax.Array) -> list[jax.Array]:
        act, after = advance(agent, own, jax.tree.unflatten(jax.tree.structure(begin), memory), obs, rew, key)
        return [act, *jax.tree.leaves(after)]

    if not names:
        from jax.export import symbolic_shape

        return Step(batch, {"obs": jax.ShapeDtypeStruct((*symbolic_shape("n"), player.n_obs), kind)}, ["act"], {})
    memory = dict(zip(names, (np.asarray(x) for x in jax.tree.leaves(begin)), strict=True))
    inputs = {"obs": jax.ShapeDtypeStruct((player.n_obs,), kind), "rew": jax.ShapeDtypeStruct((), kind)}
    inputs |= {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in memory.items()}
    return Step(one, inputs, ["act", *(name.replace("memory", "next", 1) for name in names)], memory)


def _trial(player: TrainedPolicy, step: Step, call: Call) -> tuple[float, float]:
    """The largest difference between the two in some steps of random observations, each with its own memory.

    And the largest that rounding the observations makes in the original.
    """
    original = jax.jit(step.f)
    rng, own = np.random.default_rng(0), weights(player)
    half = np.where(own.half > 0, own.half, 1)

    def apart(one: Any, other: Any) -> float:
        gap = np.abs((np.asarray(one) - np.asarray(other)) / half).max()
        return float(gap) if np.isfinite(gap) else np.inf

    def play(key: int, inputs: dict[str, Any]) -> list[jax.Array]:
        return original(jax.random.key(key), *(inputs[name] for name in step.inputs))

    mine, theirs, error, rounding = dict(step.begin), dict(step.begin), 0.0, 0.0
    for time in range(STEPS if step.begin else 1):
        size = () if step.begin else (STEPS,)
        obs = (own.mean + 2 * own.std * rng.standard_normal((*size, player.n_obs))).astype(np.float32)
        seen = {"obs": obs} | ({"rew": np.array(time and rng.standard_normal(), np.float32)} if step.begin else {})
        first, second = play(0, {**seen, **mine}), call({**seen, **theirs})
        error = max(error, apart(first[0], second[0]))
        if not np.isfinite(error):
            break
        nudged = {**seen, **mine, "obs": np.nextafter(obs, np.float32(np.inf))}
        rounding = max(rounding, apart(first[0], play(0, nudged)[0]))
        if not np.array_equal(first[0], play(1, {**seen, **mine})[0]):
            raise SsorlError(
                "the policy acts at random; only one whose action follows from what it saw can be exported"
            )
        mine = dict(zip(step.begin, map(np.asarray, first[1:]), strict=True))
        theirs = dict(zip(step.begin, second[1:], strict=True))
    return error, rounding


def _keyless(step: Step) -> Callable[..., list[jax.Array]]:
    return partial(step.f, jax.random.key(0))


# The two formats -------------------------------------------------------------------------------------------


def _write_onnx(step: Step, path: Path, about: dict) -> None:
    require("export", "onnx")
    from ssorl.evaluation.onnx import translate

    note = {name: x if isinstance(x, str) else json.dumps(x, allow_nan=False) for name, x in about.items()}
    path.write_bytes(translate(_keyless(step), step.inputs, step.outputs, note).SerializeToString())


def _read_onnx(path: Path, step: Step) -> Call:
    require("export", "onnxruntime")
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda inputs: list(map(np.asarray, session.run(step.outputs, inputs)))


def _write_jax(step: Step, path: Path, about: dict) -> None:
    require("export", "flatbuffers")
    from jax.export import export as lower

    # For both, so that a policy trained on a GPU runs on a robot without one.
    lowered = lower(jax.jit(_keyless(step)), platforms=("cpu", "cuda"))(*step.inputs.values())
    path.write_bytes(lowered.serialize())


def _read_jax(path: Path, step: Step) -> Call:
    f = load_jax(path)
    return lambda inputs: [np.asarray(x) for x in f(*(inputs[name] for name in step.inputs))]
