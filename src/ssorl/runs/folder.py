"""The folder of a run: each stage writes its result to files, so that the same command continues a stopped run."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.data.split import Split
from ssorl.envs.trust import flag
from ssorl.evaluation.policy import TrainedPolicy
from ssorl.evaluation.policy_file import save_policy
from ssorl.idm import serialise
from ssorl.idm.fill import LabelledData
from ssorl.idm.label import Labeller, Labels, filled
from ssorl.pipeline.algorithm1 import SplitData
from ssorl.pipeline.hooks import StageStore
from ssorl.pipeline.plan import Plan, SplitKey, TrainingKey, default_recipe
from ssorl.pipeline.scoring import EvalResult
from ssorl.report.page import page
from ssorl.runs.result import cell_result, parent_result
from ssorl.training.checkpoint import differences
from ssorl.training.metrics import Log
from ssorl.utils import provenance
from ssorl.utils.errors import DataError, SsorlError
from ssorl.utils.files import read_json, read_npz, write_json, write_npz
from ssorl.utils.identity import read_revisions, revisions_of
from ssorl.utils.locks import locked
from ssorl.utils.validation import plain

T = TypeVar("T")


class RunFolder(StageStore):
    """The files of a run. With several qualities each has a sub-folder; all of them share the trainings."""

    def __init__(self, path: Path, plan: Plan, record: dict) -> None:
        self.path, self.plan, self.record = path, plan, record
        self.metrics: dict[str, Any] = {}  # options of `metrics.Log`: where metrics go besides metrics.jsonl
        self.logs: list[Log] = []
        self.seconds: dict[str, float] = _read_json(path / "timings.json") or {}

    @classmethod
    @contextmanager
    def open(cls, path: Path, plan: Plan, config: dict, command: str, eps: Episodes) -> Iterator[RunFolder]:
        """Create a run folder, or open the folder of an earlier call, and lock it for this process.

        Args:
            path: the folder.
            plan: what to train and evaluate.
            config: the plan and the data as plain values; an existing folder must have the same.
            command: the command line that result.json records.
            eps: the trajectories.

        Raises:
            SsorlError: the folder holds something else or an unfinished run of another revision, another process
                writes there, or the disk is too small.
        """
        _check_ownership(path)  # before anything is written there
        with locked(path, "another --out"):
            record = _read_record(path)
            if record is None:
                _check_space(path, plan, eps)
                revisions = revisions_of(plan.agent, plan.idm).as_json()
                record = {"config": config, "command": command, "started": _now(), "revisions": revisions}
                record |= provenance.everything()
                write_json(path / "config.json", record)
            else:
                _check_config(path, record["config"], config)
            for temporary in path.rglob(".tmp-*"):  # left by a process that was killed
                shutil.rmtree(temporary, ignore_errors=True)
            folder = cls(path, plan, record)
            folder._check_revisions()
            yield folder

    def _check_revisions(self) -> None:
        """Raise if another revision of the agent or the IDM began this run; warn if it also finished it."""
        try:
            was = read_revisions(self.record.get("revisions"))
        except ValueError as err:
            raise SsorlError(f"{self.path / 'config.json'}: {err}; choose another --out") from err
        now = revisions_of(self.plan.agent, self.plan.idm)
        if not (changed := was.changed(now, self.plan.names["agent"])):
            return
        change = f"this version has changed {' and '.join(changed)}, which gives other results"
        if not self.finished:
            raise SsorlError(f"{self.path}: holds an unfinished run, but {change}; choose another --out")
        warnings.warn(
            f"{self.path}: shows the results as they were computed; {change}; choose another --out to compute them "
            "again",
            stacklevel=4,
        )

    def subfolder(self, quality: float | None) -> Path:
        """Return the folder with the files of a quality."""
        return self.path / f"q{quality:g}" if len(self.plan.qualities) > 1 else self.path

    @property
    def result_folders(self) -> set[Path]:
        """Return each folder that has a result.json."""
        return {self.path, *(self.subfolder(q) for q in self.plan.qualities)}

    @property
    def finished(self) -> bool:
        """Return whether every result is complete and every policy is there."""
        results = [_read_or_none(read_json, folder / "result.json") for folder in self.result_folders]
        complete = all(isinstance(result, dict) and result.get("complete") for result in results)
        return complete and all(path.is_file() for _, _, path in self._policies())

    def result(self) -> dict:
        """Return the content of result.json; write pages that are missing."""
        for folder in self.result_folders:
            if not (folder / "report.html").is_file():
                page(folder)
        return read_json(self.path / "result.json")

    def finish(self, eps: Episodes, outcome: Any) -> None:
        """Write the results and their pages; the result.json of the folder itself is last and marks it as finished.

        Args:
            eps: the trajectories.
            outcome: what Algorithm 1 returned.
        """
        about = {"title": eps.meta.source, **self.record, "timings": self.seconds}
        results = {}
        for quality in self.plan.qualities:
            folder = self.subfolder(quality)
            results[folder.name] = cell_result(self.plan, eps, outcome, quality, about)
            write_json(folder / "result.json", results[folder.name])
            page(folder)
        if len(results) > 1:
            write_json(self.path / "result.json", parent_result(results))
            page(self.path)

    # The stages: methods of StageStore -----------------------------------------------------------------------

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of a stage to timings.json. The time before a kill is lost."""
        start = time.monotonic()
        try:
            yield
        finally:
            while self.logs:
                self.logs.pop().close()
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - start, 2)
            write_json(self.path / "timings.json", self.seconds)

    def _split_path(self, key: SplitKey) -> Path:
        return self.subfolder(key.quality) / "splits" / f"{key.seed}.json"

    def load_split(self, key: SplitKey) -> Split | None:
        """Return the stored split."""
        return _read_or_none(Split.load, self._split_path(key))

    def save_splits(self, tasks: dict[SplitKey, SplitData]) -> None:
        """Write the splits that are not stored yet."""
        for key, task in tasks.items():
            if task.split is not None and not self._split_path(key).is_file():
                task.split.save(self._split_path(key))

    def load_labels(self, key: SplitKey, data: Episodes) -> LabelledData | None:
        """Return the stored model and proxy actions, or None if they are missing or of other steps."""
        folder, seed = self.subfolder(key.quality), str(key.seed)
        path = folder / "proxies" / f"{seed}.npz"
        if not path.is_file():  # written last
            return None
        idm = self.plan.idm
        ready = idm if isinstance(idm, Labeller) else _read_or_none(serialise.load, folder / "idm" / seed)
        proxies = _read_or_none(read_npz, path)
        report = _read_or_none(read_json, path.with_suffix(".json"))
        if ready is None or proxies is None or report is None:
            return None
        steps = proxies["step"]
        if not np.array_equal(steps, np.flatnonzero(~data.labelled)):
            return None
        act, std, unseen = data.act.copy(), np.zeros_like(data.act), np.zeros(data.n_steps, bool)
        act[steps], std[steps], unseen[steps] = proxies["act"], proxies["act_std"], proxies["unseen"]
        labels = Labels(act, std, ~data.labelled, unseen)
        return LabelledData(filled(data, labels, ready), labels, ready, report)

    def save_labels(self, key: SplitKey, labelled: LabelledData) -> None:
        """Write the model and the proxy actions; the proxy actions are last and mark both as complete."""
        folder, seed, steps = self.subfolder(key.quality), str(key.seed), np.flatnonzero(labelled.labels.proxy)
        if not isinstance(self.plan.idm, Labeller):
            serialise.save(labelled.ready, folder / "idm" / seed)
        act, std, _, unseen = labelled.labels
        write_json(folder / "proxies" / f"{seed}.json", labelled.report)
        arrays = {"step": steps, "act": act[steps], "act_std": std[steps], "unseen": unseen[steps]}
        write_npz(folder / "proxies" / f"{seed}.npz", arrays)

    def checkpoint_folder(self) -> Path | None:
        """Return the folder of the training checkpoints."""
        return self.path / "checkpoints" / "0"  # the name that version 0.1 used

    def open_log(self, keys: list[TrainingKey]) -> Log:
        """Return a log that writes to metrics.jsonl and to the destinations in `metrics`."""
        self.logs.append(Log(self.path, [key.name for key in keys], **self.metrics))
        return self.logs[-1]

    def save_policies(self, players: dict[TrainingKey, TrainedPolicy]) -> None:
        """Write a policy file for each variant and seed; a training shared by several qualities goes to each."""
        for variant, key, path in self._policies():
            if not path.is_file():
                note = {"variant": variant, "seed": key.seed, "quality": key.quality, "policy": self.plan.policy}
                idm = revisions_of(idm=self.plan.idm).idm if variant == "ss" else None
                player = players[self.plan.training_key(variant, key)]
                save_policy(path, *player, env=self.plan.env, note=note, idm_revision=idm)

    def _policies(self) -> list[tuple[str, SplitKey, Path]]:
        """Return variant, split and path of every policy file."""
        pairs = [(variant, key) for key in self.plan.split_keys for variant in self.plan.variants]
        return [(v, k, self.subfolder(k.quality) / "policies" / f"{v}-{k.seed}.npz") for v, k in pairs]

    def load_evaluation(self) -> EvalResult | None:
        """Return the stored evaluation."""
        arrays = _read_or_none(read_npz, self.path / "evaluation.npz")
        return None if arrays is None else EvalResult(*(arrays[name] for name in EvalResult._fields))

    def save_evaluation(self, result: EvalResult) -> None:
        """Write the evaluation, if it is not stored yet."""
        if not (self.path / "evaluation.npz").is_file():
            write_npz(self.path / "evaluation.npz", result._asdict())


# Checks ----------------------------------------------------------------------------------------------------


def _check_ownership(path: Path) -> None:
    """Raise unless the folder is new, empty, holds a run, or holds what a process killed at the start leaves."""
    names = os.listdir(path) if path.is_dir() else []
    if "config.json" in names:
        record = _read_record(path)
        is_run = isinstance(record, dict) and isinstance(record.get("config"), dict)
    else:
        is_run = all(name == ".lock" or name.startswith(".tmp-config.json-") for name in names)
    if not is_run:
        raise SsorlError(f"{path}: is not the folder of a run, so nothing is written there; choose another --out")


def _check_config(path: Path, stored: dict, config: dict) -> None:
    """Raise if the folder holds a run with another config."""
    name = stored.get("env")
    if isinstance(name, str) and ":" in name and config["env"] != name:  # no file may make us import a module
        raise SsorlError(
            f"{path}: holds a run that was begun with {flag(name)}; give that option again, or another --out"
        )
    if changes := differences(_canonical(stored), _canonical(config)):
        more = f" and {len(changes) - 3} more differences" if len(changes) > 3 else ""
        raise SsorlError(
            f"{path}: holds another run ({'; '.join(changes[:3])}{more}); choose another --out, or remove that folder "
            "first"
        )


def _canonical(config: dict) -> dict:
    """Return the part of a config that determines the result, in canonical form.

    `episodes` is dropped when there is no environment; settings that older configs lack are at their default.
    """
    split = config.get("split")
    if isinstance(split, dict):
        config = {**config, "split": {**default_recipe(split.get("setup")), **split}}
    return {k: _plain(v) for k, v in config.items() if k != "episodes" or config.get("env")}


def _plain(value: Any) -> Any:
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else plain(value)


def _check_space(path: Path, plan: Plan, eps: Episodes) -> None:
    """Raise if the disk is too small for the run, before the work begins."""
    state = jax.eval_shape(lambda: plan.agent.init(jax.random.key(0), eps.n_obs, eps.n_act))
    policy = _n_bytes(jax.eval_shape(plan.agent.policy, state))
    checkpoint = _n_bytes(state) + 2 * policy  # the state, the averaged policy and the best policy
    # Each training has the last checkpoint, the one before it, the one being written, and a policy file.
    need = len(plan.training_keys) * (3 * checkpoint + policy) + len(plan.split_keys) * eps.n_steps * (
        8 * eps.n_act + 9
    )
    free = shutil.disk_usage(path).free
    if free < need:
        raise SsorlError(
            f"{path}: has {free / 1e9:.1f} GB free and the run writes up to {need / 1e9:.1f} GB; choose another --out"
        )


def _n_bytes(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


# Reading files ---------------------------------------------------------------------------------------------


def _read_record(path: Path) -> Any:
    return _read_json(path / "config.json", "choose another --out, or remove that folder first")


def _read_json(path: Path, cure: str = "remove the file and give the command again") -> Any:
    """Return the content of a JSON file, or None if there is no such file."""
    try:
        return read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, SsorlError) as err:
        raise SsorlError(f"{path}: cannot be read ({err}); {cure}") from err


def _read_or_none(read: Callable[[Path], T], path: Path) -> T | None:
    """Return the stored result of a stage.

    None if the file is missing or damaged; a damaged file is deleted, and the stage repeats to the same bits.
    """
    try:
        return read(path) if path.exists() else None
    except DataError as err:
        warnings.warn(f"{err}; this stage runs again", stacklevel=2)
        if path.is_file():
            path.unlink()
        return None
    except OSError as err:
        raise SsorlError(f"{path}: cannot be read ({err.strerror or err}); give the same command again") from err


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
