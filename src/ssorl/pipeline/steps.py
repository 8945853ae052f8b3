"""The steps of Algorithm 1 one by one, for notebooks: `ssorl.split, fit_idm, label, train, evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ssorl.agents import resolve as resolve_agent
from ssorl.agents.base import Agent
from ssorl.data import split as splits
from ssorl.data.episodes import Episodes
from ssorl.envs import env_name, horizon, require_trusted
from ssorl.envs.models import known_or_none
from ssorl.evaluation import EPISODES
from ssorl.evaluation.policy import Policy, TrainedPolicy
from ssorl.evaluation.rollout import Scores
from ssorl.evaluation.rollout import evaluate as play
from ssorl.idm import IDMS
from ssorl.idm.base import IdmSpec
from ssorl.idm.fill import LabelledData, fill, resolve
from ssorl.idm.label import Labeller, labeller
from ssorl.idm.worth import check_drop, drop_doubtful
from ssorl.pipeline.algorithm1 import SplitData, hide_actions, keep_certain
from ssorl.pipeline.arguments import fit_to_task
from ssorl.training.engine import TrainingRun
from ssorl.training.engine import train as train_one
from ssorl.training.weights import weighted_run
from ssorl.utils.errors import SsorlError, nearest
from ssorl.utils.machine import resolve_preset
from ssorl.utils.progress import Progress
from ssorl.utils.validation import check_seed


def split(eps: Episodes, fraction: float = 0.1, quality: float = 50, seed: int = 0) -> SplitData:
    """Hide all actions except those of a few labelled trajectories (the paper's coupled setup).

    Args:
        eps: the trajectories, with all actions.
        fraction: share of the trajectories that keep their actions.
        quality: the labelled trajectories are drawn from the bottom `quality` % by return.
        seed: seed of the draw.

    Returns:
        `data`, the trajectories with NaN for each hidden action; `whole`, the same with the true actions; `split`.

    Raises:
        DataError: an action is missing already, or there are too few trajectories.
    """
    check_seed(seed)
    return hide_actions(eps, splits.coupled(eps, fraction, quality, seed))


def fit_idm(
    data: Episodes | SplitData,
    idm: str | IdmSpec | Labeller = "blend",
    preset: str | None = "auto",
    seed: int = 0,
    updates: int | None = None,
    members: int | None = None,
    *,
    quiet: bool = False,
) -> Labeller:
    """Fit an inverse dynamics model to the steps that have an action.

    Args:
        data: the trajectories.
        idm: name of the model, such as "blend" or "module:NAME", or the folder of a saved one, which is loaded and not
            fitted; or a configuration.
        preset: "quick" takes the smaller configuration of that name, if there is one; "auto" does so without an
            accelerator.
        seed: seed of the fit.
        updates: in place of the configuration's.
        members: networks in the ensemble, in place of the configuration's.
        quiet: show no progress.

    Raises:
        SsorlError: there is no such model.
        DataError: too few steps have an action.
    """
    check_seed(seed)
    # A saved model is used as it is, so the preset has no effect on it.
    model = resolve(idm, preset if IDMS.known(idm) else None, updates, members)
    eps = data.data if isinstance(data, SplitData) else data
    if isinstance(model, Labeller):
        return model
    with Progress({"fitting": (model.work, "updates")}, quiet=quiet or None) as progress:
        return labeller(model.fit(eps, seed, partial(progress, "fitting")), eps)


def label(
    data: Episodes | SplitData,
    model: Labeller,
    certain: float | None = None,
    *,
    simulator: str | None = None,
    state_map: str | Path | None = None,
    when_doubtful: Literal["keep", "drop"] = "keep",
    quiet: bool = False,
) -> LabelledData:
    """Fill in a proxy action at each step that has none.

    Args:
        data: the trajectories.
        model: the inverse dynamics model.
        certain: use this share of the proxy actions only, lowest predicted std first; by default, all.
        simulator: known dynamics that verify labels: a built-in environment such as "Hopper-v4", or the path of an MJCF
            file. Labels that it verifies are exact; `more` of the result holds `residual` and `verified`.
        state_map: of an MJCF file: the JSON file that says what the numbers of an observation are.
        when_doubtful: "drop" leaves out the proxy actions of trajectories whose forecast error (MSE) is above 0.05.
            Needs a model that forecasts its error, such as "blend".
        quiet: show no progress.

    Returns:
        `eps`, the trajectories to train on; `labels`, the proxy actions with their predicted std; `report`, the quality
        of the proxy actions, measured against the true actions if `data` is a `SplitData`.

    Raises:
        SsorlError: `certain` is out of range, there is no such simulator, or the model makes no forecast.
        DataError: no action is missing, or the model was fitted to data of other sizes.
    """
    check_drop(when_doubtful, model)
    eps, whole = (data.data, data.whole) if isinstance(data, SplitData) else (data, None)
    missing = int((~eps.labelled).sum())
    truth = None if whole is None else whole.act
    known = known_or_none(simulator, state_map)
    tasks = {"labelling": (missing, "steps")} | ({} if known is None else {"inverting": (missing, "steps")})
    with Progress(tasks, quiet=quiet or None) as progress:
        labelled = fill(eps, model, truth=truth, progress=progress)
        if known is not None:
            from ssorl.idm.certify import certify

            labelled = certify(labelled, eps, known, truth=truth, progress=partial(progress, "inverting"))
    if when_doubtful == "drop":
        labelled = drop_doubtful(labelled)
    return replace(labelled, eps=keep_certain(labelled, certain))


def train(
    eps: Episodes,
    agent: str | Agent = "td3bc",
    preset: str = "auto",
    seed: int = 0,
    policy: Literal["average", "last"] = "average",
    *,
    updates: int | None = None,
    batch: int | None = None,
    weights: np.ndarray | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Policy:
    """Train an agent on every step that has an action.

    Args:
        eps: the trajectories.
        agent: name of the agent, such as "td3bc" or "module:Class"; or a class, or an instance with its own settings.
        preset: settings to start from, "quick", "paper", or "auto", which is "paper" with an accelerator and "quick"
            without one; it has no effect on an instance.
        seed: seed of the training.
        policy: return the exponential average of the weights ("average") or the last weights ("last").
        updates: number of updates, in place of the preset's.
        batch: transitions or windows in a batch, in place of the preset's.
        weights: weights [S] of the steps, from 0 up: a step of weight 2 is drawn twice as often as one of weight 1, and
            a step of weight 0 is left out. `ssorl.idm.worth.step_weights` makes some from the worth of proxy actions.
        quiet: show no progress.
        **settings: other settings of the agent to change, such as `alpha=1`; `ssorl.agents.make(name)` shows them.

    Returns:
        The policy, to call or to evaluate.

    Raises:
        SsorlError: an unknown agent, preset or setting, or an invalid value.
        DataError: no step has an action.
    """
    check_seed(seed)
    if policy not in ("average", "last"):
        raise SsorlError(f"policy is {policy!r}; {nearest(policy, ('average', 'last'))}")
    settings |= {name: value for name, value in (("updates", updates), ("batch", batch)) if value is not None}
    learner = fit_to_task(resolve_agent(agent, resolve_preset(preset), settings), eps.meta.env, eps)
    run = TrainingRun(eps, seed)
    if weights is not None:
        run = weighted_run(eps, seed, weights, getattr(learner.view, "length", 1))
    with Progress({"training": (learner.updates, "updates")}, quiet=quiet or None) as progress:
        trained = train_one(learner, run, every=learner.updates, progress=partial(progress, "training"))
    params = trained.average if policy == "average" else trained.policy
    player = TrainedPolicy(learner, params, trained.scaler, eps.meta.low, eps.meta.high)
    return Policy(player, eps.meta.env, eps.meta.source)


def evaluate(
    policies: Policy | Sequence[Policy],
    env: Any = None,
    episodes: int = EPISODES,
    seed: int = 0,
    *,
    quiet: bool = False,
) -> Scores:
    """Play episodes with one or several policies and return their scores.

    Args:
        policies: one policy or a sequence of P policies.
        env: name of the environment, such as "hopper" or "module:Id"; or a function or class that makes one (see
            `ssorl.envs.register_env`), or an environment of Gymnasium; by default, the one that the data names.
        episodes: number of episodes E of each policy.
        seed: seed of the initial states, which are the same for every policy.
        quiet: show no progress.

    Returns:
        Returns, normalised scores and lengths, each [P, E].

    Raises:
        SsorlError: the environment is unknown or does not fit the policies.
    """
    players = [policies] if isinstance(policies, Policy) else list(policies)
    if env is not None:
        name = env_name(env)
    else:
        home = next((p for p in players if p.env), None)
        if home is None or home.env is None:
            raise SsorlError(
                "no environment is known for these policies; name one, as in evaluate(policy, env='hopper')"
            )
        name = require_trusted(home.env, home.source)
    with Progress({"evaluation": (len(players) * episodes * horizon(name), "steps")}, quiet=quiet or None) as progress:
        report = partial(progress, "evaluation")
        return play([p.player for p in players], name, episodes, seed, progress=report)
