"""Helpers of the fault tests: tiny commands, processes that run them, and the bits of their results."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ssorl.report.schema import read
from ssorl.utils.files import read_json
from support.paths import environment

# Networks so small that a run takes seconds, most of them in training with many snapshots.
TINY = ["--agent", "bc", "--updates", "1000", "--set", "hidden=8,", "batch=16", "--idm", "paper", "--idm-updates", "40"]
TINY += ["--episodes", "2", "--fraction", "0.2"]
STUDY = """
[base]
dataset = "DATA"
agent = "bc"
fraction = 0.2
settings = {hidden = [8], batch = 16, updates = 400}
idm_settings = {hidden = [8], steps = 80, validate_every = 40, batch = 32}
episodes = 2
looks = 10
[axes]
quality = [50, 100]
variant = ["baseline", "ss", "oracle"]
"""
VARYING = ("timings", "started", "command", "commit", "hardware")  # entries that may differ between equal runs


class Server:
    """A process that starts `ssorl` commands at once (`fork_server`)."""

    def __init__(self, process: subprocess.Popen, log: Path) -> None:
        self.process, self.log = process, log

    def __call__(self, command: list, home: Path, kill: int | None = None) -> tuple[int, int | None]:
        """Return a command's exit code and how many changes it made below `home`; kill it before change `kill`."""
        answer = self._ask([command], home, kill=kill)
        return answer["codes"][0], answer["changes"]

    def together(self, first: list, second: list, home: Path, hold: int) -> list[int]:
        """Return the exit codes of two commands; the second begins while the first waits before its change `hold`."""
        return self._ask([first, second], home, hold=hold)["codes"]

    def _ask(self, commands: list[list], home: Path, **more: int | None) -> dict:
        args = [[str(arg) for arg in command] for command in commands]
        request = {"commands": args, "log": str(self.log), "home": str(home), **more}
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def output(self, number: int = 0) -> str:
        """Return what the first (0) or second (1) command of the last call printed."""
        return Path(f"{self.log}.{number}").read_text()


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    """Start the server. Compiled programs of any size are cached, so that commands start quickly."""
    cache = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    command = [sys.executable, "-m", "support.fork_server"]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment(**cache)) as process:
        yield Server(process, folder / "log")
        assert process.stdin
        process.stdin.close()


def run_bits(folder: Path) -> dict:
    """Return the result of a finished run: its numbers, and its policies as bytes."""
    content = {k: v for k, v in read(folder).items() if k not in VARYING}
    return {"told": content, **{p.name: p.read_bytes() for p in sorted(folder.glob("policies/*.npz"))}}


def study_bits(store: Path) -> dict:
    """Return the results of a store's cells."""
    cells = {p.parent.name: read_json(p) for p in sorted(store.glob("cells/*/result.json"))}
    return {name: {k: v for k, v in cell.items() if k not in VARYING} for name, cell in cells.items()}
