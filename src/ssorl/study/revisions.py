"""Revisions of agents and IDMs in studies: which results are stale, why, and which revision a page shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssorl.study.cell import Cell
from ssorl.study.store import finished
from ssorl.utils.errors import SsorlError
from ssorl.utils.identity import Revisions, revisions_of

if TYPE_CHECKING:
    from ssorl.study.grid import Point
    from ssorl.study.results import StudyResults

Group = tuple[Any, str | None]  # part of a study and agent; reports show one revision for all cells of a group
IDM = "the IDM"


def check_current(cells: Iterable[Cell]) -> None:
    """Raise if this version cannot compute a cell, because it has another revision of the agent or the IDM.

    Args:
        cells: cells of a study.

    Raises:
        SsorlError: a cell is of another revision, for example because a worker has another version installed.
    """
    from ssorl.agents import AGENTS
    from ssorl.study.reference import idm_of

    for cell in cells:
        idm = None if cell.idm is None else idm_of(dict(cell.idm))
        agent = None if cell.agent is None else AGENTS.find(cell.agent, f"cell {cell.hash}")
        now = cell.at_revisions(revisions_of(agent, idm)).revisions
        if changed := cell.revisions.changed(now, cell.agent or ""):
            raise SsorlError(
                f"cell {cell.hash}: this version cannot compute it, because it changed {' and '.join(changed)}; "
                "install the version of ssorl that planned the study"
            )


def explain_stale(store: Path, cells: Iterable[Cell]) -> str:
    """Return a sentence on the cells that must be computed again because a revision was raised, or "".

    Args:
        store: the store's folder.
        cells: the cells of a study.
    """
    reasons: Counter[str] = Counter()
    for cell in cells:
        old = next((old for old in cell.earlier() if finished(store, old)), None)
        if old is not None and not finished(store, cell):
            reasons[" and ".join(old.revisions.changed(cell.revisions, cell.agent or ""))] += 1
    parts = [f"{n:,} because this version changed {why}" for why, n in reasons.items()]
    n = sum(reasons.values())
    return f"{n:,} finished {'cell is' if n == 1 else 'cells are'} computed again: {', '.join(parts)}" if n else ""


def current(cells: Iterable[Cell]) -> dict[str, int]:
    """Return the revisions that cells name, by agent; the key of the IDM's revision is "idm"."""
    out: dict[str, int] = {}
    for cell in cells:
        own = cell.revisions
        out |= {cell.agent or "": own.agent} if own.agent is not None else {}
        out |= {"idm": own.idm} if own.idm is not None else {}
    return out


def choose(points: Iterable[Point], is_finished: Callable[[Cell], bool]) -> dict[Group, Revisions]:
    """Return the revisions to show: for each group, the newest that has its cells.

    A revision has its cells if it has finished every cell that an earlier revision has finished.

    Args:
        points: points of a study, with cells of this version's revisions.
        is_finished: whether a cell has a result.
    """
    groups: dict[Group, set[Cell]] = {}
    for point in points:
        groups.setdefault(_group(point), set()).add(point.cell)
    return {group: _newest_complete(cells, is_finished) for group, cells in groups.items()}


def shown(point: Point, chosen: Mapping[Group, Revisions]) -> Cell:
    """Return the cell that is shown at a point, given what `choose` returned."""
    group = _group(point)
    return point.cell.at_revisions(chosen[group]) if group in chosen else point.cell


def name_revisions(results: Sequence[StudyResults]) -> str:
    """Return the revisions of results, such as "td3bc 1, dt 0", or "" if this version's revisions are all 0.

    Args:
        results: results as `results.gather` returns them.
    """
    if not any(any(result.newest) for result in results):
        return ""
    names: dict[str, set[int]] = {}
    for result in results:
        for name, revision in ((result.at.get("agent", "agent"), result.shown.agent), (IDM, result.shown.idm)):
            if revision is not None:
                names.setdefault(str(name), set()).add(revision)
    return ", ".join(f"{name} {' and '.join(map(str, sorted(shown)))}" for name, shown in names.items())


def explain_shown(results: Iterable[StudyResults]) -> list[str]:
    """Return a sentence for each revision that is shown although a newer one exists.

    Args:
        results: results as `results.gather` returns them.
    """
    parts: dict[tuple[str, str, str], dict[str, None]] = {}
    for result in results:
        if result.shown.changed(result.newest):
            old = _differing(result.shown, result.newest, result.at)
            new = _differing(result.newest, result.shown, result.at)
            where = parts.setdefault((str(result.at.get("agent", "labels")), old, new), {})
            where[str(result.at.get("study", ""))] = None
    return [
        f"{name}: results of {old} are shown{_where(studies)}, because {new} lacks some of them; `ssorl study run` "
        "computes the missing cells."
        for (name, old, new), studies in parts.items()
    ]


def notes(results: Sequence[StudyResults]) -> list[str]:
    """Return lines for the terminal about the revisions of results; none if all revisions are 0.

    Args:
        results: results as `results.gather` returns them.
    """
    names = name_revisions(results)
    return ([f"revisions: {names}"] if names else []) + explain_shown(results)


def _group(point: Point) -> Group:
    return point.at.get("study"), point.cell.agent


def _newest_complete(cells: Iterable[Cell], is_finished: Callable[[Cell], bool]) -> Revisions:
    cells = list(cells)
    agent, idm = max(cell.agent_revision for cell in cells), max(cell.idm_revision for cell in cells)
    candidates = [Revisions(a, i) for a in range(agent, -1, -1) for i in range(idm, -1, -1)]
    if len(candidates) == 1:
        return candidates[0]
    done = [{cell for cell in cells if is_finished(cell.at_revisions(revisions))} for revisions in candidates]
    complete = (n for n, own in enumerate(done) if all(own >= older for older in done[n + 1 :]))
    return candidates[next(complete)]


def _differing(own: Revisions, other: Revisions, at: Mapping[str, Any]) -> str:
    """Return, in words, the revisions of `own` that differ from those of `other`."""
    pairs = ((at.get("agent", "the agent"), own.agent, other.agent), (IDM, own.idm, other.idm))
    return " and ".join(f"revision {a or 0} of {name}" for name, a, b in pairs if (a or 0) != (b or 0))


def _where(names: Iterable[str]) -> str:
    named = [name for name in names if name]
    return f" in {', '.join(named)}" if named else ""
