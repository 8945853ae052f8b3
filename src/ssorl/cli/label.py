"""ssorl label: fill in missing actions."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from ssorl.cli.options import (
    Flat,
    Input,
    Json,
    OwnIdm,
    Preset,
    Recipe,
    WrittenFormat,
    arg,
    import_idm,
    note,
    print_json,
)
from ssorl.utils.errors import SsorlError


@dataclass(frozen=True)
class Label:
    """Fill in missing actions with an inverse dynamics model, and tell how far they are to be trusted.

    With a split (--fraction, --quality, … or --split) on data that has all its actions, the labels are held against
    the truth that was hidden.
    """

    input: Flat[Input]
    recipe: Flat[Recipe]
    out: Annotated[Path, arg("FILE", "ends in .npz, .hdf5 or .pkl, or is a folder with --to minari or lerobot")]
    to: WrittenFormat = None
    union: bool = False  # with two files: the labelled trajectories before the others, not the others alone
    split: Annotated[Path | None, arg("FILE", "hide the actions that this saved split hides")] = None
    idm: Annotated[str, arg("NAME|FOLDER", "paper, robust, or a model that --save-idm saved (robust)")] = "robust"
    idm_module: OwnIdm = None
    preset: Annotated[Preset | None, arg("{quick,paper}", "small networks for a CPU, or the full size (paper)")] = None
    steps: Annotated[int | None, arg("N", "updates, in place of the preset's")] = None
    members: Annotated[int | None, arg("N", "networks in the ensemble, in place of the preset's")] = None
    self_train: Annotated[int | None, arg("N", "rounds of self-training, the paper's Algorithm 2 (0)")] = None
    save_idm: Annotated[Path | None, arg("FOLDER", "keep the fitted model, for --idm")] = None
    report: Annotated[Path | None, arg("FILE", "draw the report to a PNG, its numbers to a .json beside it")] = None
    # Without `--no-stream`, which would promise that a file larger than memory is loaded all the same.
    stream: Annotated[
        tyro.conf.FlagCreatePairsOff[bool],
        arg("", "read and write some trajectories at a time, as is done by itself with a very large file"),
    ] = False
    force: bool = False  # replace what is there
    json: Json = False

    def run(self) -> None:
        """Load, fit or reuse, label, report, and only then write."""
        from ssorl.data.formats import writer
        from ssorl.idm.base import IdmSpec
        from ssorl.idm.fill import resolve
        from ssorl.utils.progress import Progress

        module = writer(self.out, self.to, self.force)  # what cannot be written is refused before the long part
        _check_free(self.force, self.out, *self._beside())
        import_idm(self.idm_module)
        model = resolve(self.idm, self.preset, self.steps, self.members, self.self_train)
        self._warn_of_the_hours(model)
        updates = model.work * (1 + (self.self_train or 0)) if isinstance(model, IdmSpec) else 0
        with Progress(
            {"reading": (0, "steps"), "fitting": (updates, "updates"), "labelling": (0, "steps")}
        ) as progress:
            told = (self._streamed if self._streams(module) else self._at_once)(model, module, progress)
        told = {**told, "out": str(self.out), "idm": self.idm, "preset": self.preset}
        if self.json:
            return print_json(told)
        from ssorl.cli.tables import show_labels

        return show_labels(told, [str(p) for p in (self.out, *self._beside())])

    def _at_once(self, model, module, progress) -> dict:
        """All data in memory."""
        from ssorl.data import save
        from ssorl.idm.fill import fill

        eps, learn_from, truth = self._load()
        _warn_of_proxies(eps.meta, progress)
        progress.totals["labelling"] = (int((~eps.labelled).sum()), "steps")
        rounds, seed = self.self_train or 0, self.recipe.seed or 0
        done = fill(eps, model, seed, rounds, learn_from=learn_from, truth=truth, progress=progress)
        with self._beside_it(done.ready) as tell:
            tell(done.report)
            save(done.eps, self.out, self.to, self.force, done.extras)
        return done.report

    def _streamed(self, model, module, progress) -> dict:
        """Some trajectories in memory at a time, from the first look to the last byte written."""
        from ssorl.idm.base import IdmSpec
        from ssorl.idm.stream import filling
        from ssorl.utils.files import atomic

        stream, first = self._open(progress, passes=1 + max(1, model.passes) if isinstance(model, IdmSpec) else 1)
        _warn_of_proxies(stream.meta, progress)
        progress.totals["labelling"] = (stream.n_steps - int(stream.start[first]), "steps")
        done = filling(stream, model, self.recipe.seed or 0, first, progress)
        with self._beside_it(done.ready) as tell, atomic(self.out) as fresh:
            module.save_parts(done.about, done.parts(progress), fresh)
            tell(done.report)
        return done.report

    def _warn_of_the_hours(self, model: object) -> None:
        import jax

        from ssorl.idm import IDMS

        if model in (IDMS["paper"], IDMS["robust"]) and jax.default_backend() == "cpu":
            note("ssorl: no GPU here, so this may take hours; --preset quick takes a minute")

    def _beside(self) -> list[Path]:
        """What is written besides the trajectories."""
        if self.report is not None and self.report.suffix.lower() not in (".png", ".pdf", ".svg"):
            raise SsorlError(f"{self.report}: end the name in .png, .pdf or .svg")
        drawn = [] if self.report is None else [self.report, self.report.with_suffix(".json")]
        return drawn + ([] if self.save_idm is None else [self.save_idm])

    def _streams(self, module) -> bool:
        """Whether to go through the data in parts: if asked to, or if the files are large and it can be done."""
        from ssorl.data.stream import exceeds_memory

        lacking = None
        if not hasattr(module, "save_parts"):
            lacking = (
                f"{self.out}: its format can only be written whole; leave out --stream, or choose another with --to"
            )
        elif self.self_train:
            lacking = "--self-train learns from its own labels, so all data must be in memory; leave out one of the two"
        if lacking and self.stream:
            raise SsorlError(lacking)
        names = [Path(n) for n in (self.input.dataset, self.input.labelled, self.input.unlabelled) if n]
        found = [n for n in names if n.exists() and n.suffix not in (".pkl", ".pickle")]
        return self.stream or (not lacking and len(found) == len(names) and exceeds_memory(*found))

    def _names(self) -> tuple[str, ...]:
        """The dataset, or the labelled and the unlabelled file; none where what was given makes no sense."""
        one = self.input
        if one.labelled and one.unlabelled and not one.dataset:
            if self.split is not None or self.recipe.asked_beyond_seed:
                raise SsorlError("a split hides actions of one dataset; with two files the second has none already")
            return one.labelled, one.unlabelled
        if self.union:
            raise SsorlError("--union joins two files; name them with --labelled and --unlabelled")
        return (one.dataset,) if one.dataset and one.size is None and not (one.labelled or one.unlabelled) else ()

    def _load(self):
        """What to fill, what to learn from where that is another set, and the truth where a split hides it."""
        from ssorl.data import apply, truth
        from ssorl.data.formats import load, pair
        from ssorl.idm.label import ignored

        one, names = self.input, self._names()
        if len(names) == 2:
            first, second = (load(name, one.format, one.min_length, actions=i == 0) for i, name in enumerate(names))
            both = pair(first, replace(second, meta=ignored(second.meta)))
            return (both, None, None) if self.union else (both[len(first) :], both, None)
        eps = one.load()
        split = self._split(eps)
        return (eps, None, None) if split is None else (apply(split, eps), None, truth(split, eps))

    def _open(self, progress, passes: int):
        """The same as a stream, and the number of the first trajectory to fill."""
        from ssorl.data.formats import open_parts
        from ssorl.data.stream import chain, open_stream
        from ssorl.data.validate import ReadOptions
        from ssorl.idm.label import ignored

        one, names = self.input, self._names()
        if not names:
            one.load()  # says what is wrong, or is of a dataset that is no file
            raise SsorlError(f"{one.dataset}: is not kept in a file that can be read in parts; leave out --stream")
        wishes = [ReadOptions(one.min_length), ReadOptions(one.min_length, actions=False)]
        files = [open_parts(name, one.format, w) for name, w in zip(names, wishes, strict=False)]
        progress.totals["reading"] = (passes * sum(f.n_steps for f in files), "steps")
        found = [
            open_stream(f, w, progress=lambda n: progress("reading", n)) for f, w in zip(files, wishes, strict=False)
        ]
        if len(found) == 2:
            known, other = found
            return chain(known, replace(other, meta=ignored(other.meta))), 0 if self.union else len(known)
        split = self._split(found[0])
        return (found[0] if split is None else found[0].split(split)), 0

    def _split(self, eps):
        """The split that was asked for, of Episodes or of a stream."""
        from ssorl.data import Split

        if self.split is not None:
            self.recipe.refuse_beside(self.split)
            return Split.load(self.split)
        return self.recipe.draw(eps) if self.recipe.asked_beyond_seed else None

    @contextmanager
    def _beside_it(self, ready):
        """Everything or nothing: the model and the report appear only once the trajectories are in place."""
        from ssorl.idm import serialise as files
        from ssorl.utils.files import atomic

        with ExitStack() as stack:
            if self.save_idm is not None:
                files.save(ready, stack.enter_context(atomic(self.save_idm)))
            drawn = [] if self.report is None else [self.report, self.report.with_suffix(".json")]
            fresh = [stack.enter_context(atomic(path)) for path in drawn]

            def tell(report: dict) -> None:
                if fresh:
                    from ssorl.report.labels import plot

                    plot(report, fresh[0])
                    fresh[1].write_text(json.dumps(report, indent=1, allow_nan=False))

            yield tell


def _warn_of_proxies(meta, progress) -> None:
    """Say that actions which are there were filled in before."""
    from ssorl.idm.label import counted_as_true

    for text in counted_as_true(meta):
        progress.say(f"note: {text}")


def _check_free(force: bool, *paths: Path) -> None:
    """Refuse to write over what is there, to write one thing over another, and to write where nothing can be."""
    import os

    from ssorl.idm.serialise import is_model

    if len({p.absolute() for p in paths}) < len(paths):
        raise SsorlError("two results have the same name; choose another for one of them")
    for path in paths[1:]:
        if path.exists() and not force:
            raise SsorlError(f"{path}: exists already; choose another name or pass --force")
        if path.is_dir() and not is_model(path):
            raise SsorlError(f"{path}: is a folder but no saved model, so nothing replaces it; choose another name")
    for path in paths:
        there = next(p for p in path.absolute().parents if p.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise SsorlError(f"{path}: cannot be written, {there} is no folder that may be; choose another name")
