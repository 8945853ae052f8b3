"""Inverse dynamics models of systems with a known inverse."""

from dataclasses import replace

import numpy as np
import pytest
from support.systems import TINY, hide_after, linear, two_policies

from ssorl.data import concat
from ssorl.idm.fill import fill
from ssorl.idm.fit import fit
from ssorl.idm.label import predict

STEADY = replace(TINY, steps=3000, validate_every=250)


@pytest.mark.parametrize("kind", [{}, {"differences": True, "beta": 0.5}], ids=["paper", "robust"])
def test_an_exact_inverse_is_learnt_and_the_std_falls_to_its_lower_bound(kind):
    eps = linear()
    config = replace(STEADY, **kind, log_std=(-3.5, 2.0))
    data = hide_after(eps, 20)
    rest = np.flatnonzero(~data.labelled)
    out = predict(fit(data, config), data, rest)
    assert np.sqrt(np.mean((out.mean - eps.act[rest]) ** 2)) < 0.02  # of actions in ±0.8
    floor = np.exp(config.log_std[0])
    assert floor <= np.median(out.std) < 1.1 * floor  # the bound is smooth, so the std approaches but never reaches it


def test_the_predicted_std_matches_the_noise():
    noise = 0.1
    eps = linear(n=80, noise=noise)
    done = fill(hide_after(eps, 60), STEADY, truth=eps.act)
    assert np.median(done.labels.std[done.labels.proxy]) == pytest.approx(noise, rel=0.1)
    assert done.report["truth"]["mse"] == pytest.approx(noise**2, rel=0.1)
    for share, level in zip(done.report["coverage"]["truth"], (0.5, 0.8, 0.95), strict=True):
        assert share == pytest.approx(level, abs=0.05)


def test_the_predicted_std_depends_on_the_state():
    quiet, loud = linear(n=40, noise=0.02), linear(n=40, noise=0.2, seed=1)
    loud = replace(loud, obs=loud.obs + np.float32([6, 0]))  # other states, the same dynamics
    eps = concat([quiet, loud])
    keep = np.zeros(len(eps), bool)
    keep[:30] = keep[40:70] = True
    done = fill(replace(eps, act=np.where(np.repeat(keep, eps.lengths)[:, None], eps.act, np.nan)), STEADY)
    std = np.sqrt((done.labels.std**2).mean(1))
    near = np.repeat(np.arange(len(eps)) < 40, eps.lengths)
    proxy = done.labels.proxy
    assert np.median(std[proxy & ~near]) > 5 * np.median(std[proxy & near])


def test_a_past_state_distinguishes_two_policies():
    eps = two_policies()
    errors = {}
    for past in (0, 1):
        done = fill(hide_after(eps, 40), replace(STEADY, past=past, steps=1500), truth=eps.act)
        errors[past] = done.report["truth"]["mse"]
    # Without the past state, a third of the steps is ambiguous: E[a²] / 3 = 0.13.
    assert errors[0] > 0.1 and errors[1] < 0.01
