"""The engine's promises that no agent can change."""

import io
import re
import sys
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
from ssorl.training.engine import TrainingRun, _chunks, _groups, _steps, train, train_many
from ssorl.training.memory import SPARE, fitting, sizes
from ssorl.training.scan import INIT, begin, chunk
from ssorl.training.tables import Dataset, make_pool, make_table
from ssorl.utils.errors import DataError, SsorlError
from ssorl.utils.progress import Progress

AGENT = make("bc", hidden=(4,), batch=8, updates=12)
TD3BC = make("td3bc", hidden=(4,), batch=8, updates=12)


@pytest.fixture(scope="module")
def eps():
    return make_episodes([5, 4, 6])


def test_transitions_are_those_of_the_trajectories(eps):
    """Each drawn row is a step of the pool with its own next state, action, reward and ending."""
    act = eps.act.copy()
    act[7] = np.nan
    run = TrainingRun(eps.with_actions(act))
    identity = replace_scaler(eps)
    pool = jax.device_put(make_pool(run.eps, _steps(run, 0), 32))
    batch = Transitions(500).draw(make_table([Dataset(eps, identity)]), pool, jax.random.key(1))
    seen = set()
    for obs, a, rew, cont, nxt in zip(*map(np.asarray, batch), strict=True):
        step = int(np.flatnonzero(eps.rew == rew)[0])
        seen.add(step)
        row = eps.obs_row[step]
        np.testing.assert_array_equal(obs, eps.obs[row])
        np.testing.assert_array_equal(nxt, eps.obs[row + 1])
        np.testing.assert_allclose(a, eps.scaled_actions()[step], rtol=1e-6)
        assert cont == 1 - eps.terminated[step]
    assert seen == set(range(15)) - {7}


def replace_scaler(eps):
    from ssorl.data.stats import Standardiser

    return Standardiser(np.zeros(eps.n_obs, np.float32), np.ones(eps.n_obs, np.float32))


def test_looks_and_progress(eps):
    looks, heard = [], []
    runs = [TrainingRun(eps, 0), TrainingRun(eps, 1)]
    done = train_many(AGENT, runs, every=4, callback=looks.append, progress=lambda n, note: heard.append(n))
    assert [(look.at, list(look.runs)) for look in looks] == [(n, [i]) for i in (0, 1) for n in (4, 8, 12)]
    assert sum(heard) == 24
    assert done[1].curve["actor_loss"].shape == (3,)
    looks.clear()
    train_many(AGENT, runs, every=12, callback=looks.append, together=True)
    assert [(look.at, list(look.runs)) for look in looks] == [(12, [0, 1])]
    assert looks[0].metrics["actor_loss"].shape == (2,)


def test_progress_tells_rate(eps):
    stream = io.StringIO()
    with Progress({"training": (12, "updates")}, stream) as bar:
        train(AGENT, TrainingRun(eps), every=4, progress=partial(bar, "training"))
    assert re.match(r"training: 12 of 12 updates, [\d,]+/s", stream.getvalue())


def test_padding_changes_nothing(eps):
    """A run of three steps beside one of fifteen, whose pool is five times as long, and alone."""
    few = TrainingRun(eps, 3, np.array([1, 8, 2]))
    one, two = train_many(AGENT, [TrainingRun(eps), few], every=4)[1], train(AGENT, few, every=4)
    for a, b in zip(jax.tree.leaves(one.state), jax.tree.leaves(two.state), strict=True):
        np.testing.assert_array_equal(a, b)


def test_looking_changes_nothing(eps):
    one, two = train(AGENT, TrainingRun(eps), every=4), train(AGENT, TrainingRun(eps), every=12)
    for a, b in zip(jax.tree.leaves(one.state), jax.tree.leaves(two.state), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(one.curve["actor_loss"].mean(), two.curve["actor_loss"][0], rtol=1e-5)


def test_chunks():
    agent = make("td3bc", updates=2200)
    assert list(_chunks(agent, 1200, 0, 501)) == [
        (0, 500, False),
        (500, 500, False),
        (1000, 200, True),
        (1200, 500, False),
        (1700, 500, True),
    ]
    assert list(_chunks(agent, 1200, 1200, 500)) == [(1200, 500, False), (1700, 500, True)]


def test_the_next_chunk_is_queued_before_the_last_is_waited_for(eps, monkeypatch):
    engine, told = sys.modules["ssorl.training.engine"], []  # the package has a function of that name
    monkeypatch.setattr(engine, "CPU_CHUNK", 4)
    monkeypatch.setattr(engine, "chunk", lambda *args: told.append("queued") or chunk(*args))
    train(AGENT, TrainingRun(eps), every=12, progress=lambda n, note: told.append(n))
    assert told == ["queued", "queued", 4, "queued", 4, 4]


def test_nothing_to_do():
    assert train_many(AGENT, []) == []


def test_a_missing_action_never_trains(eps):
    act = eps.act.copy()
    act[6:8, 1] = np.nan
    with pytest.raises(DataError, match=r"run 0 .*: 2 of the 15 steps .* first step 1 of trajectory 1; label them"):
        train(AGENT, TrainingRun(eps.with_actions(act), 0, np.arange(15)))


def test_steps_may_be_a_mask(eps):
    mask = np.zeros(eps.n_steps, bool)
    mask[[2, 5]] = True
    np.testing.assert_array_equal(_steps(TrainingRun(eps, 0, mask), 0), [2, 5])
    for wrong in (mask[:-1], np.array([2.0, 5.0]), np.array([[2, 5]]), np.int32(3)):
        with pytest.raises(
            DataError, match=r"run 0 .*: steps are .*; give the numbers of the steps to learn from, or a"
        ):
            _steps(TrainingRun(eps, 0, wrong), 0)


def test_no_steps(eps):
    with pytest.raises(DataError, match=r"run 1 .* has no step to learn from"):
        train_many(AGENT, [TrainingRun(eps), TrainingRun(eps.with_actions(np.full_like(eps.act, np.nan)))])


@pytest.mark.parametrize("step", [-1, 15])
def test_steps_that_do_not_exist(eps, step):
    with pytest.raises(DataError, match=f"there is no step {step}; steps go from 0 to 14"):
        train(AGENT, TrainingRun(eps, 0, np.array([3, step])))


def test_counts_follow_the_period(eps):
    agent = make("td3bc", updates=10)
    with pytest.raises(SsorlError, match="every is 5 and must be a positive multiple of 2"):
        train(agent, TrainingRun(eps), every=5)
    with pytest.raises(SsorlError, match="updates is 0"):
        train(BC(updates=0), TrainingRun(eps))


def test_what_is_shared_is_on_the_device_once(eps):
    """An action table and a pool a run; observations and rewards are not repeated."""
    table = make_table([Dataset(eps, replace_scaler(eps))])
    assert table.obs.shape == eps.obs.shape and table.rew.shape == (15,)
    assert all(x.dtype in (jnp.float32, jnp.int32) for x in table)


def test_the_average_by_hand(eps):
    """One turn at a time against the recursion in NumPy: short memory at first, then `average`."""
    looks = []
    keep = lambda look: looks.append(jax.device_get((AGENT.policy(look.state), look.average)))  # noqa: E731
    done = train(AGENT, TrainingRun(eps), every=1, callback=keep, average=0.3)
    first = AGENT.policy(AGENT.init(jax.random.fold_in(jax.random.key(0), INIT), eps.n_obs, eps.n_act))
    mean = jax.tree.map(np.asarray, first)
    for turns, (last, average) in enumerate(looks):
        share = min(0.3, (1 + turns) / (10 + turns))
        mean = jax.tree.map(lambda m, x, share=share: share * m + (1 - share) * x[0], mean, last)
        for a, b in zip(jax.tree.leaves(mean), jax.tree.leaves(average), strict=True):
            np.testing.assert_allclose(a, b[0], atol=1e-6)
    for got, want in ((done.average, looks[-1][1]), (done.policy, looks[-1][0])):
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_array_equal(a, b[0])


def test_an_average_without_memory_is_the_last_policy(eps):
    done = train(AGENT, TrainingRun(eps), every=4, average=0.0)
    for a, b in zip(jax.tree.leaves(done.average), jax.tree.leaves(done.policy), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_shares_that_are_none(eps, share):
    with pytest.raises(SsorlError, match=f"average is {share:g}; it is a share"):
        train(AGENT, TrainingRun(eps), average=share)


def test_bytes_are_those_of_the_arrays(eps):
    run = TrainingRun(eps, 0, np.arange(8))
    pool = make_pool(run.eps, _steps(run, 0), 8)
    got = sizes(TD3BC, eps.n_steps, len(eps), eps.n_obs, eps.n_act, 8)
    assert got.table == sum(x.nbytes for x in make_table([Dataset(eps, replace_scaler(eps))]))
    assert (got.labels, got.steps) == (pool.act.nbytes, pool.steps.nbytes)
    state = TD3BC.init(jax.random.key(0), eps.n_obs, eps.n_act)
    assert got.learnt == sum(x.nbytes for x in jax.tree.leaves((state, TD3BC.policy(state))))


def test_work_is_of_the_size_the_compiler_needs(eps):
    """At a batch where activations dominate. XLA fuses on a GPU more and on a CPU less than is made up for here."""
    agent = replace(TD3BC, batch=2048, hidden=(64, 64))
    run = TrainingRun(eps)
    pool = jax.device_put(make_pool(run.eps, _steps(run, 0), 15))
    key, table = jax.random.key(0), make_table([Dataset(eps, replace_scaler(eps))])
    learnt = begin(agent, eps.n_obs, eps.n_act, key)
    compiled = chunk.lower(agent, 2, None, table, pool, key, learnt, 0, 0.9).compile()
    got = sizes(agent, eps.n_steps, len(eps), eps.n_obs, eps.n_act).work
    assert 0.4 < got / compiled.memory_analysis().temp_size_in_bytes < 3


def test_runs_that_do_not_fit_go_in_groups(eps, monkeypatch):
    """Seven where three fit: in groups of like size, each run as alone."""
    runs = [TrainingRun(eps, seed) for seed in range(7)]
    need = sizes(AGENT, eps.n_steps, len(eps), eps.n_obs, eps.n_act)
    monkeypatch.setattr("ssorl.training.memory.free_bytes", lambda device: int((need.table + 3.5 * need.run) / SPARE))
    looks = []
    got = train_many(AGENT, runs, every=12, callback=looks.append, together=True)
    assert [look.runs for look in looks] == [range(0, 2), range(2, 5), range(5, 7)]
    for a, b in zip(jax.tree.leaves(got[4].state), jax.tree.leaves(train(AGENT, runs[4], every=12).state), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert fitting(need._replace(learnt=10**12), 7) == 1


@pytest.mark.parametrize(("n", "size", "want"), [(5, 5, [5]), (5, 4, [2, 3]), (9, 4, [3, 3, 3]), (3, 1, [1, 1, 1])])
def test_groups(n, size, want):
    groups = _groups(None, n, size)
    assert [len(g) for g in groups] == want and [i for g in groups for i in g] == list(range(n))


def test_the_table_of_bytes_in_the_docs(monkeypatch):
    """Each number of docs/engine.md but the measured ones, for every agent there is a row of."""
    monkeypatch.setenv("SSORL_FUSED", "0")  # the table is of the plain network, on whatever GPU this runs
    text = (ROOT / "docs" / "engine.md").read_text()
    table = re.findall(r"^\| (\w+) ((?:\| [\d.]+ )+)\|$", text, re.MULTILINE)
    assert [name for name, _ in table] == ["bc", "iql", "td3bc", "cql", "dt"]
    for name, row in table:
        told = [float(x) for x in row.split("|")[1:]]
        need = sizes(replace(make(name), half=True), 2_000_000, 2_000, 11, 3)  # type: ignore[type-var]
        assert [round(x / 1e6, 1) for x in need[:4]] == told[:4]
        assert need.work / 1e6 == pytest.approx(told[4], rel=0.1)  # the least change to an agent moves it a little
        assert told[5] < told[4]
