"""`builtin/…`: the datasets that are generated on use."""

from __future__ import annotations

import difflib

from ssorl.data.collections import arm, pointmass
from ssorl.data.episodes import Episodes
from ssorl.data.validate import READ_ALL, ReadOptions
from ssorl.utils.errors import DataError

MODULES = (pointmass, arm)


def names() -> list[str]:
    """Return the names of the built-in datasets, without `builtin/`."""
    return [name for module in MODULES for name in module.names()]


def load_id(name: str, options: ReadOptions = READ_ALL) -> Episodes:
    """Return a built-in dataset.

    Args:
        name: name without `builtin/`.
        options: options of reading.

    Raises:
        DataError: the name is unknown.
    """
    for module in MODULES:
        if name in module.names():
            return module.load_id(name, options)
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"did you mean builtin/{near[0]}?" if near else f"choose one of {', '.join(names())}"
    raise DataError(f"builtin/{name}: is not a built-in dataset; {hint}")
