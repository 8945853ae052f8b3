"""Streams: datasets larger than memory. Trajectories stay on disk and are read in parts, repeatedly if necessary."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes, Meta, action_range, offsets
from ssorl.data.split import Split, split_members
from ssorl.data.stats import precision_warnings
from ssorl.data.validate import Raw, ReadOptions, build, files_below, parser_errors, with_reader_notes
from ssorl.utils.display import html_table, short_repr
from ssorl.utils.errors import DataError

PART_STEPS = 1 << 18  # steps of a part; a longer trajectory is a part of its own
MEMORY_SHARE = 1 / 8  # files above this share of the free memory are streamed: unpacked, they take several times more


class Header(NamedTuple):
    """Metadata and sizes that a writer needs before the first trajectory."""

    meta: Meta
    n_episodes: int
    n_steps: int
    n_obs: int
    n_act: int


LabelledPart = tuple[Episodes, dict[str, np.ndarray]]  # trajectories, and further arrays [S, ...] by name


def header_of(eps: Episodes) -> Header:
    """Return the header of trajectories in memory."""
    return Header(eps.meta, eps.n_episodes, eps.n_steps, eps.n_obs, eps.n_act)


class PartReader(NamedTuple):
    """A file that can be read in parts."""

    meta: Meta  # metadata of the file, with the notes of its reader
    n_steps: int  # approximate number of steps, for a progress bar
    kind: str  # kind of file, in words
    read: Callable[[int], Iterator[Raw]]  # reads the whole file in parts of at most this many steps


def exceeds_memory(*paths: Path) -> bool:
    """Return whether files or folders are together too large to load, compared with the free memory."""
    files = [f for p in paths for f in ([p] if p.is_file() else files_below(p))]
    return sum(f.stat().st_size for f in files if f.is_file()) > MEMORY_SHARE * free_memory()


def free_memory() -> float:
    """Return the memory in bytes that the process can still allocate; infinity if the system does not report it."""
    limits = [float("inf")]
    for file, unit, pattern in (
        ("/proc/meminfo", 1024, r"MemAvailable:\s+(\d+)"),
        ("/sys/fs/cgroup/memory.max", 1, r"(\d+)"),
    ):
        with suppress(OSError):
            limits += [unit * float(x) for x in re.findall(pattern, Path(file).read_text())]
    return min(limits)


def part_bounds(start: np.ndarray, size: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of parts with at most `size` steps each, or with a single longer trajectory.

    Args:
        start: first step of each trajectory, then the number of steps [E+1].
        size: largest number of steps of a part.

    Yields:
        The first trajectory of a part, and the first one after it.
    """
    first = 0
    while first < len(start) - 1:
        last = max(first + 1, int(np.searchsorted(start, start[first] + size, side="right")) - 1)
        yield first, last
        first = last


class Part(NamedTuple):
    """Consecutive trajectories of a stream."""

    first: int  # index of the first trajectory in the stream
    eps: Episodes
    truth: np.ndarray | None  # [S, A] actions that the split hides, NaN elsewhere; None without a split


@dataclass(frozen=True, eq=False, repr=False)
class Stream:
    """Trajectories of one file, or of two end to end; memory use grows with the number of trajectories, not of steps.

    A stream has the attributes of Episodes that `ssorl.data.split` uses, so a split can be drawn from it.
    """

    files: tuple[tuple[PartReader, ReadOptions], ...]
    size: int  # largest number of steps of a part
    file_meta: Meta  # metadata for checking the files: its action range includes the actions that a split hides
    meta: Meta  # metadata of the parts
    n_obs: int
    n_act: int
    start: np.ndarray  # [E+1]
    returns: np.ndarray  # [E]
    n_labelled: np.ndarray  # [E] number of steps that have an action
    low: np.ndarray  # [E, A] lowest action of each trajectory; NaN without actions
    high: np.ndarray  # [E, A] highest action
    chosen: np.ndarray | None = None  # [E] indices in the files, ascending; None: all trajectories, once each
    hidden: np.ndarray | None = None  # [E] bool, whether a split hides the actions

    def __len__(self) -> int:
        return len(self.start) - 1

    def __repr__(self) -> str:
        return short_repr("Stream", self._facts())

    def _repr_html_(self) -> str:
        return html_table("Stream", self._facts())

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"source": self.meta.source, "env": self.meta.env, "trajectories": len(self)}
        facts |= {"steps": self.n_steps, "observation_size": self.n_obs, "action_size": self.n_act}
        return facts | {"labelled_share": float(self.n_labelled.sum() / self.n_steps)}

    @property
    def n_steps(self) -> int:
        """Number of steps, S."""
        return int(self.start[-1])

    @property
    def lengths(self) -> np.ndarray:
        """Number of steps of each trajectory, [E]."""
        return np.diff(self.start)

    @property
    def labelled_share(self) -> np.ndarray:
        """Share of each trajectory's steps that have an action, [E]."""
        return self.n_labelled / self.lengths

    @cached_property
    def rew(self) -> np.ndarray:
        """All rewards, [S]; the files are read when it is first used, such as for a split."""
        return np.concatenate([part.eps.rew for part in self.parts()])

    def parts(self) -> Iterator[Part]:
        """Yield all trajectories in order, in parts of at most `size` steps."""
        done = 0
        for number, eps in self._read():
            if self.chosen is None or self.hidden is None:
                yield Part(number, eps, None)
                continue
            a, b = np.searchsorted(self.chosen, [number, number + len(eps)])
            if a == b:
                continue
            members = eps.take(self.chosen[a:b] - number)
            hidden = np.repeat(self.hidden[a:b], members.lengths)[:, None]
            truth, act = np.where(hidden, members.act, np.nan), np.where(hidden, np.nan, members.act)
            yield Part(done, replace(members, act=act), truth)
            done += len(members)

    def _read(self) -> Iterator[tuple[int, Episodes]]:
        """Yield the trajectories of the files in parts, each with the index of its first trajectory."""
        number = 0
        for file, options in self.files:
            for eps, _ in _checked(file, options, replace(self.file_meta, source=file.meta.source), self.size):
                if eps is not None:
                    yield number, replace(eps, meta=self.meta)
                    number += len(eps)

    def split(self, split: Split) -> Stream:
        """Return the trajectories of a split, as `ssorl.data.apply` does; parts also have the hidden actions.

        Args:
            split: a split that was drawn from this stream or the same data in memory.

        Raises:
            DataError: the split was drawn from another dataset.
        """
        chosen, hidden = split_members(split, self)  # type: ignore[arg-type]  a stream has the attributes it needs
        low, high = (np.where(hidden[:, None], np.nan, x[chosen]) for x in (self.low, self.high))
        meta = self.meta
        if meta.act_range != "declared":  # a range inferred from all actions would leak the hidden ones
            meta = replace(meta, **_range(low, high))
        return replace(
            self,
            meta=meta,
            start=offsets(self.lengths[chosen]),
            returns=self.returns[chosen],
            n_labelled=np.where(hidden, 0, self.n_labelled[chosen]),
            low=low,
            high=high,
            chosen=chosen,
            hidden=hidden,
        )


def open_stream(
    file: PartReader, options: ReadOptions, size: int | None = None, progress: Callable[[int], None] | None = None
) -> Stream:
    """Read a file once to check it, and return it as a stream.

    Args:
        file: the file.
        options: trajectories shorter than `min_length` are dropped.
        size: largest number of steps of a part; `PART_STEPS` by default.
        progress: called with the number of steps after each part.

    Raises:
        DataError: the file cannot be read or fails a check of `ssorl.data.validate.build`.
    """
    size = size or PART_STEPS
    summaries, warnings, n_short, dropped, mismatched, n_act = [], {}, 0, 0, 0, 0
    for eps, raw in _checked(file, options, file.meta, size):
        n_short, dropped = n_short + int((raw.lengths < options.min_length).sum()), dropped + raw.dropped
        mismatched += raw.mismatched
        if eps is None:
            continue
        warnings |= dict.fromkeys(precision_warnings(raw.obs))
        if (summaries and eps.n_obs != summaries[0][0]) or (n_act and eps.n_act not in (0, n_act)):
            raise DataError(
                f"{file.meta.source}: trajectories differ in the size of their states or actions; put different "
                "robots into different files"
            )
        n_act = n_act or eps.n_act
        first = eps.start[:-1]
        bounds = [f.reduceat(eps.act, first) if eps.n_act else None for f in (np.fmin, np.fmax)]
        summaries.append(
            (eps.n_obs, eps.lengths, eps.returns, np.add.reduceat(eps.labelled, first, dtype=np.int64), *bounds)
        )
        if progress:
            progress(eps.n_steps)
    if not summaries:
        raise DataError(f"{file.meta.source}: no trajectory has {options.min_length} steps; lower --min-length")
    lengths, returns, n_labelled = (np.concatenate([s[i] for s in summaries]) for i in (1, 2, 3))
    low, high = (
        np.concatenate([np.full((len(s[1]), n_act), np.nan, np.float32) if s[i] is None else s[i] for s in summaries])
        for i in (4, 5)
    )
    meta = with_reader_notes(file.meta, dropped, mismatched)
    if n_short:
        meta = meta.with_notes(f"{n_short} trajectories shorter than {options.min_length} steps were dropped")
    meta = meta.with_notes(*warnings)
    if not meta.act_low:
        meta = replace(meta, **_range(low, high))
    start = offsets(lengths)
    return Stream(((file, options),), size, meta, meta, summaries[0][0], n_act, start, returns, n_labelled, low, high)


def chain(labelled: Stream, unlabelled: Stream) -> Stream:
    """Return two streams end to end, as `ssorl.data.load_pair` does; actions of the second one are ignored.

    Args:
        labelled: the stream whose actions are used.
        unlabelled: the stream that follows.

    Raises:
        DataError: the first stream has no action, or observations differ in size.
    """
    a, b = labelled, unlabelled
    if not a.n_labelled.any():
        raise DataError(f"{a.meta.source}: was given as the labelled file but has no action; swap the two?")
    if a.n_obs != b.n_obs:
        raise DataError(
            f"{a.meta.source} has states of size {a.n_obs} but {b.meta.source} of size {b.n_obs}; give two files of "
            "the same robot, or choose the same state features in both"
        )
    none = np.full((len(b), a.n_act), np.nan, np.float32)
    notes = tuple(dict.fromkeys((*a.meta.notes, *b.meta.notes)))
    return replace(
        a,
        files=a.files + tuple((file, replace(options, actions=False)) for file, options in b.files),
        meta=replace(a.meta, source=f"{a.meta.source} + {b.meta.source}", notes=notes),
        start=offsets(np.concatenate([a.lengths, b.lengths])),
        returns=np.concatenate([a.returns, b.returns]),
        n_labelled=np.concatenate([a.n_labelled, np.zeros(len(b), np.int64)]),
        low=np.concatenate([a.low, none]),
        high=np.concatenate([a.high, none]),
    )


def _checked(file: PartReader, options: ReadOptions, meta: Meta, size: int) -> Iterator[tuple[Episodes | None, Raw]]:
    """Yield the parts of a file after the checks of `build`; None instead of Episodes if all are too short."""
    parts, first = file.read(size), 0
    while True:
        # The block is entered anew for each part: a suspended generator must not keep Python's warnings suppressed.
        with parser_errors(meta.source, file.kind):
            raw = next(parts, None)
            if raw is None:
                return
            eps, unbounded = None, meta
            if not meta.act_low and raw.act is not None and raw.act.ndim == 2:  # the range is only known at the end
                edge = (np.inf,) * raw.act.shape[1]
                unbounded = replace(meta, act_low=tuple(-x for x in edge), act_high=edge)
            if (raw.lengths >= options.min_length).any():
                eps = build(*raw[:5], unbounded, replace(options, first=first), raw.number)
            first += len(raw.lengths)
        yield eps, raw


def _range(low: np.ndarray, high: np.ndarray) -> dict:
    """Return `action_range` of actions that have these bounds in each trajectory [E, A]."""
    if not np.isfinite(low).any():
        return action_range(np.full((1, low.shape[1]), np.nan, np.float32))
    return action_range(np.stack([np.nanmin(low, 0), np.nanmax(high, 0)]).astype(np.float32))
