"""Shared data, made once."""

import numpy as np
import pytest

from ssorl.data.check import build
from ssorl.data.episodes import Episodes, Meta


def make_episodes(lengths, n_obs=3, n_act=2, seed=0, **meta) -> Episodes:
    """Random trajectories of these lengths; every other one terminates."""
    rng = np.random.default_rng(seed)
    lengths = np.asarray(lengths)
    steps = int(lengths.sum())
    ended = np.zeros(steps, bool)
    ended[np.cumsum(lengths)[::2] - 1] = True
    return build(
        rng.standard_normal((steps + len(lengths), n_obs)).astype(np.float32),
        rng.uniform(-1, 1, (steps, n_act)).astype(np.float32),
        rng.standard_normal(steps).astype(np.float32),
        ended,
        lengths,
        Meta(**meta),
    )


@pytest.fixture(scope="session")
def pointmass() -> Episodes:
    from ssorl.data import load

    return load("builtin/pointmass")
