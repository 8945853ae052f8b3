"""How large a study is run: minutes on a CPU, an hour on a GPU, or as published. The design is the same at each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ssorl.utils.errors import SsorlError, nearest


@dataclass(frozen=True)
class Scale:
    """What a scale changes. The agents and models keep their published settings but for what is named here."""

    name: str
    note: str  # for whoever reads the results
    size: str  # of sim/ datasets: steps, or `full` for D4RL's
    seeds: int
    episodes: int  # a policy plays at the end
    looks: int  # points of a learning curve
    policy: str = "last"  # the weights that are scored; the paper's are the last, and every cell keeps both
    agents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # others have their preset `quick`
    idm: Mapping[str, Any] = field(default_factory=dict)  # of every inverse dynamics model
    idm_named: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # and of those with a name


_SMALL_DT = {"layers": 1, "heads": 1, "width": 32, "context": 5, "max_time": 1024, "batch": 16, "updates": 100}
_SMALL_DT |= {"lr": 3e-3, "warmup": 10, "temperature_lr": 1e-3}
# The presets `quick` of these two in version 0.1. Studies at a scale do not follow a change of the presets.
_QUICK_BC = {"batch": 256, "updates": 50_000}
_QUICK_IQL = {"hidden": (128, 128), "lr": 1e-3, "temperature": 0.3, "updates": 20_000}
_LITE_DT = {"layers": 3, "width": 128, "batch": 64, "lr": 1e-3, "warmup": 1000, "updates": 30_000}

SCALES: dict[str, Scale] = {
    "smoke": Scale(
        "smoke",
        "a check that all of it runs: a hundredth of the data, hardly any training, one seed; no evidence of anything",
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
        "the paper's design and data with smaller batches, fewer updates but for TD3+BC (a quarter for CQL), a smaller "
        "DT, higher learning rates of DT and of the inverse dynamics model, three seeds",
        size="full",
        seeds=3,
        episodes=30,
        looks=10,
        agents={
            "td3bc": {"batch": 256},  # as it was published; with fewer updates some sets are hardly begun
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
    """The scale of that name."""
    if isinstance(name, Scale):
        return name
    if name not in SCALES:
        raise SsorlError(f"--scale {name}: is none; {nearest(name, SCALES)}")
    return SCALES[name]
