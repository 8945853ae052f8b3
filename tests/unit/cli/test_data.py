"""`ssorl data`: list, show, convert and split datasets."""

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from ssorl.cli import main
from ssorl.data import load, save
from ssorl.utils.progress import Progress


def run(capsys, *args: str) -> str:
    main(["data", *args])
    return capsys.readouterr().out


def test_version_and_closed_pipe():
    from importlib.metadata import version

    ssorl = Path(sys.executable).with_name("ssorl")
    assert subprocess.run([ssorl, "--version"], capture_output=True, text=True).stdout == f"ssorl {version('ssorl')}\n"
    piped = subprocess.run(f"{ssorl} data list | head -1", shell=True, capture_output=True, text=True)
    assert piped.stdout.startswith("name") and "Traceback" not in piped.stderr


def test_show_prints_the_documented_fields(capsys):
    result = json.loads(run(capsys, "show", "builtin/pointmass", "--json"))
    assert result["trajectories"] == 300 and result["labelled_share"] == 1.0
    for name in ("return", "normalised_return"):
        assert set(result[name]) == {"mean", "std", "min", "max"}
    text = run(capsys, "show", "builtin/pointmass")
    assert "300" in text and "28,716" in text


def test_list_names_every_dataset(capsys):
    names = {row["name"] for row in json.loads(run(capsys, "list", "--json"))}
    assert {"builtin/pointmass", "d4rl/hopper-medium-expert-v2", "d4rl/maze2d-open-dense-v0"} <= names
    assert "builtin/pointmass" in run(capsys, "list")


@pytest.mark.parametrize(
    ("name", "to"),
    [("a.npz", []), ("a.hdf5", []), ("a.pkl", []), ("a", ["--to", "minari"]), ("b", ["--to", "lerobot"])],
)
def test_convert_and_back(capsys, tmp_path, pointmass, name, to):
    out = str(tmp_path / name)
    result = json.loads(run(capsys, "convert", "builtin/pointmass", "--out", out, *to, "--json"))
    assert result["trajectories"] == 300
    assert load(out).same(pointmass)
    with pytest.raises(SystemExit) as stop:
        run(capsys, "convert", "builtin/pointmass", "--out", out, *to)
    assert stop.value.code == 2 and "--force" in capsys.readouterr().err
    run(capsys, "convert", "builtin/pointmass", "--out", out, *to, "--force")
    assert load(out).same(pointmass)
    assert not list(tmp_path.glob(".tmp-*"))


@pytest.mark.parametrize(
    ("asked", "low", "high"),
    [
        ("2", (-2, -2), (2, 2)),
        ("0.9:1.5,1.25", None, None),  # an action is below 0.9
        ("-1.5:3,1.25", (-1.5, -1.25), (3, 1.25)),
    ],
)
def test_action_range_can_be_declared(capsys, tmp_path, pointmass, asked, low, high):
    save(pointmass.with_meta(act_low=(-1.0, -1.0), act_high=(1.0, 1.0), act_range="assumed"), tmp_path / "a.npz")
    args = ["data", "convert", str(tmp_path / "a.npz"), str(tmp_path / "b.npz"), f"--action-range={asked}"]
    if low is None:
        with pytest.raises(SystemExit):
            main(args)
        assert "outside [0.9, 1.5]; correct it or the declared range" in capsys.readouterr().err
        return
    main(args)
    got = load(tmp_path / "b.npz")
    assert (got.meta.act_low, got.meta.act_high, got.meta.act_range) == (low, high, "declared")
    np.testing.assert_array_equal(got.act, pointmass.act)


@pytest.mark.parametrize("asked", ["", "abc", "1,2,3", "-1", "1:2:3", "nan", "inf", "2:1"])
def test_invalid_action_range_raises(capsys, tmp_path, pointmass, asked):
    save(pointmass, tmp_path / "a.npz")
    with pytest.raises(SystemExit):
        main(["data", "convert", str(tmp_path / "a.npz"), str(tmp_path / "b.npz"), f"--action-range={asked}"])
    err = capsys.readouterr().err
    assert "range" in err and "should not have happened" not in err and not (tmp_path / "b.npz").exists()


def test_convert_takes_its_target_as_a_positional_argument(capsys, tmp_path, pointmass):
    a, b, c = (str(tmp_path / n) for n in ("a.npz", "b.pkl", "c.hdf5"))
    run(capsys, "convert", "builtin/pointmass", a)
    run(capsys, "convert", a, b)
    run(capsys, "convert", "--labelled", a, "--unlabelled", b, c)
    assert len(load(c)) == 600 and load(c).labelled_share.tolist() == [1.0] * 300 + [0.0] * 300
    for words in (["convert", a], ["convert", a, b, "--out", c]):
        with pytest.raises(SystemExit):
            run(capsys, *words)
        assert "one place to write to" in capsys.readouterr().err


def test_markup_in_paths_is_printed_literally(capsys, tmp_path):
    """Rich would take [bold] and [/] for markup and :smile: for an emoji."""
    (tmp_path / "x[").mkdir()
    for name in ("[bold]a:smile:.npz", "x[/bold].npz"):
        main(["data", "convert", "builtin/pointmass", str(tmp_path / name)])
        assert f"out {tmp_path / name}, " in capsys.readouterr().out
    bar, out = Progress({}), io.StringIO()
    bar.bar = SimpleNamespace(console=Console(file=out, width=20))  # type: ignore[assignment]
    bar.say("folder  runs/[bold]a[/b]:smile: and on")
    assert out.getvalue() == "folder  runs/[bold]a[/b]:smile: and on\n"


def test_decoupled_split_prints_its_counts(capsys, tmp_path):
    asked = [
        "--setup",
        "decoupled",
        "--labelled-third",
        "med",
        "--unlabelled-third",
        "high",
        "--out",
        str(tmp_path / "s.json"),
    ]
    result = json.loads(run(capsys, "split", "builtin/pointmass", *asked, "--json"))
    assert (result["labelled"], result["unlabelled"]) == (30, 30)
    assert (result["labelled_third"], result["unlabelled_third"]) == ("med", "high")


def test_split_hides_actions_and_plot_is_drawn(capsys, tmp_path):
    split, data, png = (str(tmp_path / n) for n in ("s.json", "d.npz", "p.png"))
    result = json.loads(
        run(capsys, "split", "builtin/pointmass", "--quality", "30", "--out", split, "--data", data, "--json")
    )
    assert result["labelled"] == 30 and result["unlabelled"] == 270
    eps = load(data)
    assert (eps.labelled_share == 1).sum() == 30
    shown = json.loads(run(capsys, "show", "builtin/pointmass", "--split", split, "--plot", png, "--json"))
    assert np.isclose(shown["labelled_share"], eps.labelled.mean())
    assert Path(png).read_bytes()[:4] == b"\x89PNG"
    again = json.loads(run(capsys, "show", "builtin/pointmass", "--quality", "30", "--json"))
    assert again["labelled_share"] == shown["labelled_share"]


def test_labelled_and_unlabelled_files(capsys, tmp_path, pointmass):
    from ssorl.data import save

    save(pointmass[:20], tmp_path / "a.npz")
    save(pointmass[20:], tmp_path / "b.hdf5")
    result = json.loads(
        run(capsys, "show", "--labelled", str(tmp_path / "a.npz"), "--unlabelled", str(tmp_path / "b.hdf5"), "--json")
    )
    assert result["trajectories"] == 300 and result["labelled_trajectories"] == 20


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["show"], "name one dataset"),
        (["show", "builtin/pointmas"], "builtin/pointmass"),
        (["show", "d4rl/hoper-medium-v2"], "did you mean d4rl/hopper-medium-v2"),
        (["show", "nowhere.npz"], "no such file"),
        (["show", "builtin/pointmass", "--quality", "5"], "raise --quality"),
        (["show", "builtin/pointmass", "--setup", "wide", "--quality", "5"], "--quality has no effect"),
        (["split", "builtin/pointmass", "--fraction", "0.001", "--out", "/nowhere/x"], "rounds to none"),
    ],
)
def test_mistakes_print_one_sentence_and_exit_with_2(capsys, args, words):
    with pytest.raises(SystemExit) as stop:
        main(["data", *args])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and words in err and err.count("\n") == 1
