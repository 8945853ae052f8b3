"""`ssorl.suggest`: which trajectories to get actions for next, and the label error to expect afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ssorl.data.cover import Candidate, Cover, candidates, cover
from ssorl.data.episodes import Episodes
from ssorl.utils.errors import DataError, SsorlError

POWER = 1.6  # the label error falls like this power of the mean distance to the nearest label (measured)
LITTLE = 0.07  # a smaller fall of the expected error is within the noise


@dataclass(frozen=True)
class Suggestion:
    """A trajectory, or a part of it, to get actions for."""

    trajectory: int  # 0-based, in the dataset; with two files, in the unlabelled one
    source: dict[str, Any]  # `file` and `episode`
    first_step: int | None  # of a part; None: the whole trajectory
    last_step: int | None  # inclusive
    steps: int
    covers: float  # share of the unlabelled states that become nearer to a label
    expected_mse: float | None  # of the labels of the other steps, with this suggestion and those before it


@dataclass(frozen=True)
class Suggestions:
    """Result of `ssorl.suggest`."""

    source: str
    labelled_trajectories: int
    unlabelled_trajectories: int
    expected_mse_now: float | None  # None: too few labelled trajectories for a forecast
    suggestions: tuple[Suggestion, ...]
    notes: tuple[str, ...]
    cover: Cover | None = field(default=None, repr=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        """Return what `ssorl suggest --json` prints."""
        result = asdict(replace(self, cover=None))
        del result["cover"]
        return result


def forecast_mse(eps: Episodes, seed: int = 0) -> float | None:
    """Return the expected mean squared error of labels on the unlabelled steps, actions scaled to [-1, 1].

    Args:
        eps: the trajectories.
        seed: seed of the forecast.

    Returns:
        The forecast; None where there are too few labels for one.
    """
    from ssorl.idm.forecast import forecast

    found = forecast(eps, seed)
    return None if found is None else float(found.mse)


def suggest(
    data: Episodes | str | Path,
    budget: float | None = None,
    *,
    unlabelled: Episodes | str | Path | None = None,
    budget_steps: int | None = None,
    segments: int | None = None,
    costs: Sequence[float] | None = None,
    seed: int = 0,
) -> Suggestions:
    """Suggest trajectories whose actions would improve the labels of the others most.

    States and which actions are known are read, and the known actions for the forecast; hidden actions never are.

    Args:
        data: the trajectories, or a name or path for `ssorl.load`; the labelled ones if `unlabelled` is given.
        budget: number of suggestions (3 by default); with `costs`, what they may cost in all.
        unlabelled: further trajectories, whose actions are ignored; suggestions are then from these only.
        budget_steps: in place of `budget`, the number of steps in all.
        segments: suggest parts of so many steps in place of whole trajectories.
        costs: cost of each trajectory, of `unlabelled` if that is given; a part costs its share.
        seed: seed of the samples.

    Returns:
        Suggestions in order: the first n of them are those for a smaller budget.

    Raises:
        DataError: no action is missing.
        SsorlError: a budget, a length or a cost is not a positive number, or there are two budgets.
    """
    eps, offset = _trajectories(data, unlabelled)
    source = eps.meta.source
    _check_budget(budget, budget_steps, segments, costs)
    units = [u for u in candidates(eps, segments) if u.trajectory >= offset]
    if not units:
        raise DataError(f"{source}: every step has its action, so there is nothing to suggest; hide some with a split")
    sizes = np.array([u.last_step - u.first_step + 1 for u in units], np.float64)
    price = sizes if budget_steps is not None else None
    if costs is not None:
        each = _costs(costs, len(eps) - offset, source)
        lengths = eps.lengths.astype(np.float64)
        price = np.array([each[u.trajectory - offset] for u in units]) * sizes / lengths[[u.trajectory for u in units]]
    total = float(budget_steps if budget_steps is not None else 3 if budget is None else budget)
    result = cover(eps, units, total, price, seed)
    now = forecast_mse(eps, seed) if eps.labelled.any() else None
    file = source if unlabelled is None else _name(unlabelled)
    made = tuple(_suggestion(p.candidate, p, result, now, offset, file, segments) for p in result.picks)
    lacking = eps.labelled_share < 1
    return Suggestions(
        source,
        int((~lacking).sum()),
        int(lacking.sum()),
        now,
        made,
        tuple(_notes(eps, now, made)),
        result,
    )


def _suggestion(
    unit: Candidate, pick: Any, result: Cover, now: float | None, offset: int, file: str, segments: int | None
) -> Suggestion:
    part = segments is not None
    number = unit.trajectory - offset
    expected = None
    if now is not None:
        expected = now * min(1.0, pick.distance / max(result.distance, 1e-12)) ** POWER
    return Suggestion(
        number,
        {"file": file, "episode": number},
        unit.first_step if part else None,
        unit.last_step if part else None,
        unit.last_step - unit.first_step + 1,
        round(pick.covers, 4),
        expected,
    )


def _trajectories(data: Episodes | str | Path, unlabelled: Episodes | str | Path | None) -> tuple[Episodes, int]:
    """Return all trajectories, and the number of the first that may be suggested."""
    from ssorl.data import load
    from ssorl.data.formats import pair

    first = data if isinstance(data, Episodes) else load(data)
    if unlabelled is None:
        return first, 0
    second = unlabelled if isinstance(unlabelled, Episodes) else load(unlabelled, actions=False)
    return pair(first, second), len(first)


def _name(data: Episodes | str | Path) -> str:
    return data.meta.source if isinstance(data, Episodes) else str(data)


def _check_budget(
    budget: float | None, budget_steps: int | None, segments: int | None, costs: Sequence[float] | None
) -> None:
    """Raise SsorlError unless there is one budget, and all numbers are above 0."""
    if budget is not None and budget_steps is not None:
        raise SsorlError("give a budget of trajectories or one of steps, not both")
    if costs is not None and budget_steps is not None:
        raise SsorlError("with costs, the budget is what suggestions may cost in all; leave out the budget of steps")
    for name, value in (("budget", budget), ("budget in steps", budget_steps), ("length of segments", segments)):
        if value is not None and not 0 < value < np.inf:
            raise SsorlError(f"the {name} is {value:g}; give a number above 0")


def _costs(costs: Sequence[float], n: int, source: str) -> np.ndarray:
    values = np.asarray(costs, np.float64)
    if values.shape != (n,) or not np.isfinite(values).all() or (values <= 0).any():
        raise SsorlError(f"{source}: give one cost above 0 for each of the {n} trajectories")
    return values


def _notes(eps: Episodes, now: float | None, made: Sequence[Suggestion]) -> list[str]:
    """Return what a user should know about the suggestions."""
    if not made:
        return ["the budget is too small for any trajectory"]
    if not eps.labelled.any():
        return ["no step has an action: these trajectories are where to begin"]
    if now is None:
        return ["too few trajectories have actions for a forecast of the error"]
    after = made[-1].expected_mse
    if after is not None and after > (1 - LITTLE) * now:
        return ["the labelled trajectories span the data already: more labels are expected to gain little"]
    return []
