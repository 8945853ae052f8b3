from dataclasses import replace

import numpy as np
import pytest
from support.episodes import make_episodes

from ssorl.data import apply, concat, coupled
from ssorl.data.collections import pointmass as builtin
from ssorl.data.episodes import action_range
from ssorl.data.stats import data_warnings, duplicates, profile, standardiser


def test_standardiser_leaves_constant_dimensions_finite():
    eps = make_episodes([3, 4])
    eps.obs[:, 1] = 7.0
    out = standardiser(eps)(eps.obs)
    assert np.allclose(out[:, [0, 2]].mean(0), 0, atol=1e-5) and np.allclose(out[:, [0, 2]].std(0), 1, atol=1e-5)
    assert (out[:, 1] == 0).all()


@pytest.mark.parametrize("unit", [1e-8, 1e-3, 1e8])
def test_the_unit_of_the_states_makes_no_difference(unit):
    eps = make_episodes([30, 40])
    eps.obs[:, 1] = 7
    other = replace(eps, obs=eps.obs * np.float32(unit))
    assert np.allclose(standardiser(other)(other.obs)[:, [0, 2]], standardiser(eps)(eps.obs)[:, [0, 2]], atol=1e-4)
    assert (np.abs(standardiser(other)(other.obs)[:, 1]) <= 1e-6 * unit * 7).all()
    still = replace(eps, obs=np.zeros_like(eps.obs))
    assert (standardiser(still).std == 1).all()


def test_duplicates_are_found_and_only_they():
    eps = make_episodes([3, 4, 3, 5])
    assert len(duplicates(eps)) == 0
    assert duplicates(concat([eps, eps[1], eps[3]])).tolist() == [4, 5]
    swapped = eps[1]
    swapped = concat(
        [eps[1], type(eps)(swapped.obs[::-1].copy(), swapped.act, swapped.rew, swapped.terminated, swapped.start)]
    )
    assert len(duplicates(swapped)) == 0  # the same rows in another order are another trajectory


def test_oddities_are_told():
    eps = make_episodes([3, 4])
    eps.obs[:, 2] = 1
    eps.act[:, 0] = 1
    eps.rew[:] = 0
    told = " ".join(data_warnings(concat([eps, eps[0]])))
    for words in (
        "observation dimensions 2 never",
        "action dimensions 0 never",
        "sit at a bound",
        "every reward is 0",
        "repeat",
    ):
        assert words in told


@pytest.mark.parametrize(("unit", "told"), [(1e-3, True), (0.1, False), (1, False), (30, False), (1e3, True)])
def test_rewards_of_an_unusual_size_are_told(unit, told):
    eps = make_episodes([30, 40])
    eps.rew[:] = np.where(np.arange(70) % 2, unit, -unit / 2)
    assert bool([t for t in data_warnings(eps) if t.startswith("rewards are ")]) == told
    eps.rew[1:] = 0  # one reward at the end of a maze: its size is that of what there is
    assert bool([t for t in data_warnings(eps) if t.startswith("rewards are ")]) == (unit == 1e-3)


def test_where_a_range_was_taken_from_what_is_seen_is_told():
    eps = make_episodes([30, 40], n_act=3)
    assert not [t for t in data_warnings(eps) if "action range" in t]
    eps.act[:, 1] /= 100
    told = data_warnings(again(eps))
    assert told == [
        "no action range is declared: the range seen is taken for it in dimensions 1, and [-1, 1] in the others; "
        "if the robot can do more, declare it with `ssorl data convert --action-range`"
    ]
    eps.act[:, 2] = np.where(eps.act[:, 2] > 0, 1, -1)  # half of the values whose range is [-1, 1], and two
    assert "51% of the action values sit at a bound" in data_warnings(again(eps))[0]
    assert data_warnings(again(eps.with_actions(eps.act * 5)))[0].startswith(
        "no action range is declared: the range seen is taken for it; "
    )


def again(eps):
    """The same, its range guessed anew."""
    return replace(eps, meta=replace(eps.meta, **action_range(eps.act)))


@pytest.mark.parametrize(("n", "told"), [(2, True), (4, True), (20, True), (21, False)])
def test_actions_that_may_be_choices_are_told(n, told):
    eps = make_episodes([30, 40])
    choices = np.stack([np.arange(70) % n, np.zeros(70)], axis=1).astype(np.float32)
    found = [t for t in data_warnings(eps.with_actions(choices)) if "whole numbers" in t]
    assert len(found) == told and (not told or f"at most {n} values a dimension" in found[0])
    choices[3] += 0.5
    assert not [t for t in data_warnings(eps.with_actions(choices)) if "whole numbers" in t]
    assert not [t for t in data_warnings(eps.with_actions(choices * 0)) if "whole numbers" in t]


def test_profile_counts(pointmass):
    told = profile(apply(coupled(pointmass, 0.1, 50), pointmass))
    assert told["trajectories"] == 300 and told["labelled_trajectories"] == 30
    assert 0.05 < told["labelled_share"] < 0.15
    assert set(told["return"]) == set(told["normalised_return"]) == {"mean", "std", "min", "max"}


def test_the_builtin_references_are_what_its_controllers_earn():
    rng = np.random.default_rng(1)
    random, expert = (builtin.rollout(np.full(3000, s), rng).returns.mean() for s in (0.0, 1.0))
    assert abs(random - builtin.RANDOM_RETURN) < 1 and abs(expert - builtin.EXPERT_RETURN) < 1
    assert builtin.load_id("pointmass").same(builtin.load_id("pointmass"))
