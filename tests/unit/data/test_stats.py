from dataclasses import replace

import numpy as np
import pytest
from support.episodes import make_episodes

from ssorl.data import apply, concat, coupled
from ssorl.data.collections import pointmass as builtin
from ssorl.data.episodes import action_range
from ssorl.data.stats import data_warnings, duplicates, profile, standardiser


def test_standardised_constant_dimensions_are_zero():
    eps = make_episodes([3, 4])
    eps.obs[:, 1] = 7.0
    out = standardiser(eps)(eps.obs)
    assert np.allclose(out[:, [0, 2]].mean(0), 0, atol=1e-5) and np.allclose(out[:, [0, 2]].std(0), 1, atol=1e-5)
    assert (out[:, 1] == 0).all()


@pytest.mark.parametrize("unit", [1e-8, 1e-3, 1e8])
def test_the_unit_of_observations_does_not_matter(unit):
    eps = make_episodes([30, 40])
    eps.obs[:, 1] = 7
    other = replace(eps, obs=eps.obs * np.float32(unit))
    assert np.allclose(standardiser(other)(other.obs)[:, [0, 2]], standardiser(eps)(eps.obs)[:, [0, 2]], atol=1e-4)
    assert (np.abs(standardiser(other)(other.obs)[:, 1]) <= 1e-6 * unit * 7).all()
    constant = replace(eps, obs=np.zeros_like(eps.obs))
    assert (standardiser(constant).std == 1).all()


def test_duplicates_are_exact_copies():
    eps = make_episodes([3, 4, 3, 5])
    assert len(duplicates(eps)) == 0
    assert duplicates(concat([eps, eps[1], eps[3]])).tolist() == [4, 5]
    swapped = eps[1]
    swapped = concat(
        [eps[1], type(eps)(swapped.obs[::-1].copy(), swapped.act, swapped.rew, swapped.terminated, swapped.start)]
    )
    assert len(duplicates(swapped)) == 0  # the same rows in another order


def test_unusual_data_gives_warnings():
    eps = make_episodes([3, 4])
    eps.obs[:, 2] = 1
    eps.act[:, 0] = 1
    eps.rew[:] = 0
    text = " ".join(data_warnings(concat([eps, eps[0]])))
    for words in (
        "observation dimensions 2 never",
        "action dimensions 0 never",
        "at a bound of their range",
        "every reward is 0",
        "1 trajectories are copies of an earlier one (first: trajectory 2)",
    ):
        assert words in text


@pytest.mark.parametrize(("unit", "warned"), [(1e-3, True), (0.1, False), (1, False), (30, False), (1e3, True)])
def test_rewards_of_an_unusual_magnitude_give_a_warning(unit, warned):
    eps = make_episodes([30, 40])
    eps.rew[:] = np.where(np.arange(70) % 2, unit, -unit / 2)
    assert any(w.startswith("rewards have") for w in data_warnings(eps)) == warned
    eps.rew[1:] = 0  # sparse rewards: the largest counts, not the mean
    assert any(w.startswith("rewards have") for w in data_warnings(eps)) == (unit == 1e-3)


def test_an_inferred_action_range_gives_a_warning():
    eps = make_episodes([30, 40], n_act=3)
    assert not [w for w in data_warnings(eps) if "action range" in w]
    eps.act[:, 1] /= 100
    assert data_warnings(with_inferred_range(eps)) == [
        "the data declares no action range, so the observed range is used in dimensions 1, and [-1, 1] in the others; "
        "if the robot can do more, declare its range with `ssorl data convert --action-range`"
    ]
    eps.act[:, 2] = np.where(eps.act[:, 2] > 0, 1, -1)  # half of the values in dimensions 0 and 2, and two others
    assert "51% of the action values are at a bound" in data_warnings(with_inferred_range(eps))[0]
    assert data_warnings(with_inferred_range(eps.with_actions(eps.act * 5)))[0].startswith(
        "the data declares no action range, so the observed range is used; "
    )


def with_inferred_range(eps):
    """Return the trajectories with the action range that their actions imply."""
    return replace(eps, meta=replace(eps.meta, **action_range(eps.act)))


@pytest.mark.parametrize(("n", "warned"), [(2, True), (4, True), (20, True), (21, False)])
def test_actions_that_may_be_categories_give_a_warning(n, warned):
    eps = make_episodes([30, 40])
    choices = np.stack([np.arange(70) % n, np.zeros(70)], axis=1).astype(np.float32)
    warnings = [w for w in data_warnings(eps.with_actions(choices)) if "whole numbers" in w]
    assert len(warnings) == warned and (not warned or f"at most {n} values per dimension" in warnings[0])
    choices[3] += 0.5
    assert not [w for w in data_warnings(eps.with_actions(choices)) if "whole numbers" in w]
    assert not [w for w in data_warnings(eps.with_actions(choices * 0)) if "whole numbers" in w]


def test_profile_counts_labelled_trajectories(pointmass):
    summary = profile(apply(coupled(pointmass, 0.1, 50), pointmass))
    assert summary["trajectories"] == 300 and summary["labelled_trajectories"] == 30
    assert 0.05 < summary["labelled_share"] < 0.15
    assert set(summary["return"]) == set(summary["normalised_return"]) == {"mean", "std", "min", "max"}


def test_the_reference_returns_of_pointmass_are_those_of_its_controllers():
    rng = np.random.default_rng(1)
    random, expert = (builtin.rollout(np.full(3000, s), rng).returns.mean() for s in (0.0, 1.0))
    assert abs(random - builtin.RANDOM_RETURN) < 1 and abs(expert - builtin.EXPERT_RETURN) < 1
    assert builtin.load_id("pointmass").same(builtin.load_id("pointmass"))
