"""Ctrl-C and SIGTERM: heard once, whatever the process is doing; twice, it ends at once.

Python hands a signal to the main thread between two of its instructions, as an exception. That fails in two ways in
a program that uses JAX. A compilation in C++ has no such place, so it ends first, which may take a minute. And JAX has
a callback in the garbage collector, in Python: an exception raised there is printed and dropped, so the key is not
heard at all. Hence a thread that hears every signal at once, and a hook that tells it of what was dropped.
"""

from __future__ import annotations

import _thread
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
DROPPED = 0  # written where signals write their numbers: an exception was dropped, so raise it again
PATIENCE = 1.0  # seconds after which a user is told why nothing happens
TWICE = 0.5  # seconds between two presses; `timeout` and the like send one signal twice


class Stop:
    """What is known of a stop."""

    def __init__(self) -> None:
        """None was asked for so far."""
        self.number: int | None = None  # the signal that asked first
        self.raised = False  # as an exception in the main thread, and not dropped there

    @property
    def code(self) -> int:
        """What a process that a signal ended ends with: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.number or signal.SIGINT)


@contextmanager
def stoppable(say: Callable[[str], None]) -> Iterator[Stop]:
    """While this lasts a signal raises KeyboardInterrupt, and the second one ends the process."""
    stop = Stop()
    wanted = [s for s in SIGNALS if signal.getsignal(s) != signal.SIG_IGN]  # of `nohup`, or a shell's `&`
    if threading.current_thread() is not threading.main_thread() or not wanted:
        yield stop
        return
    hear, tell = os.pipe()
    os.set_blocking(tell, False)

    def interrupt(number: int, frame: Any) -> None:
        stop.number = stop.number or number
        if not stop.raised:  # a second time would hit those who clean up
            stop.raised = True
            raise KeyboardInterrupt

    def dropped(what: Any) -> None:
        if stop.raised and issubclass(what.exc_type, KeyboardInterrupt):
            stop.raised = False
            os.write(tell, bytes([DROPPED]))
        else:
            was_hook(what)

    was = {number: signal.signal(number, interrupt) for number in wanted}
    was_fd, was_hook = signal.set_wakeup_fd(tell, warn_on_full_buffer=False), sys.unraisablehook
    sys.unraisablehook = dropped
    listener = threading.Thread(target=_listen, args=(hear, stop, say), daemon=True)
    listener.start()
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(was_fd)
        sys.unraisablehook = was_hook
        for number, handler in was.items():
            signal.signal(number, handler)
        os.close(tell)  # the listener's last word
        listener.join()
        os.close(hear)


def _listen(hear: int, stop: Stop, say: Callable[[str], None]) -> None:
    """Read the numbers of signals until the pipe is closed."""
    first, again, told = 0.0, 0, False
    while True:
        if not select.select([hear], [], [], PATIENCE if first and not told else None)[0]:
            say("stops when this step ends; once more stops at once")
            told = True
            continue
        heard = os.read(hear, 1)
        if not heard:
            return
        number = heard[0]
        if number == DROPPED:
            again += 1  # what is raised anew is heard here too
            time.sleep(0.01)  # out of the collector
            _thread.interrupt_main(signal.Signals(stop.number or signal.SIGINT))
        elif number in SIGNALS and again:
            again -= 1
        elif number in SIGNALS and not first:
            first, stop.number = time.monotonic(), number
        elif number in SIGNALS and time.monotonic() - first > TWICE:
            say("stopped at once")
            os._exit(stop.code)
