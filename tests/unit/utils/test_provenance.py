"""The commit in the record of a result."""

import shutil

from ssorl.utils import provenance


def test_a_checkout_has_its_own_commit(monkeypatch):
    monkeypatch.setenv("SSORL_COMMIT", "from the environment")
    commit = provenance.commit()
    assert commit is not None and commit != "from the environment"


def test_files_outside_a_repository_have_the_commit_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setattr(provenance, "__file__", shutil.copy(provenance.__file__, tmp_path))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("SSORL_COMMIT", raising=False)
    assert provenance.commit() is None
    monkeypatch.setenv("SSORL_COMMIT", "abc123")
    assert provenance.commit() == "abc123"
