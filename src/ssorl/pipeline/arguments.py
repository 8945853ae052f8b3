"""Checks of the arguments of `make_plan`: each function returns a value in canonical form or raises SsorlError."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from ssorl.agents import agent_class
from ssorl.agents import resolve as resolve_agent
from ssorl.agents.base import Agent
from ssorl.data.episodes import Episodes
from ssorl.idm import IDMS, idm_name
from ssorl.idm.base import IdmSpec
from ssorl.idm.fill import MODEL_PRESETS, resolve
from ssorl.idm.label import Labeller
from ssorl.utils.errors import DataError, SsorlError
from ssorl.utils.extras import MissingExtraError
from ssorl.utils.validation import is_seed, number, whole

VARIANTS = ("baseline", "ss", "oracle")
LARGEST_SEED_COUNT = 10_000


def check_seeds(seeds: Any) -> tuple[int, ...]:
    """Return the seeds as Python integers.

    Args:
        seeds: the number of seeds, which are then counted from 0; or the seeds themselves.
    """
    if isinstance(seeds, Integral) and not isinstance(seeds, bool):
        if not 1 <= int(seeds) <= LARGEST_SEED_COUNT:
            raise SsorlError(
                f"--seeds is {seeds}; give the number of seeds, from 1 to {LARGEST_SEED_COUNT}, or a list of seeds"
            )
        return tuple(range(int(seeds)))
    values = tuple(seeds) if isinstance(seeds, Iterable) else (seeds,)
    if not values or len(set(values)) < len(values) or not all(map(is_seed, values)):
        raise SsorlError(f"--seeds is {list(values)}; give different whole numbers from 0 up and below 2**32")
    return tuple(map(int, values))


def check_qualities(quality: Any) -> tuple[float | None, ...]:
    """Return one or several percentages as a tuple of floats."""
    values = tuple(quality) if isinstance(quality, Iterable) and not isinstance(quality, str) else (quality,)
    if not values or not all(q is None or number(q) for q in values):
        raise SsorlError(f"--quality is {quality!r}; give one percentage or several")
    return tuple(None if q is None else float(q) for q in values)


def check_recipe(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a split with all numbers as floats, so that equal runs have the same folder."""
    for name, value in recipe.items():
        if name.endswith("fraction") and not number(value):
            raise SsorlError(f"--{name.replace('_', '-')} is {value!r}; give a number")
    return {name: float(value) if number(value) else value for name, value in recipe.items()}


def check_count(flag: str, value: Any) -> int:
    """Return a whole number of at least 1 as a Python integer; `flag` names it in messages."""
    if not whole(value, 1):
        raise SsorlError(f"{flag} is {value}; give a whole number from 1 up")
    return int(value)


def check_certain(certain: Any) -> float | None:
    """Return the share of proxy actions to train on, or None."""
    if certain is not None and not (number(certain) and 0 < certain <= 1):
        raise SsorlError(f"--certain is {certain!r}; give the share of proxy actions to keep, above 0 and at most 1")
    return None if certain is None else float(certain)


def check_variants(variants: Sequence[str] | None, truth_known: bool, notes: list[str]) -> tuple[str, ...]:
    """Return the variants to train, in their fixed order.

    Args:
        variants: names; None for all that are possible.
        truth_known: all true actions are known, so an oracle is possible.
        notes: a note is appended if there is no oracle.
    """
    unknown = [variant for variant in variants or () if variant not in VARIANTS]
    if unknown:
        raise SsorlError(f"--variants names {unknown[0]}; choose among {', '.join(VARIANTS)}")
    if not truth_known and variants is None:
        notes.append("there is no oracle, because the true values of the missing actions are not known")
        return VARIANTS[:2]
    if not truth_known and "oracle" in (variants or ()):
        raise DataError("--variants asks for the oracle, but the missing actions are not known; leave it out")
    if variants is not None and not len(variants):
        raise SsorlError(f"--variants is empty; choose among {', '.join(VARIANTS)}")
    return tuple(variant for variant in VARIANTS if variants is None or variant in variants)


def check_labelling(options: dict[str, Any], name: str, agent: Agent, variants: Sequence[str]) -> None:
    """Raise on options of the labels (None: not given) if the plan makes no labels."""
    given = [flag for flag, value in options.items() if value is not None]
    if given and not agent.view.needs_actions:
        raise SsorlError(f"{given[0]} has no effect on {name}, which needs no proxy actions; leave it out")
    if given and "ss" not in variants:
        raise SsorlError(f"{given[0]} has no effect without the variant ss, which uses proxy actions; leave it out")


def resolve_idm(
    idm: str | IdmSpec | Labeller,
    preset: str,
    updates: int | None,
    members: int | None,
    past: int | None = None,
    future: int | None = None,
    soft_limits: bool | None = None,
) -> IdmSpec | Labeller:
    """Return the inverse dynamics model to fit, or the fitted model.

    Args:
        idm: name, folder, configuration or fitted model.
        preset: preset of the run; it has no effect on a saved model.
        updates: in place of the configuration's.
        members: networks in the ensemble, in place of the configuration's.
        past: states before s_t in the window, in place of the configuration's.
        future: states after s_{t+1}, in place of the configuration's.
        soft_limits: whether proxy actions are kept off the limits of their range, in place of the configuration's.
    """
    counts = {"--idm-updates": updates, "--idm-members": members}
    given = {flag: check_count(flag, value) for flag, value in counts.items() if value is not None}
    saved = isinstance(idm, str) and not IDMS.known(idm) and Path(idm).exists()
    if given and (saved or isinstance(idm, Labeller)):
        raise SsorlError(
            f"{idm_name(idm)}: a saved model is used as it was fitted, so {next(iter(given))} has no effect; leave it "
            "out"
        )
    own_preset = preset if IDMS.known(idm) and preset in MODEL_PRESETS else None  # some presets are only an agent's
    sizes = (given.get("--idm-updates"), given.get("--idm-members"))
    return resolve(idm, own_preset, *sizes, None, past, future, soft_limits)


def make_agent(agent: str | Agent, preset: str, settings: dict[str, Any], env: str | None, eps: Episodes) -> Agent:
    """Return the agent for a task; `paper` takes the settings published for the environment, if there are any."""
    family = (env or "").partition("-")[0]
    if preset == "paper" and family in agent_class(agent).PRESETS:
        preset = family
    return fit_to_task(resolve_agent(agent, preset, settings), env, eps)


def fit_to_task(agent: Agent, env: str | None, eps: Episodes) -> Agent:
    """Return the agent with settings that depend on the task, such as the target return of a decision transformer."""
    fitted_to = getattr(agent, "fitted_to", None)
    return agent if fitted_to is None else fitted_to(env, eps)


def find_environment(env: Any, eps: Episodes, notes: list[str]) -> str | None:
    """Return the name of the environment for evaluation, or None.

    Args:
        env: what the user asked for: a name, a factory, "none", or None for the environment that the data names.
        eps: the trajectories; their sizes must be those of the environment.
        notes: a note is appended if the data names an environment that cannot be used.

    Raises:
        SsorlError: the user asked for an environment that is unknown or has other sizes.
    """
    from ssorl import envs
    from ssorl.envs.registry import horizon

    env = None if env == "" else env
    name = eps.meta.env if env is None else envs.env_name(env)
    if name is None or name == "none":
        return None
    envs.require_trusted(name, eps.meta.source)
    try:
        horizon(name)  # raises if the name is unknown
    except SsorlError as err:
        if env is not None:
            raise
        reason = f" ({err})" if isinstance(err, MissingExtraError) else ", which is unknown; name another with --env"
        notes.append(f"the data names the environment {name}{reason}")
        return None
    sim = envs.make(name, 1)
    sizes, expected = (eps.n_obs, eps.n_act), (sim.n_obs, sim.n_act)
    if sizes != expected:
        text = "observations of size {} and actions of size {}"
        if env is not None:
            raise SsorlError(
                f"--env {name}: has {text.format(*expected)}, but the data has {text.format(*sizes)}; name another "
                "environment"
            )
        notes.append(f"{name}, which the data names, has {text.format(*expected)}, but the data {text.format(*sizes)}")
        return None
    return name
