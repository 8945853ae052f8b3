"""Number formatting, axis ranges and ticks for charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

Value = float | None  # None and NaN both mean a missing value
Range = tuple[float, float]


def known(value: Value) -> TypeGuard[float]:
    """Return whether the value is a finite number."""
    return value is not None and math.isfinite(value)


def format_number(value: Value) -> str:
    """Return the number with about three significant digits; "–" if it is missing."""
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
    """Return about `n` round numbers between low and high."""
    raw = (high - low) / max(n, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    return [round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def span(values: Sequence[float], low: Value = None, high: Value = None, exact: bool = False) -> Range:
    """Return the range of an axis.

    Args:
        values: values that the axis must show.
        low: fixed lower end.
        high: fixed upper end.
        exact: add no margin around the values.

    Returns:
        Lower and upper end, never equal. An end at zero gets no margin.
    """
    bottom, top = (min(values), max(values)) if values else (0.0, 1.0)
    margin = 0.0 if exact else 0.04 * (top - bottom)
    bottom = low if low is not None else bottom - margin * (bottom != 0)
    top = high if high is not None else top + margin * (top != 0)
    if top <= bottom:  # a single value, or all values beyond the fixed end
        pad = max(abs(bottom), 1.0) * 0.05
        bottom, top = (bottom if low is not None else bottom - pad), max(top, bottom) + pad
    return float(bottom), float(top)


class Axis:
    """A linear map from values to pixels."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self.start, self.end = low, high, start, end
        self.top, self.bottom = min(start, end), max(start, end)

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)
