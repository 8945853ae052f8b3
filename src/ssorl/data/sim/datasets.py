"""`sim/…`: D4RL's datasets made anew on this machine by the bundled policies, on first use, and cached."""

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

SEED = 2  # of a few tried, the one whose small sets' means lie nearest to the full ones'
VERSION = 1  # raise it when the bytes that come out change
SHARE = 10  # the default size is D4RL's divided by this
DRAWS = 1000  # trajectories of the wide subsample at full size; fewer in proportion, but not below LEAST
LEAST = 50


@dataclass(frozen=True)
class Roster:
    """Which training steps of an environment's bundled policies serve for what."""

    replay: tuple[int, ...]  # checkpoints from untrained to medium; each stands for the part of training nearest to it
    medium: tuple[int, ...]  # one policy, or several in equal parts
    expert: tuple[int, ...]


ROSTERS: dict[str, Roster] = {
    "hopper": Roster((0, 10_000, 50_000, 100_000, 150_000, 200_000, 230_000), (230_000,), (2_150_000,)),
    "walker2d": Roster((0, 10_000, 40_000, 80_000, 110_000, 160_000, 200_000, 240_000), (240_000,), (800_000,)),
    # One halfcheetah policy earns nearly the same every time, unlike D4RL's; three give D4RL's mean and spread.
    "halfcheetah": Roster(
        (0, 10_000, 50_000, 100_000, 150_000, 200_000, 220_000), (150_000, 220_000, 310_000), (2_100_000,)
    ),
}

# Steps of D4RL's v2 files; medium-expert is medium and expert together.
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
    """Every simulated dataset."""
    gym = [f"{env}-{level}" for env in ROSTERS for level in ("medium", "medium-replay", "medium-expert", "expert")]
    return gym + ["walker2d-wide"] + [env for env in FULL if env.startswith("maze2d")]


def load_id(name: str, options: ReadOptions = READ_ALL) -> Episodes:
    """The dataset `NAME` or `NAME:SIZE`, SIZE being a number of steps or `full` (default: a tenth of that)."""
    name, _, size = name.partition(":")
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean sim/{near[0]}?" if near else f"there are {', '.join(names())}"
        raise DataError(f"sim/{name}: is no simulated dataset; {hint}")
    env, level = _parts(name)
    if level == "medium-expert":
        halves = [load_id(f"{env}-{half}:{n}", options) for half, n in _halves(env, size)]
        eps = concat(halves)
    elif level == "wide":
        eps = _wide(env, size, options)
    else:
        eps = npz.load(_file(env, level, n_steps(env, level, size)), options)
    return eps.with_meta(source=f"sim/{name}" + (f":{size}" if size else ""))


def n_steps(env: str, level: str, size: str) -> int:
    """How many steps are asked for."""
    full = FULL[env][level]
    if size in ("", "full"):
        return full if size else full // SHARE
    if not size.isdecimal() or not 0 < int(size) <= 10**9:
        name = f"{env}-{level}".strip("-")
        raise DataError(f"sim/{name}: the size {size!r} is neither a number of steps nor `full`")
    return int(size)


def known(name: str) -> dict | None:
    """Size and returns of the default set as measured when the policies were bundled; None for a new one."""
    table = json.loads((files("ssorl.data.sim") / "datasets.json").read_text())
    return table.get(name, {}).get("default")


def policy_path(env: str, step: int) -> Path:
    """Where the package keeps the policy of `env` after `step` steps of training."""
    return Path(str(files("ssorl.data.sim") / "policies" / env / f"{step}.npz"))


def policy(env: str, step: int) -> Policy:
    """A bundled policy; at step 0 the untrained one, whose actions are noise about 0."""
    if step:
        return load_policy(policy_path(env, step))
    some = load_policy(policy_path(env, ROSTERS[env].expert[0]))
    layer = (np.zeros((some.n_obs, 2 * some.n_act), np.float32), np.zeros(2 * some.n_act, np.float32))
    return replace(some, layers=(layer,))


def bundled() -> list[dict]:
    """Each bundled policy with its record: environment, training steps, what it is used for, what it earns."""
    rows = []
    for env, roster in ROSTERS.items():
        for step in sorted({*roster.replay[1:], *roster.medium, *roster.expert}):
            uses = [use for use in ("replay", "medium", "expert") if step in getattr(roster, use)]
            record = json.loads(policy_path(env, step).with_suffix(".json").read_text())
            rows.append({"env": env, "steps": step, "serves": uses, **record})
    return rows


def recipe(env: str, level: str) -> list[tuple[int, float]]:
    """Which checkpoints make a dataset, and the share of its steps that each of them does."""
    roster = ROSTERS[env]
    if level != "medium-replay":
        steps = getattr(roster, level)
        return [(step, 1 / len(steps)) for step in steps]
    # Training between two checkpoints is given half to each; so the untrained policy has SAC's warm-up of 5,000 steps.
    bounds = [0, *(np.array(roster.replay[:-1]) + np.array(roster.replay[1:])) / 2, roster.replay[-1]]
    return list(zip(roster.replay, (np.diff(bounds) / roster.replay[-1]).tolist(), strict=True))


def make(env: str, level: str, n: int, seed: int = SEED, progress: Progress | None = None) -> Episodes:
    """Make a dataset, without the cache. The same bytes for the same arguments on the same machine."""
    if env.startswith("maze2d"):
        from ssorl.data.sim import mazes

        return mazes.collect(env, n, seed, progress)
    parts = [
        collect(env, policy(env, step), max(1, round(share * n)), _seed(seed, env, level, step), progress)
        for step, share in recipe(env, level)
    ]
    return concat(parts)


def _seed(seed: int, *names: object) -> int:
    """A seed of its own for each part, so that medium and medium-replay share no noise."""
    text = "/".join(str(n) for n in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _file(env: str, level: str, n: int) -> Path:
    name = f"{env}-{level}".strip("-")

    def write(path: Path) -> None:
        title = f"making sim/{name}"
        with Bar({title: (n, "steps")}) as bar:
            npz.save(make(env, level, n, progress=lambda k: bar(title, k)), path)

    return cached(f"sim/{name}-{n}-{_digest(env, level)}.npz", write)


def _digest(env: str, level: str) -> str:
    """Of all that decides the bytes: version, seed, shares and policies. Another one is another file."""
    digest = hashlib.sha256(f"{VERSION} {SEED}".encode())
    for step, share in recipe(env, level) if env in ROSTERS else ():
        digest.update(f"{share}".encode() + (policy_path(env, step).read_bytes() if step else b""))
    return digest.hexdigest()[:8]


def _halves(env: str, size: str) -> list[tuple[str, str]]:
    """Medium and expert with the sizes that make up `size`."""
    if size in ("", "full"):
        return [("medium", size), ("expert", size)]
    half = str(max(1, n_steps(env, "medium", size) // 2))
    return [("medium", half), ("expert", half)]


def _wide(env: str, size: str, options: ReadOptions) -> Episodes:
    """The paper's subsample of medium-replay and medium together, `size` steps of them, in which rare returns are not.

    One fixed draw: studies vary what they do with it, not the data.
    """
    from ssorl.data.split import apply, wide

    full = {level: FULL[env][level] for level in ("medium-replay", "medium")}
    share = n_steps(env, "medium", size) / (sum(full.values()) if size.isdecimal() else full["medium"])
    parts = [load_id(f"{env}-{level}:{max(1, round(share * n))}", options) for level, n in full.items()]
    eps = concat(parts)
    return apply(wide(eps, max(LEAST, round(share * DRAWS)), seed=0), eps)


def _parts(name: str) -> tuple[str, str]:
    if name in FULL:
        return name, ""
    env, _, level = name.partition("-")
    return env, level
