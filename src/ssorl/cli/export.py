"""ssorl export: a saved policy in a format that other programs run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ssorl.cli.options import AgentClass, Force, Json, arg, print_result
from ssorl.utils.errors import SsorlError


@dataclass(frozen=True)
class Export:
    """Write a saved policy as ONNX or StableHLO.

    The exported policy takes unscaled observations and returns actions in the environment's range. It is compared with
    the original before it is written.
    """

    path: Annotated[tyro.conf.Positional[Path], arg("PATH", "a policy file or a run folder")]
    out: Annotated[Path, arg("FILE", "the exported policy")]
    format: Annotated[Literal["onnx", "jax"], arg("{onnx,jax}", "ONNX, or StableHLO of jax.export", "onnx")] = "onnx"
    variant: Annotated[str | None, arg("NAME", "of a run folder: baseline, ss or oracle", "ss")] = None
    seed: Annotated[int | None, arg("N", "of a run folder: one of its seeds", "the first")] = None
    agent: AgentClass = None
    force: Force = False
    json: Json = False

    def run(self) -> None:
        """Load, export, print."""
        if self.out.exists() and (self.out.is_dir() or not self.force):
            cure = "give a file name" if self.out.is_dir() else "choose another name or pass --force"
            raise SsorlError(f"{self.out}: exists already; {cure}")
        from ssorl.evaluation.export import export
        from ssorl.evaluation.policy import load_policy

        policy = load_policy(self.path, self.variant, self.seed, self.agent)
        done = export(policy.player, self.out, self.format, {} if policy.env is None else {"env": policy.env})
        shapes = {name: [n if isinstance(n, int) else str(n) for n in shape] for name, shape in done.inputs.items()}
        result = {"out": str(done.path), "format": self.format, "inputs": shapes, "outputs": done.outputs}
        print_result(self.json, {**result, "largest_error": done.error})
