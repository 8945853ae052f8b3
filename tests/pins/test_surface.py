"""The public names and their signatures, and the fields whose values are hashed, against a snapshot."""

import difflib
import json
from pathlib import Path

import pytest
from surface import describe

import ssorl

# Names that user code and the docs rely on: no version may drop them, whatever the snapshot says.
STAY = [f"ssorl.{name}" for name in ["load", "split", "fit_idm", "label", "train", "evaluate", "run", "load_policy"]]
STAY += [f"ssorl.data.{name}" for name in ["load", "save", "coupled", "apply", "truth", "Episodes"]]
STAY += [
    f"ssorl.data.Episodes.{name}"
    for name in ["with_actions", "with_meta", "start", "act", "obs", "rew", "returns", "lengths"]
]
STAY += ["ssorl.agents.AGENTS"]


@pytest.fixture(scope="module")
def now() -> dict:
    return json.loads(json.dumps(describe()))


def snapshot() -> dict:
    return json.loads((Path(__file__).parent / "api.json").read_text())


def test_the_public_names_are_those_of_the_snapshot(now):
    was = snapshot()
    changes = []
    for name in sorted({*was, *now}):
        old, new = (json.dumps(told.get(name, "not there"), indent=1).splitlines() for told in (was, now))
        lines = [line for line in difflib.ndiff(old, new) if line[0] in "+-"]
        changes += [f"{name}:", *(f"    {line}" for line in lines)] if lines else []
    cure = "if that is on purpose, run `python tests/pins/make.py api` and name the change in CHANGELOG.md"
    assert not changes, "\n".join(["the public surface changed (- before, + now); " + cure, *changes])


@pytest.mark.parametrize("name", STAY)
def test_a_name_that_must_stay_is_there_with_its_parameters(now, name):
    was = snapshot()
    assert name in was and name in now
    if isinstance(was[name], list):  # later parameters come after those of version 0.1, or may be left out
        assert [p for p in now[name] if p in was[name]] == was[name]


def test_the_results_of_the_steps_keep_their_names(pointmass):
    from ssorl.data import apply, coupled, truth

    eps = pointmass[:20]
    drawn = coupled(eps, 0.2, 50, 0)
    assert apply(drawn, eps).act.shape == eps.act.shape and truth(drawn, eps).shape == eps.act.shape
    task = ssorl.split(eps, fraction=0.2)
    assert task.data.n_steps == task.whole.n_steps == eps.n_steps
    assert {"eps", "labels", "report"} <= _fields(ssorl.label) and {"folder", "scores"} <= _fields(ssorl.run)


def _fields(function) -> set:
    """The public names of what a function says it returns."""
    from typing import get_type_hints

    kind = get_type_hints(function)["return"]
    return {*dir(kind), *getattr(kind, "__dataclass_fields__", ())}
