"""The errors a user may see: each is one sentence that names the thing, the value and the cure."""

from __future__ import annotations

from collections.abc import Iterable


class SsorlError(Exception):
    """Anything the user can mend; the command line prints it without a traceback and exits with 2."""


class DataError(SsorlError):
    """A file, a trajectory or a split that cannot be used as it is."""


class ChangedError(DataError):
    """Data that is no longer what earlier results were made from."""


def nearest(word: object, known: Iterable[object], otherwise: str = "") -> str:
    """The end of a sentence about a name that does not exist: which was meant, or all there are."""
    import difflib

    names = {str(name).lower(): str(name) for name in known}
    near = difflib.get_close_matches(str(word).lower(), names, n=1)
    return f"did you mean {names[near[0]]}?" if near else otherwise or f"there are {', '.join(names.values())}"
