"""Options of `ssorl data convert` that repair what `ssorl audit` finds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from ssorl.cli.options import arg, flag, option_name
from ssorl.utils.errors import SsorlError

if TYPE_CHECKING:
    from ssorl.data import Episodes


@dataclass(frozen=True)
class RepairOptions:
    """Repairs of actions, in this order; the dataset itself is not changed."""

    shift_actions: Annotated[
        int | None, arg("N", "move actions N steps later (negative: earlier); -k repairs a lag of k")
    ] = None
    flip: Annotated[str | None, arg("D,…", "reverse the sign of these action dimensions")] = None
    permute: Annotated[str | None, arg("D,…", "for each action dimension, the one that belongs there: 1,0,2")] = None
    scale: Annotated[str | None, arg("F|D:F,…", "multiply the actions by F, or dimension D by F")] = None
    forget_actions: Annotated[
        tyro.conf.FlagCreatePairsOff[bool], flag("make the actions missing, to be filled in by `ssorl label`")
    ] = False
    trajectories: Annotated[str | None, arg("N-M,…", "repair these trajectories only, counted from 0", "all")] = None
    leave_out: Annotated[str | None, arg("N-M,…", "leave out these trajectories")] = None
    leave_out_state: Annotated[str | None, arg("D,…", "leave out these dimensions of the state")] = None

    @property
    def given(self) -> bool:
        """Whether any repair was asked for."""
        return any(value not in (None, False) for value in vars(self).values())

    def apply(self, eps: Episodes) -> Episodes:
        """Return the repaired trajectories.

        Args:
            eps: the trajectories.

        Raises:
            SsorlError: an option cannot be read or has no effect.
            DataError: an option does not fit the trajectories.
        """
        from ssorl.data import repair

        numbers = None if self.trajectories is None else parse_numbers("trajectories", self.trajectories)
        changes = (self.shift_actions, self.flip, self.permute, self.scale, self.forget_actions or None)
        if numbers is not None and all(change is None for change in changes):
            raise SsorlError("--trajectories says which trajectories to repair; name a repair, such as --flip 0")
        if self.shift_actions is not None:
            eps = repair.shift_actions(eps, self.shift_actions, numbers)
        if self.flip is not None:
            eps = repair.flip(eps, parse_numbers("flip", self.flip), numbers)
        if self.permute is not None:
            eps = repair.permute(eps, parse_numbers("permute", self.permute), numbers)
        if self.scale is not None:
            eps = repair.scale(eps, parse_scale(self.scale, eps.n_act), numbers)
        if self.forget_actions:
            eps = repair.forget_actions(eps, numbers)
        if self.leave_out_state is not None:
            eps = repair.leave_out_state(eps, parse_numbers("leave_out_state", self.leave_out_state))
        if self.leave_out is not None:
            eps = repair.leave_out(eps, parse_numbers("leave_out", self.leave_out))
        return eps


def parse_numbers(field: str, text: str) -> list[int]:
    """Return the numbers of a list such as 0,4-6.

    Args:
        field: field of the option, for the message.
        text: the list.

    Raises:
        SsorlError: it is not such a list.
    """
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(part) > 18:
            raise SsorlError(f"{option_name(field)} {text}: give numbers from 0, such as 0,4-6")
        ends = int(first), int(last or first)
        if ends[1] < ends[0] or ends[1] - ends[0] > 10**7:
            raise SsorlError(f"{option_name(field)} {text}: {part} is no range of numbers")
        numbers += range(ends[0], ends[1] + 1)
    return numbers


def parse_scale(text: str, n_act: int) -> list[float]:
    """Return the factor of each action dimension: 2 scales all, 1:0.5 only dimension 1.

    Args:
        text: one factor, or pairs of a dimension and its factor.
        n_act: size of an action.

    Raises:
        SsorlError: it is neither.
    """
    factors = [1.0] * n_act
    try:
        if ":" not in text:
            factors = [float(text)] * n_act
        else:
            for part in text.split(","):
                dimension, _, factor = part.partition(":")
                if int(dimension) < 0:
                    raise ValueError
                factors[int(dimension)] = float(factor)
        if not all(math.isfinite(factor) and factor for factor in factors):
            raise ValueError
    except (ValueError, IndexError):
        raise SsorlError(
            f"--scale {text}: give one factor, such as 0.5, or dimensions (0 to {n_act - 1}) with factors: 0:0.5,2:-1"
        ) from None
    return factors
