"""Trajectories in one file of comma-separated rows: one row a state, with the action and the reward after it.

The header is `episode,terminated,reward,obs0,…,act0,…`. The last row of an episode is its final state: reward and
action are empty, and `terminated` is 1 if the episode ended in a terminal state. A missing action is empty, too.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np

from ssorl.data.episodes import Episodes, Meta
from ssorl.data.validate import ReadOptions, build
from ssorl.utils.errors import DataError

suffixes = (".rows",)
COLUMNS = ["episode", "terminated", "reward"]


def sniff(path: Path) -> bool:
    """Return whether the file begins with the header."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(100).startswith(",".join([*COLUMNS, "obs0"]).encode())


def load(path: Path, options: ReadOptions) -> Episodes:
    """Return the trajectories of a file."""
    with path.open(newline="") as file:
        header, *rows = list(csv.reader(file))
    n_obs, n_act = (sum(bool(re.fullmatch(rf"{kind}\d+", name)) for name in header) for kind in ("obs", "act"))
    if bad := next((i for i, row in enumerate(rows, start=2) if len(row) != len(header)), None):
        raise DataError(f"{path}: line {bad} has another number of fields than the header; write the file again")
    try:
        table = np.array([[float(x or "nan") for x in row[: 3 + n_obs + n_act]] for row in rows])
    except ValueError as err:
        raise DataError(f"{path}: a field is not a number ({err}); write the file again") from err
    if not rows:
        raise DataError(f"{path}: holds no trajectories; write the file again")
    final = np.append(table[1:, 0] != table[:-1, 0], True)
    steps = np.flatnonzero(~final)
    lengths = np.diff(np.flatnonzero(final), prepend=-1) - 1
    if (lengths < 1).any():
        raise DataError(f"{path}: an episode has a single row; it needs a step and a final state")
    ends = np.zeros(len(steps), bool)
    ends[np.cumsum(lengths) - 1] = table[final, 1] == 1
    obs, act = table[:, 3 : 3 + n_obs], table[steps, 3 + n_obs : 3 + n_obs + n_act]
    return build(obs, act, table[steps, 2], ends, lengths, Meta(source=str(path)), options)


def save(eps: Episodes, path: Path, extras: dict[str, np.ndarray]) -> None:
    """Write trajectories; the extras become columns behind the others, such as `proxy0`."""
    beside = [np.asarray(rows, float).reshape(eps.n_steps, -1) for rows in extras.values()]
    header = [*COLUMNS, *(f"obs{i}" for i in range(eps.n_obs)), *(f"act{i}" for i in range(eps.n_act))]
    header += [f"{name}{i}" for name, rows in zip(extras, beside, strict=True) for i in range(rows.shape[1])]
    right = np.concatenate([eps.act, *beside], 1, dtype=float)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for e, (first, last) in enumerate(zip(eps.start[:-1], eps.start[1:], strict=True)):
            for t in range(first, last):
                fields = ["" if np.isnan(x) else float(x) for x in right[t]]
                writer.writerow([e, 0, float(eps.rew[t]), *eps.obs[eps.obs_row[t]].tolist(), *fields])
            final = eps.obs[eps.obs_row[last - 1] + 1].tolist()
            writer.writerow([e, int(eps.terminated[last - 1]), "", *final, *[""] * right.shape[1]])
