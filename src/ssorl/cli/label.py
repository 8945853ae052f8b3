"""ssorl label: fill in missing actions."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ssorl.cli.shared import Flat, Format, Input, Json, Preset, Recipe, arg, print_json
from ssorl.errors import SsorlError


@dataclass(frozen=True)
class Label:
    """Fill in missing actions with an inverse dynamics model, and tell how far they are to be trusted.

    With a split (--fraction, --quality, … or --split) on data that has all its actions, the labels are held against
    the truth that was hidden.
    """

    input: Flat[Input]
    recipe: Flat[Recipe]
    out: Annotated[Path, arg("FILE", "ends in .npz, .hdf5 or .pkl, or is a folder with --to minari or lerobot")]
    to: Annotated[Format | None, arg("{npz,d4rl,minari,lerobot,pickle}", "the format, where the suffix says none")] = (
        None
    )
    union: bool = False  # with two files: the labelled trajectories before the others, not the others alone
    split: Annotated[Path | None, arg("FILE", "hide the actions that this saved split hides")] = None
    idm: Annotated[str, arg("NAME|FOLDER", "paper, robust, or a model that --save-idm saved (robust)")] = "robust"
    preset: Annotated[Preset | None, arg("{quick,paper}", "small networks for a CPU, or the full size (paper)")] = None
    steps: Annotated[int | None, arg("N", "updates, in place of the preset's")] = None
    members: Annotated[int | None, arg("N", "networks in the ensemble, in place of the preset's")] = None
    self_train: Annotated[int | None, arg("N", "rounds of self-training, the paper's Algorithm 2 (0)")] = None
    save_idm: Annotated[Path | None, arg("FOLDER", "keep the fitted model, for --idm")] = None
    report: Annotated[Path | None, arg("FILE", "draw the report to a PNG, its numbers to a .json beside it")] = None
    force: bool = False  # replace what is there
    json: Json = False

    def run(self) -> None:
        """Load, fit or reuse, label, report, and only then write."""
        from ssorl.data.sources import writer
        from ssorl.idm.fill import fill, resolve
        from ssorl.report.progress import Progress

        writer(self.out, self.to, self.force)  # whatever cannot be written is refused before the long part
        _check_free(self.force, self.out, *self._beside())
        model = resolve(self.idm, self.preset, self.steps, self.members, self.self_train)
        self._warn_of_the_hours(model)
        eps, learn_from, truth = self._load()
        updates = getattr(model, "steps", 0) * getattr(model, "members", 0) * (1 + (self.self_train or 0))
        totals = {"fitting": (updates, "updates"), "labelling": (int((~eps.labelled).sum()), "steps")}
        with Progress(totals) as progress:
            seed = self.recipe.seed or 0
            done = fill(eps, model, seed, self.self_train or 0, learn_from=learn_from, truth=truth, progress=progress)
        self._write(done)
        told = {**done.report, "out": str(self.out), "idm": self.idm, "preset": self.preset}
        if self.json:
            return print_json(told)
        from ssorl.report.terminal import show_labels

        return show_labels(told, [str(p) for p in (self.out, *self._beside())])

    def _warn_of_the_hours(self, model: object) -> None:
        import jax

        from ssorl.idm import IDMS

        if model in (IDMS["paper"], IDMS["robust"]) and jax.default_backend() == "cpu":
            print("ssorl: no GPU here, so this may take hours; --preset quick takes a minute", file=sys.stderr)

    def _beside(self) -> list[Path]:
        """What is written besides the trajectories."""
        if self.report is not None and self.report.suffix.lower() not in (".png", ".pdf", ".svg"):
            raise SsorlError(f"{self.report}: end the name in .png, .pdf or .svg")
        drawn = [] if self.report is None else [self.report, self.report.with_suffix(".json")]
        return drawn + ([] if self.save_idm is None else [self.save_idm])

    def _load(self):
        """What to fill, what to learn from where that is another set, and the truth where a split hides it."""
        from ssorl.data import Split, apply, truth
        from ssorl.data.sources import load, pair

        one = self.input
        if one.labelled and one.unlabelled and not one.dataset:
            if self.split is not None or self.recipe.asked_beyond_seed:
                raise SsorlError("a split hides actions of one dataset; with two files the second has none already")
            first, second = (load(name, one.format, one.min_length) for name in (one.labelled, one.unlabelled))
            both = pair(first, second)
            return (both, None, None) if self.union else (both[len(first) :], both, None)
        if self.union:
            raise SsorlError("--union joins two files; name them with --labelled and --unlabelled")
        eps = one.load()
        if self.split is None and not self.recipe.asked_beyond_seed:
            return eps, None, None
        split = Split.load(self.split) if self.split is not None else self.recipe.draw(eps)
        return apply(split, eps), None, truth(split, eps)

    def _write(self, done) -> None:
        """Everything or nothing: what is beside the trajectories appears only once these are in place."""
        from contextlib import ExitStack

        from ssorl.data import save
        from ssorl.idm import files
        from ssorl.store import atomic

        with ExitStack() as stack:
            if self.save_idm is not None:
                files.save(done.ready, stack.enter_context(atomic(self.save_idm)))
            if self.report is not None:
                from ssorl.report.labels import plot

                plot(done.report, stack.enter_context(atomic(self.report)))
                numbers = json.dumps(done.report, indent=1, allow_nan=False)
                stack.enter_context(atomic(self.report.with_suffix(".json"))).write_text(numbers)
            save(done.eps, self.out, self.to, self.force, done.extras)


def _check_free(force: bool, *paths: Path) -> None:
    """Refuse to write over what is there, to write one thing over another, and to write where nothing can be."""
    import os

    from ssorl.idm.files import is_model

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
