"""Windows of consecutive steps, for agents that read sequences."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.agents.base import Pool, Table, below


class Window(NamedTuple):
    """Up to K consecutive steps of a trajectory, [B, K, ...].

    A trajectory that ends sooner is padded on the right, by repeats of its last step with `mask` False. On the right,
    because a causal network then needs no mask of its own: no step sees what comes after it.
    """

    obs: jax.Array  # [B, K, O] standardised
    act: jax.Array  # [B, K, A] in [-1, 1]; zeros where missing
    rew: jax.Array  # [B, K]
    next_obs: jax.Array  # [B, K, O]
    rtg: jax.Array  # [B, K], rewards from the step to the end of its trajectory
    time: jax.Array  # [B, K] int32, the step's number in its trajectory
    mask: jax.Array  # [B, K] bool: the step exists
    labelled: jax.Array  # [B, K] bool: it exists and its action is known


class Windows(NamedTuple):
    """Windows whose first step is uniform over the pool, with replacement."""

    batch: int
    length: int  # K

    needs_actions = True  # a window starts at a step with one

    def draw(self, table: Table, pool: Pool, key: jax.Array) -> Window:
        """B windows, gathered where they lie."""
        return windows(table, pool, pool.steps[below(pool.n, self.batch, key)], self.length)


class BothWindows(NamedTuple):
    """Windows that start at a step with an action, and behind them in the batch those that start at one without.

    Uniform over either kind, with replacement. Where a run has none of a kind, those windows are masked throughout.
    """

    labelled: int
    unlabelled: int
    length: int  # K

    needs_actions = False

    def draw(self, table: Table, pool: Pool, key: jax.Array) -> Window:
        """Both kinds of windows, gathered where they lie."""
        k_labelled, k_unlabelled = jax.random.split(key)
        rest = pool.n - pool.known
        with_action = below(jnp.maximum(pool.known, 1), self.labelled, k_labelled)
        without = pool.known.astype(jnp.uint32) + below(jnp.maximum(rest, 1), self.unlabelled, k_unlabelled)
        drawn = windows(table, pool, pool.steps[jnp.concatenate([with_action, without])], self.length)
        there = jnp.repeat(jnp.array([pool.known, rest]) > 0, np.array([self.labelled, self.unlabelled]))[:, None]
        return drawn._replace(mask=drawn.mask & there, labelled=drawn.labelled & there)


def windows(table: Table, pool: Pool, first: jax.Array, length: int) -> Window:
    """Those that start at these steps [B].

    The steps after the first are those of its trajectory, in the pool or not; what is missing of them is masked.
    """
    place, left = jnp.arange(length), table.left[first][:, None]
    step = first[:, None] + jnp.minimum(place, left - 1)
    mask, row, act = place < left, table.row[step], pool.actions(step)
    known = ~jnp.isnan(act).any(-1)
    return Window(
        table.obs[row],
        jnp.where(known[..., None], act, 0),
        table.rew[step],
        table.obs[row + 1],
        table.rtg[step],
        table.time[step],
        mask,
        mask & known,
    )
