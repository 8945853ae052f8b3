"""DT: a transformer that reads the return still wanted and imitates the trajectories that got it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ssorl.agents.base import Metrics, View
from ssorl.agents.gpt import draw, gpt, gpt_draws, linear, linear_draws
from ssorl.agents.lamb import clipped_lamb
from ssorl.agents.windows import Window, Windows
from ssorl.data.episodes import Episodes
from ssorl.utils.errors import SsorlError
from ssorl.utils.networks import Adam, Params, adam, init_adam

TARGETS = {"hopper": 3600.0, "walker2d": 5000.0, "halfcheetah": 6000.0}  # the return the paper asks for
SCALE = 0.001  # of the returns-to-go there, which makes those numbers 3.6 to 6
LOG_STD = (-5.0, 2.0)  # range of the policy's log standard deviation, before the squashing
STATES = slice(1, None, 3)  # the state tokens in the sequence return-to-go, state, action, return-to-go, ...


@dataclass(frozen=True)
class DT:
    """Stochastic Decision Transformer (arXiv 2202.05607) on Decision Transformer (arXiv 2106.01345).

    min E -log pi(a_t | s_<=t, a_<t, g_<=t) s.t. H[pi] >= -dim(A), by its dual: the loss is nll - temperature H and the
    temperature falls while H is above the bound. g is the return-to-go. The policy is a squashed normal read off the
    state's token; H is estimated by one sample a step. It acts by the normal's squashed mean, asking for `target`.
    """

    layers: int = 4
    heads: int = 4  # of attention, a layer
    width: int = 512  # of the embedding; the blocks' inner layers have four times as much
    context: int = 20  # steps in a sequence, three tokens each; memory when acting
    dropout: float = 0.1  # after embedding, attention weights, and both parts of a block
    max_time: int = 4096  # steps of an episode that have an embedding, later ones share the last; 0: none has
    lr: float = 1e-4  # LAMB (arXiv 1904.00962)
    decay: float = 1e-3  # of the weights
    warmup: int = 10_000  # updates in which the learning rate grows from 0
    clip: float = 0.25  # of the gradient's norm
    temperature: float = 0.1  # at first
    temperature_lr: float = 1e-4  # of its logarithm, Adam
    scale: float | None = None  # of the returns-to-go; None: 0.001, or what `fitted_to` finds
    edge: float = 1e-6  # how close to -1 and 1 an action may be: at 1 the unsquashed action is infinite
    target: float | None = None  # return to ask for when acting, unscaled; None: what `fitted_to` finds
    batch: int = 256  # sequences an update
    updates: int = 200_000  # in a whole training
    half: bool | None = None  # blocks in bfloat16; None: on a GPU

    revision: ClassVar[int] = 0  # raised when a change alters results at unchanged settings: docs/architecture.md

    # quick: about 1/1000 of the work an update, for two minutes on two cores.
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
        """Sequences that start at a step with an action."""
        return Windows(self.batch, self.context)

    def fitted_to(self, env: str | None, eps: Episodes) -> Self:
        """With the return to ask for and the scale, where they are not set.

        Those of the paper for its environments. For another, the best return of the data, and a scale that makes the
        largest one 5: returns of a few units would vanish at 0.001, and DT would imitate whatever it is asked for.
        """
        largest = float(np.abs(eps.returns).max()) or 1.0
        known = TARGETS.get((env or eps.meta.env or "").lower().split("-")[0])
        target, scale = (float(eps.returns.max()), 5 / largest) if known is None else (known, SCALE)
        return replace(
            self,
            target=target if self.target is None else self.target,
            scale=scale if self.scale is None else self.scale,
        )

    def draws(self, n_obs: int, n_act: int) -> dict[str, Any]:
        """What `init` draws."""
        std = self.width**-0.5
        return {
            "body": gpt_draws(n_obs, n_act, self.width, self.layers, self.max_time),
            "mean": linear_draws(self.width, n_act, std),
            # Alike for all states at first: a deviation near its lower bound makes an nll of thousands.
            "log_std": linear_draws(self.width, n_act, 0.3 * std),
        }

    def init(self, key: jax.Array, n_obs: int, n_act: int) -> State:
        """Return initial weights."""
        if self.width % self.heads:
            raise SsorlError(f"width is {self.width}, which {self.heads} heads cannot share; choose a multiple of it")
        params, log_temperature = draw(key, self.draws(n_obs, n_act)), jnp.log(jnp.float32(self.temperature))
        return State(params, log_temperature, optimiser(self).init(params), init_adam(log_temperature))

    def update(self, state: State, batch: Window, key: jax.Array, phase: int = 0) -> tuple[State, Metrics]:
        """The policy, then the temperature by the entropy it had."""
        temperature = jnp.exp(state.log_temperature)
        grad, metrics = jax.grad(self.loss, has_aux=True)(state.params, batch, temperature, key)
        step, opt = optimiser(self).update(grad, state.opt, state.params)
        params = optax.apply_updates(state.params, step)

        above = jnp.where(batch.labelled.any(), metrics["entropy"] + batch.act.shape[-1], 0)
        log_temperature, opt_temperature = adam(
            state.log_temperature, temperature * above, state.opt_temperature, self.temperature_lr
        )
        metrics |= {"temperature": temperature}
        return State(params, log_temperature, opt, opt_temperature), metrics

    def loss(self, params: Params, batch: Window, temperature: jax.Array, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """Of the state tokens alone: no other is read."""
        k_drop, k_sample = jax.random.split(key)
        out = self.read(params, batch, STATES, k_drop)
        return policy_loss(params, out, batch, temperature, k_sample, self.edge)

    def read(self, params: Params, steps: Window | Memory, ask: slice, key: jax.Array | None = None) -> jax.Array:
        """What the transformer makes of the steps at the tokens `ask`, [..., tokens, width]; dropout with a key."""
        rtg = steps.rtg * (SCALE if self.scale is None else self.scale)
        inputs = rtg, steps.obs, steps.act, steps.time
        return gpt(params["body"], *inputs, self.heads, ask, self.dropout, key, self.half)

    def policy(self, state: State) -> Params:
        """Transformer and mean; the deviation is for training."""
        return {name: state.params[name] for name in ("body", "mean")}

    def begin(self, n_obs: int, n_act: int) -> Memory:
        """No step seen, all of the target still wanted."""
        if self.target is None:
            raise SsorlError("DT has no return to ask for; set `target`, or take one from the data with `fitted_to`")
        k = self.context
        zeros = jnp.zeros((k, n_obs)), jnp.zeros((k, n_act)), jnp.zeros(k), jnp.zeros(k, jnp.int32)
        return Memory(*zeros, jnp.int32(0), jnp.float32(self.target))

    def act(
        self, params: Params, carry: Memory, obs: jax.Array, rew: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Memory]:
        """The squashed mean given the last `context` steps."""
        m = carry
        wanted, full = m.wanted - rew, m.now >= self.context
        slot = jnp.minimum(m.now, self.context - 1)  # the memory fills from the left, then moves on
        past = [jnp.where(full, jnp.roll(x, -1, axis=0), x) for x in (m.obs, m.act, m.rtg, m.time)]
        here = (obs, 0.0, wanted, m.now)
        steps = [x.at[slot].set(y) for x, y in zip(past, here, strict=True)]
        seen = Memory(*steps, now=m.now + 1, wanted=wanted)
        act = jnp.tanh(linear(params["mean"], self.read(params, seen, STATES)[slot]))
        return act, seen._replace(act=seen.act.at[slot].set(act))


class State(NamedTuple):
    """Everything that learns."""

    params: Params
    log_temperature: jax.Array
    opt: optax.OptState
    opt_temperature: Adam


class Memory(NamedTuple):
    """The last K steps of an episode, the oldest first; places not yet reached are zeros that no step sees."""

    obs: jax.Array  # [K, O]
    act: jax.Array  # [K, A]
    rtg: jax.Array  # [K], unscaled
    time: jax.Array  # [K] int32
    now: jax.Array  # int32, steps of the episode so far
    wanted: jax.Array  # return still wanted, before the reward that comes with the next observation


def optimiser(config: DT) -> optax.GradientTransformation:
    """LAMB behind a clipped gradient, with linear warm-up.

    LAMB moves a layer in proportion to its norm, so that biases that start at 0 stay near it.
    """
    return clipped_lamb(
        config.clip, lambda count: config.lr * jnp.minimum((count + 1) / max(config.warmup, 1), 1), config.decay
    )


# Losses ----------------------------------------------------------------------------------------------------


def policy_loss(
    params: Params, out: jax.Array, batch: Window, temperature: jax.Array, key: jax.Array, edge: float
) -> tuple[jax.Array, Metrics]:
    """Nll less temperature times entropy, both means over the labelled steps; out[B, K, width] is of state tokens."""
    mean, log_std = normal(params, out)
    act = jnp.arctanh(jnp.clip(batch.act, -1 + edge, 1 - edge))
    nll = average(-log_prob(mean, log_std, act), batch.labelled)
    sample = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
    entropy = average(-log_prob(mean, log_std, sample), batch.labelled)
    loss = nll - temperature * entropy
    return loss, {"actor_loss": loss, "nll": nll, "entropy": entropy}


def normal(params: Params, out: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and log deviation of the action before it is squashed, [..., A] each."""
    low, high = LOG_STD
    mean, raw = linear(params["mean"], out), linear(params["log_std"], out)
    return mean, low + 0.5 * (high - low) * (jnp.tanh(raw) + 1)


def log_prob(mean: jax.Array, log_std: jax.Array, raw: jax.Array) -> jax.Array:
    """Log density [...] of the action tanh(raw[..., A]) where raw is normal."""
    of_raw = -0.5 * jnp.square((raw - mean) / jnp.exp(log_std)) - log_std - 0.5 * jnp.log(2 * jnp.pi)
    slope = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))  # log(1 - tanh^2), which rounds to log 0 as it stands
    return (of_raw - slope).sum(-1)


def average(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean of x where the mask is True; 0 if it never is."""
    return jnp.where(mask, x, 0).sum() / jnp.maximum(mask.sum(), 1)
