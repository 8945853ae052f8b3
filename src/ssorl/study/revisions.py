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

Group = tuple[Any, str | None]  # part of a study, agent: one revision is shown for all its cells
IDM = "the IDM"


def check_current(cells: Iterable[Cell]) -> None:
    """Raise on cells of other revisions than this version computes.

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
                f"cell {cell.hash}: cannot be computed here, because this version changed {' and '.join(changed)}; "
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
    """Return the revision of each agent and of the IDM that some cells name."""
    out: dict[str, int] = {}
    for cell in cells:
        own = cell.revisions
        out |= {cell.agent or "": own.agent} if own.agent is not None else {}
        out |= {"idm": own.idm} if own.idm is not None else {}
    return out


def choose(points: Iterable[Point], is_finished: Callable[[Cell], bool]) -> dict[Group, Revisions]:
    """Return the revisions to show: for each part of a study and agent, the newest that has its cells.

    A revision has its cells if every cell that an earlier revision has finished is finished by it too.

    Args:
        points: points of a study, with cells of this version's revisions.
        is_finished: whether a cell has a result.
    """
    groups: dict[Group, set[Cell]] = {}
    for point in points:
        groups.setdefault(_group(point), set()).add(point.cell)
    return {group: _newest_whole(cells, is_finished) for group, cells in groups.items()}


def shown(point: Point, chosen: Mapping[Group, Revisions]) -> Cell:
    """Return the cell that is shown at a point, given what `choose` returned."""
    group = _group(point)
    return point.cell.at_revisions(chosen[group]) if group in chosen else point.cell


def name_revisions(found: Sequence[StudyResults]) -> str:
    """Return the revisions that results are of, such as "td3bc 1, dt 0", or "" where all are of revision 0."""
    if not any(any(one.newest) for one in found):
        return ""
    names: dict[str, set[int]] = {}
    for one in found:
        for name, revision in ((one.at.get("agent", "agent"), one.shown.agent), (IDM, one.shown.idm)):
            if revision is not None:
                names.setdefault(str(name), set()).add(revision)
    return ", ".join(f"{name} {' and '.join(map(str, sorted(each)))}" for name, each in names.items())


def explain_shown(found: Iterable[StudyResults]) -> list[str]:
    """Return a sentence for each revision that is shown although a newer one exists.

    Args:
        found: results as `results.gather` returns them.
    """
    parts: dict[tuple[str, str, str], dict[str, None]] = {}
    for one in found:
        if one.shown.changed(one.newest):
            was, now = _words(one.shown, one.newest, one.at), _words(one.newest, one.shown, one.at)
            where = parts.setdefault((str(one.at.get("agent", "labels")), was, now), {})
            where[str(one.at.get("study", ""))] = None
    return [
        f"{name}: results by {was} are shown{_where(studies)}, because {now} lacks some of them; `ssorl study run` "
        "computes these."
        for (name, was, now), studies in parts.items()
    ]


def notes(found: Sequence[StudyResults]) -> list[str]:
    """Return what a terminal says of the revisions of some results; nothing where all are of revision 0."""
    names = name_revisions(found)
    return ([f"revisions: {names}"] if names else []) + explain_shown(found)


def _group(point: Point) -> Group:
    return point.at.get("study"), point.cell.agent


def _newest_whole(cells: Iterable[Cell], is_finished: Callable[[Cell], bool]) -> Revisions:
    cells = list(cells)
    agent, idm = max(cell.agent_revision for cell in cells), max(cell.idm_revision for cell in cells)
    candidates = [Revisions(a, i) for a in range(agent, -1, -1) for i in range(idm, -1, -1)]
    if len(candidates) == 1:
        return candidates[0]
    done = [{cell for cell in cells if is_finished(cell.at_revisions(each))} for each in candidates]
    whole = (each for n, each in enumerate(candidates) if all(done[n] >= older for older in done[n + 1 :]))
    return next(whole)


def _words(own: Revisions, other: Revisions, at: Mapping[str, Any]) -> str:
    pairs = ((at.get("agent", "the agent"), own.agent, other.agent), (IDM, own.idm, other.idm))
    return " and ".join(f"revision {a or 0} of {name}" for name, a, b in pairs if (a or 0) != (b or 0))


def _where(names: Iterable[str]) -> str:
    named = [name for name in names if name]
    return f" in {', '.join(named)}" if named else ""
