"""Which numbers may be seeds."""

from __future__ import annotations

from numbers import Integral

from ssorl.errors import SsorlError

END = 2**32  # JAX takes a seed modulo this: larger ones would repeat the smaller


def is_seed(value: object) -> bool:
    """Whether draws of its own belong to it."""
    return isinstance(value, Integral) and not isinstance(value, bool) and 0 <= int(value) < END


def check_seed(value: object, name: str = "the seed") -> None:
    """Refuse what is none."""
    if not is_seed(value):
        raise SsorlError(f"{name} is {value}; give a whole number from 0 up and below 2**32")
