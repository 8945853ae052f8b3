"""ssorl data: look at data, convert it, split it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ssorl.cli.options import Flat, Input, Json, Recipe, Source, WrittenFormat, arg, print_json, tell
from ssorl.utils.errors import SsorlError


@dataclass(frozen=True)
class DataList:
    """List the datasets that can be named."""

    json: Json = False

    def run(self) -> None:
        """Print a table."""
        from ssorl.data.catalogue import catalogue

        rows = catalogue()
        if self.json:
            return print_json(rows)
        from ssorl.cli.tables import show_catalogue

        return show_catalogue(rows)


@dataclass(frozen=True)
class DataShow:
    """Show what is in a dataset: counts, returns, ranges, and what looks odd."""

    input: Flat[Input]
    recipe: Flat[Recipe]
    split: Annotated[Path | None, arg("FILE", "hide the actions that this saved split hides")] = None
    plot: Annotated[Path | None, arg("FILE", "draw return densities, with against without actions, to a PNG")] = None
    json: Json = False

    def run(self) -> None:
        """Load, split if asked, print, draw."""
        from ssorl.data.split import Split, apply
        from ssorl.data.stats import profile

        if self.plot is not None and (self.plot.suffix.lower() not in (".png", ".pdf", ".svg") or self.plot.is_dir()):
            raise SsorlError(f"{self.plot}: {'is a folder; ' * self.plot.is_dir()}end the name in .png, .pdf or .svg")
        eps = self.input.load()
        if self.split is not None:
            self.recipe.refuse_beside(self.split)
            eps = apply(Split.load(self.split), eps)
        elif self.recipe.asked:
            eps = apply(self.recipe.draw(eps), eps)
        told = profile(eps)
        if self.plot is not None:
            from ssorl.report.density import plot

            plot(eps, self.plot)
            told["plot"] = str(self.plot)
        if self.json:
            return print_json(told)
        from ssorl.cli.tables import show_profile

        return show_profile(told)


@dataclass(frozen=True)
class DataConvert:
    """Write a dataset in another format (a pair becomes one file with missing actions)."""

    source: Flat[Source]
    words: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        arg("[DATASET] [TARGET]", "what to read (not with --labelled), and where to write in place of --out"),
    ] = ()
    out: Annotated[
        Path | None, arg("FILE", "ends in .npz, .hdf5 or .pkl, or is a folder with --to minari or lerobot")
    ] = None
    to: WrittenFormat = None
    action_range: Annotated[
        str | None, arg("R|LOW:HIGH,…", "declare what the robot can do: ±R or from LOW to HIGH, for all or one each")
    ] = None
    force: bool = False  # replace what is there
    json: Json = False

    def run(self) -> None:
        """Load and save."""
        from ssorl.data import save
        from ssorl.data.validate import declare_range

        words = list(self.words)
        dataset = None if self.source.labelled or not words else words.pop(0)
        targets = [*words, *([self.out] if self.out else [])]
        if len(targets) != 1:
            raise SsorlError("name one place to write to: ssorl data convert DATASET TARGET, or --out TARGET")
        out, eps = Path(targets[0]), Input(**vars(self.source), dataset=dataset).load()
        if self.action_range is not None:
            eps = declare_range(eps, *_bounds(self.action_range))
        save(eps, out, self.to, self.force)
        tell(self.json, {"out": str(out), "trajectories": len(eps), "steps": eps.n_steps, "notes": eps.meta.notes})


def _bounds(text: str) -> tuple[list[float], list[float]]:
    """Lowest and highest actions as they were written: 0.05 is from -0.05, 0:1 from 0."""
    try:
        sides = [[float(number) for number in one.split(":")] for one in text.split(",")]
    except ValueError:
        sides = [[]]
    fine = (len(side) == 2 or (len(side) == 1 and side[0] > 0) for side in sides)
    if not all(fine) or not all(math.isfinite(number) for side in sides for number in side):
        raise SsorlError(
            f"--action-range {text}: is none; give 0.05 for ±0.05 or 0:1, or one a dimension: 0.05,0.05,0:1"
        )
    return [side[0] if len(side) == 2 else -side[0] for side in sides], [side[-1] for side in sides]


@dataclass(frozen=True)
class DataSplit:
    """Draw one of the paper's splits and save it; with --data also the trajectories with actions hidden."""

    input: Flat[Input]
    recipe: Flat[Recipe]
    out: Annotated[Path, arg("FILE", "the split: trajectory numbers, seed, how it was drawn (split.json)")] = Path(
        "split.json"
    )
    data: Annotated[Path | None, arg("FILE", "also write the trajectories, NaN over every hidden action")] = None
    force: bool = False  # replace what is there
    json: Json = False

    def run(self) -> None:
        """Load, draw, save."""
        from ssorl.data import apply, save
        from ssorl.utils.errors import DataError
        from ssorl.utils.files import atomic

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
        counts = {"labelled": len(drawn.labelled), "unlabelled": len(drawn.unlabelled)}
        recipe = {f"{name}_third" if name in counts else name: value for name, value in drawn.recipe.items()}
        tell(
            self.json,
            {"out": str(self.out), "data": None if self.data is None else str(self.data), **counts, **recipe},
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
