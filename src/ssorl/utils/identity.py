"""Identities of results: which settings a hash covers, and which revision of the code made a result.

A revision is a class attribute, `revision`, of an agent or of an IDM's config. It is raised when a change of the code
alters results at unchanged settings. Files of versions without revisions have revision 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, NamedTuple

from ssorl.utils.errors import SsorlError


def since(version: str, default: Any) -> Any:
    """Declare a dataclass field that was added after version 0.1.

    At its default the field is left out of files and hashes, so that results of earlier versions keep their hashes.

    Args:
        version: the first version with the field.
        default: the field's default, which must reproduce the results of versions without the field.

    Returns:
        The value to assign to the annotated field.
    """
    return field(default=default, metadata={"since": version})


def identifying_fields(config: Any) -> dict[str, Any]:
    """Return the fields that identify a dataclass: all but those declared by `since` that are at their default."""
    values = {f.name: (getattr(config, f.name), f) for f in fields(config)}
    return {name: value for name, (value, f) in values.items() if not (_is_later(f) and value == f.default)}


def check_names(names: Mapping[str, Any], kind: type) -> list[str]:
    """Return the names of a stored dataclass that are unknown or missing; fields declared by `since` may be missing.

    Args:
        names: the stored values by name.
        kind: the dataclass.
    """
    required = {f.name for f in fields(kind) if not _is_later(f)}
    known = {f.name for f in fields(kind)}
    return sorted((set(names) - known) | (required - set(names)))


def _is_later(f: Any) -> bool:
    return "since" in f.metadata


class Revisions(NamedTuple):
    """The revisions of the agent and of the inverse dynamics model that made a result; None if there was none."""

    agent: int | None = None
    idm: int | None = None

    def as_json(self) -> dict[str, int | None]:
        """Return the value that files store under the key `revisions`."""
        return self._asdict()

    def changed(self, now: Revisions, agent: str = "the agent") -> list[str]:
        """Return, as phrases, the revisions that differ from those of another version.

        Args:
            now: the revisions to compare with.
            agent: the agent's name.

        Returns:
            Phrases such as "td3bc from revision 0 to 1".
        """
        pairs = ((agent, self.agent, now.agent), ("the IDM", self.idm, now.idm))
        return [
            f"{name} from revision {was or 0} to {is_ or 0}" for name, was, is_ in pairs if (was or 0) != (is_ or 0)
        ]


def revision_of(thing: Any) -> int:
    """Return the revision of an agent, a config or a class of either; 0 if it has none.

    Raises:
        SsorlError: the revision is not a whole number from 0 up.
    """
    value = getattr(thing, "revision", 0)
    if type(value) is not int or value < 0:
        kind = thing if isinstance(thing, type) else type(thing)
        raise SsorlError(f"{kind.__name__}.revision is {value!r}; give the class a whole number from 0 up")
    return value


def revisions_of(agent: Any = None, idm: Any = None) -> Revisions:
    """Return the revisions of an agent and of an IDM's config or model.

    Args:
        agent: an agent or its class, or None.
        idm: an IDM's config, its class or a fitted model, or None.
    """
    return Revisions(*(None if thing is None else revision_of(thing) for thing in (agent, idm)))


def read_revisions(stored: Any) -> Revisions:
    """Return the revisions that a file stores under `revisions`.

    Args:
        stored: the stored value; None in files of versions without revisions.

    Raises:
        ValueError: the value is invalid.
    """
    if stored is None:
        return Revisions()
    if not isinstance(stored, dict) or not all(v is None or (type(v) is int and v >= 0) for v in stored.values()):
        raise ValueError(f"its revisions are {str(stored)[:80]}")
    return Revisions(stored.get("agent"), stored.get("idm"))
