"""Windows are consecutive steps of one trajectory, and say what of them is real."""

import jax
import numpy as np
import pytest
from conftest import make_episodes

from ssorl.agents.windows import Windows
from ssorl.data.stats import Standardiser
from ssorl.errors import DataError
from ssorl.tables import Dataset, make_pool, make_table
from ssorl.train import Run, _steps

K = 4


@pytest.fixture(scope="module")
def eps():
    """Trajectories of 6, 3 and 2 steps; the second step has no action, and the third trajectory none at all."""
    eps = make_episodes([6, 3, 2])
    act = eps.act.copy()
    act[[1, 9, 10]] = np.nan
    return eps.with_actions(act)


def drawn(eps, needs_actions, steps=None, n=400):
    run = Run(eps, 0, steps)
    identity = Standardiser(np.zeros(eps.n_obs, np.float32), np.ones(eps.n_obs, np.float32))
    pool = jax.device_put(make_pool(run.eps, _steps(run, 0, needs_actions), 16))
    window = Windows(n, K, needs_actions).draw(make_table([Dataset(eps, identity)]), pool, jax.random.key(0))
    first = [int(np.flatnonzero(eps.rew == r)[0]) for r in np.asarray(window.rew)[:, 0]]
    return jax.tree.map(np.asarray, window), np.array(first)


def test_every_entry_is_that_of_its_step(eps):
    window, first = drawn(eps, needs_actions=False)
    returns, scaled = eps.returns_to_go(), eps.scaled_actions()
    assert set(first) == set(range(11))  # the last step of a trajectory starts a window too
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


def test_nothing_is_nan(eps):
    window, _ = drawn(eps, needs_actions=False)
    assert all(np.isfinite(x).all() for x in window)


def test_a_view_that_needs_actions_starts_at_one(eps):
    window, first = drawn(eps, needs_actions=True)
    assert set(first) == set(range(11)) - {1, 9, 10}
    assert window.labelled[:, 0].all()
    start = first == 0
    assert not window.labelled[start, 1].any() and window.labelled[start, 2].all()  # and goes on over a gap


def test_the_pool_decides_where_windows_start(eps):
    _, first = drawn(eps, needs_actions=True, steps=np.array([2, 7]))
    assert set(first) == {2, 7}
    assert 120 < (first == 2).sum() < 280
    _, first = drawn(eps, needs_actions=False, steps=np.array([9]))
    assert set(first) == {9}
    with pytest.raises(DataError, match="have no action"):
        drawn(eps, needs_actions=True, steps=np.array([9]))
