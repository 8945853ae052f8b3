"""What a record says of where it was made."""

import shutil

from ssorl import about


def test_a_checkout_tells_its_own_commit(monkeypatch):
    monkeypatch.setenv("SSORL_COMMIT", "told")
    found = about.commit()
    assert found is not None and found != "told"


def test_files_without_their_repository_are_told_it(monkeypatch, tmp_path):
    monkeypatch.setattr(about, "__file__", shutil.copy(about.__file__, tmp_path))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("SSORL_COMMIT", raising=False)
    assert about.commit() is None
    monkeypatch.setenv("SSORL_COMMIT", "abc123")
    assert about.commit() == "abc123"
