"""Fitted-Q evaluation where the value is known."""

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
    """Always the same action."""

    def begin(self, n_obs, n_act):
        return None

    def act(self, params, carry, obs, rew, key):
        return params, carry


@dataclass(frozen=True)
class Diary:
    """Remembers what it saw and earned, and how long ago it began."""

    def begin(self, n_obs, n_act):
        return jnp.zeros(2)

    def act(self, params, carry, obs, rew, key):
        carry = 0.7 * carry + jnp.stack([obs.sum(), rew])
        return jnp.tanh(carry), carry


def chain(n=300):
    """Two steps an episode: s = -1 earns the action a, s = 1 earns 4 and ends the task; actions in [0, 2]."""
    act = np.random.default_rng(0).uniform(0, 2, (2 * n, 1)).astype(np.float32)
    obs = np.tile(np.float32([-1, 1, 0]), n)[:, None]
    rew = np.where(np.arange(2 * n) % 2, 4, act[:, 0]).astype(np.float32)
    meta = Meta(act_low=(0.0,), act_high=(2.0,), source="a chain")
    return Episodes(obs, act, rew, np.arange(2 * n) % 2 == 1, np.arange(0, 2 * n + 1, 2), meta)


def constant(action):
    """`action` in [-1, 1], so 1 + action for the chain."""
    plain = Standardiser(np.zeros(1, np.float32), np.ones(1, np.float32))
    return TrainedPolicy(Constant(), np.float32([action]), plain, np.float32([0]), np.float32([2]))  # type: ignore[arg-type]


@pytest.mark.parametrize("action", [-0.8, 0.6])
def test_chain(action):
    """Its own action first, then 4: worth 1 + action + gamma 4, whatever the data did."""
    got = fqe(constant(action), chain(), **SMALL)
    assert got.mean == pytest.approx(1 + action + 2, abs=0.1)
    assert got.low <= got.mean <= got.high and got.values.shape == (300,)


def test_a_time_limit_is_not_an_ending():
    """The second step leads back to itself for ever: 4 / (1 - gamma) = 8 from there."""
    eps = chain()
    obs = np.tile(np.float32([-1, 1, 1]), 300)[:, None]
    eps = replace(eps, obs=obs, terminated=np.zeros(600, bool))
    assert fqe(constant(0.0), eps, **SMALL).mean == pytest.approx(1 + 0.5 * 8, abs=0.2)


def test_no_value_is_beyond_what_rewards_add_up_to():
    """A fit that diverges, by steps far too large, ends within the bounds: all rewards are negative here."""
    eps = chain()
    worse = replace(eps, rew=-eps.rew - 1, terminated=np.zeros(600, bool))  # from -5 to -1, for ever
    got = fqe(constant(0.6), worse, **(SMALL | {"lr": 0.5, "updates": 50, "gamma": 0.9}))
    assert got.values.min() >= -50.001 and got.values.max() <= -0.999


def test_missing_actions_are_not_learnt_from():
    """Where the action is missing the reward is a lie that would be seen in the value."""
    eps = chain()
    act, rew = eps.act.copy(), eps.rew.copy()
    act[200:400], rew[200:400] = np.nan, 100
    assert fqe(constant(0.6), replace(eps, act=act, rew=rew), **SMALL).mean == pytest.approx(3.6, abs=0.15)


def test_actions_of_an_agent_with_memory():
    """Each trajectory from its beginning, whatever its length and its neighbours; also in the last state."""
    eps = make_episodes([5, 2, 12, 3], n_obs=3)
    scaler = Standardiser(np.full(3, 0.5, np.float32), np.full(3, 2, np.float32))
    player = TrainedPolicy(Diary(), {}, scaler, np.float32([-1, -3]), np.float32([1, 5]))  # type: ignore[arg-type]
    got = actions(player, eps)
    assert got.shape == (len(eps.obs), 2)
    for number, one in enumerate(eps[i] for i in range(4)):
        policy, first = Policy(player), int(eps.start[number]) + number
        rew = [0, *one.rew]
        want = [policy(o, r) for o, r in zip(one.obs, rew, strict=True)]
        np.testing.assert_allclose(got[first : first + len(want)], want, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"updates": 0}, SsorlError, "updates is 0; it must be 1 or more"),
        ({"gamma": 1.0}, SsorlError, r"gamma is 1.0; it must be in \[0, 1\)"),
        ({"eps": replace(chain(), act=np.full((600, 1), np.nan))}, DataError, "a chain: no step has an action"),
        ({"eps": make_episodes([4])}, SsorlError, "of size 1 and actions of size 1, but memory has sizes 3 and 2"),
        ({"player": constant(np.nan)}, SsorlError, "Constant gave an action that is not finite"),
    ],
)
def test_bad_input(changes, kind, message):
    with pytest.raises(kind, match=message):
        fqe(**{"player": constant(0.0), "eps": chain(), **changes})
