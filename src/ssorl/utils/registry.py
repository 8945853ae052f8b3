"""Registries of extensions: agents, inverse dynamics models, dataset formats and environments by name.

An extension is built in, registered in this process (`register_agent` and the like), or installed: a package declares
it as an entry point, which is imported when its name is looked up. A fourth way is to name `module:attribute`, which
imports the module. Only a name that the user gave may do that, a `TrustedName`; any other text, whatever its source, is
not trusted. So a file never causes the import of a module of its choice: what it names is built in, registered or
installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from ssorl.utils.errors import DataError, SsorlError, nearest

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9_<][\w<>.:-]*")  # what an extension may be called; local classes have <locals> in theirs


class TrustedName(str):
    """A name that the user gave. Once it has been written to a file and read again, it is plain text."""

    __slots__ = ()


class UntrustedNameError(SsorlError):
    """A name from a file that would import a module."""


def shown(name: object) -> str:
    """Return a name from a file made fit for one line of a sentence."""
    return str(name).encode("unicode_escape").decode()[:80]


class Registry(dict[str, T]):
    """Extensions of one kind by name: the built-in and the registered ones are items, installed ones follow on use.

    Args:
        what: what one of them is called in a sentence, such as "agent".
        group: the group of entry points that installs them.
        flag: the option that names one, such as "--agent".
        built_in: the built-in ones, whose names nothing else can take.
        check: returns the extension in the form in which it is kept; raises SsorlError if it lacks something.
        modules: whether a whole module can be an extension, so that its name has no colon.
    """

    def __init__(
        self,
        what: str,
        group: str,
        flag: str,
        built_in: Mapping[str, T],
        check: Callable[[str, Any], T],
        modules: bool = False,
    ) -> None:
        super().__init__(built_in)
        self.what, self.group, self.flag, self.check, self.modules = what, group, flag, check, modules
        self.built_in = frozenset(built_in)

    def register(self, name: str, value: Any) -> T:
        """Add an extension to this process.

        Args:
            name: what commands, files and results call it. The same extension can be registered again, for example
                when a notebook cell that defines it runs twice.
            value: the extension.

        Returns:
            The extension as it is kept.

        Raises:
            SsorlError: the name is taken or unfit, or the extension lacks something.
        """
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise SsorlError(f"the {self.what} {name!r}: give a name of letters, digits, '-', '_' and '.'")
        if name in self.built_in:
            raise SsorlError(f"{name} is the built-in {self.what} of that name; choose another name")
        kept = self.check(name, value)
        if name in self and path_of(self[name]) != path_of(kept):
            raise SsorlError(f"the {self.what} {name} is {path_of(self[name])} already; choose another name")
        self[name] = kept
        return kept

    def find(self, name: str, source: object = None, cure: str = "") -> T:
        """Return the extension of that name.

        Args:
            name: a built-in, registered or installed one; where it is a `TrustedName` also `module:attribute`.
            source: the file that the name was read from; None if the user gave it.
            cure: what to do about a name that may not be imported; by default, to name it with the flag.

        Raises:
            UntrustedNameError: the name would import a module and is not a `TrustedName`.
            SsorlError: there is none of that name, or it cannot be loaded.
        """
        if name in self:
            return self[name]
        if (point := self._entry_point(name)) is not None:
            return self._install(point)
        if isinstance(name, TrustedName) and (":" in name or (self.modules and _is_module(name))):
            self[str(name)] = kept = self.check(name, _imported(name, self))
            return kept
        if ":" in name:
            raise UntrustedNameError(self.refusal(name, source, cure))
        if source is not None:
            raise DataError(
                f"{source}: names the {self.what} {shown(name)!r}, which is not installed here; install the package "
                f"that has it, or name it yourself with {self.flag} MODULE:NAME"
            )
        raise SsorlError(f"no {self.what} is called {shown(name)!r}; {nearest(name, self.names())}")

    def refusal(self, name: str, source: object = None, cure: str = "") -> str:
        """Return the sentence about a name in a file that may not import its module."""
        argument = self.flag.lstrip("-")
        cure = cure or (
            f"if you trust the module, name it yourself with {self.flag} {shlex.quote(shown(name))} or, in Python, "
            f"{argument}={shown(name)!r}"
        )
        if not source:
            return f"the {self.what} {shown(name)!r} is of a module, and files may not import a module; {cure}"
        return f"{source}: names the {self.what} {shown(name)!r}, and files may not import a module; {cure}"

    def adopt(self, value: Any) -> str:
        """Register what the user passed in Python under its own name, in place of an earlier one of that name.

        Returns:
            Its name, as `name_of` tells it.
        """
        name = self.name_of(value)
        self[name] = self.check(name, value)
        return name

    def known(self, name: object) -> bool:
        """Return whether a name can be looked up without importing anything that the user must name."""
        return isinstance(name, str) and (name in self or self._entry_point(name) is not None)

    def names(self) -> list[str]:
        """Return all names: built-in, registered, then installed ones, which are not imported for this."""
        return list(dict.fromkeys([*self, *sorted(point.name for point in entry_points(group=self.group))]))

    def name_of(self, value: Any) -> str:
        """Return the name of an extension: as registered, else as installed, else `module:attribute`."""
        found = [name for name, one in self.items() if one is value]
        if plain := [name for name in found if ":" not in name]:
            return plain[0]
        path = path_of(value)
        package = path.partition(":")[0].partition(".")[0]
        for point in entry_points(group=self.group):
            # Only of the package that the extension comes from: no other is imported for this.
            if point.value.partition(":")[0].partition(".")[0] == package and point.name not in self.built_in:
                with suppress(SsorlError):
                    if self.find(point.name) is value:
                        return point.name
        return found[0] if found else path

    def installed(self) -> Iterator[tuple[str, T]]:
        """Import and yield all installed extensions, by name."""
        for name in self.names():
            if name not in self.built_in and ":" not in name:
                yield name, self.find(name)

    def importable(self) -> dict[str, str]:
        """Return `module:attribute` of what is known beside the built-in ones, for the user's other processes.

        Local classes and those of a notebook or script are left out: no other process can import them.
        """
        own = {name: path_of(value) for name, value in self.items() if name not in self.built_in}
        return {name: path for name, path in own.items() if "<" not in path and not path.startswith("__main__:")}

    def _entry_point(self, name: str) -> EntryPoint | None:
        some = tuple(entry_points(group=self.group, name=name)) if name not in self.built_in else ()
        if len({point.value for point in some}) > 1:
            packages = ", ".join(sorted(_package(point) for point in some))
            raise SsorlError(f"several packages install the {self.what} {name}: {packages}; uninstall all but one")
        return some[0] if some else None

    def _install(self, point: EntryPoint) -> T:
        try:
            value = point.load()
        except Exception as err:  # the boundary to foreign code
            raise SsorlError(
                f"the {self.what} {point.name} of the package {_package(point)} cannot be loaded ({_reason(err)}); "
                "update or uninstall that package"
            ) from err
        self[point.name] = kept = self.check(point.name, value)
        return kept


def path_of(value: Any) -> str:
    """Return `module:attribute` of a class or function, or of an instance's class; of a module its name."""
    if isinstance(value, str):
        return value
    if hasattr(value, "__spec__") and hasattr(value, "__name__"):
        return value.__name__
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}:{named.__qualname__}"


def _imported(name: str, registry: Registry) -> Any:
    """Import what the user named."""
    module, _, attribute = name.partition(":")
    try:
        with _working_directory_importable():
            value: Any = importlib.import_module(module)
    except Exception as err:  # the boundary to foreign code
        raise SsorlError(f"{registry.flag} {shown(name)}: the module cannot be imported ({_reason(err)})") from err
    for part in filter(None, attribute.split(".")):
        if not hasattr(value, part):
            raise SsorlError(f"{registry.flag} {shown(name)}: the module {module} has no {attribute}")
        value = getattr(value, part)
    return value


def _is_module(name: str) -> bool:
    try:
        with _working_directory_importable():
            return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


@contextmanager
def _working_directory_importable() -> Iterator[None]:
    """Find modules in the working directory too, after all others: an installed command does not look there."""
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        if sys.path and sys.path[-1] == here:
            sys.path.pop()


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def _reason(err: Exception) -> str:
    return (" ".join(str(err).split()) or type(err).__name__)[:200]
