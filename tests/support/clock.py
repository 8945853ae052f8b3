"""The one limit for waiting. A test waits for an event; a limit only ends a test whose event never comes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FACTOR = float(os.environ.get("SSORL_TEST_PATIENCE", "1"))  # larger on a slow machine


def patience(seconds: float = 300) -> float:
    """Return how many seconds to wait for an event before the test fails, scaled by SSORL_TEST_PATIENCE."""
    return seconds * FACTOR


def until(there: Callable[[], T], seconds: float = 300) -> T:
    """Ask again and again until the answer is true, and return it; for events that cannot be waited for otherwise."""
    end = time.monotonic() + patience(seconds)
    while not (found := there()):
        assert time.monotonic() < end, f"waited {patience(seconds):.0f} s in vain; set SSORL_TEST_PATIENCE=2 or higher"
        time.sleep(0.01)
    return found
