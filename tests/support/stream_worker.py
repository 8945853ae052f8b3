"""As fuzz_worker.py, but every mutated file is also read in parts.

python -m support.stream_worker FORMAT COUNT FOLDER [FIRST]

Both ways must give the same trajectories, or both must refuse.
"""

from __future__ import annotations

import faulthandler
import re
import resource
import sys
from dataclasses import replace
from pathlib import Path

from ssorl.data import Episodes, concat, load
from ssorl.data.formats import open_parts
from ssorl.data.stream import open_stream
from ssorl.data.validate import ReadOptions
from ssorl.utils.errors import SsorlError
from support import fuzz_worker

ONLY_WHOLE = "column by column|comes after episode|cannot be read in parts"  # fine at once, refused in parts


def both_ways(path: Path, format: str | None = None) -> Episodes:
    """What `load` gives or raises, after the way in parts is found to agree."""
    whole, refused = None, None
    try:
        whole = load(path, format)
    except SsorlError as err:
        refused = err
    try:
        stream = open_stream(open_parts(path, format), ReadOptions(), size=5)
        parts = concat([part.eps for part in stream.parts()])
    except SsorlError as err:
        if whole is not None and not re.search(ONLY_WHOLE, str(err)):
            raise AssertionError(f"loads at once, but not in parts: {err}") from err
        raise
    assert whole is not None, f"loads in parts, but not at once: {refused}"
    assert parts.same(whole), "other trajectories in parts than at once"
    assert replace(stream.meta, source="") == replace(whole.meta, source=""), (stream.meta, whole.meta)
    return whole


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (fuzz_worker.MEMORY, fuzz_worker.MEMORY))
    faulthandler.enable()
    fuzz_worker.load = both_ways
    fuzz_worker.run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:5]))
