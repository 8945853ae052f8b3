"""Forged files of ssorl's own formats: only our own errors are raised, no code runs, no forged size is allocated."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.clock import patience
from support.effort import effort
from support.paths import environment

from ssorl.data.sim import policy as behaviour
from ssorl.evaluation.policy_file import load_policy_file
from ssorl.idm import serialise
from ssorl.utils.errors import SsorlError
from ssorl.utils.files import read_npz

CASES = 2000  # mutations of each kind of file in a campaign; test_fuzz.py tests the readers of datasets
KINDS = 9


def test_forged_files_raise_only_our_own_error(tmp_path, campaign):
    """Policies, checkpoints, models, splits, results, stages of a run and collectors, in one child process."""
    count = campaign.count(CASES)
    command = [sys.executable, "-m", "support.loader_fuzz", str(count), str(tmp_path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=patience(600 + count))
    lines = done.stdout.splitlines()
    # The worker ends at the first crash or hang; its last line has the number of the case.
    assert done.returncode == 0, f"{lines[-1:]}\n{done.stderr[-3000:]}"
    bad = [line for line in lines if " BAD " in line]
    assert not bad, "\n".join(line[-2000:] for line in bad[:5])
    seen = Counter((line.split()[1], line.split()[3]) for line in lines)
    refused = {kind: n for (kind, answer), n in seen.items() if answer == "refused"}
    assert seen.total() == KINDS * count and len(refused) == KINDS and min(refused.values()) > count / 2, seen


# Code and zip bombs ----------------------------------------------------------------------------------------


class Bomb:
    """Creates a folder when it is unpickled."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder / "pwned"),)


LOADERS = {
    "policy": load_policy_file,
    "stage": read_npz,
    "collector": behaviour.load,
    "model": lambda path: serialise.load(path.parent),
}


def a_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps([Bomb(path.parent)]))


def objects(path: Path) -> None:
    array = np.empty(1, object)
    array[0] = Bomb(path.parent)
    np.savez(path, w0=array, about=array, obs=array)


def a_zip_bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("w0.npy", "about.json", "params/mean/0/w.npy"):
            with archive.open(name, "w", force_zip64=True) as file:
                file.write(bytes(20 << 20))


def a_huge_shape(path: Path) -> None:
    head = {"descr": "<f4", "fortran_order": False, "shape": (10**13,)}
    with zipfile.ZipFile(path, "w") as archive, archive.open("w0.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, head)


@pytest.mark.parametrize("forge", [a_pickle, objects, a_zip_bomb, a_huge_shape])
@pytest.mark.parametrize("kind", LOADERS)
def test_code_and_zip_bombs_in_files_raise(tmp_path, kind, forge):
    path = tmp_path / "weights.npz"
    forge(path)
    (tmp_path / "idm.json").write_text("{}")
    with effort() as spent, pytest.raises(SsorlError, match=str(tmp_path)):
        LOADERS[kind](path)
    assert spent.small, vars(spent)
    assert not (tmp_path / "pwned").exists()


def test_sources_call_nothing_that_runs_code_from_files():
    """Only the safe reader loads pickles, and nothing calls eval or exec."""
    source = Path(serialise.__file__).parents[1]
    for file in source.rglob("*.py"):
        text = file.read_text()
        for word in ("pickle.load", "allow_pickle=True", "marshal.", "shelve.", " eval(", " exec(", "yaml.load("):
            assert word not in text, f"{file}: {word}"


# Open ports -----------------------------------------------------------------------------------------------


def test_no_module_opens_a_port():
    """Pages are files; only Ray opens ports, and only for `ssorl study run --ray`."""
    source = Path(serialise.__file__).parents[1]
    for file in source.rglob("*.py"):
        text = file.read_text()
        for word in (".listen(", "socketserver", "http.server", "HTTPServer", "create_server(", "start_server("):
            assert word not in text, f"{file}: {word}"
        # `ray_cluster.py` looks for a free port on this machine.
        assert ".bind((" not in text or "127.0.0.1" in text, file
