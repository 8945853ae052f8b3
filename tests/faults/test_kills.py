"""`kill -9` at any point: a killed run or study resumes and ends in the bits of an uninterrupted one.

A moment is a number: the process is killed just before its k-th change to its folder. An unbroken run tells how many
changes there are, so each kill is certain, however fast the machine is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from support.campaign import Campaign
from support.commands import STUDY, TINY, Server, run_bits, server, study_bits
from support.kills import state

from ssorl.data import save

KILLS = 4  # kills of each command; a campaign kills before each change


class Whole(NamedTuple):
    """The result of an uninterrupted command."""

    bits: dict
    changes: int  # of its folder


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    with server(tmp_path_factory.mktemp("log")) as ask:
        yield ask


@pytest.fixture(scope="module")
def data(tmp_path_factory, pointmass) -> Path:
    path = tmp_path_factory.mktemp("data") / "full.npz"
    save(pointmass[:40], path)
    return path


@pytest.fixture(scope="module")
def study(tmp_path_factory, data) -> Path:
    path = tmp_path_factory.mktemp("study") / "mine.toml"
    path.write_text(STUDY.replace("DATA", str(data)))
    return path


def whole(ask: Server, command: list, home: Path, bits: Callable[[Path], dict]) -> Whole:
    code, changes = ask([*command, home], home)
    assert code == 0 and changes is not None, ask.output()
    return Whole(bits(home), changes)


@pytest.fixture(scope="module")
def whole_run(ask, data, tmp_path_factory) -> Whole:
    result = whole(ask, ["run", data, *TINY, "--out"], tmp_path_factory.mktemp("whole") / "r", run_bits)
    assert len(result.bits) == 4 and result.bits["told"]["complete"]
    return result


@pytest.fixture(scope="module")
def whole_study(ask, study, tmp_path_factory) -> Whole:
    result = whole(ask, ["study", "run", study, "--store"], tmp_path_factory.mktemp("whole") / "s", study_bits)
    assert sum(cell["score"] is not None for cell in result.bits.values()) == 5
    assert len(result.bits) == 5 + 2  # two cells hold the quality of labels
    return result


def kill_often(
    ask: Server, folder: Path, command: list, bits: Callable[[Path], dict], want: Whole, campaign: Campaign
) -> None:
    """Kill a command in a new folder at each of the points, perhaps a second time, then let it finish."""
    points, left = campaign.points(want.changes, KILLS, seed=9), []
    for point in points:
        home = folder / str(point)
        assert ask([*command, home], home, kill=point)[0] == -9, f"it ended before change {point} of {want.changes}"
        left.append(state(home))
        assert ask([*command, home], home, kill=want.changes // 3)[0] in (0, -9), ask.output()
        assert ask([*command, home], home)[0] == 0, ask.output()[-2000:]
        assert bits(home) == want.bits and not list(home.rglob(".tmp-*"))
    # The folder differs before changes k and k + 3, whatever the second thread was about to write.
    assert all(one != two for one, two in zip(left[::3], left[3::3], strict=False))
    assert campaign.full or len({str(sorted(one.items())) for one in left}) == KILLS


def test_run_killed_at_random_points_ends_in_the_same_bits(ask, data, tmp_path, whole_run, campaign):
    kill_often(ask, tmp_path, ["run", data, *TINY, "--out"], run_bits, whole_run, campaign)


def test_study_killed_at_random_points_ends_in_the_same_bits(ask, study, tmp_path, whole_study, campaign):
    kill_often(ask, tmp_path, ["study", "run", study, "--store"], study_bits, whole_study, campaign)


def test_two_runs_in_one_folder(ask, data, tmp_path, whole_run):
    """One run works; the other fails with a message and changes nothing."""
    command = ["run", data, *TINY, "--out", tmp_path / "r"]
    assert ask.together(command, command, tmp_path / "r", hold=whole_run.changes // 2) == [0, 2]
    output = ask.output(0) + ask.output(1)
    assert (
        "another process is writing there; wait until it ends or choose another --out" in output
        and "Traceback" not in output
    )
    assert run_bits(tmp_path / "r") == whole_run.bits


def test_two_studies_in_one_store(ask, study, tmp_path, whole_study):
    """The second study waits for the cells that the first one computes, and both end in the same results."""
    command = ["study", "run", study, "--store", tmp_path / "s"]
    held = ask.together(command, command, tmp_path / "s", hold=whole_study.changes // 2)
    assert held == [0, 0], ask.output(0) + ask.output(1)
    assert study_bits(tmp_path / "s") == whole_study.bits
