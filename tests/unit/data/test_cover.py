"""The criterion `cover`: nearest states, nested picks, costs, parts of trajectories."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ssorl.data.cover import Candidate, candidates, cover, suggested
from ssorl.data.episodes import Episodes, Meta, offsets
from ssorl.utils.errors import DataError


def lines(places, n=40, known=(), seed=0) -> Episodes:
    """Trajectories that stay near one place each; those in `known` have actions."""
    rng = np.random.default_rng(seed)
    obs = np.concatenate([np.array(p) + 0.1 * rng.standard_normal((n + 1, 2)) for p in places]).astype(np.float32)
    act = np.full((n * len(places), 1), np.nan, np.float32)
    for e in known:
        act[e * n : (e + 1) * n] = 0.5
    zeros = np.zeros(n * len(places), np.float32)
    meta = Meta(act_low=(-1.0,), act_high=(1.0,), act_range="declared")
    return Episodes(obs, act, zeros, zeros.astype(bool), offsets(np.full(len(places), n)), meta)


PLACES = [(0, 0), (0, 0), (5, 0), (5, 0), (5, 0), (0, 9)]


def chosen(eps, budget, **options):
    units = candidates(eps, options.pop("length", None))
    return [pick.candidate.trajectory for pick in cover(eps, units, budget, **options).picks]


def test_each_place_is_chosen_once_the_largest_uncovered_one_first():
    eps = lines(PLACES, known=[0])
    picks = chosen(eps, 2)
    assert picks[0] in (2, 3, 4) and picks[1] == 5
    assert chosen(eps, 4)[:2] == picks


def test_without_labels_the_first_choice_covers_the_most():
    assert chosen(lines(PLACES), 1)[0] in (2, 3, 4)


def test_nothing_is_chosen_twice_and_the_budget_may_exceed_the_data():
    picks = chosen(lines(PLACES, known=[0]), 99)
    assert sorted(picks) == [1, 2, 3, 4, 5]


def test_costs_decide_between_equals():
    eps = lines(PLACES, known=[0])
    price = np.array([1.0, 3, 2, 3, 50])  # of trajectories 1 to 5
    assert chosen(eps, 3, costs=price)[0] == 3
    assert 5 not in chosen(eps, 49, costs=price)


def test_parts_of_trajectories():
    eps = lines([(0, 0), (0, 0)], known=[0])
    obs = eps.obs.copy()
    obs[41 + 20 :] += 8  # the second half of trajectory 1 goes elsewhere
    eps = replace(eps, obs=obs)
    (pick,) = cover(eps, candidates(eps, 10), 1).picks
    assert pick.candidate.trajectory == 1 and pick.candidate.first_step >= 20
    assert candidates(eps, 15) == [Candidate(1, 0, 14), Candidate(1, 15, 29), Candidate(1, 30, 39)]


def test_actions_are_not_read(pointmass):
    half = np.repeat(np.arange(300) < 30, pointmass.lengths)[:, None]
    hidden = replace(pointmass, act=np.where(half, pointmass.act, np.nan))
    other = replace(pointmass, act=np.where(half, pointmass.act[::-1], np.nan))
    assert chosen(hidden, 5) == chosen(other, 5)


def test_the_split_of_a_study(pointmass):
    split = suggested(pointmass, 0.05)
    assert len(split.labelled) == 15 and len(split.unlabelled) == 285
    assert split.recipe == {"kind": "suggested", "fraction": 0.05, "seed": 0}
    with pytest.raises(DataError, match="lacks actions already"):
        suggested(lines(PLACES, known=[0]))
    with pytest.raises(DataError, match="is none"):
        suggested(pointmass, 0.0001)
