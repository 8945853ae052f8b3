"""What a call costs on any machine: how many functions it enters and how much memory it asks for, not seconds."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FEW_CALLS, LITTLE_MEMORY = 1_000_000, 16 << 20  # several times what the dearest refusal takes


class Effort:
    """The cost of a block of code: `calls` of Python and C functions by this thread, `peak` bytes above the start."""

    def __init__(self) -> None:
        self.calls, self.peak = 0, 0

    @property
    def small(self) -> bool:
        """Whether it is what a refusal may cost: nothing was unpacked, unfolded or granted."""
        return self.calls < FEW_CALLS and self.peak < LITTLE_MEMORY

    def _count(self, frame: Any, event: str, arg: Any) -> None:
        self.calls += event in ("call", "c_call")


@contextmanager
def effort() -> Iterator[Effort]:
    """Measure the block. Memory counts if Python or NumPy allocates it."""
    spent, before = Effort(), sys.getprofile()
    tracemalloc.start()
    sys.setprofile(spent._count)
    try:
        yield spent
    finally:
        sys.setprofile(before)
        spent.peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
