"""Run Algorithm 1 on a dataset in one call, with all results in a run folder."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ssorl.agents.base import Agent
from ssorl.data.episodes import Episodes
from ssorl.data.formats import load
from ssorl.data.meta import DESCRIPTIVE
from ssorl.data.split import Third
from ssorl.idm.base import IdmSpec
from ssorl.idm.label import Labeller
from ssorl.idm.outlook import Doubtful
from ssorl.pipeline.algorithm1 import run as algorithm
from ssorl.pipeline.hooks import Listener
from ssorl.pipeline.plan import Plan, as_config, make_plan
from ssorl.runs.folder import RunFolder
from ssorl.training.metrics import check_options
from ssorl.utils.display import html_table, short_repr
from ssorl.utils.errors import SsorlError
from ssorl.utils.identity import revisions_of


class Result(NamedTuple):
    """The result of a run."""

    folder: Path
    content: dict  # content of result.json

    @property
    def told(self) -> dict:
        """Return `content`, by its name in version 0.1."""
        return self.content

    @property
    def scores(self) -> dict:
        """Return mean, interval and returns by variant.

        Raises:
            SsorlError: the run has several qualities, each with its own scores in `content["cells"]`.
        """
        if "cells" in self.content:
            raise SsorlError(f"{self.folder}: has several qualities, each with its own scores; see content['cells']")
        return self.content["scores"]

    def __repr__(self) -> str:
        return short_repr("Result", {"folder": str(self.folder), **self._means()})

    def _repr_html_(self) -> str:
        return html_table("Result", {"folder": self.folder, "page": self.folder / "report.html", **self._means()})

    def _means(self) -> dict[str, Any]:
        """Return the mean scores by variant, and by quality if there are several."""
        cells = self.content.get("cells")
        scores = {f"q{cell['quality']:g} ": cell["scores"] for cell in cells} if cells else {"": self.scores}
        return {f"{quality}{variant}": s["mean"] for quality, by in scores.items() for variant, s in by.items()}


def run(
    dataset: str | Path | Episodes,
    out: Path | str | None = None,
    watch: Listener | None = None,
    command: str | None = None,
    *,
    agent: str | Agent = "td3bc",
    idm: str | IdmSpec | Labeller | None = None,
    preset: str = "auto",
    setup: str | None = None,
    fraction: float | None = None,
    quality: float | Sequence[float] | None = None,
    labelled: Third | None = None,
    labelled_fraction: float | None = None,
    unlabelled: Third | None = None,
    unlabelled_fraction: float | None = None,
    seeds: int | Sequence[int] = 1,
    variants: Sequence[str] | None = None,
    certain: float | None = None,
    env: Any = None,
    episodes: int | None = None,
    policy: Literal["average", "last"] = "average",
    settings: dict[str, Any] | None = None,
    idm_updates: int | None = None,
    idm_members: int | None = None,
    past: int | None = None,
    future: int | None = None,
    soft_limits: bool | None = None,
    when_doubtful: Doubtful = "keep",
    label_weights: bool = False,
    true_share: float | None = None,
    label_samples: bool = False,
    **choices: Any,
) -> Result:
    """Train baseline, SS and oracle on a dataset by Algorithm 1, evaluate them, and write everything to a run folder.

    A stopped run continues where it stopped; a finished run is not computed again. Arguments left as None take
    defaults; an argument that has no effect raises SsorlError.

    Args:
        dataset: a name (see `ssorl data list`), a path, or the trajectories.
        out: the run folder; by default, a folder under runs/ whose name follows from the arguments.
        watch: reports progress.
        command: the command that the report shows; by default, this call.
        agent: name of the agent, such as "td3bc" or "module:Class"; or a class or an instance.
        idm: name of the inverse dynamics model ("blend"), or the folder of a saved one; or a configuration or a fitted
            model.
        preset: settings of agent and model to start from: "quick", "paper", or "auto", which is "paper" with an
            accelerator and "quick" without one.
        setup: how the split is drawn: "coupled" or "decoupled". Only data that has all actions is split.
        fraction: coupled: share of the trajectories that keep their actions (0.1).
        quality: coupled: the labelled trajectories come from the bottom `quality` % by return (50); or several values,
            each of which is a separate result.
        labelled: decoupled: third by return from which the labelled trajectories come ("low").
        labelled_fraction: decoupled: number of labelled trajectories, as a share of the dataset (0.1).
        unlabelled: decoupled: third by return from which the unlabelled trajectories come ("high").
        unlabelled_fraction: decoupled: number of unlabelled trajectories, as a share of the dataset (0.1).
        seeds: number of seeds, counted from 0; or the seeds themselves.
        variants: which of "baseline", "ss" and "oracle" to train; by default, all that are possible.
        certain: train on this share of the proxy actions only, lowest predicted std first.
        env: environment of the evaluation: a name or a factory; "none" for fitted-Q evaluation; by default, the
            environment that the data names.
        episodes: evaluation episodes of each policy (30).
        policy: evaluate and save the exponential average of the weights ("average") or the last weights ("last").
        settings: settings of the agent to change, such as `{"updates": 1000}`.
        idm_updates: updates of the inverse dynamics model, in place of the preset's.
        idm_members: networks in its ensemble, in place of the preset's.
        past: states before s_t that the model sees; by default, the model's own number, which may depend on the data.
        future: states after s_{t+1} that it sees; likewise.
        soft_limits: keep proxy actions off the limits of their range; by default, the blend does so.
        when_doubtful: use of proxy actions of trajectories whose forecast error (MSE) is above 0.05: "keep" them,
            "weight" them less, the less the larger the error, or "drop" them. Needs a model that forecasts its error.
        label_weights: weigh each proxy action by its predicted variance v, with 0.05 / (0.05 + v).
        true_share: share of true actions in the batches of SS; by default, their share of the data.
        label_samples: draw each proxy action once from its normal distribution, in place of its mean.
        **choices: no other arguments exist; one that is given raises SsorlError.

    Returns:
        `folder`, the run folder; `scores`, the scores of each variant; `content`, the content of result.json.

    Raises:
        SsorlError: an argument is invalid, or the run folder cannot be used.
        DataError: the trajectories cannot be loaded, or do not allow this run.
    """
    given = {name: value for name, value in locals().items() if name in _OPTIONS and value is not _OPTIONS[name]}
    choices = {**given, **choices}
    eps = dataset if isinstance(dataset, Episodes) else load(dataset)
    return execute(eps, make_plan(eps, **choices), out, watch, command or _call(dataset, choices))


_OPTIONS = {name: p.default for name, p in signature(run).parameters.items() if p.kind is Parameter.KEYWORD_ONLY}


def execute(
    eps: Episodes,
    plan: Plan,
    out: Path | str | None,
    watch: Listener | None,
    command: str,
    metrics: dict[str, Any] | None = None,
) -> Result:
    """Execute a plan in a run folder.

    Args:
        eps: the trajectories.
        plan: what to train and evaluate.
        out: the run folder; None for the default one.
        watch: reports progress.
        command: the command line that result.json records.
        metrics: options of `training.metrics.Log`.

    Returns:
        The folder, and the content of its result.json.
    """
    check_options(**(metrics or {}))
    config = json.loads(json.dumps({"data": describe(eps), **as_config(plan)}))  # as read from JSON, without tuples
    path = Path(out) if out is not None else default_folder(eps, plan, config)
    with RunFolder.open(path, plan, config, command, eps) as folder:
        folder.metrics = metrics or {}
        if watch:
            watch.has_opened(path, bool(folder.seconds), folder.finished)
        if not folder.finished:
            outcome = algorithm(eps, plan, folder, watch)
            folder.finish(eps, outcome)
        return Result(path, folder.result())


def describe(eps: Episodes) -> dict:
    """Return the size, the metadata and a digest of the trajectories, which identify them in a config."""
    digest = hashlib.sha256()
    for array in (eps.obs, eps.act, eps.rew, eps.terminated, eps.start):
        digest.update(np.ascontiguousarray(array).data)
    meta = {k: v for k, v in asdict(eps.meta).items() if k not in DESCRIPTIVE}
    return {"trajectories": len(eps), "steps": eps.n_steps, **meta, "digest": digest.hexdigest()[:16]}


def default_folder(eps: Episodes, plan: Plan, config: dict) -> Path:
    """Return runs/NAME-AGENT-HASH, where the hash is of the config."""
    revisions = revisions_of(plan.agent, plan.idm)
    if any(revisions):  # a new revision gets a new folder
        config = {**config, "revisions": revisions.as_json()}
    text = json.dumps(config, sort_keys=True)
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(eps.meta.source).stem).strip("-")[-40:] or "run"
    agent = re.sub(r"[^A-Za-z0-9._-]+", "-", plan.names["agent"])  # an agent of another package may be module:Class
    return Path("runs") / f"{name}-{agent}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _call(dataset: object, choices: dict) -> str:
    """Return the call of `run` as Python code."""
    argument = repr(str(dataset)) if isinstance(dataset, (str, Path)) else "episodes"
    return f"ssorl.run({', '.join([argument, *(f'{k}={v!r}' for k, v in choices.items())])})"
