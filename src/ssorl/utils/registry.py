"""Registries of extensions: agents, inverse dynamics models, dataset formats and environments by name.

An extension is built in, registered in this process (`register_agent` and similar functions), or installed: a package
declares it as an entry point, which is imported when its name is looked up. A name of the form `module:attribute`
imports the module, which only names from the user may do; these have the type `TrustedName`. Names from files are never
trusted: they can refer to built-in, registered and installed extensions only.
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
NAME = re.compile(r"[A-Za-z0-9_<][\w<>.:-]*")  # valid names; those of local classes contain <locals>


class TrustedName(str):
    """A name that the user gave; once it is written to a file and read again, it is a plain string."""

    __slots__ = ()


class UntrustedNameError(SsorlError):
    """A name from a file would import a module."""


def shown(name: object) -> str:
    """Return a name from a file in a form that fits into one line of a message."""
    return str(name).encode("unicode_escape").decode()[:80]


class Registry(dict[str, T]):
    """Extensions of one kind by name; installed extensions are added when they are first used.

    Args:
        noun: name of the kind in messages, such as "agent".
        group: group of entry points that installs extensions.
        flag: command-line option that names an extension, such as "--agent".
        built_in: built-in extensions; their names cannot be registered again.
        check: converts an extension to the form that the registry stores; raises SsorlError if it is invalid.
        modules: whether an extension can be a whole module, whose name has no colon.
    """

    def __init__(
        self,
        noun: str,
        group: str,
        flag: str,
        built_in: Mapping[str, T],
        check: Callable[[str, Any], T],
        modules: bool = False,
    ) -> None:
        super().__init__(built_in)
        self.noun, self.group, self.flag, self.check, self.modules = noun, group, flag, check, modules
        self.built_in = frozenset(built_in)

    def register(self, name: str, value: Any) -> T:
        """Add an extension to this process.

        Args:
            name: its name in commands, files and results. The same extension can be registered again, for example
                when a notebook cell that defines it runs twice.
            value: the extension.

        Returns:
            The extension as the registry stores it.

        Raises:
            SsorlError: the name is taken or invalid, or the extension is invalid.
        """
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise SsorlError(f"the {self.noun} {name!r}: give a name of letters, digits, '-', '_' and '.'")
        if name in self.built_in:
            raise SsorlError(f"{name} is the name of a built-in {self.noun}; choose another name")
        extension = self.check(name, value)
        if name in self and path_of(self[name]) != path_of(extension):
            raise SsorlError(f"the {self.noun} {name} is already {path_of(self[name])}; choose another name")
        self[name] = extension
        return extension

    def find(self, name: str, source: object = None, cure: str = "") -> T:
        """Return an extension by name.

        Args:
            name: a built-in, registered or installed extension; a `TrustedName` may also be `module:attribute`.
            source: the file that the name was read from; None if the user gave it.
            cure: advice about a name that may not be imported; by default, to name it with the flag.

        Raises:
            UntrustedNameError: the name would import a module and is not a `TrustedName`.
            SsorlError: no extension has this name, or it cannot be loaded.
        """
        if name in self:
            return self[name]
        if (point := self._entry_point(name)) is not None:
            return self._install(point)
        if isinstance(name, TrustedName) and (":" in name or (self.modules and _is_module(name))):
            self[str(name)] = extension = self.check(name, _import(name, self))
            return extension
        if ":" in name:
            raise UntrustedNameError(self.refusal(name, source, cure))
        if source is not None:
            raise DataError(
                f"{source}: names the {self.noun} {shown(name)!r}, which is not installed here; install its package "
                f"or name it yourself with {self.flag} MODULE:NAME"
            )
        raise SsorlError(f"no {self.noun} is called {shown(name)!r}; {nearest(name, self.names())}")

    def refusal(self, name: str, source: object = None, cure: str = "") -> str:
        """Return the message about a name in a file that may not import its module.

        Args:
            name: the name.
            source: the file.
            cure: advice; by default, to name the extension with the flag.
        """
        argument = self.flag.lstrip("-")
        cure = cure or (
            f"if you trust the module, name it yourself with {self.flag} {shlex.quote(shown(name))} or, in Python, "
            f"{argument}={shown(name)!r}"
        )
        if not source:
            return f"the {self.noun} {shown(name)!r} is in a module, and files may not import modules; {cure}"
        return f"{source}: names the {self.noun} {shown(name)!r}, and files may not import modules; {cure}"

    def adopt(self, value: Any) -> str:
        """Register an extension that the user passed in Python, and replace an earlier one of the same name.

        Args:
            value: the extension.

        Returns:
            Its name, as from `name_of`.
        """
        name = self.name_of(value)
        self[name] = self.check(name, value)
        return name

    def known(self, name: object) -> bool:
        """Return whether a name is built in, registered or installed, so that no module must be trusted."""
        return isinstance(name, str) and (name in self or self._entry_point(name) is not None)

    def names(self) -> list[str]:
        """Return all names: built-in, registered, then installed ones, which are not imported."""
        return list(dict.fromkeys([*self, *sorted(point.name for point in entry_points(group=self.group))]))

    def name_of(self, value: Any) -> str:
        """Return the name of an extension: as registered, else as installed, else `module:attribute`."""
        names = [name for name, extension in self.items() if extension is value]
        if short := [name for name in names if ":" not in name]:
            return short[0]
        path = path_of(value)
        package = path.partition(":")[0].partition(".")[0]
        for point in entry_points(group=self.group):
            # Other packages are not imported.
            if point.value.partition(":")[0].partition(".")[0] == package and point.name not in self.built_in:
                with suppress(SsorlError):
                    if self.find(point.name) is value:
                        return point.name
        return names[0] if names else path

    def installed(self) -> Iterator[tuple[str, T]]:
        """Yield (name, extension) of all extensions that are not built in; installed ones are imported."""
        for name in self.names():
            if name not in self.built_in and ":" not in name:
                yield name, self.find(name)

    def importable(self) -> dict[str, str]:
        """Return `module:attribute` by name of extensions that are not built in, for the user's other processes.

        Local classes and classes of a notebook or script are left out, because other processes cannot import them.
        """
        paths = {name: path_of(value) for name, value in self.items() if name not in self.built_in}
        return {name: path for name, path in paths.items() if "<" not in path and not path.startswith("__main__:")}

    def _entry_point(self, name: str) -> EntryPoint | None:
        points = tuple(entry_points(group=self.group, name=name)) if name not in self.built_in else ()
        if len({point.value for point in points}) > 1:
            packages = ", ".join(sorted(_package(point) for point in points))
            raise SsorlError(f"several packages install the {self.noun} {name}: {packages}; uninstall all but one")
        return points[0] if points else None

    def _install(self, point: EntryPoint) -> T:
        try:
            value = point.load()
        except Exception as err:  # code of other packages can raise anything
            raise SsorlError(
                f"the {self.noun} {point.name} of the package {_package(point)} cannot be loaded ({_reason(err)}); "
                "update or uninstall that package"
            ) from err
        self[point.name] = extension = self.check(point.name, value)
        return extension


def path_of(value: Any) -> str:
    """Return `module:attribute` of a class, a function or an instance's class; of a module its name."""
    if isinstance(value, str):
        return value
    if hasattr(value, "__spec__") and hasattr(value, "__name__"):
        return value.__name__
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}:{named.__qualname__}"


def _import(name: str, registry: Registry) -> Any:
    """Import the module, and return the attribute, that the user named."""
    module, _, attribute = name.partition(":")
    try:
        with _working_directory_importable():
            value: Any = importlib.import_module(module)
    except Exception as err:  # code of other packages can raise anything
        raise SsorlError(
            f"{registry.flag} {shown(name)}: the module cannot be imported ({_reason(err)}); check its name and code"
        ) from err
    for part in filter(None, attribute.split(".")):
        if not hasattr(value, part):
            raise SsorlError(f"{registry.flag} {shown(name)}: the module {module} has no {attribute}; check the name")
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
    """Search modules in the working directory, too, after all others; an installed command does not do so itself."""
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
