"""Behaviour of all commands: mistyped words, tracebacks, --quiet, closed streams, colours, signals, completion."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.clock import patience
from support.paths import ROOT

from ssorl.cli import Cli, main, options
from ssorl.cli.completion import SCRIPTS, candidates
from ssorl.cli.stop import stoppable
from ssorl.utils.errors import nearest
from ssorl.utils.progress import QUIET, Progress

SSORL = Path(sys.executable).with_name("ssorl")
DOCS = ROOT / "docs"


def ends(capsys, *args: str) -> tuple[int, str]:
    """Return the exit code and the message of a command that fails."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(args)
    return end.value.code, capsys.readouterr().err


def shell(command: str, **env: str) -> subprocess.CompletedProcess:
    variables = {**os.environ, "PATH": f"{SSORL.parent}:{os.environ['PATH']}", **env}
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=variables, timeout=patience())


# Mistyped words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "name a command: run, study, "),
        ("data", "name a command: list, show, convert, split; "),
        ("dta list", "there is no command 'dta'; did you mean data?"),
        ("data lst", "there is no command 'lst'; did you mean list?"),
        ("study rn x", "there is no command 'rn'; did you mean run?"),
        ("zzz", "there is no command 'zzz'; there are run, study, data, "),
        ("run --agnt dt", "there is no option --agnt; did you mean --agent?"),
        ("run --labeled x", "there is no option --labeled; did you mean --labelled?"),
        ("run --qqq", "there is no option --qqq; see --help"),
        ("run --preset quik", "--preset is 'quik'; did you mean quick?"),
        ("run --preset=quik", "--preset is 'quik'; did you mean quick?"),
        ("run --variants ss orcle", "--variants is 'orcle'; did you mean oracle?"),
        ("study show maze2d --scale lit", "--scale is 'lit'; did you mean lite?"),
        ("study show maze2", "did you mean maze2d?"),
        ("study show maze2d --only agnt=dt", "did you mean agent?"),
        ("completion bsh", "shell is 'bsh'; did you mean bash?"),
        ("data show hopper-medium-exprt", "did you mean sim/hopper-medium-expert?"),
        ("data show sim/hoper-medium", "did you mean sim/hopper-medium?"),
        ("data show builtin/pointmass --setup copled", "--setup is 'copled'; did you mean coupled?"),
        ("run builtin/pointmass --agent tdbc", "no agent is called 'tdbc'; did you mean td3bc?"),
        ("run builtin/pointmass --idm robst", "did you mean robust?"),
        ("run builtin/pointmass --set alhpa=1", "td3bc has no setting 'alhpa'; did you mean alpha?"),
    ],
)
def test_mistyped_word_prints_one_sentence(capsys, line, words):
    code, err = ends(capsys, *line.split())
    assert code == 2 and words in err and err.startswith("ssorl: ") and err.count("\n") == 1


def test_valid_spellings_are_accepted(capsys):
    for line in ("data list --json", "data list --no-json", "--quiet data list --json", "data list --json --debug"):
        main(line.split())
        assert capsys.readouterr().out
    main(["data", "show", "builtin/pointmass", "--min_length", "5", "--json"])  # tyro takes both spellings
    assert json.loads(capsys.readouterr().out)["trajectories"]
    assert nearest("Hoper", ["hopper", "x"]) == "did you mean hopper?" and nearest("q", ["a", "b"]) == "there are a, b"


# Errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("err", "words"),
    [
        (KeyError("x"), "ssorl: this should not have happened: KeyError 'x'; --debug shows where\n"),
        (
            OSError(28, "No space left on device", "a.npz"),
            "ssorl: a.npz: No space left on device; --debug shows where\n",
        ),
    ],
)
def test_traceback_only_with_debug(capsys, monkeypatch, err, words):
    def broken() -> list:
        raise err

    monkeypatch.setattr("ssorl.data.catalogue.catalogue", broken)
    assert ends(capsys, "data", "list") == (1, words)
    code, err = ends(capsys, "data", "list", "--debug")
    assert code == 1 and "Traceback" in err and "in broken" in err and "--debug" not in err
    code, err = ends(capsys, "--debug", "data", "show", "none.npz")
    assert code == 2 and "Traceback" in err and err.splitlines()[-1].startswith("ssorl: none.npz: ")


def test_documented_exit_codes():
    text = (DOCS / "command-line.md").read_text()
    assert re.findall(r"^\| (\d+) \|", text, re.M) == ["0", "1", "2", "130", "143"]
    assert shell("ssorl study list --json").returncode == 0 and shell("ssorl study lst").returncode == 2


# Streams ---------------------------------------------------------------------------------------------------


def test_quiet_prints_no_progress(capsys, monkeypatch):
    token = QUIET.set(True)
    try:
        with Progress({"a": (2, "steps")}) as bar:
            bar("a", 2)
            bar.say("something")
        options.note("something")
    finally:
        QUIET.reset(token)
    assert capsys.readouterr().err == "" and bar.done["a"] == 2
    with Progress({"a": (2, "steps")}) as bar:
        bar("a", 2)
    assert capsys.readouterr().err == "a: 2 of 2 steps\n"


def test_closed_and_full_streams(tmp_path, pointmass):
    from ssorl.data import load

    for line in ("ssorl study list >&-", f"ssorl data convert builtin/pointmass {tmp_path}/a.npz <&- >&- 2>&-"):
        done = shell(line)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert load(tmp_path / "a.npz").same(pointmass)  # no output was written to the file
    assert shell("ssorl data lst 2>&-").returncode == 2
    for line in ("ssorl --help | true", "ssorl study list | head -1", "ssorl study show main-medium --json | head -1"):
        assert shell(line).stderr == ""
    full = shell("ssorl study list > /dev/full")
    assert full.returncode == 1 and full.stderr == "ssorl: No space left on device; --debug shows where\n"


def test_missing_characters_of_an_encoding_are_replaced():
    done = shell("ssorl data list", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "0.733 ? 0.297" in done.stdout


def test_no_colours_without_a_terminal():
    done = shell("ssorl --help; ssorl study list; ssorl study show x --scale")
    assert "\x1b" not in done.stdout + done.stderr and "main-medium-expert" in done.stdout


def on_a_terminal(*args: str, **env: str) -> str:
    ours, theirs = pty.openpty()
    variables = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **env}
    variables = {name: value for name, value in variables.items() if name != "NO_COLOR" or name in env}
    with subprocess.Popen([SSORL, *args], stdin=theirs, stdout=theirs, stderr=theirs, env=variables):
        os.close(theirs)
        out = b""
        with contextlib.suppress(OSError):  # raised when the terminal is closed
            while part := os.read(ours, 1 << 16):
                out += part
    os.close(ours)
    return out.decode()


def test_no_colours_with_no_color_or_dumb_terminal():
    colour = re.compile(r"\x1b\[[0-9;]*(3[0-7]|9[0-7])[0-9;]*m")
    for args in (("--help",), ("study", "show", "x", "--scale")):
        assert colour.search(on_a_terminal(*args))
        assert not colour.search(on_a_terminal(*args, NO_COLOR="1"))
    assert "\x1b" not in on_a_terminal("study", "list", TERM="dumb")


# Signals ---------------------------------------------------------------------------------------------------

# Two signals always count as one here, and no message explains a delay: nothing depends on the clock.
BEGIN = """
import gc, hashlib, os, signal, sys, threading
from ssorl.cli import main, stop
from ssorl.cli.run import Run
stop.SAME_WISH = stop.PATIENCE = float("inf")
"""
# The garbage collector calls a function of JAX; Python drops exceptions raised there, as in this callback.
DROPPED = """
def callback(phase, info):
    gc.callbacks.clear()
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(100): pass
def work(self):
    gc.callbacks[:] = [callback]
    gc.collect()
    assert not gc.callbacks
    sys.stdin.read()
    print("the signal had no effect")
"""
WAITING = """
def work(self):
    print("begun", flush=True)
    sys.stdin.read()
"""
# Runs in C all the time, like a compilation. The thread prints when that has begun; before, it cannot run.
DEAF = """
stop.SAME_WISH = stop.PATIENCE = 0
def work(self):
    inside = threading.Event()
    threading.Thread(target=lambda: inside.wait() and print("begun", flush=True), daemon=True).start()
    sys.setswitchinterval(1e6)
    inside.set()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)
"""


@pytest.fixture
def start():
    """Return a function that starts a process whose `ssorl run` runs other code; the process ends with the test."""
    with contextlib.ExitStack() as stack:

        def begin(code: str) -> subprocess.Popen:
            args = [sys.executable, "-c", f"{BEGIN}{code}\nRun.run = work\nmain()", "run", "some thing.npz"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            job = stack.enter_context(subprocess.Popen(args, text=True, **pipes))
            stack.callback(job.kill)
            return job

        yield begin


RESUME = "ssorl: stopped; finished work is saved, and the same command resumes:\n  ssorl run 'some thing.npz'\n"


def test_interrupt_dropped_by_the_garbage_collector_is_raised_again(start):
    job = start(DROPPED)
    assert (job.wait(patience()), job.stdout.read(), job.stderr.read()) == (130, "", RESUME)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_stops_and_prints_how_to_resume(start, number, code):
    job = start(WAITING)
    assert job.stdout.readline() == "begun\n"
    job.send_signal(number)
    job.send_signal(number)  # `timeout` also sends two; they count as one
    assert (job.wait(patience()), job.stderr.read()) == (code, RESUME)


def test_second_signal_stops_at_once(start):
    job = start(DEAF)
    assert job.stdout.readline() == "begun\n"
    job.send_signal(signal.SIGINT)
    assert job.stderr.readline() == "ssorl: stops when this step ends; press again to stop at once\n"
    job.send_signal(signal.SIGINT)
    assert (job.wait(patience()), job.stderr.read()) == (130, "ssorl: stopped at once\n")


def test_ignored_signals_stay_ignored_and_handlers_are_restored():
    was = signal.signal(signal.SIGINT, signal.SIG_IGN)
    hook = sys.unraisablehook
    try:
        with stoppable(print):
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # as under nohup
            assert callable(signal.getsignal(signal.SIGTERM))
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL and sys.unraisablehook is hook
    finally:
        signal.signal(signal.SIGINT, was)


# Completion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("", ["run", "study", "data", "completion"]),
        ("st", ["study"]),
        ("--v", ["--version"]),
        ("data ", ["list", "show", "convert", "split"]),
        ("run --pre", ["--preset"]),
        ("run --preset ", ["auto", "quick", "paper"]),
        ("run --agent d", ["dt", "dt-joint"]),
        ("run --idm ro", ["robust", "robust-quick"]),
        ("run --json sim/hopper-medium-e", ["sim/hopper-medium-expert"]),
        ("run --variants ss o", ["oracle"]),
        ("study run main-medium-e", ["main-medium-expert"]),
        ("--quiet study run maze2d --scale l", ["lite"]),
        ("run --labelled ", []),  # any file
        ("data show ./ru", []),
    ],
)
def test_completion_candidates(line, some):
    words = candidates(Cli, line.split(" "))
    assert set(some) <= set(words) if not line else words == some


def test_completion_does_not_import_jax():
    from ssorl.agents import AGENTS
    from ssorl.idm import IDMS

    assert candidates(Cli, ["run", "--agent", ""]) == list(AGENTS)
    assert candidates(Cli, ["label", "--idm", ""]) == list(IDMS)
    code = "import sys; from ssorl.cli import main; main(sys.argv[1:]); assert 'jax' not in sys.modules"
    args = [sys.executable, "-c", code, "__complete", "run", "--agent", ""]
    done = subprocess.run(args, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.split() == list(AGENTS)


def test_bash_completion(tmp_path):
    (tmp_path / "c.bash").write_text(shell("ssorl completion bash").stdout)
    ask = 'source c.bash; COMP_WORDS=(ssorl study run "main-medium-e"); COMP_CWORD=3; _ssorl; echo "${COMPREPLY[*]}"; '
    ask += f'COMP_WORDS=({SSORL} run ""); COMP_CWORD=2; _ssorl; echo "${{#COMPREPLY[@]}}"; complete -p ssorl'
    out = shell(f"cd {tmp_path}; {ask}").stdout.splitlines()
    assert out[0] == "main-medium-expert" and int(out[1]) > 20 and out[2] == "complete -o default -F _ssorl ssorl"


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_other_shells_parse_their_scripts(name, tmp_path):
    if shutil.which(name) is None:
        pytest.skip(f"no {name} here")
    (tmp_path / "script").write_text(SCRIPTS[name])
    assert subprocess.run([name, "-n", tmp_path / "script"]).returncode == 0
