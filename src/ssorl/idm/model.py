"""The inverse dynamics network: it maps a window of states to a Gaussian over the action. One run, no ensemble axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.idm.base import NETWORK, ArrayReader, FitProgress, IdmSpec, ReadParts
from ssorl.utils.identity import since
from ssorl.utils.networks import Params, init_mlp, mlp

if TYPE_CHECKING:  # these modules import this one
    from ssorl.idm.network import Idm
    from ssorl.idm.statistics import Statistics

LOG_2PI = 1.8378770664093453
MAX_SIZE = 1000  # largest number of past states, of future states, and of members


@dataclass(frozen=True)
class IdmConfig(IdmSpec):
    """Maximise log N(a_t; μ(w_t), Σ(w_t)) over windows w_t = s_{t-k} … s_{t+1} (arXiv 2210.06518, section 3).

    The defaults are the paper's, with what its public code adds (learning rate, batch, dropout, bounds of log σ).
    """

    FAMILY: ClassVar[str] = NETWORK
    passes: ClassVar[int] = 2
    revision: ClassVar[int] = 0  # raised when a change alters results at unchanged settings: docs/architecture.md

    past: int = 1  # k: states before s_t in the window
    future: int = 0  # states after s_{t+1}; k for the paper's symmetric windows
    hidden: tuple[int, ...] = (1024, 1024)  # widths of the hidden layers of the mean network and of the std network
    differences: bool = False  # add the scaled s_{i+1} - s_i to the features
    ranks: bool = False  # add each coordinate's rank among all states to the features: see `Inputs`
    affine: bool = False  # add A(s_t) (s_{t+1} - s_t) + b(s_t) to the mean; a network predicts A and b
    beta: float = 0.0  # β-NLL (arXiv 2203.09168): weight σ^2β of each step, without gradient; 0 is the plain likelihood
    members: int = 1  # networks with different initial weights and batches; their equal mixture predicts
    steps: int = 100_000  # updates
    batch: int = 1024  # steps in an update
    lr: float = 1e-4  # learning rate of Adam
    schedule: Literal["constant", "cosine"] = "constant"  # decay of the learning rate
    dropout: float = 0.1  # rate after each hidden layer
    half: bool | None = None  # whether hidden layers use bfloat16 during the fit; None: on an accelerator only
    log_std: tuple[float, float] = (-5.0, 2.0)  # bounds of log σ, for actions scaled to [-1, 1]
    validation: float = 0.1  # share of the labelled trajectories in the validation split, which selects the weights
    validate_every: int = 1000  # updates between validations
    select: Literal["nll", "mse"] = "nll"  # metric of the validation that selects the weights
    soft_limits: bool = since("0.2", False)  # keep proxy actions away from the limits of their range: see `idm.limits`

    @property
    def offsets(self) -> tuple[int, ...]:
        """Positions of the states in the window; s_t has position 0."""
        return tuple(range(-self.past, self.future + 2))

    @property
    def work(self) -> int:
        """The number of updates of all networks together."""
        return self.steps * self.members

    def fit(
        self, eps: Episodes, seed: int = 0, progress: FitProgress | None = None, statistics: Statistics | None = None
    ) -> Idm:
        """Fit an ensemble to the labelled steps of `eps`."""
        from ssorl.idm.fit import fit

        return fit(eps, self, seed, self._noting(progress), statistics)

    def fit_many(self, tasks: Sequence[tuple[Episodes, int]], progress: FitProgress | None = None) -> list[Idm]:
        """Fit an ensemble to each task; on an accelerator, one program fits all of them."""
        from ssorl.idm.fit import fit_many

        return fit_many(tasks, self, self._noting(progress))

    def _noting(self, progress: FitProgress | None):
        """Return a callback for `fit.fit_many`, which reports validation errors [M] where `progress` expects a note."""
        return progress and (lambda n, error: progress(n, f"validation {self.select} {np.mean(error):.4g}"))

    def measure(self, read: ReadParts, n_states: int) -> Statistics:
        """Return the statistics of all states that `fit` needs; see `IdmSpec.measure`."""
        from ssorl.idm.statistics import measure

        return measure(read, n_states, self.ranks)

    def restore(self, n_obs: int, n_act: int, read: ArrayReader, about: Mapping[str, Any]) -> Idm:
        """Rebuild a saved ensemble."""
        from ssorl.idm.network import restore

        return restore(self, n_obs, n_act, read)

    def flops(self, n_obs: int, n_act: int) -> float:
        """Estimate the operations of one update: 2 forward and 4 backward for each weight and row."""
        weights = jax.eval_shape(lambda: init(self, n_obs, n_act, jax.random.key(0)))
        return 6.0 * sum(prod(x.shape) for x in jax.tree.leaves(weights)) * self.batch

    def check(self) -> None:
        """Raise ValueError if a size is out of bounds."""
        for name, least in (("past", 0), ("future", 0), ("members", 1)):
            if not least <= getattr(self, name) <= MAX_SIZE:
                raise ValueError(f"{name} is {getattr(self, name)}")


def n_inputs(config: IdmConfig, n_obs: int) -> int:
    """Return the number of inputs for one state."""
    return n_obs * (1 + config.ranks)


class Windows(NamedTuple):
    """Positions of the windows of N steps in the table of states."""

    row: jax.Array | np.ndarray  # [N] int32, the row of s_t
    first: jax.Array | np.ndarray  # [N] int32, the first row of its trajectory
    last: jax.Array | np.ndarray  # [N] int32, the last row of its trajectory


class Gaussian(NamedTuple):
    """A diagonal Gaussian over actions in [-1, 1]."""

    mean: jax.Array  # [..., A]
    log_std: jax.Array  # [..., A]


def n_features(config: IdmConfig, n_obs: int) -> int:
    """Return the length of one feature vector."""
    width = len(config.offsets)
    return width * n_obs + (width - 1) * n_obs * config.differences + (width - 2)


def features(config: IdmConfig, obs: jax.Array, diff_std: jax.Array, where: Windows, folded: bool = False) -> jax.Array:
    """Return the feature vectors of some windows, [N, F].

    A window that leaves its trajectory repeats the state at the edge. For each position except s_t and s_{t+1}, a flag
    says whether the state there is real.

    Args:
        config: the model.
        obs: table of standardised states [R, O].
        diff_std: divisors of the differences, [O].
        where: the windows.
        folded: leave out all states except s_t, for weights that `fold_states` returned.
    """
    at = where.row[:, None] + jnp.array(config.offsets)  # [N, W]
    inside = (at >= where.first[:, None]) & (at <= where.last[:, None])
    states = obs[jnp.clip(at, where.first[:, None], where.last[:, None])]  # [N, W, O]
    flags = jnp.delete(inside, jnp.array([config.past, config.past + 1]), axis=1, assume_unique_indices=True)
    parts = [states[:, config.past] if folded else states.reshape(len(at), -1), flags.astype(obs.dtype)]
    if config.differences:
        parts.append((jnp.diff(states, axis=1) / diff_std).reshape(len(at), -1))
    return jnp.concatenate(parts, axis=1)


def fold_states(config: IdmConfig, params: Params, diff_std: jax.Array) -> Params:
    """Return weights for `folded` features that give the same output; the first layer does a third less work.

    Every state of a window is s_t plus or minus differences, so its weights can be added to theirs.

    Args:
        config: a model with differences.
        params: its weights.
        diff_std: divisors of the differences, [O].
    """
    width, n_obs = len(config.offsets), len(diff_std)

    def first(w: jax.Array) -> jax.Array:  # [F, H]
        cut = [width * n_obs, width * n_obs + width - 2]
        states, flags, diffs = w[: cut[0]].reshape(width, n_obs, -1), w[cut[0] : cut[1]], w[cut[1] :]
        before, after = jnp.cumsum(states, 0)[:-1], jnp.cumsum(states[::-1], 0)[::-1][1:]
        ahead = (jnp.arange(width - 1) >= config.past)[:, None, None]
        moves = jnp.where(ahead, after, -before) * diff_std[:, None]
        return jnp.concatenate([states.sum(0), flags, diffs + moves.reshape(diffs.shape)])

    heads = {k: [{**params[k][0], "w": first(params[k][0]["w"])}, *params[k][1:]] for k in ("mean", "std")}
    return {**params, **heads}


def init(config: IdmConfig, n_obs: int, n_act: int, key: jax.Array) -> Params:
    """Return initial weights of the mean and std networks, and of the affine term if the model has one."""
    k_mean, k_std, k_affine = jax.random.split(key, 3)
    sizes = (n_features(config, n_obs), *config.hidden)
    params = {"mean": init_mlp(k_mean, (*sizes, n_act)), "std": init_mlp(k_std, (*sizes, n_act))}
    if config.affine:
        params["affine"] = init_mlp(k_affine, (n_obs, *config.hidden, n_act * (n_obs + 1)))
    return params


def forward(
    config: IdmConfig, params: Params, obs: jax.Array, diff_std: jax.Array, where: Windows, key: jax.Array | None = None
) -> Gaussian:
    """Return the Gaussians of N steps.

    Args:
        config: the model.
        params: its weights.
        obs: table of standardised states [R, O].
        diff_std: divisors of the differences, [O].
        where: the windows of the steps.
        key: for dropout; None: no dropout.
    """
    return heads(config, params, features(config, obs, diff_std, where), obs, diff_std, where, key)


def heads(
    config: IdmConfig,
    params: Params,
    x: jax.Array,
    obs: jax.Array,
    diff_std: jax.Array,
    where: Windows,
    key: jax.Array | None = None,
) -> Gaussian:
    """Return the Gaussians of N steps from their features.

    Args:
        config: the model.
        params: its weights, or folded ones.
        x: features [N, F].
        obs: table of standardised states [R, O].
        diff_std: divisors of the differences, [O].
        where: the windows of the steps.
        key: for dropout; None: no dropout.
    """
    keys = (None,) * 3 if key is None or not config.dropout else tuple(jax.random.split(key, 3))
    mean = mlp(params["mean"], x, dropout=config.dropout, key=keys[0], half=config.half)
    if config.affine:
        state, change = obs[where.row], (obs[where.row + 1] - obs[where.row]) / diff_std
        lin = mlp(params["affine"], state, dropout=config.dropout, key=keys[2], half=config.half)
        lin = lin.reshape(*mean.shape, -1)  # [N, A, O+1]
        mean = mean + jnp.einsum("nao,no->na", lin[..., :-1], change) + lin[..., -1]
    low, high = config.log_std
    log_std = mlp(params["std"], x, dropout=config.dropout, key=keys[1], half=config.half)
    # The bounds are smooth: at the edges of a clip the gradient would be zero.
    log_std = high - jax.nn.softplus(high - log_std)
    log_std = low + jax.nn.softplus(log_std - low)
    return Gaussian(mean, log_std)


def nll(out: Gaussian, act: jax.Array) -> jax.Array:
    """Return the negative log density of each action dimension, [..., A], for actions [..., A]."""
    z = (act - out.mean) * jnp.exp(-out.log_std)
    return 0.5 * (z**2 + LOG_2PI) + out.log_std


def loss(config: IdmConfig, out: Gaussian, act: jax.Array) -> jax.Array:
    """Return the training loss: the mean over steps of the (β-weighted) negative log likelihood of actions [N, A]."""
    weight = jnp.exp(2 * config.beta * jax.lax.stop_gradient(out.log_std))
    return (weight * nll(out, act)).sum(-1).mean()
