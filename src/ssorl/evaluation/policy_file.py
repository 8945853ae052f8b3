"""Trained policies in files: plain arrays by name, never a pickle, every byte checked.

What a file says is never executed: the agent is rebuilt from `AGENTS` and the arrays are held against the shapes that
its `init` gives.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from ssorl.agents import AGENTS
from ssorl.agents.base import Agent
from ssorl.agents.serialise import describe, rebuild
from ssorl.data.stats import Standardiser
from ssorl.training.checkpoint import VERSIONS
from ssorl.utils.errors import SsorlError
from ssorl.utils.files import sealed, write_sealed
from ssorl.utils.networks import Params
from ssorl.utils.trees import flat, unflat

POLICY, POLICY_VERSION = "ssorl policy", 1
LARGEST = 10_000_000  # numbers in an observation or an action


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
        "versions": VERSIONS,
    }
    if about["agent"] not in AGENTS:
        raise SsorlError(f"{about['agent']} is not among the agents, {', '.join(AGENTS)}; add it to be able to load it")
    arrays = {"scaler/mean": scaler.mean, "scaler/std": scaler.std, "act/low": act_low, "act/high": act_high}
    own = flat(jax.device_get(params), "params")
    write_sealed(path, about, {**own, **{k: np.asarray(v, np.float32) for k, v in arrays.items()}})


def load_policy_file(path: Path | str) -> PolicyFile:
    """Read what `save_policy` wrote."""
    with sealed(path, "a saved policy", "; remove it and give the command that made it again, or copy it anew") as file:
        about = file.about
        if about.get("kind") != POLICY:
            raise ValueError("its about.json describes another kind of file")
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


def _whole_number(name: str, value: object) -> int:
    if type(value) is not int or not 1 <= value <= LARGEST:
        raise ValueError(f"{name} is {str(value)[:80]}")
    return value
