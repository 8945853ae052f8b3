"""Proxy actions for steps that have none, and how far to trust them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.data.episodes import Episodes, unscale
from ssorl.errors import DataError
from ssorl.idm.fit import Idm, windows
from ssorl.idm.model import IdmConfig, Windows, forward
from ssorl.nn import Params

BLOCK = 1 << 15  # steps predicted at a time: bounds memory, and one shape means one compilation
LEVELS = (0.5, 0.8, 0.95)  # of the intervals whose coverage is reported
NORMAL = (0.6744898, 1.2815516, 1.9599640)  # half-widths of those intervals in standard deviations
OFF = 0.03  # a coverage this far from its level is worth recalibrating


class Mixture(NamedTuple):
    """Mean and deviation of the members' equal mixture, actions in [-1, 1]."""

    mean: np.ndarray  # [N, A]
    std: np.ndarray  # [N, A]


class Labels(NamedTuple):
    """Actions for every step, in the environment's range: the true one where it is known, else the proxy."""

    act: np.ndarray  # [S, A]
    std: np.ndarray  # [S, A], 0 where the action was known
    unseen: np.ndarray  # [S] bool, the states lie outside what the labelled steps span


@dataclass(frozen=True)
class Calibration:
    """Coverage of the central intervals on held-out steps, and the one factor that mends it."""

    levels: tuple[float, ...]
    before: tuple[float, ...]  # share of held-out actions inside, with the deviations as predicted
    after: tuple[float, ...]  # with the deviations times `scale`
    scale: float  # 1 where the coverage was right already


def predict(idm: Idm, eps: Episodes, steps: np.ndarray) -> Mixture:
    """The mixture at these steps."""
    n_act = idm.params["mean"][-1]["b"].shape[-1]
    if eps.n_obs != len(idm.scaler.mean):
        raise DataError(
            f"{eps.meta.source}: states of size {eps.n_obs} do not fit an inverse dynamics model fitted to "
            f"{len(idm.scaler.mean)}; fit one on data of this robot"
        )
    mean, std = np.empty((len(steps), n_act), np.float32), np.empty((len(steps), n_act), np.float32)
    params = jax.tree.map(jnp.asarray, idm.params)
    for a in range(0, len(steps), BLOCK):
        chosen = steps[a : a + BLOCK]
        obs, where = _states(idm, eps, chosen)
        out = _mixture(idm.config, params, obs, jnp.asarray(idm.diff_std), where)
        mean[a : a + BLOCK], std[a : a + BLOCK] = (np.asarray(x)[: len(chosen)] for x in out)
    return Mixture(mean, std)


def _states(idm: Idm, eps: Episodes, steps: np.ndarray) -> tuple[np.ndarray, Windows]:
    """The standardised states that the windows of these ascending steps need, and the windows, padded to a block."""
    where = windows(eps, np.resize(steps, BLOCK) if len(steps) < BLOCK else steps)
    low = max(0, int(where.row.min()) - idm.config.past)
    rows = np.arange(low, low + BLOCK + _spare(idm.config, eps, steps))
    obs = idm.scaler(eps.obs[np.minimum(rows, len(eps.obs) - 1)])
    return obs, Windows(where.row - low, np.maximum(where.first - low, 0), where.last - low)


def _spare(config: IdmConfig, eps: Episodes, steps: np.ndarray) -> int:
    """Rows beyond a block: the last states of its episodes and the window's reach, rounded up to few shapes."""
    span = int(eps.obs_row[steps[-1]] - eps.obs_row[steps[0]]) + len(config.offsets) + config.past
    return int(np.ceil(max(span - BLOCK, 1) / 4096)) * 4096


@partial(jax.jit, static_argnames="config")
def _mixture(config: IdmConfig, params: Params, obs: jax.Array, diff_std: jax.Array, where: Windows):
    out = jax.vmap(lambda p: forward(config, p, obs, diff_std, where))(params)
    mean = out.mean.mean(0)
    var = (jnp.exp(2 * out.log_std) + out.mean**2).mean(0) - mean**2
    return mean, jnp.sqrt(jnp.maximum(var, 1e-12))


def label(idm: Idm, eps: Episodes, scale: float = 1.0) -> Labels:
    """Fill every missing action with the mixture's mean; true actions stay as they are, to the bit."""
    missing = np.flatnonzero(~eps.labelled)
    act, std = eps.act.copy(), np.zeros_like(eps.act)
    if len(missing):
        out = predict(idm, eps, missing)
        act[missing] = unscale(np.clip(out.mean, -1, 1), eps.meta)
        std[missing] = out.std * scale * (eps.meta.high - eps.meta.low) / 2
    return Labels(act, std, unseen(eps))


def unseen(eps: Episodes, margin: float = 0.05) -> np.ndarray:
    """Steps whose s_t or s_{t+1} - s_t leaves, in any dimension, the range of the labelled steps by over `margin`."""
    state, change = eps.obs[eps.obs_row], eps.obs[eps.obs_row + 1] - eps.obs[eps.obs_row]
    out = np.zeros(eps.n_steps, bool)
    for values in (state, change):
        known = values[eps.labelled]
        if len(known):
            low, high = known.min(0), known.max(0)
            slack = margin * (high - low)
            out |= ((values < low - slack) | (values > high + slack)).any(1)
    return out & ~eps.labelled


def calibrate(out: Mixture, act: np.ndarray) -> Calibration:
    """Compare the intervals with true actions [N, A] in [-1, 1] that no weights were fitted to."""
    z = np.abs(act - out.mean) / out.std
    before = tuple(float((z <= w).mean()) for w in NORMAL)
    scale = 1.0
    if max(abs(b - level) for b, level in zip(before, LEVELS, strict=True)) > OFF:
        # Each level asks for a factor of its own; their geometric mean treats the three alike.
        asked = [np.quantile(z, level) / w for level, w in zip(LEVELS, NORMAL, strict=True)]
        scale = float(np.exp(np.mean(np.log(np.maximum(asked, 1e-6)))))
    after = tuple(float((z <= w * scale).mean()) for w in NORMAL)
    return Calibration(LEVELS, before, after, scale)


def blocks(n: int, size: int = BLOCK) -> Iterator[tuple[int, int]]:
    """Bounds of consecutive blocks."""
    for a in range(0, n, size):
        yield a, min(a + size, n)
