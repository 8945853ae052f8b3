"""Policy files: arrays by name with a checksum of every byte, never a pickle.

Nothing in a file is executed: the agent must be known to `AGENTS` or named by the user, and the arrays must have the
shapes of the agent's weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from ssorl.agents.base import Agent
from ssorl.agents.serialise import describe, rebuild
from ssorl.data.stats import Standardiser
from ssorl.training.checkpoint import VERSIONS
from ssorl.utils.display import short_repr
from ssorl.utils.identity import Revisions, read_revisions, revision_of
from ssorl.utils.networks import Params
from ssorl.utils.sealed import sealed, write_sealed
from ssorl.utils.trees import flat, unflat

POLICY, POLICY_VERSION = "ssorl policy", 1  # kind and format version of the file
LARGEST = 10_000_000  # largest size of an observation or action


class PolicyFile(NamedTuple):
    """The content of a policy file."""

    agent: Agent
    params: Params
    scaler: Standardiser
    act_low: np.ndarray  # [A] float32, range of the actions in the training data
    act_high: np.ndarray  # [A] float32
    env: str | None  # environment of the training data
    note: dict  # metadata given to `save_policy`
    revisions: Revisions = Revisions()  # revisions of the agent and of the IDM whose proxy actions it learned from

    def __repr__(self) -> str:
        return short_repr("PolicyFile", {"agent": self.agent, "env": self.env, "note": self.note})


def save_policy(
    path: Path | str,
    agent: Agent,
    params: Params,
    scaler: Standardiser,
    act_low: np.ndarray,
    act_high: np.ndarray,
    env: str | None = None,
    note: dict | None = None,
    idm_revision: int | None = None,
) -> None:
    """Write one policy to a file, atomically.

    Args:
        path: the file.
        agent: the policy's agent.
        params: the policy's weights.
        scaler: standardisation of observations [O].
        act_low: lowest action [A] in the training data.
        act_high: highest action [A] in the training data.
        env: environment of the training data.
        note: metadata that JSON can hold.
        idm_revision: revision of the IDM whose proxy actions it learned from; None if it learned from none.

    Raises:
        SsorlError: the file cannot be written.
    """
    about = {
        "kind": POLICY,
        "version": POLICY_VERSION,
        **describe(agent),
        "n_obs": len(scaler.mean),
        "n_act": len(act_low),
        "env": env,
        "note": note or {},
        "versions": VERSIONS,
        "revisions": Revisions(revision_of(agent), idm_revision).as_json(),
    }
    scales = {"scaler/mean": scaler.mean, "scaler/std": scaler.std, "act/low": act_low, "act/high": act_high}
    arrays = flat(jax.device_get(params), "params")
    write_sealed(path, about, {**arrays, **{k: np.asarray(v, np.float32) for k, v in scales.items()}})


def load_policy_file(path: Path | str, named: type[Agent] | None = None) -> PolicyFile:
    """Read a file that `save_policy` wrote.

    Args:
        path: the file.
        named: the class of the file's agent, if the user named it; see `ssorl.agents.serialise.rebuild`.

    Raises:
        DataError: the file cannot be read, is damaged, or is not a policy.
        SsorlError: its agent is not known.
    """
    with sealed(
        path, "a saved policy", "; delete it and run the command that wrote it again, or copy it again"
    ) as file:
        about = file.about
        if about.get("kind") != POLICY:
            raise ValueError("its about.json describes another kind of file")
        if about["version"] != POLICY_VERSION:
            raise ValueError(f"its format has version {about['version']}, this ssorl reads version {POLICY_VERSION}")
        agent = rebuild(about, path, named)
        n_obs, n_act = (_whole_number(name, about[name]) for name in ("n_obs", "n_act"))
        like = jax.eval_shape(lambda: agent.policy(agent.init(jax.random.key(0), n_obs, n_act)))
        sizes = {"scaler/mean": n_obs, "scaler/std": n_obs, "act/low": n_act, "act/high": n_act}
        vectors = {name: jax.ShapeDtypeStruct((n,), np.float32) for name, n in sizes.items()}
        arrays = file.read({**flat(like, "params"), **vectors})
        mean, std, low, high = (arrays[name] for name in sizes)
        if not all(np.isfinite(arrays[name]).all() for name in sizes) or not (std > 0).all() or (low > high).any():
            raise ValueError("a scale is not finite or not positive, or act/low is above act/high")
        env, note = about["env"], about["note"]
        if not (env is None or isinstance(env, str)) or not isinstance(note, dict):
            raise ValueError("its env is not a name, or its note is not a dictionary")
        revisions = read_revisions(about.get("revisions", {"agent": 0}))
        params = unflat(arrays, like, "params")
        return PolicyFile(agent, params, Standardiser(mean, std), low, high, env, note, revisions)


def _whole_number(name: str, value: object) -> int:
    if type(value) is not int or not 1 <= value <= LARGEST:
        raise ValueError(f"{name} is {str(value)[:80]}")
    return value
