"""Inverse dynamics models: the paper's, a better one, self-training, and labels with their uncertainty."""

from dataclasses import replace

from ssorl.idm.model import IdmConfig

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

IDMS: dict[str, IdmConfig] = {  # by name; those that end in -quick fit in about a minute without an accelerator
    "paper": IdmConfig(),
    "robust": _ROBUST,
    "paper-quick": replace(IdmConfig(), **_QUICK),
    "robust-quick": replace(_ROBUST, members=2, affine=False, **_QUICK),
}
