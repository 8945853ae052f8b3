"""Weights of steps: how often each is drawn, what a weight of 0 removes, and windows."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from support.episodes import make_episodes

from ssorl.agents import make
from ssorl.agents.base import Transitions
from ssorl.agents.windows import Windows
from ssorl.training.engine import TrainingRun, train, train_many
from ssorl.training.tables import distinct, make_pool, make_table
from ssorl.training.weights import COPIES, draw_in_proportion, weighted_run, window_means
from ssorl.utils.errors import SsorlError

AGENT = make("bc", hidden=(4,), batch=8, updates=12)


@pytest.fixture
def eps():
    return make_episodes([5, 4, 6])


def leaves(trained):
    return jax.tree.leaves([result.state for result in trained])


def test_counts_are_in_proportion_to_the_weights():
    weights = np.random.default_rng(0).exponential(size=500)
    weights[::7] = 0
    steps = draw_in_proportion(weights)
    counts, expected = np.bincount(steps, minlength=500), len(steps) * weights / weights.sum()
    assert len(steps) == COPIES * np.count_nonzero(weights) and not counts[::7].any()
    assert np.abs(counts - expected).max() < 1
    assert abs(counts[:250].sum() - expected[:250].sum()) < 1  # rounding does not add up


@pytest.mark.parametrize("weight", [1.0, 0.1, 1e-30, 1e30])
def test_equal_weights_give_equal_counts(weight):
    np.testing.assert_array_equal(np.bincount(draw_in_proportion(np.full(1237, weight))), COPIES)


def test_a_weight_of_zero_removes_a_step(eps):
    weights = np.ones(15)
    weights[[3, 9]] = 0
    run = weighted_run(eps, 0, weights)
    np.testing.assert_array_equal(np.unique(run.steps), np.setdiff1d(np.arange(15), [3, 9]))
    np.testing.assert_array_equal(np.flatnonzero(~run.eps.labelled), [3, 9])
    same = [train(AGENT, weighted_run(one, 0, weights)) for one in (eps, eps.with_actions(_changed(eps, [3, 9])))]
    for a, b in zip(leaves(same[:1]), leaves(same[1:]), strict=True):
        np.testing.assert_array_equal(a, b)  # training does not depend on the actions of removed steps


def _changed(eps, steps):
    act = eps.act.copy()
    act[steps] = -act[steps]
    return act


def test_batches_have_the_share_that_the_weights_say(eps):
    weights = np.where(np.arange(15) < 3, 0.7 / 3, 0.3 / 12)
    run = weighted_run(eps, 0, weights)
    data, _ = distinct([eps])
    pool = make_pool(run.eps, run.steps, 0)
    # The reward tells which step was drawn.
    batch = Transitions(20_000).draw(make_table(data), pool, jax.random.key(0))
    first = np.isin(np.asarray(batch.rew), eps.rew[:3])
    assert abs(first.mean() - 0.7) < 0.03  # 1 in 60 from rounding to whole entries, and the noise of the draw


def test_a_window_is_drawn_in_proportion_to_the_mean_of_its_weights(eps):
    weights = np.zeros(15)
    weights[[2, 10]] = 1, 3
    means = window_means(eps, weights, 3)
    expected = np.zeros(15)
    expected[[0, 1, 2]] = 1 / 3
    expected[[9, 10]] = 1
    np.testing.assert_allclose(means, expected)
    short = window_means(eps, np.eye(15)[4], 3)  # step 4 ends a trajectory, so its windows are shorter
    np.testing.assert_allclose(short[:6], [0, 0, 1 / 3, 1 / 2, 1, 0])


def test_windows_never_start_at_or_learn_from_a_step_of_weight_zero(eps):
    weights = np.ones(15)
    weights[9:] = 0
    weights[1] = 0
    run = weighted_run(eps, 0, weights, 3)
    assert not np.isin(run.steps, [1, *range(9, 15)]).any()
    data, _ = distinct([eps])
    pool = make_pool(run.eps, run.steps, 0)
    window = Windows(256, 3).draw(make_table(data), pool, jax.random.key(0))
    removed = np.isin(np.asarray(window.rew), eps.rew[weights == 0])
    assert removed.any() and not np.asarray(window.labelled)[removed].any()


def test_runs_with_longer_pools_than_their_data_train_together(eps):
    runs = [TrainingRun(eps, 0), weighted_run(eps, 1, np.arange(15)), weighted_run(eps, 2, np.ones(15))]
    alone, together = [train(AGENT, run) for run in runs], train_many(AGENT, runs, together=True)
    for a, b in zip(leaves(alone), leaves(together), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(14), "shape"),
        (-np.eye(15)[3], "weight of step 3 is -1"),
        (np.where(np.arange(15) == 4, np.nan, 1), "weight of step 4 is nan"),
        (np.zeros(15), "nothing to train on"),
    ],
)
def test_invalid_weights_raise(eps, weights, message):
    with pytest.raises(SsorlError, match=message):
        weighted_run(eps, 0, weights)
