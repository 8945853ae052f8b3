"""Scales of a study: minutes on a CPU, an hour on a GPU, or as published. The grid is the same at each scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ssorl.utils.errors import SsorlError, nearest


@dataclass(frozen=True)
class Scale:
    """The settings that a scale changes. All other settings of agents and IDMs keep their published values."""

    name: str
    note: str  # description for readers of the results
    size: str  # steps of sim/ datasets, or `full` for as many as in D4RL
    seeds: int
    episodes: int  # rollouts of a final policy
    looks: int  # points of a learning curve
    policy: str = "last"  # weights that are scored; the paper scores the last; every result holds both
    agents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by agent; other agents have preset `quick`
    idm: Mapping[str, Any] = field(default_factory=dict)  # settings of every IDM
    idm_named: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # settings by IDM preset


_SMALL_DT = {"layers": 1, "heads": 1, "width": 32, "context": 5, "max_time": 1024, "batch": 16, "updates": 100}
_SMALL_DT |= {"lr": 3e-3, "warmup": 10, "temperature_lr": 1e-3}
# The presets `quick` of BC and IQL in version 0.1, so that a change of the presets changes no study.
_QUICK_BC = {"batch": 256, "updates": 50_000}
_QUICK_IQL = {"hidden": (128, 128), "lr": 1e-3, "temperature": 0.3, "updates": 20_000}
_LITE_DT = {"layers": 3, "width": 128, "batch": 64, "lr": 1e-3, "warmup": 1000, "updates": 30_000}

SCALES: dict[str, Scale] = {
    "smoke": Scale(
        "smoke",
        "a check that every part runs: a hundredth of the data, hardly any training, one seed; no result counts",
        size="20000",
        seeds=1,
        episodes=3,
        looks=2,
        agents={
            "td3bc": {"hidden": (64, 64), "batch": 64, "updates": 200},
            "cql": {"hidden": (64, 64), "n_actions": 2, "batch": 64, "updates": 200},
            "bc": _QUICK_BC,
            "iql": _QUICK_IQL,
            "dt": _SMALL_DT,
            "dt-joint": _SMALL_DT | {"unlabelled": 16},
        },
        idm={"hidden": (64, 64), "steps": 300, "batch": 128, "lr": 1e-3, "validate_every": 100},
    ),
    "lite": Scale(
        "lite",
        "the paper's design and data with smaller batches, fewer updates except for TD3+BC (a quarter for CQL), a "
        "smaller DT, higher learning rates of DT and of the inverse dynamics model, three seeds",
        size="full",
        seeds=3,
        episodes=30,
        looks=10,
        agents={
            "td3bc": {"batch": 256},  # the published number of updates: with fewer, some datasets are hardly learned
            "cql": {"batch": 512, "n_actions": 4, "updates": 50_000},
            "bc": _QUICK_BC,
            "iql": _QUICK_IQL,
            "dt": _LITE_DT,
            "dt-joint": _LITE_DT | {"unlabelled": 64},
        },
        idm={"steps": 20_000},
        idm_named={"paper": {"lr": 3e-4}},
    ),
    "paper": Scale("paper", "the published settings: five seeds, 200,000 updates", "full", 5, 30, 20),
}


def find_scale(name: str | Scale) -> Scale:
    """Return a scale.

    Args:
        name: the scale's name; a `Scale` is returned as it is.

    Raises:
        SsorlError: no scale has that name.
    """
    if isinstance(name, Scale):
        return name
    if name not in SCALES:
        raise SsorlError(f"--scale {name}: is not a scale; {nearest(name, SCALES)}")
    return SCALES[name]
