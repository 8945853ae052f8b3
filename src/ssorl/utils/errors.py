"""Errors that users see: each message is a sentence that says what is wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable


class SsorlError(Exception):
    """An error that the user can correct; the command line prints it without a traceback and exits with code 2."""


class DataError(SsorlError):
    """A file, trajectory or split that cannot be used as it is."""


class ChangedError(DataError):
    """Data that differs from the data of earlier results."""


def nearest(word: object, known: Iterable[object], otherwise: str = "") -> str:
    """Return the end of a message about an unknown name: the closest known name, or all known names.

    Args:
        word: the unknown name.
        known: the names that exist.
        otherwise: text to return if no known name is close; by default, the list of known names.
    """
    import difflib

    names = {str(name).lower(): str(name) for name in known}
    near = difflib.get_close_matches(str(word).lower(), names, n=1)
    return f"did you mean {names[near[0]]}?" if near else otherwise or f"there are {', '.join(names.values())}"
