"""Runs on different trajectories in one call have the results of training each alone."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from support.episodes import make_episodes

from ssorl.agents import make
from ssorl.agents.windows import Windows
from ssorl.data.stats import Standardiser, standardiser
from ssorl.training import memory
from ssorl.training.engine import TrainingRun, _group_size, train, train_many
from ssorl.training.memory import max_runs, sizes, table_bytes
from ssorl.training.scan import train_chunk
from ssorl.training.tables import Dataset, bases, distinct, make_pool, make_table, shape_for
from ssorl.utils.errors import DataError, SsorlError

AGENT = make("bc", hidden=(4,), batch=8, updates=12)
DT = make("dt", layers=1, heads=1, width=8, context=3, max_time=0, batch=4, updates=2)


@pytest.fixture(scope="module")
def runs():
    """Runs on three datasets of 15, 41 and 15 steps; the third differs from the first only in its rewards."""
    first, second = make_episodes([5, 4, 6]), make_episodes([20, 12, 9], seed=1)
    third = replace(first, rew=first.rew + 1)
    act = second.act.copy()
    act[7:] = np.nan
    return [
        TrainingRun(first, 0),
        TrainingRun(second, 1),
        TrainingRun(first.with_actions(first.act / 2), 2, np.array([1, 8, 2])),
        TrainingRun(second.with_actions(act), 3),
        TrainingRun(replace(third, obs=third.obs.copy()), 4),
    ]


@pytest.fixture(scope="module")
def alone(runs):
    return [train(AGENT, run, every=4) for run in runs]


def leaves(trained):
    return jax.tree.leaves([result[:4] for result in trained]) + [x for r in trained for x in r.curve.values()]


def test_runs_in_sequence_have_the_bits_of_separate_calls(runs, alone):
    before = train_chunk._cache_size()
    got = train_many(AGENT, runs, every=4)
    for a, b in zip(leaves(got), leaves(alone), strict=True):
        np.testing.assert_array_equal(a, b)
    assert train_chunk._cache_size() - before == 1  # one shape for all lengths


def test_runs_in_one_program_equal_runs_alone_to_rounding(runs, alone):
    snapshots = []
    got = train_many(AGENT, runs, every=4, callback=snapshots.append, together=True)
    for a, b in zip(leaves(got), leaves(alone), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert {s.runs for s in snapshots} == {range(5)}
    for run, result, scaler in zip(runs, got, snapshots[0].scalers, strict=True):
        np.testing.assert_array_equal(result.scaler.mean, standardiser(run.eps).mean)
        assert scaler is result.scaler


def test_windows_of_runs_in_one_program(runs):
    alone = train(DT, runs[1], every=2)
    got = train_many(DT, runs[:2], every=2, together=True)[1]
    for a, b in zip(leaves([got]), leaves([alone]), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


def test_runs_of_different_sizes_raise_an_error(runs):
    other = make_episodes([5, 4], n_obs=4)
    with pytest.raises(DataError, match=r"run 1 \(memory\) has observations of 4 and actions of 2 numbers, run 0 .* 3"):
        train_many(AGENT, [runs[0], TrainingRun(other)])


# Tables ----------------------------------------------------------------------------------------------------


def test_runs_that_differ_in_actions_share_a_dataset(runs):
    copy = replace(runs[1].eps, obs=runs[1].eps.obs.copy(), rew=runs[1].eps.rew.copy())
    data, dataset_of = distinct([*(run.eps for run in runs), copy])
    assert dataset_of == [0, 1, 0, 1, 2, 1]
    assert [dataset.eps for dataset in data] == [runs[0].eps, runs[1].eps, runs[4].eps]


def test_windows_belong_to_the_dataset_of_the_run(runs):
    """A run on the second of two datasets draws no padding and no steps of the first dataset."""
    data = [
        Dataset(run.eps, Standardiser(np.full(3, n, np.float32), np.ones(3, np.float32)))
        for n, run in enumerate(runs[:2])
    ]
    shape = shape_for(data, [[0, 1]], 41)
    assert shape == (64, 64, 64, 64)  # for 56 steps, 62 observations, 41 labels and 41 steps to train on
    eps, base = runs[1].eps, bases(data)[1]
    assert base == 15
    table = make_table(data, shape)
    pool = make_pool(eps, np.arange(41, dtype=np.int32), shape.pool, shape.labels, base)
    assert [len(x) for x in table] == [64] * 7 and len(pool.act) == len(pool.steps) == 64
    window = jax.tree.map(np.asarray, Windows(300, 4).draw(table, jax.device_put(pool), jax.random.key(0)))
    first = [int(np.flatnonzero(eps.rew == r)[0]) for r in window.rew[:, 0]]
    assert set(first) == set(range(41))
    for b, start in enumerate(first):
        left = int(eps.start[eps.episode_of_step[start] + 1]) - start
        assert window.mask[b].sum() == min(4, left)
        steps = start + np.minimum(np.arange(4), left - 1)
        np.testing.assert_array_equal(window.obs[b], eps.obs[eps.obs_row[steps]] - 1)
        np.testing.assert_array_equal(window.next_obs[b], eps.obs[eps.obs_row[steps] + 1] - 1)
        np.testing.assert_array_equal(window.act[b], eps.scaled_actions()[steps])
        np.testing.assert_array_equal(window.rew[b], eps.rew[steps])


def test_a_single_dataset_is_not_rounded(runs):
    data, _ = distinct([runs[1].eps])
    assert shape_for(data, [[0]], 9) == (41, 44, 41, 16)
    assert [len(x) for x in make_table(data, shape_for(data, [[0]], 9))] == [44] + [41] * 6


def test_all_groups_have_the_shape_of_the_largest(runs):
    data, dataset_of = distinct([run.eps for run in runs])
    assert shape_for(data, [[n] for n in dataset_of], 9).steps == 64 and shape_for(data, [[0, 2], [0]], 9).steps == 32


# Memory ----------------------------------------------------------------------------------------------------


def test_runs_on_several_datasets_that_do_not_fit_are_trained_in_groups(runs, alone, monkeypatch):
    """The memory has room for the table of all datasets, but only for three runs."""
    need, table = sizes(AGENT, 64, 0, 3, 2, 64), table_bytes(128, 128, 3)
    monkeypatch.setattr(memory, "free_bytes", lambda device: int((3.5 * need.run + table) / memory.USABLE))
    snapshots = []
    got = train_many(AGENT, runs, every=4, callback=snapshots.append, together=True)
    assert [s.runs for s in snapshots[::3]] == [range(0, 2), range(2, 5)]
    for a, b in zip(leaves(got), leaves(alone), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_groups_if_not_all_datasets_fit(runs, monkeypatch):
    """Each run of a group then has room for its own dataset, at twice the size because of rounding."""
    need, own = sizes(AGENT, 64, 0, 3, 2, 64), 2 * table_bytes(41, 44, 3)
    monkeypatch.setattr(memory, "free_bytes", lambda device: int(2.5 * (need.run + own) / memory.USABLE))
    many = [Dataset(runs[1].eps, standardiser(runs[1].eps))] * 40
    assert _group_size(AGENT, many, 40, 41) == 2
    shape = shape_for(many, [[0, 1]], 41)
    assert table_bytes(shape.steps, shape.rows, 3) <= 2 * own


def test_each_of_several_devices_has_a_copy_of_the_table(monkeypatch):
    need = memory.Sizes(table=0, labels=10, steps=0, learnt=0, work=0)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1000 / memory.USABLE)
    for devices, capacity in ((1, 50), (2, 66)):  # 20 bytes per run; on each of two devices 33 x 10 + 66 x 10
        monkeypatch.setattr(jax, "local_devices", lambda n=devices: [None] * n)
        assert max_runs(need, 1000, own=10) == capacity


# Checkpoints -----------------------------------------------------------------------------------------------


class Stop(Exception):  # noqa: N818
    """Raised by a test's callback to stop a training."""


def stop_at(run, at):
    def callback(snapshot):
        if run in snapshot.runs and snapshot.at == at:
            raise Stop

    return callback


@pytest.mark.parametrize("together", [False, True])
def test_a_stopped_training_is_resumed(tmp_path, runs, together):
    with pytest.raises(Stop):
        train_many(AGENT, runs, every=4, callback=stop_at(3, 8), folder=tmp_path, together=together)
    files = sorted(p.name for p in tmp_path.glob("run*.npz"))
    assert files == (["runs-0-4.npz"] if together else ["run-0.npz", "run-1.npz", "run-2.npz", "run-3.npz"])
    progress = []
    got = train_many(AGENT, runs, 4, None, lambda n, note: progress.append((n, note)), together, tmp_path)
    assert sum(n for n, note in progress if note == "from a checkpoint") == (5 * 4 if together else 3 * 12 + 4)
    for a, b in zip(leaves(got), leaves(train_many(AGENT, runs, every=4, together=together)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_group_on_other_trajectories_is_not_resumed(tmp_path, runs):
    with pytest.raises(Stop):
        train_many(AGENT, runs[:2], every=4, callback=stop_at(0, 8), folder=tmp_path, together=True)
    other = [runs[0], runs[1]._replace(eps=replace(runs[1].eps, rew=runs[1].eps.rew + 1))]
    with pytest.raises(SsorlError, match=r"is a checkpoint of another training \(run 1 data differs\)"):
        train_many(AGENT, other, every=4, folder=tmp_path)


def test_runs_on_other_trajectories_can_be_added(tmp_path, runs, alone):
    """A call on two datasets resumes the checkpoints of a call on one of them."""
    train_many(AGENT, [runs[0]], every=4, folder=tmp_path)
    trained = []
    got = train_many(AGENT, runs[:2], every=4, callback=lambda s: trained.append(list(s.runs)), folder=tmp_path)
    assert trained == [[1]] * 3
    for a, b in zip(leaves(got), leaves(alone[:2]), strict=True):
        np.testing.assert_array_equal(a, b)
