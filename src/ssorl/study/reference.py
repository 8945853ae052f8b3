"""Default settings and presets of version 0.1, which give cells a permanent meaning.

A cell names only the settings that differ from the defaults below, so a change of a default in the package changes
neither its hash nor its meaning. A setting that was added later is compared with its own default; before that default
changes, add the setting with its old default here. Studies with `defaults: "0.1"`, such as all of the paper's, take
their presets from here too. The values below never change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ssorl.agents import AGENTS, make
from ssorl.agents.base import Agent
from ssorl.idm import IDMS, spec_of
from ssorl.idm.base import NETWORK, IdmSpec
from ssorl.utils.errors import SsorlError, nearest
from ssorl.utils.validation import check_settings, plain

_DT = {
    "layers": 4,
    "heads": 4,
    "width": 512,
    "context": 20,
    "dropout": 0.1,
    "max_time": 4096,
    "lr": 1e-4,
    "decay": 1e-3,
    "warmup": 10_000,
    "clip": 0.25,
    "temperature": 0.1,
    "temperature_lr": 1e-4,
    "scale": None,
    "edge": 1e-6,
    "target": None,
    "batch": 256,
    "updates": 200_000,
    "half": None,
}
AGENT_DEFAULTS: dict[str, dict[str, Any]] = {
    "bc": {"lr": 3e-4, "hidden": (256, 256), "batch": 5120, "updates": 200_000, "half": None},
    "cql": {
        "gamma": 0.99,
        "tau": 0.005,
        "critic_lr": 3e-4,
        "actor_lr": 1e-4,
        "temperature_lr": 3e-4,
        "hidden": (256, 256, 256),
        "n_actions": 10,
        "min_q_weight": 5.0,
        "batch": 5120,
        "updates": 200_000,
        "half": None,
    },
    "dt": _DT,
    "dt-joint": _DT | {"unlabelled": 256, "lambda_s": 0.01, "lambda_r": 0.1},
    "iql": {
        "gamma": 0.99,
        "tau": 0.005,
        "expectile": 0.7,
        "temperature": 3.0,
        "lr": 3e-4,
        "hidden": (256, 256),
        "batch": 256,
        "updates": 1_000_000,
        "half": None,
    },
    "td3bc": {
        "gamma": 0.99,
        "tau": 0.005,
        "noise": 0.2,
        "noise_clip": 0.5,
        "policy_every": 2,
        "critic_lr": 3e-4,
        "actor_lr": 3e-4,
        "hidden": (256, 256),
        "norm": False,
        "alpha": 2.5,
        "batch": 5120,
        "updates": 200_000,
        "half": None,
    },
}
AGENT_PRESETS: dict[tuple[str, str], dict[str, Any]] = {  # besides `paper`, which is the defaults
    ("td3bc", "maze2d"): {"critic_lr": 1e-4, "actor_lr": 1e-4},
}
IDM_DEFAULTS: dict[str, Any] = {
    "past": 1,
    "future": 0,
    "hidden": (1024, 1024),
    "differences": False,
    "ranks": False,
    "affine": False,
    "beta": 0.0,
    "members": 1,
    "steps": 100_000,
    "batch": 1024,
    "lr": 1e-4,
    "schedule": "constant",
    "dropout": 0.1,
    "half": None,
    "log_std": (-5.0, 2.0),
    "validation": 0.1,
    "validate_every": 1000,
    "select": "nll",
}
IDM_PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "robust": {
        "hidden": (512, 512, 512),
        "differences": True,
        "ranks": True,
        "affine": True,
        "beta": 0.5,
        "members": 3,
        "steps": 30_000,
        "lr": 1e-3,
        "schedule": "cosine",
        "dropout": 0.0,
        "select": "mse",
    },
}


def agent_of(name: str, settings: Mapping[str, Any]) -> Agent:
    """Return the agent of a cell.

    Args:
        name: the agent's name.
        settings: the settings that the cell names.

    Raises:
        SsorlError: there is no such agent.
    """
    return AGENTS.find(name, "a cell")(**{**AGENT_DEFAULTS.get(name, {}), **settings})


def idm_of(settings: Mapping[str, Any]) -> IdmSpec:
    """Return the configuration of a cell's inverse dynamics model from the settings that the cell names."""
    defaults = IDM_DEFAULTS if settings.get("family", NETWORK) == NETWORK else {}
    return spec_of({**defaults, **settings})


def agent_changes(name: str, agent: Agent) -> dict[str, Any]:
    """Return the settings that a cell names: those of `agent` that differ from the defaults of version 0.1."""
    return _changes(agent, AGENT_DEFAULTS.get(name, {}))


def idm_changes(spec: IdmSpec) -> dict[str, Any]:
    """Return the settings that a cell names: those that differ from the defaults of version 0.1, and the family."""
    if spec.FAMILY == NETWORK:
        return _changes(spec, IDM_DEFAULTS)
    return {"family": spec.FAMILY, **_changes(spec, {})}


def preset_agent(name: str, preset: str, version: str | None, settings: Mapping[str, Any]) -> Agent:
    """Return an agent with a preset of this version or of version 0.1, and changes to it.

    Args:
        name: the agent's name.
        preset: the preset's name.
        version: "0.1", or None for this version.
        settings: changes to the preset.

    Raises:
        SsorlError: there is no such agent, preset or setting.
    """
    if version is None:
        return make(name, preset, **settings)
    known = {(agent, "paper") for agent in AGENT_DEFAULTS} | set(AGENT_PRESETS)
    if (name, preset) not in known:
        raise SsorlError(
            f"defaults is {version}, which has no agent {name} with preset {preset}; it has "
            f"{', '.join(' '.join(pair) for pair in sorted(known))}"
        )
    check_settings(name, settings, AGENTS[name])
    changes = {key: plain(value) for key, value in settings.items()}
    return agent_of(name, {**AGENT_PRESETS.get((name, preset), {}), **changes})


def preset_idm(name: str, version: str | None) -> IdmSpec:
    """Return the configuration of an IDM preset.

    Args:
        name: the preset's name.
        version: "0.1", or None for this version.

    Raises:
        SsorlError: there is no such preset.
    """
    if version is None and (IDMS.known(name) or ":" in name):
        return IDMS.find(name)
    presets = IDMS.names() if version is None else IDM_PRESETS
    if name not in presets:
        raise SsorlError(f"idm is {name!r}; {nearest(name, presets)}")
    return idm_of(IDM_PRESETS[name])


def _changes(config: Any, reference: Mapping[str, Any]) -> dict[str, Any]:
    values = {f.name: (getattr(config, f.name), reference.get(f.name, f.default)) for f in fields(config)}
    return {name: value for name, (value, default) in values.items() if value != default}
