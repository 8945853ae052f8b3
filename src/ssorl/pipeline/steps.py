"""The steps of Algorithm 1 one by one, for a notebook: `ssorl.split, fit_idm, label, train, evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from ssorl.agents import make
from ssorl.data import split as splits
from ssorl.data.episodes import Episodes
from ssorl.envs import TrustedName, require_trusted
from ssorl.evaluation import EPISODES
from ssorl.evaluation.policy import Policy, TrainedPolicy
from ssorl.evaluation.rollout import Scores
from ssorl.evaluation.rollout import evaluate as play
from ssorl.idm import IDMS
from ssorl.idm.fill import LabelledData, fill, resolve
from ssorl.idm.fit import fit
from ssorl.idm.label import Labeller, labeller
from ssorl.pipeline.algorithm1 import SplitData, surest, task
from ssorl.pipeline.plan import suited
from ssorl.training.engine import TrainingRun
from ssorl.training.engine import train as train_one
from ssorl.utils.errors import SsorlError, nearest
from ssorl.utils.validation import check_seed


def split(eps: Episodes, fraction: float = 0.1, quality: float = 50, seed: int = 0) -> SplitData:
    """Hide all actions but those of `fraction` of the trajectories, drawn from the bottom `quality` % by return.

    The result's `data` is what learning may see; `whole` has the truth.
    """
    check_seed(seed)
    return task(eps, splits.coupled(eps, fraction, quality, seed))


def fit_idm(
    data: Episodes | SplitData,
    idm: str = "robust",
    preset: str | None = "quick",
    seed: int = 0,
    updates: int | None = None,
    members: int | None = None,
) -> Labeller:
    """An inverse dynamics model fitted to the steps that have an action."""
    check_seed(seed)
    # A saved model is used as it is, so the preset is not for it.
    model = resolve(idm, preset if idm in IDMS else None, updates, members)
    eps = data.data if isinstance(data, SplitData) else data
    return model if isinstance(model, Labeller) else labeller(fit(eps, model, seed), eps)


def label(data: Episodes | SplitData, model: Labeller, certain: float | None = None) -> LabelledData:
    """The same trajectories with proxies for the missing actions, `certain` being the share of them to use.

    The result's `eps` is what to train on. Its `report` says how good the proxies are; for a `SplitData`, against the
    truth.
    """
    eps, whole = (data.data, data.whole) if isinstance(data, SplitData) else (data, None)
    done = fill(eps, model, truth=None if whole is None else whole.act)
    return replace(done, eps=surest(done, certain))


def train(
    eps: Episodes,
    agent: str = "td3bc",
    preset: str = "quick",
    seed: int = 0,
    policy: Literal["average", "last"] = "average",
    **settings: Any,
) -> Policy:
    """A policy trained on every step that has an action; `settings` are the agent's, such as `updates`."""
    check_seed(seed)
    if policy not in ("average", "last"):
        raise SsorlError(f"policy is {policy!r}; {nearest(policy, ('average', 'last'))}")
    kind = suited(make(agent, preset, **settings), eps.meta.env, eps)
    done = train_one(kind, TrainingRun(eps, seed), every=kind.updates)
    params = done.average if policy == "average" else done.policy
    return Policy(TrainedPolicy(kind, params, done.scaler, eps.meta.low, eps.meta.high), eps.meta.env, eps.meta.source)


def evaluate(
    policies: Policy | Sequence[Policy], env: str | None = None, episodes: int = EPISODES, seed: int = 0
) -> Scores:
    """What one or several policies earn in an environment, by default the one their data came from."""
    some = [policies] if isinstance(policies, Policy) else list(policies)
    if env:
        name = TrustedName(env)
    else:
        home = next((p for p in some if p.env), None)
        if home is None or home.env is None:
            raise SsorlError(
                "no environment is known for these policies; name one, as in evaluate(policy, env='hopper')"
            )
        name = require_trusted(home.env, home.source)
    return play([p.player for p in some], name, episodes, seed)
