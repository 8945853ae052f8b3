"""Checks of a training's arguments, made before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ssorl.agents.base import Agent
from ssorl.utils.errors import DataError, SsorlError

if TYPE_CHECKING:
    from ssorl.training.engine import TrainingRun


def check_counts(agent: Agent, every: int) -> None:
    """Raise if the agent's updates or `every` are not positive multiples of the agent's period.

    Args:
        agent: the agent.
        every: number of updates between two snapshots.

    Raises:
        SsorlError: one of the two is not a positive multiple.
    """
    for name, n in (("updates", agent.updates), ("every", every)):
        if n < 1 or n % agent.period:
            raise SsorlError(f"{name} is {n}; give a positive multiple of {agent.period}, the agent's period")


def check_sizes(runs: Sequence[TrainingRun]) -> None:
    """Raise if the runs differ in the sizes of observations or actions.

    Raises:
        DataError: a run has other sizes than the first.
    """
    first = runs[0].eps
    for number, (eps, _, _) in enumerate(runs):
        if (eps.n_obs, eps.n_act) != (first.n_obs, first.n_act):
            raise DataError(
                f"run {number} ({eps.meta.source}) has observations of {eps.n_obs} and actions of {eps.n_act} numbers, "
                f"run 0 ({first.meta.source}) of {first.n_obs} and {first.n_act}; train them in two calls"
            )


def training_steps(run: TrainingRun, number: int, needs_actions: bool = True) -> np.ndarray:
    """Return the steps that a run trains on.

    Args:
        run: the run.
        number: the run's number, for messages.
        needs_actions: whether every step must have an action.

    Returns:
        Indices of steps [P], int32.

    Raises:
        DataError: the run's `steps` are invalid or empty, or a step lacks an action that the agent needs.
    """
    eps, where = run.eps, f"run {number} ({run.eps.meta.source})"
    usable = np.flatnonzero(eps.labelled) if needs_actions else np.arange(eps.n_steps)
    steps = usable if run.steps is None else np.asarray(run.steps)
    if steps.dtype == bool and steps.shape == (eps.n_steps,):
        steps = np.flatnonzero(steps)
    if steps.ndim != 1 or (steps.size and steps.dtype.kind not in "iu"):
        raise DataError(
            f"{where}: steps are {steps.dtype} of shape {steps.shape}; give the indices of the steps to train on, or a "
            f"mask of all {eps.n_steps} steps"
        )
    if not len(steps):
        raise DataError(f"{where} has no step to train on; give it trajectories with actions or label them first")
    if steps.min() < 0 or steps.max() >= eps.n_steps:
        invalid = steps[(steps < 0) | (steps >= eps.n_steps)][0]
        raise DataError(f"{where}: step {invalid} does not exist; give indices from 0 to {eps.n_steps - 1}")
    missing = steps[np.isnan(eps.act[steps]).any(1)]
    if needs_actions and len(missing):
        episode = int(eps.episode_of_step[missing[0]])
        raise DataError(
            f"{where}: {len(missing)} of the {len(steps)} steps to train on have no action, first step "
            f"{missing[0] - eps.start[episode]} of trajectory {episode}; label them or leave them out"
        )
    return steps.astype(np.int32)
