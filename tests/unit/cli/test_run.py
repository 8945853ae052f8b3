"""`ssorl run` from end to end: what it says and leaves, killed at each stage, and one sentence for a mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.clock import patience
from support.systems import hide

from ssorl.cli import main
from ssorl.data import load, save
from ssorl.training.metrics import lines

# Nets and numbers so small that a run is a matter of compiling; the same in every test, so that is done once.
TINY = ["--agent", "bc", "--updates", "20", "--set", "hidden=8,", "batch=16", "--idm", "paper", "--idm-updates", "40"]
TINY += ["--episodes", "2", "--fraction", "0.2"]

# Runs the command, but kills its process, as `kill -9` would, when it writes a file whose path holds some words.
KILLED = """
import os, signal, sys
when, words, real = sys.argv.pop(1), sys.argv.pop(1), os.replace
def replace(a, b):
    if when == "after":
        real(a, b)
    if words in str(b):
        os.kill(os.getpid(), signal.SIGKILL)
    if when == "before":
        real(a, b)
os.replace = replace
from ssorl.cli import main
main(sys.argv[1:])
"""

# Runs the command and presses Ctrl-C during the evaluation of the second snapshot.
STOPPED = """
import itertools, os, signal
from ssorl.evaluation import rollout
real, calls = rollout.evaluate, itertools.count(1)
def evaluate(*args, **options):
    if next(calls) == 2:
        os.kill(os.getpid(), signal.SIGINT)
    return real(*args, **options)
rollout.evaluate = evaluate
from ssorl.cli import main
main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, pointmass):
    """Return a folder with the data in files."""
    path = tmp_path_factory.mktemp("run")
    save(pointmass[:40], path / "full.npz")
    save(hide(pointmass[:40], slice(1000, None)), path / "gaps.npz")
    save(pointmass[:10], path / "a.npz")
    save(pointmass[10:40], path / "b.hdf5")
    # This file names no environment.
    save(pointmass[:40].with_meta(env=None), path / "lost.npz")
    return path


@pytest.fixture(scope="module")
def result(folder) -> dict:
    """Return the result of an uninterrupted run."""
    main(["run", str(folder / "full.npz"), *TINY, "--out", str(folder / "whole")])
    return bits(folder / "whole")


def bits(path: Path) -> dict:
    content = json.loads((path / "result.json").read_text())
    return {k: v for k, v in content.items() if k not in ("timings", "started", "command", "commit", "sha256")}


def ssorl(code: str, *args) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], stderr=subprocess.PIPE, text=True)


def test_run_reports_every_stage(folder, result, capsys):
    main(["run", str(folder / "full.npz"), *TINY, "--out", str(folder / "again")])
    out, err = capsys.readouterr()
    stages = [line.split()[0] for line in err.splitlines()]
    wanted = [
        "data",
        "plan",
        "folder",
        "split",
        "fitting:",
        "labels",
        "labels",
        "labels",
        "training:",
        "agents",
        "evaluating:",
    ]
    assert [s for s in stages if s in wanted] == wanted and "\x1b" not in out + err
    assert "8 of 40 trajectories keep their actions from the bottom 50 %" in err
    rows = [line.split()[0] for line in out.splitlines() if line]
    assert rows[:4] == ["norm.", "baseline", "ss", "oracle"]
    assert f"report: {folder}/again/report.html" in out and "SS-BC reaches" in out
    assert f"ssorl evaluate {folder}/again" in out
    assert bits(folder / "again") == result  # a second run gives the same result


def test_finished_run_shows_its_result_again(folder, result, capsys):
    args = ["run", str(folder / "full.npz"), *TINY, "--out", str(folder / "whole")]
    capsys.readouterr()
    main(args)
    first = capsys.readouterr()
    main([*args, "--json"])
    second = capsys.readouterr()
    content = json.loads(second.out)
    assert content["folder"] == str(folder / "whole") and content["scores"] == result["scores"]
    assert "nothing is left to do" in first.err and "training" not in first.err + second.err


def test_run_killed_at_each_stage_ends_in_the_same_bits(folder, result):
    args = ["run", folder / "full.npz", *TINY, "--out", folder / "killed"]
    kills = [("after", "splits/0.json"), ("before", "idm/0"), ("after", "proxies/0.npz"), ("before", "run-1.npz")]
    kills += [("after", "policies/ss-0.npz"), ("before", "evaluation.npz"), ("after", "result.json")]
    for when, words in kills:
        job = ssorl(KILLED, when, words, *args)
        _, err = job.communicate(timeout=patience())
        assert job.returncode == -signal.SIGKILL, err
    main([str(a) for a in args])
    assert bits(folder / "killed") == result and (folder / "killed" / "report.html").is_file()
    assert not list((folder / "killed").rglob(".tmp-*"))


def test_ctrl_c_prints_how_to_resume(folder):
    args = ["run", folder / "full.npz", *TINY, "--out", folder / "stopped"]
    _, err = (job := ssorl(STOPPED, *args)).communicate(timeout=patience())
    assert len({line["at"] for line in lines(folder / "stopped" / "metrics.jsonl")}) == 1  # the first snapshot
    assert job.returncode == 130 and "the same command resumes" in err and "Traceback" not in err
    assert err.splitlines()[-1].strip().startswith("ssorl run ") and "--out" in err.splitlines()[-1]


def test_run_folder_is_locked(folder, result, capsys):
    import fcntl

    with (folder / "whole" / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another process" in fails(capsys, folder / "full.npz", *TINY, "--out", folder / "whole")


def test_two_files_have_no_oracle(folder, capsys):
    args = [x for x in TINY if x not in ("--fraction", "0.2")]
    two = ["--labelled", str(folder / "a.npz"), "--unlabelled", str(folder / "b.hdf5")]
    main(["run", *two, *args, "--out", str(folder / "two")])
    out, err = capsys.readouterr()
    assert "there is no oracle" in err and "oracle  " not in out
    content = json.loads((folder / "two" / "result.json").read_text())
    assert set(content["scores"]) == {"baseline", "ss"} and content["split"]["n_labelled"] == 10


def test_values_are_estimated_without_an_environment(folder, capsys, monkeypatch):
    monkeypatch.setattr("ssorl.pipeline.scoring.FQE_UPDATES", 30)
    args = [x for x in TINY if x not in ("--episodes", "2")]
    main(["run", str(folder / "lost.npz"), *args, "--out", str(folder / "lost")])
    out, err = capsys.readouterr()
    assert "estimated by fitted-Q evaluation" in err and "est. value" in out and "estimated to reach" in out
    content = json.loads((folder / "lost" / "result.json").read_text())
    assert content["kind"] == "fqe" and not content["normalised"] and "score" not in content["curves"]["ss"]
    assert set(content["scores"]) == {"baseline", "ss", "oracle"} and len(content["scores"]["ss"]["returns"][0]) == 40


def test_diverged_policy_is_named_and_the_others_are_evaluated(folder, result, capsys, monkeypatch):
    import jax
    import numpy as np

    from ssorl.pipeline import algorithm1

    def spoilt(plan, eps, trained, real=algorithm1.trained_policy):
        one = real(plan, eps, trained)
        lost = not eps.labelled.all()  # the baseline
        return one._replace(params=jax.tree.map(lambda x: np.full_like(x, np.nan) if lost else x, one.params))

    monkeypatch.setattr(algorithm1, "trained_policy", spoilt)
    args = ["run", str(folder / "full.npz"), *TINY, "--out", str(folder / "spoilt")]
    line = "The training of baseline, seed 0, has diverged"
    for _ in range(2):  # the second time, the result is read from the folder
        main(args)
        out = capsys.readouterr().out
        assert line in out and "SS-BC reaches" in out
    content = bits(folder / "spoilt")
    assert content["scores"]["ss"] == result["scores"]["ss"] and content["scores"]["baseline"]["returns"] == [
        [None, None]
    ]
    assert line in (folder / "spoilt" / "report.html").read_text()
    main([*args, "--json"])
    assert line in capsys.readouterr().err


def test_several_qualities_and_seeds(folder, capsys):
    args = ["--quality", "50", "100", "--seeds", "0", "2", "--variants", "ss", "oracle", "--certain", "0.5"]
    main(["run", str(folder / "full.npz"), *TINY, *args, "--out", str(folder / "grid")])
    out = capsys.readouterr().out
    assert out.count("labelled from the bottom") == 2 and "baseline" not in out
    content = json.loads((folder / "grid" / "q100" / "result.json").read_text())
    assert (
        content["seeds"] == [0, 2]
        and content["config"]["certain"] == 0.5
        and len(content["scores"]["ss"]["returns"]) == 2
    )
    names = sorted(p.name for p in (folder / "grid" / "q50" / "policies").iterdir())
    assert names == ["oracle-0.npz", "oracle-2.npz", "ss-0.npz", "ss-2.npz"]


def fails(capsys, *args) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["run", *map(str, args)])
    err = capsys.readouterr().err.splitlines()[-1]
    assert stop.value.code == 2 and err.startswith("ssorl: ")
    return err


MISTAKES = {
    "no data": (["nothing.npz"], "nothing.npz: no such file"),
    "one file of two": (["--labelled", "a.npz"], "both --labelled FILE and --unlabelled FILE"),
    "split of two": (["--labelled", "a.npz", "--unlabelled", "b.hdf5", "--quality", "50"], "the second has none"),
    "split of gaps": (["gaps.npz", "--quality", "50"], "already lack actions"),
    "oracle of gaps": (["gaps.npz", "--variants", "oracle"], "the missing actions are not known"),
    "agent": (["full.npz", "--agent", "sac"], "no agent is called 'sac'"),
    "setting": (["full.npz", "--set", "alfa=2"], "no setting 'alfa'"),
    "a setting of another kind": (["full.npz", "--set", "batch=abc"], "batch of td3bc is 'abc'; give a whole number"),
    "no batch": (["full.npz", "--set", "batch=0"], "batch of td3bc is 0; give a whole number from 1 up"),
    "one layer": (["full.npz", "--set", "hidden=64"], "hidden of td3bc is 64; give a list of"),
    "not finite": (["full.npz", "--set", "alpha=nan"], "alpha of td3bc is"),
    "beyond its range": (["full.npz", "--set", "gamma=2"], "gamma of td3bc is 2; give a number from 0 up and below 1"),
    "half a turn": (["full.npz", "--updates", "501"], "updates is 501; give a positive multiple of 2"),
    "no updates of the model": (["full.npz", "--idm-updates", "0"], "--idm-updates is 0"),
    "no proxies": (["full.npz", "--agent", "dt-joint", "--certain", "0.5"], "--certain has no effect on dt-joint"),
    "no model": (["full.npz", "--agent", "dt-joint", "--idm", "nonsense"], "--idm has no effect on dt-joint"),
    "no ss": (["full.npz", "--variants", "baseline", "--idm-updates", "9"], "has no effect without the variant ss"),
    "nothing played": (["lost.npz", "--episodes", "5"], "--episodes has no effect without an environment"),
    "a seed too large": (["full.npz", "--seeds", "0", "4294967296"], "below 2**32"),
    "qualities alike": (["full.npz", "--quality", "50", "50.0000001"], "one value twice, in six digits"),
    "a setting twice": (["full.npz", "--updates", "6", "--set", "updates=8"], "updates is 6 as well; give it once"),
    "half a setting": (["full.npz", "--set", "alpha"], "write NAME=VALUE"),
    "environment": (["full.npz", "--env", "Nowhere-v3"], "Nowhere-v3"),
    "other robot": (["full.npz", "--env", "hopper"], "observations of size 11"),
    "out is a file": (["full.npz", "--out", "a.npz"], "a.npz: cannot be written"),
    "out is no run": (["full.npz", "--out", "."], "not the folder of a run"),
    "another run": (["full.npz", "--out", "whole"], "whole: holds another run"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_print_one_sentence_and_write_nothing(capsys, monkeypatch, folder, result, mistake):
    monkeypatch.chdir(folder)
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}
    args, words = MISTAKES[mistake]
    assert words in fails(capsys, *args)
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file() and p.name != ".lock"} == before


def test_full_disk_prints_one_sentence(capsys, monkeypatch, folder):
    real = os.replace

    def full(a, b):
        if "policies" in str(b):
            raise OSError(28, "No space left on device", str(b))
        real(a, b)

    monkeypatch.setattr(os, "replace", full)
    err = fails(capsys, folder / "full.npz", *TINY, "--out", folder / "full")
    assert "policies/baseline-0.npz: cannot be written (No space left on device)" in err
    monkeypatch.setattr(os, "replace", real)
    main(["run", str(folder / "full.npz"), *TINY, "--out", str(folder / "full")])
    assert bits(folder / "full") == bits(folder / "whole")


def test_values_of_settings_are_parsed(folder):
    assert load(folder / "full.npz").n_episodes == 40
    from ssorl.cli.run import parse_value

    parsed = [parse_value(x) for x in ("3", "0.5", "1e-4", "256,256", "8,", "true", "none", "nll")]
    assert [parse_value(x) for x in ("(64, 32)", "[8]", "False", "None")] == [
        (64, 32),
        (8,),
        False,
        None,
    ]  # Python syntax
    assert parsed == [3, 0.5, 1e-4, (256, 256), (8,), True, None, "nll"]
