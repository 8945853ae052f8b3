"""The command line, thin: parse, call, print. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from ssorl import __version__
from ssorl.cli.behaviour import Behaviour
from ssorl.cli.data import Data
from ssorl.cli.evaluate import Evaluate
from ssorl.cli.export import Export
from ssorl.cli.label import Label
from ssorl.cli.run import Run
from ssorl.cli.study import Study
from ssorl.errors import SsorlError


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
    )


def main(args: list[str] | None = None) -> None:
    """Entry point: 0 when all went well, 2 with one sentence when the user can mend it."""
    if (sys.argv[1:] if args is None else args) == ["--version"]:
        print(f"ssorl {__version__}")
        return
    try:
        tyro.cli(
            Cli, prog="ssorl", args=args, config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes)
        ).command.run()
    except SsorlError as err:
        print(f"ssorl: {err}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader, `head` for one, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        print("ssorl: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
