from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.episodes import make_episodes

from ssorl.data.split import THIRDS, Split, apply, coupled, decoupled, first_copies, order_by_return, truth, wide
from ssorl.idm.holdout import hold_out
from ssorl.utils.display import MAX_REPR
from ssorl.utils.errors import DataError

SEEDS = st.integers(0, 50)


@given(
    st.integers(10, 60), st.sampled_from([0.01, 0.03, 0.1, 0.25, 1.0]), st.sampled_from([10, 30, 50, 90, 100]), SEEDS
)
def test_coupled_labels_trajectories_from_the_bottom(n, fraction, quality, seed):
    eps = make_episodes([2] * n, seed=seed)
    n_labelled, n_pool = int(fraction * n + 0.5), int(quality / 100 * n + 0.5)
    assume(0 < n_labelled <= n_pool)
    split = coupled(eps, fraction, quality, seed)
    assert len(split.labelled) == n_labelled == len(set(split.labelled))
    assert set(split.labelled) <= set(order_by_return(eps)[:n_pool])
    assert sorted([*split.labelled, *split.unlabelled]) == list(range(n))
    again = coupled(eps, fraction, quality, seed)
    assert np.array_equal(split.labelled, again.labelled)


def test_the_worst_trajectory_can_be_drawn():
    eps = make_episodes([2] * 20)
    worst = order_by_return(eps)[0]
    assert worst in coupled(eps, 0.1, 10, seed=0).labelled  # the bottom 10 % of 20 are both labelled


@given(st.integers(9, 60), st.sampled_from(THIRDS), st.sampled_from(THIRDS), st.sampled_from([0.1, 0.25, 0.5]), SEEDS)
def test_decoupled_draws_from_the_given_thirds(n, labelled, unlabelled, fraction, seed):
    eps = make_episodes([2] * n, seed=seed)
    split = decoupled(eps, labelled, fraction, unlabelled, 0.1, seed)
    order = order_by_return(eps)
    cuts = [int(n * i / 3 + 0.5) for i in range(4)]
    third = {name: set(order[a:b]) for name, a, b in zip(THIRDS, cuts[:-1], cuts[1:], strict=True)}
    assert set(split.labelled) <= third[labelled] and set(split.unlabelled) <= third[unlabelled]
    assert len(split.labelled) == int(fraction * n + 0.5) and len(split.unlabelled) == int(0.1 * n + 0.5)
    assert not set(split.labelled) & set(split.unlabelled)
    counts = np.bincount(split.labelled, minlength=n)[list(third[labelled] - set(split.unlabelled))]
    assert counts.max() - counts.min() <= 1  # if the pool is too small, trajectories repeat equally often


def test_draws_do_not_change_between_versions():
    """Published results depend on these draws: a cell's hash covers the recipe and the seed, not the method."""
    eps = make_episodes([2] * 30, seed=0)
    split = coupled(eps, 0.2, 50, 3)
    assert split.labelled.tolist() == [0, 6, 13, 14, 19, 26]
    apart, shared = decoupled(eps, "low", 0.2, "high", 0.2, 3), decoupled(eps, "med", 0.1, "med", 0.2, 3)
    assert apart.labelled.tolist() == [7, 9, 13, 14, 16, 24] and apart.unlabelled.tolist() == [1, 18, 21, 25, 27, 28]
    assert shared.labelled.tolist() == [3, 22, 29] and shared.unlabelled.tolist() == [6, 8, 10, 11, 23, 26]


@given(SEEDS, st.sampled_from([30, 60, 100]))
def test_copies_are_labelled_and_held_out_together(seed, quality):
    """No copy reveals the hidden actions of another, and no copy of a training trajectory is held out."""
    eps = make_episodes([2] * 30, seed=seed)
    assert np.array_equal(first_copies(eps), np.arange(30))
    repeated = np.sort(np.random.default_rng(seed).choice(30, 50))
    twice = eps.take(repeated)
    assert np.array_equal(repeated[first_copies(twice)], repeated)  # each copy is matched to its original
    split = coupled(twice, 0.2, quality, seed)
    assert not set(repeated[split.labelled]) & set(repeated[split.unlabelled])
    most = np.bincount(repeated).max()
    assert 10 <= len(split.labelled) < 10 + most and len(split.labelled) + len(split.unlabelled) == 50
    train, held, _ = hold_out(apply(split, twice), 0.1, seed)
    of = repeated[twice.episode_of_step]
    assert len(held) and not set(of[train]) & set(of[held])


def test_different_paths_between_the_same_ends_are_not_copies():
    eps = make_episodes([5] * 30)
    obs = eps.obs.reshape(30, 6, 3).copy()
    obs[:, 0], obs[:, -1] = 0, 1
    eps = replace(eps, obs=obs.reshape(-1, 3), rew=np.full_like(eps.rew, -1))
    assert np.array_equal(first_copies(eps), np.arange(30))
    split = coupled(eps, 0.1, 50, seed=1)
    assert len(split.labelled) == 3
    repeated = np.sort(np.r_[np.arange(30), 4, 4, 17])
    assert np.array_equal(repeated[first_copies(eps.take(repeated))], repeated)


@given(SEEDS)
def test_wide_weights_bins_by_the_inverse_of_their_size(seed):
    eps = make_episodes([2] * 30, seed=seed)
    rew = np.zeros(60, np.float32)
    rew[::2] = np.r_[np.zeros(20), np.full(9, 5), 10]  # 20, 9 and 1 trajectories in three of the 40 bins
    eps = replace(eps, rew=rew)
    split = wide(eps, n_draws=4000, seed=seed)
    share = np.bincount(np.searchsorted([20, 29], split.labelled, side="right"), minlength=3) / 4000
    weight = np.array([1 / 20, 1 / 9, 1])
    assert np.allclose(share, weight / weight.sum(), atol=0.04)
    assert len(split.labelled) == 4000 and len(split.unlabelled) == 0


@given(st.data(), SEEDS)
def test_the_result_of_apply_does_not_depend_on_hidden_actions(data, seed):
    eps = make_episodes(data.draw(st.lists(st.integers(2, 5), min_size=12, max_size=20)), seed=seed)
    kind = data.draw(st.sampled_from(["coupled", "decoupled"]))
    draw = (lambda e: coupled(e, 0.2, 60, seed)) if kind == "coupled" else (lambda e: decoupled(e, seed=seed))
    split = draw(eps)
    hidden_step = np.repeat(np.isin(np.arange(len(eps)), split.labelled, invert=True), eps.lengths)
    changed = eps.act.copy()
    changed[hidden_step] = data.draw(st.sampled_from([0.0, -7.0, 123.0, 1e30]))
    other = eps.with_actions(changed)
    before, after = apply(split, eps), apply(draw(other), other)
    for name in ("obs", "act", "rew", "terminated", "start"):
        assert getattr(before, name).tobytes() == getattr(after, name).tobytes()
    assert before.meta == after.meta


def test_apply_infers_the_range_without_hidden_actions():
    eps = make_episodes([2] * 20)
    split = coupled(eps, 0.1, 50)
    act = eps.act.copy()
    act[np.repeat(np.isin(np.arange(20), split.unlabelled), 2)] *= 9
    from ssorl.data.validate import build

    wild = build(eps.obs, act, eps.rew, eps.terminated, eps.lengths, replace(eps.meta, act_low=(), act_high=()))
    assert wild.meta.act_range == "inferred"
    assert apply(split, wild).meta == apply(split, eps).meta


def test_truth_has_exactly_the_hidden_actions():
    eps = make_episodes([2, 3, 4, 2, 5, 3, 2, 2, 4, 3])
    split = coupled(eps, 0.3, 80)
    shown, hidden = apply(split, eps), truth(split, eps)
    assert (shown.labelled ^ ~np.isnan(hidden[:, 0])).all()
    assert np.array_equal(np.where(np.isnan(hidden), shown.act, hidden), eps.act)
    assert np.shares_memory(shown.obs, eps.obs)


def test_a_saved_split_can_be_loaded_and_applied(tmp_path, pointmass):
    split = coupled(pointmass, 0.1, 50, seed=3)
    split.save(tmp_path / "s.json")
    back = Split.load(tmp_path / "s.json")
    assert back.recipe == split.recipe == {"kind": "coupled", "fraction": 0.1, "quality": 50, "seed": 3}
    assert apply(back, pointmass).same(apply(split, pointmass))
    with pytest.raises(DataError, match="another dataset"):
        apply(back, pointmass[:299])
    (tmp_path / "s.json").write_text("{}")
    with pytest.raises(DataError, match="cannot be read as a split"):
        Split.load(tmp_path / "s.json")


def test_splits_have_a_short_repr_and_a_table():
    split = coupled(make_episodes([2] * 2000), 0.5)
    assert repr(split).startswith("Split(n_labelled=1000, n_unlabelled=1000, n_episodes=2000, recipe={'kind'")
    assert len(repr(split)) <= MAX_REPR and "<th" in split._repr_html_()


def test_indices_that_do_not_exist_raise():
    eps = make_episodes([2] * 10)
    split = replace(coupled(eps), unlabelled=np.array([10]))
    with pytest.raises(DataError, match="memory: the split has indices of trajectories that do not exist; draw it"):
        apply(split, eps)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda e: coupled(e, 0.01, 50), "rounds to none; give at least 50 trajectories"),
        (lambda e: coupled(e, 0.5, 10), "raise --quality to 50"),
        (lambda e: coupled(e, 0, 50), "share above 0"),
        (lambda e: coupled(e, 0.1, 0), "percentage above 0"),
        (lambda e: decoupled(e, "worst"), "is not a third"),
        (lambda e: decoupled(e[:2], labelled_fraction=0.5, unlabelled_fraction=0.5), "at least 3"),
        (lambda e: coupled(apply(coupled(e, 0.5), e)), "already lack actions"),
    ],
)
def test_impossible_splits_raise_with_a_cure(call, words):
    with pytest.raises(DataError, match=words):
        call(make_episodes([2] * 10))
