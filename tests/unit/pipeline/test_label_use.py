"""How SS uses proxy actions: options of a run from the plan to result.json, the page and the terminal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.episodes import CHOICES, SMALL
from support.systems import TINY

import ssorl
from ssorl.agents import make
from ssorl.agents.windows import Windows
from ssorl.cli.narrate import RunNarrator
from ssorl.idm import outlook, worth
from ssorl.idm.forecast import Forecast
from ssorl.idm.model import IdmConfig
from ssorl.idm.worth import LabelUse
from ssorl.pipeline.algorithm1 import hide_actions, ss_run, training_runs, variant_runs
from ssorl.pipeline.plan import SplitKey, as_config, make_plan
from ssorl.report.page import page
from ssorl.report.schema import check
from ssorl.report.summary import caveats
from ssorl.utils.errors import SsorlError

SPLIT = {"fraction": 0.2, "env": "none"}


MODEL = replace(TINY, hidden=(8,), steps=60, validate_every=30)


@pytest.fixture(scope="module", autouse=True)
def networks_forecast():
    """Give small networks a forecast, by default of trajectories that are all good enough."""

    def predict_error(eps, ready, seed=0, progress=None, data=None):
        unknown = eps.labelled_share < 1
        each = np.where(unknown, np.linspace(0.01, 0.04, len(eps)), np.nan)
        return Forecast(0.03, 0.02, 0.04, np.full(eps.n_act, 0.03), each, 0.01, 0.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IdmConfig, "forecast", True, raising=False)
        patch.setattr(outlook, "predict_error", predict_error)
        yield


@pytest.fixture(scope="module")
def task(eps):
    return ssorl.split(eps, 0.2)


@pytest.fixture(scope="module")
def labelled(task):
    return ssorl.label(task, ssorl.fit_idm(task, MODEL, preset=None, quiet=True), quiet=True)


def run_of(labelled, length=1, **use):
    return ss_run(labelled, 0, None, LabelUse(**use), length)


# The training of SS ----------------------------------------------------------------------------------------


def test_defaults_train_on_every_step_as_before(task, labelled):
    run = variant_runs(task, labelled, 0)["ss"]
    assert run.eps is labelled.eps and run.steps is None
    assert run_of(labelled)[1:] == (0, None)


def test_baseline_and_oracle_do_not_depend_on_the_use_of_proxy_actions(task, labelled):
    use = LabelUse("drop", label_weights=True, true_share=0.5, label_samples=True)
    plain, other = variant_runs(task, labelled, 0), variant_runs(task, labelled, 0, None, use)
    for variant in ("baseline", "oracle"):
        assert plain[variant].eps is other[variant].eps
        np.testing.assert_array_equal(plain[variant].steps, other[variant].steps)


def test_drop_trains_on_the_other_trajectories(labelled, monkeypatch):
    errors = worth.forecast_errors(labelled)
    limit = float(np.nanmedian(errors))
    monkeypatch.setattr(worth, "POOR", limit)
    bad = labelled.labels.proxy & (np.nan_to_num(errors) > limit)[labelled.eps.episode_of_step]
    assert bad.any() and not bad[labelled.labels.proxy].all()
    run = run_of(labelled, when_doubtful="drop")
    np.testing.assert_array_equal(run.eps.labelled, ~bad)
    assert run.steps is None


@pytest.mark.parametrize("agent", ["bc", "iql", "td3bc", "dt"])
def test_true_share_is_the_share_of_the_pool(task, labelled, agent):
    view = make(agent).view
    length = view.length if isinstance(view, Windows) else 1
    run = run_of(labelled, length, true_share=0.6)
    true = task.data.labelled[run.steps]
    assert (length > 1) == (agent == "dt") and abs(true.mean() - 0.6) < 0.01
    plan = make_plan(task.whole, agent, MODEL, true_share=0.6, variants=("baseline", "ss"), **SPLIT)
    same = training_runs(plan, SplitKey(50, 0), task, labelled)[plan.training_key("ss", SplitKey(50, 0))]
    assert abs(task.data.labelled[same.steps].mean() - 0.6) < 0.01


def test_certain_and_weights_act_together(labelled):
    run = ss_run(labelled, 0, 0.5, LabelUse(label_weights=True, label_samples=True))
    assert run.steps is not None and run.eps.labelled[run.steps].all()
    proxy = labelled.labels.proxy
    assert run.eps.labelled[proxy].mean() == pytest.approx(0.5, abs=0.01)
    assert not np.array_equal(run.eps.act[proxy & run.eps.labelled], labelled.eps.act[proxy & run.eps.labelled])


# Plans -----------------------------------------------------------------------------------------------------


def test_the_config_of_a_plan_at_the_defaults_has_no_new_key(eps):
    plain = as_config(make_plan(eps, "bc", MODEL, **SPLIT))
    assert not {"when_doubtful", "label_weights", "true_share", "label_samples"} & set(plain)
    other = as_config(make_plan(eps, "bc", MODEL, when_doubtful="drop", true_share=0.5, **SPLIT))
    assert other == plain | {"when_doubtful": "drop", "true_share": 0.5}


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"when_doubtful": "dorp"}, "did you mean drop"),
        ({"true_share": 2}, "--true-share is 2"),
        ({"label_weights": True, "variants": ("baseline",)}, "--label-weights has no effect without"),
        ({"label_samples": True, "agent": "dt-joint"}, "--label-samples has no effect on dt-joint"),
    ],
)
def test_options_without_effect_raise(eps, choices, message):
    with pytest.raises(SsorlError, match=message):
        make_plan(eps, **{"agent": "bc", **SPLIT, **choices})


def test_a_model_without_forecast_raises(eps, task, labelled, monkeypatch):
    monkeypatch.delattr(IdmConfig, "forecast")
    with pytest.raises(SsorlError, match="needs a forecast"):
        make_plan(eps, "bc", MODEL, when_doubtful="weight", **SPLIT)
    with pytest.raises(SsorlError, match="needs a forecast"):
        ssorl.label(task, labelled.ready, when_doubtful="drop", quiet=True)


# Runs ------------------------------------------------------------------------------------------------------


def test_a_run_says_what_it_did_with_doubtful_trajectories(eps, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(worth, "POOR", 0.0)
    choices = {**CHOICES, "idm": MODEL, "variants": ("baseline", "ss"), "seeds": 2}
    plan = make_plan(eps, when_doubtful="drop", **choices)
    with RunNarrator(eps, plan) as narrator:
        result = ssorl.run(eps, tmp_path / "run", narrator, when_doubtful="drop", **choices).content
    hidden = [hide_actions(eps, ssorl.data.coupled(eps, 0.2, 50, seed)).data for seed in range(2)]
    entry = result["idm"]["doubtful"]
    assert entry["action"] == "drop" and result["config"]["when_doubtful"] == "drop"
    assert entry["trajectories"] == [int((data.labelled_share < 1).sum()) for data in hidden]
    assert entry["proxy_actions"] == [int((~data.labelled).sum()) for data in hidden]
    check(result)
    text = capsys.readouterr().err
    assert text.index("forecast label error") < text.index("are left out") < text.index("4 trained")
    assert any("are left out (seed 0)" in line for line in caveats(result))
    html = (tmp_path / "run" / "report.html").read_text()
    assert "are left out" in html and "Before training, the forecast label error" in html
    # Every proxy action is dropped, so SS trains on the baseline's steps.
    scores = result["scores"]
    assert scores["ss"]["returns"] == scores["baseline"]["returns"]
    page(tmp_path / "run")


def test_a_resumed_run_drops_the_same_trajectories(eps, tmp_path, monkeypatch):
    """The forecast is read from the stored report of the labels."""
    choices = {**CHOICES, "idm": MODEL, "variants": ("ss",), "when_doubtful": "weight", "label_weights": True}
    first = ssorl.run(eps, tmp_path / "run", **choices).content
    for name in ("result.json", "evaluation.npz"):
        (tmp_path / "run" / name).unlink()
    again = ssorl.run(eps, tmp_path / "run", **choices).content
    assert again["scores"] == first["scores"] and again["idm"] == first["idm"]


# Steps -----------------------------------------------------------------------------------------------------


def test_label_drops_doubtful_trajectories(task, labelled, monkeypatch):
    monkeypatch.setattr(worth, "POOR", 0.0)
    got = ssorl.label(task, labelled.ready, when_doubtful="drop", quiet=True)
    np.testing.assert_array_equal(got.eps.labelled, task.data.labelled)


@pytest.mark.parametrize("choice", ["weight", "dorp"])
def test_label_refuses_other_choices(task, labelled, choice):
    with pytest.raises(SsorlError, match="choose keep or drop"):
        ssorl.label(task, labelled.ready, when_doubtful=choice, quiet=True)


def test_train_takes_weights(task):
    weights = task.data.labelled.astype(float)
    weighted = ssorl.train(task.whole, "bc", weights=weights, quiet=True, **SMALL)
    same = ssorl.train(task.data, "bc", weights=weights, quiet=True, **SMALL)
    obs = task.whole.obs[:5]
    np.testing.assert_array_equal(weighted(obs), same(obs))  # hidden actions have weight 0
