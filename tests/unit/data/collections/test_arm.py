"""`builtin/arm`: a servo arm whose commands act `lag` steps after they are recorded."""

from __future__ import annotations

import numpy as np
import pytest

from ssorl.data import load
from ssorl.data.catalogue import catalogue
from ssorl.data.collections import arm, builtin
from ssorl.utils.errors import DataError


def test_the_catalogue_lists_every_lag_and_each_can_be_loaded():
    rows = {row["name"]: row for row in catalogue()}
    for name in ("arm", "arm-lag1", "arm-lag2", "arm-lag3"):
        assert rows[f"builtin/{name}"]["steps"] == 40 * 119 and "normalised_return" not in rows[f"builtin/{name}"]
        eps = load(f"builtin/{name}")
        assert (len(eps), eps.n_steps, eps.n_obs, eps.n_act) == (40, 4760, 6, 6)
        assert eps.meta.source == f"builtin/{name}" and eps.meta.fps == 30
        assert eps.meta.state_names == eps.meta.action_names == arm.JOINTS and eps.meta.act_range == "declared"
        assert not eps.rewarded.any() and eps.labelled.all() and not eps.terminated.any()


@pytest.mark.parametrize("lag", arm.LAGS)
def test_a_command_moves_the_arm_after_the_lag_by_the_servo_equation(lag):
    eps = arm.record(lag, n_episodes=3)
    obs, act = eps.obs.reshape(3, 120, 6), eps.act.reshape(3, 119, 6)
    t = np.arange(119 - lag)
    moved = obs[:, t + lag + 1] - obs[:, t + lag]
    error = moved - arm.ALPHA * (act[:, t] - obs[:, t + lag])
    # The encoders add noise to both ends: of deviation 1 to the later state, 1 − α to the earlier one.
    assert error.std() == pytest.approx(arm.NOISE * np.hypot(1, 1 - arm.ALPHA), rel=0.1)
    early = np.arange(118 - lag)
    other = obs[:, early + lag + 2] - obs[:, early + lag + 1] - arm.ALPHA * (act[:, early] - obs[:, early + lag + 1])
    assert other.std() > 3 * error.std()  # one step later, the equation does not hold


def test_recordings_depend_on_the_seed_alone_and_keep_their_commands_at_another_lag():
    assert arm.record(2).same(load("builtin/arm-lag2")) and not arm.record(2, seed=1).same(arm.record(2))
    assert np.array_equal(arm.record(0).act, arm.record(3).act)


@pytest.mark.parametrize("seed", range(3))
def test_commands_are_smooth_and_stay_off_their_limits(seed):
    eps = arm.record(seed=seed)
    scaled = eps.scaled_actions().reshape(40, 119, 6)
    assert np.abs(scaled).max() < 0.98
    assert np.abs(np.diff(scaled, axis=1)).max() < 0.4 and np.diff(scaled, axis=1).std() > 0.01


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(DataError, match="did you mean builtin/arm-lag1"):
        builtin.load_id("arm-lag10")
    with pytest.raises(DataError, match="choose one of pointmass, arm"):
        builtin.load_id("zzz")
    with pytest.raises(DataError, match="choose one of arm"):
        arm.load_id("pointmass")
