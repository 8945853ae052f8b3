"""Options that the `ssorl study` commands share: which study, and which part of its grid."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from ssorl.cli.options import arg, import_idm
from ssorl.utils.errors import SsorlError

if TYPE_CHECKING:
    from ssorl.study.cell import Cell
    from ssorl.study.grid import Point
    from ssorl.study.grid import Study as Grid

STORE = Path("runs/study")
Scale = Literal["smoke", "lite", "paper"]
Store = Annotated[Path, arg("FOLDER", "folder with the results of all studies", STORE)]
AgentClasses = Annotated[
    tuple[str, ...], arg("MODULE:CLASS …", "import these agents of the study if their package is not installed")
]
IdmModules = Annotated[
    tuple[str, ...], arg("MODULE:NAME …", "import these inverse dynamics models if their package is not installed")
]


@dataclass(frozen=True)
class StudyOptions:
    """Which study, at which scale, and which part of its grid."""

    name: Annotated[
        tyro.conf.Positional[str],
        arg("NAME|FILE", "a name of `ssorl study list`, or your own .yaml, .toml, .json or .py file"),
    ]
    scale: Annotated[
        Scale,
        arg("{smoke,lite,paper}", "minutes on a CPU, about an hour on a GPU, or the published settings", "smoke"),
    ] = "smoke"
    store: Store = STORE
    seeds: Annotated[int | None, arg("N", "number of seeds, in place of the scale's")] = None
    only: Annotated[
        tuple[str, ...], arg("AXIS=VALUE …", "only cells with these values, such as agent=dt quality=10 quality=30")
    ] = ()
    agent: AgentClasses = ()
    idm: IdmModules = ()

    def load(self) -> Grid:
        """Return the study, after importing the agents and models that the user named."""
        from ssorl.study.files import find

        import_extensions(self.agent, self.idm)
        return find(self.name)

    def chosen(self) -> dict[str, list[str]]:
        """Return the values of `--only` by axis.

        Raises:
            SsorlError: an entry is not AXIS=VALUE.
        """
        only: dict[str, list[str]] = {}
        for text in self.only:
            name, equals, value = text.partition("=")
            if not equals:
                raise SsorlError(f"--only {text}: write AXIS=VALUE, such as agent=dt")
            only.setdefault(name, []).append(value)
        return only

    def points(self) -> list[Point]:
        """Return the points of the chosen part of the grid.

        Raises:
            SsorlError: the part is invalid, for example because the study has no such axis.
        """
        if self.seeds is not None and self.seeds < 1:
            raise SsorlError(f"--seeds is {self.seeds}; give a whole number from 1 up")
        study = self.load()
        if self.seeds is not None and study.names_seeds:
            raise SsorlError(f"--seeds {self.seeds}: {self.name} has seeds of its own; remove `seed` from the study")
        return study.points(self.scale, self.seeds, self.chosen())

    def cells(self) -> list[Cell]:
        """Return the cells of the chosen part, each once."""
        return list(dict.fromkeys(point.cell for point in self.points()))


def import_extensions(agents: tuple[str, ...], idms: tuple[str, ...]) -> None:
    """Import agents and inverse dynamics models of packages that are not installed, so that studies may name them.

    Args:
        agents: agents as MODULE:CLASS.
        idms: models as MODULE:NAME.
    """
    if agents:
        from ssorl.agents import agent_class

        for name in agents:
            agent_class(name)
    for name in idms:
        import_idm(name)
