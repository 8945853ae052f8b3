"""The help pages: what they import, how wide they are, and the order of their groups."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

HEAVY = {"jax", "numpy", "scipy", "optax", "h5py", "minari", "gymnasium", "mujoco", "matplotlib", "jinja2", "rich"}
# Prints the help of each command of a line, and on the last line the packages that were imported.
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
COMMANDS = ("", "run", "label", "evaluate", "export", "completion", "behaviour", "behaviour list", "behaviour train")
COMMANDS += ("data", "data list", "data show", "data convert", "data split")
COMMANDS += ("study", "study list", "study show", "study run", "study status", "study report")
GROUPS = ["options", "data", "split", "inverse dynamics model", "agent", "evaluation", "study", "ray"]


@pytest.fixture(scope="module")
def printed() -> list[str]:
    env = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    args = [sys.executable, "-c", HELP, *COMMANDS]
    return subprocess.run(args, capture_output=True, text=True, check=True, env=env).stdout.splitlines()


@pytest.fixture(scope="module")
def pages(printed) -> dict[str, list[str]]:
    """The lines of each command's help."""
    starts = [number for number, line in enumerate(printed) if line.startswith("usage: ")]
    assert len(starts) == len(COMMANDS)
    ends = [*starts[1:], len(printed) - 1]
    return {command: printed[a:b] for command, a, b in zip(COMMANDS, starts, ends, strict=True)}


def test_help_and_the_package_import_nothing_heavy(printed):
    imported = set(printed[-1].split())
    assert {"ssorl", "tyro"} <= imported and not imported & HEAVY


def test_help_fits_80_columns(pages):
    assert [line for page in pages.values() for line in page if len(line) > 80] == []
    assert len(pages[""]) <= 24  # the list of commands fits a small terminal


def test_help_has_all_paragraphs_on_the_commands_own_page(pages):
    sentence = "An inverse dynamics model is fitted"
    assert sentence in " ".join(pages["label"]) and sentence not in " ".join(pages[""])


def test_option_groups_have_the_same_order_in_every_command(pages):
    for command, page in pages.items():
        titles = re.findall(r"╭─ ([a-z ]+?) ─", "\n".join(page))
        groups = [title.removesuffix(" options") for title in titles]
        known = [name for name in groups if name in GROUPS]
        assert known == sorted(known, key=GROUPS.index) and "options" in known, command
