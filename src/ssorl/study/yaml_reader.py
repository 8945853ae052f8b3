"""The file of a study as plain values: YAML, TOML or JSON, and in YAML also the line of each key."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ssorl.utils.errors import SsorlError, nearest

LARGEST = 100_000  # values; a short file can name its own parts again and again
FLOAT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")  # 1e-4, which YAML 1.1 takes for text: it wants 1.0e-4
EXAMPLE = "see docs/studies.md for an example"
Keys = tuple[Any, ...]  # from the top down to a value


class Told(NamedTuple):
    """What a file says."""

    path: Path
    values: dict[str, Any]
    lines: dict[Keys, int]  # of keys, in YAML

    def error(self, at: Keys, text: str) -> SsorlError:
        """What to raise about a key."""
        line = next((self.lines[at[:n]] for n in range(len(at), 0, -1) if at[:n] in self.lines), None)
        return SsorlError(f"{self.path}{f', line {line}' if line else ''}: {text}")

    def check(self, at: Keys, there: Iterable[Any], known: Iterable[str], what: str) -> None:
        """Refuse a key that means nothing."""
        for key in there:
            if key not in known:
                raise self.error((*at, key), f"{what} has no {key!r}; {nearest(key, known)}")


def read(path: Path) -> Told:
    """Read a file by its suffix."""
    lines: dict[Keys, int] = {}
    try:
        values = READERS[path.suffix](path.read_text(encoding="utf-8"), lines)
        values = _plain(values, (), [0])
    except RecursionError:
        raise SsorlError(f"{path}: cannot be read (its parts lie too deep within each other); {EXAMPLE}") from None
    except (OSError, ValueError) as err:
        raise SsorlError(f"{path}: cannot be read ({err}); {EXAMPLE}") from err
    if not isinstance(values, dict):
        raise SsorlError(f"{path}: holds no table; {EXAMPLE}")
    return Told(path, values, lines)


def _yaml(text: str, lines: dict[Keys, int]) -> Any:
    import yaml

    try:
        _walk(yaml.compose(text, Loader=yaml.SafeLoader), (), lines, [0])
        return _floats(yaml.safe_load(text))
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark or err.context_mark
        raise ValueError(f"{f'line {mark.line + 1}: ' if mark else ''}{err.problem or err.context}") from err
    except yaml.YAMLError as err:
        raise ValueError(" ".join(str(err).split())) from err


def _walk(node: Any, at: Keys, lines: dict[Keys, int], seen: list[int]) -> None:
    """Note the line of each key, and refuse one that is there twice: YAML would take the last."""
    seen[0] += 1
    if seen[0] > LARGEST:
        raise ValueError(f"it has more than {LARGEST:,} values")
    if node is None or isinstance(node.value, str):
        return
    for number, child in enumerate(node.value):
        if not isinstance(child, tuple):
            _walk(child, (*at, number), lines, seen)
            continue
        key, value = child
        where = (*at, key.value if isinstance(key.value, str) else None)
        if where in lines and lines[where] != key.start_mark.line + 1 and key.value != "<<":
            raise ValueError(f"line {key.start_mark.line + 1}: {key.value!r} is there already, in line {lines[where]}")
        lines[where] = key.start_mark.line + 1
        _walk(value, where, lines, seen)


def _floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _floats(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_floats(one) for one in value]
    return float(value) if isinstance(value, str) and FLOAT.fullmatch(value) else value


def _plain(value: Any, at: Keys, seen: list[int]) -> Any:
    """The same if it is made of text, numbers, lists and tables: a date, say, is none of them."""
    seen[0] += 1
    if seen[0] > LARGEST:
        raise ValueError(f"it has more than {LARGEST:,} values")
    where = ".".join(map(str, at)) or "it"
    if isinstance(value, dict):
        odd = [key for key in value if not isinstance(key, str | int | float) or isinstance(key, bool)]
        if odd:
            raise ValueError(f"{where} has the key {odd[0]!r}; put it in quotes")
        return {key: _plain(one, (*at, key), seen) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one, (*at, number), seen) for number, one in enumerate(value)]
    if not isinstance(value, str | int | float | None):
        raise ValueError(f"{where} is {value}, a {type(value).__name__}; put it in quotes")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}; give a number")
    return value


READERS: dict[str, Callable[[str, dict[Keys, int]], Any]] = {
    ".yaml": _yaml,
    ".yml": _yaml,
    ".toml": lambda text, lines: tomllib.loads(text),
    ".json": lambda text, lines: json.loads(text),
}
