"""Finished blocks of an inversion, in the cache folder, so that a stopped command continues where it was."""

from __future__ import annotations

import shutil
import time

import numpy as np

from ssorl.utils.cache import root
from ssorl.utils.files import DamagedError, read_npz, write_npz

VERSION = 1  # raise this when a change of the solver alters results
OLD = 7 * 86_400  # seconds after which the blocks of a command that never finished are removed


class Parts:
    """The blocks of one inversion by the steps that they hold."""

    def __init__(self, key: str) -> None:
        """Find the blocks that an earlier call kept, and remove those of long-forgotten calls.

        Args:
            key: digest of the inputs.
        """
        self.folder = root() / "simulator" / f"{VERSION}-{key}"
        for other in self.folder.parent.glob("*"):
            if other != self.folder and other.is_dir() and time.time() - other.stat().st_mtime > OLD:
                shutil.rmtree(other, ignore_errors=True)

    def get(self, steps: np.ndarray) -> dict[str, np.ndarray] | None:
        """Return a finished block, or None."""
        path = self.folder / f"{steps[0]}-{len(steps)}.npz"
        if not path.exists():
            return None
        try:
            found = read_npz(path)
        except (DamagedError, OSError):
            return None
        return found if np.array_equal(found.pop("steps", np.zeros(0)), steps) else None

    def put(self, steps: np.ndarray, block: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Store a finished block and return it."""
        write_npz(self.folder / f"{steps[0]}-{len(steps)}.npz", {"steps": steps, **block})
        return block

    def remove(self) -> None:
        """Remove all blocks: the inversion is complete."""
        shutil.rmtree(self.folder, ignore_errors=True)
