"""Scores of policies: of snapshots for learning curves, and of trained policies by rollouts or fitted-Q evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import jax
import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.data.stats import Standardiser
from ssorl.evaluation.policy import TrainedPolicy
from ssorl.evaluation.rollout import evaluate
from ssorl.pipeline.hooks import Listener, Log
from ssorl.pipeline.plan import Plan, SplitKey, TrainingKey, TrainingPlan
from ssorl.training.engine import Snapshot, Trained, TrainingRun
from ssorl.utils.errors import SsorlError
from ssorl.utils.networks import Params

if TYPE_CHECKING:
    from ssorl.pipeline.algorithm1 import SplitData

Result = TypeVar("Result")

START_SEED = 0  # seed of the evaluation's initial states, the same for every policy, seed and quality
CURVE_EPISODES = 5  # episodes for each point of a learning curve; their initial states differ from the evaluation's
FQE_UPDATES = 10_000  # updates of fitted-Q evaluation, used when there is no environment


class EvalResult(NamedTuple):
    """Evaluation of P policies."""

    returns: np.ndarray  # [P, E], return of each episode, or the estimated value of each initial state
    lengths: np.ndarray  # [P, E], steps; empty for estimated values
    starts: np.ndarray  # [E, O], initial observations; empty for estimated values


# Snapshots of trainings -------------------------------------------------------------------------------------


def score_snapshot(plan: TrainingPlan, runs: list[TrainingRun], log: Log, snapshot: Snapshot) -> np.ndarray | None:
    """Evaluate the policies of a snapshot for the learning curve; no choice depends on these scores.

    Args:
        plan: names the environment; without one, only the metrics are logged.
        runs: all trainings.
        log: records the metrics and scores.
        snapshot: the state of several trainings.

    Returns:
        Mean returns [P], or None without an environment.
    """
    if not plan.env:
        return log(snapshot)
    own = [runs[i] for i in snapshot.runs]
    scores = quick_scores(plan, snapshot_policies(plan, own, snapshot.scalers, snapshot_params(plan, snapshot)))
    log(snapshot, score=scores)
    return scores


def snapshot_params(plan: TrainingPlan, snapshot: Snapshot) -> Params:
    """Return the policy weights of a snapshot on the host, with a leading axis of runs."""
    params = snapshot.average if plan.policy == "average" else jax.vmap(plan.agent.policy)(snapshot.state)
    return jax.device_get(params)


def snapshot_policies(
    plan: TrainingPlan, runs: Sequence[TrainingRun], scalers: Sequence[Standardiser], params: Params
) -> list[TrainedPolicy]:
    """Return the policy of each run of a snapshot.

    Args:
        plan: names the agent.
        runs: the trainings of the snapshot.
        scalers: the standardiser of each run.
        params: the weights from `snapshot_params`.
    """
    return [
        TrainedPolicy(
            plan.agent, jax.tree.map(lambda x, i=place: x[i], params), scaler, run.eps.meta.low, run.eps.meta.high
        )
        for place, (run, scaler) in enumerate(zip(runs, scalers, strict=True))
    ]


def quick_scores(
    plan: TrainingPlan, players: Sequence[TrainedPolicy], progress: Callable[[int, str], None] | None = None
) -> np.ndarray:
    """Return each policy's mean return in `CURVE_EPISODES` episodes, [P]; NaN for a policy that has diverged."""
    try:
        return evaluate(players, plan.env or "", CURVE_EPISODES, START_SEED + 1, progress).returns.mean(1)
    except SsorlError:
        if len(players) == 1:
            return np.array([np.nan])
    return np.concatenate([quick_scores(plan, [player], progress) for player in players])


def trained_policy(plan: TrainingPlan, eps: Episodes, trained: Trained) -> TrainedPolicy:
    """Return the policy of a finished training on `eps`, with averaged or last weights as the plan says."""
    params = trained.average if plan.policy == "average" else trained.policy
    return TrainedPolicy(plan.agent, params, trained.scaler, eps.meta.low, eps.meta.high)


# Trained policies --------------------------------------------------------------------------------------------------


def evaluate_by_rollouts(
    plan: TrainingPlan, players: dict[TrainingKey, TrainedPolicy], tasks: object, listener: Listener
) -> EvalResult:
    """Play all episodes of all policies at once; if a policy has diverged, one by one, with NaN for its returns.

    Raises:
        SsorlError: every policy has diverged.
    """
    progress = partial(listener.progress, "evaluating")

    def play(group: list[TrainedPolicy]) -> EvalResult:
        scores = evaluate(group, plan.env or "", plan.episodes, START_SEED, progress)
        return EvalResult(scores.returns, scores.lengths, scores.starts)

    try:
        return play(list(players.values()))
    except SsorlError:
        results = _evaluate_each(players, lambda _, player: play([player]))
    starts = next(result.starts for result in results if result)
    diverged = EvalResult(np.full((1, plan.episodes), np.nan), np.zeros((1, plan.episodes), np.int64), starts)
    returns, lengths, _ = zip(*(result or diverged for result in results), strict=True)
    return EvalResult(np.concatenate(returns), np.concatenate(lengths), starts)


def evaluate_by_fqe(
    plan: Plan, players: dict[TrainingKey, TrainedPolicy], tasks: dict[SplitKey, SplitData], listener: Listener
) -> EvalResult:
    """Estimate the value of each policy by fitted-Q evaluation on all known true actions, without an environment.

    Proxy actions are not used, so that the value of a policy depends neither on the model that labelled for it nor on
    the other policies.

    Raises:
        SsorlError: every policy has diverged.
    """
    from ssorl.evaluation.fqe import fqe

    data = {}
    for key in players:
        task = next(task for split_key, task in tasks.items() if plan.training_key(key.variant, split_key) == key)
        data[key] = task.data if task.whole is None else task.whole
    progress = partial(listener.progress, "evaluating")
    results = _evaluate_each(
        players, lambda key, player: fqe(player, data[key], FQE_UPDATES, key.seed, progress=progress).values
    )
    values = [
        np.full(len(data[key]), np.nan) if result is None else result
        for key, result in zip(players, results, strict=True)
    ]
    empty = np.zeros((len(values), 0))  # there were no steps, and the initial states are those of the data
    return EvalResult(np.stack(values), empty, empty)


def _evaluate_each(
    players: dict[TrainingKey, TrainedPolicy], evaluate_one: Callable[[TrainingKey, TrainedPolicy], Result]
) -> list[Result | None]:
    """Return the evaluation of each policy, None for one that has diverged; raise SsorlError if all have."""
    results: list[Result | None] = []
    errors: dict[TrainingKey, SsorlError] = {}
    for key, player in players.items():
        try:
            results.append(evaluate_one(key, player))
        except SsorlError as err:
            results.append(None)
            errors[key] = err
    if len(errors) == len(results):
        key, err = next(iter(errors.items()))
        others = f", and so did the other {len(errors) - 1}" if len(errors) > 1 else ""
        reason = str(err).partition(";")[0]  # without its cure, which is about the evaluation of one policy
        raise SsorlError(
            f"{key.description}: {reason}{others}; change settings of the agent, such as the learning rate (--set), "
            "and choose another --out"
        ) from err
    return results
