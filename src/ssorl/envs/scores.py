"""D4RL's reference scores (arXiv 2004.07219): what a random and an expert policy earn."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Returns = TypeVar("Returns", float, NDArray[np.floating])


@dataclass(frozen=True)
class Reference:
    """Returns that stand for 0 and 1, and the episode length they were measured at."""

    random: float
    expert: float
    horizon: int


SCORES: dict[str, Reference] = {
    "hopper": Reference(-20.272305, 3234.3, 1000),
    "walker2d": Reference(1.629008, 4592.3, 1000),
    "halfcheetah": Reference(-280.178953, 12135.0, 1000),
    "maze2d-open-dense": Reference(11.17817, 27.166538620695782, 150),
    "maze2d-umaze-dense": Reference(68.537689, 193.66285642381482, 300),
    "maze2d-medium-dense": Reference(44.264742, 297.4552547777125, 600),
    "maze2d-large-dense": Reference(30.569041, 303.4857382709002, 800),
}


def normalise(env: str, ret: Returns) -> Returns:
    """Return(s) on the scale where random is 0 and expert is 1 (papers print 100 times this)."""
    if env not in SCORES:
        raise KeyError(f"no reference score for {env!r}; known: {', '.join(SCORES)}")
    ref = SCORES[env]
    return (ret - ref.random) / (ref.expert - ref.random)
