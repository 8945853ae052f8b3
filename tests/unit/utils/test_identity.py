"""The settings that identify a dataclass, and revisions in files."""

from dataclasses import dataclass

import pytest

from ssorl.utils.errors import SsorlError
from ssorl.utils.identity import (
    Revisions,
    check_names,
    identifying_fields,
    read_revisions,
    revision_of,
    revisions_of,
    since,
)


@dataclass(frozen=True)
class Config:
    rate: float = 0.1
    width: int = since("0.2", 8)


class Revised:
    revision = 3


def test_a_later_field_at_its_default_is_left_out():
    assert identifying_fields(Config()) == {"rate": 0.1}
    assert identifying_fields(Config(width=9)) == {"rate": 0.1, "width": 9}
    assert Config().width == 8


@pytest.mark.parametrize(
    ("names", "wrong"),
    [({"rate": 1}, []), ({"rate": 1, "width": 2}, []), ({"width": 2}, ["rate"]), ({"rate": 1, "depth": 2}, ["depth"])],
)
def test_only_later_fields_may_be_missing(names, wrong):
    assert check_names(names, Config) == wrong


def test_the_default_revision_is_0():
    assert (revision_of(Config), revision_of(Config()), revision_of(Revised), revision_of(Revised())) == (0, 0, 3, 3)
    assert revisions_of(Revised()) == Revisions(3, None) and revisions_of(idm=Config()) == Revisions(None, 0)


@pytest.mark.parametrize("value", [-1, 1.0, True, "1", None])
def test_a_revision_is_a_whole_number(value):
    with pytest.raises(SsorlError, match=r"Wrong\.revision is .*; give the class a whole number"):
        revision_of(type("Wrong", (), {"revision": value}))


def test_revisions_are_read_from_files():
    assert read_revisions(None) == Revisions()
    assert read_revisions(Revisions(2, None).as_json()) == Revisions(2, None)
    for wrong in (3, {"agent": -1}, {"idm": "0"}, {"agent": True}):
        with pytest.raises(ValueError, match="its revisions are"):
            read_revisions(wrong)


def test_changed_revisions_are_named():
    assert Revisions(0, None).changed(Revisions(2, None), "cql") == ["cql from revision 0 to 2"]
    assert Revisions(None, 1).changed(Revisions(None, 1)) == []
    assert Revisions().changed(Revisions(0, 0)) == []  # files without revisions have revision 0
    assert len(Revisions(0, 0).changed(Revisions(1, 1))) == 2
