"""Labels for files larger than memory: the model is fitted to the labelled steps, the rest passes by in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ssorl.data.episodes import Episodes, concat
from ssorl.data.stream import Header, LabelledPart, Stream
from ssorl.idm.base import IdmSpec
from ssorl.idm.label import Labeller, filled_meta, label, labeller, nothing_missing, nothing_to_learn
from ssorl.idm.outlook import Assessment
from ssorl.idm.quality import Tally
from ssorl.utils.validation import check_seed

LEARN = 2_000_000  # steps of labelled trajectories that are held in memory; of more, trajectories are drawn

Progress = Callable[[str, int, str], None]


@dataclass(frozen=True)
class StreamLabelling:
    """Trajectories that get an action at every step as they pass by."""

    stream: Stream
    first: int  # the trajectories before this number were there to be learnt from only
    ready: Labeller
    tally: Tally
    progress: Progress | None = None

    @property
    def about(self) -> Header:
        """What comes out, for whoever writes it."""
        stream, n_act = self.stream, self.stream.n_act or len(self.ready.meta.act_low)
        n_steps = stream.n_steps - int(stream.start[self.first])
        meta = filled_meta(self.ready, stream.meta, stream.n_act, n_steps, n_missing(stream, self.first))
        return Header(meta, len(stream) - self.first, n_steps, stream.n_obs, n_act)

    def write(self, path: Path, format: Any) -> None:
        """Label the parts and write them to a temporary path, by a format that has `save_parts`."""
        format.save_parts(self.about, self.parts(), path)

    def parts(self) -> Iterator[LabelledPart]:
        """The trajectories with their actions, and what goes beside these; once."""
        meta = self.about.meta
        for part in self.stream.parts():
            if part.first < self.first:
                continue
            # Every step of a part counts, labelled or not: reading and writing it takes its time too.
            labels = label(self.ready, part.eps)
            self.tally.add(part.eps, labels, part.truth)
            if self.progress:
                self.progress("labelling", part.eps.n_steps, "")
            extras = {"proxy": labels.proxy, "act_std": labels.std, "unseen": labels.unseen}
            yield replace(part.eps, act=labels.act, meta=meta), extras

    @property
    def report(self) -> dict:
        """Once all parts have passed."""
        return self.tally.report(self.stream.meta) | Assessment(None, {}, self.stream.meta.warnings).as_json()


def n_missing(stream: Stream, first: int = 0) -> int:
    """Steps without an action, from one trajectory on."""
    return int((stream.lengths - stream.n_labelled)[first:].sum())


def fill_stream(
    stream: Stream, model: IdmSpec | Labeller, seed: int = 0, first: int = 0, progress: Progress | None = None
) -> StreamLabelling:
    """Fit or take a model for a stream, and return the labelling, which is done while it is written; see `fill`.

    The same model is fitted as there, and gives the same labels, as long as the labelled trajectories have no more
    than `LEARN` steps.
    """
    check_seed(seed, "--seed")
    if not n_missing(stream, first):
        raise nothing_missing(stream.meta.source)
    ready = model if isinstance(model, Labeller) else _fitted(stream, model, seed, progress)
    return StreamLabelling(stream, first, ready, Tally(ready, n_missing(stream, first)), progress)


def _fitted(stream: Stream, spec: IdmSpec, seed: int, progress: Progress | None) -> Labeller:
    if not stream.n_labelled.any():
        raise nothing_to_learn(stream.meta.source)

    def tell(what: str, n: int, note: str = "") -> None:
        if progress:
            progress(what, n, note)

    numbers = _drawn(stream, seed)
    read = _LearningParts(stream, numbers, lambda n: tell("reading", n))
    statistics = spec.measure(read, stream.n_steps + len(stream))
    learn = read.learn()
    idm = spec.fit(learn, seed, lambda n, note: tell("fitting", n, note), statistics)
    ready = labeller(idm, learn)
    return replace(ready, idm=replace(idm, validation=numbers[idm.validation]))  # type: ignore[type-var]


def _drawn(stream: Stream, seed: int) -> np.ndarray:
    """The trajectories to learn from: all that have an action, or as many of them as may be held, at least two."""
    some = np.flatnonzero(stream.n_labelled)
    if stream.lengths[some].sum() <= LEARN:
        return some
    order = np.random.default_rng(seed).permutation(some)
    return np.sort(order[: max(2, int(np.searchsorted(np.cumsum(stream.lengths[order]), LEARN, side="right")))])


class _LearningParts:
    """Read a stream part by part; the first pass also collects the trajectories to learn from."""

    def __init__(self, stream: Stream, numbers: np.ndarray, progress: Callable[[int], None]) -> None:
        self.stream, self.numbers, self.progress = stream, numbers, progress
        self.collected: list[Episodes] | None = None

    def __call__(self) -> Iterator[Episodes]:
        """Yield all trajectories in order."""
        kept: list[Episodes] = []
        for part in self.stream.parts():
            if self.collected is None:
                a, b = np.searchsorted(self.numbers, [part.first, part.first + len(part.eps)])
                if a < b:
                    kept.append(part.eps.take(self.numbers[a:b] - part.first))
            yield part.eps
            self.progress(part.eps.n_steps)
        if self.collected is None:
            self.collected = kept

    def learn(self) -> Episodes:
        """Return the trajectories to learn from, after a pass of its own if there was none."""
        if self.collected is None:
            for _ in self():
                pass
        return concat(self.collected or [])
