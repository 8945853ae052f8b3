"""What pages are made of: sections of panels, each a picture drawn twice, for wide pages and phones, with its table."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from ssorl.report import svg
from ssorl.report.axes import known


@dataclass(frozen=True)
class Link:
    """A cell of a table that leads to another page of the same run."""

    text: str
    href: str


@dataclass(frozen=True)
class Table:
    """The values behind a picture, to be read, copied or downloaded."""

    name: str  # of the downloaded file, without .csv
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    full: Sequence[Sequence[Any]] | None = None  # what is downloaded, head included, where it is more than is shown

    @property
    def href(self) -> str:
        """The table as a CSV file inside a link."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        for row in self.full or (self.head, *self.rows):
            writer.writerow(["" if _gone(v) else f"{v:.6g}" if isinstance(v, float) else v for v in row])
        return "data:text/csv;charset=utf-8," + quote(out.getvalue())

    @property
    def file(self) -> str:
        """A file name that is safe anywhere."""
        return re.sub(r"[^a-zA-Z0-9-]+", "-", self.name).strip("-") + ".csv"


@dataclass(frozen=True)
class Panel:
    """A picture, drawn for a wide page and a phone, with its table."""

    title: str
    pictures: Sequence[Markup]
    table: Table
    legend: Markup | str = ""
    half: bool = False  # two of these stand side by side
    open: bool = False  # whether the table shows at once


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    key: str
    title: str
    text: str
    panels: Sequence[Panel]
    legend: Markup | str = ""  # where it serves all panels


def both(draw: Callable[[str, int], Markup], key: str) -> list[Markup]:
    """A picture for wide pages and one for phones."""
    return [draw(f"{key}-wide", svg.WIDE), draw(f"{key}-narrow", svg.NARROW)]


def _gone(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not known(value))


def cell(value: Any) -> Any:
    """A value of a table as it is read."""
    if isinstance(value, Link):
        return Markup('<a href="{}">{}</a>').format(value.href, value.text)
    if _gone(value):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}".replace("-", "−") if abs(value) < 1e4 else f"{value:,.0f}".replace("-", "−")
    return f"{value:,}" if isinstance(value, int) else str(value)
