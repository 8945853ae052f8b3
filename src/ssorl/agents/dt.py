"""DT: a transformer that imitates the dataset's actions, conditioned on the return-to-go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ssorl.agents.base import Metrics, View
from ssorl.agents.gpt import gpt, init_weights, initial_gpt, initial_linear, linear
from ssorl.agents.lamb import clipped_lamb
from ssorl.agents.windows import Window, Windows
from ssorl.data.episodes import Episodes
from ssorl.utils.errors import SsorlError
from ssorl.utils.networks import Adam, Params, adam, init_adam

TARGETS = {"hopper": 3600.0, "walker2d": 5000.0, "halfcheetah": 6000.0}  # target returns of the paper
SCALE = 0.001  # factor on the returns-to-go in these environments; it makes the targets 3.6 to 6
LOG_STD = (-5.0, 2.0)  # range of the log standard deviation of the unsquashed action
STATES = slice(1, None, 3)  # the state tokens in the sequence return-to-go, state, action, return-to-go, ...


@dataclass(frozen=True)
class DT:
    """Stochastic Decision Transformer (arXiv 2202.05607) on Decision Transformer (arXiv 2106.01345).

    min E -log pi(a_t | s_<=t, a_<t, g_<=t) s.t. H[pi] >= -dim(A), where g is the return-to-go. The dual problem is
    solved: the loss is nll - temperature H, and the temperature falls while H is above the bound. The policy is a tanh
    normal, computed from the state's token; H is estimated with one sample per step. The agent acts by the tanh of the
    mean, starting with the return-to-go `target`.
    """

    layers: int = 4  # transformer blocks
    heads: int = 4  # attention heads of a block
    width: int = 512  # width of the embedding; the hidden layer of a block's MLP is four times as wide
    context: int = 20  # steps in a sequence of three tokens each, in training and when acting
    dropout: float = 0.1  # rate after the embedding, the attention weights and both parts of a block
    max_time: int = 4096  # steps of an episode with an embedding of their own, later ones share the last; 0: none
    lr: float = 1e-4  # learning rate, LAMB (arXiv 1904.00962)
    decay: float = 1e-3  # weight decay
    warmup: int = 10_000  # updates in which the learning rate grows from 0
    clip: float = 0.25  # largest norm of the gradient
    temperature: float = 0.1  # initial weight of the entropy
    temperature_lr: float = 1e-4  # learning rate of the log of the temperature, Adam
    scale: float | None = None  # factor on the returns-to-go; None: `fitted_to` sets it, otherwise 0.001
    edge: float = 1e-6  # least distance of an action from -1 and 1, where the unsquashed action is infinite
    target: float | None = None  # return-to-go of the first step when acting, unscaled; None: `fitted_to` sets it
    batch: int = 256  # sequences in an update
    updates: int = 200_000  # updates of a training
    half: bool | None = None  # blocks in bfloat16; None: on a GPU

    revision: ClassVar[int] = 0  # raised when a change alters results at unchanged settings: docs/architecture.md

    # quick: about 1/1000 of the work of an update; a training takes two minutes on two cores.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "quick": {
            "layers": 2,
            "heads": 2,
            "width": 64,
            "context": 10,
            "lr": 3e-3,
            "warmup": 100,
            "temperature_lr": 1e-3,
            "batch": 64,
            "updates": 5000,
        },
    }

    @property
    def period(self) -> int:
        """All updates are of the same kind."""
        return 1

    @property
    def view(self) -> View:
        """A sampler of windows that start at a step with an action."""
        return Windows(self.batch, self.context)

    def fitted_to(self, env: str | None, eps: Episodes) -> Self:
        """Return the agent with `target` and `scale`, where they are not set.

        The paper's environments have the paper's values. Otherwise `target` is the best return of the data, and `scale`
        makes the largest absolute return 5: at 0.001, returns of a few units would be nearly 0 and have no effect.

        Args:
            env: id of the environment; None: that of the data.
            eps: the data.
        """
        largest = float(np.abs(eps.returns).max()) or 1.0
        published = TARGETS.get((env or eps.meta.env or "").lower().split("-")[0])
        target, scale = (float(eps.returns.max()), 5 / largest) if published is None else (published, SCALE)
        return replace(
            self,
            target=target if self.target is None else self.target,
            scale=scale if self.scale is None else self.scale,
        )

    def initial(self, n_obs: int, n_act: int) -> dict[str, Any]:
        """Return the distributions of the initial weights, a pytree of `Initial`.

        Args:
            n_obs: size of an observation O.
            n_act: size of an action A.
        """
        std = self.width**-0.5
        return {
            "body": initial_gpt(n_obs, n_act, self.width, self.layers, self.max_time),
            "mean": initial_linear(self.width, n_act, std),
            # Small, so that all states start with similar deviations: one near the lower bound has an nll of thousands.
            "log_std": initial_linear(self.width, n_act, 0.3 * std),
        }

    def init(self, key: jax.Array, n_obs: int, n_act: int) -> State:
        """Return initial weights; raise SsorlError if `heads` does not divide `width`."""
        if self.width % self.heads:
            raise SsorlError(
                f"width is {self.width} and heads is {self.heads}; choose a width that is a multiple of heads"
            )
        params = init_weights(key, self.initial(n_obs, n_act))
        log_temperature = jnp.log(jnp.float32(self.temperature))
        return State(params, log_temperature, optimiser(self).init(params), init_adam(log_temperature))

    def update(self, state: State, batch: Window, key: jax.Array, phase: int = 0) -> tuple[State, Metrics]:
        """Update the policy, then the temperature by the policy's entropy before the update."""
        temperature = jnp.exp(state.log_temperature)
        grad, metrics = jax.grad(self.loss, has_aux=True)(state.params, batch, temperature, key)
        step, opt = optimiser(self).update(grad, state.opt, state.params)
        params = optax.apply_updates(state.params, step)

        excess = jnp.where(batch.labelled.any(), metrics["entropy"] + batch.act.shape[-1], 0)
        log_temperature, opt_temperature = adam(
            state.log_temperature, temperature * excess, state.opt_temperature, self.temperature_lr
        )
        metrics |= {"temperature": temperature}
        return State(params, log_temperature, opt, opt_temperature), metrics

    def loss(self, params: Params, batch: Window, temperature: jax.Array, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """Return the policy's loss and metrics; only the outputs at state tokens are computed.

        Args:
            params: weights.
            batch: B windows.
            temperature: weight of the entropy.
            key: random key.
        """
        k_drop, k_sample = jax.random.split(key)
        out = self.features(params, batch, STATES, k_drop)
        return policy_loss(params, out, batch, temperature, k_sample, self.edge)

    def features(
        self, params: Params, steps: Window | Memory, tokens: slice, key: jax.Array | None = None
    ) -> jax.Array:
        """Return the transformer's outputs [..., tokens, width].

        Args:
            params: weights.
            steps: windows, or the memory of an episode.
            tokens: the tokens whose outputs are wanted.
            key: random key of dropout; None: no dropout.
        """
        rtg = steps.rtg * (SCALE if self.scale is None else self.scale)
        inputs = rtg, steps.obs, steps.act, steps.time
        return gpt(params["body"], *inputs, self.heads, tokens, self.dropout, key, self.half)

    def policy(self, state: State) -> Params:
        """Return the weights of transformer and mean; acting does not need the standard deviation."""
        return {name: state.params[name] for name in ("body", "mean")}

    def begin(self, n_obs: int, n_act: int) -> Memory:
        """Return an empty memory whose return-to-go is `target`; raise SsorlError if `target` is not set."""
        if self.target is None:
            raise SsorlError("DT has no return to ask for; set `target`, or take it from the data with `fitted_to`")
        k = self.context
        zeros = jnp.zeros((k, n_obs)), jnp.zeros((k, n_act)), jnp.zeros(k), jnp.zeros(k, jnp.int32)
        return Memory(*zeros, jnp.int32(0), jnp.float32(self.target))

    def act(
        self, params: Params, carry: Memory, obs: jax.Array, rew: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Memory]:
        """Return the tanh of the mean, given the last `context` steps, and the new memory."""
        m = carry
        wanted, full = m.wanted - rew, m.now >= self.context
        slot = jnp.minimum(m.now, self.context - 1)  # the memory fills from the left; a full one drops its oldest step
        past = [jnp.where(full, jnp.roll(x, -1, axis=0), x) for x in (m.obs, m.act, m.rtg, m.time)]
        step = (obs, 0.0, wanted, m.now)
        steps = [x.at[slot].set(y) for x, y in zip(past, step, strict=True)]
        memory = Memory(*steps, now=m.now + 1, wanted=wanted)
        act = jnp.tanh(linear(params["mean"], self.features(params, memory, STATES)[slot]))
        return act, memory._replace(act=memory.act.at[slot].set(act))


class State(NamedTuple):
    """The training state of DT."""

    params: Params
    log_temperature: jax.Array
    opt: optax.OptState
    opt_temperature: Adam


class Memory(NamedTuple):
    """The last K steps of an episode, the oldest first; slots not yet filled are zeros and are masked."""

    obs: jax.Array  # [K, O]
    act: jax.Array  # [K, A]
    rtg: jax.Array  # [K], unscaled
    time: jax.Array  # [K] int32
    now: jax.Array  # scalar int32, steps of the episode so far
    wanted: jax.Array  # scalar, return-to-go of the last step; the next reward is subtracted from it


def optimiser(config: DT) -> optax.GradientTransformation:
    """Return LAMB with a clipped gradient and linear warm-up.

    LAMB's step of an array is proportional to the array's norm, so biases that start at 0 stay near it.
    """
    return clipped_lamb(
        config.clip, lambda count: config.lr * jnp.minimum((count + 1) / max(config.warmup, 1), 1), config.decay
    )


# Losses ----------------------------------------------------------------------------------------------------


def policy_loss(
    params: Params, out: jax.Array, batch: Window, temperature: jax.Array, key: jax.Array, edge: float
) -> tuple[jax.Array, Metrics]:
    """Return nll - temperature * entropy, both means over the labelled steps, and metrics.

    Args:
        params: weights.
        out: the transformer's outputs at state tokens [B, K, width].
        batch: B windows of K steps.
        temperature: weight of the entropy.
        key: random key of the entropy's samples.
        edge: least distance of an action from -1 and 1.
    """
    mean, log_std = normal(params, out)
    act = jnp.arctanh(jnp.clip(batch.act, -1 + edge, 1 - edge))
    nll = average(-log_prob(mean, log_std, act), batch.labelled)
    sample = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
    entropy = average(-log_prob(mean, log_std, sample), batch.labelled)
    loss = nll - temperature * entropy
    return loss, {"actor_loss": loss, "nll": nll, "entropy": entropy}


def normal(params: Params, out: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return mean and log standard deviation of the action before the tanh, [..., A] each.

    Args:
        params: weights.
        out: the transformer's outputs at state tokens [..., width].
    """
    low, high = LOG_STD
    mean, raw = linear(params["mean"], out), linear(params["log_std"], out)
    return mean, low + 0.5 * (high - low) * (jnp.tanh(raw) + 1)


def log_prob(mean: jax.Array, log_std: jax.Array, raw: jax.Array) -> jax.Array:
    """Return the log densities [...] of the actions tanh(raw), where raw [..., A] is normal."""
    log_normal = -0.5 * jnp.square((raw - mean) / jnp.exp(log_std)) - log_std - 0.5 * jnp.log(2 * jnp.pi)
    # log(1 - tanh(x)^2), in a form that stays accurate for large |x|
    log_slope = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
    return (log_normal - log_slope).sum(-1)


def average(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the mean of x where the mask is True; 0 if it is True nowhere."""
    return jnp.where(mask, x, 0).sum() / jnp.maximum(mask.sum(), 1)
