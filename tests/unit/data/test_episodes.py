from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.episodes import make_episodes

from ssorl.data.episodes import Meta, action_range, concat, scale, unscale
from ssorl.data.validate import build
from ssorl.utils.display import MAX_REPR
from ssorl.utils.errors import DataError

LENGTHS = st.lists(st.integers(2, 9), min_size=1, max_size=8)


def test_derived_arrays_of_a_worked_example():
    eps = make_episodes([2, 3])
    eps = eps.with_actions(eps.act)
    rew = np.array([1, 2, 10, 20, 30], np.float32)
    eps = type(eps)(eps.obs, eps.act, rew, eps.terminated, eps.start, eps.meta)
    assert eps.returns.tolist() == [3, 60]
    assert eps.returns_to_go().tolist() == [3, 2, 60, 50, 30]
    assert eps.lengths.tolist() == [2, 3]
    assert eps.obs_row.tolist() == [0, 1, 3, 4, 5]  # row 2 is the state after the first episode's last action
    assert eps.terminated.tolist() == [False, True, False, False, False]
    assert eps.truncated.tolist() == [False, False, False, False, True]


@given(LENGTHS, st.integers(0, 99))
def test_single_episodes_agree_with_the_whole_dataset(lengths, seed):
    eps = make_episodes(lengths, seed=seed)
    rtg = eps.returns_to_go()
    for e in range(len(eps)):
        single, a, b = eps[e], eps.start[e], eps.start[e + 1]
        assert len(single) == 1 and single.n_steps == lengths[e] == len(single.obs) - 1
        assert np.isclose(single.returns[0], eps.returns[e])
        assert np.allclose(single.returns_to_go(), rtg[a:b])
        assert np.array_equal(single.obs[:-1], eps.obs[eps.obs_row[a:b]])
        assert np.array_equal(single.obs[1:], eps.obs[eps.obs_row[a:b] + 1])
        assert np.shares_memory(single.obs, eps.obs) and np.shares_memory(single.act, eps.act)


@given(LENGTHS, st.data())
def test_take_equals_concatenating_single_episodes(lengths, data):
    eps = make_episodes(lengths)
    chosen = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=9)))
    assert eps.take(chosen).same(concat([eps[int(e)] for e in chosen]))


@given(LENGTHS)
def test_slices_are_views_and_concatenate_to_the_original(lengths):
    eps = make_episodes(lengths)
    cut = len(lengths) // 2
    if cut > 0:
        assert concat([eps[:cut], eps[cut:]]).same(eps)
        assert np.shares_memory(eps[cut:].obs, eps.obs)
    assert eps[::-1].same(eps.take(np.arange(len(eps))[::-1]))
    assert eps[eps.lengths > 0].same(eps)


def test_labelled_steps_are_those_without_nan():
    eps = make_episodes([2, 4])
    act = eps.act.copy()
    act[3] = np.nan
    eps = eps.with_actions(act)
    assert eps.labelled.tolist() == [True, True, True, False, True, True]
    assert eps.labelled_share.tolist() == [1.0, 0.75]


@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(0.1, 50)), min_size=1, max_size=4), st.integers(0, 99))
def test_unscale_inverts_scale(bounds, seed):
    low = tuple(b[0] for b in bounds)
    high = tuple(b[0] + b[1] for b in bounds)
    meta = Meta(act_low=low, act_high=high)
    act = np.random.default_rng(seed).uniform(low, high, (7, len(bounds))).astype(np.float32)
    scaled = scale(act, meta)
    assert (np.abs(scaled) <= 1 + 1e-4).all()
    assert np.allclose(unscale(scaled, meta), act, atol=1e-4)
    assert np.allclose(scale(np.float32([low, high]), meta), [[-1] * len(bounds), [1] * len(bounds)], atol=1e-4)


def test_range_is_assumed_or_inferred():
    assert action_range(np.float32([[0.2], [-0.9]]))["act_low"] == (-1.0,)
    assert action_range(np.float32([[0.0], [5.0]])) == {"act_low": (0.0,), "act_high": (5.0,), "act_range": "inferred"}


@pytest.mark.parametrize(
    ("act", "low", "high", "known"),
    [
        ([[0.01], [-0.004]], (-0.004,), (0.01,), "inferred"),  # [-1, 1] would be far too wide
        ([[1e-9], [0.0]], (0.0,), (1e-9,), "inferred"),
        ([[0.01, 0.9], [0.02, 0.1]], (0.01, -1), (0.02, 1), "inferred"),  # inferred only for the small dimension
        ([[0.01, 5.0], [0.02, 0.5]], (0.01, 0.5), (0.02, 5), "inferred"),
        ([[0.0, 0.5], [0.0, 0.25]], (-1, -1), (1, 1), "assumed"),  # a constant dimension has no observed range
        ([[0.1], [0.1]], (-1,), (1,), "assumed"),
        ([[0.1], [0.1 + 1e-8]], (-1,), (1,), "assumed"),
        ([[0.0, 0.0], [0.0, 0.0]], (-1, -1), (1, 1), "assumed"),
        ([[np.nan], [np.nan]], (-1,), (1,), "assumed"),
        ([[np.nan], [0.02], [0.01]], (0.01,), (0.02,), "inferred"),
        ([[-0.25], [0.2]], (-1,), (1,), "assumed"),
    ],
)
def test_the_range_of_small_actions_is_inferred(act, low, high, known):
    got = action_range(np.float32(act))
    assert np.allclose(got["act_low"], low, rtol=1e-6) and np.allclose(got["act_high"], high, rtol=1e-6)
    assert got["act_range"] == known


def test_scaled_actions_do_not_depend_on_the_unit():
    large, small = make_episodes([40, 40]), make_episodes([40, 40])
    small = build(small.obs, small.act / 128, small.rew, small.terminated, small.lengths, Meta())
    assert small.meta.act_range == "inferred" and np.abs(small.act).max() < 0.01
    assert np.allclose(small.scaled_actions(), scale(large.act, replace(large.meta, **bounds(large.act))), atol=1e-6)


def bounds(act: np.ndarray) -> dict:
    return {"act_low": tuple(act.min(0).tolist()), "act_high": tuple(act.max(0).tolist())}


def test_normalised_returns_need_reference_returns():
    eps = make_episodes([2, 3])
    assert eps.normalised_returns() is None
    known = eps.with_meta(random_return=1.0, expert_return=3.0)
    assert np.allclose(known.normalised_returns(), (eps.returns - 1) / 2)


def test_concat_raises_on_different_sizes_and_on_nothing():
    with pytest.raises(DataError, match=r"states of size 3 but .* size 4"):
        concat([make_episodes([2]), make_episodes([2], n_obs=4)])
    with pytest.raises(DataError, match="no trajectories to join; give at least one"):
        concat([])


def test_with_actions_raises_on_another_shape():
    with pytest.raises(DataError, match=r"new actions have shape \(4, 2\); give an array of shape \(5, 2\)"):
        make_episodes([2, 3]).with_actions(np.zeros((4, 2), np.float32))


def test_episodes_have_a_short_repr_and_a_table():
    eps = make_episodes([2, 3]).with_meta(source="<b>" + "x" * 900)
    assert len(repr(eps)) <= MAX_REPR and repr(eps).startswith("Episodes(source=<b>")
    assert "trajectories=2, steps=5, observation_size=3, action_size=2, labelled_share=1" in repr(eps)
    assert "<tr><th" in eps._repr_html_() and "<b>x" not in eps._repr_html_()
    assert "trajectories=0, steps=0" in repr(eps[:0])
