"""Windows of consecutive steps, the batches of sequence models."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.agents.base import Pool, Table, random_below


class Window(NamedTuple):
    """A batch of B windows of up to K consecutive steps.

    A window that reaches the end of its trajectory is padded on the right: the last step is repeated with `mask` False.
    Padding on the right needs no attention mask, because in a causal network no step sees later steps.
    """

    obs: jax.Array  # [B, K, O] standardised
    act: jax.Array  # [B, K, A] in [-1, 1]; zeros where missing
    rew: jax.Array  # [B, K]
    next_obs: jax.Array  # [B, K, O]
    rtg: jax.Array  # [B, K], returns-to-go
    time: jax.Array  # [B, K] int32, index of the step in its trajectory
    mask: jax.Array  # [B, K] bool: the step exists
    labelled: jax.Array  # [B, K] bool: the step exists and has an action


class Windows(NamedTuple):
    """A view that draws windows; their first step is uniform over the pool, with replacement."""

    batch: int
    length: int  # K

    needs_actions = True  # the first step of a window must have an action

    def draw(self, table: Table, pool: Pool, key: jax.Array) -> Window:
        """Draw B windows."""
        return windows(table, pool, pool.steps[random_below(pool.n, self.batch, key)], self.length)


class BothWindows(NamedTuple):
    """A view that draws windows whose first step has an action, followed by windows whose first step has none.

    Both kinds are drawn uniformly with replacement. If a run has no steps of a kind, its windows are masked entirely.
    """

    labelled: int
    unlabelled: int
    length: int  # K

    needs_actions = False

    def draw(self, table: Table, pool: Pool, key: jax.Array) -> Window:
        """Draw `labelled` windows of the first kind and `unlabelled` windows of the second."""
        k_labelled, k_unlabelled = jax.random.split(key)
        unknown = pool.n - pool.known
        with_action = random_below(jnp.maximum(pool.known, 1), self.labelled, k_labelled)
        without = pool.known.astype(jnp.uint32) + random_below(jnp.maximum(unknown, 1), self.unlabelled, k_unlabelled)
        drawn = windows(table, pool, pool.steps[jnp.concatenate([with_action, without])], self.length)
        exists = jnp.repeat(jnp.array([pool.known, unknown]) > 0, np.array([self.labelled, self.unlabelled]))[:, None]
        return drawn._replace(mask=drawn.mask & exists, labelled=drawn.labelled & exists)


def windows(table: Table, pool: Pool, first: jax.Array, length: int) -> Window:
    """Return the windows that start at given steps.

    The later steps of a window follow in the trajectory, whether or not they are in the pool.

    Args:
        table: the data that all runs share.
        pool: the run's actions and steps.
        first: indices of the first steps [B].
        length: steps of a window K.
    """
    offset, left = jnp.arange(length), table.left[first][:, None]
    step = first[:, None] + jnp.minimum(offset, left - 1)
    mask, row, act = offset < left, table.row[step], pool.actions(step)
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
