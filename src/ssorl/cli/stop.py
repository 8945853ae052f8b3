"""Ctrl-C and SIGTERM: the first signal stops the command cleanly, the second one at once.

Python handles a signal in the main thread, between two bytecode instructions, by raising an exception. In a program
that uses JAX this fails in two ways. During a compilation in C++ no Python instruction runs, so nothing happens until
it ends, which may take a minute. And JAX has a Python callback in the garbage collector: Python prints an exception
raised there and drops it. Hence a thread that reads every signal at once, and a hook that notices dropped exceptions.
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
DROPPED = 0  # written to the pipe of signal numbers when an exception was dropped
RETRY_SECONDS = 0.05  # until a signal that had no effect is sent to the main thread again
PATIENCE = 1.0  # seconds after which a message explains the wait
SAME_WISH = 0.5  # seconds within which two signals count as one; `timeout` and others send a signal twice


class Stop:
    """The state of a stop."""

    def __init__(self) -> None:
        """Start without a signal."""
        self.number: int | None = None  # the first signal
        self.raised = False  # KeyboardInterrupt was raised in the main thread, and not dropped

    @property
    def code(self) -> int:
        """Return the exit code after a signal: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.number or signal.SIGINT)


@contextmanager
def stoppable(say: Callable[[str], None]) -> Iterator[Stop]:
    """Raise KeyboardInterrupt at the first signal during the block, and end the process at the second.

    Args:
        say: prints a message to the user.
    """
    stop = Stop()
    handled = [s for s in SIGNALS if signal.getsignal(s) != signal.SIG_IGN]  # `nohup` and a shell's `&` ignore some
    if threading.current_thread() is not threading.main_thread() or not handled:
        yield stop
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)

    def interrupt(number: int, frame: Any) -> None:
        stop.number = stop.number or number
        in_hook = frame is not None and frame.f_code is on_dropped.__code__  # an exception would be dropped there too
        if not stop.raised and not in_hook:  # raised only once, so that cleaning up is not interrupted
            stop.raised = True
            raise KeyboardInterrupt

    def on_dropped(error: Any) -> None:
        if stop.raised and issubclass(error.exc_type, KeyboardInterrupt):
            stop.raised = False
            os.write(write_end, bytes([DROPPED]))
        else:
            old_hook(error)

    old_handlers = {number: signal.signal(number, interrupt) for number in handled}
    old_fd, old_hook = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False), sys.unraisablehook
    sys.unraisablehook = on_dropped
    listener = threading.Thread(target=_listen, args=(read_end, stop, say, interrupt), daemon=True)
    listener.start()
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(old_fd)
        os.close(write_end)  # this ends the listener
        listener.join()
        os.close(read_end)
        sys.unraisablehook = old_hook
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


def _listen(read_end: int, stop: Stop, say: Callable[[str], None], interrupt: Callable[..., None]) -> None:
    """Read signal numbers until the pipe is closed, and ensure that the main thread gets the first signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # signals must reach the main thread
    first_time, retry_time, own_signal, explained = 0.0, 0.0, False, False
    while True:
        pending = bool(first_time) and not (stop.raised and explained)
        ready = select.select([read_end], [], [], RETRY_SECONDS if pending else None)[0]
        byte = os.read(read_end, 1) if ready else None
        now = time.monotonic()
        if byte == b"":
            return
        if byte and byte[0] in SIGNALS:
            if own_signal:
                own_signal = False
            elif first_time and now - first_time > SAME_WISH:
                say("stopped at once")
                os._exit(stop.code)
            else:
                first_time, stop.number = first_time or now, stop.number or byte[0]
        if first_time and not explained and now - first_time > PATIENCE:
            say("stops when this step ends; press again to stop at once")
            explained = True
        if first_time and not stop.raised and not own_signal and now - max(first_time, retry_time) > RETRY_SECONDS:
            # The exception was dropped, or the signal came just before a wait that it should have interrupted.
            number = signal.Signals(stop.number or signal.SIGINT)
            if signal.getsignal(number) is interrupt:  # Ray replaces our handler of SIGTERM, and needs no second signal
                retry_time, own_signal = now, True
                signal.pthread_kill(threading.main_thread().ident or 0, number)
