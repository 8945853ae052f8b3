"""What a dataset format is: a module or an object with functions that recognise, read and write files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.data.validate import ReadOptions
from ssorl.utils.errors import SsorlError
from ssorl.utils.registry import path_of


class Format(Protocol):
    """A dataset format. Only `sniff` and `load` are required.

    Without `save`, ssorl can read the format but not write it. `suffixes`, a tuple such as (".csv",), says by which
    file names `ssorl.data.save` and `ssorl data convert` choose the format. With `open_parts(path, options)` and
    `save_parts(outline, parts, path)`, as in `ssorl.data.formats.npz`, files larger than memory can be read and written
    in parts. `ssorl.data.validate.build` makes checked Episodes from arrays.
    """

    def sniff(self, path: Path) -> bool:
        """Return whether a file or folder is in this format, from its first bytes or its layout; never raise."""
        ...

    def load(self, path: Path, options: ReadOptions) -> Episodes:
        """Read and check a file or folder.

        Args:
            path: the file or folder, which exists.
            options: the shortest trajectory to keep, and whether actions are wanted.

        Raises:
            DataError: the file cannot be read; a sentence that names the file and the cure.
        """
        ...

    def save(self, eps: Episodes, path: Path, extras: dict[str, np.ndarray]) -> None:
        """Write trajectories.

        Args:
            eps: the trajectories; a missing action is NaN.
            path: a temporary path, which gets its final name once all is written.
            extras: further arrays of one row a step, such as which actions are proxies, for the format to keep where
                its readers do not look by themselves.
        """
        ...


def check_format(name: str, value: Any) -> Any:
    """Return a module or object if it has what a format needs.

    Raises:
        SsorlError: it lacks a function.
    """
    for needed in ("sniff", "load"):
        if not callable(getattr(value, needed, None)):
            raise SsorlError(f"the format {name}: {path_of(value)} has no function {needed}; see docs/data.md")
    return value
