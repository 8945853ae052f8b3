"""Statistics of many runs: worked by hand, and against numbers that rliable found."""

import numpy as np
import pytest

from ssorl.study import statistics
from ssorl.study.results import StudyResults, strata
from ssorl.utils import bootstrap
from ssorl.utils.errors import SsorlError

# What rliable 1.2.0 says of the scores below, by benchmarks/against_rliable.py: estimate, and 95 % interval of 50,000
# resamples (2,000 for the probability of improvement) after np.random.seed(0).
RLIABLE = {
    "iqm": (60.54381250000001, 57.031121875000004, 64.52801718750001),
    "mean": (62.38603333333333, 59.553286666666665, 65.22279999999999),
    "median": (59.3073, 54.6981, 64.71663),
    "improvement": (0.6866666666666666, 0.5466666666666667, 0.82),
}


def scores(phase, n_tasks=6, n_seeds=5):
    """As in benchmarks/against_rliable.py, without a random generator."""
    task, seed = np.meshgrid(np.arange(n_tasks), np.arange(n_seeds), indexing="ij")
    return np.round(40 + 9 * task + 12 * np.sin(7.3 * task + 2.9 * seed**1.5 + phase), 3)


def point(statistic, *groups):
    return float(statistic(*([np.asarray(s, float)[None] for s in group] for group in groups))[0])


def test_the_interquartile_mean_by_hand():
    # Eight numbers: two fall off at each end, (3 + 4 + 5 + 6) / 4.
    assert point(statistics.iqm, [[1, 2, 3, 4], [5, 6, 7, 800]]) == 4.5
    # Five: a quarter of five is one, (2 + 3 + 10) / 3; three: none falls off.
    assert point(statistics.iqm, [[1, 2, 3, 10, 99]]) == 5
    assert point(statistics.iqm, [[0, 1, 5]]) == 2
    # Episodes count one by one: [2 seeds, 2 episodes] is four numbers, one off at each end.
    assert point(statistics.iqm, [[[0, 1], [2, 100]]]) == 1.5


def test_means_and_medians_weigh_tasks_not_seeds():
    strata = [[0, 0, 0, 0], [6], [30, 60]]  # means 0, 6, 45
    assert point(statistics.mean, strata) == 17
    assert point(statistics.median, strata) == 6


def test_relative_gaps_by_hand():
    oracle, agent = [[90, 110], [50]], [[80, 60], [50, 60]]  # gaps 30 % and -10 %
    assert point(statistics.relative_gap, agent, oracle) == pytest.approx(0.10)
    # Each seed's own: .2, .4, 0, -.2; the middle two.
    assert point(statistics.iqm_gap, agent, oracle) == pytest.approx(0.10)
    assert point(statistics.iqm_gap, [[80, 60, 100, -300]], [[100]]) == pytest.approx(0.30)  # .2 .4 0 4: the middle two


def test_the_probability_of_improvement_by_hand():
    # 3 beats 1 and 2, 2 beats 1 and ties: 3.5 of 4; then 0 of 2.
    assert point(statistics.improvement, [[3, 2], [0]], [[1, 2], [5, 6]]) == pytest.approx((3.5 / 4 + 0) / 2)


def test_a_difference_is_of_independent_draws():
    found = statistics.estimate(statistics.difference(statistics.mean), [[0, 1]], [[0, 1]], replications=4000)
    # Means of two draws of {0, 1} are 0, 1/2, 1 with 1, 2, 1 of 4; the two groups differ by 1 in 1 of 16 draws.
    assert found == (0, -1, 1)
    draws = bootstrap.resample_strata(
        statistics.difference(statistics.mean), [[np.array([0.0, 1])], [np.array([0.0, 1])]], 40_000, 0
    )
    assert np.mean(draws == 1) == pytest.approx(1 / 16, abs=0.005)  # four deviations


def test_seeds_are_drawn_within_their_stratum_and_with_all_their_episodes():
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
    assert np.mean(draws == 2.5) == pytest.approx(1 / 2, abs=0.1)  # one of each seed


def test_the_interval_of_the_mean_is_the_known_one():
    values = np.sin(np.arange(40.0))  # so many that the mean is nearly normal
    found = statistics.estimate(statistics.mean, [values])
    deviation = values.std() / np.sqrt(40)
    assert found.value == pytest.approx(values.mean())
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * deviation, rel=0.03)
    wider = statistics.estimate(statistics.mean, [values], level=0.99)
    assert (wider.high - wider.low) / 2 == pytest.approx(2.576 * deviation, rel=0.03)


def test_an_interval_by_students_t_is_the_textbook_one():
    values = [3.0, 5, 4, 8, 5]  # mean 5, standard error sqrt(3.5 / 5), t of 4 degrees at 97.5 % is 2.776
    found = statistics.student(statistics.mean, [values])
    assert found.value == 5
    assert (found.high - 5, 5 - found.low) == pytest.approx((2.776 * 0.7**0.5,) * 2, rel=0.02)
    plain = statistics.estimate(statistics.mean, [values])
    assert plain.high - plain.low < 0.8 * (found.high - found.low)  # that of percentiles is too narrow
    assert statistics.student(statistics.mean, [[1.0]]) == (1, -np.inf, np.inf)


def test_the_same_seed_gives_the_same_interval_whatever_the_memory(monkeypatch):
    group = list(scores(0.0))
    first = statistics.estimate(statistics.iqm, group, replications=2000, seed=4)
    assert first == statistics.estimate(statistics.iqm, group, replications=2000, seed=4)
    assert first != statistics.estimate(statistics.iqm, group, replications=2000, seed=5)
    monkeypatch.setattr(bootstrap, "STRATA_BLOCK", 1)  # one resample at a time: other draws, but as many
    assert len(bootstrap.resample_strata(statistics.iqm, [group], 7, 0)) == 7


@pytest.mark.parametrize("name", RLIABLE)
def test_it_agrees_with_rliable(name):
    groups = [list(scores(0.0))] + ([list(scores(1.0) - 6)] if name == "improvement" else [])
    found, (value, low, high) = statistics.estimate(getattr(statistics, name), *groups), RLIABLE[name]
    assert found.value == pytest.approx(value, rel=1e-12)
    assert found.low == pytest.approx(low, abs=0.05 * (high - low))
    assert found.high == pytest.approx(high, abs=0.05 * (high - low))


def test_fifty_thousand_replications_are_drawn_in_few_blocks():
    """Each call of the statistic takes a thousand resamples, so that all of them take a second."""
    returns, sizes = np.random.default_rng(0).normal(50, 20, (6, 5, 30)), []

    def iqm(strata):
        sizes.append(len(strata[0]))
        return statistics.iqm(strata)

    statistics.estimate(iqm, list(returns))
    assert sum(sizes) == 1 + 50_000 and len(sizes) < 50


@pytest.mark.parametrize("group", [[], [[]], [[1.0], []], [[1.0, np.nan]], [[np.inf]]])
def test_what_is_no_score_is_refused(group):
    with pytest.raises(SsorlError):
        statistics.estimate(statistics.mean, group)


def test_the_fewest_seeds():
    assert statistics.fewest([[1, 2, 3], [1]], [[1, 2]]) == 1
    assert statistics.fewest() == 0


def test_what_is_given_several_times_is_drawn_once():
    """The oracle of a dataset stands beside each label quality: six of it are no more evidence than one."""
    rng = np.random.default_rng(0)
    oracle, agents = rng.normal(80, 10, 5), list(rng.normal(60, 2, (6, 5)))  # the oracle alone is uncertain
    alone = statistics.estimate(statistics.mean, [oracle])
    assert statistics.estimate(statistics.mean, [oracle] * 6) == pytest.approx(alone)
    apart = statistics.estimate(statistics.mean, [oracle.copy() for _ in range(6)])
    assert apart.high - apart.low < 0.5 * (alone.high - alone.low)
    gap = statistics.estimate(statistics.relative_gap, agents, [oracle] * 6)
    narrow = statistics.estimate(statistics.relative_gap, agents, [oracle.copy() for _ in range(6)])
    assert gap.value == narrow.value and gap.high - gap.low > 2 * (narrow.high - narrow.low)
    # Between groups too, and in the degrees of freedom.
    nothing = statistics.estimate(statistics.difference(statistics.mean), [oracle], [oracle])
    assert nothing == (0, 0, 0)
    assert statistics.student(statistics.mean, [oracle] * 6) == pytest.approx(
        statistics.student(statistics.mean, [oracle])
    )


def test_tasks_of_the_same_results_share_a_stratum():
    one, two, other = (
        StudyResults({"quality": q}, name, {"score": 1.0}) for q, name in ((10, "a"), (50, "a"), (50, "b"))
    )
    first, second, third = strata([[one], [two], [other]], lambda found: found.score)
    assert first is second and third is not first and first == third == [1.0]
