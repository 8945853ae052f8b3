"""Inverse dynamics models in a store: fitted once for a split, shared by every agent on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ssorl.data.episodes import Episodes
from ssorl.idm import serialise
from ssorl.idm.fill import LabelledData
from ssorl.idm.label import filled, label
from ssorl.pipeline.algorithm1 import SplitData
from ssorl.pipeline.algorithm1 import label as label_all
from ssorl.pipeline.hooks import Listener, StageStore
from ssorl.pipeline.plan import Plan
from ssorl.study.cell import Cell
from ssorl.study.reference import idm_of
from ssorl.study.store import holding
from ssorl.utils.errors import SsorlError
from ssorl.utils.files import read_json, write_json


class IdmCache(StageStore):
    """The models of a store, and where a batch keeps its checkpoints."""

    def __init__(self, store: Path, work: Path | None = None) -> None:
        self.store, self.work = store, work

    def home(self, cell: Any) -> Path:
        """Where a cell's model is."""
        return self.store / "idms" / cell.idm_hash

    def load_labels(self, key: Any, data: Episodes) -> LabelledData | None:
        """Label again with the model that was fitted, if it was to this data; its report is as it was."""
        if not self._of_this(key):
            return None
        try:
            report = read_json(self.home(key) / "report.json")  # written last
            ready = serialise.load(self.home(key) / "model")
        except (OSError, SsorlError):
            return None
        labels = label(ready, data)
        return LabelledData(filled(data, labels, ready), labels, ready, report)

    def save_labels(self, key: Any, labelled: LabelledData) -> None:
        """Keep a model."""
        from ssorl.study.executor import described

        (self.home(key) / "report.json").unlink(missing_ok=True)  # of other data, if there is one
        serialise.save(labelled.ready, self.home(key) / "model")
        write_json(self.home(key) / "data.json", described(key.dataset))
        write_json(self.home(key) / "report.json", labelled.report)

    def _of_this(self, cell: Any) -> bool:
        """Whether the data is what a model was fitted to. Simulated data is what its name says."""
        from ssorl.study.executor import described

        if cell.dataset.startswith("sim/"):
            return True
        try:
            was = read_json(self.home(cell) / "data.json")
        except (OSError, SsorlError):
            return False
        return was == described(cell.dataset)

    def checkpoint_folder(self) -> Path | None:
        """Of the batch's trainings."""
        return self.work and self.work / "0"


def proxies(plan: Plan, tasks: dict[Cell, SplitData], keep: IdmCache, watch: Listener) -> dict[Cell, LabelledData]:
    """Every cell's task filled in, by a model that is there or by one fitted now; missing ones alike are one program.

    Another process that needs one of them waits, and then finds it there.
    """
    first = {cell.idm_hash: cell for cell in tasks}
    alike: dict[tuple, list[Cell]] = {}
    for cell in first.values():
        alike.setdefault((cell.idm, cell.rounds), []).append(cell)
    found: dict[str | None, LabelledData] = {}
    with holding(keep.home(cell) for cell in first.values()):
        for (settings, rounds), cells in alike.items():
            asked = replace(plan, idm=idm_of(dict(settings)))
            some = {cell: tasks[cell] for cell in cells}
            done: dict[Any, LabelledData] = label_all(asked, some, keep, watch, rounds)  # type: ignore[arg-type]
            found |= {cell.idm_hash: one for cell, one in done.items()}
    return {cell: found[cell.idm_hash] for cell in tasks}
