"""Faults of all trajectories that names reveal: actions that move other joints than their own, or move them back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from ssorl.data.episodes import Episodes
from ssorl.data.stats import standardiser
from ssorl.utils.errors import SsorlError

N_ROWS = 20_000
GENERIC = {
    "action",
    "actions",
    "state",
    "states",
    "observation",
    "obs",
    "pos",
    "position",
    "vel",
    "velocity",
    "q",
    "qpos",
}
GENERIC |= {"qvel", "dq", "cmd", "command", "target", "goal", "torque", "motor", "ctrl", "control", "joint", "angle"}
LEAST_RESPONSE = 0.1  # in standard deviations of the state's change for one of the action
MARGIN = 2.0  # an action must move a joint by this many times more than that joint's own action


class NamedFault(NamedTuple):
    """A fault that all trajectories share."""

    kind: str
    dimension: int | None
    value: float | tuple[int, ...]
    confidence: float


def pairs(actions: Sequence[str], states: Sequence[str]) -> dict[int, list[int]]:
    """Return the state dimensions whose names mean the same joint as an action dimension's.

    Args:
        actions: name of each action dimension.
        states: name of each state dimension.
    """
    words = [[_words(name) for name in names] for names in (actions, states)]
    columns_of = {d: [j for j, other in enumerate(words[1]) if own and other == own] for d, own in enumerate(words[0])}
    return {d: columns for d, columns in columns_of.items() if columns}


def _words(name: str) -> tuple[str, ...]:
    return tuple(word for word in re.split(r"[^a-z0-9]+", name.lower()) if word and word not in GENERIC)


def against_names(eps: Episodes, actions: Sequence[str], states: Sequence[str]) -> list[NamedFault]:
    """Return the faults that the names of actions and states reveal.

    A linear model predicts the change of each state dimension from the state and the action. An action should move
    the joint that it is named after, and forwards.

    Args:
        eps: the trajectories with actions.
        actions: name of each action dimension.
        states: name of each state dimension.

    Raises:
        SsorlError: there are not as many names as dimensions.
    """
    for what, names, n in (("action", actions, eps.n_act), ("state", states, eps.n_obs)):
        if len(names) != n:
            raise SsorlError(f"{eps.meta.source}: {len(names)} {what} names were given for {n} dimensions")
    paired = pairs(actions, states)
    if not paired:
        return []
    response = _responses(eps)
    dims = sorted(paired)
    # Of a joint's position and velocity, the one that its strongest action moves most.
    columns = [max(paired[d], key=lambda j: np.abs(response[j, dims]).max()) for d in dims]
    moved = response[np.ix_(columns, dims)]  # joint of d x action
    strength = np.abs(moved)
    _, order = linear_sum_assignment(-strength)
    own = np.arange(len(dims))
    clear = (strength[own, order] > LEAST_RESPONSE) & (strength[own, order] > MARGIN * strength.diagonal())
    faults = []
    if (order != own).any() and clear[order != own].all():
        whole = np.arange(eps.n_act)
        whole[dims] = np.array(dims)[order]
        faults.append(NamedFault("permuted", None, tuple(int(d) for d in whole), 0.8))
    else:
        order = own
    for i, d in enumerate(order):
        value = moved[i, d]
        if value < -LEAST_RESPONSE and strength[i, d] >= np.delete(strength[i], d).max(initial=0):
            faults.append(NamedFault("flipped", dims[d], -1.0, 0.8))
    return faults


def _responses(eps: Episodes) -> np.ndarray:
    """Return how each state dimension's change responds to each action, [O, A], in standard deviations."""
    steps = np.flatnonzero(eps.labelled)
    if len(steps) > N_ROWS:
        steps = np.sort(np.random.default_rng(0).choice(steps, N_ROWS, replace=False))
    row, act = eps.obs_row[steps], eps.act[steps].astype(np.float64)
    state = standardiser(eps)(eps.obs[row]).astype(np.float64)
    change = (eps.obs[row + 1] - eps.obs[row]).astype(np.float64)
    spread, size = change.std(0), act.std(0)
    change /= np.where(spread > 0, spread, 1)
    act = (act - act.mean(0)) / np.where(size > 0, size, 1)
    x = np.concatenate([act, state, np.ones((len(act), 1))], 1)
    weights = np.linalg.solve(x.T @ x + 1e-3 * len(x) * np.eye(x.shape[1]), x.T @ change)
    return weights[: eps.n_act].T
