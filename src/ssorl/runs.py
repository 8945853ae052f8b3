"""The run folder: every stage of a run in files, so that the same command goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from ssorl import about
from ssorl.checkpoint import save_policy
from ssorl.data.episodes import Episodes
from ssorl.data.sources import load
from ssorl.data.split import Split
from ssorl.errors import DataError, SsorlError
from ssorl.idm import files
from ssorl.idm.fill import Filled
from ssorl.idm.label import Labeller, Labels, filled
from ssorl.keep import Keep, Watch
from ssorl.metrics import Log
from ssorl.pipeline import Judged, Task
from ssorl.pipeline import run as algorithm
from ssorl.plan import Cell, Job, Plan, as_config, make_plan
from ssorl.player import Player
from ssorl.report.page import page
from ssorl.result import cell_result, parent_result
from ssorl.store import hold, read_json, read_npz, write_json, write_npz

Read = TypeVar("Read")


class Result(NamedTuple):
    """What a run found, and where everything is."""

    folder: Path
    told: dict  # result.json

    @property
    def scores(self) -> dict:
        """By variant; with several qualities each has its own, in `told["cells"]`."""
        return self.told["scores"]


def run(
    dataset: str | Path | Episodes,
    out: Path | str | None = None,
    watch: Watch | None = None,
    command: str | None = None,
    **choices: Any,
) -> Result:
    """Algorithm 1 on a dataset, between baseline and oracle, in a run folder (default: one of its own under runs/).

    The choices are those of `plan.make_plan`: agent, idm, preset, fraction, quality, seeds, variants, env, …
    A run that was stopped goes on, and one that is done is not done again.
    """
    eps = dataset if isinstance(dataset, Episodes) else load(dataset)
    return execute(eps, make_plan(eps, **choices), out, watch, command or _call(dataset, choices))


def execute(
    eps: Episodes,
    plan: Plan,
    out: Path | str | None,
    watch: Watch | None,
    command: str,
    metrics: dict[str, Any] | None = None,
) -> Result:
    """Run a plan in its folder; `metrics` are options of `metrics.Log`."""
    config = {"data": describe(eps), **as_config(plan)}
    path = Path(out) if out is not None else default_folder(eps, plan, config)
    with Folder.open(path, plan, config, command, eps) as folder:
        folder.metrics = metrics or {}
        if watch:
            watch.has_opened(path, bool(folder.seconds), folder.finished)
        if not folder.finished:
            outcome = algorithm(eps, plan, folder, watch)
            folder.finish(eps, outcome)
        return Result(path, folder.result())


class Folder(Keep):
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
        with _lock(path):
            record = _json(path / "config.json", "choose another --out, or remove that folder first")
            if record is None:
                _check_space(path, plan, eps)
                record = {"config": _plain(config), "command": command, "started": _now(), **about.everything()}
                write_json(path / "config.json", record)
            elif difference := differences(_decisive(record.get("config")), _decisive(_plain(config))):
                raise SsorlError(
                    f"{path}: holds another run ({difference}); choose another --out, or remove that folder first"
                )
            for stale in path.rglob(".tmp-*"):  # of a process that was killed; the folder is ours now
                shutil.rmtree(stale, ignore_errors=True)
            yield cls(path, plan, record)

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

    def _split(self, cell: Cell) -> Path:
        return self.home(cell.quality) / "splits" / f"{cell.seed}.json"

    def split(self, cell: Cell) -> Split | None:
        """The split in the folder."""
        return _or_none(Split.load, self._split(cell))

    def splits(self, tasks: dict[Cell, Task]) -> None:
        """Write those that are not there."""
        for cell, task in tasks.items():
            if task.split is not None and not self._split(cell).is_file():
                task.split.save(self._split(cell))

    def filled(self, cell: Cell, data: Episodes) -> Filled | None:
        """The model and its proxies."""
        home, seed = self.home(cell.quality), str(cell.seed)
        proxies = home / "proxies" / f"{seed}.npz"
        if not proxies.is_file():  # written last
            return None
        ready = self.plan.idm if isinstance(self.plan.idm, Labeller) else _or_none(files.load, home / "idm" / seed)
        few, told = _or_none(read_npz, proxies), _or_none(read_json, proxies.with_suffix(".json"))
        if ready is None or few is None or told is None or not np.array_equal(few["step"], np.where(~data.labelled)[0]):
            return None
        act, std, unseen = data.act.copy(), np.zeros_like(data.act), np.zeros(data.n_steps, bool)
        act[few["step"]], std[few["step"]], unseen[few["step"]] = few["act"], few["act_std"], few["unseen"]
        labels = Labels(act, std, ~data.labelled, unseen)
        return Filled(filled(data, labels, ready), labels, ready, told)

    def labels(self, cell: Cell, done: Filled) -> None:
        """Write them: the model first, the proxies last."""
        home, seed, steps = self.home(cell.quality), str(cell.seed), np.flatnonzero(done.labels.proxy)
        if not isinstance(self.plan.idm, Labeller):
            files.save(done.ready, home / "idm" / seed)
        act, std, _, unseen = done.labels
        write_json(home / "proxies" / f"{seed}.json", done.report)
        arrays = {"step": steps, "act": act[steps], "act_std": std[steps], "unseen": unseen[steps]}
        write_npz(home / "proxies" / f"{seed}.npz", arrays)

    def checkpoints(self) -> Path | None:
        """Where the engine keeps its trainings."""
        return self.path / "checkpoints" / "0"  # as it was called when other trajectories had a folder of their own

    def log(self, jobs: list[Job]) -> Log:
        """Lines in metrics.jsonl, and what else was asked for."""
        self.logs.append(Log(self.path, [job.name for job in jobs], **self.metrics))
        return self.logs[-1]

    def players(self, players: dict[Job, Player]) -> None:
        """A policy file for each variant and seed; a training that serves several qualities is in each."""
        for variant, cell, path in self._policies():
            if not path.is_file():
                note = {"variant": variant, "seed": cell.seed, "quality": cell.quality, "policy": self.plan.policy}
                save_policy(path, *players[self.plan.job(variant, cell)], env=self.plan.env, note=note)

    def _policies(self) -> list[tuple[str, Cell, Path]]:
        every = [(variant, cell) for cell in self.plan.cells for variant in self.plan.variants]
        return [(v, c, self.home(c.quality) / "policies" / f"{v}-{c.seed}.npz") for v, c in every]

    def judged(self) -> Judged | None:
        """The evaluation."""
        found = _or_none(read_npz, self.path / "evaluation.npz")
        return None if found is None else Judged(*(found[name] for name in Judged._fields))

    def judgement(self, judged: Judged) -> None:
        """Write it, if it is new."""
        if not (self.path / "evaluation.npz").is_file():
            write_npz(self.path / "evaluation.npz", judged._asdict())


# Which run a folder is -------------------------------------------------------------------------------------


def describe(eps: Episodes) -> dict:
    """The trajectories, in a few values and a digest of every array."""
    digest = hashlib.sha256()
    for array in (eps.obs, eps.act, eps.rew, eps.terminated, eps.start):
        digest.update(np.ascontiguousarray(array).data)
    meta = {k: v for k, v in asdict(eps.meta).items() if k not in ("source", "notes")}
    return {"trajectories": len(eps), "steps": eps.n_steps, **meta, "digest": digest.hexdigest()[:16]}


def default_folder(eps: Episodes, plan: Plan, config: dict) -> Path:
    """runs/NAME-AGENT-HASH."""
    text = json.dumps(_plain(config), sort_keys=True)
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(eps.meta.source).stem).strip("-")[-40:] or "run"
    return Path("runs") / f"{name}-{plan.names['agent']}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def differences(one: Any, two: Any) -> str:
    """What two configurations do not have in common, in a few words; empty if they are the same."""
    a, b = _flat(one), _flat(two)
    odd = [k for k in dict.fromkeys((*a, *b)) if a.get(k) != b.get(k)]
    told = [f"{k} is {_shown(a.get(k))} there and {_shown(b.get(k))} here" for k in odd[:3]]
    return ", ".join(told) + (f", and {len(odd) - 3} more" if len(odd) > 3 else "")


def _flat(value: Any, under: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {under: value}
    return {k: v for key, x in value.items() for k, v in _flat(x, f"{under}.{key}" if under else key).items()}


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _decisive(config: Any) -> Any:
    """What of a configuration decides the result: not how often policies are played, where none is."""
    if not isinstance(config, dict) or config.get("env"):
        return config
    return {k: v for k, v in config.items() if k != "episodes"}


def _plain(config: dict) -> dict:
    return json.loads(json.dumps(config))  # tuples are lists there


def _call(dataset: object, choices: dict) -> str:
    what = repr(str(dataset)) if isinstance(dataset, (str, Path)) else "episodes"
    return f"ssorl.run({', '.join([what, *(f'{k}={v!r}' for k, v in choices.items())])})"


# The folder itself -----------------------------------------------------------------------------------------


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One process at a time."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / ".lock").open("w")
    except OSError as err:
        raise SsorlError(f"{path}: cannot be written ({err.strerror}); choose another --out") from err
    with lock:
        hold(lock, f"{path}: another process is at work on it; wait for it or choose another --out")
        yield


def _check_foreign(path: Path) -> None:
    """Refuse a folder with something else in it than a run or what a killed beginning leaves."""
    there = os.listdir(path) if path.is_dir() else []
    if "config.json" not in there and any(n != ".lock" and not n.startswith(".tmp-config.json-") for n in there):
        raise SsorlError(f"{path}: is a folder but no run's, so nothing is written there; choose another --out")


def _check_space(path: Path, plan: Plan, eps: Episodes) -> None:
    """Say now that the disk is too small, not hours from now."""
    state = jax.eval_shape(lambda: plan.agent.init(jax.random.key(0), eps.n_obs, eps.n_act))
    policy = _bytes(jax.eval_shape(plan.agent.policy, state))
    one = _bytes(state) + 2 * policy  # a checkpoint holds the averaged policy and the best one beside the state
    # The last checkpoint, the one before it and the one being written; the policies; the proxies.
    need = len(plan.jobs) * (3 * one + policy) + len(plan.cells) * eps.n_steps * (8 * eps.n_act + 9)
    free = shutil.disk_usage(path).free
    if free < need:
        raise SsorlError(
            f"{path}: has {free / 1e9:.1f} GB free and the run writes up to {need / 1e9:.1f} GB; choose another --out"
        )


def _bytes(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


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
