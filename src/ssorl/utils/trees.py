"""Trees of arrays as flat dictionaries, for files."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import numpy as np

Tree = TypeVar("Tree")


def flat(tree: object, under: str) -> dict[str, Any]:
    """The leaves by their path, such as `state/actor/0/w`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {"/".join([under, *(jax.tree_util.keystr((key,), simple=True) for key in path)]): x for path, x in leaves}


def unflat(arrays: dict[str, np.ndarray], like: Tree, under: str) -> Tree:
    """The tree whose leaves `flat` named."""
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in flat(like, under)])
