"""The fitted blend: predictions block by block, and its arrays in files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.idm.base import ArrayReader, FittedIdm, HeldOut, Prediction
from ssorl.idm.blend.config import BlendConfig
from ssorl.idm.blend.linear import Linear, read_linear
from ssorl.idm.blend.products import LARGEST, Products, read_products
from ssorl.idm.blend.targets import Targets, targets_from_json
from ssorl.idm.blend.trees import Forest, read_forest
from ssorl.idm.blend.uncertainty import Nearness, Spread, read_nearness, read_spread
from ssorl.idm.blend.windows import flat, gather, n_tree_features, tree_features, unwrapped
from ssorl.idm.network import Idm
from ssorl.idm.network import restore as restore_network

BLOCK = 1 << 14  # steps predicted together


class Window(NamedTuple):
    """The states around a step that the members use."""

    past: int  # before s_t
    future: int  # after s_{t+1}
    delay: int = 0  # a_t acts on s_{t+delay} → s_{t+delay+1}

    @property
    def lag(self) -> int:
        """The lag in steps: the action recorded at t acts at t - lag."""
        return -self.delay

    @property
    def n_parts(self) -> int:
        """The number of kinds of windows (whole or shortened) with weights of their own."""
        return self.future + 1 + (self.past > 0)

    def part(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Return the kind of each window, [N].

        0: whole. 1 … future: only `part - 1` states after s_{t+1} are real. future + 1: states before s_t are missing.

        Args:
            before: [N] real states before s_t.
            after: [N] real states after s_{t+1}.
        """
        short = np.where(before < self.past, self.future + 1, 0) if self.past else np.zeros(len(before), np.int64)
        return np.where(after < self.future, 1 + after, short)


class Members(NamedTuple):
    """Fitted members of a blend; predictions are of the targets."""

    linear: Linear
    forest: Forest
    products: Products | None  # None for states of many dimensions
    networks: tuple[Idm, ...]

    @property
    def names(self) -> list[str]:
        """The names of the members, in the order of `predict`."""
        products = [] if self.products is None else ["products and trees"]
        return ["linear", "trees", *products, *(f"network {i + 1}" for i in range(len(self.networks)))]

    def predict(self, eps: Episodes, steps: np.ndarray, window: Window) -> MemberPredictions:
        """Return what each member predicts at some steps.

        Args:
            eps: trajectories, their angles unwrapped.
            steps: [N] step numbers.
            window: the window of trees and networks.
        """
        states, inside = gather(eps, steps, window.past, window.future)
        rows = tree_features(states, inside, window.past)
        now = flat(states[:, window.past : window.past + 2])
        means = [self.linear(eps, steps), self.forest(rows)]
        if self.products is not None:
            means.append(self.products(now, rows))
        variances = []
        for network in self.networks:
            blocks = list(network.predict(eps, steps))
            means.append(np.concatenate([b.mean for b in blocks]) if blocks else np.zeros_like(means[0]))
            variances.append(np.concatenate([b.std for b in blocks]) ** 2 if blocks else np.zeros_like(means[0]))
        part = window.part(inside[:, : window.past].sum(1), inside[:, window.past + 2 :].sum(1))
        return MemberPredictions(
            np.stack(means), sum(variances) / max(1, len(variances)) + np.zeros_like(means[0]), part, now
        )


class MemberPredictions(NamedTuple):
    """The predictions of the members at N steps."""

    means: np.ndarray  # [M, N, K]
    variance: np.ndarray  # [N, K], mean of the variances that the networks predict
    part: np.ndarray  # [N], kind of the window, see `Window.part`
    states: np.ndarray  # [N, 2 O], s_t and s_{t+1}


@dataclass(frozen=True, repr=False)
class Blend(FittedIdm):
    """A fitted blend."""

    config: BlendConfig  # type: ignore[override]
    validation: np.ndarray  # numbers of the held-out trajectories, which determined the weights
    window: Window
    targets: Targets
    angles: dict[int, float]  # period of each state dimension that is a wrapping angle
    members: Members
    weights: np.ndarray  # [parts, M, K] float32
    nearness: Nearness
    spread: Spread
    size: int  # numbers in a state
    delays: dict[int, float] = field(
        default_factory=dict
    )  # held-out error of each delay, relative to the variance of the targets
    checked: HeldOut | None = None  # predictions of the fit without the holdout; not saved

    @property
    def n_obs(self) -> int:
        """Size of an observation."""
        return self.size

    @property
    def n_act(self) -> int:
        """Size of an action."""
        return len(self.targets.dimensions)

    def predict(self, eps: Episodes, steps: np.ndarray, block: int | None = None) -> Iterator[Prediction]:
        """Yield the weighted mean of the members and the square root of its expected squared error."""
        eps = unwrapped(eps, self.angles)
        for first in range(0, len(steps), BLOCK):
            chosen = steps[first : first + BLOCK]
            if self.targets.width:
                predicted = self.members.predict(eps, chosen, self.window)
                mean, variance = mix(predicted, self.weights, self.nearness, self.spread)
            else:
                mean = variance = np.zeros((len(chosen), 0), np.float32)
            act, spread = self.targets.decode(mean, variance)
            yield Prediction(chosen, act, np.sqrt(spread))

    def held_out_predictions(self) -> HeldOut | None:
        """Return the predictions of the fit without the holdout; None for a loaded model."""
        return self.checked

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of the members and their weights."""
        networks = [
            {f"network{i}/{name}": array for name, array in idm.arrays().items()}
            for i, idm in enumerate(self.members.networks)
        ]
        return {
            **self.members.linear.arrays("linear"),
            **self.members.forest.arrays("trees"),
            **({} if self.members.products is None else self.members.products.arrays("products")),
            **{name: array for arrays in networks for name, array in arrays.items()},
            **{f"nearness/{name}": array for name, array in self.nearness._asdict().items()},
            **{f"spread/{name}": array for name, array in self.spread._asdict().items()},
            "weights": self.weights,
            "validation": self.validation,
        }

    def about(self) -> dict[str, Any]:
        """Return the window, the kinds of the action dimensions, and the wrapping angles."""
        return {
            "window": list(self.window),
            "linear_window": [self.members.linear.past, self.members.linear.future],
            "dimensions": self.targets.as_json(),
            "angles": [[j, period] for j, period in self.angles.items()],
        }

    def facts(self) -> dict[str, Any]:
        """Return the members, their weights on whole windows, the window and the lag."""
        share = self.weights[0].mean(-1) if self.targets.width else np.zeros(len(self.members.names))
        return {
            "members": len(self.members.names),
            "weights": dict(zip(self.members.names, np.round(share.astype(float), 4).tolist(), strict=True)),
            "window": {"past": self.window.past, "future": self.window.future, "lag": self.window.lag},
            "dimensions": [d.kind for d in self.targets.dimensions],
        }


def mix(
    predicted: MemberPredictions, weights: np.ndarray, nearness: Nearness, spread: Spread | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weighted mean [N, K] of the members, and its expected squared error [N, K].

    Args:
        predicted: predictions of M members.
        weights: [parts, M, K].
        nearness: distance to the labelled steps.
        spread: model of the squared error; None: the variance between the members is returned instead.
    """
    own = np.moveaxis(weights[predicted.part], 1, 0)  # [M, N, K]
    mean, between = np.zeros_like(predicted.means[0]), np.zeros_like(predicted.means[0])
    for w, each in zip(own, predicted.means, strict=True):  # the order of the sums in einsum depends on the shapes
        mean = mean + w * each
    for w, each in zip(own, predicted.means, strict=True):
        between = between + w * (each - mean) ** 2
    if spread is None:
        return mean, between
    return mean, spread(between, predicted.variance, nearness(predicted.states))


class _Prefixed:
    """Read the arrays whose names begin with a prefix."""

    def __init__(self, read: ArrayReader, prefix: str) -> None:
        self.read, self.prefix = read, prefix

    @property
    def names(self) -> list[str]:
        return [name.removeprefix(self.prefix) for name in self.read.names if name.startswith(self.prefix)]

    def __call__(
        self, name: str, shape: Sequence[int | None], dtype: Any = np.float32, finite: bool = True
    ) -> np.ndarray:
        return self.read(self.prefix + name, shape, dtype, finite)


def restore(config: BlendConfig, n_obs: int, n_act: int, read: ArrayReader, about: Mapping[str, Any]) -> Blend:
    """Rebuild a saved blend.

    Args:
        config: its configuration.
        n_obs: size of an observation.
        n_act: size of an action.
        read: returns the arrays of the file.
        about: the values of `Blend.about`, from the file.

    Raises:
        ValueError: an array or a value does not fit.
    """
    window = Window(*_whole_numbers(about.get("window"), 3, "window"))
    size = _whole_numbers(about.get("linear_window"), 2, "linear_window")
    if min(window.past, window.future, *size) < 0 or max(*window, *size) > 1000:
        raise ValueError(f"its window has {window.past} states before and {window.future} after a step")
    targets = targets_from_json(about.get("dimensions"), n_act)
    angles = _angles(about.get("angles"), n_obs)
    seen, width = n_obs + len(angles), targets.width
    networks = tuple(
        restore_network(config.network(window.past, window.future, False), seen, width, _Prefixed(read, f"network{i}/"))
        for i in range(config.members if width else 0)
    )
    n_features = n_tree_features(seen, window.past, window.future)
    members = Members(
        read_linear(read, "linear", (size[0], size[1]), seen, width),
        read_forest(read, "trees", n_features, width),
        read_products(read, "products", seen, n_features, width) if width and seen <= LARGEST else None,
        networks,
    )
    weights = read("weights", (window.n_parts, len(members.names), width))
    return Blend(
        config,
        read("validation", (None,), None),
        window,
        targets,
        angles,
        members,
        weights,
        read_nearness(read, "nearness", seen),
        read_spread(read, "spread", width),
        n_obs,
    )


def _whole_numbers(value: Any, n: int, name: str) -> list[int]:
    if not isinstance(value, list) or len(value) != n or not all(type(x) is int for x in value):
        raise ValueError(f"its {name} is not a list of {n} whole numbers")
    return value


def _angles(pairs: Any, n_obs: int) -> dict[int, float]:
    if not isinstance(pairs, list) or not all(isinstance(x, list) and len(x) == 2 for x in pairs):
        raise ValueError("its angles are not a list of pairs")
    angles = {}
    for j, period in pairs:
        if type(j) is not int or not 0 <= j < n_obs or not isinstance(period, float) or not 0 < period < 1e6:
            raise ValueError("one of its angles has an invalid state dimension or period")
        angles[j] = period
    return angles
