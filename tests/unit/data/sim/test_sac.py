"""Soft actor-critic against worked examples, the NumPy policy against the JAX actor, and resumed training."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssorl import envs
from ssorl.data.sim import policy as policies
from ssorl.data.sim import sac
from ssorl.data.sim.outputs import snapshot_every
from ssorl.data.sim.train import TrainConfig, train
from ssorl.envs.pointmass import PointMass
from ssorl.utils.errors import SsorlError
from ssorl.utils.networks import adam, init_adam, init_mlp, layer_norm, mlp

CFG = sac.SacConfig(n_obs=2, n_act=1, hidden=(16, 16), batch=32, capacity=64, lr=5e-3)


def test_mlp_and_layer_norm_of_a_worked_example():
    layers = [
        {"w": jnp.array([[1.0, -1.0]]), "b": jnp.array([0.0, 1.0])},
        {"w": jnp.array([[2.0], [3.0]]), "b": jnp.array([0.5])},
    ]
    # hidden of 2: relu(2, -1) = (2, 0); of -2: relu(-2, 3) = (0, 3)
    np.testing.assert_allclose(mlp(layers, jnp.array([[2.0], [-2.0]])), [[4.5], [9.5]])
    np.testing.assert_allclose(layer_norm(jnp.array([1.0, 3.0])), [-1.0, 1.0], rtol=1e-5)


def test_the_first_adam_step_has_the_size_of_the_learning_rate():
    params, state = adam(jnp.array([1.0, 1.0]), jnp.array([5.0, -0.1]), init_adam(jnp.zeros(2)), 0.01)
    np.testing.assert_allclose(params, [0.99, 1.01], rtol=1e-5)
    assert int(state.step) == 1


def test_log_density_follows_from_the_change_of_variables():
    actor = init_mlp(jax.random.key(0), (2, 8, 2))
    obs, noise = jnp.array([0.3, -0.7]), jnp.array([0.4])
    mean, std = (np.asarray(x, np.float64) for x in sac.policy(actor, obs))
    act, log_prob = sac.sample(actor, obs, noise)
    raw = mean + std * 0.4
    np.testing.assert_allclose(act, np.tanh(raw), rtol=1e-5)
    normal = np.exp(-0.5 * 0.4**2) / (std * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(log_prob, np.log(normal / (1 - np.tanh(raw) ** 2)).sum(), rtol=1e-5)


def test_the_target_bootstraps_at_time_limits_but_not_at_terminations():
    learner = sac.init_learner(CFG, jax.random.key(1))
    next_obs = jnp.ones((2, 2))
    batch = sac.Batch(jnp.zeros((2, 2)), jnp.zeros((2, 1)), jnp.array([1.0, 2.0]), jnp.array([1.0, 0.0]), next_obs)
    noise = jnp.zeros((2, 1))
    act, log_prob = sac.sample(learner.actor, next_obs, noise)
    q = sac.q_values(CFG, learner.target, next_obs, act)
    expect = 1.0 + 0.99 * (float(q[:, 0].min()) - 1.0 * float(log_prob[0]))  # alpha starts at 1
    target = sac.critic_target(CFG, learner, batch, noise)
    np.testing.assert_allclose(target, [expect, 2.0], rtol=1e-5)


def test_unpack_inverts_pack():
    rng = np.random.default_rng(0)
    batch = sac.Batch(*(jnp.array(rng.normal(size=s)) for s in [(3, 2), (3, 1), (3,), (3,), (3, 2)]))
    for a, b in zip(batch, sac.unpack(CFG, sac.pack(batch)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_sac_learns_a_one_step_bandit_and_seeds_are_independent():
    # reward -(act - obs_0)^2, every episode one step long: the best action is obs_0.
    rng = np.random.default_rng(0)
    both, other = sac.init(CFG, (0, 1)), sac.init(CFG, (1, 5))
    obs = rng.uniform(-0.8, 0.8, (250, 2, 16, 2)).astype(np.float32)
    act = rng.uniform(-1, 1, (250, 2, 16, 1)).astype(np.float32)
    for i in range(250):
        rew = -np.square(act[i] - obs[i, ..., :1])[..., 0]
        new = sac.Batch(obs[i], act[i], rew, np.zeros((2, 16), np.float32), obs[i])
        both, _, metrics = sac.iterate(CFG, 2, both, new, obs[i], np.int32(i))
        if i < 3:
            # Seed 1 gives the same numbers next to another seed and at another index.
            swapped = jax.tree.map(lambda x: x[::-1], new)
            other, _, _ = sac.iterate(CFG, 2, other, swapped, obs[i, ::-1], np.int32(i))
            if i == 2:
                for a, b in zip(jax.tree.leaves(both), jax.tree.leaves(other), strict=True):
                    np.testing.assert_allclose(a[1], b[0], rtol=2e-3, atol=1e-5)
    mean = jnp.tanh(jax.vmap(sac.policy)(both.learner.actor, obs[0])[0])[..., 0]
    assert np.abs(mean - obs[0][..., 0]).mean() < 0.15
    assert np.isfinite(metrics["critic_loss"]).all()


def test_the_numpy_policy_equals_the_jax_actor(tmp_path):
    actor = init_mlp(jax.random.key(3), (5, 32, 32, 4))
    flat = [np.array(layer[k]) for layer in actor for k in "wb"]
    ours = policies.from_weights(flat, np.array([-1.0, -2.0]), np.array([1.0, 2.0]))
    rng = np.random.default_rng(0)
    obs, noise = rng.normal(size=(7, 5)), rng.standard_normal((7, 2)).astype(np.float32)
    act, _ = sac.sample(actor, jnp.array(obs, jnp.float32), noise)
    np.testing.assert_allclose(ours.act(obs, noise), act * np.array([1.0, 2.0]), atol=1e-5)
    np.testing.assert_allclose(
        ours.mean(obs), np.tanh(sac.policy(actor, jnp.array(obs, jnp.float32))[0]) * [1.0, 2.0], atol=1e-5
    )
    assert policies.LOG_STD == sac.LOG_STD
    np.testing.assert_array_equal(ours.act(obs[:3], noise[:3]), ours.act(obs, noise)[:3])
    policies.save(tmp_path / "p.npz", ours, {"seed": 3}, dtype=np.float32)
    again = policies.load(tmp_path / "p.npz")
    np.testing.assert_array_equal(again.act(obs, noise), ours.act(obs, noise))
    assert json.loads((tmp_path / "p.json").read_text()) == {"seed": 3}


def test_resumed_training_equals_uninterrupted_training(tmp_path, capsys):
    def config(steps):
        return TrainConfig(
            "hopper", seeds=(0, 7), steps=steps, n_envs=2, warmup=20, hidden=(8, 8), batch=8, capacity=150,
            eval_every=100, eval_episodes=2, threads=1,
        )  # fmt: skip

    assert train(config(400), tmp_path / "whole")
    assert train(config(240), tmp_path / "parts")
    assert not train(config(400), tmp_path / "parts", max_seconds=0.0)
    assert train(config(400), tmp_path / "parts")
    with np.load(tmp_path / "whole/checkpoint.npz") as a, np.load(tmp_path / "parts/checkpoint.npz") as b:
        assert sorted(a.files) == sorted(b.files)
        for name in a.files:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)
    curves = [(tmp_path / p / "curve.jsonl").read_text() for p in ("whole", "parts")]
    assert curves[0] == curves[1] and len(curves[0].splitlines()) == 8
    assert "400 steps" in capsys.readouterr().err
    with pytest.raises(SsorlError, match="batch was 8"):
        train(replace(config(400), batch=16), tmp_path / "parts")


def test_snapshots_contain_the_actor_and_its_returns(tmp_path):
    config = TrainConfig(
        "Pendulum-v1", seeds=(0,), steps=10_000, n_envs=50, warmup=10_001, hidden=(8, 8), batch=8, utd=0.02,
        eval_every=10_000, eval_episodes=2,
    )  # fmt: skip
    train(config, tmp_path)
    snap = policies.load_snapshot(tmp_path / "seed-0/snapshots.npz", 10_000)
    with np.load(tmp_path / "checkpoint.npz") as f:
        np.testing.assert_array_equal(snap.layers[0][0], f["snap_w0"][0, 0].astype(np.float32))
    table = json.loads((tmp_path / "seed-0/snapshots.json").read_text())
    assert table[0]["step"] == 10_000 and table[0]["n"] == 32 and -2000 < table[0]["mean"] < 0
    np.testing.assert_array_equal(snap.act_high, [2.0])
    with pytest.raises(SsorlError, match="has no snapshot at step 5; choose one of"):
        policies.load_snapshot(tmp_path / "seed-0/snapshots.npz", 5)


def test_snapshots_of_a_long_run_take_less_than_15_mb():
    steps = range(10_000, 2_500_001, 5_000)
    n = sum(step % snapshot_every(step) == 0 for step in steps)
    per = 17 * 256 + 256 + 256 * 256 + 256 + 256 * 12 + 12
    assert n * per * 2 < 15e6


SMALL = TrainConfig(
    "pointmass", steps=160, n_envs=4, warmup=40, hidden=(8, 8), batch=8, eval_every=80, eval_episodes=2, threads=1
)


class OwnLimit(PointMass):
    """A point mass that truncates episodes after three steps itself, like environments of Gymnasium."""

    def reset(self, rng, mask=None):
        self.time = np.where(True if mask is None else mask, 0, getattr(self, "time", 0))
        return super().reset(rng, mask)

    def step(self, act):
        step = super().step(act)
        self.time = self.time + 1
        self.cut = (self.time >= 3) & ~step.terminated
        return step._replace(terminated=step.terminated | self.cut)


def test_the_environments_own_time_limit_bootstraps(tmp_path, monkeypatch):
    monkeypatch.setattr(envs, "make", lambda name, n_envs, threads: OwnLimit(n_envs))
    train(replace(SMALL, steps=40), tmp_path)
    with np.load(tmp_path / "checkpoint.npz") as f:
        state = next(f[name] for name in f.files if name.startswith("state/") and f[name].shape == (1, 40, 12))
        cont = sac.unpack(sac.SacConfig(4, 2), state[0]).cont
    inside = (np.abs(state[0, :, -4:-2]) <= 2).all(1)
    np.testing.assert_array_equal(cont, inside)  # 0 only where the mass left the arena
    assert json.loads((tmp_path / "seed-0/snapshots.json").read_text()) == []


def test_timed_checkpoints_survive_an_interruption(tmp_path, monkeypatch):
    """An interrupted run resumes from its last checkpoint and ends with the same state as an uninterrupted one."""
    monkeypatch.setattr("ssorl.data.sim.train.SAVE_SECONDS", 0.0)
    step, calls = PointMass.step, []

    def stop(self, act):
        calls.append(1)
        if len(calls) == 38:
            raise KeyboardInterrupt
        return step(self, act)

    with monkeypatch.context() as patch:
        patch.setattr(PointMass, "step", stop)
        with pytest.raises(KeyboardInterrupt):
            train(replace(SMALL, eval_every=1000), tmp_path / "parts")
    with np.load(tmp_path / "parts/checkpoint.npz") as f:
        assert json.loads(str(f["meta"]))["iteration"] > 0
    for name in ("parts", "whole"):
        assert train(replace(SMALL, eval_every=1000), tmp_path / name)
    with np.load(tmp_path / "whole/checkpoint.npz") as a, np.load(tmp_path / "parts/checkpoint.npz") as b:
        for name in a.files:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_a_run_that_has_more_steps_already_is_left_unchanged(tmp_path):
    train(SMALL, tmp_path)
    before = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    assert train(replace(SMALL, steps=80), tmp_path)
    assert {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()} == before


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "steps is 0; give a whole number from 1 up"),
        ({"seeds": (1, 1)}, "the seeds are 1 1; give at least one, without repeats"),
        ({"seeds": ()}, "the seeds are none; give at least one"),
        ({"seeds": (-1,)}, "the seed is -1; give a whole number"),
        ({"env": "nonesuch"}, "no environment 'nonesuch' .*doesn't exist"),
        ({"env": "CartPole-v1"}, "no environment 'CartPole-v1' .*needs box observations"),
    ],
)
def test_invalid_settings_raise_before_anything_is_written(tmp_path, wrong, message):
    with pytest.raises(SsorlError, match=message):
        train(replace(SMALL, **wrong), tmp_path / "out")
    assert not (tmp_path / "out").exists()
