"""The command line, thin: parse, call, print. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from ssorl.cli.behaviour import Behaviour
from ssorl.cli.completion import ASK, Completion, candidates
from ssorl.cli.data import Data
from ssorl.cli.evaluate import Evaluate
from ssorl.cli.export import Export
from ssorl.cli.label import Label
from ssorl.cli.options import QUIET, arg
from ssorl.cli.run import Run
from ssorl.cli.stop import stoppable
from ssorl.cli.study import Study
from ssorl.cli.words import COMMON, check
from ssorl.utils.errors import SsorlError
from ssorl.utils.version import __version__

Flag = tyro.conf.FlagCreatePairsOff[bool]
FAILED, MISTAKE = 1, 2  # what a command ends with, besides 0, 130 and 143: docs/command-line.md


@dataclass(frozen=True)
class Cli:
    """Train control policies when most logged trajectories have no actions."""

    command: (
        Annotated[Run, tyro.conf.subcommand("run")]
        | Annotated[Study, tyro.conf.subcommand("study")]
        | Annotated[Data, tyro.conf.subcommand("data")]
        | Annotated[Label, tyro.conf.subcommand("label")]
        | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
        | Annotated[Export, tyro.conf.subcommand("export")]
        | Annotated[Behaviour, tyro.conf.subcommand("behaviour")]
        | Annotated[Completion, tyro.conf.subcommand("completion")]
    )
    # These are for the help alone: `main` takes them out wherever they are.
    quiet: Annotated[Flag, arg("", "any command: its result and errors alone, no progress")] = False
    debug: Annotated[Flag, arg("", "any command: a traceback where something goes wrong")] = False
    version: Annotated[Flag, arg("", "print the version")] = False


def main(args: Sequence[str] | None = None) -> None:
    """Run a command. Without arguments it is the process, and takes the words of its command line."""
    own = args is None
    words = sys.argv[1:] if args is None else list(args)
    if own:
        _open_streams()
    quiet = QUIET.set("--quiet" in words)
    code = 0
    try:
        with stoppable(_say) as stop:
            chosen: list[Any] = []
            try:
                code = _answer([word for word in words if word not in COMMON], chosen)
                if code and stop.number:  # somebody made an exit of it
                    raise KeyboardInterrupt
            except BaseException as err:
                if stop.number or isinstance(err, KeyboardInterrupt):
                    code = _stopped(chosen, words, stop.code)
                    if own:  # not sys.exit: a device may still compute, and taking Python down under it is a crash
                        os._exit(code)
                else:
                    code = _failed(err, "--debug" in words)
    finally:
        QUIET.reset(quiet)
    if code:
        sys.exit(code)


def _answer(words: list[str], chosen: list[Any]) -> int:
    """Do what the words say. What they come to is `chosen` before it is run."""
    if words[:1] == [ASK]:
        print("\n".join(candidates(Cli, words[1:])))
    elif words == ["--version"]:
        print(f"ssorl {__version__}")
    else:
        check(Cli, words)
        try:
            config = (tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes)
            with _without_colour():
                chosen.append(tyro.cli(Cli, prog="ssorl", args=words, config=config).command)
            while hasattr(chosen[-1], "command"):
                chosen.append(chosen[-1].command)
            chosen[-1].run()
        except SystemExit as end:
            sys.stdout.flush()
            return end.code if isinstance(end.code, int) else 0
    sys.stdout.flush()  # here, where a reader that went away can be dealt with
    return 0


def _failed(err: BaseException, debug: bool) -> int:
    """Tell what went wrong in one sentence; with `debug` also where."""
    if isinstance(err, BrokenPipeError):  # the reader, `head` for one, has had enough
        _silence()
        return FAILED
    if debug:
        import traceback

        traceback.print_exception(err)
    if isinstance(err, SsorlError):
        _say(str(err))
        return MISTAKE
    if isinstance(err, OSError) and err.strerror:  # a full disk, say
        what = f"{err.filename}: {err.strerror}" if err.filename else err.strerror
    else:
        what = " ".join(["this should not have happened:", type(err).__name__, *str(err).split()])[:300]
    _say(what if debug else f"{what}; --debug shows where")
    return FAILED


def _stopped(chosen: list[Any], words: list[str], code: int) -> int:
    """Tell how to go on, where there is a way."""
    if sys.stderr.isatty():
        print(file=sys.stderr)  # the terminal has just written ^C
    if chosen and getattr(chosen[-1], "RESUMES", False):
        import shlex

        _say("stopped; what is done is kept, and the same command goes on from there:")
        print(f"  {shlex.join(['ssorl', *words])}", file=sys.stderr, flush=True)
    else:
        _say("stopped")
    return code


def _say(text: str) -> None:
    print(f"ssorl: {text}", file=sys.stderr, flush=True)


@contextmanager
def _without_colour() -> Iterator[None]:
    """Help and mistakes without colours where NO_COLOR asks for that, which tyro does not look at."""
    term = os.environ.get("TERM")
    if os.environ.get("NO_COLOR") and term:
        os.environ["TERM"] = "dumb"
    try:
        yield
    finally:
        if term:
            os.environ["TERM"] = term


def _open_streams() -> None:
    """Have all three streams: where one is closed (`>&-`) a file opened later would get its number, and our output."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, so it is this one
            setattr(sys, name, open(null, mode, closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def _silence() -> None:
    """Nobody reads any more, so nothing is written when Python ends either."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(null, stream.fileno())
        except (OSError, ValueError):
            continue


if __name__ == "__main__":
    main()
