"""The blend: exact on linear systems, delays, ends of trajectories, files, limits and the forecast."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.systems import hide_after, linear

from ssorl.data.episodes import Episodes, Meta
from ssorl.idm import serialise
from ssorl.idm.blend.config import BlendConfig
from ssorl.idm.blend.fit import choose_holdout
from ssorl.idm.blend.model import Blend, Window
from ssorl.idm.fill import fill
from ssorl.idm.label import label, labeller
from ssorl.idm.limits import AT_LIMIT, Limits, find_limits
from ssorl.utils.errors import DataError

SMALL = BlendConfig(rounds=20, members=1, hidden=(16,), steps=60)


def arm(delay: int, n: int = 16, length: int = 60, seed: int = 0) -> Episodes:
    """A first-order servo that follows commands `delay` steps late; the third action is a gripper."""
    rng = np.random.default_rng(seed)
    obs, act = [], []
    for _ in range(n):
        knots = rng.uniform(-1, 1, (8, 2))
        times = np.linspace(0, 7, length)
        command = np.stack([np.interp(times, np.arange(8), k) for k in knots.T], 1)
        grip = np.where(np.sin(times + rng.uniform(0, 6)) > 0, 1.0, -1.0)
        state = np.zeros((length + 1, 3))
        for t in range(length):
            state[t + 1, :2] = state[t, :2] + 0.3 * (command[max(0, t - delay)] - state[t, :2])
            state[t + 1, 2] = 0.5 * grip[t]
        obs.append(state + rng.normal(0, 0.001, state.shape))
        act.append(np.c_[command, grip])
    start = np.arange(n + 1) * length
    meta = Meta("arm", None, (-1.0,) * 3, (1.0,) * 3, "declared")
    rewards = np.repeat(rng.random(n), length).astype(np.float32)
    flat = [np.concatenate(x).astype(np.float32) for x in (obs, act)]
    return Episodes(*flat, rewards, np.zeros(n * length, bool), start, meta)


@pytest.fixture(scope="module", params=[0, 2])
def case(request):
    whole = arm(request.param)
    eps = hide_after(whole, 8)
    return request.param, whole, eps, fill(eps, SMALL, truth=whole.act)


def test_the_delay_of_actions_is_found(case):
    delay, _, _, done = case
    window = done.report["model"]["window"]
    assert window["lag"] == -delay and window["future"] >= delay


def test_whole_windows_are_as_good_as_least_squares(case):
    delay, whole, eps, done = case
    place = np.arange(eps.n_steps) - eps.start[eps.episode_of_step]
    inner = done.labels.proxy & (place >= 3) & (place < 60 - 4 - delay)
    error = (done.labels.act - whole.act)[inner][:, :2]
    assert np.sqrt((error**2).mean()) < 0.01  # 0.5 % of the range; encoder noise alone gives half of that


def test_a_gripper_is_classified(case):
    _, whole, _, done = case
    assert set(np.unique(done.labels.act[:, 2])) == {-1.0, 1.0}
    assert (done.labels.act[:, 2] == whole.act[:, 2]).mean() > 0.97
    assert done.report["model"]["dimensions"] == ["number", "number", "classes"]


def test_steps_whose_effect_is_not_seen_have_a_wider_std(case):
    delay, _, eps, done = case
    place = np.arange(eps.n_steps) - eps.start[eps.episode_of_step]
    proxy = done.labels.proxy
    last, inner = done.labels.std[proxy & (place == 59)][:, :2], done.labels.std[proxy & (place == 30)][:, :2]
    assert delay == 0 or last.mean() > inner.mean()


def test_a_saved_blend_labels_with_the_same_bits(case, tmp_path):
    _, _, eps, done = case
    serialise.save(done.ready, tmp_path / "m")
    again = label(serialise.load(tmp_path / "m"), eps)
    assert np.array_equal(again.act, done.labels.act) and np.array_equal(again.std, done.labels.std)


def test_blocks_do_not_change_labels(case, monkeypatch):
    _, _, eps, done = case
    monkeypatch.setattr("ssorl.idm.blend.model.BLOCK", 37)
    again = label(done.ready, eps)
    assert np.allclose(again.act, done.labels.act, atol=1e-5)


def test_a_damaged_window_is_refused(case, tmp_path):
    done = case[3]
    idm = done.ready.idm
    assert isinstance(idm, Blend)
    about = {**idm.about(), "window": [1, -1, 0]}
    with pytest.raises(ValueError, match="window"):
        idm.config.restore(3, 3, None, about)


def test_the_report_has_a_forecast_of_the_true_error(case):
    _, whole, _, done = case
    found = done.report["forecast"]
    true = done.report["truth"]["mse"]
    assert found["low"] <= found["mse"] <= found["high"] and found["high"] / found["low"] <= 10
    assert 0.1 < found["mse"] / true < 10
    assert len(found["by_trajectory"]) == len(whole) and found["by_trajectory"][0] is None


def test_no_forecast_without_labelled_trajectories_enough():
    whole = arm(0, n=6)
    assert fill(hide_after(whole, 3), SMALL).report["forecast"] is None


def test_the_best_trajectories_are_held_out():
    eps = hide_after(arm(0), 10)
    held = np.unique(eps.episode_of_step[np.flatnonzero(eps.labelled)[choose_holdout(eps, 0.3)]])
    assert set(held) == set(np.argsort(-eps.returns[:10])[:3])


def test_a_single_trajectory_and_a_constant_action():
    whole = arm(0, n=3)
    act = whole.act.copy()
    act[:, 1] = 0.25
    done = fill(hide_after(whole.with_actions(act), 1), SMALL)
    assert (done.labels.act[:, 1] == 0.25).all() and np.isfinite(done.labels.act).all()


def test_too_few_labels_is_one_sentence():
    whole = arm(0, n=3)
    act = np.full_like(whole.act, np.nan)
    act[5] = whole.act[5]
    with pytest.raises(DataError, match="at least 2 are needed"):
        fill(whole.with_actions(act), SMALL)


def test_all_actions_constant():
    whole = linear(n=12)
    eps = hide_after(whole.with_actions(np.full_like(whole.act, 0.5)), 6)
    done = fill(eps, SMALL)
    assert (done.labels.act == 0.5).all()


def test_parts_of_a_window():
    window = Window(1, 2)
    assert window.part(np.array([1, 0, 1, 1, 0]), np.array([2, 2, 1, 0, 0])).tolist() == [0, 3, 2, 1, 1]


def test_limits_spread_what_overshoots_and_keep_what_is_true():
    limits = Limits(np.array([np.nan], np.float32), np.array([1.3], np.float32), np.array([[1.0], [1.5]], np.float32))
    out = limits(np.array([[-2.0], [0.5], [1.0], [1.2], [1.31]], np.float32))[:, 0]
    assert out[0] == -1 and out[1] == np.float32(0.5) and out[4] == 1
    assert 0.9 < out[2] < out[3] < AT_LIMIT


def test_labels_pile_up_at_the_limits_no_more_than_true_actions():
    whole = linear(n=24)
    eps = hide_after(whole, 12)
    soft = labeller(SMALL.fit(eps), eps)
    labels = label(soft, eps)
    at = np.abs(labels.act[labels.proxy]) >= AT_LIMIT
    known = np.abs(eps.act[eps.labelled]) >= AT_LIMIT
    assert at.any(1).mean() <= 1.5 * known.any(1).mean() + 0.005
    assert labeller(soft.idm, eps, soft_limits=False).limits is None
    assert isinstance(find_limits(soft.idm, eps), Limits)


def test_shorter_fits_have_fewer_trees():
    assert BlendConfig().resized(500).rounds == 40 and replace(SMALL).resized(members=2).rounds == 20


def test_trajectories_shorter_than_every_window_are_labelled():
    eps = arm(0, n=4, length=6)
    act = eps.act.copy()
    act[eps.start[1] :] = np.nan  # a single labelled trajectory, of fewer steps than a window
    done = fill(eps.with_actions(act), SMALL)
    assert done.eps.labelled.all() and np.isfinite(done.labels.std).all()
