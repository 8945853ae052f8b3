"""The fit: which weights are kept, what they may know, and that padding and order change nothing."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.systems import TINY, hide, hide_after, linear

from ssorl.data import apply, coupled
from ssorl.idm import fit as fitting
from ssorl.idm.fit import fit, fit_many, validation_error, windows
from ssorl.idm.holdout import held_out, hold_out
from ssorl.idm.label import predict
from ssorl.idm.model import features
from ssorl.idm.selftrain import self_train, self_train_many
from ssorl.utils.errors import DataError


def weights(idm) -> bytes:
    return b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(idm.params))


@pytest.fixture(scope="module")
def eps():
    return hide_after(linear(n=20), 10)


def test_the_best_validation_weights_are_kept_not_the_last():
    # A few noisy steps are soon learnt by heart, so the last weights are far from the best.
    eps = hide_after(linear(n=4, t=15, noise=0.3), 3)
    config = replace(TINY, steps=600, validate_every=50, schedule="constant", members=2)
    idm = fit(eps, config)
    best, last = idm.curve.min(1), idm.curve[:, -1]
    assert (best < last - 0.1).all()
    assert (idm.best_step == config.validate_every * (1 + idm.curve.argmin(1))).all()
    val = hold_out(eps, config.validation, 0)[1]
    for member in range(2):
        assert measured(idm, eps, val, member) == pytest.approx(best[member], abs=1e-4)


def test_weights_that_end_in_nan_do_not_cost_the_good_ones_before():
    eps = hide_after(linear(n=4, t=15), 3)
    table, shown = fitting._table([(eps, 0)], TINY, None)
    runs = fitting._stack([fitting._runs(fitting._prepare(eps, TINY, 0), shown[id(eps.obs)], TINY)])
    good = fitting._begin(TINY, table.shape[1], eps.n_act, runs.key)
    best, n = jax.tree.map(np.asarray, good.best), len(runs.key)
    lost = good._replace(params=jax.tree.map(lambda x: x * np.nan, good.params), best_error=jnp.full(n, 0.5))
    state, error = fitting._chunk(TINY, 2, table, runs, lost, 100)
    assert np.isnan(error).all() and (np.asarray(state.best_error) == 0.5).all()
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (state.best, best)), strict=True))


def test_a_fit_that_never_was_a_number_names_its_data():
    fine, wild = (hide_after(linear(n=4, t=15), 3).with_meta(source=name) for name in ("fine", "wild.npz"))
    wild = replace(wild, obs=np.full_like(wild.obs, np.nan))
    with pytest.raises(DataError, match=r"wild\.npz: the fit diverged: .* `ssorl data show`"):
        fit_many([(fine, 0), (wild, 0)], replace(TINY, steps=20, validate_every=10))


def measured(idm, eps, steps, member=0, padding=0) -> float:
    """The validation error of one member at these steps, `padding` rows of zeros behind them."""
    params = jax.tree.map(lambda x: x[member], idm.params)
    pool = fitting.pool(eps, eps.scaled_actions(), steps)
    where, act = jax.tree.map(lambda x: np.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)), (pool.where, pool.act))
    table = idm.inputs(eps.obs), idm.diff_std
    return float(
        jax.jit(validation_error, static_argnums=0)(idm.config, params, table, fitting.Pool(where, act, pool.n))
    )


def test_hidden_truth_never_touches_a_fit():
    full = linear(n=20)
    split = coupled(full, fraction=0.5, quality=100)
    other = replace(full, act=full.act.copy())
    hidden = np.repeat(np.isin(np.arange(20), split.unlabelled), full.lengths)
    other.act[hidden] = np.random.default_rng(1).uniform(-1, 1, (hidden.sum(), 2))
    a, b = (fit(apply(split, x), TINY) for x in (full, other))
    assert not np.array_equal(full.act, other.act)
    assert weights(a) == weights(b) and a.curve.tobytes() == b.curve.tobytes()


def test_a_fit_repeats_itself_and_the_seed_matters(eps):
    assert weights(fit(eps, TINY, seed=3)) == weights(fit(eps, TINY, seed=3)) != weights(fit(eps, TINY, seed=4))


def test_members_differ(eps):
    idm = fit(eps, replace(TINY, members=2))
    first, second = (x for x in idm.params["mean"][0]["w"])
    assert not np.allclose(first, second)


def test_validation_trajectories_are_held_out_whole():
    eps = hide_after(linear(n=40), 30)
    train, val, held = hold_out(eps, 0.1, 0)
    assert len(held) == 3 and not set(train) & set(val)
    assert set(eps.episode_of_step[val]) == set(held) and not set(eps.episode_of_step[train]) & set(held)
    assert sorted([*train, *val]) == list(np.flatnonzero(eps.labelled))


def test_one_labelled_trajectory_is_enough():
    eps = hide_after(linear(n=5), 1)
    train, val, held = hold_out(eps, 0.1, 0)
    assert list(val) == [27, 28, 29] and len(train) == 27 and list(held) == [0]
    idm = fit(eps, TINY)
    assert np.isfinite(idm.curve).all()
    assert list(held_out(idm, eps)) == list(val)


def test_copies_of_the_only_labelled_trajectory_do_not_teach_what_they_are_tested_on():
    eps = hide_after(linear(n=5).take(np.array([0, 0, 1, 2])), 2)
    train, val, held = hold_out(eps, 0.1, 0)
    assert list(val) == [27, 28, 29, 57, 58, 59] and not set(train % 30) & set(val % 30) and list(held) == [0, 1]
    idm = replace(fit(hide_after(linear(n=5), 1), TINY), validation=held)
    assert list(held_out(idm, eps)) == list(val)
    with pytest.raises(DataError, match="1 steps have an action and at least 2"):
        hold_out(hide(eps, np.arange(eps.n_steps) % 30 != 7), 0.1, 0)


def test_a_clock_among_the_states_does_not_drown_the_others():
    """It goes on by the same each step, so the deviation of its differences is that of rounding."""
    plain, config = hide_after(linear(n=20), 10), replace(TINY, differences=True)
    clock = np.tile(np.arange(31, dtype=np.float32) * np.float32(0.1), 20)
    eps = replace(plain, obs=np.column_stack([plain.obs, clock]))
    (alone,), (shown,) = (fitting._table([(one, 0)], config, None)[1].values() for one in (plain, eps))
    assert np.array_equal(shown.diff_std[:2], alone.diff_std)
    moved = np.diff(shown.inputs(eps.obs[:31]), axis=0) / shown.diff_std
    assert np.abs(moved[:, 2]).max() == pytest.approx(10, rel=1e-3)


def test_held_out_steps_are_those_of_the_fit():
    eps = hide_after(linear(n=40), 30)
    idm = fit(eps, TINY, seed=5)
    assert list(held_out(idm, eps)) == list(hold_out(eps, TINY.validation, 5)[1])


def test_labelled_steps_between_gaps_teach_too():
    full = linear(n=20)
    every_third = np.arange(full.n_steps) % 3 != 0
    eps = hide(full, every_third)
    idm = fit(eps, TINY)
    rest = np.flatnonzero(every_third)
    assert np.mean((predict(idm, eps, rest).mean - full.act[rest]) ** 2) < 0.02


def test_too_few_labelled_steps_are_refused(eps):
    for n in (0, 1):
        with pytest.raises(DataError, match=f"{n} steps have an action and at least 2"):
            fit(hide(eps, slice(n, None)), TINY)


def test_padding_of_the_validation_set_changes_nothing(eps):
    steps = np.flatnonzero(eps.labelled)[:50]
    idm = fit(eps, TINY)
    assert measured(idm, eps, steps, padding=30) == pytest.approx(measured(idm, eps, steps), rel=1e-5)
    assert measured(idm, eps, steps) != pytest.approx(measured(idm, eps, steps[:40]), rel=1e-3)


def test_windows_stop_at_the_edges_of_a_trajectory():
    eps = linear(n=3, t=4)
    config = replace(TINY, past=2, future=1)
    where = windows(eps, np.array([4, 5, 7]))  # first, second and last step of the middle trajectory
    x = np.asarray(features(config, eps.obs, np.ones(2, np.float32), where))
    states, flags = x[:, :10].reshape(3, 5, 2), x[:, 10:]
    own = eps.obs[5:10]  # its five states
    assert np.array_equal(states[0], own[[0, 0, 0, 1, 2]]) and list(flags[0]) == [0, 0, 1]
    assert np.array_equal(states[1], own[[0, 0, 1, 2, 3]]) and list(flags[1]) == [0, 1, 1]
    assert np.array_equal(states[2], own[[1, 2, 3, 4, 4]]) and list(flags[2]) == [1, 1, 0]


def test_self_training_many_is_each_alone(eps):
    whole = eps.with_actions(np.nan_to_num(eps.act))  # nothing is missing there, so its first fit is its last
    other = eps.with_actions(np.where(np.arange(eps.n_steps)[:, None] % 7, eps.act, np.nan))
    tasks, heard = [(eps, 0), (whole, 3), (other, 5)], []
    many = self_train_many(tasks, TINY, 2, 2, lambda r, latest: heard.append((r, len(latest))))
    assert heard == [(0, 3), (1, 3), (2, 3)] and [len(one) for one in many] == [3, 1, 3]
    for (data, seed), together in zip(tasks, many, strict=True):
        alone = self_train(data, TINY, members=2, rounds=2, seed=seed)
        assert [weights(r.idm) for r in alone] == [weights(r.idm) for r in together]
        assert all(np.array_equal(a.added, b.added) for a, b in zip(alone, together, strict=True))
        assert [r.threshold for r in alone] == [r.threshold for r in together]


def test_self_training_moves_every_step_once_the_surest_first(eps):
    rounds = self_train(eps, TINY, members=2, rounds=2)
    assert [len(r.added) for r in rounds] == [0, 150, 150]
    rest = np.flatnonzero(~eps.labelled)
    assert sorted(np.concatenate([r.added for r in rounds])) == list(rest)
    doubt = (predict(rounds[0].idm, eps, rest).std ** 2).sum(1)
    assert rounds[1].threshold == pytest.approx(np.sort(doubt)[149])
    assert set(rounds[1].added) == set(rest[np.argsort(doubt, kind="stable")[:150]])
    assert len({weights(r.idm) for r in rounds}) == 3
