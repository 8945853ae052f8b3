"""Random trajectories, and the smallest agent and run."""

from __future__ import annotations

import numpy as np

from ssorl.data.episodes import Episodes, Meta
from ssorl.data.validate import build

# Settings of an agent and a run that take seconds, mostly for compilation; use them with `small_idm` and `eps`.
SMALL = {"hidden": (8,), "batch": 16, "updates": 20}
CHOICES = {"agent": "bc", "fraction": 0.2, "episodes": 2, "settings": SMALL}


def make_episodes(lengths, n_obs=3, n_act=2, seed=0, **meta) -> Episodes:
    """Return random trajectories of these lengths; every other one terminates."""
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
