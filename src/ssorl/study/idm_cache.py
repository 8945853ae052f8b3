"""Inverse dynamics models in a store: each is fitted once for a split and shared by all agents on the split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ssorl.data.episodes import Episodes
from ssorl.idm import serialise
from ssorl.idm.fill import LabelledData
from ssorl.idm.label import filled, label
from ssorl.pipeline.algorithm1 import SplitData
from ssorl.pipeline.algorithm1 import label as label_all
from ssorl.pipeline.hooks import Listener, StageStore
from ssorl.study.cell import Cell
from ssorl.study.datasets import described
from ssorl.study.reference import idm_of
from ssorl.study.store import lock_folders
from ssorl.utils.errors import SsorlError
from ssorl.utils.files import read_json, write_json


class IdmCache(StageStore):
    """The models of a store, and the checkpoints of one batch.

    Args:
        store: the store's folder.
        work: the folder of the batch's checkpoints; None: no checkpoints.
    """

    def __init__(self, store: Path, work: Path | None = None) -> None:
        self.store, self.work = store, work

    def home(self, cell: Any) -> Path:
        """Return the folder of a cell's model."""
        return self.store / "idms" / cell.idm_hash

    def load_labels(self, key: Any, data: Episodes) -> LabelledData | None:
        """Return labels by a stored model with the stored report, or None if there is no model for this data.

        Args:
            key: the cell.
            data: its trajectories, with missing actions.
        """
        if not self._has_same_data(key):
            return None
        try:
            report = read_json(self.home(key) / "report.json")  # written last, so the model is complete
            ready = serialise.load(self.home(key) / "model")
        except (OSError, SsorlError):
            return None
        labels = label(ready, data)
        return LabelledData(filled(data, labels, ready), labels, ready, report)

    def save_labels(self, key: Any, labelled: LabelledData) -> None:
        """Store a fitted model and its report.

        Args:
            key: the cell.
            labelled: the labels, with the model and the report.
        """
        (self.home(key) / "report.json").unlink(missing_ok=True)  # the report of an earlier model may be left
        serialise.save(labelled.ready, self.home(key) / "model")
        write_json(self.home(key) / "data.json", described(key.dataset))
        write_json(self.home(key) / "report.json", labelled.report)

    def _has_same_data(self, cell: Any) -> bool:
        """Return whether the stored model was fitted to the cell's data. The name of simulated data determines it."""
        if cell.dataset.startswith("sim/"):
            return True
        try:
            recorded = read_json(self.home(cell) / "data.json")
        except (OSError, SsorlError):
            return False
        return recorded == described(cell.dataset)

    def checkpoint_folder(self) -> Path | None:
        """Return the folder of the batch's training checkpoints, or None."""
        return self.work and self.work / "0"


def label_cells(tasks: dict[Cell, SplitData], cache: IdmCache, listener: Listener) -> dict[Cell, LabelledData]:
    """Return proxy actions for every cell, by stored models or by models that are fitted now and stored.

    Models with equal settings are fitted in one program. The models' folders are locked: another process that needs
    one of them waits, and then uses the stored model.

    Args:
        tasks: the split of each cell.
        cache: the models of the store.
        listener: receives progress.
    """
    first = {cell.idm_hash: cell for cell in tasks}
    by_settings: dict[tuple, list[Cell]] = {}
    for cell in first.values():
        by_settings.setdefault((cell.idm, cell.rounds), []).append(cell)
    labelled: dict[str | None, LabelledData] = {}
    with lock_folders(cache.home(cell) for cell in first.values()):
        for (settings, rounds), cells in by_settings.items():
            idm = idm_of(dict(settings))
            own_tasks: Any = {cell: tasks[cell] for cell in cells}
            done: dict[Any, LabelledData] = label_all(idm, own_tasks, cache, listener, rounds)
            labelled |= {cell.idm_hash: data for cell, data in done.items()}
    return {cell: labelled[cell.idm_hash] for cell in tasks}
