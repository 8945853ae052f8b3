"""ssorl export: a saved policy for use without this package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ssorl.cli.options import AgentClass, Json, arg, print_result
from ssorl.utils.errors import SsorlError


@dataclass(frozen=True)
class Export:
    """Write a saved policy as ONNX or StableHLO: raw observations in, the environment's actions out."""

    path: Annotated[tyro.conf.Positional[Path], arg("PATH", "a policy file, or a run folder")]
    out: Annotated[Path, arg("FILE", "where to write, tried against the original before it is kept")]
    format: Annotated[Literal["onnx", "jax"], arg("{onnx,jax}", "ONNX, or jax.export's StableHLO (onnx)")] = "onnx"
    variant: Annotated[str | None, arg("NAME", "of a run folder: baseline, ss, oracle (ss)")] = None
    seed: Annotated[int | None, arg("N", "of a run folder: which of its seeds (the first)")] = None
    agent: AgentClass = None
    force: bool = False  # replace what is there
    json: Json = False

    def run(self) -> None:
        """Load, write, tell."""
        if self.out.exists() and (self.out.is_dir() or not self.force):
            cure = "name a file" if self.out.is_dir() else "choose another name or pass --force"
            raise SsorlError(f"{self.out}: exists already; {cure}")
        from ssorl.evaluation.export import export
        from ssorl.evaluation.policy import load_policy

        policy = load_policy(self.path, self.variant, self.seed, self.agent)
        done = export(policy.player, self.out, self.format, {} if policy.env is None else {"env": policy.env})
        shapes = {name: [str(n) if not isinstance(n, int) else n for n in shape] for name, shape in done.inputs.items()}
        told = {"out": str(done.path), "format": self.format, "inputs": shapes, "outputs": done.outputs}
        print_result(self.json, {**told, "largest_error": done.error})
