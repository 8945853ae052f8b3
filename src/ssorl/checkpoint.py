"""Trained policies and unfinished trainings in files: plain arrays by name, never a pickle, every byte checked.

What a file says is never executed: the agent is rebuilt from `AGENTS` and the arrays are held against the shapes that
its `init` gives.
"""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from ssorl.agents import AGENTS
from ssorl.agents.base import Agent
from ssorl.data.stats import Standardiser
from ssorl.errors import DataError, SsorlError
from ssorl.nn import Params
from ssorl.store import sealed, write_sealed

POLICY, POLICY_VERSION = "ssorl policy", 1
LARGEST = 10_000_000  # a whole number in an agent's settings; no published agent comes near
LONGEST = 100  # numbers in one setting, such as widths of layers

Tree = TypeVar("Tree")


class PolicyFile(NamedTuple):
    """All that acting needs, as `load_policy_file` finds it."""

    agent: Agent
    params: Params
    scaler: Standardiser
    act_low: np.ndarray  # [A] float32, the range of the actions it learned from
    act_high: np.ndarray  # [A] float32
    env: str | None  # where it is at home
    note: dict  # whatever was said of it when it was saved


def save_policy(
    path: Path | str,
    agent: Agent,
    params: Params,
    scaler: Standardiser,
    act_low: np.ndarray,
    act_high: np.ndarray,
    env: str | None = None,
    note: dict | None = None,
) -> None:
    """Write one policy, whole or not at all; `note` is anything that JSON can hold."""
    about = {
        "kind": POLICY,
        "version": POLICY_VERSION,
        **describe(agent),
        "n_obs": len(scaler.mean),
        "n_act": len(act_low),
        "env": env,
        "note": note or {},
        "versions": {name: version(name) for name in ("ssorl", "jax", "numpy")},
    }
    if about["agent"] not in AGENTS:
        raise SsorlError(f"{about['agent']} is not among the agents, {', '.join(AGENTS)}; add it to be able to load it")
    arrays = {"scaler/mean": scaler.mean, "scaler/std": scaler.std, "act/low": act_low, "act/high": act_high}
    own = flat(jax.device_get(params), "params")
    write_sealed(path, about, {**own, **{k: np.asarray(v, np.float32) for k, v in arrays.items()}})


def load_policy_file(path: Path | str) -> PolicyFile:
    """Read what `save_policy` wrote."""
    with sealed(path, "a saved policy") as file:
        about = file.about
        if about.get("kind") != POLICY:
            raise ValueError("its about.json is of something else")
        if about["version"] != POLICY_VERSION:
            raise ValueError(f"version {about['version']} of its layout, this is {POLICY_VERSION}")
        agent = rebuild(about)
        n_obs, n_act = (_whole_number(name, about[name]) for name in ("n_obs", "n_act"))
        like = jax.eval_shape(lambda: agent.policy(agent.init(jax.random.key(0), n_obs, n_act)))
        sizes = {"scaler/mean": n_obs, "scaler/std": n_obs, "act/low": n_act, "act/high": n_act}
        vectors = {name: jax.ShapeDtypeStruct((n,), np.float32) for name, n in sizes.items()}
        found = file.read({**flat(like, "params"), **vectors})
        mean, std, low, high = (found[name] for name in sizes)
        if not all(np.isfinite(found[name]).all() for name in sizes) or not (std > 0).all() or (low > high).any():
            raise ValueError("a scale that is not finite or not positive")
        env, note = about["env"], about["note"]
        if not (env is None or isinstance(env, str)) or not isinstance(note, dict):
            raise ValueError("its env is no name or its note no dictionary")
        return PolicyFile(agent, unflat(found, like, "params"), Standardiser(mean, std), low, high, env, note)


# Agents and trees in files ---------------------------------------------------------------------------------


def describe(agent: Agent) -> dict:
    """An agent as plain values."""
    names = {kind: name for name, kind in AGENTS.items()}
    kind: Any = type(agent)
    return {"agent": names.get(kind, kind.__qualname__), "settings": asdict(agent)}  # type: ignore[call-overload]


def rebuild(about: dict) -> Agent:
    """The agent that `describe` described, each setting of the type that its default has."""
    name, found = about["agent"], about["settings"]
    if not isinstance(name, str) or name not in AGENTS:
        raise DataError(f"the file is of an agent called {str(name)[:40]!r}; this version has {', '.join(AGENTS)}")
    defaults = {f.name: f.default for f in fields(AGENTS[name])}  # type: ignore[arg-type]
    if odd := sorted(set(found) - set(defaults)):
        raise DataError(f"the file has settings that {name} does not have here: {', '.join(odd)[:200]}")
    return AGENTS[name](**{key: _like(key, value, defaults[key]) for key, value in found.items()})


def _like(name: str, value: object, default: object) -> Any:
    if isinstance(default, tuple) and isinstance(value, list) and len(value) <= LONGEST:
        return tuple(_like(name, v, default[0] if default else 0) for v in value)
    if type(value) is int and type(default) is not bool and abs(value) <= LARGEST:
        return float(value) if type(default) is float else value
    if type(value) is float and type(default) in (float, type(None)) and math.isfinite(value):
        return value
    if type(value) in (bool, str, type(None)) and (default is None or type(value) is type(default)):
        return value
    raise ValueError(f"the setting {name} is {str(value)[:80]}")


def _whole_number(name: str, value: object) -> int:
    if type(value) is not int or not 1 <= value <= LARGEST:
        raise ValueError(f"{name} is {str(value)[:80]}")
    return value


def flat(tree: object, under: str) -> dict[str, Any]:
    """The leaves by their path, such as `state/actor/0/w`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {"/".join([under, *(jax.tree_util.keystr((key,), simple=True) for key in path)]): x for path, x in leaves}


def unflat(arrays: dict[str, np.ndarray], like: Tree, under: str) -> Tree:
    """The tree whose leaves `flat` named."""
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in flat(like, under)])
