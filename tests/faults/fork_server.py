"""`ssorl` commands in processes of their own that start at once: this one has imported everything and forks.

A line on standard input is JSON: `commands`, each a list of arguments, run side by side; `log`: what they print goes to
the files LOG.0, LOG.1, …; `kill`: so many seconds after the first has printed something all of them are killed as by
`kill -9` (null: never). The answer is a line of exit codes, -9 for a killed one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import jax  # noqa: F401  (no device is touched before the fork: threads would not survive it)

import ssorl.cli.run
import ssorl.report.study
import ssorl.report.teller
import ssorl.runs
import ssorl.study.schedule  # noqa: F401
from ssorl.cli import main


def begin(args: list[str], log: str) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.argv = ["ssorl", *args]
        main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def watch(children: list[int], kill: float | None, log: str) -> list[int]:
    """Exit codes. A child stays ours until it is waited for, so that no other process can have its number."""
    codes: dict[int, int] = {}
    deadline = None
    while len(codes) < len(children):
        if kill is not None and deadline is None and os.path.exists(log) and os.path.getsize(log):
            deadline = time.monotonic() + kill
        for child in children:
            if child not in codes:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    codes[child] = os.waitstatus_to_exitcode(status)
                elif deadline is not None and time.monotonic() > deadline:
                    os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    return [codes[child] for child in children]


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        for i in range(len(asked["commands"])):
            Path(f"{asked['log']}.{i}").unlink(missing_ok=True)
        children = [begin(args, f"{asked['log']}.{i}") for i, args in enumerate(asked["commands"])]
        print(json.dumps(watch(children, asked["kill"], f"{asked['log']}.0")), flush=True)
