"""Fitted-Q evaluation of policies whose value is known."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest
from support.episodes import make_episodes

from ssorl.data.episodes import Episodes, Meta
from ssorl.data.stats import Standardiser
from ssorl.evaluation.fqe import actions, fqe
from ssorl.evaluation.policy import Policy, TrainedPolicy
from ssorl.utils.errors import DataError, SsorlError

SMALL = {"updates": 2000, "gamma": 0.5, "hidden": (32, 32), "batch": 64, "lr": 3e-3}


@dataclass(frozen=True)
class Constant:
    """An agent whose action is constant."""

    def begin(self, n_obs, n_act):
        return None

    def act(self, params, carry, obs, rew, key):
        return params, carry


@dataclass(frozen=True)
class Diary:
    """An agent that remembers its observations and rewards with decay."""

    def begin(self, n_obs, n_act):
        return jnp.zeros(2)

    def act(self, params, carry, obs, rew, key):
        carry = 0.7 * carry + jnp.stack([obs.sum(), rew])
        return jnp.tanh(carry), carry


def chain(n=300):
    """Return episodes of two steps: at s = -1 the reward is the action, at s = 1 it is 4 and the episode terminates."""
    act = np.random.default_rng(0).uniform(0, 2, (2 * n, 1)).astype(np.float32)
    obs = np.tile(np.float32([-1, 1, 0]), n)[:, None]
    rew = np.where(np.arange(2 * n) % 2, 4, act[:, 0]).astype(np.float32)
    meta = Meta(act_low=(0.0,), act_high=(2.0,), source="a chain")
    return Episodes(obs, act, rew, np.arange(2 * n) % 2 == 1, np.arange(0, 2 * n + 1, 2), meta)


def constant(action):
    """Return a policy of constant action, in [-1, 1]; in the chain's range [0, 2] that is 1 + action."""
    plain = Standardiser(np.zeros(1, np.float32), np.ones(1, np.float32))
    return TrainedPolicy(Constant(), np.float32([action]), plain, np.float32([0]), np.float32([2]))  # type: ignore[arg-type]


@pytest.mark.parametrize("action", [-0.8, 0.6])
def test_the_value_in_the_chain(action):
    """The policy's rewards are 1 + action, then 4, so its value is 1 + action + 4 gamma."""
    got = fqe(constant(action), chain(), **SMALL)
    assert got.mean == pytest.approx(1 + action + 2, abs=0.1)
    assert got.low <= got.mean <= got.high and got.values.shape == (300,)


def test_a_time_limit_is_not_a_termination():
    """The second step leads to itself without end, so its value is 4 / (1 - gamma) = 8."""
    eps = chain()
    obs = np.tile(np.float32([-1, 1, 1]), 300)[:, None]
    eps = replace(eps, obs=obs, terminated=np.zeros(600, bool))
    assert fqe(constant(0.0), eps, **SMALL).mean == pytest.approx(1 + 0.5 * 8, abs=0.2)


def test_values_are_within_the_range_of_possible_returns():
    """The learning rate is so large that the fit diverges; all rewards are negative, which bounds the values."""
    eps = chain()
    negative = replace(eps, rew=-eps.rew - 1, terminated=np.zeros(600, bool))  # rewards from -5 to -1, without end
    got = fqe(constant(0.6), negative, **(SMALL | {"lr": 0.5, "updates": 50, "gamma": 0.9}))
    assert got.values.min() >= -50.001 and got.values.max() <= -0.999


def test_steps_without_an_action_are_not_used():
    """Steps without an action have a wrong reward, which would change the value."""
    eps = chain()
    act, rew = eps.act.copy(), eps.rew.copy()
    act[200:400], rew[200:400] = np.nan, 100
    assert fqe(constant(0.6), replace(eps, act=act, rew=rew), **SMALL).mean == pytest.approx(3.6, abs=0.15)


def test_actions_of_an_agent_with_memory():
    """Each trajectory is computed from its start, including the last state, whatever the others' lengths."""
    eps = make_episodes([5, 2, 12, 3], n_obs=3)
    scaler = Standardiser(np.full(3, 0.5, np.float32), np.full(3, 2, np.float32))
    player = TrainedPolicy(Diary(), {}, scaler, np.float32([-1, -3]), np.float32([1, 5]))  # type: ignore[arg-type]
    got = actions(player, eps)
    assert got.shape == (len(eps.obs), 2)
    for number, trajectory in enumerate(eps[i] for i in range(4)):
        policy, first = Policy(player), int(eps.start[number]) + number
        rew = [0, *trajectory.rew]
        want = [policy(o, r) for o, r in zip(trajectory.obs, rew, strict=True)]
        np.testing.assert_allclose(got[first : first + len(want)], want, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"updates": 0}, SsorlError, "updates is 0; give a whole number from 1 up"),
        ({"gamma": 1.0}, SsorlError, "gamma is 1.0; give a number from 0 up and below 1"),
        ({"eps": replace(chain(), act=np.full((600, 1), np.nan))}, DataError, "a chain: no step has an action"),
        ({"eps": make_episodes([4])}, SsorlError, "of size 1 and actions of size 1, but memory has sizes 3 and 2"),
        ({"player": constant(np.nan)}, SsorlError, "Constant gave an action that is not finite"),
    ],
)
def test_invalid_arguments_raise_an_error(changes, kind, message):
    with pytest.raises(kind, match=message):
        fqe(**{"player": constant(0.0), "eps": chain(), **changes})
