"""The parts of a page: sections of panels, each panel with a chart (drawn for wide pages and phones) and its table."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from ssorl.report.axes import known
from ssorl.report.markup import NARROW, WIDE


@dataclass(frozen=True)
class Link:
    """A table cell that links to another page of the same run."""

    text: str
    href: str


@dataclass(frozen=True)
class Table:
    """The values behind a chart, which the reader can view, copy or download."""

    name: str  # name of the downloaded file, without .csv
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    full: Sequence[Sequence[Any]] | None = None  # rows of the download, with the header, if they differ from `rows`

    @property
    def href(self) -> str:
        """Return the table as a CSV file in a data URL."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        for row in self.full or (self.head, *self.rows):
            writer.writerow(["" if _missing(v) else f"{v:.6g}" if isinstance(v, float) else v for v in row])
        return "data:text/csv;charset=utf-8," + quote(out.getvalue())

    @property
    def file(self) -> str:
        """Return the name of the CSV file, without special characters."""
        return re.sub(r"[^a-zA-Z0-9-]+", "-", self.name).strip("-") + ".csv"


@dataclass(frozen=True)
class Panel:
    """A chart, drawn for a wide page and for a phone, with its table."""

    title: str
    pictures: Sequence[Markup]
    table: Table
    legend: Markup | str = ""
    half: bool = False  # half the page width: two panels stand side by side
    open: bool = False  # whether the table is open at first


@dataclass(frozen=True)
class Section:
    """A titled section of the page."""

    key: str
    title: str
    text: str
    panels: Sequence[Panel]
    legend: Markup | str = ""  # shared by all panels


def wide_and_narrow(draw: Callable[[str, int], Markup], key: str) -> list[Markup]:
    """Return a chart in two widths, for wide pages and for phones.

    Args:
        draw: called as `draw(key, width)`, width in pixels.
        key: id of the chart, unique on the page.
    """
    return [draw(f"{key}-wide", WIDE), draw(f"{key}-narrow", NARROW)]


def format_cell(value: Any) -> Any:
    """Return the text, or the link, that a table cell shows."""
    if isinstance(value, Link):
        return Markup('<a href="{}">{}</a>').format(value.href, value.text)
    if _missing(value):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}".replace("-", "−") if abs(value) < 1e4 else f"{value:,.0f}".replace("-", "−")
    return f"{value:,}" if isinstance(value, int) else str(value)


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not known(value))
