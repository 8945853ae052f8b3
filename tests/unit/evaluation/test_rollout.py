"""Evaluation by rollouts, of agents whose episodes can be computed independently."""

from dataclasses import dataclass, fields

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssorl import envs
from ssorl.agents import AGENTS, make
from ssorl.data.stats import Standardiser
from ssorl.envs.registry import horizon
from ssorl.evaluation.policy import Policy, TrainedPolicy
from ssorl.evaluation.rollout import Scores, bootstrap, evaluate
from ssorl.utils.errors import SsorlError


@dataclass(frozen=True)
class Linear:
    """The action is tanh(W s)."""

    def begin(self, n_obs, n_act):
        return None

    def act(self, params, carry, obs, rew, key):
        return jnp.tanh(params @ obs), carry


@dataclass(frozen=True)
class Learner:
    """Pushes along x by the return so far and along y by the time; if `random`, with a random sign."""

    random: bool = False

    def begin(self, n_obs, n_act):
        return {"earned": jnp.zeros(()), "time": jnp.zeros((), jnp.int32)}

    def act(self, params, carry, obs, rew, key):
        earned, time = carry["earned"] + rew, carry["time"] + 1
        sign = jax.random.rademacher(key, (), jnp.float32) if self.random else 1.0
        return sign * jnp.tanh(jnp.stack([params * earned, 0.01 * time])), {"earned": earned, "time": time}


def player(agent, params, n_obs=4, n_act=2, low=-1.0, high=1.0):
    plain = Standardiser(np.zeros(n_obs, np.float32), np.ones(n_obs, np.float32))
    return TrainedPolicy(agent, params, plain, np.full(n_act, low, np.float32), np.full(n_act, high, np.float32))


STILL = player(Linear(), np.zeros((2, 4), np.float32))
HOME = player(Linear(), np.float32([[-1, 0, -1, 0], [0, -1, 0, -1]]))  # towards the goal, with a brake
AWAY = player(Linear(), np.float32([[5, 0, 0, 0], [0, 5, 0, 0]]))  # out of the arena, which ends the episode
EARNER, GAMBLER = player(Learner(), np.float32(0.1)), player(Learner(True), np.float32(0.1))
ALL = [STILL, HOME, AWAY, EARNER, GAMBLER]


@pytest.fixture(scope="module")
def together():
    return evaluate(ALL, "pointmass", episodes=10, seed=3)


def test_a_policy_that_does_nothing(together):
    """The mass starts at rest and stays, so every reward is exp(-distance)."""
    want = 100 * np.exp(-np.linalg.norm(together.starts[:, :2], axis=1))
    np.testing.assert_allclose(together.returns[0], want, rtol=1e-12)
    assert (together.lengths[0] == 100).all() and together.normalised is None
    assert len(np.unique(together.starts[:, 0])) == 10


def test_good_policies_have_higher_scores(together):
    assert (together.returns[1] > together.returns[0]).all()
    assert (together.lengths[2] < 40).all() and (together.returns[2] < together.returns[0]).all()
    mean, low, high = together.summary()
    assert mean.shape == (5,) and (low < mean).all() and (mean < high).all()


@pytest.mark.parametrize("number", range(len(ALL)))
def test_a_score_does_not_depend_on_the_other_policies(together, number):
    """The bits are the same, also if the others' episodes end earlier."""
    alone = evaluate([ALL[number]], "pointmass", episodes=10, seed=3)
    np.testing.assert_array_equal(alone.returns[0], together.returns[number])
    np.testing.assert_array_equal(alone.lengths[0], together.lengths[number])


def test_memory_belongs_to_its_lane_and_receives_the_last_reward(together):
    for index, policy_of in ((1, HOME), (3, EARNER)):
        env = envs.make("pointmass", 10)
        obs, policy, rew, total = env.reset(np.random.default_rng(3)), Policy(policy_of), np.zeros(10), np.zeros(10)
        running = np.ones(10, bool)
        for _ in range(100):
            obs, rew, ended = env.step(policy(obs, rew))
            total += rew * running
            running &= ~ended
        np.testing.assert_allclose(total, together.returns[index], rtol=1e-5)


def test_the_range_and_scale_of_a_policy():
    """Actions are scaled to the range of the data and clipped to the environment's range."""
    unit = evaluate([AWAY], "pointmass", 4)
    scaler = Standardiser(np.full(4, 3, np.float32), np.full(4, 2, np.float32))

    @dataclass(frozen=True)
    class Undo(Linear):
        def act(self, params, carry, obs, rew, key):
            return super().act(params, carry, obs * 2 + 3, rew, key)

    same = evaluate([AWAY._replace(agent=Undo(), scaler=scaler)], "pointmass", 4)
    np.testing.assert_allclose(same.returns, unit.returns, rtol=1e-4)
    weak = player(Linear(), AWAY.params, low=-0.1, high=0.1)
    assert (evaluate([weak], "pointmass", 4).lengths > unit.lengths).all()
    strong, largest = player(Linear(), AWAY.params, low=-9, high=9), player(Linear(), 100 * AWAY.params)
    assert (evaluate([strong], "pointmass", 4).lengths >= evaluate([largest], "pointmass", 4).lengths).all()


def test_a_watcher_sees_the_last_state_of_an_episode():
    """It does not see the first state of the next episode, which the simulator starts afterwards."""
    places = []
    scores = evaluate([AWAY], "pointmass", 1, watch=lambda sim: places.append(sim.state[0].copy()))
    length = scores.lengths[0, 0]
    assert length < 100 and len(places) == length + 1
    assert np.abs(places[length][:2]).max() > 2 and (np.abs(places[:length])[:, :2] <= 2).all()


def test_no_action_leaves_its_range_by_rounding():
    """Without clipping, rounding would make actions of 1 or -1 leave a third of these ranges."""
    low, high = np.sort(np.random.default_rng(0).uniform(-10, 10, (2, 64)).astype(np.float32), axis=0)
    far = Policy(player(Linear(), np.full((64, 4), 9, np.float32), n_act=64, low=low, high=high))
    least, most = far(-np.ones(4)), far(np.ones(4))
    assert (least >= low).all() and (most <= high).all()
    np.testing.assert_allclose([least, most], [low, high], atol=2e-6)


@pytest.fixture(scope="module")
def uneven():
    """Policies whose episodes end at many different times, and the scores of each alone."""
    players = [player(Learner(), np.float32(x)) for x in np.linspace(-0.6, 0.6, 9)]
    return players, [evaluate([p], "pointmass", episodes=40, seed=1) for p in players]


def test_lanes_that_end_at_different_times(uneven):
    """The table is halved several times; each memory stays with its lane, as in a batch of constant size."""
    players, alone = uneven
    assert len(np.unique([scores.lengths for scores in alone])) > 30
    for trained, scores in zip(players[::4], alone[::4], strict=True):
        env, policy = envs.make("pointmass", 40), Policy(trained)
        obs, rew, total, running = env.reset(np.random.default_rng(1)), np.zeros(40), np.zeros(40), np.ones(40, bool)
        while running.any() and env.horizon > policy._time:
            obs, rew, ended = env.step(policy(obs, rew))
            total += rew * running
            running &= ~ended
        np.testing.assert_allclose(scores.returns[0], total, rtol=1e-4)


def test_policies_that_act_in_one_call_as_on_a_gpu(uneven, together, monkeypatch):
    """The policies are rows of a table that shrinks in both directions."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    players, alone = uneven
    got = evaluate(players, "pointmass", episodes=40, seed=1)
    np.testing.assert_array_equal(got.lengths, [scores.lengths[0] for scores in alone])
    np.testing.assert_allclose(got.returns, [scores.returns[0] for scores in alone], rtol=1e-5)
    mixed = evaluate(ALL, "pointmass", episodes=10, seed=3)
    np.testing.assert_allclose(mixed.returns, together.returns, rtol=1e-5)


@pytest.mark.parametrize("name", AGENTS)
def test_the_score_of_every_agent_does_not_depend_on_the_others(name):
    small = {"hidden": (16, 16), "width": 16, "layers": 1, "heads": 2, "context": 5, "target": 50.0}
    known = {f.name for f in fields(AGENTS[name])}
    agent = make(name, "quick", **{key: value for key, value in small.items() if key in known})
    init = jax.jit(agent.init, static_argnums=(1, 2))
    states = [jax.device_get(init(jax.random.key(seed), 4, 2)) for seed in range(3)]
    # With larger weights the masses leave the arena at different times.
    players = [player(agent, jax.tree.map(lambda x: 3 * x, agent.policy(state))) for state in states]
    together = evaluate(players, "pointmass", 12)
    assert len(np.unique(together.lengths)) > 2
    np.testing.assert_array_equal(evaluate(players[1:2], "pointmass", 12).returns[0], together.returns[1])


def test_scores_in_hopper_do_not_depend_on_threads_and_policies():
    bc = make("bc", "quick", hidden=(16, 16))
    init = jax.jit(bc.init, static_argnums=(1, 2))
    states = [jax.device_get(init(jax.random.key(seed), 11, 3)) for seed in range(3)]
    players = [player(bc, bc.policy(state), 11, 3) for state in states]
    progress = []
    scores = evaluate(players, "hopper", 5, threads=1, progress=lambda n, note: progress.append(n))
    others = evaluate(players[1:], "hopper", 5, threads=2)
    np.testing.assert_array_equal(scores.returns[1:], others.returns)
    assert scores.normalised is not None and sum(progress) == 3 * 5 * horizon("hopper")
    np.testing.assert_allclose(scores.normalised, 100 * envs.normalise("hopper", scores.returns))
    assert (scores.lengths > 1).all() and (scores.lengths < 1000).all()
    v4 = evaluate(players[:1], "Hopper-v4", 5)
    assert v4.normalised is not None
    np.testing.assert_array_equal(v4.normalised, scores.normalised[:1])


def test_any_gymnasium_environment():
    """The episodes of an unstable pendulum without control end early."""
    idle = player(Linear(), np.zeros((1, 4), np.float32), n_act=1, low=-3, high=3)
    scores = evaluate([idle, idle], "InvertedPendulum-v5", 3)
    assert scores.normalised is None and (scores.lengths < 1000).all()
    np.testing.assert_array_equal(scores.returns, scores.lengths - 1)  # in v5 each step but the last has a reward of 1
    np.testing.assert_array_equal(scores.returns[0], scores.returns[1])


def test_the_bootstrap_agrees_with_explicit_resampling():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((3, 200))
    mean, low, high = bootstrap(values, draws=4000)
    np.testing.assert_array_equal(mean, values.mean(1))
    want = [values[:, rng.integers(200, size=200)].mean(1) for _ in range(4000)]
    np.testing.assert_allclose([low, high], np.quantile(want, [0.025, 0.975], axis=0), atol=0.02)
    assert bootstrap(values[0], seed=1) == bootstrap(values[0], seed=1)
    assert bootstrap(np.array([7.0])) == (7, 7, 7)


@pytest.mark.parametrize(
    ("players", "env", "episodes", "message"),
    [
        ([STILL], "pointmass", 0, "episodes is 0; give a whole number from 1 up"),
        ([], "pointmass", 3, "list of policies to evaluate is empty"),
        ([STILL], "no-such-thing-v0", 3, r"no environment 'no-such-thing-v0' \(.*\); there are hopper, .*pointmass"),
        ([STILL], "CartPole-v1", 3, "needs box observations and actions"),
        (
            [STILL],
            "hopper",
            3,
            r"policy 0 \(Linear\) was trained on observations of size 4, but hopper has size 11; name",
        ),
        (
            [STILL, STILL._replace(act_low=np.zeros(3))],
            "pointmass",
            3,
            "policy 1 .* of size 3, but pointmass has size 2",
        ),
        (
            [HOME, STILL._replace(params=np.full((2, 4), np.nan, np.float32))],
            "pointmass",
            3,
            r"policy 1 \(Linear\) gave",
        ),
    ],
)
def test_invalid_arguments_raise_an_error(players, env, episodes, message):
    with pytest.raises(SsorlError, match=message):
        evaluate(players, env, episodes)


def test_calls_of_a_policy():
    policy = Policy(EARNER)
    assert "Learner" in repr(policy) and "observations=4, actions=2" in repr(policy) and len(repr(policy)) <= 300
    assert len(repr(policy.player)) <= 300 and "<td" in policy._repr_html_() and "<td" in policy.player._repr_html_()
    first = policy(np.ones(4))
    assert first.shape == (2,) and first.dtype == np.float32 and first[0] == 0
    second = policy(np.ones(4), 5.0)
    np.testing.assert_allclose(second, np.tanh([0.5, 0.02]), rtol=1e-6)
    with pytest.raises(SsorlError, match="memory is that of one environment, not of a batch of 3; call reset"):
        policy(np.ones((3, 4)))
    policy.reset()
    assert policy(np.ones((3, 4)), np.arange(3)).shape == (3, 2)
    assert Policy(HOME)(np.ones(4)).shape == (2,)
    without_memory = Policy(HOME)  # the number of environments may change
    np.testing.assert_allclose(without_memory(np.eye(4))[2], without_memory(np.eye(4)[2]), rtol=1e-5)
    for bad, message in (
        (np.ones(5), r"takes observations \[4\] or \[N, 4\], not of shape \(5,\)"),
        ([np.nan] * 4, "NaN"),
    ):
        with pytest.raises(SsorlError, match=message):
            without_memory(bad)


def test_scores_have_a_short_repr_and_a_table():
    starts = np.zeros((3, 4))
    many = Scores("pointmass", np.arange(600.0).reshape(200, 3), None, np.ones((200, 3), int), starts)
    assert len(repr(many)) <= 300 and repr(many).startswith("Scores(env='pointmass', policies=200, episodes=3")
    hopper = Scores("hopper", np.ones((1, 3)), np.full((1, 3), 12.5), np.ones((1, 3), int), starts)
    assert "mean_normalised_score=[12.5]" in repr(hopper) and "12.5 (12.5 to 12.5)" in hopper._repr_html_()
