"""`sim/...`: datasets like those of D4RL. The bundled policies generate them on first use, and they are cached."""

from __future__ import annotations

import difflib
import hashlib
import json
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import numpy as np

from ssorl.data.episodes import Episodes, concat
from ssorl.data.formats import npz
from ssorl.data.sim.collect import Progress, collect
from ssorl.data.sim.policy import Policy
from ssorl.data.sim.policy import load as load_policy
from ssorl.data.validate import READ_ALL, ReadOptions
from ssorl.utils.cache import cached
from ssorl.utils.errors import DataError
from ssorl.utils.progress import Progress as Bar

SEED = 2  # the tried seed whose small datasets have mean returns closest to those of full size
VERSION = 1  # raise this when a change alters the datasets
DEFAULT_DIVISOR = 10  # the default size is D4RL's divided by this
WIDE_DRAWS = 1000  # trajectories of the wide subsample at full size; in proportion at other sizes
MIN_WIDE_DRAWS = 50


@dataclass(frozen=True)
class Roster:
    """The bundled policies of an environment, as training steps, by the datasets that they generate."""

    replay: tuple[int, ...]  # from untrained to medium; each represents the part of training closest to it
    medium: tuple[int, ...]  # one policy, or several with equal shares
    expert: tuple[int, ...]


ROSTERS: dict[str, Roster] = {
    "hopper": Roster((0, 10_000, 50_000, 100_000, 150_000, 200_000, 230_000), (230_000,), (2_150_000,)),
    "walker2d": Roster((0, 10_000, 40_000, 80_000, 110_000, 160_000, 200_000, 240_000), (240_000,), (800_000,)),
    # Returns of one halfcheetah policy vary much less than D4RL's; three policies match D4RL's mean and spread.
    "halfcheetah": Roster(
        (0, 10_000, 50_000, 100_000, 150_000, 200_000, 220_000), (150_000, 220_000, 310_000), (2_100_000,)
    ),
}

# Number of steps of D4RL's v2 files. Medium-expert is medium and expert together.
FULL: dict[str, dict[str, int]] = {
    "hopper": {"medium": 999_906, "expert": 999_494, "medium-replay": 402_000},
    "walker2d": {"medium": 999_995, "expert": 999_214, "medium-replay": 302_000},
    "halfcheetah": {"medium": 1_000_000, "expert": 1_000_000, "medium-replay": 202_000},
    "maze2d-open-dense": {"": 1_000_000},
    "maze2d-umaze-dense": {"": 1_000_000},
    "maze2d-medium-dense": {"": 1_000_000},
    "maze2d-large-dense": {"": 1_000_000},
}


def names() -> list[str]:
    """Return the names of all simulated datasets, without `sim/`."""
    gym = [f"{env}-{level}" for env in ROSTERS for level in ("medium", "medium-replay", "medium-expert", "expert")]
    return gym + ["walker2d-wide"] + [env for env in FULL if env.startswith("maze2d")]


def load_id(name: str, options: ReadOptions = READ_ALL) -> Episodes:
    """Return a simulated dataset.

    Args:
        name: `NAME` or `NAME:SIZE` without `sim/`. SIZE is a number of steps or `full`, by default a tenth of `full`.
        options: options of reading.

    Raises:
        DataError: the name or the size is invalid.
    """
    name, _, size = name.partition(":")
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean sim/{near[0]}?" if near else f"choose one of {', '.join(names())}"
        raise DataError(f"sim/{name}: is not a simulated dataset; {hint}")
    env, level = _env_and_level(name)
    if level == "medium-expert":
        halves = [load_id(f"{env}-{half}:{n}", options) for half, n in _halves(env, size)]
        eps = concat(halves)
    elif level == "wide":
        eps = _wide(env, size, options)
    else:
        eps = npz.load(_cached_file(env, level, n_steps(env, level, size)), options)
    return eps.with_meta(source=f"sim/{name}" + (f":{size}" if size else ""))


def n_steps(env: str, level: str, size: str) -> int:
    """Return the number of steps that a size stands for.

    Args:
        env: name of the environment.
        level: level of the behaviour policies; "" for mazes.
        size: a number of steps, "full", or "" for the default.

    Raises:
        DataError: the size is invalid.
    """
    full = FULL[env][level]
    if size in ("", "full"):
        return full if size else full // DEFAULT_DIVISOR
    if not size.isdecimal() or not 0 < int(size) <= 10**9:
        name = f"{env}-{level}".strip("-")
        raise DataError(f"sim/{name}: the size is {size!r}; give a number of steps or `full`")
    return int(size)


def measured(name: str) -> dict | None:
    """Return size and returns of a dataset of default size, as measured for the package; None if they were not."""
    table = json.loads((files("ssorl.data.sim") / "datasets.json").read_text())
    return table.get(name, {}).get("default")


def policy_path(env: str, step: int) -> Path:
    """Return the file of the policy that was trained for `step` steps."""
    return Path(str(files("ssorl.data.sim") / "policies" / env / f"{step}.npz"))


def policy(env: str, step: int) -> Policy:
    """Return a bundled policy.

    Args:
        env: name of the environment.
        step: number of training steps; 0 gives an untrained policy, whose actions are noise around 0.
    """
    if step:
        return load_policy(policy_path(env, step))
    expert = load_policy(policy_path(env, ROSTERS[env].expert[0]))
    layer = (np.zeros((expert.n_obs, 2 * expert.n_act), np.float32), np.zeros(2 * expert.n_act, np.float32))
    return replace(expert, layers=(layer,))


def bundled() -> list[dict]:
    """Return the records of all bundled policies: environment, training steps, use, return, and provenance."""
    rows = []
    for env, roster in ROSTERS.items():
        for step in sorted({*roster.replay[1:], *roster.medium, *roster.expert}):
            uses = [use for use in ("replay", "medium", "expert") if step in getattr(roster, use)]
            record = json.loads(policy_path(env, step).with_suffix(".json").read_text())
            rows.append({"env": env, "steps": step, "serves": uses, **record})
    return rows


def recipe(env: str, level: str) -> list[tuple[int, float]]:
    """Return the policies that generate a dataset.

    Args:
        env: name of the environment.
        level: level of the dataset.

    Returns:
        Pairs of a policy's number of training steps and its share of the dataset's steps.
    """
    roster = ROSTERS[env]
    if level != "medium-replay":
        steps = getattr(roster, level)
        return [(step, 1 / len(steps)) for step in steps]
    # Each policy represents training up to half way to its neighbours; for the untrained one, these are 5,000 steps.
    bounds = [0, *(np.array(roster.replay[:-1]) + np.array(roster.replay[1:])) / 2, roster.replay[-1]]
    return list(zip(roster.replay, (np.diff(bounds) / roster.replay[-1]).tolist(), strict=True))


def make(env: str, level: str, n: int, seed: int = SEED, progress: Progress | None = None) -> Episodes:
    """Generate a dataset without the cache; on one machine, the same arguments give the same bytes.

    Args:
        env: name of the environment.
        level: level of the behaviour policies; "" for mazes.
        n: number of steps to reach.
        seed: seed of initial states and action noise.
        progress: called with the number of new steps.
    """
    if env.startswith("maze2d"):
        from ssorl.data.sim import mazes

        return mazes.collect(env, n, seed, progress)
    parts = [
        collect(env, policy(env, step), max(1, round(share * n)), _seed(seed, env, level, step), progress)
        for step, share in recipe(env, level)
    ]
    return concat(parts)


def _seed(seed: int, *names: object) -> int:
    """Return a seed that differs between the parts of datasets, so that medium and medium-replay share no noise."""
    text = "/".join(str(n) for n in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _cached_file(env: str, level: str, n: int) -> Path:
    name = f"{env}-{level}".strip("-")

    def write(path: Path) -> None:
        title = f"making sim/{name}"
        with Bar({title: (n, "steps")}) as bar:
            npz.save(make(env, level, n, progress=lambda k: bar(title, k)), path)

    return cached(f"sim/{name}-{n}-{_recipe_digest(env, level)}.npz", write)


def _recipe_digest(env: str, level: str) -> str:
    """Return a hash of everything that determines a dataset: version, seed, shares and policies."""
    digest = hashlib.sha256(f"{VERSION} {SEED}".encode())
    for step, share in recipe(env, level) if env in ROSTERS else ():
        digest.update(f"{share}".encode() + (policy_path(env, step).read_bytes() if step else b""))
    return digest.hexdigest()[:8]


def _halves(env: str, size: str) -> list[tuple[str, str]]:
    """Return the levels and sizes of the two parts of medium-expert."""
    if size in ("", "full"):
        return [("medium", size), ("expert", size)]
    half = str(max(1, n_steps(env, "medium", size) // 2))
    return [("medium", half), ("expert", half)]


def _wide(env: str, size: str, options: ReadOptions) -> Episodes:
    """Return the paper's wide subsample of medium-replay and medium, see `ssorl.data.wide`.

    The seed of the draw is fixed: studies vary the split, not the data.
    """
    from ssorl.data.split import apply, wide

    full = {level: FULL[env][level] for level in ("medium-replay", "medium")}
    share = n_steps(env, "medium", size) / (sum(full.values()) if size.isdecimal() else full["medium"])
    parts = [load_id(f"{env}-{level}:{max(1, round(share * n))}", options) for level, n in full.items()]
    eps = concat(parts)
    return apply(wide(eps, max(MIN_WIDE_DRAWS, round(share * WIDE_DRAWS)), seed=0), eps)


def _env_and_level(name: str) -> tuple[str, str]:
    if name in FULL:
        return name, ""
    env, _, level = name.partition("-")
    return env, level
