"""Yardsticks: what simple rules achieve on the held-out steps that a label model is judged by."""

from __future__ import annotations

import numpy as np

from ssorl.data.episodes import Episodes, scale

MAX_LAG = 5  # steps that the rule "the action is a later state" looks ahead at most
TREE_ROWS, TREE_ROUNDS, TREE_RATE = 10_000, 100, 0.2  # of the boosted trees, chosen for two seconds on hopper
HELD_ROWS = 20_000  # held-out steps on which the trees are judged at most
RIDGE = 1e-9  # regularisation of least squares, relative to standardised inputs
MARGIN = 1.1  # labels are worse than a yardstick if their error exceeds this times its error
NEGLIGIBLE = 1e-6  # a mean squared error that no warning is worth: 0.05 % of the action range

TEXT = {
    "constant": "a constant guess",
    "next_state": "the rule that the action is a later state",
    "least_squares": "least squares on three states",
    "least_squares_future": "least squares on four states",
    "trees": "boosted trees on two states",
}


def yardsticks(eps: Episodes, held_steps: np.ndarray, train_steps: np.ndarray) -> dict[str, float]:
    """Return mean squared errors of simple rules, with actions scaled to [-1, 1].

    Args:
        eps: trajectories.
        held_steps: labelled steps on which errors are measured [N].
        train_steps: labelled steps from which the rules are fitted [M], none of them held out.

    Returns:
        `constant` (the mean action); `next_state` (action i is state i, k steps later, in the data's own unit, where
        states have at least as many dimensions as actions) with `next_state_lag`, the best k; `least_squares` on
        s_{t-1}, s_t, s_{t+1}; `least_squares_future` with s_{t+2}; `trees` (gradient boosting on s_t, their change and
        s_{t+1}, of a sample of steps). Empty if either side has no steps.
    """
    if not len(held_steps) or not len(train_steps):
        return {}
    held, train = (scale(eps.act[s], eps.meta).astype(np.float64) for s in (held_steps, train_steps))
    found = {"constant": _mse(train.mean(0) - held)}
    if eps.n_obs >= eps.n_act:
        dims = _action_dims(eps)
        errors = [_mse(_later(eps, train_steps, k, dims) - train) for k in range(MAX_LAG + 1)]
        lag = int(np.argmin(errors))
        found |= {
            "next_state": _mse(_later(eps, held_steps, lag, dims) - held),
            "next_state_lag": float(lag),
        }
    for name, places in (("least_squares", (-1, 0, 1)), ("least_squares_future", (-1, 0, 1, 2))):
        found[name] = _mse(
            _least_squares(_window(eps, train_steps, places), train, _window(eps, held_steps, places)) - held
        )
    found["trees"] = _trees(eps, held_steps, train_steps, held, train)
    return found


def worse_than(mse: float, found: dict[str, float]) -> list[str]:
    """Return a warning for each yardstick that labels with this error do not reach.

    Args:
        mse: mean squared error of the labels on the same held-out steps, actions in [-1, 1].
        found: what `yardsticks` returned.
    """
    if not mse > NEGLIGIBLE:
        return []
    out = []
    for name, text in TEXT.items():
        error = found.get(name, np.inf)
        if mse < error if name == "constant" else mse <= MARGIN * error:
            continue
        cure = {
            "constant": "do not trust them: label more trajectories, or declare the action range",
            "next_state": "use that rule, or label more trajectories",
        }.get(name, "fit another inverse dynamics model (--idm), or label more trajectories")
        later = f", {found['next_state_lag']:.0f} steps later" if name == "next_state" else ""
        out.append(
            f"on held-out steps the labels are off by {_percent(mse)} of the action range, and {text}{later} by "
            f"{_percent(error)}; {cure}"
        )
    return out


def _percent(mse: float) -> str:
    """Return the root of a mean squared error of actions in [-1, 1] as a share of their range."""
    return f"{np.sqrt(mse) / 2:.2%}"


def _mse(error: np.ndarray) -> float:
    return float(np.mean(np.square(error, dtype=np.float64)))


def _rows(eps: Episodes, steps: np.ndarray, place: int) -> np.ndarray:
    """Return the row of `obs` that is `place` states after s_t of each step, or the nearest one of its trajectory."""
    episode = np.searchsorted(eps.start, steps, side="right") - 1
    first, last = eps.start[episode] + episode, eps.start[episode + 1] + episode
    return np.clip(steps + episode + place, first, last)


def _window(eps: Episodes, steps: np.ndarray, places: tuple[int, ...]) -> np.ndarray:
    """Return the states at these places around each step, [N, len(places) * O]."""
    return np.concatenate([eps.obs[_rows(eps, steps, k)] for k in places], axis=1).astype(np.float64)


def _action_dims(eps: Episodes) -> np.ndarray:
    """Return the dimension of the state that each action is compared with: by name if it has one, else by number."""
    states, actions = list(eps.meta.state_names), eps.meta.action_names
    if len(actions) == eps.n_act and set(actions) <= set(states):
        return np.array([states.index(name) for name in actions])
    return np.arange(eps.n_act)


def _later(eps: Episodes, steps: np.ndarray, lag: int, dims: np.ndarray) -> np.ndarray:
    """Return the state `lag` steps later as an action, scaled to [-1, 1] and clipped."""
    return np.clip(scale(eps.obs[_rows(eps, steps, lag)][:, dims].astype(np.float64), eps.meta), -1, 1)


def _least_squares(inputs: np.ndarray, targets: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return predictions of ridge regression on standardised inputs with an intercept, clipped to [-1, 1]."""
    mean, std = inputs.mean(0), inputs.std(0)
    std[std <= 1e-6 * np.abs(mean) + 1e-30] = 1
    x, offset = (inputs - mean) / std, targets.mean(0)
    gram = x.T @ x / len(x) + RIDGE * np.eye(x.shape[1])
    weights = np.linalg.solve(gram, x.T @ (targets - offset) / len(x))
    return np.clip((new - mean) / std @ weights + offset, -1, 1)


def _trees(
    eps: Episodes, held_steps: np.ndarray, train_steps: np.ndarray, held: np.ndarray, train: np.ndarray
) -> float:
    """Return the error of gradient-boosted trees that are fitted to at most `TREE_ROWS` steps."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(len(train_steps), min(len(train_steps), TREE_ROWS), replace=False))
    judged = np.sort(rng.choice(len(held_steps), min(len(held_steps), HELD_ROWS), replace=False))

    def inputs(steps: np.ndarray) -> np.ndarray:
        now, following = (eps.obs[_rows(eps, steps, k)] for k in (0, 1))
        return np.concatenate([now, following - now, following], axis=1)

    x, new, errors = inputs(train_steps[rows]), inputs(held_steps[judged]), []
    with threadpool_limits(1, "openmp"):  # more threads wait for each other on a busy machine
        for target, truth in zip(train[rows].T, held[judged].T, strict=True):
            if np.ptp(target) == 0:
                errors.append(_mse(target[0] - truth))
                continue
            model = HistGradientBoostingRegressor(
                max_iter=TREE_ROUNDS,
                learning_rate=TREE_RATE,
                early_stopping=False,  # type: ignore[arg-type]  # the stub leaves bool out
                random_state=0,
            )
            errors.append(_mse(np.clip(model.fit(x, target).predict(new), -1, 1) - truth))
    return float(np.mean(errors))
