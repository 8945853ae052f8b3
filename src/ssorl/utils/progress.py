"""How far a long command is: a bar with rate and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import TracebackType
from typing import TextIO

EVERY = 10.0  # seconds between lines where there is no terminal
QUIET = ContextVar("quiet", default=False)  # whether nobody wants to hear of progress; the command line sets it


class Progress(AbstractContextManager):
    """Called as `progress(what, n, note)` whenever `n` more of a task are done; its tasks are named with their totals.

    Writes to standard error, so that standard output holds the result alone.
    """

    def __init__(self, totals: dict[str, tuple[int, str]], stream: TextIO | None = None) -> None:
        """`totals` maps a task to how many of what it is made of, in the order of the work."""
        self.totals, self.stream = totals, stream or sys.stderr
        self.done = dict.fromkeys(totals, 0)
        self.began: dict[str, tuple[float, int]] = {}  # when a task was first heard of, and what was done by then
        self.said = time.monotonic()
        self.ended: set[str] = set()
        self.quiet = QUIET.get()
        lively = self.stream.isatty() and os.environ.get("TERM") != "dumb"
        self.bar = _bar() if lively and not self.quiet else None
        self.ids = {}

    def __call__(self, what: str, n: int, note: str = "") -> None:
        """Count `n` more."""
        now, total = time.monotonic(), self.totals[what][0]
        self.done[what] += n
        # The first call starts the clock: what came before it is compilation, which tells nothing of the rate.
        self.began.setdefault(what, (now, n))
        if self.bar is not None:
            if what not in self.ids:
                self.ids[what] = self.bar.add_task(what, total=total or None, line="")
            self.bar.update(self.ids[what], advance=n, line=self._line(what, now, note))
        elif self.quiet:
            return
        elif now - self.said >= EVERY or (self.done[what] >= total > 0 and what not in self.ended):
            self.said = now
            self.ended |= {what} if self.done[what] >= total else set()  # some overshoot: one last line all the same
            print(f"{what}: {self._line(what, now, note)}", file=self.stream, flush=True)

    def say(self, text: str) -> None:
        """A line of its own, above the bar."""
        if self.bar is not None:
            self.bar.console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)
        elif not self.quiet:
            print(text, file=self.stream, flush=True)

    def _line(self, what: str, now: float, note: str) -> str:
        (total, unit), done, (since, before) = self.totals[what], self.done[what], self.began[what]
        parts = [f"{done:,} of {total:,} {unit}" if total else f"{done:,} {unit}"]  # a total of 0 is not known
        if done > before and now > since:
            rate = (done - before) / (now - since)
            parts.append(f"{rate:,.0f}/s" if rate >= 1 else f"{60 * rate:.1f}/min")
            if done < total:
                parts.append(f"{duration((total - done) / rate)} left")
        return ", ".join([*parts, note] if note else parts)

    def __enter__(self) -> Progress:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()


def duration(seconds: float) -> str:
    """A time to be read at a glance: 40 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _bar():
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[line]}", markup=False)
    return Bar(*columns, console=Console(stderr=True))
