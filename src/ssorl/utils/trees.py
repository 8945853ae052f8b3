"""Convert pytrees of arrays to flat dictionaries and back, for files."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import numpy as np

Tree = TypeVar("Tree")


def flat(tree: object, under: str) -> dict[str, Any]:
    """Return the leaves of a pytree by path, such as `state/actor/0/w`.

    Args:
        tree: the pytree.
        under: first part of each path.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {"/".join([under, *(jax.tree_util.keystr((key,), simple=True) for key in path)]): x for path, x in leaves}


def unflat(arrays: dict[str, np.ndarray], like: Tree, under: str) -> Tree:
    """Rebuild a pytree from the leaves that `flat` returned.

    Args:
        arrays: leaves by path; other entries are ignored.
        like: a pytree of the same structure.
        under: first part of each path.
    """
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in flat(like, under)])
