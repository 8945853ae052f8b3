"""Faults of action columns, made on purpose, for the tests and benchmarks of `ssorl audit`, and a simulated arm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ssorl.data.episodes import Episodes, Meta, action_range, offsets

STRENGTHS = ("weak", "middle", "strong")
SIZES: dict[str, tuple] = {  # what a strength means for each kind
    "lag": (1, 2, 4),  # steps
    "flipped": (0.0, 0.5, 1.0),  # share of the dimensions, at least one
    "permuted": (2, 3, 99),  # dimensions that change places, in a cycle
    "frozen": (0.2, 0.5, 1.0),  # share of the trajectory, one dimension
    "rescaled": (0.8, 0.5, 0.25),  # factor
    "clipped": (0.8, 0.5, 0.25),  # share of the range that is left
    "copies_state": (0.1, 0.01, 0.0),  # noise, in standard deviations
    "next_state": (0.1, 0.01, 0.0),
    "units": (10.0, 57.29578, 1000.0),  # factor
    "unexplained": (0.3, 0.6, 1.0),  # share of a shuffled action in the mixture
    "leak": (0.1, 0.01, 0.0),  # noise of the state columns that hold the previous action
    "dropped": (0.03, 0.1, 0.3),  # share of the frames
    "duplicated": (0.03, 0.1, 0.3),
}


def arm(n: int = 60, t: int = 119, lag: int = 0, joints: int = 4, seed: int = 0) -> Episodes:
    """Return trajectories of an arm under position control: a first-order servo with noise of 0.002 rad.

    The state is the joints' positions. An action, recorded at t, takes effect `lag` steps later.
    """
    rng = np.random.default_rng(seed)
    rate = np.linspace(0.2, 0.5, joints)
    knots = rng.uniform(-1, 1, (n, t // 15 + 3, joints))
    at = np.arange(t) / 15
    left, part = at.astype(int), (at % 1)[None, :, None]
    act = (1 - part) * knots[:, left] + part * knots[:, left + 1] + 0.02 * rng.standard_normal((n, t, joints))
    act = np.clip(act, -1, 1)
    obs = np.zeros((n, t + 1, joints))
    obs[:, 0] = knots[:, 0]
    for i in range(t):
        target = act[:, max(i - lag, 0)]
        obs[:, i + 1] = obs[:, i] + rate * (target - obs[:, i]) + 0.002 * rng.standard_normal((n, joints))
    return Episodes(
        obs.reshape(-1, joints).astype(np.float32),
        act.reshape(-1, joints).astype(np.float32),
        np.zeros(n * t, np.float32),
        np.zeros(n * t, bool),
        offsets(np.full(n, t)),
        Meta("arm", act_low=(-1.0,) * joints, act_high=(1.0,) * joints, act_range="declared"),
    )


def faulty(eps: Episodes, kind: str, strength: str, share: float, seed: int = 0) -> tuple[Episodes, np.ndarray]:
    """Return the trajectories with a fault in a share of them, and the numbers of those, ascending."""
    rng = np.random.default_rng([seed, sorted(SIZES).index(kind), STRENGTHS.index(strength)])
    bad = np.sort(rng.choice(len(eps), max(1, round(share * len(eps))), replace=False))
    size = SIZES[kind][STRENGTHS.index(strength)]
    if kind in ("dropped", "duplicated"):
        return _frames(eps, kind, size, bad, rng), bad
    act, obs = eps.act.copy(), eps.obs
    dims = rng.permutation(eps.n_act)[: max(1, round((size if kind == "flipped" else 0) * eps.n_act))]
    columns = rng.permutation(eps.n_obs)[: eps.n_act]
    if kind == "leak":
        held = size * act.std(0) * rng.standard_normal((len(obs), eps.n_act)) + 0
        extra = rng.standard_normal((len(obs), eps.n_act)) * act.std(0)
    centre = (eps.meta.high + eps.meta.low) / 2
    for e in bad:
        steps = slice(eps.start[e], eps.start[e + 1])
        rows = slice(eps.start[e] + e, eps.start[e + 1] + e + 1)
        a, s = act[steps], obs[rows]
        if kind == "lag":
            a = np.concatenate([np.repeat(a[:1], size, 0), a[:-size]])
        elif kind == "flipped":
            a[:, dims] = 2 * centre[dims] - a[:, dims]
        elif kind == "permuted":
            n = min(size, eps.n_act)
            a[:, :n] = np.roll(a[:, :n], 1, axis=1)
        elif kind == "frozen":
            n = max(2, round(size * len(a)))
            first = rng.integers(0, len(a) - n + 1)
            a[first : first + n, dims] = a[first, dims]
        elif kind in ("rescaled", "units"):
            a = centre + size * (a - centre)
        elif kind == "clipped":
            half = size * (eps.meta.high - eps.meta.low) / 2
            a = np.clip(a, centre - half, centre + half)
        elif kind in ("copies_state", "next_state"):
            spread = obs[:, columns].std(0)
            held_states = (s[1:] if kind == "next_state" else s[:-1])[:, columns]
            a = held_states + size * spread * rng.standard_normal(a.shape)
        elif kind == "unexplained":
            a = (1 - size) * a + size * a[rng.permutation(len(a))]
        elif kind == "leak":
            extra[rows][1:] = a
            extra[rows] += held[rows]
        act[steps] = a
    if kind == "leak":
        obs = np.concatenate([obs, extra.astype(np.float32)], 1)
    out = replace(eps, act=act.astype(np.float32), obs=obs)
    if kind in ("copies_state", "next_state", "units"):
        out = out.with_meta(**action_range(out.act))
    return out, bad


def _frames(eps: Episodes, kind: str, share: float, bad: np.ndarray, rng: np.random.Generator) -> Episodes:
    """Return the trajectories with frames (a state and its action) left out, or repeated."""
    obs, act, rew, ended, lengths = [], [], [], [], []
    for e in range(len(eps)):
        one, keep = eps[e], np.arange(eps.lengths[e])
        if e in bad:
            hit = np.sort(rng.choice(np.arange(1, len(keep)), max(1, round(share * len(keep))), replace=False))
            hit = hit[: len(keep) - 3]
            keep = np.delete(keep, hit) if kind == "dropped" else np.sort(np.concatenate([keep, hit]))
        obs.append(one.obs[np.append(keep, len(one.obs) - 1)])
        act.append(one.act[keep])
        rew.append(one.rew[keep])
        done = np.zeros(len(keep), bool)
        done[-1] = one.terminated[-1]
        ended.append(done)
        lengths.append(len(keep))
    flat = [np.concatenate(parts) for parts in (obs, act, rew, ended)]
    return Episodes(*flat, offsets(np.array(lengths)), eps.meta)
