"""The folder of one run: every stage in files, so that the same command goes on where it stopped."""

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

Read = TypeVar("Read")


class Folder(StageStore):
    """One run's files. With several qualities each has a folder of its own in it; trainings are kept above them."""

    def __init__(self, path: Path, plan: Plan, record: dict) -> None:
        self.path, self.plan, self.record = path, plan, record
        self.metrics: dict[str, Any] = {}  # options of `metrics.Log`: where metrics go besides their file
        self.logs: list[Log] = []
        self.seconds: dict[str, float] = _json(path / "timings.json") or {}

    @classmethod
    @contextmanager
    def open(cls, path: Path, plan: Plan, config: dict, command: str, eps: Episodes) -> Iterator[Folder]:
        """Take the folder for this process: a new one, or one that the same configuration made."""
        _check_foreign(path)  # before anything is written there
        with locked(path, "another --out"):
            record = _record(path)
            if record is None:
                _check_space(path, plan, eps)
                revisions = revisions_of(plan.agent, plan.idm).as_json()
                record = {"config": config, "command": command, "started": _now(), "revisions": revisions}
                record |= provenance.everything()
                write_json(path / "config.json", record)
            elif (again := _module_flag(record["config"])) and config["env"] != record["config"]["env"]:
                raise SsorlError(
                    f"{path}: holds a run that was begun with {again}; give that option again, or another --out"
                )
            elif odd := differences(_decisive(record["config"]), _decisive(config)):
                more = f" and {len(odd) - 3} more differences" if len(odd) > 3 else ""
                raise SsorlError(
                    f"{path}: holds another run ({'; '.join(odd[:3])}{more}); choose another --out, or remove that "
                    "folder first"
                )
            for stale in path.rglob(".tmp-*"):  # of a process that was killed; the folder is ours now
                shutil.rmtree(stale, ignore_errors=True)
            folder = cls(path, plan, record)
            folder._check_revisions()
            yield folder

    def _check_revisions(self) -> None:
        """Refuse to continue a run that another revision of the agent or the IDM began; a finished one is shown."""
        try:
            was = read_revisions(self.record.get("revisions"))
        except ValueError as err:
            raise SsorlError(f"{self.path / 'config.json'}: {err}; choose another --out") from err
        now = revisions_of(self.plan.agent, self.plan.idm)
        if not (changed := was.changed(now, self.plan.names["agent"])):
            return
        how = f"this version has changed {' and '.join(changed)}, which gives other results"
        if not self.finished:
            raise SsorlError(f"{self.path}: holds an unfinished run, but {how}; choose another --out")
        warnings.warn(
            f"{self.path}: shows the results as they were computed; {how}; choose another --out to compute them again",
            stacklevel=4,
        )

    def home(self, quality: float | None) -> Path:
        """Where the files of a quality are."""
        return self.path / f"q{quality:g}" if len(self.plan.qualities) > 1 else self.path

    @property
    def homes(self) -> set[Path]:
        """Each folder with a result of its own."""
        return {self.path, *(self.home(q) for q in self.plan.qualities)}

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do; a result that is damaged and a policy that is gone are left."""
        told = [_or_none(read_json, home / "result.json") for home in self.homes]
        complete = all(isinstance(one, dict) and one.get("complete") for one in told)
        return complete and all(path.is_file() for _, _, path in self._policies())

    def result(self) -> dict:
        """What was found; its page is drawn again if it is gone."""
        for home in self.homes:
            if not (home / "report.html").is_file():
                page(home)
        return read_json(self.path / "result.json")

    def finish(self, eps: Episodes, outcome: Any) -> None:
        """Write the results and their pages; result.json of the folder itself comes last and says it is done."""
        told = {"title": eps.meta.source, **self.record, "timings": self.seconds}
        results = {}
        for quality in self.plan.qualities:
            home = self.home(quality)
            results[home.name] = cell_result(self.plan, eps, outcome, quality, told)
            write_json(home / "result.json", results[home.name])
            page(home)
        if len(results) > 1:
            write_json(self.path / "result.json", parent_result(results))
            page(self.path)

    # --- the stages
    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Keep its time; of a stage that was stopped the parts add up, except what a kill cut off."""
        began = time.monotonic()
        try:
            yield
        finally:
            while self.logs:
                self.logs.pop().close()
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - began, 2)
            write_json(self.path / "timings.json", self.seconds)

    def _split(self, cell: SplitKey) -> Path:
        return self.home(cell.quality) / "splits" / f"{cell.seed}.json"

    def load_split(self, key: SplitKey) -> Split | None:
        """The split in the folder."""
        return _or_none(Split.load, self._split(key))

    def save_splits(self, tasks: dict[SplitKey, SplitData]) -> None:
        """Write those that are not there."""
        for cell, task in tasks.items():
            if task.split is not None and not self._split(cell).is_file():
                task.split.save(self._split(cell))

    def load_labels(self, key: SplitKey, data: Episodes) -> LabelledData | None:
        """The model and its proxies."""
        home, seed = self.home(key.quality), str(key.seed)
        proxies = home / "proxies" / f"{seed}.npz"
        if not proxies.is_file():  # written last
            return None
        ready = self.plan.idm if isinstance(self.plan.idm, Labeller) else _or_none(serialise.load, home / "idm" / seed)
        few, told = _or_none(read_npz, proxies), _or_none(read_json, proxies.with_suffix(".json"))
        if ready is None or few is None or told is None or not np.array_equal(few["step"], np.where(~data.labelled)[0]):
            return None
        act, std, unseen = data.act.copy(), np.zeros_like(data.act), np.zeros(data.n_steps, bool)
        act[few["step"]], std[few["step"]], unseen[few["step"]] = few["act"], few["act_std"], few["unseen"]
        labels = Labels(act, std, ~data.labelled, unseen)
        return LabelledData(filled(data, labels, ready), labels, ready, told)

    def save_labels(self, key: SplitKey, labelled: LabelledData) -> None:
        """Write them: the model first, the proxies last."""
        home, seed, steps = self.home(key.quality), str(key.seed), np.flatnonzero(labelled.labels.proxy)
        if not isinstance(self.plan.idm, Labeller):
            serialise.save(labelled.ready, home / "idm" / seed)
        act, std, _, unseen = labelled.labels
        write_json(home / "proxies" / f"{seed}.json", labelled.report)
        arrays = {"step": steps, "act": act[steps], "act_std": std[steps], "unseen": unseen[steps]}
        write_npz(home / "proxies" / f"{seed}.npz", arrays)

    def checkpoint_folder(self) -> Path | None:
        """Where the engine keeps its trainings."""
        return self.path / "checkpoints" / "0"  # as it was called when other trajectories had a folder of their own

    def open_log(self, keys: list[TrainingKey]) -> Log:
        """Lines in metrics.jsonl, and what else was asked for."""
        self.logs.append(Log(self.path, [key.name for key in keys], **self.metrics))
        return self.logs[-1]

    def save_policies(self, players: dict[TrainingKey, TrainedPolicy]) -> None:
        """A policy file for each variant and seed; a training that serves several qualities is in each."""
        for variant, cell, path in self._policies():
            if not path.is_file():
                note = {"variant": variant, "seed": cell.seed, "quality": cell.quality, "policy": self.plan.policy}
                idm = revisions_of(idm=self.plan.idm).idm if variant == "ss" else None
                player = players[self.plan.training_key(variant, cell)]
                save_policy(path, *player, env=self.plan.env, note=note, idm_revision=idm)

    def _policies(self) -> list[tuple[str, SplitKey, Path]]:
        every = [(variant, cell) for cell in self.plan.split_keys for variant in self.plan.variants]
        return [(v, c, self.home(c.quality) / "policies" / f"{v}-{c.seed}.npz") for v, c in every]

    def load_evaluation(self) -> EvalResult | None:
        """The evaluation."""
        found = _or_none(read_npz, self.path / "evaluation.npz")
        return None if found is None else EvalResult(*(found[name] for name in EvalResult._fields))

    def save_evaluation(self, result: EvalResult) -> None:
        """Write it, if it is new."""
        if not (self.path / "evaluation.npz").is_file():
            write_npz(self.path / "evaluation.npz", result._asdict())


# Whose a folder is -----------------------------------------------------------------------------------------


def _check_foreign(path: Path) -> None:
    """Refuse a folder with something else in it than a run or what a killed beginning leaves."""
    there = os.listdir(path) if path.is_dir() else []
    if "config.json" in there:
        record = _record(path)
        ours = isinstance(record, dict) and isinstance(record.get("config"), dict)
    else:
        ours = all(n == ".lock" or n.startswith(".tmp-config.json-") for n in there)
    if not ours:
        raise SsorlError(f"{path}: is a folder but no run's, so nothing is written there; choose another --out")


def _module_flag(config: dict) -> str:
    """Return the flag that a run needs again, because files may not import a module, or nothing."""
    name = config.get("env")
    return flag(name) if isinstance(name, str) and ":" in name else ""


def _check_space(path: Path, plan: Plan, eps: Episodes) -> None:
    """Say now that the disk is too small, not hours from now."""
    state = jax.eval_shape(lambda: plan.agent.init(jax.random.key(0), eps.n_obs, eps.n_act))
    policy = _bytes(jax.eval_shape(plan.agent.policy, state))
    one = _bytes(state) + 2 * policy  # a checkpoint holds the averaged policy and the best one beside the state
    # The last checkpoint, the one before it and the one being written; the policies; the proxies.
    need = len(plan.training_keys) * (3 * one + policy) + len(plan.split_keys) * eps.n_steps * (8 * eps.n_act + 9)
    free = shutil.disk_usage(path).free
    if free < need:
        raise SsorlError(
            f"{path}: has {free / 1e9:.1f} GB free and the run writes up to {need / 1e9:.1f} GB; choose another --out"
        )


def _bytes(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _record(path: Path) -> Any:
    return _json(path / "config.json", "choose another --out, or remove that folder first")


def _decisive(config: dict) -> dict:
    """What of a configuration decides the result, in one spelling: not how often policies are played, where none is."""
    split = config.get("split")
    if isinstance(split, dict):  # older ones lack what was not asked for
        config = {**config, "split": {**default_recipe(split.get("setup")), **split}}
    return {k: _one_spelling(v) for k, v in config.items() if k != "episodes" or config.get("env")}


def _one_spelling(value: Any) -> Any:
    return {k: _one_spelling(v) for k, v in value.items()} if isinstance(value, dict) else plain(value)


def _json(path: Path, cure: str = "remove it to make it again") -> Any:
    try:
        return read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, SsorlError) as err:
        raise SsorlError(f"{path}: cannot be read ({err}); {cure}") from err


def _or_none(read: Callable[[Path], Read], path: Path) -> Read | None:
    """What a stage left; none if it is not there or damaged: then the stage is done again, to the same bits."""
    try:
        return read(path) if path.exists() else None
    except DataError as err:
        warnings.warn(f"{err}; it is made again", stacklevel=2)
        if path.is_file():
            path.unlink()
        return None
    except OSError as err:
        raise SsorlError(f"{path}: cannot be read ({err.strerror or err}); give the same command again") from err


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
