"""CQL: soft actor-critic whose critics are pressed down on the actions a policy might choose and up on the data's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.agents.base import Batch, Metrics, Transitions, init_twins, mean_square, soft
from ssorl.utils.networks import Adam, Params, adam, init_adam, init_mlp, mlp

# Range of the policy's log standard deviation. The lower end keeps log densities, which the conservative term
# subtracts from values, within about +-5 a dimension; a policy of deviation 0.007 acts like its mean anyway.
LOG_STD = (-5.0, 2.0)


@dataclass(frozen=True)
class CQL:
    """Conservative Q-learning, CQL(H) without Lagrange multiplier (arXiv 2006.04779, eq. 4 and appendix F).

    Q: E (r + gamma min Q'(s', a') - Q(s, a))^2 + min_q_weight E [log int exp Q(s, u) du - Q(s, a)], a' from pi(.|s').
    The integral is an average over `n_actions` uniform actions, as many of pi(.|s) and as many of pi(.|s'), each
    divided by the density it was drawn with. pi and its temperature are soft actor-critic's (arXiv 1812.05905).
    As in the common implementation the squared error has no factor 1/2 (the paper's equation has one; the weight of 5
    belongs to the implementation), and the policy has no warm start by imitation.
    """

    gamma: float = 0.99  # discount
    tau: float = 0.005  # step of the target critics
    critic_lr: float = 3e-4
    actor_lr: float = 1e-4
    temperature_lr: float = 3e-4  # of the logarithm of the weight of the entropy, which starts at 1
    hidden: tuple[int, ...] = (256, 256, 256)  # widths of actor and critics, ReLU
    n_actions: int = 10  # sampled from each of the three sources, a state
    min_q_weight: float = 5.0  # weight of the conservative term; 0 is soft actor-critic on the data
    batch: int = 5120  # transitions an update
    updates: int = 200_000  # in a whole training
    half: bool | None = None  # hidden layers in bfloat16; None: on a GPU

    revision: ClassVar[int] = 0  # raised when a change alters results at unchanged settings: docs/architecture.md

    # quick: meant for two minutes on two idle cores. The critics cost (1 + 3 n_actions) batch hidden^2 an update, so
    # 3 actions of each kind and narrower layers make it some 20 times cheaper than 10 and 3x256 are at this batch.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "quick": {"batch": 256, "n_actions": 3, "hidden": (128, 128), "updates": 20_000},
    }

    @property
    def period(self) -> int:
        """All updates are of the same kind."""
        return 1

    @property
    def view(self) -> Transitions:
        """A sampler of single transitions."""
        return Transitions(self.batch)

    def init(self, key: jax.Array, n_obs: int, n_act: int) -> State:
        """Fresh weights; the target critics start equal, the temperature at 1."""
        k_actor, k_critics = jax.random.split(key)
        actor = init_mlp(k_actor, (n_obs, *self.hidden, 2 * n_act))
        critics = init_twins(k_critics, (n_obs + n_act, *self.hidden, 1))
        log_alpha = jnp.zeros(())
        return State(actor, critics, critics, log_alpha, init_adam(actor), init_adam(critics), init_adam(log_alpha))

    def update(self, state: State, batch: Batch, key: jax.Array, phase: int = 0) -> tuple[State, Metrics]:
        """The critics, then the actor and the temperature, then the targets."""
        draws = draw(key, self.n_actions, *batch.act.shape)
        here, there = (policy(state.actor, obs, self.half) for obs in (batch.obs, batch.next_obs))
        target = critic_target(self, state, batch, sample(there, draws.target)[0])
        tried = candidates(here, there, draws)
        grad, metrics = jax.grad(critic_loss, argnums=1, has_aux=True)(self, state.critics, batch, target, tried)
        critics, opt_critics = adam(state.critics, grad, state.opt_critics, self.critic_lr)
        state = state._replace(critics=critics, opt_critics=opt_critics)

        grad, more = jax.grad(actor_loss, argnums=1, has_aux=True)(self, state.actor, state, batch, draws.actor)
        actor, opt_actor = adam(state.actor, grad, state.opt_actor, self.actor_lr)

        # The gradient of alpha (entropy - target entropy) in alpha, taken in log alpha as common implementations do.
        grad = more["entropy"] + batch.act.shape[-1]
        log_alpha, opt_alpha = adam(state.log_alpha, grad, state.opt_alpha, self.temperature_lr)
        more["alpha"] = jnp.exp(log_alpha)
        target_critics = soft(state.target_critics, critics, self.tau)
        state = State(actor, critics, target_critics, log_alpha, opt_actor, opt_critics, opt_alpha)
        return state, metrics | more

    def policy(self, state: State) -> Params:
        """Return the actor's weights."""
        return state.actor

    def begin(self, n_obs: int, n_act: int) -> Any:
        """Return None: the agent has no memory."""
        return None

    def act(self, params: Params, carry: Any, obs: jax.Array, rew: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
        """The tanh of the policy's mean; without noise and memory."""
        return jnp.tanh(policy(params, obs).mean), carry


class State(NamedTuple):
    """Everything that learns. Critics are a list of two."""

    actor: Params
    critics: list[Params]
    target_critics: list[Params]
    log_alpha: jax.Array
    opt_actor: Adam
    opt_critics: Adam
    opt_alpha: Adam


class Draws(NamedTuple):
    """The random numbers of one update; all but the first are standard normal."""

    uniform: jax.Array  # [N, B, A] in (-1, 1)
    here: jax.Array  # [N, B, A] for actions of pi(.|s)
    there: jax.Array  # [N, B, A] for actions of pi(.|s')
    target: jax.Array  # [B, A] for the action of the Bellman target
    actor: jax.Array  # [B, A] for the action of the policy's loss


class Normal(NamedTuple):
    """The policy at some states, before the tanh."""

    mean: jax.Array  # [..., A]
    log_std: jax.Array  # [..., A]


class Candidates(NamedTuple):
    """Actions at which the conservative term looks; the axis of samples is first, so that states broadcast over it."""

    act: jax.Array  # [3 N, B, A]
    log_prob: jax.Array  # [3 N, B], the density each was drawn with


# Actions ---------------------------------------------------------------------------------------------------


def draw(key: jax.Array, n: int, n_batch: int, n_act: int) -> Draws:
    """All from one call of the generator, which costs time and most of all time to compile."""
    shape = (3 * n + 2, n_batch, n_act)
    uniform = jax.random.uniform(key, shape, minval=np.nextafter(np.float32(-1), np.float32(0)))  # never -1
    normal = np.sqrt(2).astype(np.float32) * jax.lax.erf_inv(uniform[n:])
    return Draws(uniform[:n], normal[:n], normal[n : 2 * n], normal[2 * n], normal[2 * n + 1])


def policy(actor: Params, obs: jax.Array, half: bool | None = None) -> Normal:
    """What actions at obs[..., O] are drawn from."""
    mean, log_std = jnp.split(mlp(actor, obs, half=half), 2, axis=-1)
    return Normal(mean, jnp.clip(log_std, *LOG_STD))


def sample(at: Normal, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Actions in (-1, 1) made from standard normal noise[..., B, A], and their log densities [..., B]."""
    raw = at.mean + jnp.exp(at.log_std) * noise
    log_normal = -0.5 * jnp.square(noise) - at.log_std - 0.5 * jnp.log(2 * jnp.pi)
    # log(1 - tanh(x)^2), in the form that does not lose digits for large |x|
    log_slope = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
    return jnp.tanh(raw), (log_normal - log_slope).sum(-1)


def candidates(here: Normal, there: Normal, draws: Draws) -> Candidates:
    """Uniform actions, the policy's at s and, to be tried at s too, the policy's at s'."""
    act_here, log_here = sample(here, draws.here)
    act_there, log_there = sample(there, draws.there)
    log_uniform = jnp.full(log_here.shape, draws.uniform.shape[-1] * np.log(0.5), log_here.dtype)
    return Candidates(
        jnp.concatenate([draws.uniform, act_here, act_there]), jnp.concatenate([log_uniform, log_here, log_there])
    )


def q_value(critic: Params, obs: jax.Array, act: jax.Array, half: bool | None = None) -> jax.Array:
    """One critic's values [..., B] for obs[B, O] with act[..., B, A]: any number of actions a state."""
    # The states are repeated. To multiply each once and add its share of the first layer to all its actions saves 2 %
    # of the multiplications, but the gradient's sum over the actions took a CPU longer than the whole forward pass.
    x = jnp.concatenate([jnp.broadcast_to(obs, (*act.shape[:-1], obs.shape[-1])), act], axis=-1)
    return mlp(critic, x.reshape(-1, x.shape[-1]), half=half).reshape(act.shape[:-1])


# Losses ----------------------------------------------------------------------------------------------------


def critic_target(config: CQL, state: State, batch: Batch, act: jax.Array) -> jax.Array:
    """R + gamma cont min Q'(s', a'), [B].

    Without the entropy soft actor-critic adds there, as in the common implementation: a bonus for random actions at s'
    would raise the very values the conservative term is to hold down.
    """
    one, two = (q_value(c, batch.next_obs, act, config.half) for c in state.target_critics)
    return batch.rew + config.gamma * batch.cont * jnp.minimum(one, two)


def critic_loss(
    config: CQL, critics: list[Params], batch: Batch, target: jax.Array, tried: Candidates
) -> tuple[jax.Array, Metrics]:
    """Squared Bellman error and conservative term, summed over the two critics."""
    act = jnp.concatenate([batch.act[None], tried.act])
    bellman, gap, q = jnp.zeros(()), jnp.zeros(()), []
    for critic in critics:
        values = q_value(critic, batch.obs, act, config.half)
        q.append(values[0])
        bellman += mean_square(values[0] - target)
        total = jax.nn.logsumexp(values[1:] - tried.log_prob, axis=0) - np.log(len(tried.act))
        gap += (total - values[0]).mean()
    loss = bellman + config.min_q_weight * gap
    return loss, {"critic_loss": loss, "bellman": bellman, "gap": gap, "q": q[0].mean()}


def actor_loss(config: CQL, actor: Params, state: State, batch: Batch, noise: jax.Array) -> tuple[jax.Array, Metrics]:
    """The mean of alpha log pi - min Q."""
    # The same weights at the same states as for the candidates: compiled, the network runs once for both.
    act, log_prob = sample(policy(actor, batch.obs, config.half), noise)
    one, two = (q_value(c, batch.obs, act, config.half) for c in state.critics)
    loss = (jnp.exp(state.log_alpha) * log_prob - jnp.minimum(one, two)).mean()
    return loss, {"actor_loss": loss, "entropy": -log_prob.mean()}
