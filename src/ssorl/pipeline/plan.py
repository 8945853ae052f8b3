"""The plan of a run: every choice by name, checked before the long computations start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Literal, NamedTuple

from ssorl.agents import AGENTS
from ssorl.agents.base import Agent, require_rewards
from ssorl.data import split as splits
from ssorl.data.episodes import Episodes
from ssorl.data.meta import WARNING
from ssorl.data.split import Split, Third
from ssorl.evaluation import EPISODES
from ssorl.idm import idm_name, settings_of
from ssorl.idm.base import IdmSpec
from ssorl.idm.label import Labeller, check_fit, counted_as_true
from ssorl.idm.outlook import Doubtful
from ssorl.idm.worth import LabelUse, makes_forecast, no_forecast
from ssorl.pipeline import arguments
from ssorl.training.checks import check_counts
from ssorl.utils.errors import DataError, SsorlError
from ssorl.utils.identity import identifying_fields
from ssorl.utils.machine import resolve_preset

SETUPS: dict[str, Callable[..., Split]] = {"coupled": splits.coupled, "decoupled": splits.decoupled}
DEFAULT_IDM = "blend"
SNAPSHOTS = {"quick": 5, "paper": 10}  # points of a learning curve, by preset


class SplitKey(NamedTuple):
    """Identity of one split: labelled trajectories from the bottom `quality` % by return, drawn with `seed`."""

    quality: float | None  # None: the setup has no quality
    seed: int


class TrainingKey(NamedTuple):
    """Identity of one training."""

    variant: str
    quality: float | None  # None for the oracle, which is the same for every quality
    seed: int

    @property
    def name(self) -> str:
        """Return the name in checkpoints and metrics, such as "ss-q50-0"."""
        return f"{self.variant}{'' if self.quality is None else f'-q{self.quality:g}'}-{self.seed}"

    @property
    def description(self) -> str:
        """Return the name in messages, such as "ss at quality 50, seed 0"."""
        return f"{self.variant}{'' if self.quality is None else f' at quality {self.quality:g}'}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What trainings and their evaluation need: the agent, the environment and the learning curve."""

    agent: Agent
    env: str | None  # environment of the evaluation; None: values are estimated by fitted-Q evaluation
    episodes: int  # evaluation episodes of each policy
    policy: Literal["average", "last"]  # which weights are evaluated and saved
    looks: int  # snapshots of a training, the points of its learning curve

    @property
    def every(self) -> int:
        """Return the number of updates between two snapshots, a multiple of the agent's period."""
        period = self.agent.period
        return max(period, -(-self.agent.updates // (self.looks * period)) * period)

    @property
    def snapshot_updates(self) -> list[int]:
        """Return the numbers of updates after which snapshots are taken; the last one is the end of the training."""
        return [*range(self.every, self.agent.updates, self.every), self.agent.updates]


@dataclass(frozen=True, kw_only=True)
class Plan(TrainingPlan):
    """What a run needs: all choices that, with the trajectories, determine its result.

    A seed determines the split, the inverse dynamics model, the initial weights and the batches.
    """

    names: dict[str, str]  # the names of agent, idm and preset that the user gave
    idm: IdmSpec | Labeller | None  # None: the agent trains on steps without actions
    setup: str | None  # name of the split; None: the data lacks actions already, and they are not known
    recipe: dict[str, Any]  # parameters of the split, without quality and seed
    qualities: tuple[float | None, ...]
    seeds: tuple[int, ...]
    variants: tuple[str, ...]
    certain: float | None  # share of proxy actions to train on, lowest predicted std first; None: all
    use: LabelUse = LabelUse()  # how SS uses proxy actions
    notes: tuple[str, ...] = ()  # for the user, before the run starts

    @property
    def split_keys(self) -> list[SplitKey]:
        """Return the keys of all splits."""
        return [SplitKey(quality, seed) for quality in self.qualities for seed in self.seeds]

    def training_key(self, variant: str, key: SplitKey) -> TrainingKey:
        """Return the key of the training of a variant on a split."""
        return TrainingKey(variant, None if variant == "oracle" else key.quality, key.seed)

    @property
    def training_keys(self) -> list[TrainingKey]:
        """Return the keys of all trainings, each once."""
        return list(dict.fromkeys(self.training_key(v, key) for v in self.variants for key in self.split_keys))


def make_plan(
    eps: Episodes,
    agent: str | Agent = "td3bc",
    idm: str | IdmSpec | Labeller | None = None,
    preset: str = "auto",
    setup: str | None = None,
    quality: float | Sequence[float] | None = None,
    seeds: int | Sequence[int] = 1,
    variants: Sequence[str] | None = None,
    certain: float | None = None,
    env: Any = None,
    episodes: int | None = None,
    policy: Literal["average", "last"] = "average",
    idm_updates: int | None = None,
    idm_members: int | None = None,
    past: int | None = None,
    future: int | None = None,
    soft_limits: bool | None = None,
    settings: dict[str, Any] | None = None,
    fraction: float | None = None,
    labelled: Third | None = None,
    labelled_fraction: float | None = None,
    unlabelled: Third | None = None,
    unlabelled_fraction: float | None = None,
    when_doubtful: Doubtful = "keep",
    label_weights: bool = False,
    true_share: float | None = None,
    label_samples: bool = False,
    **recipe: Any,
) -> Plan:
    """Return a checked plan. Arguments left as None take defaults; an argument that has no effect raises SsorlError.

    Args:
        eps: the trajectories.
        agent: name of the agent, such as "td3bc" or "module:Class"; or a class or an instance.
        idm: name of the inverse dynamics model ("blend"), or the folder of a saved one; or a configuration or a fitted
            model.
        preset: settings of agent and model to start from: "quick", "paper", or "auto", which is "paper" with an
            accelerator and "quick" without one.
        setup: how the split is drawn: "coupled" or "decoupled". Only data that has all actions is split.
        quality: coupled: the labelled trajectories come from the bottom `quality` % by return (50); or several values,
            each of which is a separate result.
        seeds: number of seeds, counted from 0; or the seeds themselves.
        variants: which of "baseline", "ss" and "oracle" to train; by default, all that are possible.
        certain: train on this share of the proxy actions only, lowest predicted std first.
        env: environment of the evaluation: a name or a factory; "none" for fitted-Q evaluation; by default, the
            environment that the data names.
        episodes: evaluation episodes of each policy (30).
        policy: evaluate and save the exponential average of the weights ("average") or the last weights ("last").
        idm_updates: updates of the inverse dynamics model, in place of the preset's.
        idm_members: networks in its ensemble, in place of the preset's.
        past: states before s_t that the model sees; by default, the model's own number, which may depend on the data.
        future: states after s_{t+1} that it sees; likewise.
        soft_limits: keep proxy actions off the limits of their range; by default, the blend does so.
        settings: settings of the agent to change, such as `{"updates": 1000}`.
        fraction: coupled: share of the trajectories that keep their actions (0.1).
        labelled: decoupled: third by return from which the labelled trajectories come ("low").
        labelled_fraction: decoupled: number of labelled trajectories, as a share of the dataset (0.1).
        unlabelled: decoupled: third by return from which the unlabelled trajectories come ("high").
        unlabelled_fraction: decoupled: number of unlabelled trajectories, as a share of the dataset (0.1).
        when_doubtful: use of proxy actions of trajectories whose forecast error (MSE) is above 0.05: "keep" them,
            "weight" them less, the less the larger the error, or "drop" them. Needs a model that forecasts its error.
        label_weights: weigh each proxy action by its predicted variance v, with 0.05 / (0.05 + v).
        true_share: share of true actions in the batches of SS; by default, their share of the data.
        label_samples: draw each proxy action once from its normal distribution, in place of its mean.
        **recipe: no other parameters exist; one that is given raises SsorlError.

    Raises:
        SsorlError: an argument is invalid, or has no effect together with the others.
        DataError: the trajectories do not allow this plan.
    """
    split_options = {
        "fraction": fraction,
        "labelled": labelled,
        "labelled_fraction": labelled_fraction,
        "unlabelled": unlabelled,
        "unlabelled_fraction": unlabelled_fraction,
    }
    recipe |= {name: value for name, value in split_options.items() if value is not None}
    truth_known = bool(eps.labelled.all()) or setup is not None or quality is not None or bool(recipe)
    preset = resolve_preset(preset)
    seeds, recipe = arguments.check_seeds(seeds), arguments.check_recipe(recipe)
    qualities = arguments.check_qualities(quality)
    notes: list[str] = []
    if truth_known:
        setup, qualities = _check_setup(setup, qualities)
    else:
        setup, qualities = None, (None,)
    recipe = {**default_recipe(setup), **recipe}
    if not eps.labelled.any():
        raise DataError(
            f"{eps.meta.source}: no step has an action, so no model can be fitted; add trajectories with actions by "
            "--labelled FILE"
        )
    env_name = arguments.find_environment(env, eps, notes)
    if episodes is not None and env_name is None:
        reason = f" ({notes[-1].partition(';')[0]})" if notes else ""
        raise SsorlError(
            f"--episodes has no effect without an environment{reason}; leave it out, or name an environment with --env"
        )
    notes += counted_as_true(eps.meta) + [note for note in eps.meta.notes if note.startswith(WARNING)]
    learner = arguments.make_agent(agent, preset, settings or {}, env_name, eps)
    require_rewards(learner, eps, env_name is None)
    name = agent if isinstance(agent, str) and ":" not in agent else AGENTS.name_of(type(learner))
    variants = arguments.check_variants(variants, truth_known, notes)
    labelling = {"--idm": idm, "--certain": certain, "--idm-updates": idm_updates, "--idm-members": idm_members}
    shape = {"past": past, "future": future, "soft_limits": soft_limits}
    labelling |= {f"--{key.replace('_', '-')}": value for key, value in shape.items()}
    use = LabelUse(when_doubtful, label_weights, true_share, label_samples)
    arguments.check_labelling(labelling | use.given, name, learner, variants)
    certain = arguments.check_certain(certain)
    idm = idm or DEFAULT_IDM
    model = arguments.resolve_idm(idm, preset, idm_updates, idm_members, **shape)
    model = model if learner.view.needs_actions else None
    plan = Plan(
        agent=learner,
        env=env_name,
        episodes=EPISODES if episodes is None else arguments.check_count("--episodes", episodes),
        policy=policy,
        looks=SNAPSHOTS.get(preset, 5),
        names={"agent": name, "idm": idm_name(idm), "preset": preset},
        idm=arguments.resolve_idm(idm, preset, idm_updates, idm_members, **shape)
        if learner.view.needs_actions
        else None,
        setup=setup,
        recipe=recipe,
        qualities=qualities,
        seeds=seeds,
        variants=variants,
        certain=certain,
        use=use,
    )
    _check(plan, eps)
    if env_name is None:
        notes.append("there is no environment, so the value of each policy is estimated by fitted-Q evaluation")
    return replace(plan, notes=tuple(notes))


def _check_setup(setup: str | None, qualities: tuple[float | None, ...]) -> tuple[str | None, tuple[float | None, ...]]:
    """Return the setup and its qualities with defaults filled in."""
    if (setup or "coupled") == "coupled":
        return "coupled", tuple(50.0 if q is None else q for q in qualities)
    if setup != "decoupled":
        raise SsorlError(
            f"the {setup} setup hides no actions; write its trajectories to a file with `ssorl data split … --setup "
            f"{setup} --data FILE` and run on that file"
        )
    if qualities != (None,):
        raise SsorlError("--quality has no effect in the decoupled setup, which is drawn by thirds; leave it out")
    return setup, qualities


def _check(plan: Plan, eps: Episodes) -> None:
    """Raise on a plan that would fail later, for example because a split cannot be drawn."""
    folders = {quality if quality is None else f"{quality:g}" for quality in plan.qualities}
    if len(folders) < len(plan.qualities):
        raise SsorlError(f"--quality names one value twice, in six digits: {list(plan.qualities)}; name each once")
    check_counts(plan.agent, plan.every)
    if plan.policy not in ("average", "last"):
        raise SsorlError(f"--policy is {plan.policy}; choose average or last")
    for key in plan.split_keys:
        split = draw(plan, eps, key)
        if split is not None and not len(split.unlabelled):
            raise DataError("the split hides no actions, so there is nothing to label; lower --fraction")
    if isinstance(plan.idm, Labeller):
        check_fit(plan.idm, eps)
    if plan.use.when_doubtful != "keep" and not makes_forecast(plan.idm):
        raise SsorlError(no_forecast(plan.use.when_doubtful, plan.names["idm"]))


def default_recipe(setup: str | None) -> dict[str, Any]:
    """Return the default parameters of a setup, without quality and seed; empty if there is no such setup."""
    if setup not in SETUPS:
        return {}
    parameters = signature(SETUPS[setup]).parameters.items()
    return {name: p.default for name, p in parameters if name not in ("eps", "quality", "seed")}


def draw(plan: Plan, eps: Episodes, key: SplitKey) -> Split | None:
    """Draw the split of a key; return None if the data lacks actions already.

    Raises:
        SsorlError: a parameter belongs to another setup, or the split cannot be drawn from these trajectories.
    """
    if plan.setup is None:
        return None
    setup = SETUPS[plan.setup]
    unknown = [name for name in plan.recipe if name not in signature(setup).parameters]
    if unknown:
        names = [f"{name} third" if name in ("labelled", "unlabelled") else name for name in unknown]
        raise SsorlError(f"the {plan.setup} setup has no {', '.join(names)}; leave it out or name another --setup")
    quality = {} if key.quality is None else {"quality": key.quality}
    return setup(eps, **plan.recipe, **quality, seed=key.seed)


def as_config(plan: Plan) -> dict:
    """Return the plan as JSON values; run folders are named by their hash and compared by them."""
    model = plan.idm
    if isinstance(model, Labeller):
        idm = {"name": plan.names["idm"], "digest": model.idm.digest()[:16], **settings_of(model.idm.config)}
    else:
        idm = {"name": plan.names["idm"], **settings_of(model)} if model is not None else None
    return {
        "agent": {"name": plan.names["agent"], **identifying_fields(plan.agent)},
        "idm": idm,
        "preset": plan.names["preset"],
        "split": {"setup": plan.setup, **plan.recipe, "quality": list(plan.qualities)},
        "seeds": list(plan.seeds),
        "variants": list(plan.variants),
        "certain": plan.certain,
        "env": plan.env,
        "episodes": plan.episodes,
        "policy": plan.policy,
        "looks": plan.looks,
        **identifying_fields(plan.use),  # nothing at the defaults
    }
