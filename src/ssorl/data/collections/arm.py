"""`builtin/arm`: a position-controlled arm of six joints that follows smooth commands, generated on use.

Each joint is a first-order servo, x_{t+1} = x_t + α (u_{t-lag} − x_t), and its encoder adds noise. So the command
recorded at t moves the arm from s_{t+lag} to s_{t+lag+1}. Recordings of real arms have such a lag, from communication
and control loops. `builtin/arm` has no lag; `builtin/arm-lag1` to `-lag3` have one of 1 to 3 steps.
"""

from __future__ import annotations

import re

import numpy as np

from ssorl.data.episodes import Episodes, Meta
from ssorl.data.validate import READ_ALL, ReadOptions, build
from ssorl.utils.errors import DataError

N_EPISODES, N_STEPS, SEED = 40, 119, 0
LAGS = (0, 1, 2, 3)  # steps; the names of the catalogue
JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "wrist_yaw")
FPS = 30.0
LIMIT = np.array([1.9, 1.2, 1.6, 1.4, 2.4, 1.7])  # rad, largest command of each joint in either direction
CENTRE = np.array([0.0, 0.5, -0.6, 0.3, 0.0, -0.2])  # rad, mean command of each joint
ALPHA = 0.5  # share of the distance to the command that a joint moves in a step
NOISE = 0.002  # rad, standard deviation of the encoders
WAVES, PERIODS = 4, (25.0, 150.0)  # sine waves of each command, and their shortest and longest period in steps
FILLED = 0.95  # largest distance of a command from its centre, as a share of the distance to the nearer limit
WARM_UP = 30  # steps before the recording, in which the arm reaches its commands


def names() -> list[str]:
    """Return the names of the datasets, without `builtin/`."""
    return ["arm" if lag == 0 else f"arm-lag{lag}" for lag in LAGS]


def load_id(name: str, options: ReadOptions = READ_ALL) -> Episodes:
    """Return one of the datasets.

    Args:
        name: name without `builtin/`.
        options: options of reading.

    Raises:
        DataError: the name is unknown.
    """
    if name not in names():
        raise DataError(f"builtin/{name}: is not a built-in dataset; choose one of {', '.join(names())}")
    lag = re.search(r"\d+$", name)
    return record(int(lag[0]) if lag else 0, source=f"builtin/{name}", options=options)


def record(
    lag: int = 0,
    n_episodes: int = N_EPISODES,
    n_steps: int = N_STEPS,
    seed: int = SEED,
    source: str = "builtin/arm",
    options: ReadOptions = READ_ALL,
) -> Episodes:
    """Return recordings of the arm: joint angles as states, commanded angles as actions, and no rewards.

    Args:
        lag: steps between a command and the movement that it causes.
        n_episodes: number of trajectories.
        n_steps: steps of each trajectory.
        seed: seed of commands and noise. Another lag changes neither the commands nor the noise.
        source: what `Meta.source` says.
        options: options of reading.
    """
    rng = np.random.default_rng(seed)
    n_before, n_joints = WARM_UP + max(LAGS[-1], lag), len(JOINTS)
    command = _commands(rng, n_episodes, n_before + n_steps)
    noise = NOISE * rng.standard_normal((n_episodes, n_steps + 1, n_joints))
    angle, angles = command[:, 0], []
    for t in range(n_before + n_steps):
        if t >= n_before:
            angles.append(angle)
        angle = angle + ALPHA * (command[:, max(t - lag, 0)] - angle)
    obs = np.stack([*angles, angle], 1) + noise
    meta = Meta(
        source=source,
        act_low=tuple(map(float, -LIMIT)),
        act_high=tuple(map(float, LIMIT)),
        act_range="declared",
        state_names=JOINTS,
        action_names=JOINTS,
        fps=FPS,
    )
    steps = n_episodes * n_steps
    return build(
        obs.reshape(-1, n_joints).astype(np.float32),
        command[:, n_before:].reshape(-1, n_joints).astype(np.float32),
        np.full(steps, np.nan, np.float32),
        np.zeros(steps, bool),
        np.full(n_episodes, n_steps),
        meta,
        options,
    )


def _commands(rng: np.random.Generator, n_episodes: int, n_steps: int) -> np.ndarray:
    """Return smooth random commands within the limits, [E, T, J]: sums of sine waves around the centres."""
    shape = (n_episodes, 1, len(JOINTS), WAVES)
    period = np.exp(rng.uniform(np.log(PERIODS[0]), np.log(PERIODS[1]), shape))
    phase = rng.uniform(0, 2 * np.pi, shape)
    weight = rng.dirichlet(np.ones(WAVES), shape[:3])
    waves = np.sin(2 * np.pi * np.arange(n_steps)[None, :, None, None] / period + phase)
    return CENTRE + FILLED * (LIMIT - np.abs(CENTRE)) * (weight * waves).sum(-1)
