"""ssorl label: fill in missing actions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ssorl.cli.options import (
    DataOptions,
    Force,
    Future,
    IdmModule,
    Json,
    OutFormat,
    Past,
    Preset,
    SoftLimits,
    SplitOrFileOptions,
    WhenDoubtful,
    arg,
    check_outputs,
    check_plot,
    flag,
    import_idm,
    note,
    print_json,
)
from ssorl.utils.errors import SsorlError

if TYPE_CHECKING:
    import numpy as np

    from ssorl.data import Episodes
    from ssorl.data.episodes import Meta
    from ssorl.data.stream import Stream
    from ssorl.envs.models import KnownModel
    from ssorl.idm.base import IdmSpec
    from ssorl.idm.fill import LabelledData
    from ssorl.idm.label import Labeller
    from ssorl.idm.stream import StreamLabelling
    from ssorl.utils.progress import Progress


@dataclass(frozen=True)
class LabelModelOptions:
    """The model that estimates the missing actions."""

    idm: Annotated[str, arg("NAME|FOLDER", "blend, robust, paper, or a model saved by --save-idm", "blend")] = "blend"
    idm_module: IdmModule = None
    preset: Annotated[
        Preset | None, arg("{auto,quick,paper}", "small networks for a CPU, or full size; auto: by the machine", "auto")
    ] = None
    steps: Annotated[int | None, arg("N", "updates, in place of the preset's")] = None
    members: Annotated[int | None, arg("N", "networks in the ensemble, in place of the preset's")] = None
    past: Past = None
    future: Future = None
    soft_limits: SoftLimits = False
    self_train: Annotated[int | None, arg("N", "rounds of self-training (the paper's Algorithm 2)", 0)] = None
    save_idm: Annotated[Path | None, arg("FOLDER", "save the fitted model, for use with --idm")] = None
    when_doubtful: WhenDoubtful = "keep"


@dataclass(frozen=True)
class SimulatorOptions:
    """Dynamics that are known, to compute actions that reproduce the data."""

    simulator: Annotated[
        str | None, arg("ENV|MODEL.xml", "verify labels with Hopper-v4, maze2d-umaze-dense, … or an MJCF model")
    ] = None
    state_map: Annotated[Path | None, arg("FILE", "of a MODEL.xml: what the numbers of an observation are")] = None

    def load(self) -> KnownModel | None:
        """Return the model, or None if none was named."""
        from ssorl.envs.models import known_or_none

        return known_or_none(self.simulator, self.state_map)


@dataclass(frozen=True)
class Label:
    """Fill in missing actions, and report how accurate they are.

    An inverse dynamics model is fitted to the steps that have an action, and estimates the other actions. If all
    actions are known, the split options hide some of them, and the estimates are compared with the truth.
    """

    data: DataOptions
    split: SplitOrFileOptions
    model: Annotated[LabelModelOptions, tyro.conf.arg(name="inverse dynamics model")]
    known: Annotated[SimulatorOptions, tyro.conf.arg(name="known simulator")]
    out: Annotated[
        Path | None, arg("FILE", "ends in .npz, .hdf5, .pkl or .parquet, or is a folder with --to minari or lerobot")
    ] = None
    into: Annotated[
        Path | None, arg("FOLDER", "in place of --out: a copy of the LeRobot dataset, with its missing actions filled")
    ] = None
    to: OutFormat = None
    union: Annotated[bool, flag("with two files: write the labelled trajectories too, before the others")] = False
    report: Annotated[Path | None, arg("FILE", "draw the report to a PNG, and write its numbers to a .json")] = None
    # Without `--no-stream`, which would promise that a file larger than memory is loaded all the same.
    stream: Annotated[
        tyro.conf.FlagCreatePairsOff[bool], flag("read and write in parts; very large files are always read so")
    ] = False
    force: Force = False
    json: Json = False

    def run(self) -> None:
        """Fit or load the model, label, and only then write."""
        from ssorl.idm import IDMS
        from ssorl.idm.base import IdmSpec
        from ssorl.idm.fill import resolve
        from ssorl.idm.worth import check_drop, treat_doubtful
        from ssorl.utils.files import atomic
        from ssorl.utils.progress import Progress

        options = self.model
        format_module, out = self._output()  # raises now, not after the fit
        check_outputs(self.force, out, *self._side_outputs())
        import_idm(options.idm_module)
        simulator = self.known.load()
        preset = options.preset or ("auto" if IDMS.known(options.idm) else None)
        window = (options.past, options.future, options.soft_limits or None)
        model = resolve(options.idm, preset, options.steps, options.members, options.self_train, *window)
        check_drop(options.when_doubtful, model, options.idm)
        _warn_slow_on_cpu(model)
        updates = model.work * (1 + (options.self_train or 0)) if isinstance(model, IdmSpec) else 0
        tasks = {"reading": (0, "steps"), "fitting": (updates, "updates"), "labelling": (0, "steps")}
        in_parts = self._in_parts(format_module)
        with Progress(tasks | ({} if simulator is None else {"inverting": (0, "steps")})) as progress:
            if in_parts:
                labelled = self._label_stream(model, progress)
            else:
                labelled = self._label_in_memory(model, simulator, progress)
            labelled = treat_doubtful(labelled, options.when_doubtful)
            with self._write_side_outputs(labelled.ready) as write_report, atomic(out) as fresh:
                labelled.write(fresh, format_module)
                write_report(labelled.report)
        result = {**labelled.report, "out": str(out), "idm": options.idm, "preset": options.preset}
        if self.json:
            return print_json(result)
        from ssorl.cli.tables import show_labels

        return show_labels(result, [str(path) for path in (out, *self._side_outputs())])

    def _output(self) -> tuple[Any, Path]:
        """Return the format to write and where, or the copy of a LeRobot dataset and where."""
        from ssorl.data.formats import locate, writer
        from ssorl.data.formats.lerobot_copy import LeRobotCopy

        if self.out is not None and self.into is None:
            return writer(self.out, self.to, self.force), self.out
        if self.into is None or self.out is not None:
            raise SsorlError("name one place to write to: --out FILE, or --into FOLDER for a copy of a LeRobot dataset")
        source = self.data.unlabelled if self.data.labelled else self.data.dataset
        given = {"--to": self.to, "--union": self.union, "--stream": self.stream, "--size": self.data.size}
        odd = next((name for name, value in given.items() if value), None)
        if odd is None and self.split.given("seed"):
            odd = "a split"
        if odd or source is None:
            what = f"{odd} has no effect with --into; leave it out" if odd else "--into copies one dataset; name it"
            raise SsorlError(f"{what} (known actions are kept, missing ones are filled)")
        return LeRobotCopy(locate(source), self.into, self.data.min_length, self.force), self.into

    def _label_in_memory(
        self, model: IdmSpec | Labeller, simulator: KnownModel | None, progress: Progress
    ) -> LabelledData:
        """Label with all data in memory, and verify the labels if a simulator is known."""
        from ssorl.idm.fill import fill

        eps, learn_from, truth = self._load()
        _warn_of_proxies(eps.meta, progress)
        progress.totals["labelling"] = (int((~eps.labelled).sum()), "steps")
        rounds, seed = self.model.self_train or 0, self.split.seed or 0
        if simulator is None:
            return fill(eps, model, seed, rounds, learn_from=learn_from, truth=truth, progress=progress)
        from ssorl.idm.certify import certify
        from ssorl.idm.invert import check_sizes

        check_sizes(eps if learn_from is None else learn_from, simulator)  # raises now, not after the fit
        progress.totals["inverting"] = progress.totals["labelling"]
        labelled = fill(eps, model, seed, rounds, learn_from=learn_from, truth=truth, progress=progress)
        return certify(labelled, eps, simulator, learn_from, truth, partial(progress, "inverting"))

    def _label_stream(self, model: IdmSpec | Labeller, progress: Progress) -> StreamLabelling:
        """Label with a few trajectories in memory at a time, while they are written."""
        from ssorl.idm.base import IdmSpec
        from ssorl.idm.fill import fill

        passes = 1 + max(1, model.passes) if isinstance(model, IdmSpec) else 1
        stream, first = self._open_stream(progress, passes)
        _warn_of_proxies(stream.meta, progress)
        progress.totals["labelling"] = (stream.n_steps - int(stream.start[first]), "steps")
        return fill(stream, model, self.split.seed or 0, first=first, progress=progress)

    def _side_outputs(self) -> list[Path]:
        """Return the paths to write besides the trajectories: the report, its numbers, the model."""
        paths = self._report_paths()
        return paths if self.model.save_idm is None else [*paths, self.model.save_idm]

    def _report_paths(self) -> list[Path]:
        if self.report is None:
            return []
        check_plot(self.report)
        return [self.report, self.report.with_suffix(".json")]

    @contextmanager
    def _write_side_outputs(self, ready: Labeller) -> Iterator[Callable[[dict], None]]:
        """Yield a function that writes the report; report and model get their names only if the block succeeds."""
        from ssorl.idm import serialise
        from ssorl.utils.files import atomic

        with ExitStack() as stack:
            if self.model.save_idm is not None:
                serialise.save(ready, stack.enter_context(atomic(self.model.save_idm)))
            fresh = [stack.enter_context(atomic(path)) for path in self._report_paths()]

            def write_report(report: dict) -> None:
                if fresh:
                    from ssorl.report.labels import plot

                    plot(report, fresh[0])
                    fresh[1].write_text(json.dumps(report, indent=1, allow_nan=False))

            yield write_report

    def _in_parts(self, format_module: Any) -> bool:
        """Return whether to read in parts: if the user asked for it, or if the files are large and it is possible."""
        from ssorl.data.stream import exceeds_memory

        obstacle = None
        if not hasattr(format_module, "save_parts"):
            obstacle = (
                f"{self.out or self.into}: its format can only be written whole; leave out --stream, or choose another "
                "with --to"
            )
        elif self.model.when_doubtful != "keep":
            obstacle = "--when-doubtful needs all data in memory; leave out --when-doubtful or --stream"
        elif self.model.self_train:
            obstacle = "--self-train needs all data in memory; leave out --self-train or --stream"
        elif self.known.simulator:
            obstacle = "--simulator needs all data in memory; leave out --simulator or --stream"
        if obstacle and self.stream:
            raise SsorlError(obstacle)
        data = self.data
        names = [Path(name) for name in (data.dataset, data.labelled, data.unlabelled) if name]
        files = [name for name in names if name.exists() and name.suffix not in (".pkl", ".pickle")]
        return self.stream or (not obstacle and len(files) == len(names) and exceeds_memory(*files))

    def _file_names(self) -> tuple[str, ...]:
        """Return the dataset, or the labelled and the unlabelled file; nothing if the data is not in files."""
        data = self.data
        if data.labelled and data.unlabelled and not data.dataset:
            if self.split.given("seed"):
                raise SsorlError(
                    "a split hides actions of one dataset, but of two files the second has none; leave out the split "
                    "options"
                )
            return data.labelled, data.unlabelled
        if self.union:
            raise SsorlError("--union joins two files; name them with --labelled and --unlabelled")
        return (data.dataset,) if data.dataset and data.size is None and not (data.labelled or data.unlabelled) else ()

    def _load(self) -> tuple[Episodes, Episodes | None, np.ndarray | None]:
        """Return the trajectories to fill, those to fit the model to (None: the same), and the hidden actions."""
        from ssorl.data import apply, truth
        from ssorl.data.formats import load, pair
        from ssorl.idm.label import ignored

        data, names = self.data, self._file_names()
        if len(names) == 2:
            first, second = (
                load(name, data.format, data.min_length, actions=i == 0, **data.columns) for i, name in enumerate(names)
            )
            both = pair(first, replace(second, meta=ignored(second.meta)))
            return (both, None, None) if self.union else (both[len(first) :], both, None)
        eps = data.load()
        split = self.split.choose(eps)
        return (eps, None, None) if split is None else (apply(split, eps), None, truth(split, eps))

    def _open_stream(self, progress: Progress, passes: int) -> tuple[Stream, int]:
        """Return the trajectories as a stream, and the number of the first trajectory to fill.

        Args:
            progress: reports the steps that are read.
            passes: how often the data will be read.
        """
        from ssorl.data.formats import open_parts
        from ssorl.data.options import Columns, ReadOptions
        from ssorl.data.stream import chain, open_stream
        from ssorl.idm.label import ignored

        data, names = self.data, self._file_names()
        if not names:
            data.load()  # raises if the data options are invalid
            raise SsorlError(f"{data.dataset}: is not a file that can be read in parts; leave out --stream")
        columns = Columns(**data.columns)
        options = [ReadOptions(data.min_length, actions, columns=columns) for actions in (True, False)]
        files = [open_parts(name, data.format, option) for name, option in zip(names, options, strict=False)]
        progress.totals["reading"] = (passes * sum(file.n_steps for file in files), "steps")
        streams = [
            open_stream(file, option, progress=lambda n: progress("reading", n))
            for file, option in zip(files, options, strict=False)
        ]
        if len(streams) == 2:
            known, other = streams
            return chain(known, replace(other, meta=ignored(other.meta))), 0 if self.union else len(known)
        split = self.split.choose(streams[0])
        return (streams[0] if split is None else streams[0].split(split)), 0


def _warn_slow_on_cpu(model: object) -> None:
    import jax

    from ssorl.idm import IDMS

    if model in (IDMS["paper"], IDMS["robust"]) and jax.default_backend() == "cpu":
        note("ssorl: there is no GPU, so the fit may take hours; --preset quick takes a minute")


def _warn_of_proxies(meta: Meta, progress: Progress) -> None:
    """Print a note if actions of the data are proxies themselves."""
    from ssorl.idm.label import counted_as_true

    for text in counted_as_true(meta):
        progress.say(f"note: {text}")
