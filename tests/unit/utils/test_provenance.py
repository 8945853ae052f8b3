"""What a record says of where it was made."""

import shutil

from ssorl.utils import provenance


def test_a_checkout_tells_its_own_commit(monkeypatch):
    monkeypatch.setenv("SSORL_COMMIT", "told")
    found = provenance.commit()
    assert found is not None and found != "told"


def test_files_without_their_repository_are_told_it(monkeypatch, tmp_path):
    monkeypatch.setattr(provenance, "__file__", shutil.copy(provenance.__file__, tmp_path))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("SSORL_COMMIT", raising=False)
    assert provenance.commit() is None
    monkeypatch.setenv("SSORL_COMMIT", "abc123")
    assert provenance.commit() == "abc123"
