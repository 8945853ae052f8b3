"""Helpers of the tests of bad input: writers of valid files with one change, and checks of the error."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ssorl.cli import main
from ssorl.data import load, load_pair, save
from ssorl.utils.errors import DataError
from support.effort import effort
from support.samples import make

# Every message ends with what to do.
VERBS = "add|choose|convert|copy|correct|cut|fetch|flatten|give|leave|lower|number|put|raise|remove|repair|save|write"
NEEDS = "are due|is it|layout is|learnt|must|needs|only|a D4RL file has"
CURE = rf"[;:] ?[^;]*\b({VERBS}|{NEEDS})\b"
COMMANDS = (["show"], ["convert", "--out", "out.npz"], ["split", "--out", "out.json", "--data", "out.npz"])


class Refusals(dict[str, tuple[Callable[[Path], list], tuple[str, ...]]]):
    """name -> (function that writes the input and returns the arguments that name it, texts of the message)."""

    def case(self, name: str, *says: str):
        """Register a writer of bad input."""

        def register(write: Callable[[Path], list]):
            assert name not in self
            self[name] = (write, says)
            return write

        return register

    def check_in_python(self, case: str, folder: Path) -> None:
        """Check that loading raises one sentence, at little cost, and writes nothing."""
        write, says = self[case]
        args = write(folder)
        before = listing(folder)
        with effort() as spent, pytest.raises(DataError) as caught:
            load_pair(args[1], args[3]) if args[0] == "--labelled" else load(args[0], *args[2:])
        sentence = str(caught.value)
        assert spent.small, vars(spent)
        for words in says:
            assert re.search(words, sentence), sentence
        assert str(folder) in sentence and "\n" not in sentence and len(sentence) < 700
        assert listing(folder) == before

    def check_on_the_command_line(self, case: str, folder: Path, capfd) -> None:
        """Check that a command exits with 2, prints only the sentence, and writes nothing."""
        write, says = self[case]
        args = [str(a) for a in write(folder)]
        before = listing(folder)
        command = COMMANDS[list(self).index(case) % len(COMMANDS)]  # each case uses one command
        with pytest.raises(SystemExit) as stop:
            main(["data", command[0], *args, *[a if a.startswith("-") else str(folder / a) for a in command[1:]]])
        printed = capfd.readouterr()
        assert stop.value.code == 2 and printed.out == ""
        assert printed.err.startswith("ssorl: ") and printed.err.count("\n") == 1, printed.err
        assert re.search(says[0], printed.err), printed.err
        assert listing(folder) == before


def listing(folder: Path) -> dict[str, int]:
    """Return the modification time of every path below the folder."""
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*")}


# Valid files of 18 steps in four trajectories with some arrays replaced (None: left out) ---------------------

GOOD = make()


def npz(folder: Path, **change) -> list:
    arrays = {n: getattr(GOOD, n) for n in ("obs", "act", "rew", "terminated", "start")} | change
    np.savez(folder / "set.npz", **{k: v for k, v in arrays.items() if v is not None})
    return [folder / "set.npz"]


def d4rl(folder: Path, name: str = "set.hdf5", **change) -> list:
    arrays = {
        "observations": GOOD.obs[GOOD.obs_row],
        "next_observations": GOOD.obs[GOOD.obs_row + 1],
        "actions": GOOD.act,
        "rewards": GOOD.rew,
        "terminals": GOOD.terminated,
        "timeouts": GOOD.truncated,
    } | change
    with h5py.File(folder / name, "w") as file:
        for key, value in arrays.items():
            if value is not None:
                file[key] = value
    return [folder / name]


def dicts() -> list[dict]:
    return [
        {
            "observations": one.obs[:-1],
            "next_observations": one.obs[1:],
            "actions": one.act,
            "rewards": one.rew,
            "terminals": one.terminated,
        }
        for one in (GOOD[e] for e in range(4))
    ]


def pickled(folder: Path, which: int = 0, protocol: int = 4, **change) -> list:
    items = dicts()
    items[which] |= change
    (folder / "set.pkl").write_bytes(pickle.dumps(items, protocol))
    return [folder / "set.pkl"]


def minari(folder: Path, **change) -> list:
    save(GOOD, folder / "set-v0", "minari")
    with h5py.File(folder / "set-v0" / "data" / "main_data.hdf5", "r+") as file:
        for key, value in change.items():
            del file[key]
            if value is not None:
                file[key] = value
    return [folder / "set-v0"]


def minari_meta(folder: Path, **change) -> list:
    save(GOOD, folder / "set-v0", "minari")
    file = folder / "set-v0" / "data" / "metadata.json"
    stored = json.loads(file.read_text()) | change
    file.write_text(json.dumps({k: v for k, v in stored.items() if v is not None}))
    return [folder / "set-v0"]


def lerobot(folder: Path, **change) -> list:
    save(GOOD, folder / "set", "lerobot")
    file = folder / "set" / "data" / "chunk-000" / "file-000.parquet"
    table = pq.read_table(file)
    columns = {n: table.column(n) for n in table.column_names} | change
    pq.write_table(pa.table({k: v for k, v in columns.items() if v is not None}), file)
    return [folder / "set"]
