"""The command line, thin: parse, call, print. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ssorl.errors import SsorlError

Json = Annotated[bool, tyro.conf.arg(help="print the result as JSON on standard output")]
Format = Literal["npz", "d4rl", "minari", "lerobot", "pickle"]
Setup = Literal["coupled", "decoupled", "wide"]
Third = Literal["low", "med", "high"]
Preset = Literal["quick", "paper"]


def _arg(metavar: str, text: str):
    # "default: None" tells a reader nothing; where a default matters the text says it.
    return tyro.conf.arg(metavar=metavar, help=text, help_behavior_hint="")


@dataclass(frozen=True)
class Input:
    """Where the trajectories are: a name (see `ssorl data list`) or a path, or a labelled and an unlabelled file."""

    dataset: Annotated[
        tyro.conf.Positional[str | None],
        _arg("[DATASET]", "builtin/…, sim/…, d4rl/…, minari/…, or the path of a file or folder"),
    ] = None
    labelled: Annotated[str | None, _arg("FILE", "in place of DATASET: trajectories with actions")] = None
    unlabelled: Annotated[str | None, _arg("FILE", "and trajectories whose actions are absent or to be ignored")] = None
    format: Annotated[Format | None, _arg("{npz,d4rl,minari,lerobot,pickle}", "read as this format")] = None
    size: Annotated[str | None, _arg("N|full", "of a sim/ dataset, in steps (a tenth of D4RL's)")] = None
    min_length: Annotated[int, _arg("N", "leave out trajectories of fewer steps (0)")] = 0

    def load(self):
        """The trajectories."""
        from ssorl.data import load, load_pair

        if self.size is not None and not (self.dataset or "").startswith("sim/"):
            raise SsorlError("--size is for the simulated datasets, sim/…; other data has the size it has")
        if self.dataset and not (self.labelled or self.unlabelled):
            return load(self.dataset + (f":{self.size}" if self.size else ""), self.format, self.min_length)
        if self.labelled and self.unlabelled and not self.dataset:
            return load_pair(self.labelled, self.unlabelled, self.format, self.min_length)
        raise SsorlError("name one dataset, or both --labelled FILE and --unlabelled FILE")


@dataclass(frozen=True)
class Recipe:
    """Which actions to hide: the paper's setups."""

    setup: Annotated[Setup | None, _arg("{coupled,decoupled,wide}", "which setup; coupled if another is not named")] = (
        None
    )
    fraction: Annotated[float | None, _arg("F", "coupled: share of trajectories that keep their actions (0.1)")] = None
    quality: Annotated[float | None, _arg("Q", "coupled: those come from the bottom Q % by return (50)")] = None
    labelled_third: Annotated[Third | None, _arg("{low,med,high}", "decoupled: labelled ones come from (low)")] = None
    labelled_fraction: Annotated[float | None, _arg("F", "decoupled: how many, as share of the dataset (0.1)")] = None
    unlabelled_third: Annotated[Third | None, _arg("{low,med,high}", "decoupled: unlabelled ones come from (high)")] = (
        None
    )
    unlabelled_fraction: Annotated[float | None, _arg("F", "decoupled: how many, as share of the dataset (0.1)")] = None
    seed: Annotated[int | None, _arg("N", "of the draw, and of what is fitted (0)")] = None

    @property
    def asked(self) -> bool:
        """Whether any of it was given."""
        return any(value is not None for value in vars(self).values())

    @property
    def asked_beyond_seed(self) -> bool:
        """Whether any of it was given other than the seed, which fitting uses too."""
        return any(value is not None for name, value in vars(self).items() if name != "seed")

    def draw(self, eps):
        """The split of these trajectories; what was not given has the default of the function that draws it."""
        from ssorl.data import split

        setup = self.setup or "coupled"
        names = {
            "coupled": {"fraction": "fraction", "quality": "quality"},
            "decoupled": {
                "labelled": "labelled_third",
                "labelled_fraction": "labelled_fraction",
                "unlabelled": "unlabelled_third",
                "unlabelled_fraction": "unlabelled_fraction",
            },
            "wide": {},
        }[setup]
        foreign = [k for k, v in vars(self).items() if v is not None and k not in (*names.values(), "setup", "seed")]
        if foreign:
            flags = ", ".join("--" + k.replace("_", "-") for k in foreign)
            raise SsorlError(f"{flags} means nothing in the {setup} setup; name the setup you mean with --setup")
        given = {k: getattr(self, v) for k, v in {**names, "seed": "seed"}.items() if getattr(self, v) is not None}
        return getattr(split, setup)(eps, **given)


Flat = tyro.conf.OmitArgPrefixes


@dataclass(frozen=True)
class DataList:
    """List the datasets that can be named."""

    json: Json = False

    def run(self) -> None:
        """Print a table."""
        from ssorl.data.catalogue import catalogue

        rows = catalogue()
        if self.json:
            return _print_json(rows)
        from ssorl.report.terminal import show_catalogue

        return show_catalogue(rows)


@dataclass(frozen=True)
class DataShow:
    """Show what is in a dataset: counts, returns, ranges, and what looks odd."""

    input: Flat[Input]
    recipe: Flat[Recipe]
    split: Annotated[Path | None, _arg("FILE", "hide the actions that this saved split hides")] = None
    plot: Annotated[Path | None, _arg("FILE", "draw return densities, with against without actions, to a PNG")] = None
    json: Json = False

    def run(self) -> None:
        """Load, split if asked, print, draw."""
        from ssorl.data.split import Split, apply
        from ssorl.data.stats import profile

        if self.plot is not None and (self.plot.suffix.lower() not in (".png", ".pdf", ".svg") or self.plot.is_dir()):
            raise SsorlError(f"{self.plot}: {'is a folder; ' * self.plot.is_dir()}end the name in .png, .pdf or .svg")
        eps = self.input.load()
        if self.split is not None:
            eps = apply(Split.load(self.split), eps)
        elif self.recipe.asked:
            eps = apply(self.recipe.draw(eps), eps)
        told = profile(eps)
        if self.plot is not None:
            from ssorl.report.density import plot

            plot(eps, self.plot)
            told["plot"] = str(self.plot)
        if self.json:
            return _print_json(told)
        from ssorl.report.terminal import show_profile

        return show_profile(told)


@dataclass(frozen=True)
class DataConvert:
    """Write a dataset in another format (a pair becomes one file with missing actions)."""

    input: Flat[Input]
    out: Annotated[Path, _arg("FILE", "ends in .npz, .hdf5 or .pkl, or is a folder with --to minari or lerobot")]
    to: Annotated[Format | None, _arg("{npz,d4rl,minari,lerobot,pickle}", "the format, where the suffix says none")] = (
        None
    )
    force: bool = False  # replace what is there
    json: Json = False

    def run(self) -> None:
        """Load and save."""
        from ssorl.data import save

        eps = self.input.load()
        save(eps, self.out, self.to, self.force)
        _done(
            self.json,
            {"out": str(self.out), "trajectories": len(eps), "steps": eps.n_steps, "notes": eps.meta.notes},
        )


@dataclass(frozen=True)
class DataSplit:
    """Draw one of the paper's splits and save it; with --data also the trajectories with actions hidden."""

    input: Flat[Input]
    recipe: Flat[Recipe]
    out: Annotated[Path, _arg("FILE", "the split: trajectory numbers, seed, how it was drawn (split.json)")] = Path(
        "split.json"
    )
    data: Annotated[Path | None, _arg("FILE", "also write the trajectories, NaN over every hidden action")] = None
    force: bool = False  # replace what is there
    json: Json = False

    def run(self) -> None:
        """Load, draw, save."""
        from ssorl.data import apply, save
        from ssorl.errors import DataError
        from ssorl.store import atomic

        eps = self.input.load()
        drawn = self.recipe.draw(eps)
        for path in (self.out, self.data):
            if path is not None and path.exists() and not self.force:
                raise DataError(f"{path}: exists already; choose another name or pass --force")
        if self.out == self.data or self.out.is_dir():
            raise DataError(f"{self.out}: is a folder or the same as --data; choose another name for --out")
        with atomic(self.out) as fresh:  # the split gets its name only once the data is written too
            drawn.save(fresh)
            if self.data is not None:
                save(apply(drawn, eps), self.data, force=self.force)
        told = {"out": str(self.out), "data": None if self.data is None else str(self.data)}
        _done(
            self.json,
            {**told, "labelled": len(drawn.labelled), "unlabelled": len(drawn.unlabelled), **drawn.recipe},
        )


@dataclass(frozen=True)
class Data:
    """Look at data, convert it, split it."""

    command: (
        Annotated[DataList, tyro.conf.subcommand("list")]
        | Annotated[DataShow, tyro.conf.subcommand("show")]
        | Annotated[DataConvert, tyro.conf.subcommand("convert")]
        | Annotated[DataSplit, tyro.conf.subcommand("split")]
    )

    def run(self) -> None:
        """Run the chosen command."""
        self.command.run()


@dataclass(frozen=True)
class Label:
    """Fill in missing actions with an inverse dynamics model, and tell how far they are to be trusted.

    With a split (--fraction, --quality, … or --split) on data that has all its actions, the labels are held against
    the truth that was hidden.
    """

    input: Flat[Input]
    recipe: Flat[Recipe]
    out: Annotated[Path, _arg("FILE", "ends in .npz, .hdf5 or .pkl, or is a folder with --to minari or lerobot")]
    to: Annotated[Format | None, _arg("{npz,d4rl,minari,lerobot,pickle}", "the format, where the suffix says none")] = (
        None
    )
    union: bool = False  # with two files: the labelled trajectories before the others, not the others alone
    split: Annotated[Path | None, _arg("FILE", "hide the actions that this saved split hides")] = None
    idm: Annotated[str, _arg("NAME|FOLDER", "paper, robust, or a model that --save-idm saved (robust)")] = "robust"
    preset: Annotated[Preset | None, _arg("{quick,paper}", "small networks for a CPU, or the full size (paper)")] = None
    steps: Annotated[int | None, _arg("N", "updates, in place of the preset's")] = None
    members: Annotated[int | None, _arg("N", "networks in the ensemble, in place of the preset's")] = None
    self_train: Annotated[int | None, _arg("N", "rounds of self-training, the paper's Algorithm 2 (0)")] = None
    save_idm: Annotated[Path | None, _arg("FOLDER", "keep the fitted model, for --idm")] = None
    report: Annotated[Path | None, _arg("FILE", "draw the report to a PNG, its numbers to a .json beside it")] = None
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
            return _print_json(told)
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


@dataclass(frozen=True)
class BehaviourList:
    """List the bundled policies: how long each was trained and what it earns."""

    json: Json = False

    def run(self) -> None:
        """Print a table."""
        from ssorl.behaviour.datasets import bundled

        rows = bundled()
        if self.json:
            return _print_json(rows)
        from ssorl.report.terminal import show_policies

        return show_policies(rows)


@dataclass(frozen=True)
class BehaviourTrain:
    """Train collectors with soft actor-critic, as the bundled ones were; interrupted, the same command goes on."""

    env: Annotated[tyro.conf.Positional[str], _arg("ENV", "hopper, walker2d, halfcheetah or a Gymnasium id")]
    steps: Annotated[int, _arg("N", "environment steps for each seed (1000000)")] = 1_000_000
    seeds: Annotated[tuple[int, ...], _arg("K [K …]", "trained side by side in one program (0)")] = (0,)
    critic_norm: bool = False  # layer norm in the critics, as the bundled halfcheetah had
    out: Annotated[Path | None, _arg("FOLDER", "curve, snapshots, checkpoint (runs/behaviour/ENV)")] = None
    max_seconds: Annotated[float | None, _arg("S", "stop cleanly after so long")] = None
    json: Json = False

    def run(self) -> None:
        """Train."""
        from ssorl.behaviour.train import TrainConfig, train

        out = self.out or Path("runs/behaviour") / self.env
        config = TrainConfig(env=self.env, seeds=self.seeds, steps=self.steps, critic_norm=self.critic_norm)
        done = train(config, out, max_seconds=self.max_seconds)
        _done(self.json, {"out": str(out), "finished": done})


@dataclass(frozen=True)
class Behaviour:
    """The policies that make the simulated datasets."""

    command: (
        Annotated[BehaviourList, tyro.conf.subcommand("list")]
        | Annotated[BehaviourTrain, tyro.conf.subcommand("train")]
    )

    def run(self) -> None:
        """Run the chosen command."""
        self.command.run()


def _done(as_json: bool, told: dict) -> None:
    if as_json:
        return _print_json(told)
    from rich.console import Console

    Console().print(", ".join(f"{k} {v}" for k, v in told.items() if v not in (None, (), [])), soft_wrap=True)
    return None


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=1, allow_nan=False))


@dataclass(frozen=True)
class Cli:
    """Train control policies when most logged trajectories have no actions."""

    command: (
        Annotated[Data, tyro.conf.subcommand("data")]
        | Annotated[Label, tyro.conf.subcommand("label")]
        | Annotated[Behaviour, tyro.conf.subcommand("behaviour")]
    )


def main(args: list[str] | None = None) -> None:
    """Entry point: 0 when all went well, 2 with one sentence when the user can mend it."""
    try:
        tyro.cli(
            Cli, prog="ssorl", args=args, config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes)
        ).command.run()
    except SsorlError as err:
        print(f"ssorl: {err}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("ssorl: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
