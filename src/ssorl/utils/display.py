"""Short descriptions of objects for the Python prompt (`__repr__`) and for notebooks (`_repr_html_`)."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

MAX_REPR = 300  # characters of a repr
MAX_VALUE = 80  # characters of one value
MAX_ROWS = 40  # rows of an HTML table


def short_repr(name: str, facts: Mapping[str, object]) -> str:
    """Return `name(fact=value, ...)`, shortened to `MAX_REPR` characters.

    Args:
        name: name of the class.
        facts: values by name, the most important first; arrays are described by type and shape.
    """
    parts, length = [], len(name) + 2
    for key, value in facts.items():
        part = f"{key}={repr(value) if isinstance(value, str) and len(value) < MAX_VALUE else describe(value)}"
        if length + len(part) + 2 > MAX_REPR - 3:
            parts.append("...")
            break
        parts.append(part)
        length += len(part) + 2
    return f"{name}({', '.join(parts)})"


def html_table(name: str, facts: Mapping[str, object]) -> str:
    """Return an HTML table with one row for each fact; all text is escaped.

    Args:
        name: caption of the table, usually the name of the class.
        facts: values by name; rows after the first `MAX_ROWS` are counted, not shown.
    """
    left = 'style="text-align: left"'
    rows = [
        f"<tr><th {left}>{escape(str(key))}</th><td {left}>{escape(describe(value))}</td></tr>"
        for key, value in list(facts.items())[:MAX_ROWS]
    ]
    if len(facts) > MAX_ROWS:
        rows.append(f"<tr><td colspan=2 {left}>{len(facts) - MAX_ROWS} more</td></tr>")
    return f"<table><caption {left}><b>{escape(name)}</b></caption>{''.join(rows)}</table>"


def describe(value: object) -> str:
    """Return a value as one line of at most `MAX_VALUE` characters; an array as its type and shape."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and shape and dtype is not None:
        text = f"{dtype}{list(shape)}"
    elif isinstance(value, float) or (shape == () and getattr(dtype, "kind", "") == "f"):
        text = f"{value:.6g}"
    else:
        text = " ".join(str(value).split())
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 3]}..."
