"""Doubtful trajectories, weights of proxy actions, and proxy actions that are drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.systems import TINY, hide_after, linear

from ssorl.idm.fill import fill
from ssorl.idm.outlook import doubtful_sentence
from ssorl.idm.worth import (
    LabelUse,
    doubtful_report,
    doubtful_steps,
    draw_actions,
    drop_doubtful,
    forecast_errors,
    step_weights,
    treat_doubtful,
    variances,
)
from ssorl.utils.errors import SsorlError
from ssorl.utils.identity import identifying_fields

KNOWN, N, BAD = 5, 12, (7, 9)  # trajectories with actions, all, and those whose forecast is bad


@pytest.fixture(scope="module")
def plain():
    """Labels of a model that makes no forecast."""
    return fill(hide_after(linear(n=N), KNOWN), replace(TINY, hidden=(8,), steps=40, validate_every=20))


@pytest.fixture(scope="module")
def labelled(plain):
    errors = [None] * KNOWN + [0.2 if e in BAD else 0.01 for e in range(KNOWN, N)]
    return replace(plain, report=plain.report | {"forecast": {"by_trajectory": errors}})


def bad_steps(labelled):
    return np.isin(labelled.eps.episode_of_step, BAD)


def test_drop_removes_exactly_the_doubtful_trajectories(labelled):
    got, bad = drop_doubtful(labelled), bad_steps(labelled)
    np.testing.assert_array_equal(got.eps.labelled, ~bad)
    np.testing.assert_array_equal(got.eps.act[~bad], labelled.eps.act[~bad])
    np.testing.assert_array_equal(got.labels.proxy, labelled.labels.proxy & ~bad)
    assert np.isnan(got.labels.act[bad]).all() and not got.labels.std[bad].any()
    n = int(got.labels.proxy.sum())
    assert any(note.startswith(f"{n} of {labelled.eps.n_steps} ") for note in got.eps.meta.notes)
    assert len(got.eps.meta.notes) == len(labelled.eps.meta.notes)
    assert np.isfinite(labelled.eps.act).all()  # the input is unchanged


def test_drop_keeps_true_actions_of_a_doubtful_trajectory_and_verified_ones(labelled):
    first, second = (int(labelled.eps.start[BAD[0]]) + i for i in (0, 1))
    proxy = labelled.labels.proxy.copy()
    proxy[first] = False
    verified = np.arange(len(proxy)) == second
    mixed = replace(labelled, labels=labelled.labels._replace(proxy=proxy), more={"verified": verified})
    kept = drop_doubtful(mixed).eps.labelled
    assert kept[[first, second]].all() and not kept[second + 1]


def test_keep_changes_nothing(labelled):
    assert treat_doubtful(labelled, "keep") is labelled


def test_without_a_forecast_nothing_is_dropped(plain):
    assert forecast_errors(plain) is None and not doubtful_steps(plain).any()
    assert drop_doubtful(plain) is plain
    entry = treat_doubtful(plain, "drop").report["doubtful"]
    assert entry == {"action": "drop", "trajectories": None, "proxy_actions": None}
    assert "no forecast" in doubtful_sentence(entry)
    assert doubtful_report(plain, "keep") is None and doubtful_sentence(None) is None


def test_the_report_counts_what_was_dropped(labelled):
    entry = treat_doubtful(labelled, "drop").report["doubtful"]
    n = int(bad_steps(labelled).sum())
    assert entry == {"action": "drop", "trajectories": 2, "proxy_actions": n}
    assert doubtful_sentence(entry).startswith(f"the {n} proxy actions of 2 trajectories")
    none = {"action": "drop", "trajectories": 0, "proxy_actions": 0}
    assert doubtful_sentence(none).startswith("no trajectory") and doubtful_sentence(none | {"action": "keep"}) is None


def test_weight_gives_doubtful_trajectories_a_smaller_weight(labelled):
    weights = step_weights(labelled, LabelUse(when_doubtful="weight"))
    np.testing.assert_allclose(weights, np.where(bad_steps(labelled), 0.05 / 0.2, 1))


def test_label_weights_fall_with_the_predicted_variance(labelled):
    weights = step_weights(labelled, LabelUse(label_weights=True))
    proxy = labelled.labels.proxy
    assert (weights[~proxy] == 1).all()
    half_range = (labelled.eps.meta.high - labelled.eps.meta.low) / 2
    variance = ((labelled.labels.std[proxy] / half_range) ** 2).mean(1)
    np.testing.assert_allclose(weights[proxy], 0.05 / (0.05 + variance), rtol=1e-5)
    np.testing.assert_allclose(variances(labelled)[proxy], variance, rtol=1e-5)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("label_weights", [False, True])
def test_true_share_gives_that_share(labelled, share, label_weights):
    weights = step_weights(labelled, LabelUse(true_share=share, label_weights=label_weights))
    proxy = labelled.labels.proxy
    assert weights[~proxy].sum() / weights.sum() == pytest.approx(share)
    assert (np.ptp(weights[proxy]) > 0) == label_weights and (weights > 0).all()


def test_steps_without_an_action_have_no_weight(labelled):
    dropped = drop_doubtful(labelled)
    weights = step_weights(dropped, LabelUse(true_share=0.5))
    assert not weights[bad_steps(labelled)].any() and (weights[~bad_steps(labelled)] > 0).all()


def test_drawn_actions_have_the_predicted_mean_and_std(labelled):
    proxy, std = labelled.labels.proxy, np.full_like(labelled.labels.std, 0.01)
    inside = replace(
        labelled, eps=labelled.eps.with_actions(labelled.eps.act / 2), labels=labelled.labels._replace(std=std)
    )
    got = draw_actions(inside, 3)
    np.testing.assert_array_equal(got.eps.act[~proxy], inside.eps.act[~proxy])
    noise = (got.eps.act - inside.eps.act)[proxy] / 0.01
    n = noise.size
    assert abs(noise.mean()) < 5 / np.sqrt(n) and abs(noise.std() - 1) < 5 / np.sqrt(n)
    np.testing.assert_array_equal(draw_actions(inside, 3).eps.act, got.eps.act)
    assert not np.array_equal(draw_actions(inside, 4).eps.act, got.eps.act)


def test_drawn_actions_stay_in_range(labelled):
    wide = replace(labelled, labels=labelled.labels._replace(std=np.full_like(labelled.labels.std, 10)))
    act, meta = draw_actions(wide, 0).eps.act, labelled.eps.meta
    assert ((act >= meta.low) & (act <= meta.high)).all()


def test_defaults_are_in_no_hash():
    assert identifying_fields(LabelUse()) == {}
    assert identifying_fields(LabelUse("drop", true_share=0.5)) == {"when_doubtful": "drop", "true_share": 0.5}
    assert not any(value is not None for value in LabelUse().given.values())


@pytest.mark.parametrize(("change", "message"), [({"when_doubtful": "dorp"}, "drop"), ({"true_share": 1.0}, "below 1")])
def test_invalid_values_raise(change, message):
    with pytest.raises(SsorlError, match=message):
        LabelUse(**change)
