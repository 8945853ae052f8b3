"""Which columns of a table, or arrays of a file, are the state, the action, the reward and the episode."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import Meta
from ssorl.data.stats import join_names
from ssorl.data.validate import Raw, ReadOptions, escaped
from ssorl.utils.errors import DataError

REWARDS = ("next.reward", "reward", "rewards")
EPISODES = ("episode_index", "episode", "episode_id", "trajectory", "trajectory_id")
ACTIONS = ("action", "actions")
STATES = ("observation", "observations", "state", "states", "obs")
OTHER = ("next.", "is_", "timestamp", "frame_index", "index", "task_index", "done", "terminal", "truncat", "timeout")


class Roles(NamedTuple):
    """The columns to read, each list in the order in which columns are joined."""

    state: list[str]
    action: list[str]
    reward: str | None
    episode: str | None


def assign(names: Sequence[str], options: ReadOptions, src: str, state: Sequence[str] | None = None) -> Roles:
    """Return the role of each column.

    Args:
        names: the columns that hold numbers or vectors of numbers, in the order of the file.
        options: the columns that the caller named, and whether actions are wanted.
        src: the file, for errors.
        state: the columns that make the state in this format; None finds them by their names.

    Raises:
        DataError: a column that the caller named is not there, or no column can be the state.
    """
    columns = options.columns
    reward = _single(columns.reward, names, src, "--reward", REWARDS)
    episode = _single(columns.episode, names, src, "--episode", EPISODES)
    if options.actions:
        action = _named(columns.action, names, src, "--action") or group(names, ACTIONS)
    else:  # such a file may lack the columns; if it has them, they are not part of the state
        action = [n for n in names if any(fnmatchcase(n, name) for name in columns.action)] or group(names, ACTIONS)
    if columns.state:
        chosen = _named(columns.state, names, src, "--state")
    elif state is not None:
        chosen = [n for n in state if n not in (*action, reward, episode)]
    else:
        chosen = group([n for n in names if not n.startswith(OTHER)], STATES)
    if not chosen:
        raise DataError(
            f"{src}: no column is known as the state; give its columns with --state (it has {listed(names)})"
        )
    twice = [n for n in chosen if n in action]
    if twice:
        raise DataError(f"{src}: the column {escaped(twice[0])} is both state and action; give it to one of the two")
    return Roles(chosen, action, reward, episode)


def without_parts(names: Iterable[str]) -> list[str]:
    """Leave out columns such as `action.gripper` where the whole, `action`, is a column too."""
    names = list(names)
    return [n for n in names if not any(n.startswith(f"{whole}.") for whole in names)]


def listed(names: Sequence[str]) -> str:
    """The names of some columns, for a sentence."""
    return join_names([escaped(n) for n in names], 12) if names else "none that holds numbers"


def _single(name: str | None, names: Sequence[str], src: str, flag: str, known: Sequence[str]) -> str | None:
    if name is not None:
        found = _named((name,), names, src, flag)
        if len(found) > 1:
            raise DataError(f"{src}: {flag} {escaped(name)} stands for {len(found)} columns; give one")
        return found[0]
    return next((n for n in known if n in names), None)


def _named(wanted: Sequence[str], names: Sequence[str], src: str, flag: str) -> list[str]:
    """The columns of these names, patterns resolved, each once."""
    found: dict[str, None] = {}
    for name in wanted:
        here = [name] if name in names else [n for n in names if fnmatchcase(n, name)]
        if not here:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
            hint = f"did you mean {escaped(near[0])}?" if near else f"choose among {listed(names)}"
            raise DataError(f"{src}: {flag} {escaped(name)}: no column of numbers has that name; {hint}")
        found |= dict.fromkeys(here)
    return list(found)


def group(names: Sequence[str], roots: Sequence[str]) -> list[str]:
    """Return the columns of the first root that has any.

    They are `root` itself, `root.part` in alphabetical order, or `root_0`, `root_1`, …

    Args:
        names: all columns.
        roots: names of the quantity, the preferred one first.
    """
    for root in roots:
        if root in names:
            return [root]
        parts = sorted(without_parts(n for n in names if n.startswith(f"{root}.")))
        if parts:
            return parts
        numbered = {n: int(m[1]) for n in names if (m := re.fullmatch(rf"{root}[_ ]?[\[(]?(\d{{1,9}})[\])]?", n))}
        if numbered:
            return sorted(numbered, key=numbered.__getitem__)
    return []


def with_parts(meta: Meta, state: Sequence[tuple[str, int]], action: Sequence[tuple[str, int]]) -> Meta:
    """The metadata of joined columns; where each is a single number, the columns name the numbers."""
    changes: dict = {"state_parts": tuple(state), "action_parts": tuple(action)}
    for what, parts in (("state_names", state), ("action_names", action)):
        if len(parts) > 1 and all(size == 1 for _, size in parts) and not getattr(meta, what):
            changes[what] = tuple(name for name, _ in parts)
    return replace(meta, **changes)


def parts_of(parts: Sequence[tuple[str, int]], size: int, whole: str) -> dict[str, slice]:
    """Where each part of a joined vector lies; the whole under one name if the parts do not add up to it."""
    sizes = [n for _, n in parts]
    names = [name for name, _ in parts]
    if sum(sizes) != size or min(sizes, default=0) < 1 or len(set(names)) < len(names):
        return {whole: slice(0, size)} if size else {}
    ends = np.cumsum(sizes)
    return {name: slice(int(end) - n, int(end)) for name, n, end in zip(names, sizes, ends, strict=True)}


def from_rows(
    obs: np.ndarray,
    act: np.ndarray | None,
    rew: np.ndarray | None,
    lengths: np.ndarray,
    ended: np.ndarray | None = None,
    first: int = 0,
) -> Raw:
    """Trajectories from rows that hold a state and the action that follows it; nothing is checked.

    The state after the last action is not stored, so the last row of a trajectory only gives its state to the step
    before it.

    Args:
        obs: [N, O].
        act: [N, A], or None.
        rew: [N], or None where there are no rewards.
        lengths: [E], rows of each trajectory; those without rows are left out.
        ended: [N] bool, whether the task ended there; None: nowhere.
        first: index of the first of these trajectories in the file.
    """
    number = first + np.flatnonzero(lengths > 0)
    lengths = lengths[lengths > 0]
    last = np.cumsum(lengths) - 1
    keep = np.ones(len(obs), bool)
    keep[last] = False
    ended = np.zeros(len(obs), bool) if ended is None else ended
    return Raw(
        obs,
        None if act is None else act[keep],
        np.full(int(keep.sum()), np.nan, np.float32) if rew is None else rew[keep],
        ended[keep],
        lengths - 1,
        dropped=len(lengths),
        number=number,
    )
