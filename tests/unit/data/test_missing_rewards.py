"""Trajectories without rewards have NaN in `rew`: labelling and BC accept them, all else raises with a cure."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import h5py
import jax
import numpy as np
import pytest
from support.episodes import make_episodes

from ssorl.agents import make
from ssorl.agents.base import require_rewards
from ssorl.data import load, save
from ssorl.data.formats import open_parts
from ssorl.data.split import apply, coupled, decoupled, first_copies, wide
from ssorl.data.stats import profile
from ssorl.data.stream import open_stream
from ssorl.data.validate import READ_ALL, build
from ssorl.idm.fill import fill, resolve
from ssorl.idm.serialise import load as load_model
from ssorl.idm.serialise import save as save_model
from ssorl.training.engine import TrainingRun, train
from ssorl.utils.errors import DataError


@pytest.fixture
def bare():
    """Six trajectories; the second and the last have no rewards."""
    eps = make_episodes([3, 4, 2, 5, 3, 4])
    rew = eps.rew.copy()
    rew[3:7] = rew[-4:] = np.nan
    return replace(eps, rew=rew)


@pytest.fixture
def without(bare):
    return replace(bare, rew=np.full_like(bare.rew, np.nan))


def test_returns_are_nan_only_where_rewards_are_missing(bare):
    full = make_episodes([3, 4, 2, 5, 3, 4])
    assert bare.rewarded.tolist() == [True, False, True, True, True, False]
    assert np.isnan(bare.returns[[1, 5]]).all()
    has = np.repeat(bare.rewarded, bare.lengths)
    np.testing.assert_allclose(bare.returns[bare.rewarded], full.returns[bare.rewarded])
    np.testing.assert_allclose(bare.returns_to_go()[has], full.returns_to_go()[has], atol=1e-5)
    assert np.isnan(bare.returns_to_go()[~has]).all()


def test_partly_missing_rewards_raise(bare):
    parts = (bare.obs, bare.act, bare.rew, bare.terminated, bare.lengths, bare.meta)
    assert build(*parts).same(bare)
    rew = bare.rew.copy()
    rew[8] = np.nan
    with pytest.raises(DataError, match=r"trajectory 2 has the reward nan at step 1.*all rewards of a trajectory, may"):
        build(*parts[:2], rew, *parts[3:])
    rew = bare.rew.copy()
    rew[8] = np.inf
    with pytest.raises(DataError, match=r"trajectory 2 has the reward inf at step 1"):
        build(*parts[:2], rew, *parts[3:])


@pytest.mark.parametrize("suffix", [".npz", ".hdf5", ".pkl"])
def test_files_preserve_missing_rewards(bare, tmp_path, suffix):
    save(bare, tmp_path / f"set{suffix}")
    assert load(tmp_path / f"set{suffix}").same(bare)


def test_the_profile_reports_missing_rewards_and_is_valid_json(bare, without):
    summary = profile(bare)
    assert json.loads(json.dumps(summary, allow_nan=False))["return"]["min"] == bare.returns[bare.rewarded].min()
    assert any(line.startswith("2 trajectories have no rewards") for line in summary["warnings"])
    summary = profile(without)
    assert summary["return"] is None and not any("every reward" in line for line in summary["warnings"])
    assert any(line.startswith("no trajectory has rewards") for line in summary["warnings"])


def test_only_splits_by_return_need_rewards(bare):
    draws = [lambda: coupled(bare, 0.5, 50), lambda: decoupled(bare, "low", 0.2), lambda: wide(bare, 5, 3)]
    for draw in draws:
        with pytest.raises(DataError, match=r"2 of 6 trajectories have no rewards \(.* number 1\).*--quality"):
            draw()
    drawn = coupled(bare, 0.5, 100)
    assert len(drawn.labelled) == 3 and apply(drawn, bare).labelled.any()


def test_copies_are_detected_without_rewards(without):
    twice = without.take(np.array([0, 1, 0, 2]))
    assert first_copies(twice).tolist() == [0, 1, 0, 3]


def test_agents_that_need_rewards_raise_and_name_bc(bare, without):
    for name in ("td3bc", "cql", "iql", "dt"):
        with pytest.raises(DataError, match=r"2 of 6 trajectories have no rewards, which .*--agent bc"):
            require_rewards(make(name), bare)
    with pytest.raises(DataError, match=r"every reward is 0"):
        require_rewards(make("iql"), replace(bare, rew=np.zeros_like(bare.rew)))
    bc = make("bc", hidden=(4,), batch=4, updates=2)
    require_rewards(bc, without)
    with pytest.raises(DataError, match=r"there is no environment.*--env"):
        require_rewards(bc, without, valued_on_data=True)
    done = train(bc, TrainingRun(without, 0), every=2)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(done.policy))


def test_labelling_needs_no_rewards(without, tmp_path):
    eps = make_episodes([12] * 8, seed=3)
    eps = replace(eps, rew=np.full_like(eps.rew, np.nan))
    act = eps.act.copy()
    act[eps.start[4] :] = np.nan
    done = fill(replace(eps, act=act), resolve("paper", "quick", steps=4, members=2))
    assert done.eps.labelled.all() and done.report["by_return"] == []
    json.dumps(done.report, allow_nan=False)
    save_model(done.ready, tmp_path / "model")
    assert load_model(tmp_path / "model").taught == done.ready.taught

    from ssorl.report.labels import plot  # the figure works without returns

    plot(done.report, tmp_path / "labels.png")
    assert (tmp_path / "labels.png").stat().st_size > 0


def npz_without(eps, path):
    np.savez(path, obs=eps.obs, act=eps.act, start=eps.start, terminated=eps.terminated)


def d4rl_without(eps, path):
    with h5py.File(path, "w") as file:
        file["observations"], file["next_observations"] = eps.obs[eps.obs_row], eps.obs[eps.obs_row + 1]
        file["actions"], file["terminals"], file["timeouts"] = eps.act, eps.terminated, eps.truncated


def pickle_without(eps, path):
    items = [
        {
            "observations": one.obs[:-1],
            "next_observations": one.obs[1:],
            "actions": one.act,
            "terminals": one.terminated,
        }
        for one in (eps[e] for e in range(len(eps)))
    ]
    path.write_bytes(pickle.dumps(items))


@pytest.mark.parametrize(
    ("suffix", "write"), [(".npz", npz_without), (".hdf5", d4rl_without), (".pkl", pickle_without)]
)
def test_files_without_rewards_are_read(without, tmp_path, suffix, write):
    path = tmp_path / f"set{suffix}"
    write(without, path)
    got = load(path)
    assert got.same(without)
    if suffix != ".pkl":
        parts = open_stream(open_parts(path), READ_ALL, 5).parts()
        assert np.isnan(np.concatenate([part.eps.rew for part in parts])).all()


def test_a_file_without_rewards_and_actions_is_measured_by_its_states(without, tmp_path):
    np.savez(tmp_path / "set.npz", obs=without.obs, start=without.start)
    assert load(tmp_path / "set.npz").lengths.tolist() == without.lengths.tolist()
    np.savez(tmp_path / "bad.npz", obs=without.obs[1:], start=without.start)
    with pytest.raises(DataError, match="`start` must rise from 0 to the number of steps, 20"):
        load(tmp_path / "bad.npz")
