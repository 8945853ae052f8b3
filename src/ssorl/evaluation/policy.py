"""Trained policies that act: they take raw observations and return actions in the environment's range."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssorl.agents import agent_class
from ssorl.agents.base import Agent
from ssorl.data.stats import Standardiser
from ssorl.utils.display import html_table, short_repr
from ssorl.utils.errors import SsorlError
from ssorl.utils.networks import Params

if TYPE_CHECKING:
    from ssorl.evaluation.export import Exported


class TrainedPolicy(NamedTuple):
    """The agent, weights and scales that a policy needs to act."""

    agent: Agent
    params: Params  # weights, in host memory
    scaler: Standardiser  # scaling of observations
    act_low: np.ndarray  # [A], range of the actions in the training data
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
        """Return the agent's memory before the first step of an episode."""
        return self.agent.begin(self.n_obs, self.n_act)

    def facts(self) -> dict[str, object]:
        """Return the facts that a repr shows, by name."""
        n_weights = sum(int(np.size(x)) for x in jax.tree.leaves(self.params))
        return {"agent": self.agent, "observations": self.n_obs, "actions": self.n_act, "weights": n_weights}

    def __repr__(self) -> str:
        return short_repr("TrainedPolicy", self.facts())

    def _repr_html_(self) -> str:
        return html_table("TrainedPolicy", self.facts())


class Weights(NamedTuple):
    """The arrays of a trained policy as a pytree, so that policies of the same agent can be stacked."""

    params: Params
    mean: np.ndarray  # [O]
    std: np.ndarray  # [O]
    middle: np.ndarray  # [A], middle of the action range: the agent's action 0
    half: np.ndarray  # [A], half the action range: the distance to the agent's action 1
    low: np.ndarray  # [A], lowest action
    high: np.ndarray  # [A], highest action


def weights(player: TrainedPolicy) -> Weights:
    """Return the arrays of a trained policy."""
    low, high = np.asarray(player.act_low, np.float32), np.asarray(player.act_high, np.float32)
    mean, std = np.asarray(player.scaler.mean, np.float32), np.asarray(player.scaler.std, np.float32)
    return Weights(player.params, mean, std, low + (high - low) / 2, (high - low) / 2, low, high)


def advance(
    agent: Agent, own: Weights, carry: Any, obs: jax.Array, rew: jax.Array, key: jax.Array
) -> tuple[jax.Array, Any]:
    """Take one step of one policy in one environment.

    Args:
        agent: the policy's agent.
        own: the policy's arrays.
        carry: the agent's memory.
        obs: raw observation [O].
        rew: reward of the previous action, 0 before the first.
        key: random key.

    Returns:
        The action [A] in the environment's range, and the new memory.
    """
    act, carry = agent.act(own.params, carry, (obs - own.mean) / own.std, rew, key)
    # `middle` and `half` are rounded to float32: without the clip, an action of 1 could exceed `high` in the last bit.
    return jnp.clip(act * own.half + own.middle, own.low, own.high), carry


class Policy:
    """A trained policy to call: `action = policy(obs)`, with obs [O] or a batch [N, O] of N environments.

    For an agent with memory, also pass the reward of the last action, `policy(obs, rew)`, and call `policy.reset()`
    at the start of an episode.
    """

    def __init__(self, player: TrainedPolicy, env: str | None = None, source: object = "a policy") -> None:
        self.player, self.env, self.source = player, env, source
        self._own = jax.device_put(weights(player))
        self.reset()

    def facts(self) -> dict[str, object]:
        """Return the facts that a repr shows, by name."""
        return {"env": self.env, **self.player.facts()}

    def __repr__(self) -> str:
        return short_repr("Policy", self.facts())

    def _repr_html_(self) -> str:
        return html_table("Policy", self.facts())

    def save(self, path: Path | str, force: bool = False) -> Path:
        """Write the policy to a file that `load_policy`, `ssorl evaluate` and `ssorl export` read.

        Args:
            path: the file, such as `policy.npz`.
            force: replace an existing file.

        Returns:
            The path.

        Raises:
            SsorlError: the path exists already, or the file cannot be written.
        """
        from ssorl.evaluation.policy_file import save_policy

        _check_free(path, force)
        save_policy(path, *self.player, env=self.env)
        return Path(path)

    def export(self, path: Path | str, format: Literal["onnx", "jax"] = "onnx", force: bool = False) -> Exported:
        """Write the policy for use without ssorl, as `ssorl export` does, after comparing the file with the policy.

        Args:
            path: the file, such as `policy.onnx`.
            format: `onnx`, or `jax` for the StableHLO of `jax.export`.
            force: replace an existing file.

        Returns:
            The path, the names and shapes of inputs and outputs, and the largest difference from the policy.

        Raises:
            SsorlError: the path exists already, a package is missing, or the exported policy acts differently.
        """
        from ssorl.evaluation.export import export

        _check_free(path, force)
        return export(self.player, path, format, {} if self.env is None else {"env": self.env})

    def reset(self) -> None:
        """Clear the memory: the next observation is the first of an episode."""
        self._carry, self._n_envs, self._time = None, None, 0

    def __call__(self, obs: Any, rew: Any = 0.0) -> np.ndarray:
        """Return the action for an observation.

        Args:
            obs: raw observations, [O] or [N, O].
            rew: reward of the previous action, a number or [N]; only agents with memory use it.

        Returns:
            Actions in the environment's range, [A] or [N, A] float32.

        Raises:
            SsorlError: the shape is wrong, a value is not finite, or N changed since the last reset.
        """
        obs, n_obs = np.asarray(obs, np.float32), self.player.n_obs
        if obs.ndim not in (1, 2) or obs.shape[-1] != n_obs:
            raise SsorlError(f"the policy takes observations [{n_obs}] or [N, {n_obs}], not of shape {obs.shape}")
        if not np.isfinite(obs).all():
            raise SsorlError("an observation contains NaN or infinity; the policy needs finite numbers")
        n_envs = len(obs) if obs.ndim == 2 else None
        carry = self._carry
        if self._time == 0 or not jax.tree.leaves(carry):  # without memory, the number of environments may change
            carry = jax.tree.map(lambda x: np.broadcast_to(x, (n_envs or 1, *np.shape(x))), self.player.begin())
        elif n_envs != self._n_envs:
            raise SsorlError(
                f"the policy's memory is that of {_count(self._n_envs)}, not of {_count(n_envs)}; call reset() first"
            )
        rew = np.broadcast_to(np.asarray(rew, np.float32), (n_envs or 1,))
        act, self._carry = _act(self.player.agent, self._own, carry, np.atleast_2d(obs), rew, self._time)
        self._n_envs, self._time = n_envs, self._time + 1
        return np.array(act if n_envs is not None else act[0])


def _check_free(path: Path | str, force: bool) -> None:
    if Path(path).exists() and (Path(path).is_dir() or not force):
        cure = "name a file" if Path(path).is_dir() else "choose another name or pass force=True"
        raise SsorlError(f"{path}: exists already; {cure}")


def _count(n_envs: int | None) -> str:
    return "one environment" if n_envs is None else f"a batch of {n_envs}"


@partial(jax.jit, static_argnames="agent")
def _act(agent: Agent, own: Weights, carry: Any, obs: jax.Array, rew: jax.Array, time: int) -> tuple[jax.Array, Any]:
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.fold_in(jax.random.key(0), time)))(jnp.arange(len(obs)))
    return jax.vmap(partial(advance, agent, own))(carry, obs, rew, keys)


def find_policies(path: Path | str, variant: str | None = None) -> list[Path]:
    """Return the policy files that a path names.

    Args:
        path: a policy file, or a run folder.
        variant: of a run folder, the variant ("ss" by default), or "all".

    Returns:
        The file itself, or the policies of the run folder in the order of variant and seed.

    Raises:
        SsorlError: the path does not exist, has no such policy, or is a file and a variant is given.
    """
    path = Path(path)
    if not path.is_dir():
        if not path.exists():
            raise SsorlError(f"{path}: does not exist; name a policy file or a run folder")
        if variant is not None:
            raise _single_file_error(path, "variant", variant)
        return [path]
    variant = variant or "ss"
    files = sorted((path / "policies").glob("*-*.npz"), key=_variant_and_seed)
    selected = [file for file in files if variant in ("all", _variant_and_seed(file)[0])]
    if not selected:
        names = ", ".join(file.stem for file in files) or "none"
        runs = sorted(file.parent.parent for file in path.glob("*/policies/*-*.npz"))
        if not files and runs:
            raise SsorlError(f"{path}: contains several runs; name one of them, such as {runs[0]}")
        raise SsorlError(f"{path}: contains no {variant} policy (policies/VARIANT-SEED.npz); its policies are: {names}")
    return selected


def _single_file_error(path: Path | str, option: str, value: object) -> SsorlError:
    return SsorlError(
        f"{path}: is a single policy, so the {option} {value} has no effect; leave it out or name a run folder"
    )


def _variant_and_seed(file: Path) -> tuple[str, int]:
    variant, _, seed = file.stem.rpartition("-")
    return variant, int(seed) if seed.isdecimal() else -1


def load_policy(
    path: Path | str,
    variant: str | None = None,
    seed: int | None = None,
    agent: str | Agent | type[Agent] | None = None,
) -> Policy:
    """Load a saved policy.

    The policy scales observations and actions itself: `action = load_policy(path)(obs)`.

    Args:
        path: a policy file, or a run folder.
        variant: of a run folder, the variant: "baseline", "ss" (the default) or "oracle".
        seed: of a run folder, the seed; by default, the first.
        agent: the policy's agent as `module:Class`, a class or an instance. Needed only if it is not built in,
            registered or installed, because a file may not import modules.

    Raises:
        SsorlError: the path does not exist or has no such policy, or the policy's agent is not known.
        DataError: the file is damaged or not a policy.
    """
    from ssorl.evaluation.policy_file import load_policy_file

    if variant == "all" and Path(path).is_dir():
        raise SsorlError(f"{path}: only one policy can be loaded; choose the variant baseline, ss or oracle")
    files = find_policies(path, variant)
    if seed is not None and not Path(path).is_dir():
        raise _single_file_error(path, "seed", seed)
    if seed is not None:
        by_seed = {_variant_and_seed(file)[1]: file for file in files}
        if seed not in by_seed:
            raise SsorlError(
                f"{path}: contains no {variant or 'ss'} policy of seed {seed}; it has {', '.join(map(str, by_seed))}"
            )
        files = [by_seed[seed]]
    file = load_policy_file(files[0], None if agent is None else agent_class(agent))
    return Policy(TrainedPolicy(file.agent, file.params, file.scaler, file.act_low, file.act_high), file.env, files[0])
