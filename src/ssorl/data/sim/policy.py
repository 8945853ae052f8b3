"""Behaviour policies: stochastic actors, computed with NumPy, that collect the simulated datasets."""

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
# Rows of a matrix product. With so few, BLAS stays on the calling thread; its other threads busy-wait between calls and
# slow the simulator down by a factor of three. An action also does not depend on the size of the batch.
ROWS = 4
LOG_STD = (-5.0, 2.0)  # equal to sac.LOG_STD, which is not imported because sac.py imports JAX


@dataclass(frozen=True)
class Policy:
    """A Gaussian actor with ReLU layers, squashed by tanh and scaled to the action range."""

    layers: tuple[tuple[Array, Array], ...]  # weight [I, O] and bias [O] of each layer
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
        """Return mean and standard deviation [N, A] before the tanh, for observations [N, O]."""
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
        """Return the deterministic actions [N, A] for observations [N, O]."""
        return self._scale(np.tanh(self.gaussian(obs)[0]))

    def act(self, obs: NDArray[np.floating], noise: "np.random.Generator | Array") -> Array:
        """Return stochastic actions [N, A].

        Args:
            obs: observations [N, O].
            noise: a random generator, or standard normal noise [N, A].
        """
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
    """Return a policy with the given weights.

    Args:
        weights: w0, b0, w1, b1, ... of any float type.
        act_low: lowest action [A].
        act_high: highest action [A].
    """
    flat = [np.ascontiguousarray(w, np.float32) for w in weights]
    layers = tuple(zip(flat[0::2], flat[1::2], strict=True))
    return Policy(layers, np.asarray(act_low, np.float32), np.asarray(act_high, np.float32))


def save(path: Path, policy: Policy, provenance: dict[str, Any], dtype: type = np.float16) -> None:
    """Write the weights to an .npz file, and their provenance to a .json file next to it.

    Args:
        path: the .npz file.
        policy: the policy.
        provenance: content of the .json file.
        dtype: type of the weights in the file.
    """
    arrays = {"act_low": policy.act_low, "act_high": policy.act_high}
    for i, (w, b) in enumerate(policy.layers):
        arrays |= {f"w{i}": w.astype(dtype), f"b{i}": b.astype(dtype)}
    write_npz(path, arrays)
    write_text(path.with_suffix(".json"), json.dumps(provenance, indent=2) + "\n")


def load(path: Path) -> Policy:
    """Return the policy in a file that `save` wrote.

    Args:
        path: the .npz file.

    Raises:
        SsorlError: the file is damaged or of another kind.
    """
    with _read_arrays(path) as f:
        n = sum(name.startswith("w") for name in f)
        return from_weights([f[f"{kind}{i}"] for i in range(n) for kind in "wb"], f["act_low"], f["act_high"])


@contextmanager
def _read_arrays(path: Path) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the arrays of a file; turn errors about its content in the block into SsorlError."""
    try:
        yield read_npz(path)
    except SsorlError:
        raise
    except Exception as err:  # untrusted bytes: every error here means that the file is unusable
        raise SsorlError(
            f"{path}: cannot be read as a behaviour policy ({type(err).__name__}); train it again"
        ) from err


def load_snapshot(path: Path, step: int) -> Policy:
    """Return one snapshot of a training run.

    Args:
        path: file `snapshots.npz` of a seed, see train.py.
        step: training step of the snapshot.

    Raises:
        SsorlError: the file is damaged or has no snapshot at this step.
    """
    with _read_arrays(path) as f:
        steps = f["step"].tolist()
        if step not in steps:
            raise SsorlError(f"{path}: has no snapshot at step {step}; choose one of {steps}")
        i, n = steps.index(step), sum(name.startswith("w") for name in f)
        return from_weights([f[f"{kind}{j}"][i] for j in range(n) for kind in "wb"], f["act_low"], f["act_high"])
