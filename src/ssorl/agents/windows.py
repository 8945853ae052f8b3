"""Windows of consecutive steps, for agents that read sequences."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ssorl.agents.base import Pool, Table


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
    """Windows whose first step is uniform over the pool, with replacement.

    The steps after the first are those of its trajectory, in the pool or not; what is missing of them is masked.
    """

    batch: int
    length: int  # K
    needs_actions: bool = True  # whether a window must start at a step with an action

    def draw(self, table: Table, pool: Pool, key: jax.Array) -> Window:
        """B windows, gathered where they lie."""
        first = pool.steps[jax.random.bits(key, (self.batch,), jnp.uint32) % pool.n.astype(jnp.uint32)]
        place, left = jnp.arange(self.length), table.left[first][:, None]
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
