"""Atomic writes through links."""

import os
from pathlib import Path

import pytest
from support.samples import assert_same, make

from ssorl.data import load, save
from ssorl.utils.errors import SsorlError
from ssorl.utils.files import atomic, write_text
from ssorl.utils.sealed import write_sealed


def listing(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_to_a_file_stays_one(tmp_path, exists):
    real, link = tmp_path / "disk" / "real.txt", tmp_path / "link.txt"
    link.symlink_to(Path("disk") / "real.txt")
    if exists:
        write_text(real, "old")
    write_text(link, "new")  # the target of a dangling link is created
    assert link.is_symlink() and not real.is_symlink() and real.read_text() == "new"
    assert listing(tmp_path) == ["disk", "link.txt"] and listing(tmp_path / "disk") == ["real.txt"]


@pytest.mark.parametrize("format", ["lerobot", "minari", "npz"])
@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
def test_data_replaces_the_target_of_a_link(tmp_path, format):
    save(make(seed=1), tmp_path / "disk" / "real", format)
    (tmp_path / "hop").symlink_to(tmp_path / "disk" / "real")
    (tmp_path / "link").symlink_to("hop")
    save(make(seed=2), tmp_path / "link", format, force=True)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "hop").is_symlink()
    assert_same(load(tmp_path / "disk" / "real"), make(seed=2))
    assert listing(tmp_path) == ["disk", "hop", "link"] and listing(tmp_path / "disk") == ["real"]


def test_a_file_does_not_replace_a_folder_that_is_the_target_of_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "thesis.txt").write_text("years of work")
    (tmp_path / "link").symlink_to("disk")
    with pytest.raises(SsorlError, match=r"link: cannot be written.*folder"):
        write_text(tmp_path / "link", "new")
    assert listing(tmp_path / "disk") == ["thesis.txt"] and listing(tmp_path) == ["disk", "link"]


def test_a_link_whose_target_cannot_be_created_raises_an_error(tmp_path):
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "link").symlink_to(tmp_path / "file" / "inner")
    with pytest.raises(SsorlError, match=r"link: cannot be written .*choose another --out"):
        write_text(tmp_path / "link", "new")
    assert os.readlink(tmp_path / "link").endswith("inner") and listing(tmp_path) == ["file", "link"]


def test_the_target_of_a_link_is_unchanged_if_the_writer_fails(tmp_path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    with pytest.raises(ValueError, match="half"), atomic(tmp_path / "link.txt") as fresh:
        assert fresh.name == "link.txt"  # a writer may choose the format by the suffix
        fresh.write_text("ne")
        raise ValueError("half way")
    assert (tmp_path / "real.txt").read_text() == "old" and listing(tmp_path) == ["link.txt", "real.txt"]


def test_a_link_that_becomes_the_previous_file_is_not_followed(tmp_path):
    write_sealed(tmp_path / "real", {"number": 1}, {})
    (tmp_path / "link").symlink_to("real")
    write_sealed(tmp_path / "link", {"number": 2}, {}, previous=tmp_path / "before")
    assert (tmp_path / "before").readlink() == Path("real") and not (tmp_path / "link").is_symlink()
    assert (tmp_path / "before").read_bytes() != (tmp_path / "link").read_bytes()
