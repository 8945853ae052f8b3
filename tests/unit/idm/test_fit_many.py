"""Many fits in one program are the fits one would have made alone."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from support.episodes import make_episodes

from ssorl.data import apply, coupled
from ssorl.idm.fit import fit, fit_many
from ssorl.idm.model import IdmConfig
from ssorl.utils.errors import DataError

CONFIG = IdmConfig(hidden=(16, 16), steps=40, batch=32, lr=1e-3, validate_every=20, members=2, dropout=0.1)


@pytest.fixture(scope="module")
def tasks():
    eps = make_episodes([7] * 12)
    other = make_episodes([5, 9, 30], seed=3)  # another dataset, another number of labelled steps
    splits = [apply(coupled(eps, fraction, 100, seed), eps) for fraction, seed in ((0.5, 0), (0.2, 1))]
    return [(splits[0], 0), (splits[1], 1), (other, 2)]


def same(a, b, **tolerance):
    leaves = zip(jax.tree.leaves(a.params), jax.tree.leaves(b.params), strict=True)
    return all(np.allclose(x, y, **tolerance) for x, y in leaves)


def test_one_after_another_is_the_same_to_the_bit(tasks):
    for many, (eps, seed) in zip(fit_many(tasks, CONFIG), tasks, strict=True):
        alone = fit(eps, CONFIG, seed)
        assert same(many, alone, rtol=0, atol=0)
        assert np.array_equal(many.curve, alone.curve) and np.array_equal(many.validation, alone.validation)
        assert many.curve.shape == (2, 2)


@pytest.mark.gpu
def test_all_at_once_is_the_same_but_for_rounding(tasks):
    apart, together = fit_many(tasks, CONFIG), fit_many(tasks, CONFIG, together=True)
    for a, b in zip(apart, together, strict=True):
        assert same(a, b, atol=1e-4) and np.allclose(a.curve, b.curve, atol=1e-3)
    # The runs do differ from each other, so agreement above means something.
    assert not same(apart[0], apart[1], atol=1e-2)


def test_members_differ(tasks):
    first = fit(*[tasks[0][0], CONFIG], seed=0)
    assert not np.allclose(first.params["mean"][0]["w"][0], first.params["mean"][0]["w"][1])
    assert same(fit(tasks[0][0], replace(CONFIG), seed=0), first, rtol=0, atol=0)


def test_progress_counts_all_updates(tasks):
    calls = []
    fit_many(tasks, CONFIG, progress=lambda n, errors: calls.append((n, errors.shape)))
    assert sum(n for n, _ in calls) == 3 * 2 * 40
    together = []
    fit_many(tasks, CONFIG, progress=lambda n, errors: together.append((n, errors.shape)), together=True)
    assert together == [(120, (6,)), (120, (6,))]


def test_too_few_labelled_steps_raise():
    eps = make_episodes([4, 4])
    act = np.full_like(eps.act, np.nan)
    act[0] = 0
    with pytest.raises(DataError, match="at least 2 are needed"):
        fit(eps.with_actions(act), CONFIG)


def test_half_precision_is_near_and_keeps_the_output_layer(tasks):
    eps, seed = tasks[0]
    full, half = fit(eps, CONFIG, seed), fit(eps, replace(CONFIG, half=True), seed)
    assert np.allclose(full.curve, half.curve, atol=0.05) and not np.array_equal(full.curve, half.curve)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(half.params))
