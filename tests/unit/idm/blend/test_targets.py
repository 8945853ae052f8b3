"""Kinds of action dimensions: classes, angles and constants are recognised and decoded."""

from __future__ import annotations

import numpy as np
import pytest

from ssorl.idm.blend.targets import Dimension, Targets, find_targets, targets_from_json, wraps

N = 400


def kinds(column: np.ndarray, half: float = 1.0) -> Dimension:
    follows = np.r_[False, np.ones(len(column) - 1, bool)]
    return find_targets(column[:, None].astype(np.float32), follows, np.array([half])).dimensions[0]


def test_each_kind_is_recognised():
    rng = np.random.default_rng(0)
    assert kinds(rng.uniform(-1, 1, N)).kind == "number"
    assert kinds(rng.choice([-1.0, 1.0], N)) == Dimension("classes", (-1.0, 1.0))
    assert kinds(rng.choice([-1.0, 0.0, 0.5], N)).kind == "classes"
    assert kinds(np.full(N, 0.25)) == Dimension("constant", (0.25,))
    turning = (np.linspace(0, 40, N) + np.pi) % (2 * np.pi) - np.pi
    assert kinds(turning / np.pi, np.pi).kind == "angle"


def test_few_samples_of_few_values_stay_numbers():
    assert kinds(np.repeat([-1.0, 0.0, 1.0], 5)).kind == "number"


def test_an_angle_that_does_not_wrap_is_a_number():
    swing = np.pi * np.sin(np.linspace(0, 40, N))  # spans the range without a jump
    assert not wraps(swing, np.ones(N, bool), 2 * np.pi)


def test_a_binary_action_is_never_averaged():
    targets = Targets((Dimension("classes", (-1.0, 1.0)),))
    act, variance = targets.decode(np.array([[0.45], [0.55], [1.2]], np.float32), np.zeros((3, 1), np.float32))
    assert act[:, 0].tolist() == [-1, 1, 1]
    assert variance[0, 0] == pytest.approx(0.45 * 4, rel=1e-5) and variance[2, 0] == 0


def test_angles_are_decoded_across_the_wrap():
    targets = Targets((Dimension("angle", (2.0,)),))  # a full turn is the range
    act = np.array([[0.99], [-0.99], [0.3]], np.float32)
    assert np.allclose(targets.decode(targets.encode(act), np.zeros((3, 2), np.float32))[0], act, atol=1e-6)
    between = (targets.encode(act[:1]) + targets.encode(act[1:2])) / 2  # the mean of both is at the wrap, not at 0
    assert abs(targets.decode(between, np.zeros((1, 2), np.float32))[0][0, 0]) == pytest.approx(1, abs=1e-5)


def test_encoding_and_decoding_are_inverse():
    targets = Targets((Dimension("number"), Dimension("classes", (-1.0, 0.0, 1.0)), Dimension("constant", (0.5,))))
    act = np.array([[0.1, 0.0, 0.5], [-0.2, 1.0, 0.5]], np.float32)
    assert targets.width == 4
    assert np.array_equal(targets.decode(targets.encode(act), np.zeros((2, 4), np.float32))[0], act)


@pytest.mark.parametrize(
    "found",
    [None, [], [{"kind": "code", "values": []}], [{"kind": "classes", "values": [1.0]}],
     [{"kind": "angle", "values": [0.0]}], [{"kind": "constant", "values": [float("nan")]}]],
)  # fmt: skip
def test_invalid_dimensions_in_a_file_raise(found):
    with pytest.raises(ValueError):
        targets_from_json(found, 1)
