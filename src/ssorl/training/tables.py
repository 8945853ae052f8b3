"""The arrays that training reads on the device: concatenated datasets, and each run's labels and steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ssorl.agents.base import Pool, Table
from ssorl.data.episodes import Episodes
from ssorl.data.stats import Standardiser, standardiser


class Dataset(NamedTuple):
    """Trajectories that runs share; the runs' actions may differ."""

    eps: Episodes
    scaler: Standardiser  # standardisation of the observations


class Shape(NamedTuple):
    """Lengths of the arrays on the device, including padding, which is never drawn."""

    steps: int  # steps of the table
    rows: int  # rows of its observations
    labels: int  # steps of a run's actions
    pool: int  # steps that a run trains on


def distinct(runs: Sequence[Episodes]) -> tuple[list[Dataset], list[int]]:
    """Return the distinct datasets of several runs.

    Args:
        runs: the trajectories of each run.

    Returns:
        Each dataset once, and for each run the index of its dataset. Runs whose trajectories differ only in actions
        have the same dataset.
    """
    datasets: list[Episodes] = []
    dataset_of = []
    for eps in runs:
        number = next((n for n, other in enumerate(datasets) if _equal(other, eps)), len(datasets))
        if number == len(datasets):
            datasets.append(eps)
        dataset_of.append(number)
    return [Dataset(eps, standardiser(eps)) for eps in datasets], dataset_of


def _equal(a: Episodes, b: Episodes) -> bool:
    """Return whether trajectories are equal except for actions."""
    # The largest array is compared last, because datasets that differ mostly do so in a smaller one.
    pairs = ((getattr(a, name), getattr(b, name)) for name in ("start", "terminated", "rew", "obs"))
    return all(x is y or np.array_equal(x, y) for x, y in pairs)


def shape_for(data: Sequence[Dataset], groups: Sequence[Sequence[int]], n_pool: int) -> Shape:
    """Return one shape that fits every group of runs, so that all groups use the same compiled program.

    Args:
        data: the datasets.
        groups: for each group, the indices of its runs' datasets.
        n_pool: largest number of steps that a run trains on.
    """
    if len(data) == 1:
        eps = data[0].eps
        # A pool in which steps occur several times may be longer than the dataset.
        n_pool = min(eps.n_steps, round_up(n_pool)) if n_pool <= eps.n_steps else round_up(n_pool)
        return Shape(eps.n_steps, len(eps.obs), eps.n_steps, n_pool)

    def longest(lengths: list[int]) -> int:
        return round_up(max(sum(lengths[n] for n in set(group)) for group in groups))

    steps = [dataset.eps.n_steps for dataset in data]
    rows = [len(dataset.eps.obs) for dataset in data]
    return Shape(longest(steps), longest(rows), round_up(max(steps)), round_up(n_pool))


def round_up(n: int) -> int:
    """Return the next power of two, so that data of similar size uses the same compiled program."""
    return 1 << (n - 1).bit_length()


def make_table(data: Sequence[Dataset], shape: Shape | None = None) -> Table:
    """Return the concatenated datasets, on the device.

    Args:
        data: the datasets.
        shape: lengths to pad to; None: no padding.
    """
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
    return Table(*(jnp.asarray(_concatenate(*arrays)) for arrays in zip(lengths, *parts, strict=True)))


def bases(data: Sequence[Dataset]) -> list[int]:
    """Return the index of each dataset's first step in the table of these datasets."""
    return [0, *np.cumsum([dataset.eps.n_steps for dataset in data]).tolist()][:-1]


def make_pool(eps: Episodes, steps: np.ndarray, length: int, n_labels: int = 0, base: int = 0) -> Pool:
    """Return the pool of a run, on the host, so that several pools can be stacked before they are copied.

    Args:
        eps: the run's trajectories with its actions.
        steps: indices of the steps to train on [P]; in the pool, steps with an action come first.
        length: length to pad the steps to.
        n_labels: length to pad the actions to.
        base: index in the table of the dataset's first step.
    """
    has_action = eps.labelled[steps]
    steps = np.concatenate([steps[has_action], steps[~has_action]])
    padded = np.concatenate([steps, np.full(max(0, length - len(steps)), steps[0], np.int32)])
    n, known = np.int32(len(steps)), np.int32(has_action.sum())
    return Pool(_concatenate(n_labels, eps.scaled_actions()), padded + np.int32(base), n, np.int32(base), known)


def _concatenate(length: int, *arrays: np.ndarray) -> np.ndarray:
    """Return concatenated arrays, padded with zeros up to a length."""
    missing = length - sum(map(len, arrays))
    if missing > 0:
        arrays = (*arrays, np.zeros((missing, *arrays[0].shape[1:]), arrays[0].dtype))
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
