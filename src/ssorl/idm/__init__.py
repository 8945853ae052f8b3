"""Inverse dynamics models: the paper's, a better one, self-training, and labels with their uncertainty."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ssorl.idm.base import NETWORK, IdmSpec
from ssorl.idm.blend.config import BlendConfig
from ssorl.idm.model import IdmConfig
from ssorl.utils.errors import SsorlError
from ssorl.utils.identity import identifying_fields
from ssorl.utils.registry import Registry, path_of

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

BUILT_IN: dict[str, IdmSpec] = {  # by name; those that end in -quick fit in about a minute without an accelerator
    "paper": IdmConfig(),
    "robust": _ROBUST,
    "paper-quick": replace(IdmConfig(), **_QUICK),
    "blend": BlendConfig(hidden=(512, 512, 512), steps=30_000),
    "blend-quick": BlendConfig(),
    "robust-quick": replace(_ROBUST, members=2, affine=False, **_QUICK),
}


def check_idm(name: str, value: Any) -> IdmSpec:
    """Return a configuration: the value itself, or of a class the one with its defaults.

    Raises:
        SsorlError: it is neither, or its family is that of another class.
    """
    if not isinstance(value, IdmSpec) and not (isinstance(value, type) and issubclass(value, IdmSpec)):
        raise SsorlError(f"the inverse dynamics model {name} is {value!r}; give an instance of ssorl.idm.base.IdmSpec")
    family = getattr(value, "FAMILY", None)
    if not isinstance(family, str) or not family:
        raise SsorlError(f"the inverse dynamics model {name}: {path_of(value)} has no FAMILY; give the class one")
    kind = value if isinstance(value, type) else type(value)
    other = _families().get(family, kind)
    if other is not kind and path_of(other) != path_of(kind):
        raise SsorlError(
            f"the inverse dynamics model {name}: its FAMILY {family!r} is that of {path_of(other)}; choose another"
        )
    return value() if isinstance(value, type) else value


IDMS: Registry[IdmSpec] = Registry("inverse dynamics model", "ssorl.idms", "--idm", BUILT_IN, check_idm)


def register_idm(name: str, spec: IdmSpec) -> None:
    """Make an inverse dynamics model known under a name in this process.

    Other processes do not know it. A package that declares the configuration as an entry point of the group
    `ssorl.idms` makes it known wherever the package is installed.

    Args:
        name: what `--idm` calls it; not the name of a built-in model. If NAME-quick is registered too, the preset
            `quick` chooses that one.
        spec: the configuration. Saved models of its family can be loaded from then on.

    Raises:
        SsorlError: the name or the family is taken, or it is no configuration.
    """
    IDMS.register(name, spec)


def idm_name(idm: Any) -> str:
    """Return what results call a model that the user chose: its name, or the family of a configuration."""
    return idm if isinstance(idm, str) else idm.FAMILY if isinstance(idm, IdmSpec) else "fitted"


def spec_class(family: str) -> type[IdmSpec]:
    """Return the class of a family's configurations, which is built in, registered or installed.

    Raises:
        SsorlError: there is no such family.
    """
    if family not in _families():
        for name in IDMS.names():
            with suppress(SsorlError):  # a package that is broken, but not the one that is needed
                IDMS.find(name)
    kinds = _families()
    if family not in kinds:
        raise SsorlError(
            f"no inverse dynamics model of the family {family!r} is installed, only of {', '.join(sorted(kinds))}; "
            "install the package that has it, or name a model of it with --idm-module MODULE:NAME"
        )
    return kinds[family]


def _families() -> dict[str, type[IdmSpec]]:
    return {spec.FAMILY: type(spec) for spec in IDMS.values()}


def settings_of(spec: IdmSpec) -> dict[str, Any]:
    """Return the fields that identify a configuration, and `family` if it is not the network."""
    family = {} if spec.FAMILY == NETWORK else {"family": spec.FAMILY}
    return {**family, **identifying_fields(spec)}


def spec_of(settings: Mapping[str, Any]) -> IdmSpec:
    """Return the configuration with these settings; a field that is missing has its default."""
    changes = dict(settings)
    return spec_class(changes.pop("family", NETWORK))(**changes)
