"""Where the numbers of a training go: lines of JSON, TensorBoard, Weights & Biases.

    with Log(folder, names=["ss-0", "oracle-0"], tensorboard=True) as log:
        train_many(agent, runs, callback=log)

Whatever was written of updates that a resumed training does again is cut away, so nothing stands twice.
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
    """One place for the numbers of one run."""

    def write(self, at: int, values: Values) -> None:
        """The numbers after `at` updates."""
        ...

    def close(self) -> None:
        """No more will come."""
        ...


class Log:
    """A callback for `train_many` that writes the metrics of each look: `metrics.jsonl`, and what else is asked for.

    A line has `run`, `at` (updates), `seconds` (of training, in all its parts), `updates/s` (since the last look) and
    the metrics. More numbers, such as scores, are given as `log(look, score=scores)`, one a run of the look.
    """

    def __init__(
        self,
        folder: Path | str,
        names: Sequence[str],
        tensorboard: bool = False,
        wandb: str | Mapping[str, Any] | None = None,
    ) -> None:
        """`names` has a name for each run of the training; `wandb` is a project, or the arguments of `wandb.init`."""
        if len(set(names)) < len(names) or not all(names):
            raise SsorlError(f"the runs' names are {', '.join(names)}; give each run a name of its own")
        self.folder, self.names = Path(folder), list(names)
        self.file = self.folder / "metrics.jsonl"
        self.kinds: list[Any] = [lambda name, at: Events(self.folder / "tensorboard" / name, at)] * tensorboard
        if wandb is not None:
            module, options = _wandb(), {"project": wandb} if isinstance(wandb, str) else dict(wandb)
            self.kinds.append(lambda name, at: WandB(module, {"name": name, "dir": str(self.folder), **options}))
        self.sinks: dict[str, list[Sink]] = {}
        self.since: dict[str, tuple[float, int, float]] = {}  # run -> the clock, the update and the seconds then
        self.began = time.monotonic()

    def __call__(self, look: Snapshot, **more: Sequence[float] | np.ndarray) -> None:
        """Write one look."""
        now, lines = time.monotonic(), []
        fresh = [self.names[i] for i in look.runs if self.names[i] not in self.sinks]
        if fresh:
            self._open(fresh, look.at)
        for place, number in enumerate(look.runs):
            name = self.names[number]
            clock, at, seconds = self.since[name]
            seconds += now - clock
            rate = (look.at - at) / max(now - clock, 1e-9)
            self.since[name] = now, look.at, seconds
            found = {key: float(values[place]) for key, values in (look.metrics | more).items()}
            line = {"seconds": round(seconds, 3), "updates/s": round(rate, 3), **found}
            # JSON has no word for NaN and infinity; null is what most readers make of them.
            plain = {key: value if math.isfinite(value) else None for key, value in line.items()}
            lines.append(json.dumps({"run": name, "at": look.at, **plain}, allow_nan=False) + "\n")
            for sink in self.sinks[name]:
                sink.write(look.at, line)
        # Runs that go one after another share a clock: the next one starts it anew.
        self.began = now
        _append(self.file, "".join(lines))

    def _open(self, names: list[str], at: int) -> None:
        """Begin or go on with some runs, of which nothing is known from update `at` on."""
        kept = [line for line in lines(self.file) if line["run"] not in names or line["at"] < at]
        write_text(self.file, "".join(json.dumps(line) + "\n" for line in kept))
        for name in names:
            last = max((line for line in kept if line["run"] == name), key=lambda x: x["at"], default={})
            self.since[name] = self.began, last.get("at", 0), last.get("seconds") or 0.0
            self.sinks[name] = [kind(name, at) for kind in self.kinds]

    def close(self) -> None:
        """Close what is open; the file of lines never is."""
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
    """The lines of a `metrics.jsonl`; one that was cut off while it was written is left out."""
    found = []
    for text in Path(file).read_text(errors="replace").splitlines() if Path(file).exists() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("at"), int) and "run" in line:
            found.append(line)
    return found


def _append(file: Path, text: str) -> None:
    try:
        with file.open("a") as stream:
            stream.write(text)
    except OSError as err:
        raise SsorlError(f"{file}: cannot be written ({err.strerror}); free the disk or choose another folder") from err


class WandB:
    """One run at Weights & Biases; a resumed one goes on under the same id and refuses steps it has."""

    def __init__(self, module: Any, options: dict[str, Any]) -> None:
        """`options` go to `wandb.init`."""
        key = "".join(c if c.isalnum() or c in "-_" else "-" for c in f"{Path(options['dir']).name}-{options['name']}")
        self.run = module.init(**{"id": key, "resume": "allow", "reinit": "create_new", **options})

    def write(self, at: int, values: Values) -> None:
        """One row."""
        self.run.log(values, step=at)

    def close(self) -> None:
        """Send the rest."""
        self.run.finish()


def _wandb() -> Any:
    require("wandb")
    import wandb  # type: ignore[import-not-found]

    return wandb
