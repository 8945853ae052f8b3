"""Warnings about two datasets that do not fit together: none where only policies differ, one for each fault."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from support.episodes import make_episodes

from ssorl.data import apply, coupled, decoupled, load
from ssorl.data.collections import arm
from ssorl.data.compare import compare, compare_parts, reordered
from ssorl.data.episodes import Episodes, offsets

DEGREES = 180 / np.pi


@pytest.fixture(scope="module")
def halves():
    """Twenty labelled and twenty other recordings of the arm, whose joints have names."""
    eps = arm.record(1)
    return eps[:20], eps[20:]


def nameless(eps: Episodes) -> Episodes:
    return eps.with_meta(state_names=(), action_names=(), fps=None)


def scaled(eps: Episodes, dims, factor: float) -> Episodes:
    obs = eps.obs.copy()
    obs[:, dims] *= factor
    return replace(eps, obs=obs)


def with_columns(eps: Episodes, order) -> Episodes:
    return replace(eps, obs=eps.obs[:, order])


def every_third(eps: Episodes) -> Episodes:
    """Return every third state of trajectories, as a camera of a third of the frame rate records them."""
    parts = [eps.obs[a + e : b + e + 1 : 3] for e, (a, b) in enumerate(zip(eps.start[:-1], eps.start[1:], strict=True))]
    lengths = np.array([len(p) - 1 for p in parts])
    n = int(lengths.sum())
    return Episodes(np.concatenate(parts), eps.act[:n], eps.rew[:n], np.zeros(n, bool), offsets(lengths), eps.meta)


# --- no false alarms


@pytest.mark.parametrize("lag", arm.LAGS)
@pytest.mark.parametrize("seed", range(4))
def test_recordings_of_one_arm_get_no_warning(lag, seed):
    eps = nameless(arm.record(lag, seed=seed))
    assert compare(eps[:20], eps[20:]) == [] and compare(eps[:2], eps[2:]) == []


@pytest.mark.parametrize("quality", [10, 50, 100])
def test_a_split_by_return_gets_no_warning(pointmass, quality):
    for seed in range(3):
        split = coupled(pointmass, 0.1, quality, seed)
        assert compare(pointmass.take(split.labelled), pointmass.take(split.unlabelled)) == []
        assert compare_parts(apply(split, pointmass)) == []
    thirds = decoupled(pointmass, "low", 0.1, "high", 0.1)
    assert compare_parts(apply(thirds, pointmass)) == []


@pytest.mark.parametrize("name", ["hopper-medium-expert", "halfcheetah-medium-replay", "maze2d-umaze-dense"])
@pytest.mark.parametrize("quality", [10, 50, 100])
def test_a_split_of_simulated_data_gets_no_warning(name, quality):
    eps = load(f"sim/{name}:16000")
    assert compare_parts(apply(coupled(eps, 0.1, quality), eps)) == []


@pytest.mark.parametrize("lengths", [[2], [2, 2, 2], [30, 40]])
def test_data_too_small_to_judge_gets_no_warning(lengths):
    eps = make_episodes(lengths)
    assert compare(eps, eps) == [] and compare(eps, scaled(eps, [0], 1.0)) == []


def test_data_that_is_all_labelled_or_all_unlabelled_has_no_parts_to_compare(pointmass):
    assert compare_parts(pointmass) == []
    assert compare_parts(pointmass.with_actions(np.full_like(pointmass.act, np.nan))) == []


# --- faults


@pytest.mark.parametrize("dims", [[0], [1, 4], list(range(6))])
def test_degrees_and_millimetres_are_found_in_either_dataset(halves, dims):
    known, new = halves
    for factor, units in ((DEGREES, "degrees against radians"), (1000, "millimetres against metres")):
        found = compare(known, scaled(new, dims, factor))
        assert len(found) == 1 and units in found[0]
        assert all((name in found[0]) == (i in dims) for i, name in enumerate(arm.JOINTS))
        assert found[0].startswith("the unlabelled states spread")
        found = compare(scaled(known, dims, factor), new)
        assert len(found) == 1 and units in found[0] and found[0].startswith("the labelled states spread")


def test_another_large_factor_is_told_without_a_unit(halves):
    (found,) = compare(nameless(halves[0]), scaled(nameless(halves[1]), [2, 3], 12))
    assert re.search("about 1[1-4] times as wide", found) and "dimensions 2, 3" in found and "check the units" in found


def test_a_dimension_that_hardly_moves_in_one_labelled_trajectory_is_not_taken_for_another_unit(pointmass):
    still = np.argsort([pointmass[e].obs[:, 0].std() for e in range(len(pointmass))])
    for e in still[:5]:
        others = pointmass.take(np.setdiff1d(np.arange(len(pointmass)), [e]))
        assert not [w for w in compare(pointmass[int(e)], others) if "units" in w or "radians" in w]
        assert not [w for w in compare(others, pointmass[int(e)]) if "units" in w or "radians" in w]


def test_degrees_are_found_with_one_labelled_trajectory(halves):
    (found,) = compare(halves[0][0], scaled(halves[1], [0, 1, 2], DEGREES))
    assert "degrees against radians" in found


def test_a_shift_out_of_the_range_is_found(halves):
    obs = halves[1].obs.copy()
    obs[:, 2] += 5
    (found,) = compare(halves[0], replace(halves[1], obs=obs))
    assert "elbow_flex by 5" in found and "zero positions" in found


@pytest.mark.parametrize("pair", [(0, 1), (1, 2), (2, 3), (3, 5)])
def test_swapped_joints_are_found_without_names(halves, pair):
    order = np.arange(6)
    order[list(pair)] = order[list(pair)[::-1]]
    (found,) = compare(nameless(halves[0]), with_columns(nameless(halves[1]), order))
    assert f"swapped: {pair[0]} with {pair[1]};" in found


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (1, 0, 3, 2), (0, 1, 3, 2)])
def test_swapped_positions_or_velocities_of_the_point_mass(pointmass, order):
    found = compare(pointmass[:150], with_columns(pointmass[150:], list(order)))
    if order == (1, 0, 3, 2):  # the task is the same after both are swapped, so nothing can tell
        assert found == []
    else:
        assert len(found) == 1 and "swapped" in found[0]


def test_another_frame_rate_is_found_by_declaration_and_from_the_states(halves, pointmass):
    known, new = halves
    (found,) = compare(known, new.with_meta(fps=10.0))
    assert "30 steps per second and the unlabelled data 10" in found
    (found,) = compare(known, every_third(new).with_meta(fps=10.0))
    assert "30 steps per second" in found
    for a, b in ((nameless(known), nameless(new)), (pointmass[:150], pointmass[150:])):
        for warnings, slow in ((compare(a, every_third(b)), "unlabelled"), (compare(every_third(a), b), "labelled")):
            (found,) = warnings
            assert f"a step of the {slow} data seems to last" in found
            assert float(found.partition("last ")[2].split()[0]) == pytest.approx(3, rel=0.15)


def test_rates_that_differ_by_rounding_are_equal(halves):
    assert compare(halves[0].with_meta(fps=29.97), halves[1]) == []


def test_states_that_resemble_no_labelled_one_are_found(halves):
    rng = np.random.default_rng(0)
    known = make_episodes([60] * 10)
    line = rng.standard_normal((known.n_steps + 10, 1)) * np.ones((1, 3))  # on a line; the others fill the space
    known = replace(known, obs=(line + 0.001 * rng.standard_normal((*line.shape[:1], 3))).astype(np.float32))
    found = compare(known, make_episodes([60] * 10, seed=1))
    assert [w for w in found if "unlike any labelled one" in w]


def test_other_robots_and_other_sizes_are_found(halves):
    known, new = halves
    (found,) = compare(known.with_meta(robot="so100"), new.with_meta(robot="koch"))
    assert "so100" in found and "koch" in found
    (found,) = compare(known, with_columns(new, [0, 1, 2]))
    assert "have 6 numbers and the unlabelled ones 3" in found


# --- names


def test_other_names_are_found_and_hostile_ones_escaped(halves):
    names = ("pan", *arm.JOINTS[1:5], "yaw\x1b[31m\n")
    (found,) = compare(halves[0], halves[1].with_meta(state_names=names))
    assert "shoulder_pan / pan" in found and "\x1b" not in found and "\n" not in found
    assert compare(halves[0], halves[1].with_meta(state_names=())) == []


def test_the_same_names_in_another_order_are_reordered_with_a_note(halves):
    known, new = halves
    order = [3, 1, 0, 2, 5, 4]
    names = tuple(arm.JOINTS[i] for i in order)
    bounds = {k: tuple(getattr(new.meta, k)[i] for i in order) for k in ("act_low", "act_high")}
    mixed = replace(new, obs=new.obs[:, order], act=new.act[:, order])
    mixed = mixed.with_meta(state_names=names, action_names=names, **bounds)
    warned = compare(known, mixed)
    assert any("the states have the same names in another order" in w for w in warned)
    assert any("the actions have the same names in another order" in w for w in warned)
    back = reordered(known, mixed)
    assert back.same(new) and replace(back.meta, notes=()) == new.meta
    assert [n for n in back.meta.notes if "shoulder_pan, shoulder_lift" in n and "states" in n]
    assert compare(known, back) == []
    assert reordered(known, new) is new and reordered(nameless(known), mixed) is mixed


def test_names_that_repeat_or_differ_are_not_reordered(halves):
    known, new = halves
    twice = ("a", "a", "b", "c", "d", "e")
    assert reordered(known.with_meta(state_names=twice), new.with_meta(state_names=twice[::-1])).obs is new.obs
    assert reordered(known, new.with_meta(state_names=("x", *arm.JOINTS[1:]))).obs is new.obs


def test_reordering_leaves_missing_actions_and_datasets_without_actions_alone(halves):
    known, new = halves
    hidden = new.with_actions(np.full_like(new.act, np.nan))
    mixed = with_columns(hidden, [1, 0, 2, 3, 4, 5])
    mixed = mixed.with_meta(state_names=(arm.JOINTS[1], arm.JOINTS[0], *arm.JOINTS[2:]))
    back = reordered(known, mixed)
    assert back.same(hidden) and back.act is mixed.act
