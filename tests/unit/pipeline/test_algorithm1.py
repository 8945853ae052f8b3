"""Algorithm 1: the data of each training, the effect of the seed, and the results computed from the returns."""

from __future__ import annotations

import json
import threading
import tracemalloc
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from support.clock import patience
from support.episodes import SMALL, make_episodes
from support.systems import hide

from ssorl.agents import make
from ssorl.data import coupled
from ssorl.envs.pointmass import PointMass
from ssorl.evaluation.rollout import evaluate
from ssorl.idm.fit import fit_many
from ssorl.idm.label import PROXIES
from ssorl.pipeline import algorithm1, scoring
from ssorl.pipeline.algorithm1 import hide_actions, keep_certain, run, training_runs
from ssorl.pipeline.hooks import Listener, StageStore
from ssorl.pipeline.plan import SplitKey, TrainingKey, as_config, make_plan
from ssorl.pipeline.scoring import START_SEED
from ssorl.report.schema import check
from ssorl.report.summary import caveats, diverged
from ssorl.runs.result import cell_result, gaps, interval, parent_result, scale_of
from ssorl.training.engine import train_many
from ssorl.utils.errors import SsorlError

pytestmark = pytest.mark.usefixtures("small_idm")
ABOUT = {"title": "t", "command": "c", "config": {}, "versions": {}, "hardware": {}, "commit": None, "started": "now"}


@pytest.fixture(scope="module")
def plan(eps):
    choices = {"seeds": 2, "quality": (50, 100), "fraction": 0.2, "episodes": 3, "settings": SMALL}
    return make_plan(eps, "bc", **choices)


class Remember(StageStore):
    def save_evaluation(self, judged):
        self.last = judged


@pytest.fixture(scope="module")
def keep():
    return Remember()


@pytest.fixture(scope="module")
def outcome(eps, plan, keep):
    return run(eps, plan, keep)


# Trainings ------------------------------------------------------------------------------------------------


def test_each_variant_trains_on_its_own_actions(eps, plan, outcome):
    for cell in plan.split_keys:
        one, done = outcome.tasks[cell], outcome.filled[cell]
        runs = {job.variant: r for job, r in training_runs(plan, cell, one, done).items()}
        known = one.data.labelled
        assert known.sum() == one.data.lengths[one.split.labelled].sum() and not known.all()
        assert np.isnan(runs["baseline"].eps.act[~known]).all()
        np.testing.assert_array_equal(runs["baseline"].steps, np.flatnonzero(known))
        np.testing.assert_array_equal(runs["ss"].eps.act[known], eps.act[known])
        assert runs["ss"].steps is None and np.isfinite(runs["ss"].eps.act).all()
        assert not np.array_equal(runs["ss"].eps.act, eps.act)
        np.testing.assert_array_equal(runs["oracle"].eps.act, eps.act)
        assert {r.seed for r in runs.values()} == {cell.seed}
        assert all(r.eps.obs is eps.obs for r in runs.values())  # shared arrays, so that one program trains all


def test_one_oracle_for_all_qualities(plan, outcome):
    oracles = [job for job in outcome.players if job.variant == "oracle"]
    assert oracles == [TrainingKey("oracle", None, 0), TrainingKey("oracle", None, 1)]
    assert len(outcome.players) == 2 * 2 * 2 + 2 == len(plan.training_keys)


def test_hidden_actions_affect_only_the_oracle(eps):
    """With other hidden actions, the baseline and SS policies are the same to the bit."""
    plan = make_plan(eps, "bc", fraction=0.2, episodes=2, settings=SMALL)
    other = eps.act.copy()
    hidden = ~hide_actions(eps, coupled(eps, 0.2, 50, 0)).data.labelled
    other[hidden] = other[hidden][::-1]
    one, two = run(eps, plan), run(eps.with_actions(other), plan)
    for job in plan.training_keys:
        pairs = zip(jax.tree.leaves(one.players[job].params), jax.tree.leaves(two.players[job].params), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs) == (job.variant != "oracle")


def test_seed_determines_split_and_policies(plan, outcome):
    first, second = (outcome.tasks[SplitKey(50, seed)].split for seed in (0, 1))
    assert not np.array_equal(first.labelled, second.labelled)
    for variant, quality in (("baseline", 50), ("ss", 50), ("oracle", None)):
        a, b = (outcome.players[TrainingKey(variant, quality, seed)].params for seed in (0, 1))
        assert not np.array_equal(jax.tree.leaves(a)[1], jax.tree.leaves(b)[1])


def test_agent_without_actions_gets_no_proxies(eps):
    small = {"layers": 1, "heads": 1, "width": 8, "context": 2, "max_time": 0, "batch": 2, "updates": 2}
    plan = make_plan(eps, "dt-joint", fraction=0.2, variants=("baseline", "ss"), settings=small)
    assert plan.idm is None
    cell = plan.split_keys[0]
    one = hide_actions(eps, coupled(eps, 0.2, 50, 0))
    runs = {job.variant: r for job, r in training_runs(plan, cell, one, None).items()}
    assert runs["ss"].eps is one.data and runs["ss"].steps is None
    np.testing.assert_array_equal(runs["baseline"].steps, np.flatnonzero(one.data.labelled))


def test_certain_drops_proxies_with_the_highest_std(outcome):
    done = outcome.filled[SplitKey(50, 0)]
    proxies = np.flatnonzero(done.labels.proxy)
    std = np.zeros_like(done.labels.std)
    std[proxies] = np.linspace(1, 2, len(proxies))[::-1, None]  # the first has the highest std
    done = replace(done, labels=done.labels._replace(std=std))
    got = keep_certain(done, 0.75)
    out = len(proxies) - round(0.75 * len(proxies))
    np.testing.assert_array_equal(np.flatnonzero(~got.labelled), proxies[:out])
    np.testing.assert_array_equal(got.act[proxies[out:]], done.eps.act[proxies[out:]])
    assert keep_certain(done, None) is done.eps


def test_certain_scales_std_by_the_action_range(outcome):
    done = outcome.filled[SplitKey(50, 0)]
    a, b = np.flatnonzero(done.labels.proxy)[:2]
    std = np.full_like(done.labels.std, 1e-9)
    std[a], std[b] = (0, 0.5), (2, 0)  # for ranges of 1 and 100: half of one, a fiftieth of the other
    proxy = np.isin(np.arange(len(std)), [a, b])
    wide = done.eps.with_meta(act_low=(-50.0, -0.5), act_high=(50.0, 0.5))
    got = keep_certain(replace(done, eps=wide, labels=done.labels._replace(std=std, proxy=proxy)), 0.5)
    assert np.flatnonzero(~got.labelled).tolist() == [a]


def test_splits_of_different_trajectories_train_in_one_call(eps):
    """Decoupled splits differ by seed; each training and each snapshot equals that of a run with one seed."""
    plan = make_plan(eps, "bc", setup="decoupled", seeds=2, episodes=2, variants=("baseline", "ss"), settings=SMALL)
    done, alone = run(eps, plan), run(eps, replace(plan, seeds=(1,)))
    a, b = (done.tasks[cell].data for cell in plan.split_keys)
    assert len(done.returns) == 4 and not np.array_equal(a.returns, b.returns)
    for job, curve in alone.curves.items():
        np.testing.assert_array_equal(done.players[job].scaler.mean, b.obs.mean(0, np.float64).astype(np.float32))
        np.testing.assert_array_equal(done.returns[job], alone.returns[job])
        for name, values in curve.items():
            np.testing.assert_array_equal(done.curves[job][name], values)


def test_one_program_for_all_equals_one_each(eps, plan, outcome, monkeypatch):
    """As on a GPU, where all models, all agents and all snapshots are one program each."""
    with monkeypatch.context() as patch:
        patch.setattr("ssorl.pipeline.algorithm1.train_many", partial(train_many, together=True))
        patch.setattr("ssorl.idm.fit.fit_many", partial(fit_many, together=True))
        patch.setattr("ssorl.pipeline.algorithm1.jax.default_backend", lambda: "gpu")
        both = run(eps, plan)
    for job in plan.training_keys:
        np.testing.assert_allclose(both.curves[job]["score"], outcome.curves[job]["score"], rtol=1e-3)
        np.testing.assert_allclose(both.returns[job], outcome.returns[job], rtol=1e-3)


def test_initial_states_are_fixed_and_stored(plan, outcome, keep):
    np.testing.assert_array_equal(keep.last.starts, PointMass(3).reset(np.random.default_rng(START_SEED)))
    alone = evaluate([outcome.players[TrainingKey("ss", 100, 1)]], "pointmass", 3, START_SEED)
    np.testing.assert_array_equal(outcome.returns[TrainingKey("ss", 100, 1)], alone.returns[0])
    assert keep.last.returns.shape == keep.last.lengths.shape == (len(plan.training_keys), 3)


def test_curve_has_one_value_for_each_snapshot(plan, outcome):
    assert plan.snapshot_updates == [4, 8, 12, 16, 20]
    for curve in outcome.curves.values():
        assert all(len(values) == 5 for values in curve.values()) and {"score", "actor_loss"} <= set(curve)


def test_estimated_value_does_not_depend_on_other_policies(eps, monkeypatch):
    """If the true actions are unknown, values are fitted to the labelled steps, with or without an SS policy."""
    monkeypatch.setattr(scoring, "FQE_UPDATES", 30)
    gaps, choices = hide(eps, slice(800, None)), {"env": "none", "settings": SMALL}
    alone = run(gaps, make_plan(gaps, "bc", variants=("baseline",), **choices))
    beside = run(gaps, make_plan(gaps, "bc", **choices))
    job = TrainingKey("baseline", None, 0)
    assert alone.filled == {} and len(beside.filled) == 1
    np.testing.assert_array_equal(alone.returns[job], beside.returns[job])


@pytest.fixture
def diverging(monkeypatch):
    """Return a function that makes the policies of some runs NaN (None: all), during training and after it."""

    def spoil(player, bad):
        nan = jax.tree.map(lambda x: np.full_like(x, np.nan), player.params)
        return player._replace(params=nan) if bad else player

    def begin(lost=None):
        some, players_at, player = [], scoring.snapshot_policies, algorithm1.trained_policy

        def in_training(plan, runs, *rest):
            bad = [lost is None or lost(run) for run in runs]
            some.extend(run.eps for run, own in zip(runs, bad, strict=True) if own)
            return list(map(spoil, players_at(plan, runs, *rest), bad))

        def after_it(plan, eps, done):
            return spoil(player(plan, eps, done), lost is None or any(eps is x for x in some))

        monkeypatch.setattr(scoring, "snapshot_policies", in_training)
        monkeypatch.setattr(algorithm1, "trained_policy", after_it)

    return begin


@pytest.mark.parametrize("together", [False, True])
def test_diverged_policy_loses_only_its_own_score(eps, plan, outcome, diverging, monkeypatch, together):
    if together:
        monkeypatch.setattr("ssorl.pipeline.algorithm1.train_many", partial(train_many, together=True))
    diverging(lambda run: run.seed == 1 and run.steps is not None)  # the baselines of the second seed
    done = run(eps, plan)
    for job in plan.training_keys:
        if job.variant == "baseline" and job.seed == 1:
            assert np.isnan(done.returns[job]).all() and "score" not in done.curves[job]
        else:
            rtol = 1e-3 if together else 0
            np.testing.assert_allclose(done.returns[job], outcome.returns[job], rtol)
            np.testing.assert_allclose(done.curves[job]["score"], outcome.curves[job]["score"], rtol)
    result = {f"q{q}": cell_result(plan, eps, done, q, {**ABOUT, "timings": {}}) for q in (50, 100)}
    check(result["q50"])
    assert result["q50"]["scores"]["baseline"]["mean"] is None and result["q50"]["scores"]["ss"]["mean"] is not None
    assert result["q50"]["curves"]["baseline"]["score"][1] == [None] * 5
    (line,) = diverged(result["q50"])
    assert line.startswith("The training of baseline, seed 1, has diverged") and line in caveats(result["q50"])
    both = diverged(parent_result(result))
    assert [line.split(",")[0] for line in both] == [f"The training of baseline at quality {q}" for q in (50, 100)]


@pytest.mark.parametrize("env", ["pointmass", "none"])
def test_error_names_a_policy_if_all_diverge(eps, diverging, monkeypatch, env):
    monkeypatch.setattr(scoring, "FQE_UPDATES", 5)
    plan = make_plan(eps, "bc", fraction=0.2, variants=("ss",), env=env, settings=SMALL)
    diverging()
    with pytest.raises(SsorlError, match=r"^ss at quality 50, seed 0: .*diverged; change settings of the agent"):
        run(eps, plan)


# The numbers -----------------------------------------------------------------------------------------------


def test_results_follow_the_schema(eps, plan, outcome):
    results = {f"q{q:g}": cell_result(plan, eps, outcome, q, {**ABOUT, "timings": {"split": 1.0}}) for q in (50, 100)}
    for result in results.values():
        check(result)
        assert result["normalised"] and result["kind"] == "rollout" and len(result["scores"]["ss"]["returns"]) == 2
        assert result["split"]["n_labelled"] == 8 == len(result["split"]["labelled_return"])
        assert result["idm"]["mse"] > 0 and len(result["curves"]["oracle"]["score"]) == 2
    raw = outcome.returns[TrainingKey("ss", 50.0, 1)]
    want = 100 * (raw - eps.meta.random_return) / (eps.meta.expert_return - eps.meta.random_return)
    np.testing.assert_allclose(results["q50"]["scores"]["ss"]["returns"][1], want)
    parent = parent_result(results)
    check(parent)
    assert [c["quality"] for c in parent["cells"]] == [50, 100]
    assert results["q50"]["scores"]["oracle"] == results["q100"]["scores"]["oracle"]


def test_interval_of_one_seed_resamples_episodes():
    assert interval([np.full(4, 7.0)]) == {"mean": 7, "low": 7, "high": 7}
    result = interval([np.array([0.0, 10.0])])
    assert result == {"mean": 5, "low": 0, "high": 10}  # a quarter of the resamples is all 0, a quarter all 10


def test_interval_of_several_seeds_resamples_seeds_and_episodes():
    result = interval([np.full(4, 0.0), np.full(4, 10.0)])  # episodes do not vary, only seeds do
    assert result == {"mean": 5, "low": 0, "high": 10}
    narrow = interval([np.linspace(0, 10, 11)] * 20)
    assert narrow["mean"] == 5 and 3.5 < narrow["low"] < 4.8 and 5.2 < narrow["high"] < 6.5


def test_interval_of_many_initial_states_needs_little_memory(monkeypatch):
    returns = [np.random.default_rng(i).normal(size=50) for i in range(2)]
    whole = interval(returns, draws=300)
    monkeypatch.setattr("ssorl.utils.bootstrap.MEANS_BLOCK", 50 * 70)
    assert interval(returns, draws=300) == pytest.approx(whole)
    tracemalloc.start()
    interval([np.zeros(2000)], draws=2000)  # drawn at once, the counts would take 32 MB
    assert tracemalloc.get_traced_memory()[1] < 4e6
    tracemalloc.stop()


def test_gaps_equal_a_calculation_by_hand():
    def gaps_of(**means):
        return gaps({k: {"mean": v} for k, v in means.items()})

    found = gaps_of(baseline=30.0, ss=75.0, oracle=90.0)
    assert found["gap_closed"] == pytest.approx(0.75)
    assert found["relative_gap"] == {"baseline": pytest.approx(2 / 3), "ss": pytest.approx(1 / 6)}
    assert gaps_of(baseline=30.0, ss=75.0) == {"relative_gap": None, "gap_closed": None}
    assert gaps_of(baseline=30.0, ss=75.0, oracle=20.0)["gap_closed"] is None
    assert gaps_of(baseline=-9.0, ss=-8.0, oracle=-7.0)["relative_gap"] is None
    assert gaps_of(baseline=-9.0, ss=-8.0, oracle=-7.0)["gap_closed"] == pytest.approx(0.5)


def test_scores_are_normalised_by_references(eps, plan):
    hopper = scale_of("Hopper-v4", eps)
    np.testing.assert_allclose(hopper(np.array([-20.272305, 3234.3])), [0, 100])
    assert hopper.known and scale_of(plan.env, eps)(np.array([eps.meta.expert_return])) == 100
    blank = scale_of(plan.env, eps.with_meta(random_return=None))
    assert not blank.known and blank(np.array([3.5])) == 3.5
    assert not scale_of(None, eps).known


# The plan --------------------------------------------------------------------------------------------------


def test_config_of_a_plan(plan):
    result = as_config(plan)
    assert result["agent"]["name"] == "bc" and result["agent"]["hidden"] == (8,) and result["idm"]["steps"] == 60
    assert result["split"] == {"setup": "coupled", "fraction": 0.2, "quality": [50, 100]}


def test_explicit_defaults_give_the_same_config(eps):
    plan = make_plan(eps, settings=SMALL)
    assert plan.names["idm"] == "blend" and plan.episodes == 30
    named = make_plan(eps, idm="blend", episodes=30, settings=SMALL)
    assert as_config(plan) == as_config(named)  # so that an earlier run folder is found again
    result = json.dumps(as_config(plan))  # the folder's name is a hash of this
    for same in ({"fraction": 0.1}, {"quality": 50}, {"setup": "coupled"}, {"seeds": [0]}):
        assert json.dumps(as_config(make_plan(eps, **same, settings=SMALL))) == result
    thirds = make_plan(eps, setup="decoupled", unlabelled="high", settings=SMALL)
    assert as_config(thirds) == as_config(make_plan(eps, setup="decoupled", settings=SMALL))
    assert as_config(make_plan(eps, env="none", settings=SMALL))["episodes"] == 30


def test_numpy_numbers_are_accepted(eps):
    some = {"quality": np.array([30, 50]), "seeds": np.arange(2), "fraction": np.float64(0.2), "episodes": np.int64(3)}
    some |= {"certain": np.float32(0.5), "idm_updates": np.int64(7)}
    own = {"quality": (30, 50), "seeds": 2, "fraction": 0.2, "episodes": 3, "certain": 0.5, "idm_updates": 7}
    one, two = (json.dumps(as_config(make_plan(eps, **asked, settings=SMALL))) for asked in (some, own))
    assert one == two


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"quality": "50"}, "--quality is '50'; give one percentage"),
        ({"quality": []}, r"--quality is \[\]"),
        ({"seeds": -1}, "--seeds is -1"),
        ({"seeds": True}, r"--seeds is \[True\]"),
        ({"seeds": 1.5}, r"--seeds is \[1.5\]"),
        ({"fraction": "0.1"}, "--fraction is '0.1'; give a number"),
        ({"episodes": 2.5}, "--episodes is 2.5; give a whole number"),
        ({"idm_updates": 1.5}, "--idm-updates is 1.5; give a whole number"),
        ({"certain": "0.5"}, "--certain is '0.5'; give the share"),
        ({"env": 3}, "--env is 3; give the name of an environment"),
    ],
)
def test_wrong_type_raises(eps, asked, words):
    with pytest.raises(SsorlError, match=words):
        make_plan(eps, **asked, settings=SMALL)


def test_note_about_proxies_that_count_as_true(eps):
    filled = eps.with_meta(notes=(f"9 of {eps.n_steps} {PROXIES}",))
    for one in (filled, hide(filled, slice(100, None))):
        assert any("they count as true actions" in note for note in make_plan(one, settings=SMALL).notes)


def test_data_with_missing_actions_has_no_oracle(eps):
    plan = make_plan(hide(eps, slice(100, None)), settings=SMALL)
    assert plan.variants == ("baseline", "ss") and plan.setup is None and "no oracle" in plan.notes[0]
    with pytest.raises(SsorlError, match="no step has an action"):
        make_plan(hide(eps, slice(None)))
    with pytest.raises(SsorlError, match="asks for the oracle"):
        make_plan(hide(eps, slice(100, None)), variants=("ss", "oracle"))


def test_note_about_a_missing_environment():
    some = make_episodes([9] * 20)
    plan = make_plan(some, settings=SMALL)
    assert plan.env is None and "estimate" in plan.notes[-1]
    plan = make_plan(some.with_meta(env="Nowhere-v7"), settings=SMALL)
    assert plan.env is None and "Nowhere-v7, which is unknown" in plan.notes[0]
    plan = make_plan(some.with_meta(env="hopper"), settings=SMALL)
    assert plan.env is None and "observations of size 11 and actions of size 3" in plan.notes[0]


def test_paper_preset_has_settings_for_mazes(eps):
    maze = replace(make_episodes([5] * 20, n_obs=4), meta=eps.meta).with_meta(env="maze2d-umaze-dense")
    paper = make_plan(maze, preset="paper")
    assert paper.env == "maze2d-umaze-dense" and paper.agent.actor_lr == 1e-4 and paper.agent.batch == 5120
    assert make_plan(maze).agent == make("td3bc", "quick")
    assert make_plan(maze, "bc", preset="paper").names["preset"] == "paper"


def test_snapshots_are_multiples_of_the_period(eps):
    plan = make_plan(eps, "td3bc", settings={"updates": 18})
    assert plan.every == 4  # a fifth of 18 is 3.6, rounded up to two periods of 2


MISTAKES = {
    "agent": ({"agent": "sac"}, "no agent is called 'sac'"),
    "idm": ({"idm": "robst"}, "did you mean robust"),
    "preset": ({"preset": "slow"}, "has no preset 'slow'"),
    "setting": ({"settings": {"alfa": 1}}, "td3bc has no setting 'alfa'"),
    "variant": ({"variants": ("ss", "best")}, "--variants names best"),
    "seed": ({"seeds": (0, 0)}, "different whole numbers"),
    "no seed": ({"seeds": 0}, "give the number of seeds, from 1 to"),
    "negative seed": ({"seeds": (-1, 2)}, "from 0 up"),
    "a seed that would repeat another": ({"seeds": (0, 2**32)}, r"below 2\*\*32"),
    "more seeds than there are": ({"seeds": 2**70}, "give the number of seeds"),
    "quality twice": ({"quality": (50, 50)}, "one value twice"),
    "quality alike": ({"quality": (50, 50.0000001)}, "one value twice, in six digits"),
    "model of an agent that needs none": ({"agent": "dt-joint", "idm": "robst"}, "--idm has no effect on dt-joint"),
    "a model for nobody": ({"variants": ("baseline",), "idm": "paper"}, "--idm has no effect without the variant ss"),
    "nothing to be sure of": ({"variants": ("oracle",), "certain": 0.5}, "--certain has no effect without"),
    "updates of nothing": ({"variants": ("baseline",), "idm_updates": 9}, "--idm-updates has no effect without"),
    "members of nothing": ({"variants": ("baseline",), "idm_members": 9}, "--idm-members has no effect without"),
    "episodes of nothing": ({"env": "none", "episodes": 5}, "--episodes has no effect without an environment"),
    "quality": ({"quality": (120,)}, "quality is 120"),
    "too few": ({"quality": 5, "fraction": 0.5}, "raise --quality"),
    "certain": ({"certain": 1.5}, "--certain is 1.5"),
    "episodes": ({"episodes": 0}, "--episodes is 0"),
    "policy": ({"policy": "best"}, "--policy is best"),
    "env": ({"env": "Nowhere-v7"}, "Nowhere-v7"),
    "other robot": ({"env": "hopper"}, "--env hopper: has observations of size 11"),
    "wide": ({"setup": "wide"}, "hides no actions"),
    "decoupled": ({"setup": "decoupled", "quality": 50}, "drawn by thirds"),
    "all kept": ({"fraction": 1.0, "quality": 100}, "hides no actions"),
    "foreign": ({"labelled_fraction": 0.3}, "coupled setup has no labelled_fraction"),
    "foreign third": ({"labelled": "low"}, "coupled setup has no labelled third"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_raise(eps, mistake):
    choices, words = MISTAKES[mistake]
    with pytest.raises(SsorlError, match=words):
        make_plan(eps, **choices)


# On an accelerator -----------------------------------------------------------------------------------------


def test_labels_by_threads_equal_labels_alone(plan, outcome, monkeypatch):
    monkeypatch.setattr(algorithm1, "jax", SimpleNamespace(default_backend=lambda: "gpu"))
    monkeypatch.setattr(algorithm1.os, "cpu_count", lambda: 8)
    names, result, pair = set(), [], threading.Barrier(2)
    assert len(outcome.tasks) % 2 == 0

    class Pairs(StageStore):
        def save_labels(self, cell, done):
            names.add(threading.current_thread().name)
            pair.wait(patience())  # both threads must arrive

    watch = Listener()
    watch.progress = lambda what, n, note="": result.append((what, n))  # type: ignore[method-assign]
    found = algorithm1.label(plan.idm, outcome.tasks, Pairs(), watch)
    assert len(names) > 1 and list(found) == list(outcome.tasks)
    for cell, done in found.items():
        np.testing.assert_array_equal(done.eps.act, outcome.filled[cell].eps.act)
        assert done.report == outcome.filled[cell].report
    missing = sum(int((~one.data.labelled).sum()) for one in outcome.tasks.values())
    assert sum(n for what, n in result if what == "labelling") == missing


def test_error_in_a_thread_is_raised(monkeypatch):
    monkeypatch.setattr(algorithm1.os, "cpu_count", lambda: 4)

    def fails(number):
        if number == 0:
            raise SsorlError("this one")
        return number

    with pytest.raises(SsorlError, match="this one"):
        algorithm1._map_threads(fails, range(50))
