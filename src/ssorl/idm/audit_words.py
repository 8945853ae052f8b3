"""Sentences and commands for the findings of an audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SHOWN = 12  # ranges of trajectories that a sentence names


def numbers(trajectories: Sequence[int], most: int | None = None) -> str:
    """Return numbers of trajectories as ranges: 0-3,7."""
    ranges: list[list[int]] = []
    for n in trajectories:
        if ranges and n == ranges[-1][1] + 1:
            ranges[-1][1] = n
        else:
            ranges.append([n, n])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in ranges]
    if most is not None and len(texts) > most:
        return ",".join(texts[:most]) + ",…"
    return ",".join(texts)


def sentence(
    kind: str, trajectories: Sequence[int], dimension: int | None, value: Any, half: bool, everyone: bool
) -> str:
    """Return what a finding says, in one sentence."""
    some = f"{len(trajectories)} trajector{'y' if len(trajectories) == 1 else 'ies'} ({numbers(trajectories, SHOWN)})"
    who = "all trajectories" if everyone else some
    which = "all action dimensions" if dimension is None else f"action dimension {dimension}"
    text = {
        "lag": lambda: f"the action recorded at t acted at t{-value:+d} in {who}",
        "flipped": lambda: f"{which} has the opposite sign in {who}",
        "permuted": lambda: f"action dimensions are in another order in {who}: the columns are {value}",
        "frozen": lambda: f"{which} stands still for {value:.0%} of the steps in {who}",
        "rescaled": lambda: f"{which} {'are' if dimension is None else 'is'} {value:.3g} times as large in {who}",
        "clipped": lambda: f"{which} ends at {value:.3g} in {who}, inside the range that other trajectories fill",
        "copies_state": lambda: f"{which} is a copy of state dimension {value} at the same step in {who}",
        "next_state": lambda: f"{which} is a copy of state dimension {value} one step later in {who}",
        "units": lambda: (
            f"{which} {'are' if dimension is None else 'is'} {value:.4g} times as large in {who}: other units"
        ),
        "unexplained": lambda: f"the states explain only {value:.0%} of the actions' variance in {who}",
        "leak": lambda: f"state dimension {value} holds {which} in {who}",
        "dropped": lambda: f"frames are missing in {who}: {value:.0%} of the steps cover two or more",
        "duplicated": lambda: f"{value:.0%} of the frames repeat the one before in {who}",
    }[kind]()
    if half and kind in ("flipped", "permuted", "rescaled", "units"):
        text += "; as this is about half of them, the others may be the wrong ones"
    return text


def cure(kind: str, trajectories: Sequence[int], dimension: int | None, value: Any, source: str, n: int) -> str:
    """Return the command that repairs a finding, or the one that stops using its actions."""
    begin = f"ssorl data convert {source} repaired.npz"
    which = "" if len(trajectories) == n else f" --trajectories {numbers(trajectories)}"
    place = "" if dimension is None else f"{dimension}:"
    if kind == "lag":
        return f"{begin} --shift-actions={-value}{which}"
    if kind == "flipped":
        return f"{begin} --flip {dimension}{which}"
    if kind == "permuted":
        return f"{begin} --permute {','.join(map(str, value))}{which}"
    if kind in ("rescaled", "units"):
        return f"{begin} --scale {place}{1 / value:.6g}{which}"
    if kind == "leak":
        return f"{begin} --leave-out-state {value}"
    if kind in ("dropped", "duplicated"):
        return f"{begin} --leave-out {numbers(trajectories)}"
    return f"{begin} --forget-actions{which}"
