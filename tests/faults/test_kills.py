"""`kill -9` at random moments: what a killed run or study leaves is gone on with, to the bits of an unbroken one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import STUDY, TINY, Server, run_bits, server, study_bits

from ssorl.data import save

KILLS = 11  # of each command


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    with server(tmp_path_factory.mktemp("log")) as found:
        yield found


@pytest.fixture(scope="module")
def data(tmp_path_factory, pointmass) -> Path:
    path = tmp_path_factory.mktemp("data") / "full.npz"
    save(pointmass[:40], path)
    return path


def kill_often(ask: Server, folder: Path, command: Callable[[Path], list], bits: Callable, want: dict) -> int:
    """Kill a command `KILLS` times and let it end; where it ends before, it begins again in a new folder."""
    rng, scale, kills, moments, life = np.random.default_rng(9), 2.2, 0, set(), 0
    while kills < KILLS:
        home = folder / str(life)
        (code,) = ask(command(home), kill=scale * rng.uniform(0.2, 1))
        if code == -9:
            kills += 1
            left = {str(p.relative_to(home)): p.stat().st_size for p in home.rglob("*") if p.is_file()}
            scale *= 1.3 if str(left) in moments else 1.0  # a busy machine: let it get further
            moments.add(str(left))
        else:
            assert code == 0, ask.said()[-2000:]
            assert bits(home) == want
            life, scale = life + 1, 0.7 * scale  # a fast machine
            assert life < 20
    home = folder / str(life)
    assert ask(command(home)) == [0], ask.said()[-2000:]
    assert bits(home) == want and not list(home.rglob(".tmp-*"))
    return len(moments)


def test_a_run_killed_at_random_moments_ends_in_the_same_bits(ask, data, tmp_path):
    def command(home: Path) -> list:
        return ["run", data, *TINY, "--out", home]

    assert ask(command(tmp_path / "whole")) == [0], ask.said()
    want = run_bits(tmp_path / "whole")
    assert len(want) == 4 and want["told"]["complete"]
    n = kill_often(ask, tmp_path / "killed", command, run_bits, want)
    assert n > KILLS / 4, "nearly all kills found the same files"


def test_a_study_killed_at_random_moments_ends_in_the_same_bits(ask, data, tmp_path):
    (tmp_path / "mine.toml").write_text(STUDY.replace("DATA", str(data)))

    def command(home: Path) -> list:
        return ["study", "run", tmp_path / "mine.toml", "--store", home]

    assert ask(command(tmp_path / "whole")) == [0], ask.said()
    want = study_bits(tmp_path / "whole")
    assert len(want) == 5 and all(told["score"] is not None for told in want.values())
    n = kill_often(ask, tmp_path / "killed", command, study_bits, want)
    assert n > KILLS / 4, "nearly all kills found the same files"
