"""ssorl data: list, show, convert and split datasets."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from ssorl.cli.help import subcommand
from ssorl.cli.options import (
    DataOptions,
    DataSource,
    Force,
    Json,
    OutFormat,
    SplitOptions,
    SplitOrFileOptions,
    arg,
    check_plot,
    print_json,
    print_result,
)
from ssorl.cli.repair import RepairOptions
from ssorl.utils.errors import SsorlError


@dataclass(frozen=True)
class DataList:
    """List the datasets that have a name."""

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
    """Show counts, returns and ranges of a dataset, and warn of unusual data."""

    data: DataOptions
    split: SplitOrFileOptions
    plot: Annotated[
        Path | None, arg("FILE", "draw the return densities of labelled and unlabelled trajectories to a PNG")
    ] = None
    json: Json = False

    def run(self) -> None:
        """Load, apply the split if there is one, print, plot."""
        from ssorl.data.split import apply
        from ssorl.data.stats import profile

        if self.plot is not None:
            check_plot(self.plot)
        eps = self.data.load()
        split = self.split.draw(eps) if self.split.given() == ["seed"] else self.split.choose(eps)
        if split is not None:
            eps = apply(split, eps)
        facts = profile(eps)
        if self.plot is not None:
            from ssorl.report.density import plot

            plot(eps, self.plot)
            facts["plot"] = str(self.plot)
        if self.json:
            return print_json(facts)
        from ssorl.cli.tables import show_profile

        return show_profile(facts)


@dataclass(frozen=True)
class DataConvert:
    """Write a dataset in another format; two files become one with missing actions."""

    data: DataSource
    words: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        arg("[DATASET] [TARGET]", "what to read (not with --labelled), and where to write (in place of --out)"),
    ] = ()
    out: Annotated[
        Path | None, arg("FILE", "ends in .npz, .hdf5 or .pkl, or is a folder with --to minari or lerobot")
    ] = None
    to: OutFormat = None
    repair: RepairOptions = field(default_factory=RepairOptions)
    action_range: Annotated[
        str | None,
        arg("R|LOW:HIGH,…", "declare the range of actions, -R to R or LOW to HIGH: once, or once a dimension"),
    ] = None
    force: Force = False
    json: Json = False

    def run(self) -> None:
        """Load, repair, save.

        Raises:
            SsorlError: the target is the dataset itself, or not one place.
        """
        from ssorl.data import save
        from ssorl.data.validate import declare_range

        words = list(self.words)
        dataset = None if self.data.labelled or not words else words.pop(0)
        targets = [*words, *([self.out] if self.out else [])]
        if len(targets) != 1:
            raise SsorlError("name one place to write to: ssorl data convert DATASET TARGET, or --out TARGET")
        out, eps = Path(targets[0]), DataOptions(**vars(self.data), dataset=dataset).load()
        if self.repair.given and dataset is not None and out.exists() and out.resolve() == Path(dataset).resolve():
            raise SsorlError(f"{out}: a repair keeps the original; write to another file")
        if self.action_range is not None:
            eps = declare_range(eps, *parse_range(self.action_range))
        eps = self.repair.apply(eps)
        save(eps, out, self.to, self.force)
        result = {"out": str(out), "trajectories": len(eps), "steps": eps.n_steps, "notes": eps.meta.notes}
        print_result(self.json, result)


def parse_range(text: str) -> tuple[list[float], list[float]]:
    """Return the lowest and highest actions of `--action-range`: 0.05 is -0.05 to 0.05, and 0:1 is 0 to 1.

    Raises:
        SsorlError: the text is not a range.
    """
    try:
        ranges = [[float(number) for number in part.split(":")] for part in text.split(",")]
    except ValueError:
        ranges = [[]]
    valid = (len(ends) == 2 or (len(ends) == 1 and ends[0] > 0) for ends in ranges)
    if not all(valid) or not all(math.isfinite(number) for ends in ranges for number in ends):
        raise SsorlError(
            f"--action-range {text}: is not a range; give 0.05 for ±0.05 or 0:1, or one for each dimension, such as "
            "0.05,0.05,0:1"
        )
    return [ends[0] if len(ends) == 2 else -ends[0] for ends in ranges], [ends[-1] for ends in ranges]


@dataclass(frozen=True)
class DataSplit:
    """Draw one of the paper's splits and save it."""

    data: DataOptions
    split: SplitOptions
    out: Annotated[Path, arg("FILE", "file for the split: trajectory numbers and options", "split.json")] = Path(
        "split.json"
    )
    data_file: Annotated[
        Path | None, arg("FILE", "also write the trajectories, with NaN for each hidden action", name="data")
    ] = None
    force: Force = False
    json: Json = False

    def run(self) -> None:
        """Load, draw, save."""
        from ssorl.data import apply, save
        from ssorl.utils.errors import DataError
        from ssorl.utils.files import atomic

        eps = self.data.load()
        split = self.split.draw(eps)
        for path in (self.out, self.data_file):
            if path is not None and path.exists() and not self.force:
                raise DataError(f"{path}: exists already; choose another name or pass --force")
        if self.out.is_dir():
            raise DataError(f"{self.out}: is a folder; give --out a file name")
        if self.out == self.data_file:
            raise DataError(f"{self.out}: is both --out and --data; choose another name for one of them")
        with atomic(self.out) as fresh:  # the split gets its name only when the data is written too
            split.save(fresh)
            if self.data_file is not None:
                save(apply(split, eps), self.data_file, force=self.force)
        counts = {"labelled": len(split.labelled), "unlabelled": len(split.unlabelled)}
        recipe = {f"{name}_third" if name in counts else name: value for name, value in split.recipe.items()}
        data_file = None if self.data_file is None else str(self.data_file)
        print_result(self.json, {"out": str(self.out), "data": data_file, **counts, **recipe})


@dataclass(frozen=True)
class Data:
    """List, show, convert and split datasets."""

    command: (
        Annotated[DataList, subcommand("list", DataList)]
        | Annotated[DataShow, subcommand("show", DataShow)]
        | Annotated[DataConvert, subcommand("convert", DataConvert)]
        | Annotated[DataSplit, subcommand("split", DataSplit)]
    )

    def run(self) -> None:
        """Run the chosen command."""
        self.command.run()
