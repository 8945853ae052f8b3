"""Windows are consecutive steps of one trajectory, with masks of existing and labelled steps."""

import jax
import numpy as np
import pytest
from support.episodes import make_episodes

from ssorl.agents.windows import BothWindows, Windows
from ssorl.data.stats import Standardiser
from ssorl.training.checks import training_steps
from ssorl.training.engine import TrainingRun
from ssorl.training.tables import Dataset, make_pool, make_table
from ssorl.utils.errors import DataError

K = 4


@pytest.fixture(scope="module")
def eps():
    """Trajectories of 6, 3 and 2 steps; the second step and the whole third trajectory have no actions."""
    eps = make_episodes([6, 3, 2])
    act = eps.act.copy()
    act[[1, 9, 10]] = np.nan
    return eps.with_actions(act)


def draw_windows(eps, needs_actions, steps=None, n=400):
    run = TrainingRun(eps, 0, steps)
    identity = Standardiser(np.zeros(eps.n_obs, np.float32), np.ones(eps.n_obs, np.float32))
    pool = jax.device_put(make_pool(run.eps, training_steps(run, 0, needs_actions), 16))
    view = Windows(n, K) if needs_actions else BothWindows(n, n // 2, K)
    window = view.draw(make_table([Dataset(eps, identity)]), pool, jax.random.key(0))
    first = [int(np.flatnonzero(eps.rew == r)[0]) for r in np.asarray(window.rew)[:, 0]]
    return jax.tree.map(np.asarray, window), np.array(first)


def test_every_entry_belongs_to_its_step(eps):
    window, first = draw_windows(eps, needs_actions=False)
    returns, scaled = eps.returns_to_go(), eps.scaled_actions()
    assert set(first) == set(range(11))  # the last step of a trajectory starts a window, too
    for b, start in enumerate(first):
        episode = eps.episode_of_step[start]
        for k in range(K):
            step = start + k
            inside = step < eps.start[episode + 1]
            assert window.mask[b, k] == inside
            if not inside:
                assert not window.labelled[b, k]
                continue
            np.testing.assert_array_equal(window.obs[b, k], eps.obs[eps.obs_row[step]])
            np.testing.assert_array_equal(window.next_obs[b, k], eps.obs[eps.obs_row[step] + 1])
            assert window.rew[b, k] == eps.rew[step]
            assert window.time[b, k] == step - eps.start[episode]
            np.testing.assert_allclose(window.rtg[b, k], returns[step], rtol=1e-6)
            known = step not in (1, 9, 10)
            assert window.labelled[b, k] == known
            np.testing.assert_allclose(window.act[b, k], scaled[step] if known else 0, rtol=1e-6)


def test_windows_contain_no_nan(eps):
    window, _ = draw_windows(eps, needs_actions=False)
    assert all(np.isfinite(x).all() for x in window)


def test_a_view_that_needs_actions_starts_at_steps_with_an_action(eps):
    window, first = draw_windows(eps, needs_actions=True)
    assert set(first) == set(range(11)) - {1, 9, 10}
    assert window.labelled[:, 0].all()
    start = first == 0
    assert (
        not window.labelled[start, 1].any() and window.labelled[start, 2].all()
    )  # a window may contain a step without an action


def test_windows_start_at_the_steps_of_the_pool(eps):
    _, first = draw_windows(eps, needs_actions=True, steps=np.array([2, 7]))
    assert set(first) == {2, 7}
    assert 120 < (first == 2).sum() < 280
    _, first = draw_windows(eps, needs_actions=False, steps=np.array([9, 4, 10]))
    assert set(first[:400]) == {4} and set(first[400:]) == {9, 10}
    with pytest.raises(DataError, match="have no action"):
        draw_windows(eps, needs_actions=True, steps=np.array([9]))


def test_the_numbers_of_windows_of_both_kinds_are_fixed(eps):
    """They do not depend on the number of steps of each kind; within a kind all steps are equally likely."""
    window, first = draw_windows(eps, needs_actions=False)
    with_action, without = first[:400], first[400:]
    assert set(with_action) == set(range(11)) - {1, 9, 10} and set(without) == {1, 9, 10}
    assert window.labelled[:400, 0].all() and not window.labelled[400:, 0].any()
    assert window.mask[:, 0].all()
    assert window.labelled[400:][without == 1, 1].all()  # a later step may have one
    for start, share in [(0, 50), (8, 50)]:
        assert share / 2 < (with_action == start).sum() < share * 1.6
    assert 45 < (without == 9).sum() < 90


@pytest.mark.parametrize("length", [4, 16])
def test_windows_of_a_kind_without_steps_are_masked(eps, length):
    """With length 4 the pool has no padding, so indices of the missing kind are past its end."""
    identity = Standardiser(np.zeros(eps.n_obs, np.float32), np.ones(eps.n_obs, np.float32))
    table, view = make_table([Dataset(eps, identity)]), BothWindows(5, 3, K)
    labelled, unlabelled = slice(0, 5), slice(5, 8)
    for steps, existing, missing in [([2, 3, 6, 7], labelled, unlabelled), ([1, 9, 10, 10], unlabelled, labelled)]:
        pool = jax.device_put(make_pool(eps, np.array(steps, np.int32), length))
        window = jax.tree.map(np.asarray, view.draw(table, pool, jax.random.key(1)))
        assert window.mask[existing, 0].all()
        assert not window.mask[missing].any() and not window.labelled[missing].any()
        assert all(np.isfinite(x).all() for x in window)
