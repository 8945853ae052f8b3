"""Where the repository is, and the environment of a child process that imports these helpers."""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent


def environment(**more: str) -> dict[str, str]:
    """Return the environment for a child process that imports `support`, with further variables."""
    path = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **more}
