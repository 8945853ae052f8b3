"""Requirements that every agent of AGENTS must meet."""

from dataclasses import fields, replace

import jax
import numpy as np
import pytest
from support.episodes import make_episodes

from ssorl.agents import AGENTS, make
from ssorl.evaluation.policy_file import load_policy_file, save_policy
from ssorl.training.checks import training_steps
from ssorl.training.engine import TrainingRun, train, train_many
from ssorl.training.tables import Dataset, make_pool, make_table
from ssorl.utils.errors import SsorlError

N_OBS, N_ACT = 3, 2

# Settings that make the networks of each agent tiny.
LAYERS = {"hidden": (16, 16)}
BLOCKS = {"layers": 1, "heads": 1, "width": 8, "context": 4, "warmup": 10, "max_time": 64, "target": 40.0}
SMALL = dict.fromkeys(AGENTS, LAYERS) | {"dt": BLOCKS, "dt-joint": BLOCKS | {"unlabelled": 8}}


def small(name, **settings):
    """Return the agent with tiny networks and a high learning rate."""
    agent = make(name, "quick", **{**SMALL[name], "batch": 32, "updates": 40, **settings})
    rates = [f.name for f in fields(agent) if f.name == "lr" or f.name.endswith("_lr")]
    return replace(agent, **dict.fromkeys(rates, 3e-3))


def equal(a, b, atol=None):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if atol is None:
            np.testing.assert_array_equal(x, y)
        else:
            np.testing.assert_allclose(x, y, atol=atol, rtol=atol)


@pytest.fixture(scope="module")
def runs():
    """Three runs that differ in seed, labels and steps: fully labelled, ten labels, some steps of proxy actions."""
    eps = make_episodes([30, 20, 14])
    few = eps.act.copy()
    few[10:] = np.nan
    proxy = eps.with_actions(np.clip(eps.act + 0.1, -1, 1))
    return [TrainingRun(eps, 0), TrainingRun(eps.with_actions(few), 1), TrainingRun(proxy, 2, np.arange(5, 50))]


@pytest.fixture(scope="module", params=AGENTS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def trained(name, runs):
    return train_many(small(name), runs, every=20)


def test_presets(name):
    assert {"paper", "quick"} <= set(AGENTS[name].PRESETS)
    for preset in AGENTS[name].PRESETS:
        agent = make(name, preset)
        assert agent.updates % agent.period == 0
        # Equal agents share a compiled program.
        assert agent == make(name, preset) and hash(agent) == hash(make(name, preset))
    assert make(name) == AGENTS[name]()
    with pytest.raises(SsorlError, match="has no preset 'slow'; there are paper, quick"):
        make(name, "slow")


def test_an_unknown_agent_raises_an_error():
    with pytest.raises(SsorlError, match="no agent is called 'dreamer'; there are bc"):
        make("dreamer")


def test_td3bc_has_the_settings_of_the_paper():
    got = make("td3bc")
    assert got == AGENTS["td3bc"](  # type: ignore[call-arg]
        gamma=0.99,
        tau=0.005,
        noise=0.2,
        noise_clip=0.5,
        policy_every=2,
        critic_lr=3e-4,
        actor_lr=3e-4,
        hidden=(256, 256),
        alpha=2.5,
        batch=5120,
        updates=200_000,
        half=None,
    )


def test_update_keeps_shapes_and_types(name, trained, runs):
    """Shapes are evaluated for the tiny and the default networks, without computing anything."""
    run = runs[0]
    table, pool = (
        make_table([Dataset(run.eps, trained[0].scaler)]),
        jax.device_put(make_pool(run.eps, training_steps(run, 0), 64)),
    )
    key = jax.random.key(0)
    for agent in (small(name), make(name)):
        state = jax.eval_shape(lambda agent=agent: agent.init(key, N_OBS, N_ACT))
        for phase in range(agent.period):

            def step(state, agent=agent, phase=phase):
                return agent.update(state, agent.view.draw(table, pool, key), key, phase)

            after, metrics = jax.eval_shape(step, state)
            describe = lambda x: (x.shape, x.dtype)  # noqa: E731
            assert jax.tree.map(describe, after) == jax.tree.map(describe, state)
            assert metrics and all(m.shape == () for m in metrics.values())


def test_act(name, trained):
    agent, key = small(name), jax.random.key(0)
    obs = 10 * np.random.default_rng(0).standard_normal((5, N_OBS)).astype(np.float32)
    params, carry = agent.policy(trained[0].state), agent.begin(N_OBS, N_ACT)
    act_all = jax.jit(jax.vmap(lambda o: agent.act(params, carry, o, 0.0, key)[0]))
    act = act_all(obs)
    assert act.shape == (5, N_ACT) and np.abs(act).max() <= 1
    np.testing.assert_array_equal(act, act_all(obs))
    alone, after = jax.jit(agent.act)(params, carry, obs[2], 0.0, key)
    np.testing.assert_allclose(alone, act[2], atol=1e-4)
    describe = lambda x: (np.shape(x), jax.numpy.asarray(x).dtype)  # noqa: E731
    assert jax.tree.map(describe, after) == jax.tree.map(describe, carry)  # so a scan can carry it


def test_curves_and_states_are_finite(trained):
    """This includes the run with mostly NaN actions, because those steps are never drawn."""
    for run in trained:
        assert run.curve and all(c.shape == (2,) and np.isfinite(c).all() for c in run.curve.values())
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(run.state))


def test_a_run_of_several_equals_a_run_alone_to_the_bit(name, runs, trained):
    got = train(small(name), runs[2], every=20)
    equal(got.state, trained[2].state)
    equal(got.curve, trained[2].curve)


def test_resumed_trainings_and_loaded_policies_have_the_same_bits(name, runs, trained, tmp_path):
    """A training is stopped half way and resumed; its policy is saved and loaded."""

    def stop(snapshot):
        if snapshot.at == 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(small(name), runs[0], every=20, callback=stop, folder=tmp_path)
    evaluated = []
    got = train(small(name), runs[0], every=20, callback=lambda s: evaluated.append(s.at), folder=tmp_path)
    assert evaluated == [40]
    for part in ("state", "policy", "average", "curve"):
        equal(getattr(got, part), getattr(trained[0], part))
    save_policy(tmp_path / "policy.npz", small(name), got.average, got.scaler, -np.ones(N_ACT), np.ones(N_ACT))
    back = load_policy_file(tmp_path / "policy.npz")
    assert back.agent == small(name)
    equal(back.params, got.average)


def test_runs_trained_together_equal_runs_trained_alone(name, runs, trained):
    for got, want in zip(train_many(small(name), runs, every=20, together=True), trained, strict=True):
        equal(got.state, want.state, 1e-4)
        equal(got.curve, want.curve, 1e-4)


def test_seeds_and_labels_matter(trained):
    first = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(run.state)]) for run in trained]
    assert not np.allclose(first[0], first[1]) and not np.allclose(first[0], first[2])


def test_other_seeds_and_labels_need_no_new_trace(name, runs, trained, monkeypatch):
    """The program is also reused for other steps if their number rounds to the same power of two."""
    calls = []
    monkeypatch.setattr(AGENTS[name], "update", lambda *args: calls.append(args))
    train(small(name), TrainingRun(runs[0].eps, 7, np.arange(3, 60)), every=20)
    assert not calls


def test_it_learns(name):
    """The data are an expert's actions with noise, rewarded for accuracy: the policy gets close to the expert."""
    eps = make_episodes([40] * 10)
    rng = np.random.default_rng(0)
    expert = np.tanh(eps.obs[eps.obs_row] @ rng.standard_normal((N_OBS, N_ACT)).astype(np.float32))
    act = np.clip(expert + 0.2 * rng.standard_normal(expert.shape), -1, 1).astype(np.float32)
    eps = replace(eps, act=act, rew=1 - np.square(act - expert).mean(1), terminated=np.ones(400, bool))
    agent, errors = small(name, updates=500), []

    def record_error(snapshot):
        state = jax.tree.map(lambda x: x[0], snapshot.state)
        obs = (eps.obs - eps.obs.mean(0)) / eps.obs.std(0)
        errors.append(error(state, obs))

    def error(state, obs):
        return float(np.square(act_all(agent.policy(state), obs[eps.obs_row]) - expert).mean())

    carry, key = agent.begin(N_OBS, N_ACT), jax.random.key(0)
    act_all = jax.jit(jax.vmap(lambda params, o: agent.act(params, carry, o, 0.0, key)[0], in_axes=(None, 0)))
    before = error(agent.init(jax.random.key(0), N_OBS, N_ACT), eps.obs)
    done = train(agent, TrainingRun(eps), every=250, callback=record_error)
    assert errors[-1] < 0.15 * before
    losses = [c for metric, c in done.curve.items() if metric.endswith("loss") or metric == "imitation"]
    assert any(c[-1] < c[0] for c in losses)
