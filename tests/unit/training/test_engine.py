"""Guarantees of the engine that hold for every agent."""

import io
import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.episodes import make_episodes
from support.paths import ROOT

from ssorl.agents import make
from ssorl.agents.base import Transitions
from ssorl.agents.bc import BC
from ssorl.data.stats import Standardiser
from ssorl.training import engine
from ssorl.training.checks import training_steps
from ssorl.training.engine import TrainingRun, _groups, _schedule, train, train_many
from ssorl.training.memory import USABLE, max_runs, sizes
from ssorl.training.scan import INIT, init_learner, train_chunk
from ssorl.training.tables import Dataset, make_pool, make_table
from ssorl.utils.errors import DataError, SsorlError
from ssorl.utils.progress import Progress

AGENT = make("bc", hidden=(4,), batch=8, updates=12)
TD3BC = make("td3bc", hidden=(4,), batch=8, updates=12)


@pytest.fixture(scope="module")
def eps():
    return make_episodes([5, 4, 6])


def test_transitions_belong_to_the_trajectories(eps):
    """Each drawn transition is a step of the pool with its own next state, action, reward and termination."""
    act = eps.act.copy()
    act[7] = np.nan
    run = TrainingRun(eps.with_actions(act))
    pool = jax.device_put(make_pool(run.eps, training_steps(run, 0), 32))
    batch = Transitions(500).draw(make_table([Dataset(eps, identity(eps))]), pool, jax.random.key(1))
    drawn = set()
    for obs, a, rew, cont, nxt in zip(*map(np.asarray, batch), strict=True):
        step = int(np.flatnonzero(eps.rew == rew)[0])
        drawn.add(step)
        row = eps.obs_row[step]
        np.testing.assert_array_equal(obs, eps.obs[row])
        np.testing.assert_array_equal(nxt, eps.obs[row + 1])
        np.testing.assert_allclose(a, eps.scaled_actions()[step], rtol=1e-6)
        assert cont == 1 - eps.terminated[step]
    assert drawn == set(range(15)) - {7}


def identity(eps):
    """Return a standardisation that changes nothing."""
    return Standardiser(np.zeros(eps.n_obs, np.float32), np.ones(eps.n_obs, np.float32))


def test_snapshots_and_progress(eps):
    snapshots, progress = [], []
    runs = [TrainingRun(eps, 0), TrainingRun(eps, 1)]
    done = train_many(AGENT, runs, every=4, callback=snapshots.append, progress=lambda n, note: progress.append(n))
    assert [(s.at, list(s.runs)) for s in snapshots] == [(n, [i]) for i in (0, 1) for n in (4, 8, 12)]
    assert sum(progress) == 24
    assert done[1].curve["actor_loss"].shape == (3,)
    snapshots.clear()
    train_many(AGENT, runs, every=12, callback=snapshots.append, together=True)
    assert [(s.at, list(s.runs)) for s in snapshots] == [(12, [0, 1])]
    assert snapshots[0].metrics["actor_loss"].shape == (2,)


def test_progress_shows_the_rate(eps):
    stream = io.StringIO()
    with Progress({"training": (12, "updates")}, stream) as bar:
        train(AGENT, TrainingRun(eps), every=4, progress=partial(bar, "training"))
    assert re.match(r"training: 12 of 12 updates, [\d,]+/s", stream.getvalue())


def test_padding_changes_nothing(eps):
    """A run of three steps has the same bits alone and in a call with a run of fifteen steps."""
    few = TrainingRun(eps, 3, np.array([1, 8, 2]))
    padded, alone = train_many(AGENT, [TrainingRun(eps), few], every=4)[1], train(AGENT, few, every=4)
    for a, b in zip(jax.tree.leaves(padded.state), jax.tree.leaves(alone.state), strict=True):
        np.testing.assert_array_equal(a, b)


def test_snapshots_change_nothing(eps):
    several, single = train(AGENT, TrainingRun(eps), every=4), train(AGENT, TrainingRun(eps), every=12)
    for a, b in zip(jax.tree.leaves(several.state), jax.tree.leaves(single.state), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(several.curve["actor_loss"].mean(), single.curve["actor_loss"][0], rtol=1e-5)


def test_schedule_of_chunks():
    agent = make("td3bc", updates=2200)
    assert list(_schedule(agent, 1200, 0, 501)) == [
        (0, 500, False),
        (500, 500, False),
        (1000, 200, True),
        (1200, 500, False),
        (1700, 500, True),
    ]
    assert list(_schedule(agent, 1200, 1200, 500)) == [(1200, 500, False), (1700, 500, True)]


def test_the_next_chunk_is_queued_before_the_last_is_waited_for(eps, monkeypatch):
    events = []
    monkeypatch.setattr(engine, "CPU_CHUNK", 4)
    monkeypatch.setattr(engine, "train_chunk", lambda *args: events.append("queued") or train_chunk(*args))
    train(AGENT, TrainingRun(eps), every=12, progress=lambda n, note: events.append(n))
    assert events == ["queued", "queued", 4, "queued", 4, 4]


def test_no_runs_give_no_results():
    assert train_many(AGENT, []) == []


def test_a_missing_action_raises_an_error(eps):
    act = eps.act.copy()
    act[6:8, 1] = np.nan
    with pytest.raises(DataError, match=r"run 0 .*: 2 of the 15 steps .* first step 1 of trajectory 1; label them or"):
        train(AGENT, TrainingRun(eps.with_actions(act), 0, np.arange(15)))


def test_steps_may_be_a_mask(eps):
    mask = np.zeros(eps.n_steps, bool)
    mask[[2, 5]] = True
    np.testing.assert_array_equal(training_steps(TrainingRun(eps, 0, mask), 0), [2, 5])
    for wrong in (mask[:-1], np.array([2.0, 5.0]), np.array([[2, 5]]), np.int32(3)):
        with pytest.raises(DataError, match=r"run 0 .*: steps are .*; give the indices of the steps to train on, or a"):
            training_steps(TrainingRun(eps, 0, wrong), 0)


def test_a_run_without_steps_raises_an_error(eps):
    with pytest.raises(DataError, match=r"run 1 .* has no step to train on"):
        train_many(AGENT, [TrainingRun(eps), TrainingRun(eps.with_actions(np.full_like(eps.act, np.nan)))])


@pytest.mark.parametrize("step", [-1, 15])
def test_steps_that_do_not_exist_raise_an_error(eps, step):
    with pytest.raises(DataError, match=f"step {step} does not exist; give indices from 0 to 14"):
        train(AGENT, TrainingRun(eps, 0, np.array([3, step])))


def test_counts_are_multiples_of_the_period(eps):
    agent = make("td3bc", updates=10)
    with pytest.raises(SsorlError, match="every is 5; give a positive multiple of 2"):
        train(agent, TrainingRun(eps), every=5)
    with pytest.raises(SsorlError, match="updates is 0"):
        train(BC(updates=0), TrainingRun(eps))


def test_the_table_has_each_observation_and_reward_once(eps):
    table = make_table([Dataset(eps, identity(eps))])
    assert table.obs.shape == eps.obs.shape and table.rew.shape == (15,)
    assert all(x.dtype in (jnp.float32, jnp.int32) for x in table)


def test_the_average_equals_the_recursion_in_numpy(eps):
    """Each update agrees with the recursion in NumPy: the weight of the old average grows up to `average`."""
    policies = []
    record = lambda s: policies.append(jax.device_get((AGENT.policy(s.state), s.average)))  # noqa: E731
    done = train(AGENT, TrainingRun(eps), every=1, callback=record, average=0.3)
    first = AGENT.policy(AGENT.init(jax.random.fold_in(jax.random.key(0), INIT), eps.n_obs, eps.n_act))
    mean = jax.tree.map(np.asarray, first)
    for periods, (last, average) in enumerate(policies):
        weight = min(0.3, (1 + periods) / (10 + periods))
        mean = jax.tree.map(lambda m, x, weight=weight: weight * m + (1 - weight) * x[0], mean, last)
        for a, b in zip(jax.tree.leaves(mean), jax.tree.leaves(average), strict=True):
            np.testing.assert_allclose(a, b[0], atol=1e-6)
    for got, want in ((done.average, policies[-1][1]), (done.policy, policies[-1][0])):
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_array_equal(a, b[0])


def test_an_average_of_weight_0_is_the_last_policy(eps):
    done = train(AGENT, TrainingRun(eps), every=4, average=0.0)
    for a, b in zip(jax.tree.leaves(done.average), jax.tree.leaves(done.policy), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("average", [-0.1, 1.0])
def test_an_invalid_average_raises_an_error(eps, average):
    with pytest.raises(SsorlError, match=f"average is {average:g}; give a number from 0"):
        train(AGENT, TrainingRun(eps), average=average)


def test_sizes_equal_the_bytes_of_the_arrays(eps):
    run = TrainingRun(eps, 0, np.arange(8))
    pool = make_pool(run.eps, training_steps(run, 0), 8)
    got = sizes(TD3BC, eps.n_steps, len(eps), eps.n_obs, eps.n_act, 8)
    assert got.table == sum(x.nbytes for x in make_table([Dataset(eps, identity(eps))]))
    assert (got.labels, got.steps) == (pool.act.nbytes, pool.steps.nbytes)
    state = TD3BC.init(jax.random.key(0), eps.n_obs, eps.n_act)
    assert got.learnt == sum(x.nbytes for x in jax.tree.leaves((state, TD3BC.policy(state))))


def test_the_estimate_of_work_is_close_to_the_compiled_size(eps):
    """At this batch size activations dominate. The bounds are wide because XLA's fusion differs between devices."""
    agent = replace(TD3BC, batch=2048, hidden=(64, 64))
    run = TrainingRun(eps)
    pool = jax.device_put(make_pool(run.eps, training_steps(run, 0), 15))
    key, table = jax.random.key(0), make_table([Dataset(eps, identity(eps))])
    learner = init_learner(agent, eps.n_obs, eps.n_act, key)
    compiled = train_chunk.lower(agent, 2, None, table, pool, key, learner, 0, 0.9).compile()
    got = sizes(agent, eps.n_steps, len(eps), eps.n_obs, eps.n_act).work
    assert 0.4 < got / compiled.memory_analysis().temp_size_in_bytes < 3


def test_runs_that_do_not_fit_are_trained_in_groups(eps, monkeypatch):
    """Three of seven runs fit, so groups have two or three; each run has the results of training it alone."""
    runs = [TrainingRun(eps, seed) for seed in range(7)]
    need = sizes(AGENT, eps.n_steps, len(eps), eps.n_obs, eps.n_act)
    free = int((need.table + 3.5 * need.run) / USABLE)
    monkeypatch.setattr("ssorl.training.memory.free_bytes", lambda device: free)
    snapshots = []
    got = train_many(AGENT, runs, every=12, callback=snapshots.append, together=True)
    assert [s.runs for s in snapshots] == [range(0, 2), range(2, 5), range(5, 7)]
    for a, b in zip(jax.tree.leaves(got[4].state), jax.tree.leaves(train(AGENT, runs[4], every=12).state), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert max_runs(need._replace(learnt=10**12), 7) == 1


@pytest.mark.parametrize(("n", "size", "want"), [(5, 5, [5]), (5, 4, [2, 3]), (9, 4, [3, 3, 3]), (3, 1, [1, 1, 1])])
def test_groups(n, size, want):
    groups = _groups(None, n, size)
    assert [len(g) for g in groups] == want and [i for g in groups for i in g] == list(range(n))


def test_the_sizes_in_the_docs_are_right(monkeypatch):
    """All numbers of the table in docs/engine.md except the measured ones."""
    monkeypatch.setenv("SSORL_FUSED", "0")  # the table is of plain JAX, also where this test runs on a GPU
    text = (ROOT / "docs" / "engine.md").read_text()
    table = re.findall(r"^\| (\w+) ((?:\| [\d.]+ )+)\|$", text, re.MULTILINE)
    assert [name for name, _ in table] == ["bc", "iql", "td3bc", "cql", "dt"]
    for name, row in table:
        stated = [float(x) for x in row.split("|")[1:]]
        need = sizes(replace(make(name), half=True), 2_000_000, 2_000, 11, 3)  # type: ignore[type-var]
        assert [round(x / 1e6, 1) for x in need[:4]] == stated[:4]
        assert need.work / 1e6 == pytest.approx(stated[4], rel=0.1)  # small changes of an agent change it slightly
        assert stated[5] < stated[4]
