"""What trainings read on the device: the datasets of a call end to end, and for each run its labels and its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ssorl.agents.base import Pool, Table
from ssorl.data.episodes import Episodes
from ssorl.data.stats import Standardiser, standardiser


class Dataset(NamedTuple):
    """Trajectories, whatever their actions."""

    eps: Episodes
    scaler: Standardiser


class Shape(NamedTuple):
    """Lengths of the arrays on the device; what lies past the data is never drawn."""

    steps: int  # of the table
    rows: int  # of its observations
    labels: int  # of a run's action table
    pool: int  # of a run's steps to learn from


def distinct(runs: Sequence[Episodes]) -> tuple[list[Dataset], list[int]]:
    """The datasets that some runs have, each once, and the number of each run's."""
    found: list[Episodes] = []
    of = []
    for eps in runs:
        number = next((n for n, one in enumerate(found) if _same(one, eps)), len(found))
        if number == len(found):
            found.append(eps)
        of.append(number)
    return [Dataset(eps, standardiser(eps)) for eps in found], of


def _same(one: Episodes, two: Episodes) -> bool:
    # The largest last: whoever differs mostly does in a smaller one.
    pairs = ((getattr(one, name), getattr(two, name)) for name in ("start", "terminated", "rew", "obs"))
    return all(a is b or np.array_equal(a, b) for a, b in pairs)


def shape_for(data: Sequence[Dataset], groups: Sequence[Sequence[int]], n_pool: int) -> Shape:
    """One shape for all groups of runs, each told by the numbers of its datasets; `n_pool`: the most steps of a run."""
    if len(data) == 1:
        eps = data[0].eps
        return Shape(eps.n_steps, len(eps.obs), eps.n_steps, min(eps.n_steps, rounded(n_pool)))

    def longest(lengths: list[int]) -> int:
        return rounded(max(sum(lengths[n] for n in set(group)) for group in groups))

    steps = [one.eps.n_steps for one in data]
    return Shape(longest(steps), longest([len(one.eps.obs) for one in data]), rounded(max(steps)), rounded(n_pool))


def rounded(n: int) -> int:
    """The next power of two, so that data of similar size needs no new compilation."""
    return 1 << (n - 1).bit_length()


def make_table(data: Sequence[Dataset], shape: Shape | None = None) -> Table:
    """Datasets end to end, on the device; without a shape, as long as they are."""
    parts, rows = [], 0
    for eps, scaler in data:
        time = np.arange(eps.n_steps) - eps.start[eps.episode_of_step]
        parts.append(
            (
                scaler(eps.obs),
                (eps.obs_row + rows).astype(np.int32),
                eps.rew,
                1 - eps.terminated.astype(np.float32),
                eps.returns_to_go().astype(np.float32),
                time.astype(np.int32),
                (eps.lengths[eps.episode_of_step] - time).astype(np.int32),
            )
        )
        rows += len(eps.obs)
    lengths = [shape.rows, *[shape.steps] * 6] if shape else [0] * 7
    return Table(*(jnp.asarray(_joined(*some)) for some in zip(lengths, *parts, strict=True)))


def bases(data: Sequence[Dataset]) -> list[int]:
    """The step of their table at which each dataset begins."""
    return [0, *np.cumsum([one.eps.n_steps for one in data]).tolist()][:-1]


def make_pool(eps: Episodes, steps: np.ndarray, length: int, n_labels: int = 0, base: int = 0) -> Pool:
    """These steps of a run's trajectories, still on the host, so that several can be stacked before they travel.

    Those with an action come first; among themselves they stay in order.
    """
    has = eps.labelled[steps]
    steps = np.concatenate([steps[has], steps[~has]])
    padded = np.concatenate([steps, np.full(max(0, length - len(steps)), steps[0], np.int32)])
    n, known = np.int32(len(steps)), np.int32(has.sum())
    return Pool(_joined(n_labels, eps.scaled_actions()), padded + np.int32(base), n, np.int32(base), known)


def _joined(length: int, *arrays: np.ndarray) -> np.ndarray:
    """Arrays end to end, zeros behind them up to a length."""
    missing = length - sum(map(len, arrays))
    if missing > 0:
        arrays = (*arrays, np.zeros((missing, *arrays[0].shape[1:]), arrays[0].dtype))
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
