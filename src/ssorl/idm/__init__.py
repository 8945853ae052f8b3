"""Inverse dynamics models: the paper's, a better one, self-training, and labels with their uncertainty."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ssorl.idm.base import NETWORK, IdmSpec
from ssorl.idm.model import IdmConfig
from ssorl.utils.errors import SsorlError
from ssorl.utils.identity import identifying_fields

# What each part is worth: docs/idm.md.
_ROBUST = IdmConfig(
    hidden=(512, 512, 512),
    differences=True,
    ranks=True,
    affine=True,
    beta=0.5,
    members=3,
    steps=30_000,
    lr=1e-3,
    schedule="cosine",
    dropout=0.0,
    select="mse",
)
_QUICK = {"hidden": (256, 256), "steps": 5000, "batch": 256, "lr": 1e-3, "schedule": "cosine", "validate_every": 250}

IDMS: dict[str, IdmSpec] = {  # by name; those that end in -quick fit in about a minute without an accelerator
    "paper": IdmConfig(),
    "robust": _ROBUST,
    "paper-quick": replace(IdmConfig(), **_QUICK),
    "robust-quick": replace(_ROBUST, members=2, affine=False, **_QUICK),
}


def spec_class(family: str) -> type[IdmSpec]:
    """Return the class of the registered configurations of a family; raise SsorlError if none is registered."""
    kinds = {spec.FAMILY: type(spec) for spec in IDMS.values()}
    if family not in kinds:
        raise SsorlError(
            f"no inverse dynamics model of the family {family!r} is registered, only {', '.join(sorted(kinds))}; "
            "install or name the package that registers it"
        )
    return kinds[family]


def settings_of(spec: IdmSpec) -> dict[str, Any]:
    """Return the fields that identify a configuration, and `family` if it is not the network."""
    family = {} if spec.FAMILY == NETWORK else {"family": spec.FAMILY}
    return {**family, **identifying_fields(spec)}


def spec_of(settings: Mapping[str, Any]) -> IdmSpec:
    """Return the configuration with these settings; a field that is missing has its default."""
    changes = dict(settings)
    return spec_class(changes.pop("family", NETWORK))(**changes)
