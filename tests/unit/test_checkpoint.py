"""Policies and unfinished trainings in files: the same bits back, or one sentence."""

import hashlib
import json
import os
import resource
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssorl.agents import make
from ssorl.checkpoint import load_policy_file, save_policy
from ssorl.data.stats import Standardiser
from ssorl.errors import DataError, SsorlError
from ssorl.store import DamagedError, sealed, write_sealed

AGENT = make("td3bc", hidden=(4,), batch=8, updates=12, half=False)
SCALER = Standardiser(np.arange(3, dtype=np.float32), np.arange(1, 4, dtype=np.float32))
LOW, HIGH = np.array([-2.0, -1.0]), np.array([2.0, 3.0])


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


@pytest.fixture(scope="module")
def params():
    return jax.device_get(AGENT.policy(AGENT.init(jax.random.key(0), 3, 2)))


@pytest.fixture
def policy(tmp_path, params):
    path = tmp_path / "policy.npz"
    save_policy(path, AGENT, params, SCALER, LOW, HIGH, "Hopper-v5", {"seed": 3})
    return path


# Sealed files ----------------------------------------------------------------------------------------------


def test_sealed_arrays_keep_type_shape_and_bits(tmp_path):
    arrays = {
        "a/0": np.float32(3.5),
        "b": np.arange(6, dtype=np.int32).reshape(2, 3).T,
        "half": np.asarray(jnp.arange(3, dtype=jnp.bfloat16)),
        "none": np.zeros((0, 4), np.float64),
        "yes": np.array([True, False]),
    }
    write_sealed(tmp_path / "x.npz", {"k": 1}, arrays)
    with sealed(tmp_path / "x.npz", "a test") as file:
        assert file.about == {"k": 1}
        same(file.read(arrays), {k: np.asarray(v) for k, v in arrays.items()})
    with np.load(tmp_path / "x.npz", allow_pickle=False) as plain:  # it is an npz like any other
        np.testing.assert_array_equal(plain["b"], arrays["b"])
        assert json.loads(plain["about.json"]) == {"k": 1}


def test_every_flipped_bit_and_every_cut_is_noticed(tmp_path):
    path = tmp_path / "x.npz"
    write_sealed(path, {"k": 1}, {"a": np.arange(4)})
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(DamagedError, match="cut short or damaged"), sealed(path, "a test"):
            pass
        path.write_bytes(whole[:place])
        with pytest.raises(DamagedError), sealed(path, "a test"):
            pass


def test_wanted_shapes_come_first(tmp_path):
    """A file that claims more than is wanted, or than it holds, is refused before memory is asked for."""
    path, claim = tmp_path / "x.npz", {"descr": "<f4", "fortran_order": False, "shape": (10**12,)}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("about.json", "{}")
        with archive.open("a.npy", "w") as file:
            np.lib.format.write_array_header_1_0(file, claim)
    reseal(path)
    with pytest.raises(DataError, match=r"a is float32\[1000000000000\] where float32\[3\] is due"):
        read(path, {"a": np.zeros(3, np.float32)})
    with pytest.raises(DataError, match="a is cut short"):
        read(path, {"a": jax.ShapeDtypeStruct((10**12,), np.float32)})
    with pytest.raises(DataError, match=r"arrays missing or not expected: a.npy, b.npy"):
        read(path, {"b": np.zeros(3, np.float32)})


def test_nothing_is_unpacked(tmp_path):
    """Compressed members, which may grow a thousandfold, and objects are not read."""
    for name, array, save in (("bomb", np.zeros(10), np.savez_compressed), ("object", np.array([{}]), np.savez)):
        path = tmp_path / f"{name}.npz"
        save(path, a=array)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("about.json", "{}")
        reseal(path)
        with pytest.raises(DataError, match=r"a is not stored plainly|a is object\[1\] where"):
            read(path, {"a": np.zeros(array.shape)})


def read(path, wanted):
    with sealed(path, "a test") as file:
        return file.read(wanted)


def reseal(path):
    """Give a doctored file a right checksum, as one who means harm would."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"0" * 64
    body = path.read_bytes()[:-64]
    path.write_bytes(body + hashlib.sha256(body).hexdigest().encode())


# Policies --------------------------------------------------------------------------------------------------


def test_a_policy_comes_back(policy, params):
    got = load_policy_file(policy)
    assert got.agent == AGENT and got.env == "Hopper-v5" and got.note == {"seed": 3}
    same(got.params, params)
    same((*got.scaler, got.act_low, got.act_high), (*SCALER, *(x.astype(np.float32) for x in (LOW, HIGH))))
    assert not list(policy.parent.glob(".tmp-*"))


def doctor(path, **changes):
    """Change about.json and seal the file again."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    about = json.loads(members["about.json"])
    for name, value in changes.items():
        (about["settings"] if name in about["settings"] else about)[name] = value
    members["about.json"] = json.dumps(about).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, body in members.items():
            archive.writestr(name, body)
    reseal(path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"agent": "os.system"}, "an agent called 'os.system'; this version has bc"),
        ({"agent": "bc"}, "settings that bc does not have here: actor_lr, alpha"),
        ({"kind": "poem"}, "is of something else"),
        ({"version": 9}, "version 9 of its layout"),
        ({"gamma": "0.9"}, "the setting gamma is 0.9"),
        ({"gamma": float("nan")}, "NaN is no number"),
        ({"batch": 2.5}, "the setting batch is 2.5"),
        ({"batch": True}, "the setting batch is True"),
        ({"hidden": [4] * 1000}, r"the setting hidden is \[4, 4"),
        ({"hidden": [9_000_000, 9_000_000]}, "params/"),
        ({"hidden": [5]}, r"params/0/b is float32\[4\] where float32\[5\] is due"),
        ({"n_obs": 10**15}, "n_obs is 1000000000000000"),
        ({"n_act": 0}, "n_act is 0"),
        ({"env": 3}, "its env is no name"),
    ],
)
def test_a_doctored_policy_is_refused(policy, changes, sentence):
    doctor(policy, **changes)
    with pytest.raises(DataError, match=sentence):
        load_policy_file(policy)


def test_an_older_file_may_lack_a_setting(policy):
    with zipfile.ZipFile(policy) as archive:
        settings = json.loads(archive.read("about.json"))["settings"]
    del settings["noise_clip"]
    doctor(policy, settings=settings)
    assert load_policy_file(policy).agent == AGENT


def test_a_scale_must_scale(policy, params):
    save_policy(policy, AGENT, params, Standardiser(SCALER.mean, 0 * SCALER.std), LOW, HIGH)
    with pytest.raises(DataError, match="not finite or not positive"):
        load_policy_file(policy)


def test_other_files_are_no_policies(tmp_path):
    with pytest.raises(DataError, match=r"none\.npz: cannot be read \(No such file"):
        load_policy_file(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello" * 100)
    with pytest.raises(DataError, match=r"text\.npz: is not a saved policy, or is cut short"):
        load_policy_file(tmp_path / "text.npz")


def test_an_agent_of_ones_own_is_not_saved_as_a_policy(tmp_path, params):
    own = type("Mine", (type(AGENT),), {})
    with pytest.raises(SsorlError, match="Mine is not among the agents"):
        save_policy(tmp_path / "p.npz", own(), params, SCALER, LOW, HIGH)


def test_a_full_disk_leaves_what_was_there(policy, params):
    before, limit = policy.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limit[1]))
    try:
        with pytest.raises(SsorlError, match=r"policy\.npz: cannot be written \(File too large\)"):
            save_policy(policy, AGENT, params, SCALER, LOW, HIGH)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert policy.read_bytes() == before and os.listdir(policy.parent) == ["policy.npz"]
