"""LAMB (arXiv 1904.00962) behind a clipped gradient, with the state of optax's.

LAMB needs two norms of every array and clipping a third. As separate sums, which is how optax takes them, they are
most of an update's GPU kernels where there are some sixty arrays, many small; here the last steps of all sums are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ssorl.utils.networks import Params

B1, B2, EPS = 0.9, 0.999, 1e-8  # as in Adam
PARTS = 512  # sums of an array, before they are summed up


def clipped_lamb(clip: float, lr: optax.Schedule, decay: float) -> optax.GradientTransformation:
    """`optax.chain(clip_by_global_norm(clip), lamb(lr, eps=1e-8, weight_decay=decay))`, in fewer kernels."""
    plain = optax.chain(optax.clip_by_global_norm(clip), optax.lamb(lr, B1, B2, EPS, weight_decay=decay))

    def update(updates: Params, state: Any, params: Params = None) -> tuple[Params, Any]:
        clipping, (adam, *others, schedule) = state
        norm = jnp.sqrt(squares(jax.tree.leaves(updates)).sum())
        shrink = jnp.where(norm < clip, 1, clip / norm)
        grad = jax.tree.map(lambda g: g * shrink, updates)

        count = optax.safe_increment(adam.count)
        mu = jax.tree.map(lambda m, g: B1 * m + (1 - B1) * g, adam.mu, grad)
        nu = jax.tree.map(lambda v, g: B2 * v + (1 - B2) * g * g, adam.nu, grad)
        fix1, fix2 = 1 / (1 - B1**count), 1 / (1 - B2**count)
        step = jax.tree.map(lambda p, m, v: m * fix1 / (jnp.sqrt(v * fix2) + EPS) + decay * p, params, mu, nu)

        steps, tree = jax.tree.flatten(step)
        of_params, of_steps = jnp.sqrt(squares([*jax.tree.leaves(params), *steps])).reshape(2, -1)
        # An array of zeros could never leave them: its step is taken as it is.
        trust = jnp.where((of_params == 0) | (of_steps == 0), 1, of_params / of_steps)
        size = jnp.negative(lr(schedule.count)) * trust
        step = jax.tree.unflatten(tree, [size[i] * s for i, s in enumerate(steps)])
        schedule = schedule._replace(count=optax.safe_increment(schedule.count))
        return step, (clipping, (adam._replace(count=count, mu=mu, nu=nu), *others, schedule))

    return optax.GradientTransformation(plain.init, update)


def squares(arrays: Sequence[jax.Array]) -> jax.Array:
    """The sum of the squares of each array, [len(arrays)]: a kernel for each large one, and a few for all."""
    rows = []
    for x in arrays:
        n = next(n for n in range(min(x.size, PARTS), 0, -1) if x.size % n == 0)
        rows.append(jnp.pad(jnp.square(x).reshape(n, -1).sum(1), (0, PARTS - n)))
    # Without the barrier XLA would take a sum over all of these for a sum of sums over each, in a kernel each.
    return jax.lax.optimization_barrier(jnp.stack(rows).sum(1))
