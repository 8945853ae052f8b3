"""`ssorl.suggest`: what it returns with labels, without, with two files, with costs and parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.systems import hide_after

import ssorl
from ssorl.data import repair, save
from ssorl.utils.errors import DataError, SsorlError


@pytest.fixture(scope="module")
def hidden(pointmass):
    return hide_after(pointmass[np.argsort(pointmass.returns, kind="stable")], 30)


def test_suggestions_lower_the_expected_error(hidden):
    result = ssorl.suggest(hidden, 3)
    assert result.expected_mse_now is not None and len(result.suggestions) == 3
    expected = [result.expected_mse_now, *(s.expected_mse for s in result.suggestions)]
    assert sorted(expected, reverse=True) == expected
    assert all(s.trajectory >= 30 and s.first_step is None and 0 < s.covers <= 1 for s in result.suggestions)
    longer = ssorl.suggest(hidden, 5)
    assert [s.trajectory for s in longer.suggestions[:3]] == [s.trajectory for s in result.suggestions]


def test_without_labels_it_says_where_to_begin(hidden):
    result = ssorl.suggest(repair.forget_actions(hidden), 2)
    assert result.expected_mse_now is None and [s.expected_mse for s in result.suggestions] == [None, None]
    assert "where to begin" in result.notes[0]


def test_rewards_are_not_needed(hidden):
    bare = replace(hidden, rew=np.full_like(hidden.rew, np.nan))
    expected = [s.trajectory for s in ssorl.suggest(hidden, 2).suggestions]
    assert [s.trajectory for s in ssorl.suggest(bare, 2).suggestions] == expected


def test_of_two_files_the_unlabelled_one_is_counted(hidden, tmp_path):
    save(hidden[:30], tmp_path / "a.npz")
    save(hidden[30:], tmp_path / "b.npz")
    result = ssorl.suggest(tmp_path / "a.npz", 2, unlabelled=tmp_path / "b.npz")
    whole = ssorl.suggest(hidden, 2)
    assert [s.trajectory + 30 for s in result.suggestions] == [s.trajectory for s in whole.suggestions]
    assert result.suggestions[0].source == {
        "file": str(tmp_path / "b.npz"),
        "episode": result.suggestions[0].trajectory,
    }


def test_a_budget_of_steps_and_parts(hidden):
    result = ssorl.suggest(hidden, budget_steps=250)
    assert 0 < sum(s.steps for s in result.suggestions) <= 250
    parts = ssorl.suggest(hidden, 4, segments=20).suggestions
    assert all(s.last_step - s.first_step + 1 == s.steps <= 20 for s in parts)


def test_costs_bound_the_budget(hidden):
    costs = np.linspace(1, 9, len(hidden))
    result = ssorl.suggest(hidden, 12.5, costs=costs)
    assert 0 < sum(costs[s.trajectory] for s in result.suggestions) <= 12.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "give a number above 0"),
        ({"budget": 1, "budget_steps": 5}, "not both"),
        ({"segments": -1}, "give a number above 0"),
        ({"costs": [1.0]}, "give one cost above 0 for each"),
    ],
)
def test_bad_budgets_get_one_sentence(hidden, options, message):
    with pytest.raises(SsorlError, match=message):
        ssorl.suggest(hidden, **options)


def test_data_with_all_actions_gets_one_sentence(pointmass):
    with pytest.raises(DataError, match="nothing to suggest"):
        ssorl.suggest(pointmass)


def test_one_trajectory(hidden):
    result = ssorl.suggest(hidden[40:41], 3)
    assert [s.trajectory for s in result.suggestions] == [0]
