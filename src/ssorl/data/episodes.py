"""Episodes: trajectories of different lengths in flat arrays; a missing action is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ssorl.data.meta import Meta
from ssorl.utils.display import html_table, short_repr
from ssorl.utils.errors import DataError

RANGE_TOL = 1e-4  # actions may exceed their range by this share of its width; larger violations are errors
MIN_EXTENT = 0.25  # if all |a| of a dimension are below this, [-1, 1] is not assumed as its range
CONSTANT_TOL = 1e-6  # a dimension whose spread is below this share of its magnitude counts as constant


@dataclass(frozen=True, eq=False, repr=False)
class Episodes:
    """E trajectories with S steps in total, stored end to end.

    An episode of T steps has T+1 rows in `obs`. So the last step has its true next state, and next states need no
    array of their own. Arrays are never modified; slices are views.
    """

    obs: np.ndarray  # [S+E, O] float32
    act: np.ndarray  # [S, A] float32, NaN = missing
    rew: np.ndarray  # [S] float32; a trajectory without rewards has NaN throughout
    terminated: np.ndarray  # [S] bool, True where the task ended; episodes without such a step were truncated
    start: np.ndarray  # [E+1] int64: first step of each episode, then S
    meta: Meta = field(default_factory=Meta)

    # --- sizes
    @property
    def n_episodes(self) -> int:
        """Number of trajectories, E."""
        return len(self.start) - 1

    @property
    def n_steps(self) -> int:
        """Number of steps, S."""
        return len(self.rew)

    @property
    def n_obs(self) -> int:
        """Size of an observation, O."""
        return self.obs.shape[1]

    @property
    def n_act(self) -> int:
        """Size of an action, A."""
        return self.act.shape[1]

    def __len__(self) -> int:
        return self.n_episodes

    def __repr__(self) -> str:
        return short_repr("Episodes", self._facts())

    def _repr_html_(self) -> str:
        return html_table("Episodes", self._facts())

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"source": self.meta.source, "env": self.meta.env, "trajectories": self.n_episodes}
        facts |= {"steps": self.n_steps, "observation_size": self.n_obs, "action_size": self.n_act}
        if self.n_steps:
            facts["labelled_share"] = float(self.labelled.mean())
        return facts | ({"mean_return": float(self.returns.mean())} if self.n_steps and self.rewarded.all() else {})

    # --- derived arrays
    @cached_property
    def lengths(self) -> np.ndarray:
        """Number of steps of each episode, [E]."""
        return np.diff(self.start)

    @cached_property
    def returns(self) -> np.ndarray:
        """Undiscounted return of each episode, [E] float64; NaN for an episode without rewards."""
        return np.add.reduceat(self.rew, self.start[:-1], dtype=np.float64)

    @cached_property
    def rewarded(self) -> np.ndarray:
        """Whether each episode has rewards, [E] bool."""
        return ~np.isnan(self.rew[self.start[:-1]])

    @cached_property
    def episode_of_step(self) -> np.ndarray:
        """Index of the episode that each step belongs to, [S]."""
        return np.repeat(np.arange(self.n_episodes), self.lengths)

    @cached_property
    def obs_row(self) -> np.ndarray:
        """Row of `obs` that holds s_t of each step, [S]; s_{t+1} is in the next row."""
        return np.arange(self.n_steps) + self.episode_of_step

    @cached_property
    def labelled(self) -> np.ndarray:
        """Whether each step has an action, [S] bool."""
        return ~np.isnan(self.act[:, 0]) if self.n_act else np.zeros(self.n_steps, bool)

    @cached_property
    def labelled_share(self) -> np.ndarray:
        """Share of each episode's steps that have an action, [E]."""
        return np.add.reduceat(self.labelled, self.start[:-1], dtype=np.int64) / self.lengths

    @cached_property
    def truncated(self) -> np.ndarray:
        """Whether each step is the last of an episode that did not terminate, [S] bool."""
        last = np.zeros(self.n_steps, bool)
        last[self.start[1:] - 1] = True
        return last & ~self.terminated

    def returns_to_go(self) -> np.ndarray:
        """Return the undiscounted sum of rewards from each step to the end of its episode, [S] float64."""
        known = self.rewarded.all()  # one NaN in the sum would reach every later episode
        before = np.concatenate([[0.0], np.cumsum(self.rew if known else np.nan_to_num(self.rew), dtype=np.float64)])
        to_go = np.repeat(before[self.start[1:]], self.lengths) - before[:-1]
        return to_go if known else np.where(np.isnan(self.rew), np.nan, to_go)

    def normalised_returns(self) -> np.ndarray | None:
        """Return the normalised return of each episode, [E], or None if the reference returns are unknown."""
        return self.meta.normalise(self.returns)

    # --- selection
    def __getitem__(self, key: int | slice | Sequence[int] | np.ndarray) -> Episodes:
        """Return the selected trajectories.

        Args:
            key: an index or a slice with step 1 gives a view; other slices, index arrays and masks give a copy.

        Raises:
            IndexError: an index is out of range.
        """
        if isinstance(key, (int, np.integer)):
            n = self.n_episodes
            if not -n <= key < n:
                raise IndexError(f"trajectory {key} of {n}")
            first = int(key) % n
            return self._view(first, first + 1)
        if isinstance(key, slice):
            first, last, step = key.indices(self.n_episodes)
            if step == 1:
                return self._view(first, max(first, last))
            return self.take(np.arange(first, last, step))
        return self.take(np.asarray(key))

    def _view(self, first: int, last: int) -> Episodes:
        """Return trajectories `first` to `last` - 1 without a copy."""
        a, b = self.start[first], self.start[last]
        return replace(
            self,
            obs=self.obs[a + first : b + last],
            act=self.act[a:b],
            rew=self.rew[a:b],
            terminated=self.terminated[a:b],
            start=self.start[first : last + 1] - a,
        )

    def take(self, episodes: np.ndarray) -> Episodes:
        """Return a copy of some trajectories, in the order given.

        Args:
            episodes: indices, which may repeat, or a boolean mask [E].
        """
        if episodes.dtype == bool:
            episodes = np.flatnonzero(episodes)
        episodes = episodes.astype(np.int64)
        steps = ranges(self.start[episodes], self.lengths[episodes])
        rows = ranges(self.start[episodes] + episodes, self.lengths[episodes] + 1)
        return replace(
            self,
            obs=self.obs[rows],
            act=self.act[steps],
            rew=self.rew[steps],
            terminated=self.terminated[steps],
            start=offsets(self.lengths[episodes]),
        )

    def with_actions(self, act: np.ndarray) -> Episodes:
        """Return the same trajectories with other actions; the other arrays are shared, not copied.

        Args:
            act: actions [S, A], NaN where missing.

        Raises:
            DataError: the shape is wrong.
        """
        if act.shape != self.act.shape:
            raise DataError(f"the new actions have shape {act.shape}; give an array of shape {self.act.shape}")
        return replace(self, act=act)

    def with_meta(self, **changes) -> Episodes:
        """Return the same trajectories with changed metadata.

        Args:
            changes: new values by name of the field of `Meta`.
        """
        return replace(self, meta=replace(self.meta, **changes))

    # --- actions: [-1, 1] for learning, the environment's range for acting
    def scaled_actions(self) -> np.ndarray:
        """Return `act` mapped from its range to [-1, 1], [S, A]; missing actions stay NaN."""
        return scale(self.act, self.meta)

    def same(self, other: Episodes) -> bool:
        """Return whether all arrays are equal; NaN equals NaN, and metadata is not compared."""
        names = ("obs", "act", "rew", "terminated", "start")
        return all(np.array_equal(getattr(self, n), getattr(other, n), equal_nan=n in names[:3]) for n in names)


def scale(act: np.ndarray, meta: Meta) -> np.ndarray:
    """Return actions mapped from the environment's range to [-1, 1].

    Args:
        act: actions [..., A].
        meta: holds the range; a dimension whose range has width 0 maps to 0.
    """
    half = (meta.high - meta.low) / 2
    return (act - (meta.low + half)) / np.where(half > 0, half, 1)


def unscale(act: np.ndarray, meta: Meta) -> np.ndarray:
    """Return actions mapped from [-1, 1] to the environment's range.

    Args:
        act: actions [..., A].
        meta: holds the range.
    """
    half = (meta.high - meta.low) / 2
    return act * half + (meta.low + half)


def offsets(lengths: np.ndarray) -> np.ndarray:
    """Return the first position of each of E consecutive segments, then the total, [E+1] int64.

    Args:
        lengths: lengths of the segments [E].
    """
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def ranges(first: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the concatenated indices of E segments, [sum of lengths].

    Args:
        first: first index of each segment [E].
        lengths: length of each segment [E].
    """
    shift = np.repeat(first - offsets(lengths)[:-1], lengths)
    return np.arange(len(shift)) + shift


def action_range(act: np.ndarray) -> dict:
    """Return the action range for data that declares none.

    The range is [-1, 1] if all actions lie in it and fill enough of it. If an action exceeds it, the range of every
    dimension is its observed minimum and maximum. Otherwise, this holds only for dimensions with small actions.

    Args:
        act: actions [S, A], NaN where missing.

    Returns:
        The fields `act_low`, `act_high` and `act_range` of `Meta`.
    """
    n_act = act.shape[1]
    labelled = ~np.isnan(act[:, 0]) if n_act else np.zeros(len(act), bool)
    known = act if labelled.all() else act[labelled]  # avoid a copy if no action is missing
    low, high = (known.min(0), known.max(0)) if len(known) and n_act else (np.zeros(n_act), np.zeros(n_act))
    size = np.maximum(np.abs(low), np.abs(high))
    inferred = (size < MIN_EXTENT) & (high - low > CONSTANT_TOL * size)  # a constant dimension has no observed range
    inferred |= (size > 1 + RANGE_TOL).any()
    return {
        "act_low": tuple(float(x) for x in np.where(inferred, low, -1)),
        "act_high": tuple(float(x) for x in np.where(inferred, high, 1)),
        "act_range": "inferred" if inferred.any() else "assumed",
    }


def concat(parts: Sequence[Episodes], meta: Meta | None = None) -> Episodes:
    """Return the trajectories of all parts in order.

    Args:
        parts: at least one set of trajectories.
        meta: metadata of the result; that of the first part by default.

    Raises:
        DataError: `parts` is empty, or observations or actions differ in size.
    """
    if not parts:
        raise DataError("there are no trajectories to join; give at least one set")
    first = parts[0]
    for other in parts[1:]:
        for name, a, b in (("state", first.n_obs, other.n_obs), ("action", first.n_act, other.n_act)):
            if a != b:
                raise DataError(
                    f"{first.meta.source} has {name}s of size {a} but {other.meta.source} of size {b}; "
                    f"give two files of the same robot, or choose the same {name} features in both"
                )
    return Episodes(
        obs=np.concatenate([p.obs for p in parts]),
        act=np.concatenate([p.act for p in parts]),
        rew=np.concatenate([p.rew for p in parts]),
        terminated=np.concatenate([p.terminated for p in parts]),
        start=offsets(np.concatenate([p.lengths for p in parts])),
        meta=meta or first.meta,
    )
