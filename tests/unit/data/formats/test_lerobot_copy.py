"""`ssorl label … --into COPY`: a LeRobot dataset with its missing actions filled and all else as it was."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.samples import make

from ssorl.cli import main
from ssorl.data import load, save
from ssorl.data.formats.last_frame import predict_last
from ssorl.data.formats.lerobot_copy import LeRobotCopy
from ssorl.idm.label import proxies_in
from ssorl.utils.errors import DataError

META = ("meta/info.json", "meta/stats.json", "meta/episodes_stats.jsonl")
FIXTURE = Path(__file__).parents[3] / "fixtures" / "lerobot-v3"  # written by lerobot 0.4.4
OPTIONS = ["--preset", "quick", "--steps", "20", "--members", "2", "--json"]
NEW = ["action_is_proxy", "action_std"]


def hidden(folder: Path, how: str, episodes: tuple[int, ...] = (1, 2, 3), fixture: Path = FIXTURE) -> Path:
    """A fixture with the actions of some episodes hidden: as null, as NaN, or the column not there at all."""
    shutil.copytree(fixture, folder)
    for file in (folder / "data").rglob("*.parquet"):
        table = pq.read_table(file)
        hide = np.isin(table.column("episode_index").to_numpy(), episodes)
        at, field = table.column_names.index("action"), table.schema.field("action")
        gap = None if how == "null" else [np.nan, np.nan]
        rows = [gap if h else row for h, row in zip(hide, table.column("action").to_pylist(), strict=True)]
        table = table.set_column(at, field, pa.array(rows, field.type))
        pq.write_table(table.remove_column(at) if how == "absent" else table, file)
    if how == "absent":
        info = json.loads((folder / "meta" / "info.json").read_text())
        del info["features"]["action"]
        (folder / "meta" / "info.json").write_text(json.dumps(info, indent=4))
    return folder


def table_of(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(f) for f in sorted((folder / "data").rglob("*.parquet"))])


def digests(folder: Path) -> dict[str, str]:
    files = [p for p in folder.rglob("*") if p.is_file()]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def label(*words: object) -> None:
    main(["label", *map(str, words), *OPTIONS])


def check_copy(source: Path, copy: Path, truth: np.ndarray | None = None) -> pa.Table:
    """All that must be as it was is, and all that is new is right."""
    before, after = table_of(source), table_of(copy)
    names = before.column_names
    assert after.column_names == [*names, *(n for n in ("action", *NEW) if n not in names)]
    for name in names:
        if name != "action":
            assert after.schema.field(name) == before.schema.field(name)
            assert after.column(name).to_pylist() == before.column(name).to_pylist()
    act = np.array(after.column("action").to_pylist())
    std = np.array(after.column("action_std").to_pylist())
    proxy = after.column("action_is_proxy").to_numpy()
    old = before.column("action").to_pylist() if "action" in names else [None] * len(act)
    known = np.array([row is not None and not np.isnan(row).any() for row in old])
    assert np.array_equal(proxy, ~known) and np.isfinite(act).all()
    assert np.array_equal(act[known], np.array([r for r, k in zip(old, known, strict=True) if k]).reshape(-1, 2))
    assert (std[known] == 0).all() and (std[~known] > 0).all()
    was, now = digests(source), digests(copy)
    assert set(was) == set(now)
    changed = {name for name in was if was[name] != now[name]}
    assert all(name.startswith(("data/", "meta/episodes/", *META)) for name in changed)
    assert not any(p.is_symlink() for p in copy.rglob("*"))
    old_info, info = (json.loads((f / "meta" / "info.json").read_text()) for f in (source, copy))
    features = info.pop("features")
    assert {k: v for k, v in features.items() if k not in ("action", *NEW)} == {
        k: v for k, v in old_info.pop("features").items() if k != "action"
    }
    assert info == old_info and features["action_is_proxy"] == {"dtype": "bool", "shape": [1], "names": None}
    assert features["action_std"]["dtype"] == "float32" and features["action_std"]["shape"] == [2]
    assert features["action"]["shape"] == [2] and set(features) == set(after.column_names) | {
        n for n, f in features.items() if f["dtype"] == "video"
    }
    return after


@pytest.mark.parametrize("how", ["null", "nan"])
def test_missing_actions_are_filled_in_place(tmp_path, capsys, how):
    source = hidden(tmp_path / "source", how)
    before = digests(source)
    label(source, "--into", tmp_path / "copy")
    after = check_copy(source, tmp_path / "copy")
    assert digests(source) == before
    video = "videos/observation.images.top/chunk-000/file-000.mp4"
    assert (tmp_path / "copy" / video).samefile(source / video)  # a hard link
    stats = json.loads((tmp_path / "copy" / "meta" / "stats.json").read_text())
    act = np.array(after.column("action").to_pylist())
    for key, value in (("min", act.min(0)), ("max", act.max(0)), ("mean", act.mean(0)), ("std", act.std(0))):
        np.testing.assert_allclose(stats["action"][key], value, rtol=1e-5, atol=1e-6)
    assert stats["action"]["count"] == [30] and stats["action_is_proxy"]["mean"] == [pytest.approx(23 / 30)]
    assert set(stats["action_std"]) == set(stats["action"])
    assert stats["observation.state"] == json.loads((source / "meta" / "stats.json").read_text())["observation.state"]
    episodes = pq.read_table(tmp_path / "copy" / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    old = pq.read_table(source / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    assert episodes.column_names[: old.num_columns] == old.column_names
    rows = after.filter(pa.compute.equal(after.column("episode_index"), 2))
    mean = np.array(rows.column("action").to_pylist()).mean(0)
    np.testing.assert_allclose(episodes.column("stats/action/mean").to_pylist()[2], mean, atol=1e-6)
    assert episodes.column("stats/action_is_proxy/mean").to_pylist() == [[0.0], [1.0], [1.0], [1.0]]
    for name in old.column_names:
        if not name.startswith("stats/action/"):
            assert episodes.column(name) == old.column(name)


def test_a_dataset_without_actions_gets_them_from_another(tmp_path, capsys):
    source = hidden(tmp_path / "source", "absent")
    label("--labelled", FIXTURE, "--unlabelled", source, "--into", tmp_path / "copy")
    after = check_copy(source, tmp_path / "copy")
    assert after.column("action_is_proxy").to_pylist() == [True] * 30
    again = load(tmp_path / "copy")
    assert again.labelled.all() and np.array_equal(again.obs, load(source).obs)


def test_labels_may_come_from_another_format(tmp_path, capsys):
    source = hidden(tmp_path / "source", "absent")
    save(load(FIXTURE), tmp_path / "known.npz")
    label("--labelled", tmp_path / "known.npz", "--unlabelled", source, "--into", tmp_path / "copy")
    check_copy(source, tmp_path / "copy")


@pytest.mark.parametrize("how", ["null", "absent"])
def test_v2_stays_v2(tmp_path, capsys, how):
    source = hidden(tmp_path / "source", how, fixture=FIXTURE.with_name("lerobot-v2.1"))
    label("--labelled", FIXTURE, "--unlabelled", source, "--into", tmp_path / "copy")
    check_copy(source, tmp_path / "copy")
    assert json.loads((tmp_path / "copy" / "meta" / "info.json").read_text())["codebase_version"] == "v2.1"
    lines = [
        json.loads(line) for line in (tmp_path / "copy" / "meta" / "episodes_stats.jsonl").read_text().splitlines()
    ]
    assert [line["stats"]["action"]["count"] for line in lines] == [[7], [9], [6], [8]]
    assert [line["stats"]["action_is_proxy"]["mean"][0] for line in lines] == (
        [0, 1, 1, 1] if how == "null" else [1] * 4
    )


def test_short_episodes_keep_their_rows_and_numbers(tmp_path, capsys):
    source = hidden(tmp_path / "source", "null", (2, 3))
    label(source, "--into", tmp_path / "copy", "--min-length", "6")  # episode 2 has 6 frames, 5 steps
    after = check_copy(source, tmp_path / "copy")
    std = np.array(after.column("action_std").to_pylist())[after.column("episode_index").to_numpy() == 2]
    assert np.ptp(std, axis=0).max() == 0  # nothing is known of these but the spread of all actions


def test_the_copy_says_which_actions_are_proxies_when_it_is_read_again(tmp_path, capsys):
    source = hidden(tmp_path / "source", "null")
    label(source, "--into", tmp_path / "copy")
    assert proxies_in(load(tmp_path / "copy").meta) == ["23 of 30 actions are proxies from an inverse dynamics model"]
    with pytest.raises(SystemExit):
        label(tmp_path / "copy", "--into", tmp_path / "again")
    assert "every step has an action already" in capsys.readouterr().err


def test_a_repository_is_found_where_lerobot_keeps_it(tmp_path, monkeypatch):
    shutil.copytree(FIXTURE, tmp_path / "someone" / "pushing")
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    assert load("someone/pushing").same(load(FIXTURE))
    with pytest.raises(DataError, match="no such file or dataset"):
        load("someone/else")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--into", "{source}"], "is the dataset itself"),
        (["--into", "{source}/data/copy"], "is the dataset itself or a folder around or inside it"),
        (["--into", "{there}"], "exists already; choose another name"),
        (["--into", "{there}", "--force"], "is not a LeRobot dataset, so nothing replaces it"),
        (["--into", "{new}", "--to", "npz"], "--to has no effect with --into"),
        (["--into", "{new}", "--fraction", "0.5"], "a split has no effect with --into"),
        (["--into", "{new}", "--out", "{new}.npz"], "name one place to write to"),
        ([], "name one place to write to: --out FILE, or --into FOLDER"),
    ],
)
def test_what_makes_no_copy_is_refused_before_the_fit(tmp_path, capsys, words, says):
    (tmp_path / "there").mkdir()
    places = {"source": hidden(tmp_path / "source", "null"), "there": tmp_path / "there", "new": tmp_path / "new"}
    with pytest.raises(SystemExit):
        label(places["source"], *(word.format(**places) for word in words))
    printed = capsys.readouterr()
    assert says in printed.err and printed.err.count("\n") == 1 and not printed.out
    assert not (tmp_path / "new").exists()


def test_other_formats_are_not_copied(tmp_path):
    save(make(), tmp_path / "set.npz")
    with pytest.raises(DataError, match=r"set\.npz: is not a LeRobot dataset of v2 or v3, which --into copies"):
        LeRobotCopy(tmp_path / "set.npz", tmp_path / "copy", 0, False)


def test_a_full_disk_is_noticed_before_the_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(OSError, match=r"0\.0 GB are free, and the copy takes up to"):
        LeRobotCopy(FIXTURE, tmp_path / "copy", 0, False)


def test_whole_numbers_cannot_be_estimated(tmp_path, capsys):
    source = hidden(tmp_path / "source", "null")
    file = source / "data" / "chunk-000" / "file-000.parquet"
    table = pq.read_table(file)
    rows = [None if row is None else [round(x) for x in row] for row in table.column("action").to_pylist()]
    pq.write_table(table.set_column(1, "action", pa.array(rows, pa.list_(pa.int64(), 2))), file)
    with pytest.raises(SystemExit):
        label(source, "--into", tmp_path / "copy")
    assert "column action is of type" in capsys.readouterr().err and not (tmp_path / "copy").exists()


def test_the_last_action_is_predicted_from_the_past_with_a_wider_deviation():
    eps = make(lengths=(30,) * 20, ended=())
    act = np.cumsum(eps.act * 0.02, axis=0).clip(-1, 1)  # the next action is near the one before
    eps = eps.with_actions(act.astype(np.float32))
    std = np.full_like(eps.act, 0.01)
    last, spread = predict_last(eps, std)
    assert last.shape == spread.shape == (20, 2) and (spread > 0.01).all()
    assert np.abs(last - eps.act[eps.start[1:] - 1]).mean() < 0.1
    assert np.abs(last).max() <= 1
