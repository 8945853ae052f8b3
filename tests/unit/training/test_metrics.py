"""Metrics in files, read with independent decoders; after a resume every update stands once."""

import json
import struct
import sys
import types

import numpy as np
import pytest
from support.episodes import make_episodes

from ssorl.agents import make
from ssorl.training.engine import Snapshot, TrainingRun, train_many
from ssorl.training.events import Events, records
from ssorl.training.metrics import Log, lines
from ssorl.utils.errors import SsorlError

AGENT = make("bc", hidden=(4,), batch=8, updates=12)


def snapshot(at, runs=range(2), loss=0.5):
    return Snapshot(at, runs, None, None, {"loss": np.array([loss + i for i in runs], np.float32)})


def rows(folder):
    return [(line["run"], line["at"], line["loss"]) for line in lines(folder / "metrics.jsonl")]


# Lines of JSON ---------------------------------------------------------------------------------------------


def test_one_line_per_snapshot_and_run(tmp_path):
    with Log(tmp_path, ["ss", "oracle"]) as log:
        log(snapshot(4), score=[10.0, np.nan])
        log(snapshot(8, loss=0.25), score=[11, np.inf])
    first, second, third, fourth = (json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert list(first) == ["run", "at", "seconds", "updates/s", "loss", "score"]
    assert (first["run"], first["at"], first["loss"], first["score"]) == ("ss", 4, 0.5, 10.0)
    assert (second["run"], second["score"]) == ("oracle", None)  # JSON has no NaN
    assert (third["loss"], fourth["loss"], fourth["score"]) == (0.25, 1.25, None)
    assert 0 <= first["seconds"] <= third["seconds"] and third["updates/s"] > 0


def test_seconds_and_rates(tmp_path, monkeypatch):
    clock = iter([100.0, 102.0, 103.0, 200.0, 204.0])
    monkeypatch.setattr("ssorl.training.metrics.time.monotonic", lambda: next(clock))
    log = Log(tmp_path, ["a"])
    log(snapshot(40, range(1)))
    log(snapshot(80, range(1)))
    resumed = Log(tmp_path, ["a"])  # a later process that resumes the checkpoint at 80
    resumed(snapshot(120, range(1)))
    got = [(x["at"], x["seconds"], x["updates/s"]) for x in lines(tmp_path / "metrics.jsonl")]
    assert got == [(40, 2.0, 20.0), (80, 3.0, 40.0), (120, 7.0, 10.0)]


def test_each_update_of_a_resumed_run_stands_once(tmp_path):
    """Run a was stopped after its line at 12, and its last checkpoint is at 4: 8 and 12 are computed again."""
    with Log(tmp_path, ["a", "b"], tensorboard=True) as log:
        for at in (4, 8, 12):
            log(snapshot(at))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"run": "a", "at": 1')  # cut off
    with Log(tmp_path, ["a", "b"], tensorboard=True) as log:
        for at in (8, 12):
            log(snapshot(at, range(1), loss=7.0))  # only run a is resumed
    assert rows(tmp_path) == [
        ("a", 4, 0.5), ("b", 4, 1.5), ("b", 8, 1.5), ("b", 12, 1.5), ("a", 8, 7.0), ("a", 12, 7.0)
    ]  # fmt: skip
    assert [(step, values["loss"]) for step, values in events(tmp_path / "tensorboard" / "a")] == [
        (4, 0.5), (8, 7.0), (12, 7.0)
    ]  # fmt: skip


def test_with_the_engine(tmp_path):
    """A training is stopped in its second run and resumed; each snapshot of each run has one line."""
    runs = [TrainingRun(make_episodes([5, 4, 6]), seed) for seed in range(2)]
    for stop in (True, False):
        with Log(tmp_path, ["a", "b"], tensorboard=True) as log:

            def callback(snapshot, log=log, stop=stop):
                log(snapshot)
                if stop and snapshot.at == 8 and 1 in snapshot.runs:
                    raise KeyboardInterrupt

            try:
                train_many(AGENT, runs, every=4, callback=callback, folder=tmp_path / "state")
            except KeyboardInterrupt:
                assert stop
    written = lines(tmp_path / "metrics.jsonl")
    assert [(x["run"], x["at"]) for x in written] == [(name, at) for name in "ab" for at in (4, 8, 12)]
    assert all(np.isfinite(x["actor_loss"]) for x in written)
    for name in "ab":
        of_run = [x for x in written if x["run"] == name]
        scalars = events(tmp_path / "tensorboard" / name)
        assert [step for step, _ in scalars] == [4, 8, 12]
        np.testing.assert_allclose([v["actor_loss"] for _, v in scalars], [x["actor_loss"] for x in of_run], rtol=1e-6)


def test_names_that_are_not_unique_raise_an_error(tmp_path):
    with pytest.raises(SsorlError, match="names are a, a; give each run a unique name"):
        Log(tmp_path, ["a", "a"])


def test_a_folder_that_cannot_be_written_raises_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    for log in (Log(tmp_path / "file", ["a"]), Log(tmp_path, ["a"], tensorboard=True)):
        (tmp_path / "tensorboard").touch()
        with pytest.raises(SsorlError, match="cannot be written"):
            log(snapshot(4, range(1)))


# TensorBoard -----------------------------------------------------------------------------------------------


def crc32c(raw):
    """Compute the checksum bit by bit from its polynomial."""
    crc = 0xFFFFFFFF
    for byte in raw:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(raw):
    crc = crc32c(raw)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def fields(raw):
    """Return (field, value) pairs of a protocol buffer."""
    at, pairs = 0, []

    def varint():
        nonlocal at
        number = shift = 0
        while True:
            byte = raw[at]
            at, number, shift = at + 1, number | (byte & 127) << shift, shift + 7
            if byte < 128:
                return number

    while at < len(raw):
        key = varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            value, at = raw[at : at + size], at + size
        pairs.append((key >> 3, value))
    return pairs


def events(folder):
    """Return (step, tag -> value) of the scalars in a folder's only event file."""
    (path,) = folder.iterdir()
    raw, at, scalars = path.read_bytes(), 0, []
    while at < len(raw):
        size, check = struct.unpack("<QI", raw[at : at + 12])
        assert check == masked(raw[at : at + 8])
        body = raw[at + 12 : at + 12 + size]
        assert struct.unpack("<I", raw[at + 12 + size : at + 16 + size])[0] == masked(body)
        at += 16 + size
        event = dict(fields(body))
        assert struct.unpack("<d", event[1])[0] > 1.7e9
        if at == 16 + size:
            assert event[3] == b"brain.Event:2"
            continue
        summary = [dict(fields(value)) for field, value in fields(event[5]) if field == 1]
        scalars.append((event[2], {v[1].decode(): struct.unpack("<f", v[2])[0] for v in summary}))
    return scalars


def test_the_checksum_is_crc32c():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of the published parameters


def test_scalars_of_event_files(tmp_path):
    file = Events(tmp_path)
    file.write(5, {"loss": 1.5, "q": float("nan")})
    file.write(300_000, {"loss": -1e300})
    file.close()
    (step, values), (later_step, later) = events(tmp_path)
    assert (step, values["loss"]) == (5, 1.5) and np.isnan(values["q"])
    assert (later_step, later["loss"]) == (300_000, -np.inf)


def test_event_files_are_continued(tmp_path):
    """A file continues after an incomplete record, from an earlier step, and from the start."""
    file = Events(tmp_path)
    for at in (100, 200, 300):
        file.write(at, {"x": at})
    file.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    for at, left in ((400, [100, 200]), (200, [100]), (0, [])):
        Events(tmp_path, at).close()
        assert [step for step, _ in events(tmp_path)] == left


def test_a_file_is_continued_before_a_damaged_length(tmp_path):
    """TensorBoard stops reading at a wrong checksum of a length, so records behind it would be lost."""
    file = Events(tmp_path)
    for at in (100, 200, 300):
        file.write(at, {"x": at})
    file.close()
    (path,) = tmp_path.iterdir()
    raw = bytearray(path.read_bytes())
    *_, (end, _), _ = records(bytes(raw))
    raw[end + 9] ^= 1
    path.write_bytes(raw)
    Events(tmp_path, 400).close()
    assert [step for step, _ in events(tmp_path)] == [100, 200]


# Weights & Biases ------------------------------------------------------------------------------------------


def test_wandb_receives_the_metrics(tmp_path, monkeypatch):
    """A fake module records the calls."""
    calls = []

    class Fake:
        def __init__(self, **options):
            calls.append(options)

        def log(self, values, step):
            calls.append((step, values["loss"]))

        def finish(self):
            calls.append("finished")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=Fake))
    with Log(tmp_path / "cell", ["ss/0"], wandb="robots") as log:
        log(snapshot(4, range(1)))
    options, *rest = calls
    assert options["project"] == "robots" and options["name"] == "ss/0"
    assert options["id"] == "cell-ss-0" and options["resume"] == "allow"
    assert rest == [(4, 0.5), "finished"]


def test_a_missing_wandb_raises_an_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(SsorlError, match=r"not installed; run: pip install 'ssorl\[wandb\]'"):
        Log(tmp_path, ["a"], wandb="robots")


def test_a_wrong_byte_costs_only_its_line(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"run": "a", "at": 1}\n{"run": "a", "\xa2": 2, "at": "x"}\n\xff\xfe\n')
    assert lines(tmp_path / "metrics.jsonl") == [{"run": "a", "at": 1}]
