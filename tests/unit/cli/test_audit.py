"""`ssorl audit` and the repairs of `ssorl data convert`."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest
from support.action_faults import arm, faulty

from ssorl.cli import main
from ssorl.data import load, save


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit")
    eps = arm(24, seed=5)
    save(eps, folder / "sound.npz")
    for kind in ("lag", "permuted", "flipped"):
        save(faulty(eps, kind, "middle", 0.25)[0], folder / f"{kind}.npz")
    return folder


def test_json_has_the_documented_fields(capsys, files):
    main(["audit", str(files / "lag.npz"), "--json"])
    result = json.loads(capsys.readouterr().out)
    assert {"findings", "observations", "explained", "trajectories", "source"} <= set(result)
    (finding,) = result["findings"]
    assert {"kind", "trajectories", "dimension", "value", "confidence", "cure"} <= set(finding)
    assert finding["kind"] == "lag" and finding["value"] == 2 and 0 < finding["confidence"] <= 1


@pytest.mark.parametrize("kind", ["lag", "permuted", "flipped"])
def test_the_cures_can_be_typed_and_keep_the_original(capsys, files, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    before = (files / f"{kind}.npz").read_bytes()
    source = str(files / f"{kind}.npz")
    for _ in range(4):
        main(["audit", source, "--json"])
        findings = json.loads(capsys.readouterr().out)["findings"]
        if not findings:
            break
        words = shlex.split(findings[0]["cure"])
        assert words[0] == "ssorl"
        target = str(tmp_path / f"{len(source)}.npz")
        main([target if word == "repaired.npz" else word for word in words[1:]])
        capsys.readouterr()
        source = target
    assert not findings
    repaired, true = load(source), load(files / "sound.npz")
    assert np.allclose(repaired.act[repaired.labelled], true.act[repaired.labelled], atol=1e-6)
    assert (files / f"{kind}.npz").read_bytes() == before


def test_strict_ends_with_1_on_findings_only(capsys, files):
    main(["audit", str(files / "sound.npz"), "--strict"])
    assert "no fault was found" in capsys.readouterr().out
    main(["audit", str(files / "flipped.npz")])
    with pytest.raises(SystemExit) as end:
        main(["audit", str(files / "flipped.npz"), "--strict"])
    assert end.value.code == 1


def test_the_page_has_a_picture_for_each_finding(capsys, files, tmp_path):
    page = tmp_path / "page.html"
    main(["audit", str(files / "flipped.npz"), "--report", str(page), "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    html = page.read_text()
    assert html.count("<section") >= len(findings) > 0
    assert html.count("chart wide") == len(findings)
    for name in ("page.txt", "page.html"):
        with pytest.raises(SystemExit):
            main(["audit", str(files / "flipped.npz"), "--report", str(tmp_path / name)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--flip", "x"], "give numbers from 0"),
        (["--scale", "0:a"], "give one factor"),
        (["--permute", "0,1"], "does not name each"),
        (["--trajectories", "3"], "name a repair"),
        (["--flip", "0", "--trajectories", "999"], "has no trajectory 999"),
    ],
)
def test_wrong_repairs_get_one_sentence(capsys, files, tmp_path, options, message):
    with pytest.raises(SystemExit) as end:
        main(["data", "convert", str(files / "sound.npz"), str(tmp_path / "out.npz"), *options])
    assert end.value.code == 2 and message in capsys.readouterr().err
    assert not (tmp_path / "out.npz").exists()


def test_a_repair_does_not_replace_its_source(capsys, files):
    name = str(files / "sound.npz")
    with pytest.raises(SystemExit):
        main(["data", "convert", name, name, "--flip", "0", "--force"])
    assert "a repair keeps the original" in capsys.readouterr().err


def test_data_without_actions_gets_one_sentence(capsys, files, tmp_path):
    bare = str(tmp_path / "bare.npz")
    main(["data", "convert", str(files / "sound.npz"), bare, "--forget-actions"])
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["audit", bare])
    assert end.value.code == 2 and "no step has an action" in capsys.readouterr().err
