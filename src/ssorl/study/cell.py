"""A study cell: what defines one result, and the hash under which a store keeps it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, Literal

from ssorl.utils.errors import SsorlError
from ssorl.utils.identity import Revisions, check_names, identifying_fields, since
from ssorl.utils.validation import plain

Pairs = tuple[tuple[str, Any], ...]  # a dict that can be hashed, sorted by name


@dataclass(frozen=True)
class Cell:
    """What defines one result, and nothing that it does not depend on. Made by `resolve`; its hash is its folder.

    Fields of version 0.1 are always part of the hash. Fields declared by `since` add nothing to it at their default.
    """

    kind: Literal["return", "idm", "data"]  # what a policy earns; how good a model's labels are; trajectories' returns
    dataset: str  # with its size
    setup: str | None = None  # how actions are hidden; None: none is
    recipe: Pairs = ()  # its parameters, without the seed
    agent: str | None = None
    settings: Pairs = ()  # of the agent, those that differ from its defaults
    variant: str | None = None  # baseline, ss or oracle
    idm: Pairs | None = None  # settings of the inverse dynamics model that differ from the paper's; None: none is used
    rounds: int = 0  # of self-training
    certain: float | None = None  # share of the proxies to learn from, the surest first; None: all
    env: str | None = None  # where policies are played; None: where the data says
    seed: int = 0  # of the split, the model, the agent
    episodes: int = 0  # that the policy plays
    policy: str | None = None  # whose mean is the score: the last weights or their average over training
    looks: int = 0  # points of the learning curve
    agent_revision: int = since("0.2", 0)  # of the agent's code; 0 where no agent is trained
    idm_revision: int = since("0.2", 0)  # of the code of the inverse dynamics model; 0 where none is used

    @cached_property
    def hash(self) -> str:
        """Its name in a store."""
        return digest(self.as_json())

    @cached_property
    def idm_hash(self) -> str | None:
        """The name of its inverse dynamics model, which cells with other agents share."""
        if self.idm is None:
            return None
        names = ("dataset", "setup", "recipe", "idm", "rounds", "seed", "idm_revision")
        return digest({name: value for name, value in self.as_json().items() if name in names})

    @property
    def labels(self) -> Cell | None:
        """The cell that asks for the labels alone which this one learns from; None: it learns from none."""
        if self.idm is None or self.setup is None:
            return None
        shared = {"idm": self.idm, "rounds": self.rounds, "seed": self.seed, "idm_revision": self.idm_revision}
        return Cell("idm", self.dataset, self.setup, self.recipe, **shared)

    @property
    def revisions(self) -> Revisions:
        """Revisions of the agent and of the IDM that make its result; None where it has none."""
        agent = None if self.agent is None else self.agent_revision
        return Revisions(agent, None if self.idm is None else self.idm_revision)

    def at_revisions(self, revisions: Revisions) -> Cell:
        """Return the same cell as computed by other revisions of the agent and the IDM."""
        own = self.revisions
        return replace(
            self,
            agent_revision=0 if own.agent is None else revisions.agent or 0,
            idm_revision=0 if own.idm is None else revisions.idm or 0,
        )

    def earlier(self) -> list[Cell]:
        """Return the same cell at every earlier revision of the agent and the IDM, newest first."""
        both = product(range(self.agent_revision, -1, -1), range(self.idm_revision, -1, -1))
        return [self.at_revisions(Revisions(*each)) for each in both][1:]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `from_json`, without later fields that are at their default."""
        values = identifying_fields(self)
        tables = {name: values[name] for name in ("recipe", "settings", "idm")}
        return values | {name: None if table is None else dict(table) for name, table in tables.items()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Cell:
        """Return the cell that `as_json` of this version or an earlier one described.

        Raises:
            SsorlError: fields are missing or unknown.
        """
        if odd := check_names(stored, cls):
            raise SsorlError(
                f"a cell was written by another version of ssorl, with other fields ({', '.join(odd)}); read it with "
                "that version"
            )
        values: dict[str, Any] = {k: pairs(v) if isinstance(v, Mapping) else v for k, v in stored.items()}
        return cls(**values)


def pairs(settings: Mapping[str, Any]) -> Pairs:
    """A dict as a value: sorted, lists as tuples, 10.0 as 10."""
    return tuple((name, plain(settings[name])) for name in sorted(settings))


def digest(value: Any) -> str:
    """The first 16 digits of the SHA-256 of its JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
