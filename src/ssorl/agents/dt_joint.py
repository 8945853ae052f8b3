"""DT-Joint: a Decision Transformer that learns from unlabelled trajectories by predicting states and rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ssorl.agents.base import Metrics
from ssorl.agents.dt import DT, average, policy_loss
from ssorl.agents.gpt import initial_linear, linear
from ssorl.agents.windows import BothWindows, Window
from ssorl.utils.networks import Params


@dataclass(frozen=True)
class DTJoint(DT):
    """DT-Joint, the paper's comparison without proxy actions (arXiv 2210.06518, appendix on DT-Joint).

    E_labelled [nll + e] + E_unlabelled [e] with e = lambda_s |s_{t+1} - s^|^2 + lambda_r |r_t - r^|^2. An update draws
    separate sequences for each of the two means. A missing action is a token of zeros.

    The paper does not say which token predicts which value. Here the state's token predicts the action, as in DT, and
    the action's token predicts the next state and the reward, each with one linear layer. States are standardised,
    rewards are not scaled. The bound of the entropy is DT's, over labelled steps.
    """

    unlabelled: int = 256  # sequences in an update that start at a step without an action, besides `batch` with one
    lambda_s: float = 0.01  # weight of the squared error of the next state, summed over its dimensions
    lambda_r: float = 0.1  # weight of the squared error of the reward

    # `revision` is inherited from DT, whose code this agent shares; a change that alters DT-Joint alone sets it to
    # `DT.revision + 1`.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = DT.PRESETS | {"quick": DT.PRESETS["quick"] | {"unlabelled": 64}}

    @property
    def view(self) -> BothWindows:
        """A sampler of windows that start at a step with an action, and of windows that start at a step without one."""
        return BothWindows(self.batch, self.unlabelled, self.context)

    def initial(self, n_obs: int, n_act: int) -> dict[str, Any]:
        """Return the distributions of the initial weights of DT and of the two prediction heads."""
        std = self.width**-0.5
        heads = {"next_obs": initial_linear(self.width, n_obs, std), "rew": initial_linear(self.width, 1, std)}
        return super().initial(n_obs, n_act) | heads

    def loss(self, params: Params, batch: Window, temperature: jax.Array, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """Return the sum of DT's loss and the losses of the two predictions, and metrics."""
        k_drop, k_sample = jax.random.split(key)
        out = self.features(params, batch, slice(None), k_drop)
        out = out.reshape(*batch.rew.shape, 3, self.width)
        loss, metrics = policy_loss(params, out[..., 1, :], batch, temperature, k_sample, self.edge)
        next_obs, rew = (linear(params[name], out[..., 2, :]) for name in ("next_obs", "rew"))
        obs_loss = self._sum_of_means(jnp.square(next_obs - batch.next_obs).sum(-1), batch.mask)
        rew_loss = self._sum_of_means(jnp.square(rew[..., 0] - batch.rew), batch.mask)
        loss = loss + self.lambda_s * obs_loss + self.lambda_r * rew_loss
        return loss, metrics | {"loss": loss, "obs_loss": obs_loss, "rew_loss": rew_loss}

    def _sum_of_means(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Return the mean over the windows that start with an action plus the mean over the others."""
        n = self.batch
        return average(x[:n], mask[:n]) + average(x[n:], mask[n:])
