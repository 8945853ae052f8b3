"""Options of reading a dataset."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Columns:
    """Columns of a table, or arrays of a file, to read; by default, readers choose them by their usual names.

    A name may contain `*`, which matches any text. Columns are joined in the order of the names.
    """

    state: tuple[str, ...] = ()  # joined into observations
    action: tuple[str, ...] = ()  # joined into actions
    reward: str | None = None
    episode: str | None = None  # index of the trajectory of each row

    @property
    def given(self) -> dict[str, str]:
        """The names that the user gave, by their command line options."""
        return {f"--{k}": " ".join([v] if isinstance(v, str) else v) for k, v in vars(self).items() if v}


@dataclass(frozen=True)
class ReadOptions:
    """Options of reading a file, besides its format."""

    min_length: int = 0  # drop trajectories with fewer steps
    actions: bool = True  # False: treat every action as missing, without checking it
    first: int = 0  # index of the first trajectory in the file if it is read in parts, for messages
    columns: Columns = Columns()  # columns to read, in formats with named columns


READ_ALL = ReadOptions()
