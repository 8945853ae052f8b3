"""Every code block of docs/labels.md runs, in order, in one folder."""

import json
import re
import shlex

import pytest
from support.paths import ROOT
from support.systems import TINY

from ssorl.cli import main
from ssorl.idm import IDMS

PAGE = ROOT / "docs" / "labels.md"


def test_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(IDMS, "robust-quick", TINY)  # a tiny model, which takes less time
    monkeypatch.setitem(IDMS, "blend-quick", TINY)  # a tiny model, which takes less time
    blocks = re.findall(r"(<!-- not run: .*? -->\n)?```(\w*)\n(.*?)```", PAGE.read_text(), re.S)
    assert {kind for _, kind, _ in blocks} == {"sh", "python"}
    for skipped, kind, text in blocks:
        if skipped:
            continue
        if kind == "python":
            exec(compile(text, PAGE.name, "exec"), {})
            continue
        for line in text.splitlines():
            name, *args = shlex.split(line, comments=True)
            assert name == "ssorl"
            main(args)
    report = json.loads((tmp_path / "report.json").read_text())
    for key in {*report, "rounds"}:
        assert f"`{key}`" in PAGE.read_text(), key


@pytest.mark.parametrize(
    "flag", ["--union", "--idm", "--save-idm", "--self-train", "--report", "--members", "--preset", "--stream"]
)
def test_page_names_every_flag(flag, capsys):
    main(["label", "--help"])
    assert flag in capsys.readouterr().out and flag in PAGE.read_text()
