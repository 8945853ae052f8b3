"""What the commands have in common: where data comes from, how to split it, how to answer."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from ssorl.utils.errors import SsorlError
from ssorl.utils.progress import QUIET


def arg(metavar: str, text: str):
    """How an option looks in the help."""
    # "default: None" tells a reader nothing; where a default matters the text says it.
    return tyro.conf.arg(metavar=metavar, help=text, help_behavior_hint="")


Json = Annotated[bool, tyro.conf.arg(help="print the result as JSON on standard output")]
Format = Annotated[
    str | None, arg("NAME", "read as npz, d4rl, minari, lerobot, pickle or the format of a package (found by itself)")
]
WrittenFormat = Annotated[
    str | None, arg("NAME", "write npz, d4rl, minari, lerobot, pickle or the format of a package (by --out's suffix)")
]
OwnIdm = Annotated[
    str | None, arg("MODULE:NAME", "import the family of a saved --idm FOLDER, if its package is not installed")
]
OwnAgent = Annotated[
    str | None, arg("MODULE:CLASS", "import the policy's agent, if it is of a package that is not installed")
]
Setup = Literal["coupled", "decoupled", "wide"]
Third = Literal["low", "med", "high"]
Preset = Literal["quick", "paper"]


def import_idm(name: str | None) -> None:
    """Make known the family of a saved inverse dynamics model that the user named."""
    if name is not None:
        from ssorl.idm import IDMS
        from ssorl.utils.registry import TrustedName

        IDMS.find(TrustedName(name))


@dataclass(frozen=True)
class Source:
    """Where the trajectories are, if not named by a word, and how to read them."""

    labelled: Annotated[str | None, arg("FILE", "in place of DATASET: trajectories with actions")] = None
    unlabelled: Annotated[str | None, arg("FILE", "and trajectories whose actions are absent or to be ignored")] = None
    format: Format = None
    size: Annotated[str | None, arg("N|full", "of a sim/ dataset, in steps (a tenth of D4RL's)")] = None
    min_length: Annotated[int, arg("N", "leave out trajectories of fewer steps (0)")] = 0


@dataclass(frozen=True)
class Input(Source):
    """Where the trajectories are: a name (see `ssorl data list`) or a path, or a labelled and an unlabelled file."""

    dataset: Annotated[
        tyro.conf.Positional[str | None],
        arg("[DATASET]", "builtin/…, sim/…, d4rl/…, minari/…, or the path of a file or folder"),
    ] = None

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

    setup: Annotated[Setup | None, arg("{coupled,decoupled,wide}", "which setup; coupled if another is not named")] = (
        None
    )
    fraction: Annotated[float | None, arg("F", "coupled: share of trajectories that keep their actions (0.1)")] = None
    quality: Annotated[float | None, arg("Q", "coupled: those come from the bottom Q % by return (50)")] = None
    labelled_third: Annotated[Third | None, arg("{low,med,high}", "decoupled: labelled ones come from (low)")] = None
    labelled_fraction: Annotated[float | None, arg("F", "decoupled: how many, as share of the dataset (0.1)")] = None
    unlabelled_third: Annotated[Third | None, arg("{low,med,high}", "decoupled: unlabelled ones come from (high)")] = (
        None
    )
    unlabelled_fraction: Annotated[float | None, arg("F", "decoupled: how many, as share of the dataset (0.1)")] = None
    seed: Annotated[int | None, arg("N", "of the draw, and of what is fitted (0)")] = None

    @property
    def asked(self) -> bool:
        """Whether any of it was given."""
        return any(value is not None for value in vars(self).values())

    @property
    def asked_beyond_seed(self) -> bool:
        """Whether any of it was given other than the seed, which fitting uses too."""
        return any(value is not None for name, value in vars(self).items() if name != "seed")

    def refuse_beside(self, file: object) -> None:
        """A split that was drawn before has its own settings."""
        if self.asked_beyond_seed:
            given = next(k for k, v in vars(self).items() if v is not None and k != "seed")
            flag = "--" + given.replace("_", "-")
            raise SsorlError(f"--split {file}: says itself which actions to hide; leave out {flag}")

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


def note(text: str) -> None:
    """A remark on standard error, which `--quiet` leaves out."""
    if not QUIET.get():
        print(text, file=sys.stderr, flush=True)


def tell(as_json: bool, told: dict) -> None:
    """Tell the result of a command that wrote something."""
    if as_json:
        return print_json(told)
    from rich.console import Console

    text = ", ".join(f"{k} {v}" for k, v in told.items() if v not in (None, (), []))
    Console().print(text, soft_wrap=True, markup=False, emoji=False)  # a path may look like either
    return None


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, indent=1, allow_nan=False))
