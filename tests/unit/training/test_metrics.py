"""Metrics in files: read back by decoders of the tests' own, and never twice after a resume."""

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


def look(at, runs=range(2), loss=0.5):
    return Snapshot(at, runs, None, None, {"loss": np.array([loss + i for i in runs], np.float32)})


def rows(folder):
    return [(line["run"], line["at"], line["loss"]) for line in lines(folder / "metrics.jsonl")]


# Lines of JSON ---------------------------------------------------------------------------------------------


def test_one_line_a_look_and_run(tmp_path):
    with Log(tmp_path, ["ss", "oracle"]) as log:
        log(look(4), score=[10.0, np.nan])
        log(look(8, loss=0.25), score=[11, np.inf])
    first, second, third, fourth = (json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert list(first) == ["run", "at", "seconds", "updates/s", "loss", "score"]
    assert (first["run"], first["at"], first["loss"], first["score"]) == ("ss", 4, 0.5, 10.0)
    assert (second["run"], second["score"]) == ("oracle", None)  # JSON has no NaN
    assert (third["loss"], fourth["loss"], fourth["score"]) == (0.25, 1.25, None)
    assert 0 <= first["seconds"] <= third["seconds"] and third["updates/s"] > 0


def test_seconds_and_rate_by_hand(tmp_path, monkeypatch):
    clock = iter([100.0, 102.0, 103.0, 200.0, 204.0])
    monkeypatch.setattr("ssorl.training.metrics.time.monotonic", lambda: next(clock))
    log = Log(tmp_path, ["a"])
    log(look(40, range(1)))
    log(look(80, range(1)))
    again = Log(tmp_path, ["a"])  # another process, an hour later, from the checkpoint at 80
    again(look(120, range(1)))
    got = [(x["at"], x["seconds"], x["updates/s"]) for x in lines(tmp_path / "metrics.jsonl")]
    assert got == [(40, 2.0, 20.0), (80, 3.0, 40.0), (120, 7.0, 10.0)]


def test_a_resumed_run_stands_once(tmp_path):
    """Stopped after its look at 12 was written and before its checkpoint: 8 and 12 come again, 4 does not."""
    with Log(tmp_path, ["a", "b"], tensorboard=True) as log:
        for at in (4, 8, 12):
            log(look(at))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"run": "a", "at": 1')  # cut off
    with Log(tmp_path, ["a", "b"], tensorboard=True) as log:
        for at in (8, 12):
            log(look(at, range(1), loss=7.0))  # only run a goes on
    assert rows(tmp_path) == [
        ("a", 4, 0.5), ("b", 4, 1.5), ("b", 8, 1.5), ("b", 12, 1.5), ("a", 8, 7.0), ("a", 12, 7.0)
    ]  # fmt: skip
    assert [(step, values["loss"]) for step, values in events(tmp_path / "tensorboard" / "a")] == [
        (4, 0.5), (8, 7.0), (12, 7.0)
    ]  # fmt: skip


def test_with_the_engine(tmp_path):
    """Stopped in its second run and taken up again; each look of each run once."""
    runs = [TrainingRun(make_episodes([5, 4, 6]), seed) for seed in range(2)]
    for stop in (True, False):
        with Log(tmp_path, ["a", "b"], tensorboard=True) as log:

            def see(look, log=log, stop=stop):
                log(look)
                if stop and look.at == 8 and 1 in look.runs:
                    raise KeyboardInterrupt

            try:
                train_many(AGENT, runs, every=4, callback=see, folder=tmp_path / "state")
            except KeyboardInterrupt:
                assert stop
    found = lines(tmp_path / "metrics.jsonl")
    assert [(x["run"], x["at"]) for x in found] == [(name, at) for name in "ab" for at in (4, 8, 12)]
    assert all(np.isfinite(x["actor_loss"]) for x in found)
    for name in "ab":
        own = [x for x in found if x["run"] == name]
        seen = events(tmp_path / "tensorboard" / name)
        assert [step for step, _ in seen] == [4, 8, 12]
        np.testing.assert_allclose([v["actor_loss"] for _, v in seen], [x["actor_loss"] for x in own], rtol=1e-6)


def test_names(tmp_path):
    with pytest.raises(SsorlError, match="names are a, a; give each run a name of its own"):
        Log(tmp_path, ["a", "a"])


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    for log in (Log(tmp_path / "file", ["a"]), Log(tmp_path, ["a"], tensorboard=True)):
        (tmp_path / "tensorboard").touch()
        with pytest.raises(SsorlError, match="cannot be written"):
            log(look(4, range(1)))


# TensorBoard -----------------------------------------------------------------------------------------------


def crc32c(raw):
    """Bit by bit, from the polynomial."""
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
    """(field, value) of a protocol buffer."""
    at, found = 0, []

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
        found.append((key >> 3, value))
    return found


def events(folder):
    """(step, tag -> value) of the scalars in the one event file of a folder."""
    (path,) = folder.iterdir()
    raw, at, found = path.read_bytes(), 0, []
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
        found.append((event[2], {v[1].decode(): struct.unpack("<f", v[2])[0] for v in summary}))
    return found


def test_the_checksum_is_crc32c():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of the published parameters


def test_event_files(tmp_path):
    file = Events(tmp_path)
    file.write(5, {"loss": 1.5, "q": float("nan")})
    file.write(300_000, {"loss": -1e300})
    file.close()
    (first, one), (second, two) = events(tmp_path)
    assert (first, one["loss"]) == (5, 1.5) and np.isnan(one["q"])
    assert (second, two["loss"]) == (300_000, -np.inf)


def test_event_files_go_on(tmp_path):
    """From a step, after a record that a kill cut short, and from the very start."""
    file = Events(tmp_path)
    for at in (100, 200, 300):
        file.write(at, {"x": at})
    file.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    for at, left in ((400, [100, 200]), (200, [100]), (0, [])):
        Events(tmp_path, at).close()
        assert [step for step, _ in events(tmp_path)] == left


def test_a_damaged_length_is_where_a_file_goes_on(tmp_path):
    """TensorBoard reads no further than a wrong checksum of a length, so nothing is written behind one."""
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


def test_wandb(tmp_path, monkeypatch):
    """Against a stand-in that notes what it is told."""
    told = []

    class Fake:
        def __init__(self, **options):
            told.append(options)

        def log(self, values, step):
            told.append((step, values["loss"]))

        def finish(self):
            told.append("finished")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=Fake))
    with Log(tmp_path / "cell", ["ss/0"], wandb="robots") as log:
        log(look(4, range(1)))
    options, *rest = told
    assert options["project"] == "robots" and options["name"] == "ss/0"
    assert options["id"] == "cell-ss-0" and options["resume"] == "allow"
    assert rest == [(4, 0.5), "finished"]


def test_wandb_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(SsorlError, match=r"not installed; run: pip install 'ssorl\[wandb\]'"):
        Log(tmp_path, ["a"], wandb="robots")


def test_a_wrong_byte_costs_its_line_alone(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"run": "a", "at": 1}\n{"run": "a", "\xa2": 2, "at": "x"}\n\xff\xfe\n')
    assert lines(tmp_path / "metrics.jsonl") == [{"run": "a", "at": 1}]
