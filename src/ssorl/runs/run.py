"""A whole run in one call, kept in a folder of its own."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.data.formats import load
from ssorl.pipeline.algorithm1 import run as algorithm
from ssorl.pipeline.hooks import Listener
from ssorl.pipeline.plan import Plan, as_config, make_plan
from ssorl.runs.folder import Folder
from ssorl.training.metrics import check_options
from ssorl.utils.errors import SsorlError
from ssorl.utils.identity import revisions_of


class Result(NamedTuple):
    """What a run found, and where everything is."""

    folder: Path
    told: dict  # result.json

    @property
    def scores(self) -> dict:
        """By variant; with several qualities each has its own, in `told["cells"]`."""
        if "cells" in self.told:
            raise SsorlError(f"{self.folder}: has several qualities, each with its own scores; see told['cells']")
        return self.told["scores"]


def run(
    dataset: str | Path | Episodes,
    out: Path | str | None = None,
    watch: Listener | None = None,
    command: str | None = None,
    **choices: Any,
) -> Result:
    """Algorithm 1 on a dataset, between baseline and oracle, in a run folder (default: one of its own under runs/).

    The choices are those of `plan.make_plan`: agent, idm, preset, fraction, quality, seeds, variants, env, …
    A run that was stopped goes on, and one that is done is not done again.
    """
    eps = dataset if isinstance(dataset, Episodes) else load(dataset)
    return execute(eps, make_plan(eps, **choices), out, watch, command or _call(dataset, choices))


def execute(
    eps: Episodes,
    plan: Plan,
    out: Path | str | None,
    watch: Listener | None,
    command: str,
    metrics: dict[str, Any] | None = None,
) -> Result:
    """Run a plan in its folder; `metrics` are options of `metrics.Log`."""
    check_options(**(metrics or {}))
    config = json.loads(json.dumps({"data": describe(eps), **as_config(plan)}))  # tuples are lists there
    path = Path(out) if out is not None else default_folder(eps, plan, config)
    with Folder.open(path, plan, config, command, eps) as folder:
        folder.metrics = metrics or {}
        if watch:
            watch.has_opened(path, bool(folder.seconds), folder.finished)
        if not folder.finished:
            outcome = algorithm(eps, plan, folder, watch)
            folder.finish(eps, outcome)
        return Result(path, folder.result())


def describe(eps: Episodes) -> dict:
    """The trajectories, in a few values and a digest of every array."""
    digest = hashlib.sha256()
    for array in (eps.obs, eps.act, eps.rew, eps.terminated, eps.start):
        digest.update(np.ascontiguousarray(array).data)
    meta = {k: v for k, v in asdict(eps.meta).items() if k not in ("source", "notes")}
    return {"trajectories": len(eps), "steps": eps.n_steps, **meta, "digest": digest.hexdigest()[:16]}


def default_folder(eps: Episodes, plan: Plan, config: dict) -> Path:
    """runs/NAME-AGENT-HASH."""
    revisions = revisions_of(plan.agent, plan.idm)
    if any(revisions):  # so that results of an earlier revision are not taken for new ones
        config = {**config, "revisions": revisions.as_json()}
    text = json.dumps(config, sort_keys=True)
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(eps.meta.source).stem).strip("-")[-40:] or "run"
    agent = re.sub(r"[^A-Za-z0-9._-]+", "-", plan.names["agent"])  # of another package it may be module:Class
    return Path("runs") / f"{name}-{agent}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _call(dataset: object, choices: dict) -> str:
    what = repr(str(dataset)) if isinstance(dataset, (str, Path)) else "episodes"
    return f"ssorl.run({', '.join([what, *(f'{k}={v!r}' for k, v in choices.items())])})"
