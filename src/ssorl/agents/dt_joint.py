"""DT-Joint: a Decision Transformer that learns from trajectories without actions by predicting what they lead to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ssorl.agents.base import Metrics
from ssorl.agents.dt import DT, average, policy_loss
from ssorl.agents.gpt import linear, linear_draws
from ssorl.agents.windows import BothWindows, Window
from ssorl.utils.networks import Params


@dataclass(frozen=True)
class DTJoint(DT):
    """DT-Joint, the paper's comparison without proxy labels (arXiv 2210.06518, appendix on DT-Joint).

    E_labelled [nll + e] + E_unlabelled [e] with e = lambda_s |s_{t+1} - s^|^2 + lambda_r |r_t - r^|^2: a sum of two
    means, for each of which an update has sequences of its own. A missing action is a token of zeros. The paper does
    not say which token predicts what: here a state's token predicts its action, as in DT, and the action's token what
    follows it, the next state and the reward, each by one linear layer. States are standardised, rewards as they are.
    The entropy's bound is that of DT, over labelled steps.
    """

    unlabelled: int = 256  # sequences an update that start at a step without an action, beside `batch` with one
    lambda_s: float = 0.01  # weight of the squared error of the next state, summed over its dimensions
    lambda_r: float = 0.1  # weight of the squared error of the reward

    # Its `revision` is DT's, whose code it shares: a change that alters DT-Joint alone makes it `DT.revision + 1`.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = DT.PRESETS | {"quick": DT.PRESETS["quick"] | {"unlabelled": 64}}

    @property
    def view(self) -> BothWindows:
        """Sequences of both kinds."""
        return BothWindows(self.batch, self.unlabelled, self.context)

    def draws(self, n_obs: int, n_act: int) -> dict[str, Any]:
        """Those of DT and the two heads."""
        std = self.width**-0.5
        heads = {"next_obs": linear_draws(self.width, n_obs, std), "rew": linear_draws(self.width, 1, std)}
        return super().draws(n_obs, n_act) | heads

    def loss(self, params: Params, batch: Window, temperature: jax.Array, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """DT's loss and the two predictions'."""
        k_drop, k_sample = jax.random.split(key)
        out = self.read(params, batch, slice(None), k_drop)
        out = out.reshape(*batch.rew.shape, 3, self.width)
        loss, metrics = policy_loss(params, out[..., 1, :], batch, temperature, k_sample, self.edge)
        next_obs, rew = (linear(params[name], out[..., 2, :]) for name in ("next_obs", "rew"))
        obs_loss = self.both(jnp.square(next_obs - batch.next_obs).sum(-1), batch.mask)
        rew_loss = self.both(jnp.square(rew[..., 0] - batch.rew), batch.mask)
        loss = loss + self.lambda_s * obs_loss + self.lambda_r * rew_loss
        return loss, metrics | {"loss": loss, "obs_loss": obs_loss, "rew_loss": rew_loss}

    def both(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """The mean over the sequences with actions and that over those without, summed."""
        n = self.batch
        return average(x[:n], mask[:n]) + average(x[n:], mask[n:])
