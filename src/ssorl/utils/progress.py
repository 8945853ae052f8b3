"""Progress of long commands: a bar with rate and remaining time in terminals and notebooks, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractContextManager
from contextvars import ContextVar
from html import escape
from types import TracebackType
from typing import Any, TextIO

EVERY = 10.0  # seconds between lines of plain text
EVERY_IN_NOTEBOOK = 0.2  # seconds between updates of a notebook's bar
QUIET = ContextVar("quiet", default=False)  # whether progress is off; `--quiet` sets it


class Progress(AbstractContextManager):
    """Progress of the tasks of one command; call it as `progress(task, n, note)` when `n` more units are done.

    It writes to standard error, so that standard output contains only the result.
    """

    def __init__(
        self, totals: dict[str, tuple[int, str]], stream: TextIO | None = None, quiet: bool | None = None
    ) -> None:
        """Set up the tasks.

        Args:
            totals: (number of units, name of the unit) by task, in the order of the work; 0 if the number is unknown.
            stream: where to write; standard error by default.
            quiet: write nothing; by default the value of `QUIET`.
        """
        self.totals, self.stream = totals, stream or sys.stderr
        self.done = dict.fromkeys(totals, 0)
        self.began: dict[str, tuple[float, int]] = {}  # task -> time of its first call, units done by then
        self.printed_at = time.monotonic()
        self.ended: set[str] = set()
        self.quiet = QUIET.get() if quiet is None else quiet
        terminal = self.stream.isatty() and os.environ.get("TERM") != "dumb"
        self.bar = _bar() if terminal and not self.quiet else None
        self.notebook = None if self.bar or self.quiet or stream is not None else _notebook_display()
        self.ids = {}

    def __call__(self, task: str, n: int, note: str = "") -> None:
        """Count `n` more units of a task.

        Args:
            task: a key of `totals`.
            n: units done since the last call.
            note: text to show after the rate.
        """
        now, total = time.monotonic(), self.totals[task][0]
        self.done[task] += n
        # The rate is measured from the first call on, to exclude compilation.
        self.began.setdefault(task, (now, n))
        complete = self.done[task] >= total > 0 and task not in self.ended
        if self.bar is not None:
            if task not in self.ids:
                self.ids[task] = self.bar.add_task(task, total=total or None, line="")
            self.bar.update(self.ids[task], advance=n, line=self._line(task, now, note))
        elif self.quiet or not (complete or now - self.printed_at >= (EVERY_IN_NOTEBOOK if self.notebook else EVERY)):
            return
        else:
            self.printed_at = now
            self.ended |= {task} if self.done[task] >= total else set()  # so the last line is printed once
            if self.notebook is not None:
                self.notebook.update({"text/html": self._html(now, task, note)}, raw=True)
            else:
                print(f"{task}: {self._line(task, now, note)}", file=self.stream, flush=True)

    def say(self, text: str) -> None:
        """Print a line of text above the bar; nothing if quiet."""
        if self.bar is not None:
            self.bar.console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)
        elif not self.quiet:
            print(text, file=self.stream, flush=True)

    def _line(self, task: str, now: float, note: str) -> str:
        (total, unit), done, (since, before) = self.totals[task], self.done[task], self.began[task]
        parts = [f"{done:,} of {total:,} {unit}" if total else f"{done:,} {unit}"]
        if done > before and now > since:
            rate = (done - before) / (now - since)
            parts.append(f"{rate:,.0f}/s" if rate >= 1 else f"{60 * rate:.1f}/min")
            if done < total:
                parts.append(f"{duration((total - done) / rate)} left")
        return ", ".join([*parts, note] if note else parts)

    def _html(self, now: float, current: str, note: str) -> str:
        """Return HTML with one bar for each task that has begun."""
        rows = []
        for task in self.began:
            line = escape(f"{task}: {self._line(task, now, note if task == current else '')}")
            total = self.totals[task][0]
            value = f'value="{min(self.done[task], total)}" max="{total}"' if total else ""
            rows.append(f"<div><progress {value}></progress> {line}</div>")
        return "".join(rows)

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
    """Format a duration with its unit: 40 s, 12 min, 3 h 20 min."""
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


def _notebook_display() -> Any | None:
    """Return a display handle if this process is the kernel of a notebook, else None. IPython is never imported here.

    Our own bar is an HTML element: rich needs the package ipywidgets for notebooks and warns without it.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import display  # type: ignore[import-not-found]

    return display({"text/html": ""}, raw=True, display_id=True)
