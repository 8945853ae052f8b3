"""ssorl behaviour: the policies that make the simulated datasets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from ssorl.cli.options import Json, arg, print_json, print_result


@dataclass(frozen=True)
class BehaviourList:
    """List the bundled policies: how long each was trained and what it earns."""

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
    """Train collectors with soft actor-critic, as the bundled ones were; interrupted, the same command goes on."""

    RESUMES: ClassVar[bool] = True
    env: Annotated[tyro.conf.Positional[str], arg("ENV", "hopper, walker2d, halfcheetah, a maze or a Gymnasium id")]
    steps: Annotated[int, arg("N", "environment steps for each seed (1000000)")] = 1_000_000
    seeds: Annotated[tuple[int, ...], arg("K [K …]", "trained side by side in one program (0)")] = (0,)
    critic_norm: bool = False  # layer norm in the critics, as the bundled halfcheetah had
    out: Annotated[Path | None, arg("FOLDER", "curve, snapshots, checkpoint (runs/behaviour/ENV)")] = None
    max_seconds: Annotated[float | None, arg("S", "stop cleanly after so long")] = None
    json: Json = False

    def run(self) -> None:
        """Train."""
        from ssorl.data.sim.train import TrainConfig, train

        out = self.out or Path("runs/behaviour") / self.env
        config = TrainConfig(env=self.env, seeds=self.seeds, steps=self.steps, critic_norm=self.critic_norm)
        done = train(config, out, max_seconds=self.max_seconds)
        print_result(self.json, {"out": str(out), "finished": done})


@dataclass(frozen=True)
class Behaviour:
    """The policies that make the simulated datasets."""

    command: (
        Annotated[BehaviourList, tyro.conf.subcommand("list")]
        | Annotated[BehaviourTrain, tyro.conf.subcommand("train")]
    )

    def run(self) -> None:
        """Run the chosen command."""
        self.command.run()
