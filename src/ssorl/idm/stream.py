"""Label files larger than memory: fit the model to the labelled trajectories, then label part by part."""

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

MAX_FIT_STEPS = 2_000_000  # steps of labelled trajectories in memory; of more, a random part is used

Progress = Callable[[str, int, str], None]


@dataclass(frozen=True)
class StreamLabelling:
    """A stream whose trajectories are labelled while they are read."""

    stream: Stream
    first: int  # number of the first trajectory to label; those before it are only for the fit
    ready: Labeller
    tally: Tally
    progress: Progress | None = None

    @property
    def about(self) -> Header:
        """The metadata and sizes of the labelled trajectories."""
        stream, n_act = self.stream, self.stream.n_act or len(self.ready.meta.act_low)
        n_steps = stream.n_steps - int(stream.start[self.first])
        meta = filled_meta(self.ready, stream.meta, stream.n_act, n_steps, n_missing(stream, self.first))
        return Header(meta, len(stream) - self.first, n_steps, stream.n_obs, n_act)

    def write(self, path: Path, format: Any) -> None:
        """Label the parts and write them.

        Args:
            path: a temporary path.
            format: a format that has `save_parts`.
        """
        format.save_parts(self.about, self.parts(), path)

    def parts(self) -> Iterator[LabelledPart]:
        """Yield the labelled parts, each with the arrays to write beside the actions. Call it once."""
        meta = self.about.meta
        for part in self.stream.parts():
            if part.first < self.first:
                continue
            labels = label(self.ready, part.eps)  # progress counts all steps, because reading takes time too
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
    """Return the number of steps without an action, from trajectory `first` on."""
    return int((stream.lengths - stream.n_labelled)[first:].sum())


def fill_stream(
    stream: Stream, model: IdmSpec | Labeller, seed: int = 0, first: int = 0, progress: Progress | None = None
) -> StreamLabelling:
    """Fit a model to a stream, and return the labelling, which happens while the parts are read or written.

    The labels equal those of `fill` if the labelled trajectories have at most `MAX_FIT_STEPS` steps.

    Args:
        stream: the trajectories.
        model: a configuration to fit, or a fitted model.
        seed: seed of the fit.
        first: number of the first trajectory to label.
        progress: called as `progress(stage, n, note)` with "reading", "fitting" or "labelling".

    Raises:
        DataError: no action is missing, or none is known and `model` is a configuration.
    """
    check_seed(seed, "--seed")
    if not n_missing(stream, first):
        raise nothing_missing(stream.meta.source)
    ready = model if isinstance(model, Labeller) else _fit(stream, model, seed, progress)
    return StreamLabelling(stream, first, ready, Tally(ready, n_missing(stream, first)), progress)


def _fit(stream: Stream, spec: IdmSpec, seed: int, progress: Progress | None) -> Labeller:
    if not stream.n_labelled.any():
        raise nothing_to_learn(stream.meta.source)

    def report(stage: str, n: int, note: str = "") -> None:
        if progress:
            progress(stage, n, note)

    numbers = _draw_labelled(stream, seed)
    read = _LearningParts(stream, numbers, lambda n: report("reading", n))
    statistics = spec.measure(read, stream.n_steps + len(stream))
    learn = read.learn()
    idm = spec.fit(learn, seed, lambda n, note: report("fitting", n, note), statistics)
    ready = labeller(idm, learn)
    return replace(ready, idm=replace(idm, validation=numbers[idm.validation]))  # type: ignore[type-var]


def _draw_labelled(stream: Stream, seed: int) -> np.ndarray:
    """Return the trajectories to fit to: all that have an action, or as many as memory allows but at least two."""
    labelled = np.flatnonzero(stream.n_labelled)
    if stream.lengths[labelled].sum() <= MAX_FIT_STEPS:
        return labelled
    order = np.random.default_rng(seed).permutation(labelled)
    return np.sort(order[: max(2, int(np.searchsorted(np.cumsum(stream.lengths[order]), MAX_FIT_STEPS, side="right")))])


class _LearningParts:
    """Read a stream part by part; the first pass also collects the trajectories to fit to."""

    def __init__(self, stream: Stream, numbers: np.ndarray, progress: Callable[[int], None]) -> None:
        self.stream, self.numbers, self.progress = stream, numbers, progress
        self.collected: list[Episodes] | None = None

    def __call__(self) -> Iterator[Episodes]:
        """Yield all trajectories in order."""
        collected: list[Episodes] = []
        for part in self.stream.parts():
            if self.collected is None:
                a, b = np.searchsorted(self.numbers, [part.first, part.first + len(part.eps)])
                if a < b:
                    collected.append(part.eps.take(self.numbers[a:b] - part.first))
            yield part.eps
            self.progress(part.eps.n_steps)
        if self.collected is None:
            self.collected = collected

    def learn(self) -> Episodes:
        """Return the trajectories to fit to; read the stream if no pass has done so."""
        if self.collected is None:
            for _ in self():
                pass
        return concat(self.collected or [])
