"""What the machine offers, and which preset fits it."""

from __future__ import annotations

from typing import Literal

PRESETS = ("auto", "quick", "paper")
Preset = Literal["auto", "quick", "paper"]


def has_accelerator() -> bool:
    """Whether JAX computes on a GPU or TPU."""
    import jax

    return jax.default_backend() != "cpu"


def resolve_preset(preset: str) -> str:
    """Return the preset that `auto` stands for: `paper` with an accelerator, else `quick`; others stay as they are."""
    if preset != "auto":
        return preset
    return "paper" if has_accelerator() else "quick"
