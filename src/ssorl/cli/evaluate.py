"""ssorl evaluate: let saved policies play."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from ssorl.cli.options import AgentClass, Json, arg, print_json
from ssorl.evaluation import EPISODES
from ssorl.utils.errors import SsorlError


@dataclass(frozen=True)
class Evaluate:
    """Let saved policies play episodes of an environment and tell what they earn."""

    path: Annotated[tyro.conf.Positional[Path], arg("PATH", "a policy file, or a run folder")]
    env: Annotated[str | None, arg("ENV", "hopper, maze2d-umaze-dense, a Gymnasium id (the policy's own)")] = None
    episodes: Annotated[int, arg("N", f"episodes a policy ({EPISODES})")] = EPISODES
    seed: Annotated[int, arg("N", "of the starting states (0)")] = 0
    variant: Annotated[str | None, arg("NAME", "of a run folder: baseline, ss, oracle, or all (ss)")] = None
    agent: AgentClass = None
    video: Annotated[Path | None, arg("FILE", "film the first policy's first episode to a .gif or .mp4")] = None
    force: bool = False  # replace a film that is there
    json: Json = False

    def run(self) -> None:
        """Load, play, print, film."""
        from functools import partial

        from ssorl.envs import TrustedName, require_trusted
        from ssorl.envs.registry import horizon
        from ssorl.evaluation.policy import find_policies, load_policy
        from ssorl.evaluation.rollout import evaluate
        from ssorl.evaluation.video import Film
        from ssorl.utils.progress import Progress

        files = find_policies(self.path, self.variant)
        policies = [load_policy(file, agent=self.agent) for file in files]
        env = TrustedName(self.env) if self.env else policies[0].env
        if env is None:
            raise SsorlError(
                f"{self.path}: the policy does not say where it is at home; name an environment with --env"
            )
        require_trusted(env, files[0])
        film = None if self.video is None else Film(self.video, env)
        if self.video is not None and self.video.exists() and (self.video.is_dir() or not self.force):
            cure = "name a file" if self.video.is_dir() else "choose another name or pass --force"
            raise SsorlError(f"{self.video}: exists already; {cure}")
        total = len(files) * max(self.episodes, 0) * horizon(env)
        with Progress({"playing": (total, "steps")}) as progress:
            players, told = [p.player for p in policies], partial(progress, "playing")
            scores = evaluate(players, env, self.episodes, self.seed, progress=told, watch=film)
        if scores.normalised is None and env == policies[0].env:
            scores = scores._replace(normalised=_as_the_run(files[0], scores.returns))
        found = _told(files, scores, self.seed)
        if self.json:
            print_json(found | {"video": None if self.video is None else str(self.video)})
        else:
            _show(found)
        if film is not None:
            film.write(int(scores.lengths[0, 0]))
            if not self.json:
                print(f"filmed: {self.video}")


def _as_the_run(file: Path, returns: Any) -> Any:
    """Normalised by the references that the data of the policy's run brings; or none."""
    from ssorl.runs.result import ReturnScale
    from ssorl.utils.files import read_json
    from ssorl.utils.validation import number

    homes = file.absolute().parents[1:3]  # one quality of a run lies in the run's folder
    record = next((home / "config.json" for home in homes if (home / "config.json").exists()), None)
    try:
        data = read_json(record)["config"]["data"] if record else {}
        random, expert = data["random_return"], data["expert_return"]
    except (OSError, SsorlError, LookupError, TypeError):
        return None
    return (
        ReturnScale(random, expert, True)(returns) if number(random) and number(expert) and random != expert else None
    )


def _told(files: list[Path], scores: Any, seed: int) -> dict:
    from ssorl.evaluation.rollout import bootstrap

    def spans(values: Any) -> list[dict | None]:
        if values is None:
            return [None] * len(files)
        return [
            {"mean": mean, "low": low, "high": high}
            for mean, low, high in zip(*(x.tolist() for x in bootstrap(values, seed)), strict=True)
        ]

    rows = zip(files, spans(scores.returns), spans(scores.normalised), scores.returns, scores.lengths, strict=True)
    return {
        "env": scores.env,
        "episodes": scores.returns.shape[1],
        "seed": seed,
        "policies": [
            {
                "policy": str(file),
                "return": ret,
                "normalised": norm,
                "length": float(lengths.mean()),
                "returns": returns.tolist(),
                "lengths": lengths.tolist(),
            }
            for file, ret, norm, returns, lengths in rows
        ],
    }


def _show(told: dict) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(emoji=False)  # a name may look like one
    console.print(f"{escape(told['env'])}, {told['episodes']} episodes a policy; 95 % intervals over episodes")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("policy", "return", "", "normalised", "", "length"):
        table.add_column(name, justify="left" if name == "policy" else "right", overflow="fold")
    for row in told["policies"]:
        cells = []
        for value, digits in ((row["return"], 1), (row["normalised"], 1)):
            span = "" if value is None else f"[{value['low']:,.{digits}f}, {value['high']:,.{digits}f}]"
            cells += ["" if value is None else f"{value['mean']:,.{digits}f}", escape(span)]
        table.add_row(escape(Path(row["policy"]).stem), *cells, f"{row['length']:,.0f}")
    console.print(table)
