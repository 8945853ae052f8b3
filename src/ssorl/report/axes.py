"""Numbers to be read and axes to be drawn on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

Value = float | None  # None and NaN: there is no number
Range = tuple[float, float]


def known(value: Value) -> TypeGuard[float]:
    """Whether there is a number at all."""
    return value is not None and math.isfinite(value)


def plain(value: Value) -> str:
    """A number with about three digits that matter."""
    if value is None or not math.isfinite(value):
        return "–"
    if value and (abs(value) >= 1e7 or abs(value) < 1e-3):
        text = f"{value:.2e}"
    elif abs(value) >= 100:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.3g}"
    return text.replace("-", "−")


def ticks(low: float, high: float, n: int = 5) -> list[float]:
    """At most about `n` round numbers from low to high."""
    raw = (high - low) / max(n, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    return [round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def span(values: Sequence[float], low: Value = None, high: Value = None, exact: bool = False) -> Range:
    """The range of an axis: that of the values with a little air, or the ends that are given."""
    bottom, top = (min(values), max(values)) if values else (0.0, 1.0)
    air = 0.0 if exact else 0.04 * (top - bottom)
    # An axis that begins or ends at zero does so exactly.
    bottom = low if low is not None else bottom - air * (bottom != 0)
    top = high if high is not None else top + air * (top != 0)
    if top <= bottom:  # a single value, or all of them beyond the given end
        pad = max(abs(bottom), 1.0) * 0.05
        bottom, top = (bottom if low is not None else bottom - pad), max(top, bottom) + pad
    return float(bottom), float(top)


class Axis:
    """From values to pixels."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self.start, self.end = low, high, start, end
        self.top, self.bottom = min(start, end), max(start, end)

    def __call__(self, value: float) -> float:
        """Where `value` lies."""
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)
