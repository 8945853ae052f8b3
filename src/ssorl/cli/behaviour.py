"""ssorl behaviour: the policies that collected the simulated datasets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from ssorl.cli.help import subcommand
from ssorl.cli.options import Json, arg, flag, print_json, print_result


@dataclass(frozen=True)
class BehaviourList:
    """List the bundled policies with their training steps and returns."""

    json: Json = False

    def run(self) -> None:
        """Print a table."""
        from ssorl.data.sim.datasets import bundled

        rows = bundled()
        if self.json:
            return print_json(rows)
        from ssorl.cli.tables import show_policies

        return show_policies(rows)


@dataclass(frozen=True)
class BehaviourTrain:
    """Train policies with soft actor-critic, as the bundled ones were.

    A command that was stopped resumes when it is given again.
    """

    RESUMES: ClassVar[bool] = True
    env: Annotated[tyro.conf.Positional[str], arg("ENV", "hopper, walker2d, halfcheetah, a maze or a Gymnasium id")]
    steps: Annotated[int, arg("N", "environment steps of each seed", 1_000_000)] = 1_000_000
    seeds: Annotated[tuple[int, ...], arg("N [N …]", "seeds, trained together in one program", 0)] = (0,)
    critic_norm: Annotated[bool, flag("layer norm in the critics, as for the bundled halfcheetah")] = False
    out: Annotated[Path | None, arg("FOLDER", "folder for curve, snapshots and checkpoint", "runs/behaviour/ENV")] = (
        None
    )
    max_seconds: Annotated[float | None, arg("S", "stop after S seconds; the same command resumes")] = None
    json: Json = False

    def run(self) -> None:
        """Train, and print where the results are."""
        from ssorl.data.sim.train import TrainConfig, train

        out = self.out or Path("runs/behaviour") / self.env
        config = TrainConfig(env=self.env, seeds=self.seeds, steps=self.steps, critic_norm=self.critic_norm)
        finished = train(config, out, max_seconds=self.max_seconds)
        print_result(self.json, {"out": str(out), "finished": finished})


@dataclass(frozen=True)
class Behaviour:
    """List or train the policies that collect the sim/ datasets."""

    command: (
        Annotated[BehaviourList, subcommand("list", BehaviourList)]
        | Annotated[BehaviourTrain, subcommand("train", BehaviourTrain)]
    )

    def run(self) -> None:
        """Run the chosen command."""
        self.command.run()
