"""CSV tables: a header, a row for each step, a number in each cell; one file or a folder.

Columns are recognised by common names (`state_0`, `action_0`, `reward`, `episode`), or named by the caller. An empty
cell is a missing value. Rows of a trajectory are in the order of the file. In a folder without a column of episodes,
each file is a trajectory. Nothing but the standard library and NumPy is needed.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from ssorl.data.episodes import Episodes, Meta
from ssorl.data.formats.columns import EPISODES, Roles, assign, from_rows, listed, with_parts
from ssorl.data.formats.parts import natural
from ssorl.data.stats import join_names
from ssorl.data.validate import READ_ALL, ReadOptions, build, escaped, parser_errors, with_reader_notes
from ssorl.utils.errors import DataError

KIND = "a CSV table"
SUFFIXES = (".csv", ".tsv")
BLOCK = 1 << 16  # rows that are converted together
MISSING = ("", "null", "None", "NA", "N/A", "NULL", "none")
WORDS = {"True": "1", "true": "1", "TRUE": "1", "False": "0", "false": "0", "FALSE": "0"}
takes_columns = True


def sniff(path: Path) -> bool:
    """Return whether its name ends in .csv or .tsv, or it is a folder of such files."""
    if path.is_dir():
        return any(file.suffix.lower() in SUFFIXES for file in path.iterdir())
    return path.suffix.lower() in SUFFIXES


def load(path: Path, options: ReadOptions = READ_ALL) -> Episodes:
    """Read and check a file or folder."""
    src = str(path)
    with parser_errors(src, KIND):
        files = _files(path, src)
        names, tables = [], []
        for file in files:
            header, table = _read(file)
            if names and header != names:
                raise DataError(f"{file}: has other columns than {files[0]}; all files of a folder must agree")
            names = header
            tables.append(table)
        roles = _roles(names, tables, options, src, len(files) > 1)
        episode = _episodes(roles, tables, src)
        order = np.argsort(episode, kind="stable")
        bounds = np.concatenate([[0], np.flatnonzero(np.diff(episode[order])) + 1, [len(order)]])
        obs = _joined(roles.state, tables, order)
        act = _joined(roles.action, tables, order) if options.actions and roles.action else None
        rew = _joined([roles.reward], tables, order)[:, 0] if roles.reward else None
        raw = from_rows(obs, act, rew, np.diff(bounds))
        action = [(name, 1) for name in roles.action] if act is not None else []
        meta = with_parts(Meta(source=src), [(name, 1) for name in roles.state], action)
        text = [escaped(n) for n in names if n != roles.episode and not all(_is_number(t[n]) for t in tables)]
        if text:
            verb = "was" if len(text) == 1 else "were"
            meta = meta.with_notes(f"{join_names(text)} {verb} left out: only numbers are read")
        return build(*raw[:5], with_reader_notes(meta, raw.dropped), options, raw.number)


def _files(path: Path, src: str) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted((f for f in path.iterdir() if f.suffix.lower() in SUFFIXES), key=lambda f: natural(f.name))
    if not files:
        raise DataError(f"{src}: has no .csv file; nothing can be learnt from an empty folder")
    return files


def _read(file: Path) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return the names of the columns, and each column as numbers, or as text if a cell is no number."""
    with parser_errors(str(file), KIND), file.open(encoding="utf-8-sig", newline="") as lines:
        first = lines.readline(1 << 20)
        delimiter = max(",;\t", key=first.count)
        names = [name.strip() for name in next(csv.reader([first], delimiter=delimiter), [])]
        if not names or len(set(names)) < len(names) or "" in names:
            raise DataError(f"{file}: its first line does not name each column once; give it a header")
        blocks: dict[str, list[np.ndarray]] = {name: [] for name in names}
        rows, number = csv.reader(lines, delimiter=delimiter), 1
        while block := list(islice(rows, BLOCK)):
            for row in block:
                number += 1
                if len(row) != len(names):
                    raise DataError(
                        f"{file}: line {number} has {len(row)} cells but the header names {len(names)}; repair the line"
                    )
            for name, cells in zip(names, zip(*block, strict=True), strict=True):
                blocks[name].append(_converted(np.array(cells)))
    if not any(blocks.values()):
        raise DataError(f"{file}: holds no rows; nothing can be learnt from an empty file")
    return names, {name: _stacked(parts) for name, parts in blocks.items()}


def _converted(cells: np.ndarray) -> np.ndarray:
    """Return cells as float64, or as they are if one is no number."""
    cells = np.char.strip(cells)
    empty = np.isin(cells, MISSING)
    cells = np.where(empty, "nan", cells) if empty.any() else cells
    try:
        return cells.astype(np.float64)
    except ValueError:
        pass
    words = np.isin(cells, list(WORDS)) | empty
    if words.all():
        return np.array([float(WORDS.get(cell, "nan")) for cell in cells.tolist()])
    return cells


def _stacked(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the blocks of a column end to end; text if one of them is text."""
    if all(_is_number(part) for part in parts):
        return np.concatenate(parts)
    return np.concatenate([part.astype(str) for part in parts])


def _is_number(column: np.ndarray) -> bool:
    return column.dtype.kind == "f"


def _roles(
    names: Sequence[str], tables: Sequence[dict[str, np.ndarray]], options: ReadOptions, src: str, many: bool
) -> Roles:
    numbers = [name for name in names if all(_is_number(table[name]) for table in tables)]
    episode = options.columns.episode
    text = next((n for n in names if n not in numbers and (n == episode or (not episode and n in EPISODES))), None)
    roles = assign([*numbers, *([text] if text else [])], options, src)
    if roles.episode is None and not many:
        raise DataError(
            f"{src}: no column tells trajectories apart; name one with --episode (it has {listed(names)}), or give a "
            "folder with a file for each trajectory"
        )
    return roles


def _episodes(roles: Roles, tables: Sequence[dict[str, np.ndarray]], src: str) -> np.ndarray:
    """Return a number for the episode of each row, in the order of first appearance."""
    if roles.episode is None:
        return np.repeat(np.arange(len(tables)), [len(table[roles.state[0]]) for table in tables])
    values = np.concatenate([table[roles.episode] for table in tables])
    if _is_number(values) and not np.isfinite(values).all():
        raise DataError(f"{src}: column {escaped(roles.episode)} has empty rows; number the rows throughout")
    _, first, which = np.unique(values, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[which.reshape(-1)]


def _joined(names: Sequence[str], tables: Sequence[dict[str, np.ndarray]], order: np.ndarray) -> np.ndarray:
    """Return columns side by side, [N, size], in an order."""
    out = np.empty((len(order), len(names)), np.float64)
    for at, name in enumerate(names):
        out[:, at] = np.concatenate([table[name] for table in tables])[order]
    return out
