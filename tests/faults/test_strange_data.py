"""Strange but valid data through the whole pipeline gives finite numbers in range, or one clear sentence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.systems import TINY, hide

import ssorl
from ssorl.data import Episodes, Meta
from ssorl.data.validate import build
from ssorl.idm import IDMS
from ssorl.utils.errors import SsorlError
from ssorl.utils.files import read_npz

SETTINGS = {"hidden": (8,), "batch": 16, "updates": 20}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(IDMS, "robust-quick", replace(TINY, hidden=(8,), steps=40, validate_every=20))
    monkeypatch.setitem(IDMS, "blend-quick", replace(TINY, hidden=(8,), steps=40, validate_every=20))
    monkeypatch.setattr("ssorl.pipeline.scoring.FQE_UPDATES", 20)


def system(lengths, n_obs: int = 4, n_act: int = 2, low: float = -1.0, high: float = 1.0) -> Episodes:
    """Return trajectories whose states move with the actions; the reward is the first action."""
    rng = np.random.default_rng(0)
    lengths, middle, half = np.asarray(lengths), (low + high) / 2, (high - low) / 2
    act = rng.uniform(-1, 1, (int(lengths.sum()), n_act)).astype(np.float32)
    push = rng.standard_normal((n_act, n_obs)) / n_act
    obs = []
    for end in np.cumsum(lengths):
        own = act[end - lengths[len(obs)] : end] @ push
        obs.append(np.concatenate([rng.standard_normal((1, n_obs)), 0.1 * np.cumsum(own, 0)]))
    meta = Meta(source="strange", act_low=(low,) * n_act, act_high=(high,) * n_act, act_range="declared")
    rows = np.concatenate(obs).astype(np.float32)
    return build(rows, middle + half * act, act[:, 0].copy(), np.zeros(len(act), bool), lengths, meta)


def gaps(eps: Episodes) -> Episodes:
    """Hide the actions of every third step and of the last trajectories."""
    return hide(eps, (np.arange(eps.n_steps) % 3 == 1) | (np.arange(eps.n_steps) > 0.7 * eps.n_steps))


PLAIN = [15] * 20
CASES = {
    "constant dimensions": lambda: replace(e := system(PLAIN), obs=e.obs * np.array([1, 0, 1, 0], np.float32)),
    "rewards of 1e6": lambda: replace(e := system(PLAIN), rew=e.rew * np.float32(1e6)),
    "rewards that never change": lambda: replace(e := system(PLAIN), rew=np.ones_like(e.rew)),
    "actions in [0, 5]": lambda: system(PLAIN, low=0.0, high=5.0),
    "an action that never changes": lambda: replace(e := system(PLAIN), act=e.act * np.array([1, 0], np.float32)),
    "per-step gaps": lambda: gaps(system(PLAIN)),
    # Each case compiles programs for its own shapes, so there are few cases, each strange in two ways.
    "one trajectory, of 100,000 steps": lambda: gaps(system([100_000])),
    "states of one number, episodes of 2 steps": lambda: system([2] * 150, n_obs=1, n_act=1),
    "300 states and 40 actions": lambda: system(PLAIN, n_obs=300, n_act=40),
}


@pytest.mark.parametrize("case", CASES)
def test_pipeline_trains_on_strange_data(tmp_path, case):
    eps = CASES[case]()
    split: dict = {} if not eps.labelled.all() else {"fraction": 0.3}
    done = ssorl.run(eps, out=tmp_path / "r", agent="td3bc", settings=SETTINGS, **split)
    for name, score in done.scores.items():
        values = np.array(score["returns"])
        assert np.isfinite([score["mean"], score["low"], score["high"]]).all() and np.isfinite(values).all(), name
    low, high = eps.meta.low, eps.meta.high
    proxies = read_npz(tmp_path / "r" / "proxies" / "0.npz")
    act, std = proxies["act"], proxies["act_std"]
    assert len(act) and (act >= low).all() and (act <= high).all() and np.isfinite(std).all() and (std >= 0).all()
    action = ssorl.load_policy(done.folder)(eps.obs[:7])
    assert action.shape == (7, eps.n_act) and (action >= low).all() and (action <= high).all()
    assert (done.folder / "report.html").is_file() and done.content["kind"] == "fqe"
    mse = done.content["idm"]["validation_mse"]
    assert mse is not None and 0 <= mse < 5  # for actions in [-1, 1]


SENTENCES: dict = {
    "one trajectory": (lambda: system([50]), {}, "0.1 of 1 trajectories rounds to none"),
    "one trajectory, all of it kept": (lambda: system([50]), {"fraction": 1.0, "quality": 100}, "hides no actions"),
    "all labelled, nothing to hide": (lambda: system(PLAIN), {"fraction": 1.0, "quality": 100}, "hides no actions"),
    "no action at all": (lambda: hide(system(PLAIN), slice(None)), {}, "no step has an action"),
    "only zero rewards": (
        lambda: replace(e := system(PLAIN), rew=np.zeros_like(e.rew)),
        {"fraction": 0.3},
        "every reward is 0, so TD3BC has nothing to learn from; add rewards",
    ),
    "one action": (lambda: hide(system(PLAIN), slice(1, None)), {}, "1 steps have an action and at least 2"),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_impossible_data_raises(tmp_path, case):
    make, choices, words = SENTENCES[case]
    with pytest.raises(SsorlError, match=words) as refused:
        ssorl.run(make(), out=tmp_path / "r", agent="td3bc", settings=SETTINGS, **choices)
    assert "\n" not in str(refused.value) and ("; " in str(refused.value) or ", so" in str(refused.value))
