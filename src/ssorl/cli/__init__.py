"""The command line: parse, call, print. Each command imports what it needs when it runs, so that help is quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from ssorl.cli.audit import Audit
from ssorl.cli.behaviour import Behaviour
from ssorl.cli.check import Check
from ssorl.cli.completion import COMPLETE, Completion, candidates
from ssorl.cli.data import Data
from ssorl.cli.evaluate import Evaluate
from ssorl.cli.export import Export
from ssorl.cli.help import subcommand, wrapped_help
from ssorl.cli.label import Label
from ssorl.cli.options import QUIET, flag
from ssorl.cli.run import Run
from ssorl.cli.stop import stoppable
from ssorl.cli.study import Study
from ssorl.cli.suggest import Suggest
from ssorl.cli.words import COMMON, check, descend
from ssorl.utils.errors import SsorlError
from ssorl.utils.version import __version__

Flag = tyro.conf.FlagCreatePairsOff[bool]
FAILURE, MISTAKE = 1, 2  # exit codes besides 0, 130 and 143, see docs/command-line.md


@dataclass(frozen=True)
class Cli:
    """Train control policies when most logged trajectories have no actions."""

    command: (
        Annotated[Run, subcommand("run", Run)]
        | Annotated[Study, subcommand("study", Study)]
        | Annotated[Data, subcommand("data", Data)]
        | Annotated[Check, subcommand("check", Check)]
        | Annotated[Audit, subcommand("audit", Audit)]
        | Annotated[Suggest, subcommand("suggest", Suggest)]
        | Annotated[Label, subcommand("label", Label)]
        | Annotated[Evaluate, subcommand("evaluate", Evaluate)]
        | Annotated[Export, subcommand("export", Export)]
        | Annotated[Behaviour, subcommand("behaviour", Behaviour)]
        | Annotated[Completion, subcommand("completion", Completion)]
    )
    # For the help only: `main` removes --quiet and --debug from the command line, wherever they are.
    quiet: Annotated[Flag, flag("with any command: print results and errors only")] = False
    debug: Annotated[Flag, flag("with any command: print a traceback if it fails")] = False
    version: Annotated[Flag, flag("print the version")] = False


def main(args: Sequence[str] | None = None) -> None:
    """Run a command.

    Args:
        args: the words of the command line; by default, those of this process, which then also ends with the command.

    Raises:
        SystemExit: the command failed or was stopped; the code is documented in docs/command-line.md.
    """
    own_process = args is None
    words = sys.argv[1:] if args is None else list(args)
    if own_process:
        _open_streams()
    quiet = QUIET.set("--quiet" in words)
    code = 0
    try:
        with stoppable(_say) as stop:
            chosen: list[Any] = []
            try:
                code = _run([word for word in words if word not in COMMON], chosen)
                if code and stop.number:  # a library turned the interrupt into an exit
                    raise KeyboardInterrupt
            except BaseException as err:
                if stop.number or isinstance(err, KeyboardInterrupt):
                    code = _report_stop(chosen, words, stop.code)
                    if own_process:  # not sys.exit: Python would crash at exit if a device is still computing
                        os._exit(code)
                else:
                    code = _report_error(err, "--debug" in words)
    finally:
        QUIET.reset(quiet)
    if code:
        sys.exit(code)


def _run(words: list[str], chosen: list[Any]) -> int:
    """Parse and run a command, and return its exit code. The parsed command is appended to `chosen` before it runs."""
    if words[:1] == [COMPLETE]:
        print("\n".join(candidates(Cli, words[1:])))
    elif words == ["--version"]:
        print(f"ssorl {__version__}")
    else:
        check(Cli, words)
        try:
            config = (tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes)
            with wrapped_help(descend(Cli, words)[0]):
                chosen.append(tyro.cli(Cli, prog="ssorl", args=words, config=config).command)
            while hasattr(chosen[-1], "command"):
                chosen.append(chosen[-1].command)
            chosen[-1].run()
        except SystemExit as end:
            sys.stdout.flush()
            return end.code if isinstance(end.code, int) else 0
    sys.stdout.flush()  # here, where a closed pipe can still be handled
    return 0


def _report_error(err: BaseException, debug: bool) -> int:
    """Print an error as one sentence, with a traceback if `debug`, and return the exit code."""
    if isinstance(err, BrokenPipeError):  # the reader, such as `head`, closed the pipe
        _discard_output()
        return FAILURE
    if debug:
        import traceback

        traceback.print_exception(err)
    if isinstance(err, SsorlError):
        _say(str(err))
        return MISTAKE
    if isinstance(err, OSError) and err.strerror:  # for example, the disk is full
        message = f"{err.filename}: {err.strerror}" if err.filename else err.strerror
    else:
        message = " ".join(["this should not have happened:", type(err).__name__, *str(err).split()])[:300]
    _say(message if debug else f"{message}; --debug shows where")
    return FAILURE


def _report_stop(chosen: list[Any], words: list[str], code: int) -> int:
    """Print how to resume a command that was stopped, if it can resume, and return the exit code."""
    if sys.stderr.isatty():
        print(file=sys.stderr)  # the terminal has just written ^C
    if chosen and getattr(chosen[-1], "RESUMES", False):
        import shlex

        _say("stopped; finished work is saved, and the same command resumes:")
        print(f"  {shlex.join(['ssorl', *words])}", file=sys.stderr, flush=True)
    else:
        _say("stopped")
    return code


def _say(text: str) -> None:
    print(f"ssorl: {text}", file=sys.stderr, flush=True)


def _open_streams() -> None:
    """Open streams that the shell closed (`>&-`); else the next file would get their number, and our output."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is the stream's
            setattr(sys, name, open(null, mode, closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def _discard_output() -> None:
    """Redirect output to nowhere, so that Python does not fail again when it flushes the streams at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(null, stream.fileno())
        except (OSError, ValueError):
            continue


if __name__ == "__main__":
    main()
