"""Environments of other packages: registered, installed as entry points, or passed in Python."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable
from typing import Any, cast

from ssorl.envs.base import Env
from ssorl.utils.errors import SsorlError
from ssorl.utils.registry import Registry, TrustedName

NEEDED = ("n_envs", "n_obs", "n_act", "act_low", "act_high", "horizon", "cut", "reset", "step")  # of a batch


def check_env(name: str, value: Any) -> Any:
    """Return what makes an environment if it can: a function or class, or an environment of Gymnasium to be copied.

    Raises:
        SsorlError: it is something else.
    """
    if not callable(value) and not is_gymnasium(value):
        raise SsorlError(
            f"the environment {name} is {value!r}; give a function or class that makes one, or one of Gymnasium's"
        )
    return value


ENVS: Registry[Any] = Registry("environment", "ssorl.envs", "--env", {}, check_env)


def register_env(name: str, make: Callable[..., Any]) -> None:
    """Make an environment known under a name in this process.

    Other processes do not know it. A package that declares `make` as an entry point of the group `ssorl.envs` makes it
    known wherever the package is installed.

    Args:
        name: what `--env`, datasets and results call it; not the name of an environment that ssorl has.
        make: a function or class. With one required parameter it makes a batch: `make(n_envs)` returns an
            `ssorl.envs.Env`. Without required parameters it makes one environment of Gymnasium.

    Raises:
        SsorlError: the name is taken, or `make` is no function or class.
    """
    from ssorl.envs.registry import is_built_in

    if is_built_in(name):
        raise SsorlError(f"{name} is a built-in environment; choose another name")
    ENVS.register(name, make)


def env_name(env: Any) -> str:
    """Return the name of an environment that the user chose by name, class, function or instance.

    Args:
        env: a name, which may be `module:Id` as for Gymnasium or `module:attribute`; what `register_env` takes; or an
            environment of Gymnasium, of which copies are made. What is not a name becomes known in this process.

    Raises:
        SsorlError: it is something else.
    """
    if isinstance(env, str):
        return TrustedName(env)
    if not callable(env) and not is_gymnasium(env):
        raise SsorlError(f"--env is {env!r}; give the name of an environment, or a function or class that makes one")
    if not is_gymnasium(env):
        return ENVS.adopt(env)
    kind = type(cast(Any, env).unwrapped)
    name = f"{kind.__module__}:{kind.__qualname__}"
    ENVS[name] = env
    return name


def build(name: str, n_envs: int) -> Env | None:
    """Return `n_envs` copies of an environment that ssorl does not have itself; None if the name is Gymnasium's.

    Raises:
        SsorlError: what was registered or installed under the name makes no environment.
    """
    if not ENVS.known(name) and not (isinstance(name, TrustedName) and _is_attribute(name)):
        return None
    value = ENVS.find(name)
    if not _makes_batches(value):
        from ssorl.envs.vector import VectorEnv

        return VectorEnv(name, n_envs, _copies_of(name, value) if is_gymnasium(value) else value)
    env = value(n_envs)
    if lacking := [one for one in NEEDED if not hasattr(env, one)]:
        raise SsorlError(f"the environment {name}: {type(env).__name__} has no {lacking[0]}; see ssorl.envs.Env")
    return cast(Env, env)


def is_gymnasium(value: Any) -> bool:
    """Return whether a value is an environment of Gymnasium, which is not imported for this."""
    gymnasium = sys.modules.get("gymnasium")
    return gymnasium is not None and isinstance(value, gymnasium.Env)


def _makes_batches(value: Any) -> bool:
    """Whether it takes the number of environments."""
    gymnasium = sys.modules.get("gymnasium")
    if is_gymnasium(value) or (isinstance(value, type) and gymnasium is not None and issubclass(value, gymnasium.Env)):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.default is p.empty and p.kind in kinds for p in inspect.signature(value).parameters.values())


def _copies_of(name: str, env: Any) -> Callable[[], Any]:
    def copied() -> Any:
        try:
            return copy.deepcopy(env)
        except Exception as err:  # the boundary to foreign code
            raise SsorlError(
                f"the environment {name} cannot be copied ({type(err).__name__}); pass a function that makes one"
            ) from err

    return copied


def _is_attribute(name: str) -> bool:
    """Whether `module:attribute` names something in the module; `module:Id` is for Gymnasium."""
    attribute = name.partition(":")[2]
    if not attribute or not all(part.isidentifier() for part in attribute.split(".")):
        return False
    try:
        ENVS.find(name)
    except SsorlError:
        return False
    return True
