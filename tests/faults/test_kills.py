"""`kill -9` at random moments: what a killed run or study leaves is gone on with, to the bits of an unbroken one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import STUDY, TINY, Server, run_bits, server, study_bits

from ssorl.data import save

KILLS = 8  # of each command


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
            scale *= 1.6 if str(left) in moments else 1.0  # a busy machine: let it get further
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


@pytest.fixture(scope="module")
def study(tmp_path_factory, data) -> Path:
    path = tmp_path_factory.mktemp("study") / "mine.toml"
    path.write_text(STUDY.replace("DATA", str(data)))
    return path


@pytest.fixture(scope="module")
def whole_run(ask, data, tmp_path_factory) -> dict:
    """What an unbroken run comes to."""
    folder = tmp_path_factory.mktemp("whole") / "r"
    assert ask(["run", data, *TINY, "--out", folder]) == [0], ask.said()
    found = run_bits(folder)
    assert len(found) == 4 and found["told"]["complete"]
    return found


@pytest.fixture(scope="module")
def whole_study(ask, study, tmp_path_factory) -> dict:
    """What an unbroken study comes to."""
    store = tmp_path_factory.mktemp("whole") / "s"
    assert ask(["study", "run", study, "--store", store]) == [0], ask.said()
    found = study_bits(store)
    assert sum(told["score"] is not None for told in found.values()) == 5
    assert len(found) == 5 + 2  # and how good the labels of two are
    return found


def test_a_run_killed_at_random_moments_ends_in_the_same_bits(ask, data, tmp_path, whole_run):
    command = ["run", data, *TINY, "--out"]
    n = kill_often(ask, tmp_path / "killed", lambda home: [*command, home], run_bits, whole_run)
    assert n > KILLS / 4, "nearly all kills found the same files"


def test_a_study_killed_at_random_moments_ends_in_the_same_bits(ask, study, tmp_path, whole_study):
    command = ["study", "run", study, "--store"]
    n = kill_often(ask, tmp_path / "killed", lambda home: [*command, home], study_bits, whole_study)
    assert n > KILLS / 4, "nearly all kills found the same files"


def test_two_runs_in_one_folder_at_once(ask, data, tmp_path, whole_run):
    """One works, the other is told so; neither disturbs the other."""
    command = ["run", data, *TINY, "--out", tmp_path / "r"]
    assert sorted(ask(command, command)) == [0, 2]
    said = ask.said(0) + ask.said(1)
    assert "another process is at work on it; wait for it or choose another --out" in said and "Traceback" not in said
    assert run_bits(tmp_path / "r") == whole_run


def test_two_studies_in_one_store_at_once(ask, study, tmp_path, whole_study):
    """They share the work and come to the same."""
    command = ["study", "run", study, "--store", tmp_path / "s"]
    assert ask(command, command) == [0, 0], ask.said(0) + ask.said(1)
    assert study_bits(tmp_path / "s") == whole_study
