"""Write the metrics of a training: as lines of JSON, to TensorBoard and to Weights & Biases.

    with Log(folder, names=["ss-0", "oracle-0"], tensorboard=True) as log:
        train_many(agent, runs, callback=log)

A resumed training repeats the updates after its checkpoint; their earlier lines and records are deleted.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ssorl.training.events import Events
from ssorl.utils.errors import SsorlError
from ssorl.utils.extras import require
from ssorl.utils.files import write_text

if TYPE_CHECKING:
    from ssorl.training.engine import Snapshot

Values = dict[str, float]


class Sink(Protocol):
    """A destination for the metrics of one run."""

    def write(self, at: int, values: Values) -> None:
        """Write the metrics after `at` updates.

        Args:
            at: updates done.
            values: numbers by name.
        """
        ...

    def close(self) -> None:
        """Finish writing."""
        ...


class Log:
    """A callback for `train_many` that writes the metrics of each snapshot to `metrics.jsonl` and other destinations.

    A line has `run`, `at` (updates), `seconds` (of training, including earlier parts of a resumed one), `updates/s`
    (since the last snapshot) and the metrics. Other numbers, such as scores, are arguments of a call:
    `log(snapshot, score=scores)`, with one value for each of the snapshot's runs.
    """

    def __init__(
        self,
        folder: Path | str,
        names: Sequence[str],
        tensorboard: bool = False,
        wandb: str | Mapping[str, Any] | None = None,
    ) -> None:
        """Set up the destinations.

        Args:
            folder: where `metrics.jsonl` and TensorBoard's files are written.
            names: a unique name for each run of the training.
            tensorboard: also write TensorBoard's files.
            wandb: also write to Weights & Biases: a project, or the arguments of `wandb.init`.

        Raises:
            SsorlError: the names are not unique, or wandb is not installed.
        """
        if len(set(names)) < len(names) or not all(names):
            raise SsorlError(f"the runs' names are {', '.join(names)}; give each run a unique name")
        self.folder, self.names = Path(folder), list(names)
        self.file = self.folder / "metrics.jsonl"
        self.sink_types: list[Any] = [lambda name, at: Events(self.folder / "tensorboard" / name, at)] * tensorboard
        if wandb is not None:
            module, options = _wandb(), {"project": wandb} if isinstance(wandb, str) else dict(wandb)
            self.sink_types.append(lambda name, at: WandB(module, {"name": name, "dir": str(self.folder), **options}))
        self.sinks: dict[str, list[Sink]] = {}
        self.last: dict[str, tuple[float, int, float]] = {}  # run -> clock, updates and seconds at its last snapshot
        self.began = time.monotonic()

    def __call__(self, snapshot: Snapshot, **more: Sequence[float] | np.ndarray) -> None:
        """Write one snapshot.

        Args:
            snapshot: the snapshot.
            **more: further numbers by name, one for each of the snapshot's runs.

        Raises:
            SsorlError: a file cannot be written.
        """
        now, lines = time.monotonic(), []
        new = [self.names[i] for i in snapshot.runs if self.names[i] not in self.sinks]
        if new:
            self._open(new, snapshot.at)
        for index, number in enumerate(snapshot.runs):
            name = self.names[number]
            clock, at, seconds = self.last[name]
            seconds += now - clock
            rate = (snapshot.at - at) / max(now - clock, 1e-9)
            self.last[name] = now, snapshot.at, seconds
            metrics = {key: float(values[index]) for key, values in (snapshot.metrics | more).items()}
            line = {"seconds": round(seconds, 3), "updates/s": round(rate, 3), **metrics}
            # JSON has no NaN and no infinity; most readers use null for them.
            plain = {key: value if math.isfinite(value) else None for key, value in line.items()}
            lines.append(json.dumps({"run": name, "at": snapshot.at, **plain}, allow_nan=False) + "\n")
            for sink in self.sinks[name]:
                sink.write(snapshot.at, line)
        # Where runs are trained one after another, the next run starts now.
        self.began = now
        _append(self.file, "".join(lines))

    def _open(self, names: list[str], at: int) -> None:
        """Open the destinations of runs, and delete their lines from update `at` on."""
        earlier = [line for line in lines(self.file) if line["run"] not in names or line["at"] < at]
        write_text(self.file, "".join(json.dumps(line) + "\n" for line in earlier))
        for name in names:
            last = max((line for line in earlier if line["run"] == name), key=lambda x: x["at"], default={})
            self.last[name] = self.began, last.get("at", 0), last.get("seconds") or 0.0
            self.sinks[name] = [open_sink(name, at) for open_sink in self.sink_types]

    def close(self) -> None:
        """Close all destinations; `metrics.jsonl` is only open while it is written."""
        for sinks in self.sinks.values():
            for sink in sinks:
                sink.close()
        self.sinks.clear()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def check_options(tensorboard: bool = False, wandb: str | Mapping[str, Any] | None = None) -> None:
    """Raise SsorlError if the package for one of `Log`'s options is not installed; call it before a long computation.

    Args:
        tensorboard: as for `Log`.
        wandb: as for `Log`.
    """
    if tensorboard:
        require("tensorboard")
    if wandb is not None:
        require("wandb")


def lines(file: Path | str) -> list[dict[str, Any]]:
    """Return the lines of a `metrics.jsonl`, without incomplete ones; an empty list if the file does not exist."""
    valid = []
    for text in Path(file).read_text(errors="replace").splitlines() if Path(file).exists() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("at"), int) and "run" in line:
            valid.append(line)
    return valid


def _append(file: Path, text: str) -> None:
    try:
        with file.open("a") as stream:
            stream.write(text)
    except OSError as err:
        raise SsorlError(f"{file}: cannot be written ({err.strerror}); free the disk or choose another folder") from err


class WandB:
    """One run at Weights & Biases; a resumed run has the same id, and updates that it already has are ignored."""

    def __init__(self, module: Any, options: dict[str, Any]) -> None:
        """Begin or resume a run.

        Args:
            module: the module `wandb`.
            options: arguments of `wandb.init`.
        """
        key = "".join(c if c.isalnum() or c in "-_" else "-" for c in f"{Path(options['dir']).name}-{options['name']}")
        self.run = module.init(**{"id": key, "resume": "allow", "reinit": "create_new", **options})

    def write(self, at: int, values: Values) -> None:
        """Write the metrics after `at` updates.

        Args:
            at: updates done.
            values: numbers by name.
        """
        self.run.log(values, step=at)

    def close(self) -> None:
        """Finish the run, which sends what is not sent yet."""
        self.run.finish()


def _wandb() -> Any:
    require("wandb")
    import wandb  # type: ignore[import-not-found]

    return wandb
