"""Repairs change the named trajectories and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from support.episodes import make_episodes

from ssorl.data import repair
from ssorl.utils.errors import DataError


@pytest.fixture
def eps():
    return make_episodes([5, 4, 6], act_low=(-1.0, -1.0), act_high=(1.0, 1.0), act_range="declared")


def test_shifted_actions_keep_to_their_trajectory(eps):
    moved = repair.shift_actions(eps, 2, [1])
    assert np.isnan(moved.act[5:7]).all() and np.array_equal(moved.act[7:9], eps.act[5:7])
    assert np.array_equal(moved.act[:5], eps.act[:5]) and np.array_equal(moved.act[9:], eps.act[9:])
    back = repair.shift_actions(moved, -2, [1])
    assert np.array_equal(back.act[5:7], eps.act[5:7]) and np.isnan(back.act[7:9]).all()
    assert np.isnan(repair.shift_actions(eps, -9).act).all()


def test_flip_and_scale_work_about_the_middle_of_a_declared_range():
    eps = make_episodes([4, 4], n_act=1).with_meta(act_low=(0.0,), act_high=(1.0,), act_range="declared")
    eps = eps.with_actions(np.linspace(0.1, 0.9, 8, dtype=np.float32)[:, None])
    assert np.allclose(repair.flip(eps, [0]).act, 1 - eps.act)
    assert np.allclose(repair.scale(eps, [0.5]).act, 0.25 + eps.act / 2)
    with pytest.raises(DataError, match="outside its declared range"):
        repair.scale(eps, [3.0])


def test_permute_is_undone_by_its_inverse(eps):
    assert np.array_equal(repair.permute(repair.permute(eps, [1, 0], [2]), [1, 0], [2]).act, eps.act)
    with pytest.raises(DataError, match="does not name each of the 2 action dimensions once"):
        repair.permute(eps, [0, 0])


def test_leaving_out(eps):
    assert repair.leave_out(eps, [1]).lengths.tolist() == [5, 6]
    assert np.array_equal(repair.leave_out_state(eps, [1]).obs, eps.obs[:, [0, 2]])
    assert np.isnan(repair.forget_actions(eps, [0]).act[:5]).all()
    for call in (
        lambda: repair.leave_out(eps, [0, 1, 2]),
        lambda: repair.leave_out_state(eps, [3]),
        lambda: repair.flip(eps, [2]),
        lambda: repair.scale(eps, [0.0]),
        lambda: repair.forget_actions(eps, [3]),
    ):
        with pytest.raises(DataError):
            call()
