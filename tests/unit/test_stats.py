import numpy as np
from conftest import make_episodes

from ssorl.data import apply, concat, coupled
from ssorl.data.sources import builtin
from ssorl.data.stats import duplicates, oddities, profile, standardiser


def test_standardiser_leaves_constant_dimensions_finite():
    eps = make_episodes([3, 4])
    eps.obs[:, 1] = 7.0
    out = standardiser(eps)(eps.obs)
    assert np.allclose(out[:, [0, 2]].mean(0), 0, atol=1e-5) and np.allclose(out[:, [0, 2]].std(0), 1, atol=1e-5)
    assert (out[:, 1] == 0).all()


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
    told = " ".join(oddities(concat([eps, eps[0]])))
    for words in (
        "observation dimensions 2 never",
        "action dimensions 0 never",
        "sit at a bound",
        "every reward is 0",
        "repeat",
    ):
        assert words in told


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
