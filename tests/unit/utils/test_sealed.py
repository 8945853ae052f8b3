"""Sealed files, and the files without a seal that version 0.1 wrote in their place."""

import numpy as np
import pytest

from ssorl.utils.files import DamagedError, write_npz
from ssorl.utils.sealed import sealed_or_npz, write_sealed

ARRAYS = {"a/b": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(3)}


@pytest.mark.parametrize("write", [write_npz, lambda path, arrays: write_sealed(path, {"kind": "x"}, arrays)])
def test_arrays_come_back_from_either(tmp_path, write):
    write(tmp_path / "file.npz", ARRAYS)
    with sealed_or_npz(tmp_path / "file.npz") as file:
        assert file.names == list(ARRAYS) and file.about in ({}, {"kind": "x"})
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(file.array(name), array)
        with pytest.raises(ValueError, match="has no array c"):
            file.array("c")


def test_a_seal_that_is_wrong_is_noticed(tmp_path):
    path = tmp_path / "file.npz"
    write_sealed(path, {}, ARRAYS)
    body = bytearray(path.read_bytes())
    body[-1] ^= 1
    path.write_bytes(body)
    with pytest.raises(DamagedError, match="checksum"), sealed_or_npz(path):
        pass
    path.write_bytes(body[:-1])
    with pytest.raises(Exception, match=r"zip|checksum"), sealed_or_npz(path):
        pass
