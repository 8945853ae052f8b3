"""Loads mutated files that ssorl itself writes, one line of output a case; a process of its own, so that a crash shows.

python -m support.loader_fuzz COUNT FOLDER [KIND [FIRST]], with tests/ on PYTHONPATH: case i
depends on KIND and i alone, so it can be repeated. Half of the cases are given a right checksum afterwards, as one who
means harm would.
"""

from __future__ import annotations

import faulthandler
import hashlib
import io
import json
import resource
import shutil
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from ssorl.agents import make
from ssorl.data.sim import policy as behaviour
from ssorl.data.split import Split, apply, coupled
from ssorl.data.stats import Standardiser
from ssorl.evaluation.policy_file import load_policy_file, save_policy
from ssorl.idm import IdmConfig, serialise
from ssorl.idm.fit import fit
from ssorl.idm.label import labeller
from ssorl.report.page import page
from ssorl.study.store import read as read_cell
from ssorl.training.engine import TrainingRun, train
from ssorl.utils.errors import SsorlError
from ssorl.utils.files import read_npz, write_json, write_npz
from support.episodes import make_episodes
from support.fuzz_worker import answer, mutate
from support.page_samples import result

MEMORY = 16 << 30  # bytes of address space: a forged size must be refused, not granted
AGENT = make("td3bc", hidden=(4,), batch=8, updates=4, half=False)
EPS = make_episodes([5, 4, 6])
Loader = Callable[[Path], object]


def policy(folder: Path) -> tuple[Path, Loader]:
    params = jax.device_get(AGENT.policy(AGENT.init(jax.random.key(0), 3, 2)))
    scaler = Standardiser(np.zeros(3, np.float32), np.ones(3, np.float32))
    save_policy(folder / "policy.npz", AGENT, params, scaler, -np.ones(2), np.ones(2), "Hopper-v5", {"seed": 3})
    return folder / "policy.npz", load_policy_file


def training(folder: Path) -> tuple[Path, Loader]:
    def resume(path: Path) -> object:
        return train(AGENT, TrainingRun(EPS, 0), every=2, folder=path.parent)

    (folder / "training").mkdir()
    resume(folder / "training" / "run-0.npz")
    return folder / "training" / "run-0.npz", resume


def model(folder: Path) -> tuple[Path, Loader]:
    config = IdmConfig(hidden=(4,), steps=4, batch=4, validate_every=2)
    serialise.save(labeller(fit(EPS, config), EPS), folder / "model")
    return folder / "model" / "weights.npz", lambda path: serialise.load(path.parent)


def model_settings(folder: Path) -> tuple[Path, Loader]:
    weights, load = model(folder)
    return weights.with_name("idm.json"), load


def split(folder: Path) -> tuple[Path, Loader]:
    """A split that loads must also be fit to be applied, or refused there."""
    eps = make_episodes([3] * 20)
    coupled(eps, 0.2).save(folder / "split.json")

    def use(path: Path) -> object:
        found = Split.load(path)
        try:
            return apply(found, eps)
        except SsorlError as err:
            raise SsorlError(f"{path}: {err}") from err

    return folder / "split.json", use


def run_result(folder: Path) -> tuple[Path, Loader]:
    """A result that is read must also make a page."""
    write_json(folder / "result.json", result(seeds=2, episodes=2, points=2))
    return folder / "result.json", lambda path: page(path.parent)


def cell_result(folder: Path) -> tuple[Path, Loader]:
    """Its reader tells why there is none in place of an error."""
    write_json(folder / "result.json", {"schema": 1, "score": 1.5, "curve": {"at": [1, 2], "score": [0.5, 1.5]}})

    def read(path: Path) -> object:
        told, why = read_cell(path.parent)
        if told is None:
            raise SsorlError(f"{path}: {why}")
        return told

    return folder / "result.json", read


def stage(folder: Path) -> tuple[Path, Loader]:
    write_npz(folder / "proxies.npz", {"step": np.arange(4), "act": np.ones((4, 2), np.float32)})
    return folder / "proxies.npz", read_npz


def collector(folder: Path) -> tuple[Path, Loader]:
    weights = [np.ones((3, 4)), np.ones(4), np.ones((4, 4)), np.ones(4)]
    behaviour.save(folder / "actor.npz", behaviour.from_weights(weights, -np.ones(2), np.ones(2)), {})
    return folder / "actor.npz", behaviour.load


KINDS = {f.__name__: f for f in (policy, training, model, model_settings, split, run_result, cell_result)}
KINDS |= {f.__name__: f for f in (stage, collector)}


def change(raw: bytes, suffix: str, rng: np.random.Generator) -> bytes:
    """A mutation of the file as it is, or of a part of it with all checksums made right again."""
    if rng.random() < 0.5:
        return mutate(raw, rng)
    if suffix == ".json":
        told = json.loads(raw)
        told.pop("sha256", None)  # without one it is taken as it is
        return mutate(json.dumps(told).encode(), rng)
    return repacked(raw, rng)


def repacked(raw: bytes, rng: np.random.Generator) -> bytes:
    """One member mutated, the zip written again, and sealed again if it was."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members, sealed = {name: archive.read(name) for name in archive.namelist()}, bool(archive.comment)
    which = list(members)[int(rng.integers(len(members)))]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, body in members.items():
            archive.writestr(name, mutate(body, rng) if name == which else body)
        archive.comment = b"0" * 64 if sealed else b""
    body = out.getvalue()
    return body[:-64] + hashlib.sha256(body[:-64]).hexdigest().encode() if sealed else body


def run(kind: str, count: int, folder: Path, first: int = 0) -> None:
    (folder / "whole").mkdir(parents=True)
    whole, load = KINDS[kind](folder / "whole")
    raw, case = whole.read_bytes(), folder / "case"
    shutil.copytree(whole.parent, case)
    target = case / whole.name
    load(target)
    for i in range(first, first + count):
        rng = np.random.default_rng([zlib.crc32(kind.encode()), i])
        target.write_bytes(change(raw, whole.suffix, rng))
        print(f"{i} {kind} {target.name}", end=" ", flush=True)
        print(answer(load, target, case), flush=True)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    faulthandler.enable()
    for kind in sys.argv[3:4] or KINDS:
        run(kind, int(sys.argv[1]), Path(sys.argv[2]) / kind, *map(int, sys.argv[4:5]))
