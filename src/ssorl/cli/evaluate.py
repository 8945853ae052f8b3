"""ssorl evaluate: scores of saved policies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from ssorl.cli.options import AgentClass, Force, Json, arg, print_json
from ssorl.evaluation import EPISODES
from ssorl.utils.errors import SsorlError


@dataclass(frozen=True)
class Evaluate:
    """Play episodes with saved policies, and print their scores."""

    path: Annotated[tyro.conf.Positional[Path], arg("PATH", "a policy file or a run folder")]
    variant: Annotated[str | None, arg("NAME", "of a run folder: baseline, ss, oracle or all", "ss")] = None
    agent: AgentClass = None
    env: Annotated[
        str | None, arg("NAME", "environment: hopper, maze2d-umaze-dense, a Gymnasium id, …", "the policy's")
    ] = None
    episodes: Annotated[int, arg("N", "episodes of each policy", EPISODES)] = EPISODES
    seed: Annotated[int, arg("N", "seed of the initial states", 0)] = 0
    video: Annotated[Path | None, arg("FILE", "film the first policy's first episode to a .gif or .mp4")] = None
    force: Force = False
    json: Json = False

    def run(self) -> None:
        """Load the policies, play, print, film."""
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
            raise SsorlError(f"{self.path}: the policy names no environment; name one with --env")
        require_trusted(env, files[0])
        film = None if self.video is None else Film(self.video, env)
        if self.video is not None and self.video.exists() and (self.video.is_dir() or not self.force):
            cure = "give a file name" if self.video.is_dir() else "choose another name or pass --force"
            raise SsorlError(f"{self.video}: exists already; {cure}")
        total = len(files) * max(self.episodes, 0) * horizon(env)
        with Progress({"evaluating": (total, "steps")}) as progress:
            players, report = [policy.player for policy in policies], partial(progress, "evaluating")
            scores = evaluate(players, env, self.episodes, self.seed, progress=report, watch=film)
        if scores.normalised is None and env == policies[0].env:
            scores = scores._replace(normalised=_normalise_as_in_run(files[0], scores.returns))
        result = _as_json(files, scores, self.seed)
        if self.json:
            print_json(result | {"video": None if self.video is None else str(self.video)})
        else:
            from ssorl.cli.tables import show_scores

            show_scores(result)
        if film is not None:
            film.write(int(scores.lengths[0, 0]))
            if not self.json:
                print(f"video: {self.video}")


def _normalise_as_in_run(file: Path, returns: Any) -> Any:
    """Return scores normalised by the reference returns in the config of the policy's run; None if there are none."""
    from ssorl.runs.result import ReturnScale
    from ssorl.utils.files import read_json
    from ssorl.utils.validation import number

    folders = file.absolute().parents[1:3]  # in a run with several qualities, policies lie one level deeper
    config = next((folder / "config.json" for folder in folders if (folder / "config.json").exists()), None)
    try:
        data = read_json(config)["config"]["data"] if config else {}
        random, expert = data["random_return"], data["expert_return"]
    except (OSError, SsorlError, LookupError, TypeError):
        return None
    if not (number(random) and number(expert) and random != expert):
        return None
    return ReturnScale(random, expert, True)(returns)


def _as_json(files: list[Path], scores: Any, seed: int) -> dict:
    """Return the scores with their intervals over episodes, as JSON values."""
    from ssorl.evaluation.rollout import bootstrap

    def intervals(values: Any) -> list[dict | None]:
        if values is None:
            return [None] * len(files)
        return [
            {"mean": mean, "low": low, "high": high}
            for mean, low, high in zip(*(x.tolist() for x in bootstrap(values, seed)), strict=True)
        ]

    rows = zip(
        files, intervals(scores.returns), intervals(scores.normalised), scores.returns, scores.lengths, strict=True
    )
    return {
        "env": scores.env,
        "episodes": scores.returns.shape[1],
        "seed": seed,
        "policies": [
            {
                "policy": str(file),
                "return": mean_return,
                "normalised": normalised,
                "length": float(lengths.mean()),
                "returns": returns.tolist(),
                "lengths": lengths.tolist(),
            }
            for file, mean_return, normalised, returns, lengths in rows
        ],
    }
