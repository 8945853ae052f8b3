"""Labels: blocks and edges, calibration, what is left untouched, saved models, and the report."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from support.samples import bits, make
from support.systems import TINY, hide, hide_after, linear

from ssorl.idm import serialise
from ssorl.idm.calibrate import calibrate, coverage, format_factors, outside, span
from ssorl.idm.fill import fill, resolve
from ssorl.idm.fit import fit, windows
from ssorl.idm.label import PROXIES, Labels, Mixture, filled, label, labeller, predict, worst_share
from ssorl.idm.model import IdmConfig, forward
from ssorl.idm.quality import report, summary
from ssorl.report.labels import plot
from ssorl.utils.display import MAX_REPR
from ssorl.utils.errors import DataError, SsorlError

WIDE = replace(TINY, past=2, future=1, members=2, differences=True, affine=True)


@pytest.fixture(scope="module")
def full():
    return linear(n=20)


@pytest.fixture(scope="module")
def ready(full):
    """A model fitted to the first ten of twenty trajectories."""
    eps = hide_after(full, 10)
    return labeller(fit(eps, WIDE), eps)


# --- blocks and edges


def test_predictions_equal_the_model_applied_to_the_whole_table(full, ready):
    idm, steps = ready.idm, np.arange(full.n_steps)
    where = windows(full, steps)
    outs = []
    for m in range(2):
        params = {k: [{n: x[m] for n, x in layer.items()} for layer in v] for k, v in idm.params.items()}
        outs.append(forward(WIDE, params, idm.inputs(full.obs), idm.diff_std, where))
    mean = np.mean([o.mean for o in outs], axis=0)
    # The variance of an equal mixture: E[x²] - E[x]².
    second = np.mean([np.exp(2 * np.float64(o.log_std)) + np.float64(o.mean) ** 2 for o in outs], axis=0)
    got = predict(idm, full, steps)
    np.testing.assert_allclose(got.mean, mean, atol=1e-5)
    np.testing.assert_allclose(got.std, np.sqrt(second - np.float64(mean) ** 2), rtol=1e-3)


@pytest.mark.parametrize("block", [256, 512, 599])
def test_blocks_make_no_difference(full, ready, block):
    steps = np.arange(full.n_steps)  # 600: the last block is not full
    one, many = predict(ready.idm, full, steps, block=600), predict(ready.idm, full, steps, block=block)
    np.testing.assert_allclose(many.mean, one.mean, atol=1e-6)
    np.testing.assert_allclose(many.std, one.std, atol=1e-6)


@pytest.mark.parametrize("steps", [[0], [29], [30], [599], [0, 29, 30, 31, 299, 598], range(7, 600, 13)])
def test_stray_steps_get_what_they_get_in_company(full, ready, steps):
    together = predict(ready.idm, full, np.arange(full.n_steps))
    alone = predict(ready.idm, full, np.array(steps))
    np.testing.assert_allclose(alone.mean, together.mean[list(steps)], atol=1e-6)
    np.testing.assert_allclose(alone.std, together.std[list(steps)], atol=1e-6)


def test_other_trajectories_do_not_matter(full, ready):
    """A window never reaches over the edge of its trajectory."""
    noise = np.random.default_rng(0).normal(size=full.obs.shape).astype(np.float32)
    noise[full.start[5] + 5 : full.start[6] + 6] = 0
    own = np.arange(full.start[5], full.start[6])
    a, b = predict(ready.idm, full, own), predict(ready.idm, replace(full, obs=full.obs + noise), own)
    assert np.array_equal(a.mean, b.mean) and np.array_equal(a.std, b.std)
    c = predict(ready.idm, full[5], np.arange(30))
    np.testing.assert_allclose(c.mean, a.mean, atol=1e-6)


def test_no_steps_are_no_predictions(full, ready):
    out = predict(ready.idm, full, np.array([], np.int64))
    assert out.mean.shape == out.std.shape == (0, 2)


# --- labels


GAPS = {
    "one step": [77],
    "first and last": [0, 599],
    "every other": range(0, 600, 2),
    "all but one": [i for i in range(600) if i != 300],
    "all": range(600),
    "none": [],
}


@pytest.mark.parametrize("gaps", GAPS)
def test_true_actions_stay_to_the_bit_and_gaps_are_filled(full, ready, gaps):
    missing = np.isin(np.arange(600), list(GAPS[gaps]))
    out = label(ready, hide(full, missing))
    assert bits(out.act[~missing]) == bits(full.act[~missing])
    assert (out.std[~missing] == 0).all() and not out.unseen[~missing].any()
    assert np.array_equal(out.proxy, missing)
    assert np.isfinite(out.act).all() and (out.std[missing] > 0).all()
    if missing.any():
        want = predict(ready.idm, full, np.flatnonzero(missing))
        np.testing.assert_allclose(out.act[missing], np.clip(want.mean, -1, 1), atol=1e-6)
        np.testing.assert_allclose(out.std[missing], want.std * np.array(ready.calibration.scale), rtol=1e-5)


def test_proxies_lie_in_the_range():
    full = linear(n=20, low=-0.3, high=1.1)  # a range that scaling back oversteps by a rounding error
    eps = hide_after(full, 10)
    wild = replace(eps, obs=eps.obs * np.where(np.arange(len(eps.obs)) < 310, 1, 50)[:, None].astype(np.float32))
    fitted = labeller(fit(eps, TINY), eps)
    out = label(fitted, wild)
    new = out.act[out.proxy]
    low, high = np.float32(-0.3), np.float32(1.1)
    assert new.min() == low and new.max() == high and out.unseen.mean() > 0.3  # the bounds are reached, not passed
    near = label(fitted, eps)
    assert np.abs(near.act - full.act).mean() < 0.2
    raw = predict(fitted.idm, eps, np.flatnonzero(~eps.labelled)).std
    np.testing.assert_allclose(near.std[near.proxy], raw * np.array(fitted.calibration.scale) * 0.7, rtol=1e-5)


def test_states_unlike_any_labelled_are_flagged():
    eps = hide_after(linear(n=4), 2)
    known = span(eps)
    steps = np.arange(eps.n_steps)
    assert not outside(known, eps, steps[:60]).any()
    moved = replace(eps, obs=eps.obs.copy())
    moved.obs[100, 0] = (
        50.0  # the state after step 96 and before step 97 (three trajectories before it: row = step + 3)
    )
    flags = outside(known, moved, steps)
    assert set(steps[flags]) >= {96, 97} and flags.sum() <= outside(known, eps, steps).sum() + 2
    width = known.high[0, 0] - known.low[0, 0]
    for beyond, flagged in ((0.04, False), (0.06, True)):
        one = replace(eps, obs=np.tile(eps.obs[:1], (len(eps.obs), 1)))
        one.obs[:, 0] = known.high[0, 0] + beyond * width
        box = known._replace(low=np.minimum(known.low, -1e-3), high=np.maximum(known.high, 1e-3))
        assert outside(box, one, steps[:1])[0] == flagged


# --- calibration


def test_a_right_deviation_is_left_alone():
    error = np.random.default_rng(0).normal(size=(20_000, 2)) * [0.1, 3.0]
    found = calibrate(error, np.full(error.shape, [0.1, 3.0]))
    assert found.scale == (1, 1) and found.before == found.after
    assert found.before == pytest.approx((0.5, 0.8, 0.95), abs=0.01)


@pytest.mark.parametrize("factor", [0.2, 0.8, 1.5, 10])
def test_a_wrong_deviation_is_scaled(factor):
    error = np.random.default_rng(0).normal(size=(20_000, 2))
    found = calibrate(error, np.full(error.shape, factor))
    assert found.scale == pytest.approx((1 / factor,) * 2, rel=0.03)
    assert found.after == pytest.approx((0.5, 0.8, 0.95), abs=0.01)
    assert coverage(error, np.full(error.shape, factor)) == found.before != found.after


def test_calibration_never_makes_it_worse():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        error, std = rng.standard_t(1.5, (rng.integers(1, 50), 2)), rng.uniform(0.1, 3, 2)
        found = calibrate(error, np.broadcast_to(std, error.shape))
        gap = [
            max(abs(c - level) for c, level in zip(x, found.levels, strict=True)) for x in (found.before, found.after)
        ]
        assert gap[1] <= gap[0] and found.scale[0] == found.scale[1]  # too few steps for each to be judged alone


def test_each_dimension_has_a_factor_of_its_own():
    """A gripper is off by more than the model thinks, a joint by less: each one's intervals become right."""
    error = np.random.default_rng(0).normal(size=(5_000, 3)) * [0.3, 0.05, 0.1]
    std = np.full(error.shape, 0.1)
    found = calibrate(error, std)
    assert found.scale == pytest.approx((3, 0.5, 1), rel=0.06)
    for i in range(3):
        assert coverage(error[:, i], std[:, i] * found.scale[i]) == pytest.approx((0.5, 0.8, 0.95), abs=0.02)
    few = calibrate(error[:150], std[:150])
    assert len(set(few.scale)) == 1
    assert format_factors(found.scale) == f"{found.scale[1]:.2f}–{found.scale[0]:.2f}"
    assert format_factors((1.0, 1.0)) == ""


def test_actions_clipped_at_a_limit_do_not_shrink_the_std_of_the_others():
    """Three quarters are right to the bit because they were cut; the rest is half as sure again as it should be."""
    error = np.random.default_rng(0).normal(0, 0.6, (20_000, 1))
    error[:15_000] = 0
    found = calibrate(error, np.full_like(error, 0.4))
    assert found.scale == pytest.approx((1.5,), rel=0.03)
    assert found.after == coverage(error, np.full_like(error, 0.4 * found.scale[0]))  # of all steps
    assert calibrate(np.zeros((9, 1)), np.ones((9, 1))).scale == (1,)


def test_a_constant_dimension_does_not_change_the_std_of_the_others(ready, monkeypatch):
    """It is predicted with ease; the other is half as sure again as it should be."""
    rng, n = np.random.default_rng(0), 30_000
    act = np.column_stack([rng.uniform(-0.5, 0.5, n), np.full(n, 0.1)]).astype(np.float32)
    off = rng.normal(0, [0.06, 1e-6], (n, 2)).astype(np.float32)
    eps = replace(make([n // 4] * 4), act=act)
    monkeypatch.setattr("ssorl.idm.label.held_out", lambda *_: np.arange(n))
    monkeypatch.setattr("ssorl.idm.label.predict", lambda *_: Mixture(act + off, np.full_like(act, 0.04)))
    got = labeller(ready.idm, eps)
    assert got.taught.variance[1] < 1e-20  # summed in float32 it would seem to move
    assert got.calibration is not None and got.calibration.scale == (pytest.approx(1.5, rel=0.03), 1)
    assert got.calibration.after == pytest.approx((0.5, 0.8, 0.95), abs=0.01)
    labels = Labels(act + off, np.full_like(act, 0.06), np.ones(n, bool), np.zeros(n, bool))
    assert report(eps, labels, got, act)["coverage"]["truth"] == pytest.approx((0.5, 0.8, 0.95), abs=0.01)


def test_the_worst_share_by_hand():
    error = np.array([[3.0, 4.0]] + [[1.0, 0.0]] * 75 + [[0.0, 0.0]] * 24)  # 25 + 75 x 1; the worst 5: 25 + 4
    assert worst_share(error) == pytest.approx(29 / 100)
    assert worst_share(np.zeros((3, 2))) == 0


# --- saved models


def test_a_saved_model_labels_to_the_bit(tmp_path, full, ready):
    serialise.save(ready, tmp_path / "m")
    again = serialise.load(tmp_path / "m")
    eps = hide_after(full, 3)
    for a, b in zip(label(ready, eps), label(again, eps), strict=True):
        assert a.tobytes() == b.tobytes()
    assert again.idm.config == WIDE and again.meta == ready.meta and again.taught == ready.taught
    assert again.calibration == ready.calibration
    assert again.validation.mse.tobytes() == ready.validation.mse.tobytes()
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["idm.json", "weights.npz"]
    with np.load(tmp_path / "m" / "weights.npz", allow_pickle=False) as arrays:
        assert all(arrays[name].dtype.kind in "fi" for name in arrays.files if name != "about.json")


def edit(path, change) -> None:
    about = json.loads((path / "idm.json").read_text())
    del about["sha256"]  # without a checksum it is taken as it is
    change(about)
    (path / "idm.json").write_text(json.dumps(about))


def put(path, **arrays) -> None:
    with np.load(path / "weights.npz") as old:
        np.savez(path / "weights.npz", **{**old, **{k.replace("__", "/"): v for k, v in arrays.items()}})


DAMAGE = {
    "no json": lambda p: (p / "idm.json").unlink(),
    "no weights": lambda p: (p / "weights.npz").unlink(),
    "not json": lambda p: (p / "idm.json").write_text("{"),
    "other json": lambda p: (p / "idm.json").write_text("[1]"),
    "empty json": lambda p: (p / "idm.json").write_text("{}"),
    "cut weights": lambda p: (p / "weights.npz").write_bytes((p / "weights.npz").read_bytes()[:2000]),
    "foreign weights": lambda p: np.savez(p / "weights.npz", x=np.zeros(3)),
    "later version": lambda p: edit(p, lambda d: d.update(version=99)),
    "unknown setting": lambda p: edit(p, lambda d: d["config"].update(colour="red")),
    "lacking setting": lambda p: edit(p, lambda d: d["config"].pop("past")),
    "text for a number": lambda p: edit(p, lambda d: d["config"].update(past="1")),
    "other width": lambda p: edit(p, lambda d: d["config"].update(hidden=[32, 33])),
    "absurd width": lambda p: edit(p, lambda d: d["config"].update(hidden=[10**15, 32])),
    "absurd window": lambda p: edit(p, lambda d: d["config"].update(past=10**12)),
    "no members": lambda p: edit(p, lambda d: d["config"].update(members=0)),
    "other members": lambda p: edit(p, lambda d: d["config"].update(members=3)),
    "other state size": lambda p: edit(p, lambda d: d.update(n_obs=3)),
    "other action size": lambda p: edit(p, lambda d: d.update(n_act=3)),
    "negative size": lambda p: edit(p, lambda d: d.update(n_obs=-2)),
    "infinite range": lambda p: edit(p, lambda d: d["data"].update(act_low=[-1e400, 0])),
    "scale of nought": lambda p: edit(p, lambda d: d["calibration"].update(scale=[1.0, 0.0])),
    "one factor of two": lambda p: edit(p, lambda d: d["calibration"].update(scale=[1.0])),
    "wrong variances": lambda p: edit(p, lambda d: d["taught"].update(variance=[1.0])),
    "wrong validation": lambda p: edit(p, lambda d: d["validation"].update(mse=[1.0])),
    "other shape": lambda p: put(p, params__mean__0__b=np.zeros((2, 5), np.float32)),
    "other type": lambda p: put(p, params__mean__0__b=np.zeros((2, 32), np.float64)),
    "not finite": lambda p: put(p, diff_std=np.array([np.nan, 1], np.float32)),
    "no deviation": lambda p: put(p, scaler__std=np.zeros(2, np.float32)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_folders_get_one_sentence(tmp_path, ready, damage):
    serialise.save(ready, tmp_path / "m")
    DAMAGE[damage](tmp_path / "m")
    with pytest.raises(SsorlError) as refused:
        serialise.load(tmp_path / "m")
    text = str(refused.value)
    assert "\n" not in text and "m: " in text and len(text) < 500
    assert "save-idm" in text or "again" in text


def test_a_model_whose_dimensions_share_a_factor_is_read(tmp_path, ready):
    serialise.save(ready, tmp_path / "m")
    edit(tmp_path / "m", lambda d: d["calibration"].update(scale=1.5))  # as older versions wrote it
    assert serialise.load(tmp_path / "m").calibration.scale == (1.5, 1.5)


def test_pickled_weights_are_never_unpickled(tmp_path, ready):
    serialise.save(ready, tmp_path / "m")
    put(tmp_path / "m", diff_std=np.array([print, 1], object))
    with pytest.raises(SsorlError, match="unpickled"):
        serialise.load(tmp_path / "m")


def test_a_model_refuses_another_robot(ready):
    with pytest.raises(DataError, match=r"states of size 3 .* size 2"):
        label(ready, make())
    with pytest.raises(DataError, match=r"actions of size 1 .* size 2"):
        label(ready, make(n_obs=2, n_act=1))
    with pytest.raises(DataError, match=r"range .* is not that of"):
        label(ready, make(n_obs=2, high=3))
    # A range that was only seen in data may differ some, but not by other units.
    seen = replace(ready, meta=replace(ready.meta, act_range="assumed"))
    for kind, high, fits in (("declared", 1.5, True), ("declared", 50, False), ("inferred", 50, False)):
        eps = make(n_obs=2, high=high, act_range=kind)
        eps = replace(eps, meta=replace(eps.meta, act_low=(-high,) * 2, act_high=(high,) * 2))
        if fits:
            assert np.isfinite(label(seen, eps).act).all()
        else:
            with pytest.raises(DataError, match=r"range .* is not that of"):
                label(seen, eps)


def test_a_model_of_small_actions_knows_its_own(ready):
    """[-1, 1] was assumed of data that has no action, or none that is small: it says nothing of their units."""
    small = replace(ready, meta=replace(ready.meta, act_low=(-0.2, -0.2), act_high=(0.2, 0.2), act_range="inferred"))
    for size, fits in ((None, True), (0.3, True), (0.9, False)):
        eps = make(n_obs=2, act_range="assumed")
        act = np.full_like(eps.act, np.nan)
        if size:
            act[:3] = size
        eps = eps.with_actions(act)
        if fits:
            assert np.isfinite(label(small, eps).act).all()
        else:
            with pytest.raises(DataError, match=r"range .* is not that of"):
                label(small, eps)


def test_a_model_labels_data_without_an_action_size(ready):
    bare = make(n_obs=2, n_act=0, act_range="assumed")
    labels = label(ready, bare)
    out = filled(bare, labels, ready)
    assert out.act.shape == (bare.n_steps, 2) and out.labelled.all() and labels.proxy.all()
    assert out.meta.act_low == (-1, -1) and out.meta.act_range == "declared"
    assert "18 of 18 actions are proxies" in out.meta.notes[-1]


# --- choice of the model, and the report


def test_names_and_changes_give_a_configuration():
    from ssorl.idm import IDMS

    assert resolve("paper") == IDMS["paper"] == IdmConfig()
    assert resolve("robust", "quick") == resolve("robust-quick") == IDMS["robust-quick"]
    assert resolve("robust", "paper", steps=7, members=2) == replace(IDMS["robust"], steps=7, members=2)


def test_an_unknown_preset_raises():
    with pytest.raises(SsorlError, match=r"'quik' is no preset of inverse dynamics models; did you mean quick\?"):
        resolve("robust", "quik")


@pytest.mark.parametrize("seed", [-1, 2**32, 2**70, 0.5])
def test_an_invalid_seed_raises(full, ready, seed):
    with pytest.raises(SsorlError, match=r"--seed is .*; give a whole number from 0 up and below 2\*\*32"):
        fill(hide_after(full, 10), ready, seed)


def test_nothing_to_fill_and_nothing_to_learn_from_are_refused(full):
    with pytest.raises(DataError, match="every step has an action already"):
        fill(full, TINY)
    with pytest.raises(DataError, match="no step has an action"):
        fill(hide(full, slice(None)), TINY)


@pytest.fixture(scope="module")
def quality(full, ready):
    eps = hide_after(full, 10)
    return report(eps, label(ready, eps), ready, truth=full.act)


def test_the_report_by_hand(full, ready, quality):
    eps = hide_after(full, 10)
    out = label(ready, eps)
    error = (out.act - full.act)[300:]
    assert quality["truth"]["mse"] == pytest.approx(np.mean(error**2), rel=1e-5)
    assert quality["truth"]["mse_by_dimension"] == pytest.approx(np.mean(error**2, axis=0), rel=1e-5)
    each = np.mean(error.reshape(10, 30, 2) ** 2, axis=(1, 2))
    assert [w["trajectory"] for w in quality["worst"]] == list(10 + np.argsort(-each))
    assert quality["worst"][0]["rmse"] == pytest.approx(np.sqrt(each.max()), rel=1e-5)
    assert quality["data"]["proxy_steps"] == 300 and quality["data"]["labelled_steps"] == 300
    assert sum(b["trajectories"] for b in quality["by_return"]) == 10
    returns = [b["return"] for b in quality["by_return"]]
    assert returns == sorted(returns) and returns == pytest.approx(sorted(full.returns[10:]))
    weighted = np.mean([b["rmse"] ** 2 for b in quality["by_return"]])
    assert weighted == pytest.approx(np.mean(error**2), rel=1e-5)
    assert quality["model"]["labelled_returns"] == [full.returns[:10].min(), full.returns[:10].max()]
    assert quality["model"]["labelled_variance"] == pytest.approx(full.act[:300].var(0), rel=1e-4)
    json.dumps(quality, allow_nan=False)


def test_errors_are_shares_of_the_action_range(ready):
    """The same system in another action range has the same report."""
    a, b = linear(n=20), linear(n=20, low=0, high=5)
    first, second = (fill(hide_after(x, 10), TINY, truth=x.act).report for x in (a, b))
    assert second["truth"]["mse"] == pytest.approx(first["truth"]["mse"], rel=0.05)
    assert second["proxies"]["std"] == pytest.approx(first["proxies"]["std"], rel=0.05)
    assert second["coverage"]["truth"] == pytest.approx(first["coverage"]["truth"], abs=0.02)


def test_actions_that_are_proxies_are_not_called_true(full, ready, quality):
    eps = hide_after(full, 10)
    assert "300 true actions are unchanged" in summary(quality)[0] and "against the true actions" in summary(quality)[2]
    note = f"200 of 600 {PROXIES}"
    again = report(eps.with_meta(notes=(note,)), label(ready, eps), ready, truth=full.act)
    assert again["data"]["proxies_before"] == [note] and quality["data"]["proxies_before"] == []
    lines = summary(again)
    assert f"300 actions are unchanged, but may be proxies themselves ({note})" in lines[0]
    assert "measured against actions that may be proxies too" in lines[2]
    assert not any("true action" in line or "truth" in line for line in lines)


def test_labels_no_better_than_a_constant_prediction_get_a_warning(quality):
    words = "no better than a constant prediction"
    assert not any(words in line for line in summary(quality))
    worse = {**quality, "model": {**quality["model"], "labelled_variance": [quality["validation"]["mse"] * 0.9] * 2}}
    worse["validation"] = {**quality["validation"], "mse": 0.2}
    assert words in summary(worse)[2] and "more labelled trajectories" in summary(worse)[2]
    still = {**quality, "model": {**quality["model"], "labelled_variance": [0.0, 0.0]}}  # actions that hardly vary
    still["validation"] = {**quality["validation"], "mse": 1e-6}
    assert not any(words in line for line in summary(still))


def test_truth_changes_the_report_and_no_label(full):
    eps = hide_after(full, 10)
    a = fill(eps, TINY, truth=full.act)
    b = fill(eps, TINY, truth=full.act[::-1].copy())
    assert a.labels.act.tobytes() == b.labels.act.tobytes() and a.labels.std.tobytes() == b.labels.std.tobytes()
    assert a.report["truth"]["mse"] < b.report["truth"]["mse"]


@pytest.mark.parametrize("known", ["truth", "no truth", "nothing held out"])
def test_the_picture_is_drawn(tmp_path, quality, known):
    quality = quality if known == "truth" else {**quality, "truth": None}
    if known == "nothing held out":
        quality = {**quality, "validation": None, "coverage": None}
    plot(quality, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    assert 1 <= len(summary(quality)) <= 6


def test_reprs_are_short(full, ready):
    done = fill(hide_after(full, 10), ready)
    for value, name in ((done, "LabelledData"), (done.labels, "Labels"), (ready, "Labeller"), (ready.idm, "Idm")):
        assert repr(value).startswith(f"{name}(") and len(repr(value)) <= MAX_REPR
        assert f"<b>{name}</b>" in value._repr_html_()


def test_self_training_is_reported_round_by_round(full):
    done = fill(hide_after(full, 10), replace(TINY, members=2), rounds=2, truth=full.act)
    assert [r["round"] for r in done.report["rounds"]] == [0, 1, 2]
    assert [r["added_steps"] for r in done.report["rounds"]] == [0, 150, 150]
    assert all(len(r["validation_error"]) == 2 and r["mse"] < 0.1 for r in done.report["rounds"])
    assert bits(done.eps.act[:300]) == bits(full.act[:300])
