"""Options that several commands share, in groups, and the ways in which commands print.

A group is a frozen dataclass; a command includes it as a field, and `--help` shows it as a box named after the field:
`split: SplitOptions` is the box "split options". The order of the groups is the same in every command: data, split,
inverse dynamics model, agent, evaluation.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ssorl.utils.errors import SsorlError
from ssorl.utils.progress import QUIET

if TYPE_CHECKING:
    from ssorl.data import Episodes, Split
    from ssorl.data.stream import Stream


def arg(metavar: str, text: str, default: object = None, name: str | None = None) -> Any:
    """Describe an option with a value.

    Args:
        metavar: placeholder of the value in the help.
        text: the help text.
        default: what the help shows as the default; nothing by default.
        name: name of the option without dashes; by default, the name of the field.
    """
    text = text if default is None else f"{text} (default: {default})"
    return tyro.conf.arg(name=name, metavar=metavar, help=text, help_behavior_hint="")  # tyro's hint: "default: None"


def flag(text: str) -> Any:
    """Describe an option without a value.

    Args:
        text: the help text.
    """
    return tyro.conf.arg(help=text, help_behavior_hint="")


Setup = Literal["coupled", "decoupled", "wide", "suggested"]
Third = Literal["low", "med", "high"]
Preset = Literal["auto", "quick", "paper"]
FORMATS = "npz, d4rl, minari, lerobot, parquet, pickle, robomimic, zarr"  # that are read and written
INSTALLED = "or a format of an installed package"
Past = Annotated[int | None, arg("N", "states before s_t that the model sees", "by the model")]
Future = Annotated[int | None, arg("N", "states after s_{t+1} that it sees", "by the model")]
SoftLimits = Annotated[
    tyro.conf.FlagCreatePairsOff[bool], flag("keep proxy actions off the limits of their range (blend does so)")
]
PLOT_SUFFIXES = (".png", ".pdf", ".svg")

Json = Annotated[bool, flag("print the result as JSON on standard output")]
Force = Annotated[bool, flag("replace existing files")]
Format = Annotated[str | None, arg("NAME", f"format of the files: {FORMATS}, aloha, ogbench, {INSTALLED}", "detected")]
OutFormat = Annotated[str | None, arg("NAME", f"format to write: {FORMATS}, {INSTALLED}", "from the suffix of --out")]
IdmModule = Annotated[
    str | None, arg("MODULE:NAME", "import the family of a saved --idm FOLDER if its package is not installed")
]
AgentClass = Annotated[str | None, arg("MODULE:CLASS", "import the policy's agent if its package is not installed")]

Fraction = Annotated[float | None, arg("F", "coupled: share of the trajectories that keep their actions", 0.1)]
QUALITY_HELP = "coupled: labelled trajectories come from the bottom Q % by return"
LabelledThird = Annotated[
    Third | None, arg("{low,med,high}", "decoupled: third by return of the labelled trajectories", "low")
]
LabelledFraction = Annotated[
    float | None, arg("F", "decoupled: number of labelled trajectories, as a share of the dataset", 0.1)
]
UnlabelledThird = Annotated[
    Third | None, arg("{low,med,high}", "decoupled: third by return of the unlabelled trajectories", "high")
]
UnlabelledFraction = Annotated[
    float | None, arg("F", "decoupled: number of unlabelled trajectories, as a share of the dataset", 0.1)
]
WhenDoubtful = Annotated[
    Literal["keep", "weight", "drop"],
    arg("{keep,weight,drop}", "proxy actions of trajectories whose forecast error is above 0.05", "keep"),
]


@dataclass(frozen=True)
class DataSource:
    """Options for reading trajectories, without the positional DATASET."""

    labelled: Annotated[str | None, arg("FILE", "in place of DATASET: trajectories with actions")] = None
    unlabelled: Annotated[str | None, arg("FILE", "with --labelled: trajectories whose actions are ignored")] = None
    format: Format = None
    size: Annotated[str | None, arg("N|full", "steps of a sim/ dataset", "a tenth of D4RL's")] = None
    min_length: Annotated[int, arg("N", "leave out trajectories of fewer than N steps", 0)] = 0
    state: Annotated[tuple[str, ...], arg("NAME …", "columns that make the state", "found by name")] = ()
    action: Annotated[tuple[str, ...], arg("NAME …", "columns that make the action", "found by name")] = ()
    reward: Annotated[str | None, arg("NAME", "column of rewards", "found by name")] = None
    episode: Annotated[str | None, arg("NAME", "column that tells trajectories apart", "found by name")] = None

    @property
    def columns(self) -> dict[str, Any]:
        """The columns that were named, as arguments of `ssorl.data.load`."""
        return {name: getattr(self, name) for name in ("state", "action", "reward", "episode")}


@dataclass(frozen=True)
class DataOptions(DataSource):
    """Which trajectories to read: DATASET, or the two files --labelled and --unlabelled."""

    dataset: Annotated[
        tyro.conf.Positional[str | None],
        arg("[DATASET]", "a name of `ssorl data list`, or the path of a file or folder"),
    ] = None

    def load(self) -> Episodes:
        """Return the trajectories.

        Raises:
            SsorlError: the options do not name one dataset or a pair of files.
            DataError: the data cannot be read.
        """
        from ssorl.data import load, load_pair

        if self.size is not None and not (self.dataset or "").startswith("sim/"):
            raise SsorlError("--size applies to simulated datasets (sim/…) only; leave it out")
        if self.dataset and not (self.labelled or self.unlabelled):
            name = self.dataset + (f":{self.size}" if self.size else "")
            return load(name, self.format, self.min_length, **self.columns)
        if self.labelled and self.unlabelled and not self.dataset:
            return load_pair(self.labelled, self.unlabelled, self.format, self.min_length, **self.columns)
        raise SsorlError("name one dataset, or both --labelled FILE and --unlabelled FILE")


@dataclass(frozen=True)
class SplitOptions:
    """Which actions to hide, by one of the paper's setups."""

    setup: Annotated[Setup | None, arg("{coupled,decoupled,wide,suggested}", "how to draw the split", "coupled")] = None
    fraction: Fraction = None
    quality: Annotated[float | None, arg("Q", QUALITY_HELP, 50)] = None
    labelled_third: LabelledThird = None
    labelled_fraction: LabelledFraction = None
    unlabelled_third: UnlabelledThird = None
    unlabelled_fraction: UnlabelledFraction = None
    seed: Annotated[int | None, arg("N", "seed of the split, and of a model that is fitted", 0)] = None

    def given(self, *leave_out: str) -> list[str]:
        """Return the names of the options that the user gave, except those to leave out."""
        return [name for name, value in vars(self).items() if value is not None and name not in leave_out]

    def draw(self, eps: Episodes | Stream) -> Split:
        """Draw the split of these trajectories; options that were not given have the setup's defaults.

        Raises:
            SsorlError: an option belongs to another setup.
            DataError: the split cannot be drawn from these trajectories.
        """
        from ssorl.data import cover, split

        setup = self.setup or "coupled"
        field_of = {  # parameter of the setup -> our field
            "coupled": {"fraction": "fraction", "quality": "quality"},
            "decoupled": {
                "labelled": "labelled_third",
                "labelled_fraction": "labelled_fraction",
                "unlabelled": "unlabelled_third",
                "unlabelled_fraction": "unlabelled_fraction",
            },
            "wide": {},
            "suggested": {"fraction": "fraction"},
        }[setup]
        if unused := self.given("file", "setup", "seed", *field_of.values()):
            options = ", ".join(map(option_name, unused))
            raise SsorlError(f"{options} has no effect in the {setup} setup; choose another setup with --setup")
        values = {name: getattr(self, field) for name, field in {**field_of, "seed": "seed"}.items()}
        draw = getattr(cover if setup == "suggested" else split, setup)
        return draw(eps, **{name: value for name, value in values.items() if value is not None})


@dataclass(frozen=True)
class SavedSplit:
    """A split from a file."""

    file: Annotated[
        Path | None, arg("FILE", "a split saved by `ssorl data split`, in place of the options below", name="split")
    ] = None


@dataclass(frozen=True)
class SplitOrFileOptions(SplitOptions, SavedSplit):
    """Which actions to hide: by one of the paper's setups, or as a saved split says."""

    def choose(self, eps: Episodes | Stream) -> Split | None:
        """Return the saved split or a new one; None if the user gave no split options besides the seed.

        Raises:
            SsorlError: the user gave a saved split and other split options.
            DataError: the split cannot be read or drawn.
        """
        from ssorl.data import Split

        others = self.given("file", "seed")
        if self.file is None:
            return self.draw(eps) if others else None
        if others:
            raise SsorlError(
                f"--split {self.file}: a saved split takes no other split options; leave out {option_name(others[0])}"
            )
        return Split.load(self.file)


def option_name(field: str) -> str:
    """Return the option of a field: `labelled_third` is `--labelled-third`."""
    return "--" + field.replace("_", "-")


def import_idm(name: str | None) -> None:
    """Import the family of a saved inverse dynamics model, if the user named one as MODULE:NAME."""
    if name is not None:
        from ssorl.idm import IDMS
        from ssorl.utils.registry import TrustedName

        IDMS.find(TrustedName(name))


def check_plot(path: Path) -> None:
    """Raise SsorlError if no plot can be written to this path."""
    if path.is_dir():
        raise SsorlError(f"{path}: is a folder; give a file name that ends in .png, .pdf or .svg")
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise SsorlError(f"{path}: end the name in .png, .pdf or .svg")


def check_outputs(force: bool, *paths: Path) -> None:
    """Raise SsorlError if an output exists, if two have the same name, or if a folder cannot be written.

    Args:
        force: replace existing files.
        *paths: the outputs; whether the first one exists is checked elsewhere.
    """
    import os

    from ssorl.idm.serialise import is_model

    if len({path.absolute() for path in paths}) < len(paths):
        raise SsorlError("two outputs have the same name; choose another name for one of them")
    for path in paths[1:]:
        if path.exists() and not force:
            raise SsorlError(f"{path}: exists already; choose another name or pass --force")
        if path.is_dir() and not is_model(path):
            raise SsorlError(f"{path}: is a folder but not a saved model, so it is not replaced; choose another name")
    for path in paths:
        parent = next(parent for parent in path.absolute().parents if parent.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise SsorlError(f"{path}: cannot be written, because {parent} is no writable folder; choose another name")


def note(text: str) -> None:
    """Print a remark on standard error, unless `--quiet` was given."""
    if not QUIET.get():
        print(text, file=sys.stderr, flush=True)


def print_result(as_json: bool, result: dict[str, Any]) -> None:
    """Print the result of a command that wrote files: as JSON, or as one sentence without empty entries."""
    if as_json:
        return print_json(result)
    from rich.console import Console

    parts = [
        f"{name.replace('_', ' ')} {f'{value:.3g}' if isinstance(value, float) else value}"
        for name, value in result.items()
        if value not in (None, (), [])
    ]
    console = Console()  # a path may look like markup or an emoji
    console.print(", ".join(parts), soft_wrap=not console.is_terminal, markup=False, emoji=False)
    return None


def print_json(value: object) -> None:
    """Print one JSON document on standard output."""
    print(json.dumps(value, indent=1, allow_nan=False))
