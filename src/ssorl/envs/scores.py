"""D4RL's reference scores (arXiv 2004.07219): the returns of a random and of an expert policy."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Returns = TypeVar("Returns", float, NDArray[np.floating])


@dataclass(frozen=True)
class Reference:
    """The returns that are normalised to 0 and 1, and the episode length of their measurement."""

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
    """Normalise returns so that the random policy has 0 and the expert 1 (papers print 100 times this).

    Args:
        env: name of the environment, one of `SCORES`.
        ret: one return or an array of returns.

    Raises:
        KeyError: the environment has no reference scores.
    """
    if env not in SCORES:
        raise KeyError(f"no reference score for {env!r}; known: {', '.join(SCORES)}")
    ref = SCORES[env]
    return (ret - ref.random) / (ref.expert - ref.random)
