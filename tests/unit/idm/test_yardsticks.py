"""Yardsticks for labels: simple rules, fitted and judged on the same steps as the labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.episodes import make_episodes

from ssorl.data.collections import arm
from ssorl.data.episodes import Episodes, Meta, scale
from ssorl.data.validate import build
from ssorl.idm import yardsticks as module
from ssorl.idm.yardsticks import worse_than, yardsticks


@pytest.fixture(autouse=True)
def few_trees(monkeypatch):
    monkeypatch.setattr(module, "TREE_ROUNDS", 20)


def linear(n_episodes: int = 20, n_steps: int = 40, noise: float = 0.0) -> Episodes:
    """Return trajectories whose action is half of the change of two of the three states."""
    rng = np.random.default_rng(0)
    act = rng.uniform(-1, 1, (n_episodes, n_steps, 2))
    pushed = np.concatenate([2 * act, rng.standard_normal((n_episodes, n_steps, 1))], axis=2)
    obs = np.concatenate([np.zeros((n_episodes, 1, 3)), pushed.cumsum(1)], axis=1)
    obs += noise * rng.standard_normal(obs.shape)
    meta = Meta(act_low=(-1.0, -1.0), act_high=(1.0, 1.0), act_range="declared")
    n = n_episodes * n_steps
    arrays = (obs.reshape(-1, 3), act.reshape(-1, 2), np.zeros(n), np.zeros(n, bool), np.full(n_episodes, n_steps))
    return build(*arrays, meta)


def halves(eps: Episodes) -> tuple[np.ndarray, np.ndarray]:
    cut = int(eps.start[len(eps) // 2])
    return np.arange(cut, eps.n_steps), np.arange(cut)


def test_the_constant_is_the_mean_of_the_training_actions_and_least_squares_solves_a_linear_system():
    eps = linear()
    held, train = halves(eps)
    found = yardsticks(eps, held, train)
    assert set(found) == {*module.TEXT, "next_state_lag"}
    guess = eps.act[train].mean(0, np.float64)
    assert found["constant"] == pytest.approx(float(((eps.act[held] - guess) ** 2).mean()))
    assert max(found["least_squares"], found["least_squares_future"]) < 1e-9
    assert found["trees"] < found["constant"] / 3


def test_errors_do_not_depend_on_the_unit_of_the_actions():
    eps = linear(noise=0.1)
    held, train = halves(eps)
    wide = eps.with_actions(eps.act * 50).with_meta(act_low=(-50.0, -50.0), act_high=(50.0, 50.0))
    for name in ("constant", "least_squares", "trees"):
        assert yardsticks(wide, held, train)[name] == pytest.approx(yardsticks(eps, held, train)[name], rel=1e-3)


@pytest.mark.parametrize("lag", range(1, 4))
def test_a_command_that_is_the_state_some_steps_later_is_found_with_its_lag(lag):
    eps = arm.record()
    row = np.minimum(
        np.arange(eps.n_steps) + eps.episode_of_step + lag, eps.start[1:][eps.episode_of_step] + eps.episode_of_step
    )
    eps = eps.with_actions(eps.obs[row])
    found = yardsticks(eps, *halves(eps))
    assert found["next_state_lag"] == lag and found["next_state"] < 1e-12


def test_the_rule_of_the_next_state_matches_joints_by_name_and_needs_enough_dimensions():
    eps = arm.record()
    held, train = halves(eps)
    due = yardsticks(eps, held, train)["next_state"]
    order = [5, 3, 1, 0, 2, 4]
    mixed = replace(eps, obs=eps.obs[:, order]).with_meta(state_names=tuple(arm.JOINTS[i] for i in order))
    assert yardsticks(mixed, held, train)["next_state"] == due < 1e-3
    assert yardsticks(mixed.with_meta(state_names=()), held, train)["next_state"] > 100 * due
    few = replace(eps, obs=eps.obs[:, :4])
    assert "next_state" not in yardsticks(few, held, train)


@pytest.mark.parametrize("lag", arm.LAGS)
def test_one_more_state_helps_least_squares_on_an_arm(lag):
    eps = arm.record(lag)
    found = yardsticks(eps, *halves(eps))
    assert found["least_squares_future"] < found["least_squares"] < found["trees"] < found["constant"]


def test_held_out_actions_do_not_reach_the_rules():
    eps = linear(noise=0.3)
    held, train = halves(eps)
    act = eps.act.copy()
    act[held] = 0
    blank = yardsticks(eps.with_actions(act), held, train)
    guess = eps.act[train].mean(0, np.float64)
    assert blank["constant"] == pytest.approx(float((guess**2).mean()), rel=1e-5)
    x, y = (module._window(eps, s, (-1, 0, 1)) for s in (train, held))
    due = module._least_squares(x, scale(eps.act[train], eps.meta).astype(np.float64), y)
    assert blank["least_squares"] == pytest.approx(float((due**2).mean()), rel=1e-6)


def test_the_sample_of_the_trees_is_bounded_and_repeatable(monkeypatch):
    eps = linear()
    held, train = halves(eps)
    first = yardsticks(eps, held, train)
    assert yardsticks(eps, held, train) == first
    monkeypatch.setattr(module, "TREE_ROWS", 50)
    assert yardsticks(eps, held, train)["trees"] > 1.5 * first["trees"]


def test_constant_actions_and_empty_sides():
    eps = make_episodes([30, 30, 30])
    still = eps.with_actions(np.full_like(eps.act, 0.5))
    found = yardsticks(still, np.arange(60, 90), np.arange(60))
    assert found["constant"] == found["trees"] == 0 and found["least_squares"] < 1e-20
    assert worse_than(1e-9, found) == []
    assert yardsticks(eps, np.arange(0), np.arange(60)) == {} == yardsticks(eps, np.arange(60), np.arange(0))
    assert worse_than(0.5, {}) == []


def test_labels_that_are_worse_get_a_warning_for_each_yardstick():
    found = {"constant": 0.1, "next_state": 0.01, "next_state_lag": 2.0, "least_squares": 0.001, "trees": 0.02}
    assert worse_than(0.0011, found) == []  # within 10 % of least squares
    (one,) = worse_than(0.0012, found)
    assert one == (
        "on held-out steps the labels are off by 1.73% of the action range, and least squares on three states by "
        "1.58%; fit another inverse dynamics model (--idm), or label more trajectories"
    )
    assert len(worse_than(0.0121, found)) == 2 and "2 steps later by 5.00%" in worse_than(0.0121, found)[0]
    assert len(worse_than(0.1, found)) == 4 and "a constant guess" in worse_than(0.1, found)[0]
    assert "a constant guess" not in " ".join(worse_than(0.0999, found))
