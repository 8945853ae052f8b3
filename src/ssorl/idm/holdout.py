"""Hold labelled trajectories out of a fit, to select weights and to calibrate."""

from __future__ import annotations

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.data.split import first_copies
from ssorl.idm.base import FittedIdm
from ssorl.utils.errors import DataError


def hold_out(eps: Episodes, share: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split the labelled steps into training and validation, by trajectory.

    At least one trajectory is held out. If there is only one labelled trajectory, its last part is held out.
    Copies of one trajectory are held out together.

    Args:
        eps: trajectories, labelled at some steps.
        share: the share of the labelled trajectories to hold out.
        seed: of the random choice of trajectories.

    Returns:
        The steps for training [N], the steps for validation [M], and the trajectories held out [K].

    Raises:
        DataError: fewer than two labelled steps differ.
    """
    steps = np.flatnonzero(eps.labelled)
    episode = eps.episode_of_step[steps]
    labelled = np.unique(episode)
    first = first_copies(eps)[labelled]
    distinct = np.unique(first)
    n_distinct = len(steps) if len(distinct) > 1 else len(np.unique(steps - eps.start[episode]))
    if n_distinct < 2:
        raise DataError(
            f"{eps.meta.source}: {n_distinct} steps have an action and at least 2 are needed to fit an "
            "inverse dynamics model; add more labelled trajectories"
        )
    if len(distinct) == 1:
        inside = last_part(eps, steps, share)
        return steps[~inside], steps[inside], labelled
    n = min(len(distinct) - 1, max(1, round(share * len(distinct))))
    held = labelled[np.isin(first, np.random.default_rng(seed).choice(distinct, n, replace=False))]
    inside = np.isin(episode, held)
    return steps[~inside], steps[inside], held


def last_part(eps: Episodes, steps: np.ndarray, share: float) -> np.ndarray:
    """Mark the last part of some steps, [N] bool.

    Args:
        eps: trajectories.
        steps: [N] step numbers in one trajectory and its copies.
        share: length of the last part, relative to all steps.
    """
    place = steps - eps.start[eps.episode_of_step[steps]]
    order = np.sort(place)
    return place >= max(order[len(order) - max(1, round(share * len(order)))], order[0] + 1)


def held_out(idm: FittedIdm, eps: Episodes) -> np.ndarray:
    """Return the labelled steps that a fit held out, [N].

    Args:
        idm: the fitted model.
        eps: the trajectories that it was fitted to.
    """
    steps = np.flatnonzero(eps.labelled)
    held = np.isin(np.searchsorted(eps.start, steps, side="right") - 1, idm.validation)
    if len(steps) and held.all():  # a single labelled trajectory is held out in part
        return steps[last_part(eps, steps, idm.config.validation)]
    return steps[held]
