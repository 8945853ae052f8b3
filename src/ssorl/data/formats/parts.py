"""Readers whose trajectories can be read from one index to another: whole files and parts by the same code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes, Meta, offsets
from ssorl.data.stream import PartReader, part_bounds
from ssorl.data.validate import Raw, ReadOptions, build, parser_errors, with_reader_notes


class Source(NamedTuple):
    """An open file or folder."""

    meta: Meta
    lengths: np.ndarray  # [E], about how many steps each trajectory has
    read: Callable[[int, int], Raw]  # the trajectories from one index up to another


Opener = Callable[[Path, ReadOptions], AbstractContextManager[Source]]


def load_whole(opened: Opener, kind: str, path: Path, options: ReadOptions) -> Episodes:
    """Return all trajectories, checked.

    Args:
        opened: opens a file of the format.
        kind: the format in words, for errors.
        path: the file or folder.
        options: see `ReadOptions`.

    Raises:
        DataError: the file cannot be read, or its content is invalid.
    """
    with parser_errors(str(path), kind), opened(path, options) as source:
        raw = source.read(0, len(source.lengths))
        return build(*raw[:5], with_reader_notes(source.meta, raw.dropped, raw.mismatched), options, raw.number)


def open_by_index(opened: Opener, kind: str, path: Path, options: ReadOptions) -> PartReader:
    """Return a reader that yields some trajectories at a time; the arguments are those of `load_whole`."""
    with parser_errors(str(path), kind), opened(path, options) as source:
        meta, start = source.meta, offsets(source.lengths)

    def read(size: int) -> Iterator[Raw]:
        with opened(path, options) as source:
            for first, last in part_bounds(start, size):
                yield source.read(first, last)

    return PartReader(meta, int(start[-1]), kind, read)


def natural(name: str) -> list:
    """Return a sort key that puts `demo_10` after `demo_9`."""
    return [
        (0, int(part), "") if part.isdigit() and len(part) < 19 else (1, 0, part) for part in re.split(r"(\d+)", name)
    ]
