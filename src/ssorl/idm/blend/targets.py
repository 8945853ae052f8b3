"""Encode each action dimension as targets for the members of a blend: a number, classes, an angle or a constant.

A gripper that is open or closed is classified, because a value between the two is always wrong. A wrapping angle is
predicted by its sine and cosine, because the mean of 179 and -179 degrees is 180 degrees, not 0. A constant needs no
target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ssorl.data.episodes import CONSTANT_TOL

MAX_VALUES = 8  # a dimension with at most this many distinct values is classified
STEPS_PER_VALUE = 20  # if it has at least this many labelled steps for each value
JUMP = 0.75  # a larger change between two steps, relative to the period, is a wrap
NEAR = 0.25  # all other changes, relative to the period, are smaller than this
PERIODS = (2 * np.pi, 360.0)

Kind = Literal["number", "classes", "angle", "constant"]


@dataclass(frozen=True)
class Dimension:
    """How one action dimension, scaled to [-1, 1], is predicted."""

    kind: Kind
    values: tuple[float, ...] = ()  # the classes in ascending order, the constant, or the scaled period of the angle

    @property
    def width(self) -> int:
        """The number of targets."""
        if self.kind == "classes":
            return 1 if len(self.values) == 2 else len(self.values)
        return {"number": 1, "angle": 2, "constant": 0}[self.kind]


@dataclass(frozen=True)
class Targets:
    """The targets of all action dimensions, side by side."""

    dimensions: tuple[Dimension, ...]

    @property
    def width(self) -> int:
        """The number of targets, K."""
        return sum(d.width for d in self.dimensions)

    @property
    def is_continuous(self) -> np.ndarray:
        """Whether each target belongs to a number or an angle, [K] bool."""
        return np.array([d.kind != "classes" for d in self.dimensions for _ in range(d.width)], bool)

    def encode(self, act: np.ndarray) -> np.ndarray:
        """Return the targets [N, K] float32 of scaled actions [N, A]."""
        columns: list[np.ndarray] = []
        for d, column in zip(self.dimensions, act.T, strict=True):
            if d.kind == "number":
                columns.append(column)
            elif d.kind == "angle":
                phase = column * (2 * np.pi / d.values[0])
                columns += [np.sin(phase), np.cos(phase)]
            elif d.kind == "classes":
                nearest = np.abs(column[:, None] - np.array(d.values)).argmin(1)
                columns += [nearest == i for i in range(len(d.values))][-d.width :]
        return np.stack(columns, 1).astype(np.float32) if columns else np.zeros((len(act), 0), np.float32)

    def decode(self, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return scaled actions [N, A] and their variances [N, A] from targets' means and variances [N, K]."""
        act = np.empty((len(mean), len(self.dimensions)), np.float32)
        spread = np.zeros_like(act)
        first = 0
        for i, d in enumerate(self.dimensions):
            block, own = mean[:, first : first + d.width], variance[:, first : first + d.width]
            first += d.width
            if d.kind == "number":
                act[:, i], spread[:, i] = block[:, 0], own[:, 0]
            elif d.kind == "constant":
                act[:, i] = d.values[0]
            elif d.kind == "angle":
                act[:, i] = np.arctan2(block[:, 0], block[:, 1]) * (d.values[0] / (2 * np.pi))
                spread[:, i] = own.mean(1) * (d.values[0] / (2 * np.pi)) ** 2
            else:
                act[:, i], spread[:, i] = _most_likely(d, block)
        return act, spread

    def per_dimension(self, values: np.ndarray) -> np.ndarray:
        """Return [..., A] from [..., K]: the mean over each dimension's targets, 0 for a constant."""
        out = np.zeros((*values.shape[:-1], len(self.dimensions)), values.dtype)
        first = 0
        for i, d in enumerate(self.dimensions):
            if d.width:
                out[..., i] = values[..., first : first + d.width].mean(-1)
            first += d.width
        return out

    def as_json(self) -> list[dict[str, Any]]:
        """Return the dimensions as JSON values."""
        return [{"kind": d.kind, "values": list(d.values)} for d in self.dimensions]


def targets_from_json(entries: Any, n_act: int) -> Targets:
    """Return the targets of a saved model; raise ValueError if they are invalid.

    Args:
        entries: the values of `Targets.as_json`, from a file.
        n_act: the expected number of action dimensions.
    """
    if not isinstance(entries, list) or len(entries) != n_act:
        raise ValueError(f"its action dimensions are not a list of {n_act} entries")
    dimensions = []
    for entry in entries:
        kind, values = (entry.get("kind"), entry.get("values")) if isinstance(entry, Mapping) else (None, None)
        least = {"number": 0, "classes": 2, "angle": 1, "constant": 1}.get(str(kind))
        if least is None or not isinstance(values, list) or not least <= len(values) <= 2 * MAX_VALUES:
            raise ValueError("one of its action dimensions is neither a number, nor classes, an angle or a constant")
        numbers = tuple(float(v) for v in values)
        if not np.isfinite(numbers).all() or (kind == "angle" and numbers[0] <= 0):
            raise ValueError("one of its action dimensions has invalid values")
        dimensions.append(Dimension(kind, numbers))  # type: ignore[arg-type]
    return Targets(tuple(dimensions))


def find_targets(act: np.ndarray, follows: np.ndarray, half: np.ndarray) -> Targets:
    """Detect the kind of each action dimension.

    Args:
        act: scaled actions of the labelled steps, [N, A].
        follows: [N] bool, whether the row follows the row before it in the same trajectory.
        half: [A], half the width of the range of each dimension, in the units of the data.
    """
    return Targets(tuple(_dimension(column, follows, float(h)) for column, h in zip(act.T, half, strict=True)))


def _dimension(column: np.ndarray, follows: np.ndarray, half: float) -> Dimension:
    low, high = float(column.min()), float(column.max())
    if high - low <= CONSTANT_TOL * max(1.0, abs(low), abs(high)):
        return Dimension("constant", (float(np.median(column)),))
    values = np.unique(np.round(column.astype(np.float64), 6))
    if len(values) <= MAX_VALUES and len(column) >= STEPS_PER_VALUE * len(values):
        return Dimension("classes", tuple(values.tolist()))
    for period in PERIODS:
        if half > 0 and wraps(column * half, follows, period):
            return Dimension("angle", (period / half,))
    return Dimension("number")


def wraps(column: np.ndarray, follows: np.ndarray, period: float) -> bool:
    """Return whether values are angles: they lie within one period, and all large changes are whole periods.

    Args:
        column: values, [N].
        follows: [N] bool, whether a value follows the one before it in the same trajectory.
        period: period of the angle.
    """
    extent = float(column.max() - column.min())
    if not 0.9 * period <= extent <= 1.001 * period:
        return False
    change = np.abs(np.diff(column))[follows[1:]]
    jumps = change > JUMP * period
    return bool(jumps.any() and jumps.mean() < 0.2 and (change[~jumps] < NEAR * period).all())


def _most_likely(d: Dimension, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the most likely value of each row and its expected squared error, both [N], from class predictions."""
    share = np.clip(np.concatenate([1 - block, block], 1) if len(d.values) == 2 else block, 0, 1)
    share = share / np.maximum(share.sum(1, keepdims=True), 1e-6)
    values = np.array(d.values, np.float32)
    chosen = values[share.argmax(1)]
    return chosen, (share * (values - chosen[:, None]) ** 2).sum(1)
