"""One flipped bit in a file that ssorl wrote is detected: the file is made again, or an error names a cure."""

from __future__ import annotations

import shutil
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.commands import run_bits, study_bits
from support.episodes import CHOICES

import ssorl
from ssorl.data import load, save
from ssorl.data.split import Split
from ssorl.idm import serialise
from ssorl.runs.run import run
from ssorl.study import scheduler
from ssorl.study.grid import Grid, Study
from ssorl.study.store import state
from ssorl.utils.errors import DataError, SsorlError
from ssorl.utils.files import DamagedError, read_json, read_npz, write_json, write_npz

pytestmark = pytest.mark.usefixtures("small_idm")
MODEL = {"hidden": (8,), "steps": 40, "validate_every": 20, "batch": 32, "lr": 1e-3}
CELLS = {"agent": "bc", "fraction": 0.2, "settings": CHOICES["settings"], "idm_settings": MODEL, "episodes": 2}


@pytest.fixture(scope="module")
def done(eps, tmp_path_factory) -> Path:
    return run(eps, tmp_path_factory.mktemp("runs") / "one", **CHOICES).folder


def flip(path: Path, place: int, bit: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1 << bit
    path.write_bytes(raw)


def places(path: Path, n: int, seed: int = 0) -> list[tuple[int, int]]:
    """Return random bits of a file."""
    rng = np.random.default_rng(seed)
    return [(int(rng.integers(path.stat().st_size)), int(rng.integers(8))) for _ in range(n)]


# Readers alone ---------------------------------------------------------------------------------------------


def json_of(folder: Path) -> Path:
    write_json(folder / "x.json", {"mean": 1.25, "list": [1, 2], "text": "word", "none": None})
    return folder / "x.json"


def npz_of(folder: Path) -> Path:
    write_npz(folder / "x.npz", {"a": np.arange(3), "none": np.zeros((3, 0), np.float32)})
    return folder / "x.npz"


@pytest.mark.parametrize(("make", "read"), [(json_of, read_json), (npz_of, read_npz)], ids=["json", "npz"])
def test_flipped_bit_in_every_byte_of_a_small_file(tmp_path, make, read):
    """Each flip raises, or changes only parts that are not read, such as white space and dates."""
    path = make(tmp_path)
    want, whole, noticed = described(read(path)), path.read_bytes(), 0
    for place in range(len(whole)):
        flip(path, place, bit := (place + place // 8) % 8)
        try:
            # If the key of the checksum is hit, it becomes one more entry and everything else is as before.
            got = {k: v for k, v in read(path).items() if len(str(v)) != 64}
            assert described(got) == want, (place, bit)
        except DamagedError as err:
            noticed += str(path) in str(err)
        path.write_bytes(whole)
    assert noticed > len(whole) / 2


def test_flipped_bit_hides_no_array_of_a_dataset(eps, tmp_path):
    """A zip lists its members with the length of each comment; a wrong length hides the next member."""
    arrays = {name: getattr(eps[:5], name) for name in ("obs", "rew", "start", "act", "terminated")}
    np.savez(tmp_path / "set.npz", **arrays)
    raw = (tmp_path / "set.npz").read_bytes()
    behind = raw.rindex(b"PK\x01\x02", 0, raw.rindex(b"PK\x01\x02"))  # the entry before the last
    flip(tmp_path / "set.npz", behind + 33, 3)
    with zipfile.ZipFile(tmp_path / "set.npz") as archive:
        assert "terminated.npy" not in archive.namelist()
    with pytest.raises(DataError, match=r"set\.npz: its directory is damaged"):
        load(tmp_path / "set.npz")


def data_of(done: Path, eps, path: Path):
    save(eps[:5], path / "set.npz")
    return path / "set.npz", load


def weights_of(done: Path, eps, path: Path):
    shutil.copytree(done / "idm" / "0", path / "m")
    return path / "m" / "weights.npz", lambda file: serialise.load(file.parent).idm


def model_of(done: Path, eps, path: Path):
    shutil.copytree(done / "idm" / "0", path / "m")
    return path / "m" / "idm.json", lambda file: serialise.load(file.parent)


def split_of(done: Path, eps, path: Path):
    shutil.copy(done / "splits" / "0.json", path / "split.json")
    return path / "split.json", Split.load


def policy_of(done: Path, eps, path: Path):
    shutil.copy(done / "policies" / "ss-0.npz", path / "p.npz")
    return path / "p.npz", lambda file: ssorl.load_policy(file).player


@pytest.mark.parametrize("kind", [data_of, weights_of, model_of, split_of, policy_of])
def test_flipped_bit_raises_or_changes_nothing(done, eps, tmp_path, kind):
    file, read = kind(done, eps, tmp_path)
    whole, want, refused, n = file.read_bytes(), described(read(file)), 0, 60
    for place, bit in places(file, n):
        flip(file, place, bit)
        try:
            assert described(read(file)) == want, (place, bit)
        except SsorlError as err:
            refused += 1
            assert str(tmp_path) in str(err) and "; " in str(err) and "\n" not in str(err)
        file.write_bytes(whole)
    assert refused > n / 2


def described(value) -> str:
    """Return all that was read as text, with complete arrays."""
    with np.printoptions(threshold=10**9, precision=9):
        return repr(value if isinstance(value, (tuple, dict)) else vars(value))


# A run's folder --------------------------------------------------------------------------------------------

AGAIN = ["splits/0.json", "idm/0/idm.json", "idm/0/weights.npz", "proxies/0.npz", "proxies/0.json"]
AGAIN += ["evaluation.npz", "result.json"]


@pytest.mark.parametrize("name", AGAIN)
def test_damaged_stage_is_computed_again(done, eps, tmp_path, name):
    folder = tmp_path / "r"
    for place, bit in places(done / name, 3):
        shutil.copytree(done, folder)
        if name != "result.json":  # a finished run reads no other file
            (folder / "result.json").unlink()
        flip(folder / name, place, bit)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            run(eps, folder, **CHOICES)
        assert run_bits(folder) == run_bits(done)
        assert all("this stage runs again" in str(w.message) and str(folder) in str(w.message) for w in heard)
        shutil.rmtree(folder)


def test_changed_digit_in_a_json_file_is_detected(done, eps, tmp_path):
    """The file stays valid JSON, so only the checksum can detect another digit."""
    for name in [name for name in AGAIN if name.endswith(".json")]:
        shutil.copytree(done, folder := tmp_path / name.replace("/", "-"))
        text = (folder / name).read_text()
        place = next(i for i in range(len(text) // 2, len(text)) if text[i] in "2345678" and '"' not in text[i - 2 : i])
        (folder / name).write_text(text[:place] + str(int(text[place]) ^ 1) + text[place + 1 :])
        if name != "result.json":
            (folder / "result.json").unlink()
        with pytest.warns(UserWarning, match="checksum is wrong.*this stage runs again"):
            run(eps, folder, **CHOICES)
        assert run_bits(folder) == run_bits(done)


def test_damaged_checkpoint_raises_and_its_cure_works(done, eps, tmp_path):
    shutil.copytree(done, folder := tmp_path / "r")
    (folder / "result.json").unlink()
    file = folder / "checkpoints" / "0" / "run-1.npz"
    flip(file, 1000)
    with pytest.raises(DataError, match=r"run-1\.npz: .*checksum is wrong.*delete it to train from the start"):
        run(eps, folder, **CHOICES)
    file.unlink()
    run(eps, folder, **CHOICES)
    assert run_bits(folder) == run_bits(done)


def test_damaged_policy_raises_and_its_cure_works(done, eps, tmp_path):
    shutil.copytree(done, folder := tmp_path / "r")
    file = folder / "policies" / "ss-0.npz"
    flip(file, 700)
    with pytest.raises(DataError, match=r"ss-0\.npz: .*checksum is wrong.*delete it and run the command"):
        ssorl.load_policy(folder)
    file.unlink()
    run(eps, folder, **CHOICES)
    assert run_bits(folder) == run_bits(done)


def test_damaged_config_raises_with_a_cure(done, eps, tmp_path):
    shutil.copytree(done, folder := tmp_path / "r")
    flip(folder / "config.json", 40, 1)
    with pytest.raises(SsorlError, match=r"config\.json: cannot be read .*choose another --out, or remove that folder"):
        run(eps, folder, **CHOICES)


# A study's store -------------------------------------------------------------------------------------------


def test_damaged_results_of_a_study_are_computed_again(eps, tmp_path):
    save(eps, tmp_path / "data.npz")
    grid = Grid({"dataset": str(tmp_path / "data.npz"), **CELLS}, {"variant": ("baseline", "ss")})
    cells = Study("s", "s", (grid,)).cells("smoke")
    assert scheduler.run(cells, tmp_path / "whole") == (2, {})
    want = study_bits(tmp_path / "whole")
    (ss,) = (cell for cell in cells if cell.variant == "ss")
    names = [f"cells/{ss.hash}/result.json"]
    names += [f"idms/{ss.idm_hash}/{name}" for name in ("report.json", "model/idm.json", "model/weights.npz")]
    for name in names:
        shutil.copytree(tmp_path / "whole", store := tmp_path / name.replace("/", "-"))
        for place, bit in places(store / name, 1, seed=3):
            flip(store / name, place, bit)
        (store / "cells" / ss.hash / "result.json").write_text("{" if name != names[0] else (store / name).read_text())
        assert state(store, cells) == (1, 0, 1)
        assert scheduler.run(cells, store) == (2, {})
        assert study_bits(store) == want
