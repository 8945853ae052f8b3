"""Statistics of many runs, compared with results by hand and by rliable."""

import numpy as np
import pytest

from ssorl.study import statistics
from ssorl.study.results import StudyResults, strata
from ssorl.utils import bootstrap
from ssorl.utils.errors import SsorlError

# Results of rliable 1.2.0 for the scores below (benchmarks/against_rliable.py): estimate and 95 % interval of 50,000
# resamples (2,000 for the probability of improvement) after np.random.seed(0).
RLIABLE = {
    "iqm": (60.54381250000001, 57.031121875000004, 64.52801718750001),
    "mean": (62.38603333333333, 59.553286666666665, 65.22279999999999),
    "median": (59.3073, 54.6981, 64.71663),
    "improvement": (0.6866666666666666, 0.5466666666666667, 0.82),
}


def scores(phase, n_tasks=6, n_seeds=5):
    """Return the scores of benchmarks/against_rliable.py, [tasks, seeds], made without a random generator."""
    task, seed = np.meshgrid(np.arange(n_tasks), np.arange(n_seeds), indexing="ij")
    return np.round(40 + 9 * task + 12 * np.sin(7.3 * task + 2.9 * seed**1.5 + phase), 3)


def point(statistic, *groups):
    return float(statistic(*([np.asarray(s, float)[None] for s in group] for group in groups))[0])


def test_interquartile_mean_by_hand():
    # Eight numbers: two are cut off at each end, (3 + 4 + 5 + 6) / 4.
    assert point(statistics.iqm, [[1, 2, 3, 4], [5, 6, 7, 800]]) == 4.5
    # Five: a quarter of five is one, (2 + 3 + 10) / 3; three: none is cut off.
    assert point(statistics.iqm, [[1, 2, 3, 10, 99]]) == 5
    assert point(statistics.iqm, [[0, 1, 5]]) == 2
    # Episodes count individually: [2 seeds, 2 episodes] is four numbers, of which one is cut off at each end.
    assert point(statistics.iqm, [[[0, 1], [2, 100]]]) == 1.5


def test_means_and_medians_weight_tasks_equally():
    strata = [[0, 0, 0, 0], [6], [30, 60]]  # means 0, 6, 45
    assert point(statistics.mean, strata) == 17
    assert point(statistics.median, strata) == 6


def test_relative_gaps_by_hand():
    oracle, agent = [[90, 110], [50]], [[80, 60], [50, 60]]  # gaps 30 % and -10 %
    assert point(statistics.relative_gap, agent, oracle) == pytest.approx(0.10)
    # The gaps of the seeds are .2, .4, 0, -.2; the interquartile mean takes the middle two.
    assert point(statistics.iqm_gap, agent, oracle) == pytest.approx(0.10)
    assert point(statistics.iqm_gap, [[80, 60, 100, -300]], [[100]]) == pytest.approx(0.30)  # .2 .4 0 4


def test_probability_of_improvement_by_hand():
    # 3 beats 1 and 2; 2 beats 1 and ties with 2: 3.5 of 4. In the second task 0 of 2.
    assert point(statistics.improvement, [[3, 2], [0]], [[1, 2], [5, 6]]) == pytest.approx((3.5 / 4 + 0) / 2)


def test_groups_are_drawn_independently():
    result = statistics.estimate(statistics.difference(statistics.mean), [[0, 1]], [[0, 1]], replications=4000)
    # Means of two draws of {0, 1} are 0, 1/2, 1 with probabilities 1/4, 1/2, 1/4; groups differ by 1 in 1 of 16 draws.
    assert result == (0, -1, 1)
    draws = bootstrap.resample_strata(
        statistics.difference(statistics.mean), [[np.array([0.0, 1])], [np.array([0.0, 1])]], 40_000, 0
    )
    assert np.mean(draws == 1) == pytest.approx(1 / 16, abs=0.005)  # four standard deviations


def test_seeds_are_drawn_within_strata_with_all_their_episodes():
    seen = []

    def statistic(strata):
        seen.append(strata)
        return strata[0].reshape(len(strata[0]), -1).mean(1)

    groups = [[np.array([[1.0, 2], [3, 4]]), np.array([7.0, 8, 9])]]
    draws = bootstrap.resample_strata(statistic, groups, 500, 3)
    (pair, single), *_ = seen
    assert pair.shape == (500, 2, 2) and single.shape == (500, 3)
    assert set(map(tuple, pair.reshape(-1, 2))) == {(1, 2), (3, 4)} and set(single.ravel()) == {7, 8, 9}
    assert len(draws) == 500
    assert np.mean(draws == 2.5) == pytest.approx(1 / 2, abs=0.1)  # each seed once


def test_interval_of_the_mean_is_nearly_normal():
    values = np.sin(np.arange(40.0))  # enough values for a nearly normal mean
    result = statistics.estimate(statistics.mean, [values])
    deviation = values.std() / np.sqrt(40)
    assert result.value == pytest.approx(values.mean())
    assert (result.high - result.low) / 2 == pytest.approx(1.96 * deviation, rel=0.03)
    wider = statistics.estimate(statistics.mean, [values], level=0.99)
    assert (wider.high - wider.low) / 2 == pytest.approx(2.576 * deviation, rel=0.03)


def test_interval_by_students_t_by_hand():
    values = [3.0, 5, 4, 8, 5]  # mean 5, standard error sqrt(3.5 / 5), t of 4 degrees at 97.5 % is 2.776
    result = statistics.student(statistics.mean, [values])
    assert result.value == 5
    assert (result.high - 5, 5 - result.low) == pytest.approx((2.776 * 0.7**0.5,) * 2, rel=0.02)
    plain = statistics.estimate(statistics.mean, [values])
    assert plain.high - plain.low < 0.8 * (result.high - result.low)  # the percentile interval is too narrow
    assert statistics.student(statistics.mean, [[1.0]]) == (1, -np.inf, np.inf)


def test_seeds_make_intervals_reproducible(monkeypatch):
    group = list(scores(0.0))
    first = statistics.estimate(statistics.iqm, group, replications=2000, seed=4)
    assert first == statistics.estimate(statistics.iqm, group, replications=2000, seed=4)
    assert first != statistics.estimate(statistics.iqm, group, replications=2000, seed=5)
    monkeypatch.setattr(bootstrap, "STRATA_BLOCK", 1)  # one resample at a time gives other draws of the same number
    assert len(bootstrap.resample_strata(statistics.iqm, [group], 7, 0)) == 7


@pytest.mark.parametrize("name", RLIABLE)
def test_estimates_agree_with_rliable(name):
    groups = [list(scores(0.0))] + ([list(scores(1.0) - 6)] if name == "improvement" else [])
    result, (value, low, high) = statistics.estimate(getattr(statistics, name), *groups), RLIABLE[name]
    assert result.value == pytest.approx(value, rel=1e-12)
    assert result.low == pytest.approx(low, abs=0.05 * (high - low))
    assert result.high == pytest.approx(high, abs=0.05 * (high - low))


def test_replications_are_drawn_in_few_blocks():
    """Each call of the statistic gets at least a thousand resamples, which makes 50,000 fast."""
    returns, sizes = np.random.default_rng(0).normal(50, 20, (6, 5, 30)), []

    def iqm(strata):
        sizes.append(len(strata[0]))
        return statistics.iqm(strata)

    statistics.estimate(iqm, list(returns))
    assert sum(sizes) == 1 + 50_000 and len(sizes) < 50


@pytest.mark.parametrize("group", [[], [[]], [[1.0], []], [[1.0, np.nan]], [[np.inf]]])
def test_empty_groups_and_values_that_are_not_finite_raise(group):
    with pytest.raises(SsorlError):
        statistics.estimate(statistics.mean, group)


def test_fewest_seeds():
    assert statistics.fewest([[1, 2, 3], [1]], [[1, 2]]) == 1
    assert statistics.fewest() == 0


def test_repeated_strata_are_drawn_once():
    """All label qualities share the oracle of a dataset: repeating it adds no evidence."""
    rng = np.random.default_rng(0)
    oracle, agents = rng.normal(80, 10, 5), list(rng.normal(60, 2, (6, 5)))  # the oracle has most of the variance
    alone = statistics.estimate(statistics.mean, [oracle])
    assert statistics.estimate(statistics.mean, [oracle] * 6) == pytest.approx(alone)
    apart = statistics.estimate(statistics.mean, [oracle.copy() for _ in range(6)])
    assert apart.high - apart.low < 0.5 * (alone.high - alone.low)
    gap = statistics.estimate(statistics.relative_gap, agents, [oracle] * 6)
    narrow = statistics.estimate(statistics.relative_gap, agents, [oracle.copy() for _ in range(6)])
    assert gap.value == narrow.value and gap.high - gap.low > 2 * (narrow.high - narrow.low)
    # This holds between groups too, and for the degrees of freedom.
    nothing = statistics.estimate(statistics.difference(statistics.mean), [oracle], [oracle])
    assert nothing == (0, 0, 0)
    assert statistics.student(statistics.mean, [oracle] * 6) == pytest.approx(
        statistics.student(statistics.mean, [oracle])
    )


def test_tasks_of_the_same_results_share_a_stratum():
    low, same, other = (
        StudyResults({"quality": q}, name, {"score": 1.0}) for q, name in ((10, "a"), (50, "a"), (50, "b"))
    )
    first, second, third = strata([[low], [same], [other]], lambda result: result.score)
    assert first is second and third is not first and first == third == [1.0]
