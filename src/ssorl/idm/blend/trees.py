"""Gradient-boosted trees: scikit-learn fits them, and this module stores and evaluates them as plain arrays.

So a saved forest does not depend on the version of scikit-learn, and loading it unpickles nothing. Every tree has at
most 16 leaves, so bit masks select the leaf of a row (Lucchese et al., QuickScorer, SIGIR 2015): each node whose test
fails removes the leaves of its left subtree, and the lowest remaining leaf is the result. This needs no branches, so
XLA evaluates many rows at once, and the result does not depend on the number of threads.

Why scikit-learn and not LightGBM: with features sampled at each node, its errors on hopper, walker2d and halfcheetah
medium-expert (q = 50) are about equal (0.0159, 0.0719, 0.0087; LightGBM: 0.0168, 0.0690, 0.0089). Fits take equally
long. scikit-learn is in the base install, and LightGBM needs a system library (libgomp).
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.idm.base import ArrayReader

MAX_LEAVES = 16  # leaves of one tree, at most
MISSING = np.float32(1e30)  # feature of a state outside the trajectory; larger than every threshold
ALL = np.uint32(0xFFFFFFFF)
NEVER = np.finfo(np.float32).max  # threshold of padding nodes, which no feature exceeds
BLOCK = 1 << 12  # rows evaluated together, so that their features stay in the cache


class Forest(NamedTuple):
    """Boosted trees for K targets; the trees of target k are those with `target == k`."""

    feature: np.ndarray  # [T, MAX_LEAVES - 1] int32, feature of each node
    threshold: np.ndarray  # [T, MAX_LEAVES - 1] float32; a row goes left if its feature is at most this
    mask: np.ndarray  # [T, MAX_LEAVES - 1] uint32, the leaves that remain if it goes right
    leaf: np.ndarray  # [T, MAX_LEAVES] float32, values of the leaves from left to right
    target: np.ndarray  # [T] int32, ascending
    base: np.ndarray  # [K] float32, prediction before the first tree
    n_features: int

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Return the predictions [N, K] for features [N, F]."""
        out = np.empty((len(rows), len(self.base)), np.float32)
        if not len(self.feature):
            return out
        for first in range(0, len(rows), BLOCK):
            block = rows[first : first + BLOCK]
            padded = np.zeros((BLOCK, self.n_features), np.float32)
            padded[: len(block)] = block
            out[first : first + BLOCK] = np.asarray(_evaluate(self[:6], padded))[: len(block)]
        return out

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Return the tables by name, for a file."""
        return {f"{name}/{field}": getattr(self, field) for field in self._fields[:6]}


def read_forest(read: ArrayReader, name: str, n_features: int, n_targets: int) -> Forest:
    """Rebuild a saved forest.

    Args:
        read: returns the arrays of the file.
        name: the first part of their names.
        n_features: the expected number of features.
        n_targets: the expected number of targets.

    Raises:
        ValueError: a table has another shape, or an index in it is out of range.
    """
    nodes = MAX_LEAVES - 1
    feature = read(f"{name}/feature", (None, nodes), np.int32)
    n_trees = len(feature)
    forest = Forest(
        feature,
        read(f"{name}/threshold", (n_trees, nodes)),
        read(f"{name}/mask", (n_trees, nodes), np.uint32),
        read(f"{name}/leaf", (n_trees, MAX_LEAVES)),
        read(f"{name}/target", (n_trees,), np.int32),
        read(f"{name}/base", (n_targets,)),
        n_features,
    )
    if n_trees and (feature.min() < 0 or feature.max() >= n_features):
        raise ValueError(f"{name}: a tree tests feature {feature.max()} of {n_features}")
    if n_trees and (forest.target.min() < 0 or forest.target.max() >= n_targets):
        raise ValueError(f"{name}: a tree predicts target {forest.target.max()} of {n_targets}")
    if (np.bitwise_and.reduce(forest.mask, axis=1) >> (MAX_LEAVES - 1) & 1 == 0).any():
        raise ValueError(f"{name}: a tree has a mask that removes its last leaf")
    return forest


def fit_forest(
    rows: np.ndarray, targets: np.ndarray, rounds: int, seed: int, rate: float = 0.1, weights: np.ndarray | None = None
) -> Forest:
    """Boost `rounds` trees for each target.

    Args:
        rows: features [N, F] float32; `MISSING` where there is no value.
        targets: [N, K].
        rounds: trees for each target.
        seed: of the random features that the nodes may use.
        rate: learning rate.
        weights: of the rows, [N]; None: equal weights.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    def boost(k: int) -> tuple[tuple[np.ndarray, ...], float]:
        model = HistGradientBoostingRegressor(
            max_iter=rounds,
            learning_rate=rate,
            max_leaf_nodes=MAX_LEAVES - 1,
            max_features=0.5,
            early_stopping=False,  # type: ignore[arg-type]
            random_state=seed + 1000 * k,
        ).fit(rows, targets[:, k], sample_weight=weights)
        return _tables(model, k), float(np.ravel(model._baseline_prediction)[0])

    if not targets.shape[1]:
        return _empty(rows.shape[1])
    # OpenMP threads wait for each other at every node: on a busy machine, a fit with two threads took 20 times as long.
    with threadpool_limits(1, "openmp"), ThreadPoolExecutor(min(targets.shape[1], os.cpu_count() or 1)) as pool:
        tables, base = zip(*pool.map(boost, range(targets.shape[1])), strict=True)
    stacked = (np.concatenate(parts) for parts in zip(*tables, strict=True))
    return Forest(*stacked, np.array(base, np.float32), rows.shape[1])  # type: ignore[call-arg]


def _empty(n_features: int) -> Forest:
    """Return a forest without targets."""
    nodes = MAX_LEAVES - 1
    kinds = ((nodes, np.int32), (nodes, np.float32), (nodes, np.uint32), (MAX_LEAVES, np.float32))
    tables = (np.zeros((0, width), dtype) for width, dtype in kinds)
    return Forest(*tables, np.zeros(0, np.int32), np.zeros(0, np.float32), n_features)  # type: ignore[call-arg]


def _tables(model: Any, target: int) -> tuple[np.ndarray, ...]:
    """Return the node tables of one fitted regressor."""
    trees = [predictor.nodes for (predictor,) in model._predictors]
    feature = np.zeros((len(trees), MAX_LEAVES - 1), np.int32)
    threshold = np.full((len(trees), MAX_LEAVES - 1), NEVER, np.float32)
    mask = np.full((len(trees), MAX_LEAVES - 1), ALL, np.uint32)
    leaf = np.zeros((len(trees), MAX_LEAVES), np.float32)
    for t, nodes in enumerate(trees):
        count = 0  # leaves so far, from left to right
        inner = 0

        def visit(at: int, t: int = t, nodes: np.ndarray = nodes) -> None:
            nonlocal count, inner
            node = nodes[at]
            if node["is_leaf"]:
                leaf[t, count] = node["value"]
                count += 1
                return
            own, first = inner, count
            inner += 1
            visit(int(node["left"]))
            feature[t, own] = node["feature_idx"]
            threshold[t, own] = _below(float(node["num_threshold"]))
            mask[t, own] = ALL ^ np.uint32((1 << count) - (1 << first))
            visit(int(node["right"]))

        visit(0)
    return feature, threshold, mask, leaf, np.full(len(trees), target, np.int32)


def _below(threshold: float) -> np.float32:
    """Return the largest float32 that is not above a float64 threshold, so that comparisons give the same result."""
    rounded = np.float32(threshold)
    return rounded if float(rounded) <= threshold else np.nextafter(rounded, np.float32(-np.inf))


@partial(jax.jit)
def _evaluate(tables: tuple[jax.Array, ...], rows: jax.Array) -> jax.Array:
    """Return the predictions [B, K] for features [B, F]."""
    feature, threshold, mask, leaf, target, base = tables
    columns = rows.T  # [F, B]

    def add(total: jax.Array, tree: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        at, limit, keep, values, k = tree
        remain = jnp.full(columns.shape[1], ALL, jnp.uint32)
        for node in range(MAX_LEAVES - 1):
            right = columns[at[node]] > limit[node]
            remain = remain & jnp.where(right, keep[node], ALL)
        lowest = jax.lax.population_count((remain & -remain) - 1)
        return total.at[k].add(values[jnp.minimum(lowest, MAX_LEAVES - 1)]), None

    start = jnp.broadcast_to(base[:, None], (len(base), columns.shape[1])).astype(jnp.float32)
    total, _ = jax.lax.scan(add, start, (feature, threshold, mask, leaf, target))
    return total.T
