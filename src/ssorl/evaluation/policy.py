"""A trained policy that can act: raw observations in, the environment's actions out."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.agents.base import Agent
from ssorl.data.stats import Standardiser
from ssorl.utils.errors import SsorlError
from ssorl.utils.networks import Params


class TrainedPolicy(NamedTuple):
    """All that acting needs."""

    agent: Agent
    params: Params  # on the host
    scaler: Standardiser
    act_low: np.ndarray  # [A], the range of the actions it learned from
    act_high: np.ndarray  # [A]

    @property
    def n_obs(self) -> int:
        """Size of an observation."""
        return len(self.scaler.mean)

    @property
    def n_act(self) -> int:
        """Size of an action."""
        return len(self.act_low)

    def begin(self) -> Any:
        """The memory before an episode's first step."""
        return self.agent.begin(self.n_obs, self.n_act)


class Weights(NamedTuple):
    """A player's arrays: a pytree, so that players of one agent can be stacked."""

    params: Params
    mean: np.ndarray  # [O]
    std: np.ndarray  # [O]
    middle: np.ndarray  # [A], the action that the agent calls 0
    half: np.ndarray  # [A], and how far it is from there to 1
    low: np.ndarray  # [A], the lowest action
    high: np.ndarray  # [A], the highest


def weights(player: TrainedPolicy) -> Weights:
    """What of a player is arrays."""
    low, high = np.asarray(player.act_low, np.float32), np.asarray(player.act_high, np.float32)
    mean, std = np.asarray(player.scaler.mean, np.float32), np.asarray(player.scaler.std, np.float32)
    return Weights(player.params, mean, std, low + (high - low) / 2, (high - low) / 2, low, high)


def advance(
    agent: Agent, own: Weights, carry: Any, obs: jax.Array, rew: jax.Array, key: jax.Array
) -> tuple[jax.Array, Any]:
    """One step of one player in one environment: raw obs[O] to its action [A] in the environment's range."""
    act, carry = agent.act(own.params, carry, (obs - own.mean) / own.std, rew, key)
    # The middle and half the range are rounded: without the clip many a 1 would come out a bit above the highest.
    return jnp.clip(act * own.half + own.middle, own.low, own.high), carry


class Policy:
    """A player to call: `action = policy(obs)`, with obs [O] or a batch [N, O] of environments.

    An agent with memory also wants to hear what its last action earned, `policy(obs, rew)`, and where an episode
    begins, `policy.reset()`.
    """

    def __init__(self, player: TrainedPolicy, env: str | None = None, source: object = "a policy") -> None:
        self.player, self.env, self.source = player, env, source
        self._own = jax.device_put(weights(player))
        self.reset()

    def __repr__(self) -> str:
        return f"Policy({type(self.player.agent).__name__}, {self.player.n_obs} numbers to {self.player.n_act})"

    def reset(self) -> None:
        """Forget: the next observation is an episode's first."""
        self._carry, self._lanes, self._time = None, None, 0

    def __call__(self, obs: Any, rew: Any = 0.0) -> np.ndarray:
        """The action, [A] or [N, A] float32."""
        obs, n_obs = np.asarray(obs, np.float32), self.player.n_obs
        if obs.ndim not in (1, 2) or obs.shape[-1] != n_obs:
            raise SsorlError(f"the policy takes observations [{n_obs}] or [N, {n_obs}], not of shape {obs.shape}")
        if not np.isfinite(obs).all():
            raise SsorlError("an observation holds NaN or infinity; the policy needs numbers")
        lanes = len(obs) if obs.ndim == 2 else None
        carry = self._carry
        if self._time == 0 or not jax.tree.leaves(carry):  # without a memory the number of lanes may change at will
            carry = jax.tree.map(lambda x: np.broadcast_to(x, (lanes or 1, *np.shape(x))), self.player.begin())
        elif lanes != self._lanes:
            raise SsorlError(f"the policy remembers {_some(self._lanes)}, not {_some(lanes)}; call reset() before")
        rew = np.broadcast_to(np.asarray(rew, np.float32), (lanes or 1,))
        act, self._carry = _act(self.player.agent, self._own, carry, np.atleast_2d(obs), rew, self._time)
        self._lanes, self._time = lanes, self._time + 1
        return np.array(act if lanes is not None else act[0])


def _some(lanes: int | None) -> str:
    return "one environment" if lanes is None else f"a batch of {lanes}"


@partial(jax.jit, static_argnames="agent")
def _act(agent: Agent, own: Weights, carry: Any, obs: jax.Array, rew: jax.Array, time: int) -> tuple[jax.Array, Any]:
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.fold_in(jax.random.key(0), time)))(jnp.arange(len(obs)))
    return jax.vmap(partial(advance, agent, own))(carry, obs, rew, keys)


def find_all(path: Path | str, variant: str | None = None) -> list[Path]:
    """The policy files a path stands for: itself, or those of a run folder's variant (ss) by seed; `all`: every one."""
    path = Path(path)
    if not path.is_dir():
        if not path.exists():
            raise SsorlError(f"{path}: there is no such policy file or run folder")
        if variant is not None:
            raise _one_policy(path, "variant", variant)
        return [path]
    variant = variant or "ss"
    there = sorted((path / "policies").glob("*-*.npz"), key=_variant_and_seed)
    found = [file for file in there if variant in ("all", _variant_and_seed(file)[0])]
    if not found:
        names = ", ".join(file.stem for file in there) or "none"
        parts = sorted(one.parent.parent for one in path.glob("*/policies/*-*.npz"))
        if not there and parts:
            raise SsorlError(f"{path}: holds several runs; name one of them, such as {parts[0]}")
        raise SsorlError(f"{path}: holds no {variant} policy (policies/VARIANT-SEED.npz); there are: {names}")
    return found


def _one_policy(path: Path | str, what: str, value: object) -> SsorlError:
    """What to say where a file is asked for some part of it."""
    return SsorlError(f"{path}: is one policy, so the {what} {value} means nothing; leave it out or name a run folder")


def _variant_and_seed(file: Path) -> tuple[str, int]:
    variant, _, seed = file.stem.rpartition("-")
    return variant, int(seed) if seed.isdecimal() else -1


def load_policy(path: Path | str, variant: str | None = None, seed: int | None = None) -> Policy:
    """A saved policy, ready to call: a policy file, or a run folder's policy of a variant (ss) and a seed (the first).

    Scaling of observations and actions is inside: `action = load_policy(path)(obs)`.
    """
    from ssorl.evaluation.policy_file import load_policy_file

    if variant == "all" and Path(path).is_dir():
        raise SsorlError(f"{path}: one policy is asked for; choose the variant baseline, ss or oracle")
    files = find_all(path, variant)
    if seed is not None and not Path(path).is_dir():
        raise _one_policy(path, "seed", seed)
    if seed is not None:
        there = {_variant_and_seed(file)[1]: file for file in files}
        if seed not in there:
            raise SsorlError(
                f"{path}: holds no {variant or 'ss'} policy of seed {seed}; it has {', '.join(map(str, there))}"
            )
        files = [there[seed]]
    file = load_policy_file(files[0])
    return Policy(TrainedPolicy(file.agent, file.params, file.scaler, file.act_low, file.act_high), file.env, files[0])
