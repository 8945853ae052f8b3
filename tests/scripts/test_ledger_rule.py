"""The decision rule of docs/ledger-rule.md: scripts/ledger_rule.py and the stored Monte Carlo of its power."""

import importlib
import json

import numpy as np
import pytest
from support.paths import ROOT


@pytest.fixture
def rule(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("ledger_rule")


def test_p_values_against_scipy(rule):
    from scipy import stats

    values = np.random.default_rng(0).normal(3, 4, (5, 7))
    confirmed, refuted = rule.p_values("far", values)
    np.testing.assert_allclose(confirmed, stats.ttest_1samp(values, 5, axis=1, alternative="greater").pvalue)
    np.testing.assert_allclose(refuted, stats.ttest_1samp(values, 10, axis=1, alternative="less").pvalue)


@pytest.mark.parametrize(
    ("kind", "mean", "verdict"),
    [
        ("better", 8, 1),
        ("better", 0, -1),
        ("better", -8, -1),
        ("far", 12, 1),
        ("far", 2, -1),
        ("reach", 0, 1),
        ("reach", -9, -1),
        ("alike", 0, 1),
        ("alike", 9, -1),
        ("alike", -9, -1),
    ],
)
def test_a_precise_estimate_is_decided(rule, kind, mean, verdict):
    values = mean + np.array([-0.2, 0.1, 0.3, -0.2, 0.0, 0.1])
    assert rule.verdicts(rule.p_values(kind, values)[None])[0] == verdict


def test_wide_values_and_a_single_seed_decide_nothing(rule):
    assert rule.verdicts(rule.p_values("better", np.array([-40.0, 60.0, 5.0, 9.0]))[None])[0] == 0
    assert (rule.p_values("better", np.array([50.0])) == 1).all()
    assert (rule.sequential("better", np.array([50.0, 50.1, 50.2])) == 1).all(), "no look before four seeds"


def test_holm_stops_at_the_first_that_fails(rule):
    p = np.array([0.03, 0.001, 0.026, 0.012])
    assert rule.holm(p, 0.05).tolist() == [False, True, False, True]
    assert rule.holm(np.array([0.01, 0.04]), 0.05).tolist() == [True, True]


@pytest.mark.parametrize("kind", ["better", "far", "reach", "alike"])
def test_looks_keep_the_level_at_the_truths_where_a_verdict_is_barely_false(rule, kind):
    rng, n, ends = np.random.default_rng(1), 20_000, rule.KINDS[kind]
    barely = ends.high if kind == "alike" else ends.low
    confirmed, _ = rule.sequential(kind, barely + 6 * rng.standard_normal((n, 10)))
    _, refuted = rule.sequential(kind, (0 if kind == "alike" else ends.high) + 6 * rng.standard_normal((n, 10)))
    for p in (confirmed, refuted):  # three standard errors of the simulation above the level
        assert (p <= 0.05).mean() <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / n)


def test_seeds_count_only_where_every_place_has_them(rule):
    assert rule.by_seed({"a": {3: 1.0, 4: 5.0}, "b": {3: 3.0}}) == {3: 2.0}
    assert rule.by_seed({}) == {}


def test_the_estimands_have_the_places_that_they_name(rule):
    """With a result for every cell of the grid; claim 2 and 12 depend on oracles and their steadiness."""
    from ssorl.study.paper import STUDIES

    every = {cell.hash: rule.Result(50.0, 1.0, 50.0) for cell in STUDIES["claims"].cells(rule.SCALE)}
    for one in [*rule.CLAIMS.values(), *rule.PARTS.values()]:
        table = one.table(every, rule.FIRST_FRESH)
        assert len(table) == one.places, one.name
        assert all(set(each) == {0, 1, 2} for each in table.values())
        assert set(rule.by_seed(table).values()) == {0.0}


def test_the_stored_power_keeps_its_level():
    told = json.loads((ROOT / "results" / "ledger-power.json").read_text())
    rates = [x for family in ("claims", "parts") for by in told[f"{family}_any_false"].values() for x in by.values()]
    assert len(rates) == 16
    assert max(rates) <= told["config"]["family"]
    assert 2 * told["config"]["family"] == told["config"]["level"] == 0.05
