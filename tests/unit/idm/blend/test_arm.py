"""On an arm, the blend is as good as the best linear model: `benchmarks/arm_table.py`, made small."""

from __future__ import annotations

import importlib.util

import pytest
from support.paths import ROOT

from ssorl.data.collections import arm
from ssorl.idm.blend.config import BlendConfig

SMALL = BlendConfig(rounds=20, members=1, hidden=(16,), steps=60)


@pytest.fixture(scope="module")
def table():
    spec = importlib.util.spec_from_file_location("arm_table", ROOT / "benchmarks" / "arm_table.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("lag", [0, 2])
def test_labels_are_as_good_as_the_best_linear_model(table, lag):
    case = table.case(lag, seed=0)
    best = table.best_linear(case, lag + 3)
    found, facts = table.label_errors(case, SMALL, seed=0)
    assert facts["window"]["lag"] == -lag
    for part in ("whole", "overall"):
        assert found[part] <= table.LIMIT * best[part]


@pytest.mark.parametrize("lag", arm.LAGS)
def test_the_lag_is_found(table, lag):
    assert [table.lag_found(lag, seed) for seed in range(3)] == [lag] * 3


def test_least_squares_is_exact_without_noise_if_the_window_holds_the_movement(table, monkeypatch):
    monkeypatch.setattr(arm, "NOISE", 0.0)
    case = table.case(2, seed=0, n_episodes=8)
    assert table.errors(case, table.linear(case, 0, 2))["whole"] < 1e-10
    assert table.errors(case, table.linear(case, 0, 1))["whole"] > 1e-6
