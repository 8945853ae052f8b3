"""Environments from outside ssorl: registered in Python, installed as entry points, or passed as objects."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable
from typing import Any, cast

from ssorl.envs.base import Env
from ssorl.utils.errors import SsorlError
from ssorl.utils.registry import Registry, TrustedName

REQUIRED = (
    "n_envs",
    "n_obs",
    "n_act",
    "act_low",
    "act_high",
    "horizon",
    "cut",
    "reset",
    "step",
)  # attributes of a batch, see `Env`


def check_env(name: str, value: Any) -> Any:
    """Return the value if an environment can be created from it.

    Args:
        name: name of the environment, for messages.
        value: a function or class that creates environments, or a Gymnasium environment that can be copied.

    Raises:
        SsorlError: the value is something else.
    """
    if not callable(value) and not is_gymnasium(value):
        raise SsorlError(
            f"the environment {name} is {value!r}; give a function, a class or an environment of Gymnasium"
        )
    return value


ENVS: Registry[Any] = Registry("environment", "ssorl.envs", "--env", {}, check_env)


def register_env(name: str, make: Callable[..., Any]) -> None:
    """Register an environment under a name, in this process only.

    For all processes, declare `make` as an entry point of the group `ssorl.envs` in an installed package instead.

    Args:
        name: name for `--env`, datasets and results; not that of a built-in environment.
        make: a function or class. With one required parameter it creates a batch: `make(n_envs)` returns an
            `ssorl.envs.Env`. Without required parameters it creates one Gymnasium environment.

    Raises:
        SsorlError: the name is taken, or `make` is not a function or class.
    """
    from ssorl.envs.registry import is_built_in

    if is_built_in(name):
        raise SsorlError(f"{name} is a built-in environment; choose another name")
    ENVS.register(name, make)


def env_name(env: Any) -> str:
    """Return the name of an environment that the user gave as a name or an object; objects are registered.

    Args:
        env: a name, which may be `module:Id` as for Gymnasium or `module:attribute`; a function or class as for
            `register_env`; or a Gymnasium environment, which is copied.

    Raises:
        SsorlError: the value is something else.
    """
    if isinstance(env, str):
        return TrustedName(env)
    if not callable(env) and not is_gymnasium(env):
        raise SsorlError(f"--env is {env!r}; give the name of an environment, or a function or class that creates one")
    if not is_gymnasium(env):
        return ENVS.adopt(env)
    kind = type(cast(Any, env).unwrapped)
    name = f"{kind.__module__}:{kind.__qualname__}"
    ENVS[name] = env
    return name


def build(name: str, n_envs: int) -> Env | None:
    """Create a batch of a registered or installed environment.

    Args:
        name: name of the environment.
        n_envs: number of copies N.

    Returns:
        The batch, or None if the name is not registered or installed, as with a Gymnasium id.

    Raises:
        SsorlError: the registered function or class does not return an environment.
    """
    if not ENVS.known(name) and not (isinstance(name, TrustedName) and _is_attribute(name)):
        return None
    value = ENVS.find(name)
    if not _makes_batches(value):
        from ssorl.envs.vector import VectorEnv

        return VectorEnv(name, n_envs, _copier(name, value) if is_gymnasium(value) else value)
    env = value(n_envs)
    if missing := [attribute for attribute in REQUIRED if not hasattr(env, attribute)]:
        raise SsorlError(f"the environment {name}: {type(env).__name__} has no {missing[0]}; see ssorl.envs.Env")
    return cast(Env, env)


def is_gymnasium(value: Any) -> bool:
    """Return whether a value is a Gymnasium environment; Gymnasium is not imported."""
    gymnasium = sys.modules.get("gymnasium")
    return gymnasium is not None and isinstance(value, gymnasium.Env)


def _makes_batches(value: Any) -> bool:
    """Return whether a function or class has a required parameter, which is the number of environments."""
    gymnasium = sys.modules.get("gymnasium")
    if is_gymnasium(value) or (isinstance(value, type) and gymnasium is not None and issubclass(value, gymnasium.Env)):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.default is p.empty and p.kind in kinds for p in inspect.signature(value).parameters.values())


def _copier(name: str, env: Any) -> Callable[[], Any]:
    """Return a function that copies an environment."""

    def copied() -> Any:
        try:
            return copy.deepcopy(env)
        except Exception as err:  # code from outside ssorl
            raise SsorlError(
                f"the environment {name} cannot be copied ({type(err).__name__}); pass a function that makes one"
            ) from err

    return copied


def _is_attribute(name: str) -> bool:
    """Return whether a name `module:attribute` is an attribute of the module; if not, Gymnasium may know the id."""
    attribute = name.partition(":")[2]
    if not attribute or not all(part.isidentifier() for part in attribute.split(".")):
        return False
    try:
        ENVS.find(name)
    except SsorlError:
        return False
    return True
