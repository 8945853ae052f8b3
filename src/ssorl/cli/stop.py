"""Ctrl-C and SIGTERM: heard once, whatever the process is doing; twice, it ends at once.

Python hands a signal to the main thread between two of its instructions, as an exception. That fails in two ways in
a program that uses JAX. A compilation in C++ has no such place, so it ends first, which may take a minute. And JAX has
a callback in the garbage collector, in Python: an exception raised there is printed and dropped, so the key is not
heard at all. Hence a thread that hears every signal at once, and a hook that tells it of what was dropped.
"""

from __future__ import annotations

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
DROPPED = 0  # written where signals write their numbers, to wake who reads them
KNOCK = 0.05  # seconds between two tries to be heard
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
        inside = frame is not None and frame.f_code is dropped.__code__  # from there too it would be dropped
        if not stop.raised and not inside:  # a second time would hit those who clean up
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
    listener = threading.Thread(target=_listen, args=(hear, stop, say, interrupt), daemon=True)
    listener.start()
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(was_fd)
        os.close(tell)  # by which the listener ends
        listener.join()
        os.close(hear)
        sys.unraisablehook = was_hook
        for number, handler in was.items():
            signal.signal(number, handler)


def _listen(hear: int, stop: Stop, say: Callable[[str], None], ours: Callable[..., None]) -> None:
    """Read the numbers of signals until the pipe is closed, and see to it that the main thread hears the first."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # they are to wake the main thread
    first, knocked, owed, told = 0.0, 0.0, False, False
    while True:
        restless = bool(first) and not (stop.raised and told)
        heard = os.read(hear, 1) if select.select([hear], [], [], KNOCK if restless else None)[0] else None
        now = time.monotonic()
        if heard == b"":
            return
        if heard and heard[0] in SIGNALS:
            if owed:
                owed = False  # our own knocking
            elif first and now - first > TWICE:
                say("stopped at once")
                os._exit(stop.code)
            else:
                first, stop.number = first or now, stop.number or heard[0]
        if first and not told and now - first > PATIENCE:
            say("stops when this step ends; once more stops at once")
            told = True
        if first and not stop.raised and not owed and now - max(first, knocked) > KNOCK:
            # It was dropped, or came just before a wait that it was to break off.
            number = signal.Signals(stop.number or signal.SIGINT)
            if signal.getsignal(number) is ours:  # Ray has a handler for SIGTERM of its own, which needs no second call
                knocked, owed = now, True
                signal.pthread_kill(threading.main_thread().ident or 0, number)
