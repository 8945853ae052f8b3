"""Read the file of a study as plain values: YAML (with the line of each key), TOML or JSON."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ssorl.utils.errors import SsorlError, nearest

MAX_VALUES = 100_000  # in a file; aliases in a short YAML file can expand to billions of values
FLOAT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")  # 1e-4, which YAML 1.1 reads as text because it expects 1.0e-4
EXAMPLE = "see docs/studies.md for an example"
Keys = tuple[Any, ...]  # the path of a value: keys and list indices from the top of the file


class StudyFile(NamedTuple):
    """The content of a study's file."""

    path: Path
    values: dict[str, Any]
    lines: dict[Keys, int]  # the line of each key; empty for TOML and JSON

    def error(self, at: Keys, text: str) -> SsorlError:
        """Return an error about a value, with the file and, if known, the line.

        Args:
            at: the path of the value.
            text: what is wrong, and what the user can do.
        """
        line = next((self.lines[at[:n]] for n in range(len(at), 0, -1) if at[:n] in self.lines), None)
        return SsorlError(f"{self.path}{f', line {line}' if line else ''}: {text}")

    def check_keys(self, at: Keys, keys: Iterable[Any], known: Iterable[str], owner: str) -> None:
        """Raise on unknown keys of a table.

        Args:
            at: the path of the table.
            keys: the keys of the table.
            known: the keys that it may have.
            owner: what the table describes, such as "a study", for the message.

        Raises:
            SsorlError: a key is unknown.
        """
        for key in keys:
            if key not in known:
                raise self.error((*at, key), f"{owner} has no {key!r}; {nearest(key, known)}")


def read(path: Path) -> StudyFile:
    """Return the content of a study's file.

    Args:
        path: a file whose suffix is one of `READERS`.

    Raises:
        SsorlError: the file cannot be read, or its content is not a table of plain values.
    """
    lines: dict[Keys, int] = {}
    try:
        values = READERS[path.suffix](path.read_text(encoding="utf-8"), lines)
        values = _plain(values, (), [0])
    except RecursionError:
        raise SsorlError(f"{path}: cannot be read (its values are nested too deeply); {EXAMPLE}") from None
    except (OSError, ValueError) as err:
        raise SsorlError(f"{path}: cannot be read ({err}); {EXAMPLE}") from err
    if not isinstance(values, dict):
        raise SsorlError(f"{path}: does not hold a table; {EXAMPLE}")
    return StudyFile(path, values, lines)


def _yaml(text: str, lines: dict[Keys, int]) -> Any:
    import yaml

    try:
        _note_lines(yaml.compose(text, Loader=yaml.SafeLoader), (), lines, [0])
        return _parse_floats(yaml.safe_load(text))
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark or err.context_mark
        raise ValueError(f"{f'line {mark.line + 1}: ' if mark else ''}{err.problem or err.context}") from err
    except yaml.YAMLError as err:
        raise ValueError(" ".join(str(err).split())) from err


def _note_lines(node: Any, at: Keys, lines: dict[Keys, int], count: list[int]) -> None:
    """Fill `lines` with the line of each key. Raise on a repeated key, of which YAML would keep only the last."""
    _count(count)
    if node is None or isinstance(node.value, str):
        return
    for number, child in enumerate(node.value):
        if not isinstance(child, tuple):
            _note_lines(child, (*at, number), lines, count)
            continue
        key, value = child
        where = (*at, key.value if isinstance(key.value, str) else None)
        if where in lines and lines[where] != key.start_mark.line + 1 and key.value != "<<":
            raise ValueError(f"line {key.start_mark.line + 1}: {key.value!r} is already defined in line {lines[where]}")
        lines[where] = key.start_mark.line + 1
        _note_lines(value, where, lines, count)


def _parse_floats(value: Any) -> Any:
    """Return the value with texts such as 1e-4 as numbers."""
    if isinstance(value, dict):
        return {key: _parse_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_parse_floats(item) for item in value]
    return float(value) if isinstance(value, str) and FLOAT.fullmatch(value) else value


def _plain(value: Any, at: Keys, count: list[int]) -> Any:
    """Return a copy. Raise if it holds anything but text, finite numbers, lists and tables: a date, for example."""
    _count(count)
    where = ".".join(map(str, at)) or "it"
    if isinstance(value, dict):
        invalid = [key for key in value if not isinstance(key, str | int | float) or isinstance(key, bool)]
        if invalid:
            raise ValueError(f"{where} has the key {invalid[0]!r}; put it in quotes")
        return {key: _plain(item, (*at, key), count) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, (*at, number), count) for number, item in enumerate(value)]
    if not isinstance(value, str | int | float | None):
        raise ValueError(f"{where} is {value}, a {type(value).__name__}; put it in quotes")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}; give a number")
    return value


def _count(count: list[int]) -> None:
    count[0] += 1
    if count[0] > MAX_VALUES:
        raise ValueError(f"it has more than {MAX_VALUES:,} values")


READERS: dict[str, Callable[[str, dict[Keys, int]], Any]] = {
    ".yaml": _yaml,
    ".yml": _yaml,
    ".toml": lambda text, lines: tomllib.loads(text),
    ".json": lambda text, lines: json.loads(text),
}
