"""Metadata of trajectories: source, environment, action range, reference returns, and names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

# Fields of Meta that describe a recording and affect no result; run folders do not depend on them.
DESCRIPTIVE = ("source", "notes", "state_parts", "action_parts", "state_names", "action_names", "fps", "robot")


WARNING = "warning: "  # a note that begins like this says that using the data as it is would be a mistake


@dataclass(frozen=True)
class Meta:
    """Metadata of a set of trajectories."""

    source: str = "memory"  # file or name that the user gave
    env: str | None = None  # environment: a Gymnasium id or a name of ssorl
    act_low: tuple[float, ...] = ()  # lowest action, one number per dimension; empty: unknown
    act_high: tuple[float, ...] = ()  # highest action
    act_range: Literal["declared", "assumed", "inferred"] = "assumed"  # inferred: from the data, in >= 1 dimension
    random_return: float | None = None  # mean return of a random policy: normalised return 0
    expert_return: float | None = None  # mean return of an expert: normalised return 1
    notes: tuple[str, ...] = ()  # the reader's decisions about this data, as sentences
    state_parts: tuple[tuple[str, int], ...] = ()  # names and sizes of the features that were joined into a state
    action_parts: tuple[tuple[str, int], ...] = ()  # likewise of an action
    state_names: tuple[str, ...] = ()  # name of each number of a state, such as a joint
    action_names: tuple[str, ...] = ()  # likewise of an action
    fps: float | None = None  # steps per second
    robot: str | None = None  # name of the robot in the recording

    @property
    def low(self) -> np.ndarray:
        """Lowest action, [A] float32."""
        return np.array(self.act_low, np.float32)

    @property
    def high(self) -> np.ndarray:
        """Highest action, [A] float32."""
        return np.array(self.act_high, np.float32)

    def normalise(self, returns: np.ndarray) -> np.ndarray | None:
        """Return normalised returns: 0 is a random policy, 1 an expert.

        Args:
            returns: undiscounted returns, of any shape.

        Returns:
            An array of the same shape, or None if the reference returns are unknown.
        """
        if self.random_return is None or self.expert_return is None:
            return None
        return (returns - self.random_return) / (self.expert_return - self.random_return)

    @property
    def warnings(self) -> list[str]:
        """Return the notes that are warnings."""
        return [note.removeprefix(WARNING) for note in self.notes if note.startswith(WARNING)]

    def with_notes(self, *notes: str) -> Meta:
        """Return a copy with further notes; notes that it already has are not repeated."""
        return replace(self, notes=self.notes + tuple(n for n in notes if n not in self.notes))
