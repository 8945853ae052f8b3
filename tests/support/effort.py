"""The cost of a call, independent of the machine: function calls and memory instead of seconds."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FEW_CALLS, LITTLE_MEMORY = 1_000_000, 16 << 20  # several times the cost of the most expensive error


class Effort:
    """The cost of a block of code: `calls` of Python and C functions by this thread, `peak` bytes above the start."""

    def __init__(self) -> None:
        self.calls, self.peak = 0, 0

    @property
    def small(self) -> bool:
        """Return whether the cost is that of an early error, before anything was unpacked or allocated."""
        return self.calls < FEW_CALLS and self.peak < LITTLE_MEMORY

    def _count(self, frame: Any, event: str, arg: Any) -> None:
        self.calls += event in ("call", "c_call")


@contextmanager
def effort() -> Iterator[Effort]:
    """Measure the block. Memory counts if Python or NumPy allocates it."""
    cost, before = Effort(), sys.getprofile()
    tracemalloc.start()
    sys.setprofile(cost._count)
    try:
        yield cost
    finally:
        sys.setprofile(before)
        cost.peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
