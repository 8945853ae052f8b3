"""Small systems with known inverse dynamics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ssorl.data import Episodes, Meta
from ssorl.data.episodes import offsets
from ssorl.idm.model import IdmConfig

# Small, with a high learning rate: a fit takes about a second, mostly for compilation.
TINY = IdmConfig(hidden=(32, 32), steps=400, batch=128, lr=3e-3, schedule="cosine", dropout=0.0, validate_every=100)


def episodes(obs: np.ndarray, act: np.ndarray, low: float = -1.0, high: float = 1.0, **meta) -> Episodes:
    """Return trajectories of one length from obs [E, T+1, O] and act [E, T, A]; the reward is the first action."""
    n, t = act.shape[:2]
    bounds = {"act_low": (low,) * act.shape[2], "act_high": (high,) * act.shape[2], "act_range": "declared"}
    return Episodes(
        obs.reshape(-1, obs.shape[2]).astype(np.float32),
        act.reshape(-1, act.shape[2]).astype(np.float32),
        act[:, :, 0].reshape(-1).astype(np.float32),
        np.zeros(n * t, bool),
        offsets(np.full(n, t)),
        Meta(**{**bounds, "source": "a system", **meta}),
    )


def linear(n: int = 40, t: int = 30, noise: float = 0.0, seed: int = 0, low: float = -1.0, high: float = 1.0):
    """s' = 0.9 s + B a, with `noise` on the recorded action: the inverse is a = B^-1 (s' - 0.9 s)."""
    rng = np.random.default_rng(seed)
    b = np.array([[0.5, 0.2], [-0.1, 0.4]])
    act = rng.uniform(-0.8, 0.8, (n, t, 2))
    obs = np.zeros((n, t + 1, 2))
    obs[:, 0] = rng.standard_normal((n, 2))
    for i in range(t):
        obs[:, i + 1] = 0.9 * obs[:, i] + act[:, i] @ b.T
    act = act + noise * rng.standard_normal(act.shape)
    half = (high - low) / 2
    return episodes(obs, low + half + half * np.clip(act, -1, 1), low, high)


def two_policies(n: int = 60, t: int = 30, seed: int = 0) -> Episodes:
    """Return trajectories whose states show |a|; the sign of the action shows in every third state only.

    For a third of the steps that state is s_{t-1}: seen with k = 1, but with k = 0 either policy might have acted.
    """
    rng = np.random.default_rng(seed)
    sign = rng.choice([-1.0, 1.0], (n, 1))
    size = rng.uniform(0.3, 0.9, (n, t))
    mark = np.where(np.arange(t + 1) % 3 == 0, sign, 0.0)
    shown = np.concatenate([np.zeros((n, 1)), size], axis=1)  # s_{t+1} holds the size of a_t
    return episodes(np.stack([mark, shown], axis=2), (sign * size)[:, :, None])


def hide(eps: Episodes, steps) -> Episodes:
    """Return the trajectories with NaN for the actions of these steps."""
    act = eps.act.copy()
    act[steps] = np.nan
    return replace(eps, act=act)


def hide_after(eps: Episodes, n: int) -> Episodes:
    """Return the trajectories with actions in the first `n` trajectories only."""
    return hide(eps, slice(int(eps.start[n]), None))
