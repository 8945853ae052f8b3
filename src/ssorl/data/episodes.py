"""Episodes: ragged trajectories in flat arrays, where a missing action is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from ssorl.utils.errors import DataError

RANGE_TOL = 1e-4  # how far an action may leave its range, as a share of it, before that is an error
SMALL = 0.25  # actions nearer to zero than this fill too little of [-1, 1] for it to be their range
CONSTANT_TOL = (
    1e-6  # a dimension that varies by no more than this, as a share of its size, is constant but for rounding
)


@dataclass(frozen=True)
class Meta:
    """What is known of a set of trajectories besides the arrays."""

    source: str = "memory"  # where it came from, as the user named it
    env: str | None = None  # the Gymnasium id, or ssorl's own name, of the environment
    act_low: tuple[float, ...] = ()  # lowest action, one number a dimension
    act_high: tuple[float, ...] = ()  # highest action
    act_range: Literal["declared", "assumed", "inferred"] = "assumed"  # how it is known; inferred: in some dimension
    random_return: float | None = None  # mean return of a random policy: normalised 0
    expert_return: float | None = None  # mean return of an expert: normalised 1
    notes: tuple[str, ...] = ()  # what a reader had to decide, in sentences

    @property
    def low(self) -> np.ndarray:
        """Lowest action, [A] float32."""
        return np.array(self.act_low, np.float32)

    @property
    def high(self) -> np.ndarray:
        """Highest action, [A] float32."""
        return np.array(self.act_high, np.float32)

    def normalise(self, returns: np.ndarray) -> np.ndarray | None:
        """Returns as fractions of the way from random to expert; None where no reference is known."""
        if self.random_return is None or self.expert_return is None:
            return None
        return (returns - self.random_return) / (self.expert_return - self.random_return)

    def with_notes(self, *notes: str) -> Meta:
        """The same with further notes."""
        return replace(self, notes=self.notes + tuple(n for n in notes if n not in self.notes))


@dataclass(frozen=True, eq=False)
class Episodes:
    """E trajectories, S steps in all, laid end to end.

    An episode of T steps owns T+1 rows of `obs`, so the last step has its true next state and
    `next_obs` costs no memory. Nothing here is ever mutated; slices are views.
    """

    obs: np.ndarray  # [S+E, O] float32
    act: np.ndarray  # [S, A] float32, NaN = missing
    rew: np.ndarray  # [S] float32
    terminated: np.ndarray  # [S] bool: the task ended; an episode that ends otherwise was truncated
    start: np.ndarray  # [E+1] int64: first step of each episode, then S
    meta: Meta = field(default_factory=Meta)

    # --- sizes
    @property
    def n_episodes(self) -> int:
        """E."""
        return len(self.start) - 1

    @property
    def n_steps(self) -> int:
        """S."""
        return len(self.rew)

    @property
    def n_obs(self) -> int:
        """Size of one observation."""
        return self.obs.shape[1]

    @property
    def n_act(self) -> int:
        """Size of one action."""
        return self.act.shape[1]

    def __len__(self) -> int:
        return self.n_episodes

    # --- what follows from the arrays
    @cached_property
    def lengths(self) -> np.ndarray:
        """Steps of each episode, [E]."""
        return np.diff(self.start)

    @cached_property
    def returns(self) -> np.ndarray:
        """Undiscounted return of each episode, [E] float64."""
        return np.add.reduceat(self.rew, self.start[:-1], dtype=np.float64)

    @cached_property
    def episode_of_step(self) -> np.ndarray:
        """Which episode a step belongs to, [S]."""
        return np.repeat(np.arange(self.n_episodes), self.lengths)

    @cached_property
    def obs_row(self) -> np.ndarray:
        """The row of `obs` that holds s_t of each step, [S]; s_{t+1} is the row after it."""
        return np.arange(self.n_steps) + self.episode_of_step

    @cached_property
    def labelled(self) -> np.ndarray:
        """Which steps have an action, [S] bool."""
        return ~np.isnan(self.act[:, 0]) if self.n_act else np.zeros(self.n_steps, bool)

    @cached_property
    def labelled_share(self) -> np.ndarray:
        """The share of each episode's steps that have an action, [E]."""
        return np.add.reduceat(self.labelled, self.start[:-1], dtype=np.int64) / self.lengths

    @cached_property
    def truncated(self) -> np.ndarray:
        """Which steps end an episode that the task did not end, [S] bool."""
        last = np.zeros(self.n_steps, bool)
        last[self.start[1:] - 1] = True
        return last & ~self.terminated

    def returns_to_go(self) -> np.ndarray:
        """Sum of the rewards from each step to the end of its episode, [S] float64."""
        before = np.concatenate([[0.0], np.cumsum(self.rew, dtype=np.float64)])
        return np.repeat(before[self.start[1:]], self.lengths) - before[:-1]

    def normalised_returns(self) -> np.ndarray | None:
        """Returns with random = 0 and expert = 1; None where no reference is known."""
        return self.meta.normalise(self.returns)

    # --- choosing and joining
    def __getitem__(self, key: int | slice | Sequence[int] | np.ndarray) -> Episodes:
        """Some of the trajectories: a view for a number or a plain slice, else a copy (see `take`)."""
        if isinstance(key, (int, np.integer)):
            n = self.n_episodes
            if not -n <= key < n:
                raise IndexError(f"trajectory {key} of {n}")
            first = int(key) % n
            return self._span(first, first + 1)
        if isinstance(key, slice):
            first, last, step = key.indices(self.n_episodes)
            if step == 1:
                return self._span(first, max(first, last))
            return self.take(np.arange(first, last, step))
        return self.take(np.asarray(key))

    def _span(self, first: int, last: int) -> Episodes:
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
        """The trajectories with these numbers, in this order, repeats allowed."""
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
        """The same trajectories with other actions; observations and rewards are shared."""
        if act.shape != self.act.shape:
            raise DataError(f"actions of shape {act.shape} do not fit {self.act.shape}")
        return replace(self, act=act)

    def with_meta(self, **changes) -> Episodes:
        """The same trajectories with some metadata changed."""
        return replace(self, meta=replace(self.meta, **changes))

    # --- actions in [-1, 1] for learning, in the environment's range for acting
    def scaled_actions(self) -> np.ndarray:
        """`act` mapped from its range onto [-1, 1], missing still NaN, [S, A]."""
        return scale(self.act, self.meta)

    def same(self, other: Episodes) -> bool:
        """Whether every array agrees, NaN with NaN."""
        names = ("obs", "act", "rew", "terminated", "start")
        return all(
            np.array_equal(getattr(self, n), getattr(other, n), equal_nan=n not in ("terminated", "start"))
            for n in names
        )


def scale(act: np.ndarray, meta: Meta) -> np.ndarray:
    """Actions of the environment, [..., A], onto [-1, 1]. A dimension that cannot move maps to 0."""
    half = (meta.high - meta.low) / 2
    return (act - (meta.low + half)) / np.where(half > 0, half, 1)


def unscale(act: np.ndarray, meta: Meta) -> np.ndarray:
    """Actions in [-1, 1], [..., A], back to the environment's range."""
    half = (meta.high - meta.low) / 2
    return act * half + (meta.low + half)


def offsets(lengths: np.ndarray) -> np.ndarray:
    """Lengths [E] to first positions [E+1]."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def ranges(first: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """first[i], first[i]+1, … lengths[i] of them, for every i, joined."""
    shift = np.repeat(first - offsets(lengths)[:-1], lengths)
    return np.arange(len(shift)) + shift


def action_range(act: np.ndarray) -> dict:
    """The range to assume where a file declares none: [-1, 1] if everything fits and fills it, else what is seen.

    If some action leaves [-1, 1], that is so in every dimension, else only in those whose actions are small.
    """
    n_act = act.shape[1]
    seen = ~np.isnan(act[:, 0]) if n_act else np.zeros(len(act), bool)
    some = act if seen.all() else act[seen]  # no copy of a table that is whole
    low, high = (some.min(0), some.max(0)) if len(some) and n_act else (np.zeros(n_act), np.zeros(n_act))
    size = np.maximum(np.abs(low), np.abs(high))
    taken = (size < SMALL) & (high - low > CONSTANT_TOL * size)  # a dimension that never moves tells of no range
    taken |= (size > 1 + RANGE_TOL).any()
    return {
        "act_low": tuple(float(x) for x in np.where(taken, low, -1)),
        "act_high": tuple(float(x) for x in np.where(taken, high, 1)),
        "act_range": "inferred" if taken.any() else "assumed",
    }


def concat(parts: Sequence[Episodes], meta: Meta | None = None) -> Episodes:
    """All trajectories of all parts, in order. Sizes must agree; ranges are those of the first part unless given."""
    if not parts:
        raise DataError("nothing to join: no trajectories were given")
    first = parts[0]
    for other in parts[1:]:
        for what, a, b in (("state", first.n_obs, other.n_obs), ("action", first.n_act, other.n_act)):
            if a != b:
                raise DataError(
                    f"{first.meta.source} has {what}s of size {a} but {other.meta.source} of size {b}; "
                    f"give two files of the same robot, or choose the same {what} features in both"
                )
    return Episodes(
        obs=np.concatenate([p.obs for p in parts]),
        act=np.concatenate([p.act for p in parts]),
        rew=np.concatenate([p.rew for p in parts]),
        terminated=np.concatenate([p.terminated for p in parts]),
        start=offsets(np.concatenate([p.lengths for p in parts])),
        meta=meta or first.meta,
    )
