"""Mutated files: a reader gives valid trajectories or the project's own error, soon, and never ends the process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
from support.paths import environment
from support.samples import FORMATS

COUNT = int(os.environ.get("SSORL_FUZZ", "300"))  # mutations a format


@pytest.mark.parametrize("format", FORMATS)
def test_only_our_own_error_comes_out(tmp_path, format):
    """In a process of its own: libhdf5 and Arrow are C and C++, and a crash there must be seen, not suffered."""
    done = subprocess.run(
        [sys.executable, "-m", "support.fuzz_worker", format, str(COUNT), str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        errors="backslashreplace",
        timeout=60 + COUNT,
        check=False,
    )
    lines = done.stdout.splitlines()
    # The worker ends at the first crash or hang, which is then the last line; its number repeats the case.
    assert done.returncode == 0, f"{lines[-1:]}\n{done.stderr[-3000:]}"
    bad = [line for line in lines if " BAD " in line]
    assert not bad, "\n".join(line[:2000] for line in bad[:5])
    seen = Counter(line.split()[3] for line in lines)
    assert seen.total() == COUNT
    assert seen["refused"] > COUNT / 4 and seen["loaded"] > 0, (
        seen
    )  # it did change something, and not always everything
