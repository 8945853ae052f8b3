"""What starting the command line imports: help is for people who wait for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"jax", "numpy", "scipy", "optax", "h5py", "minari", "gymnasium", "mujoco", "matplotlib", "jinja2", "rich"}
# Asks for help on each command of a line, and tells on the last line of what it prints which packages were imported.
HELP = """
import sys
from contextlib import suppress
import ssorl
from ssorl.cli import main
for command in sys.argv[1:]:
    with suppress(SystemExit):
        main([*command.split(), "--help"])
print(*{name.partition(".")[0] for name in sys.modules})
"""
COMMANDS = ("", "run", "label", "evaluate", "export", "data", "data convert", "study", "study run")


@pytest.fixture(scope="module")
def printed() -> list[str]:
    done = subprocess.run([sys.executable, "-c", HELP, *COMMANDS], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_help_and_the_package_import_nothing_heavy(printed):
    imported = set(printed[-1].split())
    assert {"ssorl", "tyro"} <= imported and not imported & HEAVY


def test_every_command_prints_help(printed):
    assert sum(line.startswith("usage: ") for line in printed) == len(COMMANDS)
