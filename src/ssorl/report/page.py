"""The page of a run: one HTML file made from result.json alone, which loads nothing from the network."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ssorl.report import sections, summary
from ssorl.report.blocks import Table, format_cell
from ssorl.report.schema import read
from ssorl.utils.files import atomic

# Keys that the result over several qualities may lack.
PARENT_DEFAULTS = {
    "kind": "rollout",
    "normalised": True,
    "complete": True,
    "command": "",
    "title": "Label qualities",
}


def page(folder: Path) -> Path:
    """Write `report.html` into a run folder and return its path.

    Args:
        folder: a folder with the `result.json` that `ssorl run` wrote.

    Raises:
        DataError: result.json is missing, damaged or invalid.
    """
    folder = Path(folder)
    result = read(folder)
    html = render_cells(result) if "cells" in result else render(result)
    path = folder / "report.html"
    with atomic(path) as temporary:
        temporary.write_text(html, encoding="utf-8")
    return path


def render(result: dict) -> str:
    """Return the HTML of one run's page, given its result."""
    draw_all = [sections.scores, sections.data, sections.labels, sections.curves, sections.timings]
    commit = f", at commit {result['commit']}" if result["commit"] else ""
    return render_template(
        title=result["title"],
        estimate=result["kind"] == "fqe",
        answer=summary.answer(result),
        caveats=summary.caveats(result),
        facts=sections.facts(result),
        sections=[section for draw in draw_all if (section := draw(result))],
        command=result["command"],
        tables=[
            ("Configuration", Table("configuration", ("setting", "value"), flat(_configuration(result)))),
            ("Versions", Table("versions", ("package", "version"), flat(result["versions"]))),
            ("Hardware", Table("hardware", ("part", "value"), flat(result["hardware"]))),
        ],
        note=f"Started {result['started']}{commit}. This command repeats the run:",
    )


def render_cells(result: dict) -> str:
    """Return the HTML of the page over several label qualities, which links to the page of each quality."""
    result = PARENT_DEFAULTS | result
    return render_template(
        title=result["title"],
        estimate=result["kind"] == "fqe",
        answer=summary.answer_cells(result),
        caveats=summary.caveats_cells(result),
        sections=[sections.qualities(result)],
        command=result["command"],
    )


def flat(config: dict, prefix: str = "") -> list[tuple[str, Any]]:
    """Return a nested object as rows of dotted names and values, each name after `prefix`."""
    rows = []
    for key, value in config.items():
        if isinstance(value, dict) and value:
            rows += flat(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", ", ".join(map(str, value)) if isinstance(value, list) else value))
    return rows


def render_template(template: str = "run.html.j2", own: str = "", **context: Any) -> str:
    """Return the HTML of a page.

    Args:
        template: file name in templates/.
        own: name of a further style sheet and script in templates/, besides those that all pages have.
        **context: variables of the template, `answer` among them; all text is escaped.
    """
    env = Environment(
        loader=PackageLoader("ssorl.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["cell"] = format_cell
    script, style = (
        Markup("\n").join(_source(env, f"{name}.{suffix}") for name in names if name)
        for names, suffix in ((("script", own), "js"), (("style", own), "css"))
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    context["answer"] = context["answer"].replace(" %", "\N{NO-BREAK SPACE}%")
    defaults = {"facts": [], "tables": [], "note": "", "made_from": "result.json"}
    context = {**defaults, "script": script, "style": style, "digest": digest, **context}
    return env.get_template(template).render(**context)


def _configuration(result: dict) -> dict:
    """Return the config of a run with the revisions of agent and IDM, which files of version 0.1 do not name."""
    return result["config"] | ({"revisions": result["revisions"]} if result.get("revisions") else {})


def _source(env: Environment, name: str) -> Markup:
    """Return a script or style sheet of the package: the only text that is not escaped."""
    assert env.loader is not None
    return Markup(env.loader.get_source(env, name)[0])
