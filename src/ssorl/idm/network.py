"""The fitted ensemble of networks: predictions block by block, and its arrays in files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.data.stats import Standardiser
from ssorl.idm.base import ArrayReader, FittedIdm, Prediction
from ssorl.idm.inputs import KNOTS, Inputs
from ssorl.idm.model import IdmConfig, Windows, features, fold_states, heads, init, n_inputs
from ssorl.utils.networks import Params
from ssorl.utils.trees import flat

BLOCK = {"cpu": 1 << 12}  # steps predicted together: bounds memory and keeps a layer's output in the CPU's cache
LARGE_BLOCK = 1 << 16  # the same on an accelerator
SMALLEST = 256  # smallest block; sizes are powers of two, so that few are compiled


@dataclass(frozen=True, repr=False)
class Idm(FittedIdm):
    """A fitted ensemble of networks: their weights, and the statistics that scale the inputs."""

    config: IdmConfig  # type: ignore[override]
    params: Params  # each leaf [M, …] for M members
    inputs: Inputs
    diff_std: np.ndarray  # [I], divisors of the differences of inputs
    curve: np.ndarray  # [M, C] validation errors during the fit
    best_step: np.ndarray  # [M], the update with the smallest validation error, whose weights are used
    validation: np.ndarray  # numbers of the held-out trajectories

    @property
    def n_obs(self) -> int:
        """Numbers in a state."""
        return len(self.inputs.scaler.mean)

    @property
    def n_act(self) -> int:
        """Numbers in an action."""
        return self.params["mean"][-1]["b"].shape[-1]

    def predict(self, eps: Episodes, steps: np.ndarray, block: int | None = None) -> Iterator[Prediction]:
        """Yield the equal mixture of the members; the device computes a block while the host gathers the next one."""
        block = block or BLOCK.get(jax.default_backend(), LARGE_BLOCK)
        size = min(block, max(SMALLEST, 1 << (max(len(steps), 1) - 1).bit_length()))
        params, diff_std = jax.tree.map(jnp.asarray, self.params), jnp.asarray(self.diff_std)
        if self.config.differences:
            params = _fold_states(self.config, params, diff_std)
        pending = None
        for a in range(0, len(steps), size):
            chosen = steps[a : a + size]
            states, where = _gather(self, eps, chosen, size)
            computing = chosen, *_mixture(replace(self.config, half=False), params, states, diff_std, where)
            if pending is not None:
                yield _on_host(*pending)
            pending = computing
        if pending is not None:
            yield _on_host(*pending)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the weights, the statistics of the inputs and the learning curve."""
        return {
            **flat(self.params, "params"),
            "scaler/mean": self.inputs.scaler.mean,
            "scaler/std": self.inputs.scaler.std,
            **({} if self.inputs.knots is None else {"knots": self.inputs.knots}),
            "diff_std": self.diff_std,
            "curve": self.curve,
            "best_step": self.best_step,
            "validation": self.validation,
        }

    def facts(self) -> dict[str, Any]:
        """Return the size of the ensemble and the updates of its fit."""
        updates = {"updates": self.config.steps, "best_update": self.best_step.tolist()}
        return {"members": self.config.members, **updates}

    def validation_errors(self) -> list[float]:
        """Return each member's smallest validation error."""
        return np.nanmin(self.curve, 1).tolist()

    def digest(self) -> str:
        """Return a hash of the weights only, as in version 0.1; the names of run folders contain it."""
        return hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(self.params))).hexdigest()


def restore(config: IdmConfig, n_obs: int, n_act: int, read: ArrayReader) -> Idm:
    """Rebuild a saved ensemble.

    Args:
        config: its configuration.
        n_obs: numbers in a state.
        n_act: numbers in an action.
        read: returns the arrays of the file.

    Raises:
        ValueError: an array does not fit the configuration.
    """
    blank = _blank(config, n_obs, n_act)
    leaves = [read(name, like.shape) for name, like in flat(blank, "params").items()]
    params = jax.tree.unflatten(jax.tree.structure(blank), leaves)
    scaler = Standardiser(read("scaler/mean", (n_obs,)), read("scaler/std", (n_obs,)))
    diff_std = read("diff_std", (n_inputs(config, n_obs),))
    knots = read("knots", (n_obs, KNOTS)) if config.ranks else None
    if not (scaler.std > 0).all() or not (diff_std > 0).all():
        raise ValueError("a standard deviation that is not positive")
    if knots is not None and (np.diff(knots) < 0).any():
        raise ValueError("quantiles that are not in ascending order")
    curve = read("curve", (config.members, None), dtype=None, finite=False)  # NaN where an evaluation diverged
    best_step = read("best_step", (config.members,), dtype=None)
    return Idm(config, params, Inputs(scaler, knots), diff_std, curve, best_step, read("validation", (None,), None))


def _blank(config: IdmConfig, n_obs: int, n_act: int) -> Params:
    """Return the shapes of the weights without computing them."""
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), config.members))
    return jax.eval_shape(jax.vmap(lambda key: init(config, n_inputs(config, n_obs), n_act, key)), keys)


def _on_host(steps: np.ndarray, mean: jax.Array, std: jax.Array) -> Prediction:
    return Prediction(steps, np.asarray(mean)[: len(steps)], np.asarray(std)[: len(steps)])


def _gather(idm: Idm, eps: Episodes, steps: np.ndarray, size: int) -> tuple[np.ndarray, Windows]:
    """Return a table of scaled states with a window of its own for each step, padded with zeros to `size` windows.

    Its shape does not depend on where the steps lie, so one compiled program serves all blocks.
    """
    config, width = idm.config, len(idm.config.offsets)
    episode = np.searchsorted(eps.start, steps, side="right") - 1
    row, first = steps + episode, eps.start[episode] + episode
    last = eps.start[episode + 1] + episode
    at = np.clip(row[:, None] + np.array(config.offsets), first[:, None], last[:, None])
    if at.max() - at.min() < at.size:  # most steps are neighbours, which share states
        shown, place = idm.inputs(eps.obs[at.min() : at.max() + 1]), at - at.min()
    else:
        rows, place = np.unique(at, return_inverse=True)
        shown = idm.inputs(eps.obs[rows])
    table = np.zeros((size, width, shown.shape[1]), np.float32)
    table[: len(steps)] = shown[place.reshape(at.shape)]
    place = np.arange(size, dtype=np.int32) * width + config.past
    before, after = np.zeros(size, np.int32), np.ones(size, np.int32)
    before[: len(steps)] = np.minimum(row - first, config.past)
    after[: len(steps)] = np.minimum(last - row, config.future + 1)
    return table.reshape(-1, table.shape[-1]), Windows(place, place - before, place + after)  # type: ignore[arg-type]


@partial(jax.jit, static_argnames="config")
def _fold_states(config: IdmConfig, params: Params, diff_std: jax.Array) -> Params:
    return jax.vmap(lambda p: fold_states(config, p, diff_std))(params)


@partial(jax.jit, static_argnames="config")
def _mixture(config: IdmConfig, params: Params, obs: jax.Array, diff_std: jax.Array, where: Windows):
    x = features(config, obs, diff_std, where, folded=config.differences)
    # Members run one after another: a block occupies the whole machine, and several would not fit into a CPU's cache.
    out = jax.lax.map(lambda p: heads(config, p, x, obs, diff_std, where), params)
    # Variance within plus variance between members: E[x²] - E[x]² would lose a small variance to rounding.
    return out.mean.mean(0), jnp.sqrt(jnp.exp(2 * out.log_std).mean(0) + out.mean.var(0))
