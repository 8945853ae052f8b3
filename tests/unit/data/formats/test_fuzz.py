"""Mutated files: a reader gives valid trajectories or the project's own error and never ends the process."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from support.clock import patience
from support.paths import environment
from support.samples import FORMATS, READ_ONLY

CASES = 15_000  # mutations a format in a campaign


@pytest.mark.parametrize("format", (*FORMATS, *READ_ONLY))
def test_only_our_own_error_comes_out(tmp_path, format, campaign):
    """In a process of its own: libhdf5 and Arrow are C and C++, and a crash there must be seen, not suffered."""
    count = campaign.count(CASES)
    done = subprocess.run(
        [sys.executable, "-m", "support.fuzz_worker", format, str(count), str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        errors="backslashreplace",
        timeout=patience(600 + count),
    )
    lines = done.stdout.splitlines()
    # The worker ends at the first crash or hang, which is then the last line; its number repeats the case.
    assert done.returncode == 0, f"{lines[-1:]}\n{done.stderr[-3000:]}"
    bad = [line for line in lines if " BAD " in line]
    assert not bad, "\n".join(line[:2000] for line in bad[:5])
    seen = Counter(line.split()[3] for line in lines)
    assert seen.total() == count
    assert seen["refused"] > count / 4 and seen["loaded"] > 0, seen  # some mutations do harm, and some do none
