"""A run's page: one HTML file drawn from result.json alone, with no network behind it."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ssorl.report import sections as parts
from ssorl.report import summary as words
from ssorl.report.blocks import Table, cell
from ssorl.report.schema import read
from ssorl.utils.files import atomic


def page(folder: Path) -> Path:
    """Write `report.html` into a run's folder from the `result.json` in it; the path of the page."""
    folder = Path(folder)
    result = read(folder)
    html = render_cells(result) if "cells" in result else render(result)
    path = folder / "report.html"
    with atomic(path) as fresh:
        fresh.write_text(html, encoding="utf-8")
    return path


def render(result: dict) -> str:
    """The page of one run."""
    drawn = [parts.scores, parts.data, parts.labels, parts.curves, parts.timings]
    return fill(
        title=result["title"],
        estimate=result["kind"] == "fqe",
        answer=words.answer(result),
        caveats=words.caveats(result),
        facts=parts.facts(result),
        sections=[section for draw in drawn if (section := draw(result))],
        command=result["command"],
        tables=[
            (
                "Configuration",
                Table("configuration", ("setting", "value"), flat(_configuration(result))),
            ),
            ("Versions", Table("versions", ("package", "version"), flat(result["versions"]))),
            ("Hardware", Table("hardware", ("part", "value"), flat(result["hardware"]))),
        ],
        note=f"Started {result['started']}" + (f", at commit {result['commit']}" if result["commit"] else "") + ".",
    )


def render_cells(result: dict) -> str:
    """The page over several label qualities, with links to the page of each."""
    result = {
        "kind": "rollout",
        "normalised": True,
        "complete": True,
        "command": "",
        "title": "Label qualities",
    } | result
    return fill(
        title=result["title"],
        estimate=result["kind"] == "fqe",
        answer=words.answer_cells(result),
        caveats=words.caveats_cells(result),
        sections=[parts.qualities(result)],
        command=result["command"],
    )


def _configuration(result: dict) -> dict:
    """Return the config of a run with the revisions of agent and IDM, which files of version 0.1 do not name."""
    return result["config"] | ({"revisions": result["revisions"]} if result.get("revisions") else {})


def flat(config: dict, prefix: str = "") -> list[tuple[str, Any]]:
    """A nested object as rows of dotted names and values."""
    rows = []
    for key, value in config.items():
        if isinstance(value, dict) and value:
            rows += flat(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", ", ".join(map(str, value)) if isinstance(value, list) else value))
    return rows


def fill(template: str = "run.html.j2", own: str = "", **told: Any) -> str:
    """A page of a template; `own` names the style and script that it has besides those of all pages."""
    env = Environment(
        loader=PackageLoader("ssorl.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["cell"] = cell
    script, style = (
        Markup("\n").join(_source(env, f"{name}.{end}") for name in names if name)
        for names, end in ((("script", own), "js"), (("style", own), "css"))
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    told = {"facts": [], "tables": [], "note": "", "script": script, "style": style, "digest": digest, **told}
    return env.get_template(template).render(**told)


def _source(env: Environment, name: str) -> Markup:
    assert env.loader is not None
    return Markup(env.loader.get_source(env, name)[0])  # ours, not the user's: the only text that is not escaped
