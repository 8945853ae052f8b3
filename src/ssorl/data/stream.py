"""Files larger than memory: trajectories that stay on the disk and are read some at a time, as often as need be."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes, Meta, action_range, offsets
from ssorl.data.split import Split, split_members
from ssorl.data.stats import precision_warnings
from ssorl.data.validate import Raw, ReadOptions, build, files_below, parser_errors, with_reader_notes
from ssorl.utils.errors import DataError

SIZE = 1 << 18  # steps read together, unless a single trajectory has more: it is never cut
SHARE = 1 / 8  # of the free memory: larger files are not loaded whole, since unpacked they take several times that


class Header(NamedTuple):
    """What a writer must know before the first trajectory comes."""

    meta: Meta
    n_episodes: int
    n_steps: int
    n_obs: int
    n_act: int


LabelledPart = tuple[Episodes, dict[str, np.ndarray]]  # some trajectories, and the extras that go beside them


def header_of(eps: Episodes) -> Header:
    """Of trajectories in memory."""
    return Header(eps.meta, eps.n_episodes, eps.n_steps, eps.n_obs, eps.n_act)


class PartReader(NamedTuple):
    """A file of some format that can be read in parts."""

    meta: Meta  # what it says of itself, with the notes of its reader
    n_steps: int  # about how many: for a progress bar
    kind: str  # of file, in words
    read: Callable[[int], Iterator[Raw]]  # once through the file, so many steps at a time


def exceeds_memory(*paths: Path) -> bool:
    """Whether files or folders together are larger than may be loaded without a thought."""
    files = [f for p in paths for f in ([p] if p.is_file() else files_below(p))]
    return sum(f.stat().st_size for f in files if f.is_file()) > SHARE * free_memory()


def free_memory() -> float:
    """Bytes that a process may still ask for, as far as the system tells."""
    found = [float("inf")]
    for file, unit, word in (
        ("/proc/meminfo", 1024, r"MemAvailable:\s+(\d+)"),
        ("/sys/fs/cgroup/memory.max", 1, r"(\d+)"),
    ):
        with suppress(OSError):
            found += [unit * float(x) for x in re.findall(word, Path(file).read_text())]
    return min(found)


def part_bounds(start: np.ndarray, size: int) -> Iterator[tuple[int, int]]:
    """First trajectory and the one past the last of each part: at most `size` steps, or one trajectory."""
    first = 0
    while first < len(start) - 1:
        last = max(first + 1, int(np.searchsorted(start, start[first] + size, side="right")) - 1)
        yield first, last
        first = last


class Part(NamedTuple):
    """Some trajectories of a stream."""

    first: int  # number of the first
    eps: Episodes
    truth: np.ndarray | None  # [S, A], the actions that a split hides, NaN elsewhere; None: there is no split


@dataclass(frozen=True, eq=False)
class Stream:
    """Trajectories of one file, or of two end to end. What is held here grows with the trajectories, not the steps.

    It answers what `ssorl.data.split` asks of Episodes, so that a split can be drawn from it.
    """

    files: tuple[tuple[PartReader, ReadOptions], ...]
    size: int  # steps read together
    inside: Meta  # as the actions of the files are checked: their range holds those that a split hides too
    meta: Meta
    n_obs: int
    n_act: int
    start: np.ndarray  # [E+1]
    returns: np.ndarray  # [E]
    n_labelled: np.ndarray  # [E], steps that have an action
    low: np.ndarray  # [E, A], of the actions; NaN where there is none
    high: np.ndarray  # [E, A]
    chosen: np.ndarray | None = None  # [E], their numbers in the files, ascending; None: all, once
    hidden: np.ndarray | None = None  # [E] bool: whose actions are kept back

    def __len__(self) -> int:
        return len(self.start) - 1

    @property
    def n_steps(self) -> int:
        """Steps of all trajectories."""
        return int(self.start[-1])

    @property
    def lengths(self) -> np.ndarray:
        """Steps of each, [E]."""
        return np.diff(self.start)

    @property
    def labelled_share(self) -> np.ndarray:
        """The share of each one's steps that have an action, [E]."""
        return self.n_labelled / self.lengths

    @cached_property
    def rew(self) -> np.ndarray:
        """All rewards, [S]: the one array of that size, read if a split asks for it."""
        return np.concatenate([part.eps.rew for part in self.parts()])

    def parts(self) -> Iterator[Part]:
        """All trajectories in order, some at a time."""
        done = 0
        for number, eps in self._read():
            if self.chosen is None or self.hidden is None:
                yield Part(number, eps, None)
                continue
            a, b = np.searchsorted(self.chosen, [number, number + len(eps)])
            if a == b:
                continue
            some = eps.take(self.chosen[a:b] - number)
            hidden = np.repeat(self.hidden[a:b], some.lengths)[:, None]
            truth, act = np.where(hidden, some.act, np.nan), np.where(hidden, np.nan, some.act)
            yield Part(done, replace(some, act=act), truth)
            done += len(some)

    def _read(self) -> Iterator[tuple[int, Episodes]]:
        number = 0
        for file, options in self.files:
            for eps, _ in _checked(file, options, replace(self.inside, source=file.meta.source), self.size):
                if eps is not None:
                    yield number, replace(eps, meta=self.meta)
                    number += len(eps)

    def split(self, split: Split) -> Stream:
        """What `apply` is to Episodes: the trajectories of the split, the actions that it hides told apart."""
        chosen, hidden = split_members(split, self)  # type: ignore[arg-type]  a stream answers all that is asked there
        low, high = (np.where(hidden[:, None], np.nan, x[chosen]) for x in (self.low, self.high))
        meta = self.meta
        if meta.act_range != "declared":  # for the reason given in `apply`
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
    """Once through a file: everything in it is checked, and what a stream holds of each trajectory is noted."""
    size = size or SIZE
    found, lost, short, dropped, mismatched, n_act = [], {}, 0, 0, 0, 0
    for eps, raw in _checked(file, options, file.meta, size):
        short, dropped = short + int((raw.lengths < options.min_length).sum()), dropped + raw.dropped
        mismatched += raw.mismatched
        if eps is None:
            continue
        lost |= dict.fromkeys(precision_warnings(raw.obs))
        if (found and eps.n_obs != found[0][0]) or (n_act and eps.n_act not in (0, n_act)):
            raise DataError(
                f"{file.meta.source}: trajectories differ in the size of their states or actions; put different "
                "robots into different files"
            )
        n_act = n_act or eps.n_act
        first = eps.start[:-1]
        bounds = [f.reduceat(eps.act, first) if eps.n_act else None for f in (np.fmin, np.fmax)]
        found.append(
            (eps.n_obs, eps.lengths, eps.returns, np.add.reduceat(eps.labelled, first, dtype=np.int64), *bounds)
        )
        if progress:
            progress(eps.n_steps)
    if not found:
        raise DataError(f"{file.meta.source}: no trajectory has {options.min_length} steps; lower --min-length")
    lengths, returns, n_labelled = (np.concatenate([f[i] for f in found]) for i in (1, 2, 3))
    low, high = (
        np.concatenate([np.full((len(f[1]), n_act), np.nan, np.float32) if f[i] is None else f[i] for f in found])
        for i in (4, 5)
    )
    meta = with_reader_notes(file.meta, dropped, mismatched)
    if short:
        meta = meta.with_notes(f"{short} trajectories shorter than {options.min_length} steps were dropped")
    meta = meta.with_notes(*lost)
    if not meta.act_low:
        meta = replace(meta, **_range(low, high))
    start = offsets(lengths)
    return Stream(((file, options),), size, meta, meta, found[0][0], n_act, start, returns, n_labelled, low, high)


def chain(labelled: Stream, unlabelled: Stream) -> Stream:
    """What `ssorl.data.formats.pair` is to Episodes: the first, then the second with its actions ignored."""
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
    """Once through a file; each part passes the same gate as a whole file does. None: all in it is too short."""
    parts, first = file.read(size), 0
    while True:
        # Entered for each part: a generator that is left waiting must not hold the interpreter's warnings.
        with parser_errors(meta.source, file.kind):
            raw = next(parts, None)
            if raw is None:
                return
            eps, open_ended = None, meta
            if not meta.act_low and raw.act is not None and raw.act.ndim == 2:  # the range is known only at the end
                edge = (np.inf,) * raw.act.shape[1]
                open_ended = replace(meta, act_low=tuple(-x for x in edge), act_high=edge)
            if (raw.lengths >= options.min_length).any():
                eps = build(*raw[:5], open_ended, replace(options, first=first), raw.number)
            first += len(raw.lengths)
        yield eps, raw


def _range(low: np.ndarray, high: np.ndarray) -> dict:
    """What `action_range` says of actions whose bounds in each trajectory are these."""
    if not np.isfinite(low).any():
        return action_range(np.full((1, low.shape[1]), np.nan, np.float32))
    return action_range(np.stack([np.nanmin(low, 0), np.nanmax(high, 0)]).astype(np.float32))
