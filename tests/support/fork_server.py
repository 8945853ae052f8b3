"""A server that runs `ssorl` commands in child processes, which start quickly: it has imported everything and forks.

Each line on standard input is JSON: `commands`, one or two lists of arguments; `log`: their output goes to the files
LOG.0, LOG.1; `home`: the folder whose changes are counted, in the first process; `kill`: that process is killed as by
`kill -9` just before this change (null: never); `hold`: it stops just before this change until the second process has
ended or waits for it. The answer is a line of JSON: `codes`, -9 for a killed process, and `changes`, how many the first
process has made if it was not killed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import jax  # noqa: F401  (no device is touched before the fork: threads would not survive it)

import ssorl.cli.narrate
import ssorl.cli.run
import ssorl.runs.run
import ssorl.study.report.page
import ssorl.study.scheduler
from ssorl.cli import main
from support.kills import Changes


def begin(args: list[str], log: str, prepare: Callable[[], Changes | None]) -> int:
    child = os.fork()
    if child:
        return child
    code, changes = 1, None
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        changes = prepare()
        sys.argv = ["ssorl", *args]
        main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if changes:
            Path(f"{log}.changes").write_text(str(changes.count))
        os._exit(code)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def alone(args: list[str], log: str, home: str, kill: int | None) -> list[int]:
    return [ended(begin(args, f"{log}.0", lambda: Changes(home, kill)))]


def together(first: list[str], second: list[str], log: str, home: str, hold: int) -> list[int]:
    """Start the second process while the first is held, until the second waits for it or has ended."""
    held, holds = os.pipe()  # the first process signals that it is held
    met, meets = os.pipe()  # the second signals that it waits for the first; the pipe closes when it ends

    def stop() -> None:
        os.write(holds, b"x")
        os.read(met, 1)

    def stops() -> Changes:
        os.close(meets)
        return Changes(home, at=(hold, stop))

    def waits() -> None:
        os.close(holds)
        real = ssorl.study.scheduler.wait_for_others

        def wait(*args) -> None:
            os.write(meets, b"x")
            real(*args)

        ssorl.study.scheduler.wait_for_others = wait

    children = [begin(first, f"{log}.0", stops)]
    os.close(holds)
    assert os.read(held, 1) == b"x", "the first process ended before it was held"
    children.append(begin(second, f"{log}.1", waits))
    os.close(meets)
    codes = [ended(child) for child in reversed(children)][::-1]
    os.close(held)
    os.close(met)
    return codes


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        counted = Path(f"{request['log']}.0.changes")
        counted.unlink(missing_ok=True)
        if len(request["commands"]) == 1:
            codes = alone(*request["commands"], request["log"], request["home"], request["kill"])
        else:
            codes = together(*request["commands"], request["log"], request["home"], request["hold"])
        changes = int(counted.read_text()) if counted.exists() else None
        print(json.dumps({"codes": codes, "changes": changes}), flush=True)
