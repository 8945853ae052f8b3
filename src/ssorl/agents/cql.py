"""CQL: soft actor-critic whose critics are trained to value the dataset's actions above actions of the policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.agents.base import Batch, Metrics, Transitions, init_twins, mean_square, soft
from ssorl.utils.networks import Adam, Params, adam, init_adam, init_mlp, mlp

# Range of the policy's log standard deviation. The conservative term subtracts log densities from values; the lower
# bound keeps them within about +-5 per dimension. A policy with standard deviation 0.007 acts like its mean anyway.
LOG_STD = (-5.0, 2.0)


@dataclass(frozen=True)
class CQL:
    """Conservative Q-learning, CQL(H) without Lagrange multiplier (arXiv 2006.04779, eq. 4 and appendix F).

    Q: E (r + gamma min Q'(s', a') - Q(s, a))^2 + min_q_weight E [log int exp Q(s, u) du - Q(s, a)], a' from pi(.|s').
    The integral is estimated by importance sampling with `n_actions` actions from each of three distributions: uniform,
    pi(.|s) and pi(.|s'). The policy pi and its temperature are trained as in soft actor-critic (arXiv 1812.05905).

    Two details follow the common implementation: the squared error has no factor 1/2 (the paper's equation has one, but
    the usual weight of 5 was chosen without it), and the policy is not first trained by imitation.
    """

    gamma: float = 0.99  # discount
    tau: float = 0.005  # step of the target critics
    critic_lr: float = 3e-4  # learning rate of the critics, Adam
    actor_lr: float = 1e-4  # learning rate of the actor, Adam
    temperature_lr: float = 3e-4  # learning rate of the log of the temperature, which starts at 1, Adam
    hidden: tuple[int, ...] = (256, 256, 256)  # widths of the hidden layers of actor and critics, ReLU
    n_actions: int = 10  # actions sampled from each of the three distributions, per state
    min_q_weight: float = 5.0  # weight of the conservative term; 0 is soft actor-critic on the data
    batch: int = 5120  # transitions in an update
    updates: int = 200_000  # updates of a training
    half: bool | None = None  # hidden layers in bfloat16; None: on a GPU

    revision: ClassVar[int] = 0  # raised when a change alters results at unchanged settings: docs/architecture.md

    # quick: two minutes on two idle cores. The critics' cost in an update is (1 + 3 n_actions) batch hidden^2: with
    # 3 actions of each kind and narrower layers it is about a twentieth of the cost with 10 actions and 3x256.
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
        """Return initial weights; the targets start equal to the critics, the temperature is 1."""
        k_actor, k_critics = jax.random.split(key)
        actor = init_mlp(k_actor, (n_obs, *self.hidden, 2 * n_act))
        critics = init_twins(k_critics, (n_obs + n_act, *self.hidden, 1))
        log_alpha = jnp.zeros(())
        return State(actor, critics, critics, log_alpha, init_adam(actor), init_adam(critics), init_adam(log_alpha))

    def update(self, state: State, batch: Batch, key: jax.Array, phase: int = 0) -> tuple[State, Metrics]:
        """Update the critics, then the actor and the temperature, then the targets."""
        noise = draw_noise(key, self.n_actions, *batch.act.shape)
        pi, next_pi = (policy(state.actor, obs, self.half) for obs in (batch.obs, batch.next_obs))
        target = critic_target(self, state, batch, sample(next_pi, noise.target)[0])
        sampled = sample_candidates(pi, next_pi, noise)
        grad, metrics = jax.grad(critic_loss, argnums=1, has_aux=True)(self, state.critics, batch, target, sampled)
        critics, opt_critics = adam(state.critics, grad, state.opt_critics, self.critic_lr)
        state = state._replace(critics=critics, opt_critics=opt_critics)

        grad, more = jax.grad(actor_loss, argnums=1, has_aux=True)(self, state.actor, state, batch, noise.actor)
        actor, opt_actor = adam(state.actor, grad, state.opt_actor, self.actor_lr)

        # The gradient of alpha (entropy - target entropy) with respect to alpha; the target entropy is -A. As in common
        # implementations it is applied to log alpha.
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
        """Return the tanh of the policy's mean; CQL acts without noise and memory."""
        return jnp.tanh(policy(params, obs).mean), carry


class State(NamedTuple):
    """The training state of CQL; `critics` is a list of two networks."""

    actor: Params
    critics: list[Params]
    target_critics: list[Params]
    log_alpha: jax.Array
    opt_actor: Adam
    opt_critics: Adam
    opt_alpha: Adam


class Noise(NamedTuple):
    """The random numbers of one update; all but `uniform` are standard normal."""

    uniform: jax.Array  # [N, B, A] in (-1, 1), candidate actions
    pi: jax.Array  # [N, B, A] for candidate actions of pi(.|s)
    next_pi: jax.Array  # [N, B, A] for candidate actions of pi(.|s')
    target: jax.Array  # [B, A] for the action of the Bellman target
    actor: jax.Array  # [B, A] for the action of the actor's loss


class Normal(NamedTuple):
    """The policy's distribution of actions at given states, before the tanh."""

    mean: jax.Array  # [..., A]
    log_std: jax.Array  # [..., A]


class Candidates(NamedTuple):
    """The sampled actions of the conservative term; samples are the first axis, so that states broadcast over it."""

    act: jax.Array  # [3 N, B, A] in (-1, 1)
    log_prob: jax.Array  # [3 N, B], log density of each action under the distribution that it was drawn from


# Actions ---------------------------------------------------------------------------------------------------


def draw_noise(key: jax.Array, n: int, n_batch: int, n_act: int) -> Noise:
    """Draw the random numbers of one update, in one call of the generator, because each call takes long to compile.

    Args:
        key: random key.
        n: actions from each distribution, per state.
        n_batch: transitions in the batch B.
        n_act: size of an action A.
    """
    shape = (3 * n + 2, n_batch, n_act)
    uniform = jax.random.uniform(key, shape, minval=np.nextafter(np.float32(-1), np.float32(0)))  # never -1
    normal = np.sqrt(2).astype(np.float32) * jax.lax.erf_inv(uniform[n:])
    return Noise(uniform[:n], normal[:n], normal[n : 2 * n], normal[2 * n], normal[2 * n + 1])


def policy(actor: Params, obs: jax.Array, half: bool | None = None) -> Normal:
    """Return the distribution of actions, before the tanh.

    Args:
        actor: weights.
        obs: standardised observations [..., O].
        half: compute hidden layers in bfloat16.
    """
    mean, log_std = jnp.split(mlp(actor, obs, half=half), 2, axis=-1)
    return Normal(mean, jnp.clip(log_std, *LOG_STD))


def sample(pi: Normal, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return actions [..., B, A] in (-1, 1) and their log densities [..., B].

    Args:
        pi: distribution of actions at B states.
        noise: standard normal numbers [..., B, A].
    """
    raw = pi.mean + jnp.exp(pi.log_std) * noise
    log_normal = -0.5 * jnp.square(noise) - pi.log_std - 0.5 * jnp.log(2 * jnp.pi)
    # log(1 - tanh(x)^2), in a form that stays accurate for large |x|
    log_slope = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
    return jnp.tanh(raw), (log_normal - log_slope).sum(-1)


def sample_candidates(pi: Normal, next_pi: Normal, noise: Noise) -> Candidates:
    """Return the actions of the conservative term: uniform ones, the policy's at s, and the policy's at s'.

    Args:
        pi: distribution of actions at s.
        next_pi: distribution of actions at s'; its actions are valued at s, too.
        noise: random numbers of the update.
    """
    act, log_pi = sample(pi, noise.pi)
    next_act, log_next_pi = sample(next_pi, noise.next_pi)
    log_uniform = jnp.full(log_pi.shape, noise.uniform.shape[-1] * np.log(0.5), log_pi.dtype)
    return Candidates(
        jnp.concatenate([noise.uniform, act, next_act]), jnp.concatenate([log_uniform, log_pi, log_next_pi])
    )


def q_value(critic: Params, obs: jax.Array, act: jax.Array, half: bool | None = None) -> jax.Array:
    """Return the values [..., B] of one critic.

    Args:
        critic: weights.
        obs: standardised observations [B, O].
        act: actions [..., B, A]; each state can have several.
        half: compute hidden layers in bfloat16.
    """
    # The states are repeated for each action. Sharing a state's product with the first layer among its actions would
    # save 2 % of the multiplications, but the gradient's sum over the actions then takes a CPU longer than the forward
    # pass.
    x = jnp.concatenate([jnp.broadcast_to(obs, (*act.shape[:-1], obs.shape[-1])), act], axis=-1)
    return mlp(critic, x.reshape(-1, x.shape[-1]), half=half).reshape(act.shape[:-1])


# Losses ----------------------------------------------------------------------------------------------------


def critic_target(config: CQL, state: State, batch: Batch, act: jax.Array) -> jax.Array:
    """Return the Bellman targets r + gamma cont min Q'(s', a'), [B].

    As in the common implementation the target has no entropy term: a bonus for random actions at s' would raise the
    values that the conservative term lowers.

    Args:
        config: the agent.
        state: training state.
        batch: B transitions.
        act: actions of the policy at s' [B, A].
    """
    q1, q2 = (q_value(c, batch.next_obs, act, config.half) for c in state.target_critics)
    return batch.rew + config.gamma * batch.cont * jnp.minimum(q1, q2)


def critic_loss(
    config: CQL, critics: list[Params], batch: Batch, target: jax.Array, sampled: Candidates
) -> tuple[jax.Array, Metrics]:
    """Return the squared Bellman error plus the weighted conservative term, summed over the critics, and metrics.

    Args:
        config: the agent.
        critics: weights of the two critics.
        batch: B transitions.
        target: Bellman targets [B].
        sampled: actions of the conservative term.
    """
    act = jnp.concatenate([batch.act[None], sampled.act])
    bellman, gap, q = jnp.zeros(()), jnp.zeros(()), []
    for critic in critics:
        values = q_value(critic, batch.obs, act, config.half)
        q.append(values[0])
        bellman += mean_square(values[0] - target)
        log_integral = jax.nn.logsumexp(values[1:] - sampled.log_prob, axis=0) - np.log(len(sampled.act))
        gap += (log_integral - values[0]).mean()
    loss = bellman + config.min_q_weight * gap
    return loss, {"critic_loss": loss, "bellman": bellman, "gap": gap, "q": q[0].mean()}


def actor_loss(config: CQL, actor: Params, state: State, batch: Batch, noise: jax.Array) -> tuple[jax.Array, Metrics]:
    """Return the mean of alpha log pi - min Q, and metrics.

    Args:
        config: the agent.
        actor: weights of the actor.
        state: training state, whose critics and temperature are used.
        batch: B transitions.
        noise: standard normal numbers [B, A].
    """
    # The candidates used the same weights at the same states, so the compiled program runs the actor once for both.
    act, log_prob = sample(policy(actor, batch.obs, config.half), noise)
    q1, q2 = (q_value(c, batch.obs, act, config.half) for c in state.critics)
    loss = (jnp.exp(state.log_alpha) * log_prob - jnp.minimum(q1, q2)).mean()
    return loss, {"actor_loss": loss, "entropy": -log_prob.mean()}
