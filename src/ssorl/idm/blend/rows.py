"""Products of rows with weights whose bits depend on nothing but the row: neither on other rows nor on threads."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

BLOCK = 1 << 12  # rows multiplied together


def multiply(rows: np.ndarray, weights: np.ndarray, kind: np.ndarray | None = None) -> np.ndarray:
    """Return each row times the weights of its kind, [N, K] float32.

    A library's matrix product sums in an order that depends on the number of rows; this one sums row by row.

    Args:
        rows: [N, F] float32.
        weights: [F, K], or [P, F, K] for P kinds.
        kind: [N] of each row, if there are several.
    """
    out = np.empty((len(rows), weights.shape[-1]), np.float32)
    if not out.size:
        return out
    table = weights if kind is not None else weights[None]
    kinds = np.zeros(len(rows), np.int32) if kind is None else kind.astype(np.int32)
    for first in range(0, len(rows), BLOCK):
        block = rows[first : first + BLOCK]
        padded, own = np.zeros((BLOCK, rows.shape[1]), np.float32), np.zeros(BLOCK, np.int32)
        padded[: len(block)], own[: len(block)] = block, kinds[first : first + BLOCK]
        out[first : first + BLOCK] = np.asarray(_multiply(padded, table, own))[: len(block)]
    return out


@jax.jit
def _multiply(rows: jax.Array, table: jax.Array, kind: jax.Array) -> jax.Array:
    def column(k: jax.Array) -> jax.Array:
        return (rows * table[kind, :, k]).sum(1)

    return jax.lax.map(column, jnp.arange(table.shape[2])).T
