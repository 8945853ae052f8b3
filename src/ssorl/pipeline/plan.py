"""What a run is to do: every choice by name, checked before the long part begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ssorl.agents import AGENTS, agent_class
from ssorl.agents import resolve as resolve_agent
from ssorl.agents.base import Agent
from ssorl.data import split as splits
from ssorl.data.episodes import Episodes
from ssorl.data.split import Split
from ssorl.evaluation import EPISODES
from ssorl.idm import idm_name, settings_of
from ssorl.idm.base import IdmSpec
from ssorl.idm.fill import MODEL_PRESETS, resolve
from ssorl.idm.label import Labeller, check_fit, counted_as_true
from ssorl.training.engine import check_counts
from ssorl.utils.errors import DataError, SsorlError
from ssorl.utils.extras import MissingExtraError
from ssorl.utils.identity import identifying_fields
from ssorl.utils.validation import is_seed, number, whole

VARIANTS = ("baseline", "ss", "oracle")
SETUPS: dict[str, Callable[..., Split]] = {"coupled": splits.coupled, "decoupled": splits.decoupled}
DEFAULT_IDM = "robust"
MOST_SEEDS = 10_000
LOOKS = {"quick": 5, "paper": 10}  # times that a training is looked at, by preset


class SplitKey(NamedTuple):
    """One split of the data: the labelled come from the bottom `quality` % (None: not asked), drawn by `seed`."""

    quality: float | None
    seed: int


class TrainingKey(NamedTuple):
    """One agent to train. The oracle is the same whatever the quality of the labelled data: None."""

    variant: str
    quality: float | None
    seed: int

    @property
    def name(self) -> str:
        """As checkpoints and metrics call it."""
        return f"{self.variant}{'' if self.quality is None else f'-q{self.quality:g}'}-{self.seed}"

    @property
    def told(self) -> str:
        """As a sentence calls it."""
        return f"{self.variant}{'' if self.quality is None else f' at quality {self.quality:g}'}, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """All that decides a result besides the trajectories. A seed decides the split, the IDM, the agent, the batches."""

    names: dict[str, str]  # of agent, idm and preset, as they were asked for
    agent: Agent
    idm: IdmSpec | Labeller | None  # None: the agent learns from steps without actions by itself
    setup: str | None  # which split; None: the data lacks actions already, and nobody knows them
    recipe: dict[str, Any]  # its parameters, without quality and seed
    qualities: tuple[float | None, ...]
    seeds: tuple[int, ...]
    variants: tuple[str, ...]
    certain: float | None  # share of the proxies to learn from, the surest first; None: all
    env: str | None  # where policies are played; None: their values are estimated from the data
    episodes: int  # played by each policy at the end
    policy: Literal["average", "last"]  # which weights are evaluated and kept
    looks: int  # times that a training is looked at
    notes: tuple[str, ...] = ()  # what the user should know before it begins

    @property
    def cells(self) -> list[SplitKey]:
        """Every split."""
        return [SplitKey(quality, seed) for quality in self.qualities for seed in self.seeds]

    def job(self, variant: str, cell: SplitKey) -> TrainingKey:
        """Whose training serves as this variant in this cell."""
        return TrainingKey(variant, None if variant == "oracle" else cell.quality, cell.seed)

    @property
    def jobs(self) -> list[TrainingKey]:
        """Every training."""
        return list(dict.fromkeys(self.job(variant, cell) for variant in self.variants for cell in self.cells))

    @property
    def every(self) -> int:
        """Updates between two looks: whole periods of the agent."""
        period = self.agent.period
        return max(period, -(-self.agent.updates // (self.looks * period)) * period)

    @property
    def looks_at(self) -> list[int]:
        """The updates after which trainings are looked at."""
        return [*range(self.every, self.agent.updates, self.every), self.agent.updates]


def make_plan(
    eps: Episodes,
    agent: str | Agent = "td3bc",
    idm: str | IdmSpec | Labeller | None = None,
    preset: str = "quick",
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
    settings: dict[str, Any] | None = None,
    **recipe: Any,
) -> Plan:
    """The plan for these trajectories; `settings` are the agent's, `recipe` the split's (`fraction`, …).

    What is None has its default; one that is given where it would mean nothing is refused.
    """
    known = bool(eps.labelled.all()) or setup is not None or quality is not None or bool(recipe)
    seeds, qualities, recipe = _seeds(seeds), _qualities(quality), _recipe(recipe)
    notes: list[str] = []
    if not known:
        setup, qualities = None, (None,)
    elif (setup or "coupled") == "coupled":
        setup, qualities = "coupled", tuple(50.0 if q is None else q for q in qualities)
    elif setup != "decoupled":
        raise SsorlError(
            f"the {setup} setup hides no action; write its trajectories to a file with `ssorl data split … --setup "
            f"{setup} --data FILE` and run on that"
        )
    elif qualities != (None,):
        raise SsorlError("--quality means nothing in the decoupled setup, which is drawn by thirds; leave it out")
    recipe = {**recipe_of(setup), **recipe}
    if not eps.labelled.any():
        raise DataError(
            f"{eps.meta.source}: no step has an action, so nothing can be learnt; add trajectories with --labelled"
        )
    where = _environment(env, eps, notes)
    if episodes is not None and where is None:
        why = f" ({notes[-1].partition(';')[0]})" if notes else ""
        raise SsorlError(
            f"--episodes means nothing where there is no environment to play in{why}; leave it out, or name one with "
            "--env"
        )
    notes += counted_as_true(eps.meta)
    player = _agent(agent, preset, settings or {}, where, eps)
    name = agent if isinstance(agent, str) and ":" not in agent else AGENTS.name_of(type(player))
    variants = _variants(variants, known, notes)
    labelling = {"idm": idm, "certain": certain, "idm-updates": idm_updates, "idm-members": idm_members}
    _check_labelling([flag for flag, value in labelling.items() if value is not None], name, player, variants)
    if certain is not None and not (number(certain) and 0 < certain <= 1):
        raise SsorlError(f"--certain is {certain!r}; it is the share of the proxies to keep, above 0 and at most 1")
    idm = idm or DEFAULT_IDM
    plan = Plan(
        {"agent": name, "idm": idm_name(idm), "preset": preset},
        player,
        _idm(idm, preset, idm_updates, idm_members) if player.view.needs_actions else None,
        setup,
        recipe,
        qualities,
        seeds,
        variants,
        None if certain is None else float(certain),
        where,
        EPISODES if episodes is None else _count("--episodes", episodes),
        policy,
        LOOKS.get(preset, 5),
    )
    _check(plan)
    for cell in plan.cells:  # whatever cannot be drawn is said now
        drawn = draw(plan, eps, cell)
        if drawn is not None and not len(drawn.unlabelled):
            raise DataError("the split keeps every action, so there is nothing to label; lower --fraction")
    if isinstance(plan.idm, Labeller):
        check_fit(plan.idm, eps)
    if where is None:
        notes.append("there is no environment to play in: policies are judged by fitted-Q evaluation, an estimate")
    return replace(plan, notes=tuple(notes))


def recipe_of(setup: str | None) -> dict[str, Any]:
    """What a setup is drawn by where nobody asks for anything else, without quality and seed."""
    if setup not in SETUPS:
        return {}
    named = signature(SETUPS[setup]).parameters.items()
    return {name: p.default for name, p in named if name not in ("eps", "quality", "seed")}


def draw(plan: Plan, eps: Episodes, cell: SplitKey) -> Split | None:
    """The split of a cell; None where the data lacks actions already."""
    if plan.setup is None:
        return None
    how = SETUPS[plan.setup]
    odd = [name for name in plan.recipe if name not in signature(how).parameters]
    if odd:
        told = [f"{name} third" if name in ("labelled", "unlabelled") else name for name in odd]
        raise SsorlError(f"the {plan.setup} setup has no {', '.join(told)}; leave it out or name another --setup")
    quality = {} if cell.quality is None else {"quality": cell.quality}
    return how(eps, **plan.recipe, **quality, seed=cell.seed)


def as_config(plan: Plan) -> dict:
    """The plan as plain values, for people and for telling one run from another."""
    model = plan.idm
    if isinstance(model, Labeller):
        told = {"name": plan.names["idm"], "digest": model.idm.digest()[:16], **settings_of(model.idm.config)}
    else:
        told = {"name": plan.names["idm"], **settings_of(model)} if model is not None else None
    return {
        "agent": {"name": plan.names["agent"], **identifying_fields(plan.agent)},
        "idm": told,
        "preset": plan.names["preset"],
        "split": {"setup": plan.setup, **plan.recipe, "quality": list(plan.qualities)},
        "seeds": list(plan.seeds),
        "variants": list(plan.variants),
        "certain": plan.certain,
        "env": plan.env,
        "episodes": plan.episodes,
        "policy": plan.policy,
        "looks": plan.looks,
    }


def _seeds(asked: Any) -> tuple[int, ...]:
    """Python's numbers, whoever's they are: how many, or which."""
    if isinstance(asked, Integral) and not isinstance(asked, bool):
        if not 1 <= int(asked) <= MOST_SEEDS:
            raise SsorlError(f"--seeds is {asked}; a single number is how many, from 1 to {MOST_SEEDS} counted from 0")
        return tuple(range(int(asked)))
    some = tuple(asked) if isinstance(asked, Iterable) else (asked,)
    if not some or len(set(some)) < len(some) or not all(map(is_seed, some)):
        raise SsorlError(f"--seeds is {list(some)}; give different whole numbers from 0 up and below 2**32")
    return tuple(map(int, some))


def _qualities(asked: Any) -> tuple[float | None, ...]:
    some = tuple(asked) if isinstance(asked, Iterable) and not isinstance(asked, str) else (asked,)
    if not some or not all(q is None or number(q) for q in some):
        raise SsorlError(f"--quality is {asked!r}; give one percentage or several")
    return tuple(None if q is None else float(q) for q in some)


def _recipe(asked: dict[str, Any]) -> dict[str, Any]:
    """One spelling of equal numbers, so that the same run has the same folder."""
    if odd := [k for k, v in asked.items() if k.endswith("fraction") and not number(v)]:
        raise SsorlError(f"--{odd[0].replace('_', '-')} is {asked[odd[0]]!r}; give a number")
    return {k: float(v) if number(v) else v for k, v in asked.items()}


def _count(flag: str, value: Any) -> int:
    if not whole(value, 1):
        raise SsorlError(f"{flag} is {value}; give a whole number from 1 up")
    return int(value)


def _check(plan: Plan) -> None:
    if len({q if q is None else f"{q:g}" for q in plan.qualities}) < len(plan.qualities):  # as their folders are called
        raise SsorlError(f"--quality names one value twice, in six digits: {list(plan.qualities)}; name each once")
    check_counts(plan.agent, plan.every)
    if not plan.variants:
        raise SsorlError(f"--variants names none; choose among {', '.join(VARIANTS)}")
    if plan.policy not in ("average", "last"):
        raise SsorlError(f"--policy is {plan.policy}; choose average or last")


def _check_labelling(given: list[str], agent: str, player: Agent, variants: Sequence[str]) -> None:
    """Refuse what was asked of the labels where none are made."""
    if given and not player.view.needs_actions:
        raise SsorlError(f"--{given[0]} means nothing to {agent}, which needs no proxy actions; leave it out")
    if given and "ss" not in variants:
        raise SsorlError(f"--{given[0]} means nothing without the variant ss, which alone has proxies; leave it out")


def _variants(asked: Sequence[str] | None, known: bool, notes: list[str]) -> tuple[str, ...]:
    odd = [v for v in asked or () if v not in VARIANTS]
    if odd:
        raise SsorlError(f"--variants names {odd[0]}; choose among {', '.join(VARIANTS)}")
    if not known and asked is None:
        notes.append("the hidden actions are not known, so there is no oracle to compare with")
        return VARIANTS[:2]
    if not known and "oracle" in (asked or ()):
        raise DataError("--variants asks for the oracle, but nobody knows the missing actions; leave it out")
    return tuple(v for v in VARIANTS if asked is None or v in asked)


def _idm(idm: str | IdmSpec | Labeller, preset: str, updates: int | None, members: int | None) -> IdmSpec | Labeller:
    from ssorl.idm import IDMS

    given = {"--idm-updates": updates, "--idm-members": members}
    counts = {flag: None if value is None else _count(flag, value) for flag, value in given.items()}
    odd = [flag for flag, value in counts.items() if value is not None]
    saved = isinstance(idm, str) and not IDMS.known(idm) and Path(idm).exists()
    if odd and (saved or isinstance(idm, Labeller)):
        raise SsorlError(f"{idm_name(idm)}: is used as it was fitted, so {odd[0]} means nothing; leave it out")
    # A saved model is used as it is, so the preset is not for it; nor is one that the agent alone has.
    return resolve(idm, preset if IDMS.known(idm) and preset in MODEL_PRESETS else None, *counts.values())


def _agent(agent: str | Agent, preset: str, settings: dict[str, Any], env: str | None, eps: Episodes) -> Agent:
    """Return the agent, with the settings published for its environment if it has some."""
    family = (env or "").partition("-")[0]
    if preset == "paper" and family in agent_class(agent).PRESETS:
        preset = family
    return suited(resolve_agent(agent, preset, settings), env, eps)


def suited(agent: Agent, env: str | None, eps: Episodes) -> Agent:
    """The agent as it wants to be for a task; one may want to know the return to aim for."""
    fitted_to = getattr(agent, "fitted_to", None)
    return agent if fitted_to is None else fitted_to(env, eps)


def _environment(asked: Any, eps: Episodes, notes: list[str]) -> str | None:
    """Where to play: what was asked for, else what the data says, if that exists here and fits."""
    from ssorl import envs
    from ssorl.envs.registry import horizon

    asked = None if asked == "" else asked
    name = eps.meta.env if asked is None else envs.env_name(asked)
    if name is None or name == "none":
        return None
    envs.require_trusted(name, eps.meta.source)
    try:
        horizon(name)  # says in a sentence what is wrong with a name
    except SsorlError as err:
        if asked is not None:
            raise
        reason = f" ({err})" if isinstance(err, MissingExtraError) else ", which is not here; name another with --env"
        notes.append(f"the data names the environment {name}{reason}")
        return None
    one = envs.make(name, 1)
    got, due = (eps.n_obs, eps.n_act), (one.n_obs, one.n_act)
    if got != due:
        sizes = "states of {} and actions of {} numbers"
        if asked is not None:
            raise SsorlError(f"--env {name}: has {sizes.format(*due)}, the data {sizes.format(*got)}; name another")
        notes.append(f"{name}, which the data names, has {sizes.format(*due)} where the data has {sizes.format(*got)}")
        return None
    return name
