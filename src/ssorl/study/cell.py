"""A study cell: the settings that define one result, and the hash that names its folder in a store."""

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

Pairs = tuple[tuple[str, Any], ...]  # the items of a dict, sorted by name, so that they can be hashed


@dataclass(frozen=True)
class Cell:
    """The settings that one result depends on, and no others. `resolve` makes cells; a cell's hash names its folder.

    Fields of version 0.1 are always part of the hash. Fields declared by `since` add nothing to it at their default.
    """

    kind: Literal["return", "idm", "data"]  # a policy's return; the error of labels; returns of the data
    dataset: str  # its name, with its size
    setup: str | None = None  # how actions are hidden; None: the data is used as it is
    recipe: Pairs = ()  # parameters of the setup, without the seed
    agent: str | None = None
    settings: Pairs = ()  # settings of the agent that differ from the defaults of version 0.1
    variant: str | None = None  # baseline, ss or oracle
    idm: Pairs | None = None  # settings of the IDM that differ from the defaults of version 0.1; None: no IDM
    rounds: int = 0  # rounds of self-training
    certain: float | None = None  # share of proxy actions to train on, lowest predicted std first; None: all
    env: str | None = None  # environment of the rollouts; None: the one that the dataset names
    seed: int = 0  # seed of the split, the IDM and the agent
    episodes: int = 0  # rollouts of the final policy
    policy: str | None = None  # weights that are scored: "last", or "average" over training
    looks: int = 0  # points of the learning curve
    agent_revision: int = since("0.2", 0)  # revision of the agent's code; 0 if no agent is trained
    idm_revision: int = since("0.2", 0)  # revision of the IDM's code; 0 if no IDM is used

    @cached_property
    def hash(self) -> str:
        """Return the name of the cell's folder in a store."""
        return digest(self.as_json())

    @cached_property
    def idm_hash(self) -> str | None:
        """Return the name of the cell's IDM in a store, or None; cells with other agents share the IDM."""
        if self.idm is None:
            return None
        names = ("dataset", "setup", "recipe", "idm", "rounds", "seed", "idm_revision")
        return digest({name: value for name, value in self.as_json().items() if name in names})

    @property
    def labels(self) -> Cell | None:
        """Return the cell of kind "idm" that measures the labels of this cell, or None if this cell uses no labels."""
        if self.idm is None or self.setup is None:
            return None
        shared = {"idm": self.idm, "rounds": self.rounds, "seed": self.seed, "idm_revision": self.idm_revision}
        return Cell("idm", self.dataset, self.setup, self.recipe, **shared)

    @property
    def revisions(self) -> Revisions:
        """Return the revisions of the agent and the IDM of this cell; None for an agent or IDM that it does not use."""
        agent = None if self.agent is None else self.agent_revision
        return Revisions(agent, None if self.idm is None else self.idm_revision)

    def at_revisions(self, revisions: Revisions) -> Cell:
        """Return the same cell for other revisions of the agent and the IDM.

        Args:
            revisions: the other revisions; an agent or IDM that the cell does not use is ignored.
        """
        own = self.revisions
        return replace(
            self,
            agent_revision=0 if own.agent is None else revisions.agent or 0,
            idm_revision=0 if own.idm is None else revisions.idm or 0,
        )

    def earlier(self) -> list[Cell]:
        """Return the same cell at every earlier revision of the agent and the IDM, newest first."""
        both = product(range(self.agent_revision, -1, -1), range(self.idm_revision, -1, -1))
        return [self.at_revisions(Revisions(*pair)) for pair in both][1:]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `from_json`; fields declared by `since` are left out at their default."""
        values = identifying_fields(self)
        tables = {name: values[name] for name in ("recipe", "settings", "idm")}
        return values | {name: None if table is None else dict(table) for name, table in tables.items()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Cell:
        """Return the cell that `as_json` of this version or an earlier version returned.

        Args:
            stored: values by field name.

        Raises:
            SsorlError: fields are missing or unknown.
        """
        if wrong := check_names(stored, cls):
            raise SsorlError(
                f"a cell was written by another version of ssorl, with other fields ({', '.join(wrong)}); read it with "
                "that version"
            )
        values: dict[str, Any] = {k: pairs(v) if isinstance(v, Mapping) else v for k, v in stored.items()}
        return cls(**values)


def pairs(settings: Mapping[str, Any]) -> Pairs:
    """Return settings as a hashable value in canonical form: sorted by name, lists as tuples, 10.0 as 10.

    Args:
        settings: values by name.
    """
    return tuple((name, plain(settings[name])) for name in sorted(settings))


def digest(value: Any) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a value's JSON.

    Args:
        value: anything that JSON can hold, without NaN or infinity.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
