"""`ssorl suggest` and the setup `suggested` of `ssorl data split`."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ssorl.cli import main
from ssorl.data import load

SPLIT = ["--fraction", "0.1", "--quality", "50"]


def run(capsys, *args: str) -> dict:
    main([*args, "--json"])
    return json.loads(capsys.readouterr().out)


def test_json_picture_and_revealed_data(capsys, tmp_path, pointmass):
    out, picture = tmp_path / "more.npz", tmp_path / "cover.png"
    command = ["suggest", "builtin/pointmass", *SPLIT, "--budget", "2", "--reveal", str(out), "--plot", str(picture)]
    result = run(capsys, *command)
    assert isinstance(result["expected_mse_now"], float) and len(result["suggestions"]) == 2
    first = result["suggestions"][0]
    assert {"trajectory", "source", "first_step", "last_step", "expected_mse"} <= set(first)
    assert set(first["source"]) == {"file", "episode"}
    assert picture.read_bytes().startswith(b"\x89PNG")
    more = load(out)
    assert int((more.labelled_share == 1).sum()) == 32
    numbers = [s["trajectory"] for s in result["suggestions"]]
    assert (more.labelled_share[numbers] == 1).all()
    assert np.array_equal(more.act[more.labelled], pointmass.act[more.labelled])


def test_costs_from_a_file(capsys, tmp_path):
    costs = tmp_path / "costs.txt"
    costs.write_text("\n".join(["2.5"] * 300))
    result = run(capsys, "suggest", "builtin/pointmass", *SPLIT, "--budget", "6", "--cost", str(costs))
    assert len(result["suggestions"]) == 2
    costs.write_text("one\ntwo")
    with pytest.raises(SystemExit):
        main(["suggest", "builtin/pointmass", *SPLIT, "--cost", str(costs)])
    assert "one number a line" in capsys.readouterr().err


def test_reveal_needs_a_truth(capsys, tmp_path):
    with pytest.raises(SystemExit) as end:
        main(["suggest", "builtin/pointmass", "--reveal", str(tmp_path / "x.npz")])
    assert end.value.code == 2 and "--reveal needs" in capsys.readouterr().err


def test_the_suggested_split(capsys, tmp_path):
    out = tmp_path / "split.json"
    result = run(
        capsys, "data", "split", "builtin/pointmass", "--setup", "suggested", "--fraction", "0.02", "--out", str(out)
    )
    assert result["labelled"] == 6 and json.loads(out.read_text())["recipe"]["kind"] == "suggested"
    with pytest.raises(SystemExit):
        main(["data", "split", "builtin/pointmass", "--setup", "suggested", "--quality", "50", "--out", str(out)])
    assert "no effect in the suggested setup" in capsys.readouterr().err


def test_a_reader_gets_the_order_and_the_forecast(capsys):
    main(["suggest", "builtin/pointmass", *SPLIT, "--budget", "1"])
    text = capsys.readouterr().out
    assert "forecast label error (MSE) now" in text and "trajectory " in text
