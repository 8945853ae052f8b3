"""A trained actor in NumPy alone: what the package ships, and what makes datasets."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssorl.utils.errors import SsorlError
from ssorl.utils.files import read_npz, write_npz, write_text

Array = NDArray[np.float32]
# Rows a matrix product. Few enough that BLAS stays on the calling thread: its helper threads spin between
# calls and take the cores from the simulator, three times slower in all. It also makes an action independent
# of how many others are computed with it.
ROWS = 4
LOG_STD = (-5.0, 2.0)  # as in sac.py, which this file must not import: it needs JAX


@dataclass(frozen=True)
class Policy:
    """A tanh-squashed Gaussian actor: `layers` of (weight [I, O], bias [O]), scaled to the action box."""

    layers: tuple[tuple[Array, Array], ...]
    act_low: Array  # [A]
    act_high: Array  # [A]

    @property
    def n_obs(self) -> int:
        """Size of an observation."""
        return self.layers[0][0].shape[0]

    @property
    def n_act(self) -> int:
        """Size of an action."""
        return self.act_low.shape[0]

    def gaussian(self, obs: NDArray[np.floating]) -> tuple[Array, Array]:
        """Mean and standard deviation [N, A] under the tanh."""
        n = len(obs)
        x = np.zeros((-(-n // ROWS) * ROWS, self.n_obs), np.float32)
        x[:n] = obs
        x = x.reshape(-1, ROWS, self.n_obs)
        for w, b in self.layers[:-1]:
            x = x @ w
            x += b
            np.maximum(x, 0, out=x)
        w, b = self.layers[-1]
        out = (x @ w + b).reshape(-1, w.shape[1])[:n]
        mean, log_std = np.split(out, 2, axis=-1)
        return mean, np.exp(np.clip(log_std, *LOG_STD))

    def mean(self, obs: NDArray[np.floating]) -> Array:
        """The middle action [N, A]."""
        return self._scale(np.tanh(self.gaussian(obs)[0]))

    def act(self, obs: NDArray[np.floating], noise: "np.random.Generator | Array") -> Array:
        """Stochastic actions [N, A]; `noise` is a generator, or the standard normal draws themselves."""
        mean, std = self.gaussian(obs)
        if isinstance(noise, np.random.Generator):
            noise = noise.standard_normal(mean.shape, np.float32)
        return self._scale(np.tanh(mean + std * noise))

    def _scale(self, act: Array) -> Array:
        half = (self.act_high - self.act_low) / 2
        return (self.act_low + half + half * act).astype(np.float32, copy=False)


def from_weights(
    weights: Sequence[NDArray[np.floating]], act_low: NDArray[np.floating], act_high: NDArray[np.floating]
) -> Policy:
    """A policy from w0, b0, w1, b1, ... of any float type."""
    flat = [np.ascontiguousarray(w, np.float32) for w in weights]
    layers = tuple(zip(flat[0::2], flat[1::2], strict=True))
    return Policy(layers, np.asarray(act_low, np.float32), np.asarray(act_high, np.float32))


def save(path: Path, policy: Policy, provenance: dict[str, Any], dtype: type = np.float16) -> None:
    """Write weights to `path` (.npz) and where they came from to a .json beside it."""
    arrays = {"act_low": policy.act_low, "act_high": policy.act_high}
    for i, (w, b) in enumerate(policy.layers):
        arrays |= {f"w{i}": w.astype(dtype), f"b{i}": b.astype(dtype)}
    write_npz(path, arrays)
    write_text(path.with_suffix(".json"), json.dumps(provenance, indent=2) + "\n")


def load(path: Path) -> Policy:
    """Read what `save` wrote."""
    with _reading(path) as f:
        n = sum(name.startswith("w") for name in f)
        return from_weights([f[f"{kind}{i}"] for i in range(n) for kind in "wb"], f["act_low"], f["act_high"])


@contextmanager
def _reading(path: Path) -> Iterator[dict[str, NDArray[Any]]]:
    """The arrays of a file; whatever a damaged or foreign one leads to is one sentence."""
    try:
        yield read_npz(path)
    except SsorlError:
        raise
    except Exception as err:  # the boundary to foreign bytes: any error there means the same to the user
        raise SsorlError(
            f"{path}: cannot be read as a behaviour policy ({type(err).__name__}); train it again"
        ) from err


def load_snapshot(path: Path, step: int) -> Policy:
    """The actor at one `step` of a training run's snapshots.npz (see train.py)."""
    with _reading(path) as f:
        steps = f["step"].tolist()
        if step not in steps:
            raise SsorlError(f"{path}: no snapshot at step {step}; it has {steps}")
        i, n = steps.index(step), sum(name.startswith("w") for name in f)
        return from_weights([f[f"{kind}{j}"][i] for j in range(n) for kind in "wb"], f["act_low"], f["act_high"])
