"""Inversion of known simulators: what is verified is right, and a wrong simulator verifies nothing."""

import numpy as np
import pytest
from support.simulated import hide, rollouts, with_masses

from ssorl.envs.models import Transitions, known_model
from ssorl.idm import invert as module
from ssorl.idm.inversion import TOLERANCE, StepInversion
from ssorl.idm.invert import invert
from ssorl.utils.errors import DataError

LABELLED = 3  # of 8 trajectories


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SSORL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def noisy(eps, mse, seed=1):
    noise = np.sqrt(mse) * np.random.default_rng(seed).standard_normal(eps.act.shape)
    return np.clip(eps.act + noise, -1, 1).astype(np.float32)


def problem(name, mse=0.02, **options):
    eps = rollouts(name, **options)
    return eps, hide(eps, LABELLED), noisy(eps, mse)


@pytest.mark.parametrize("name, least", [("hopper", 0.9), ("walker2d", 0.8), ("halfcheetah", 0.85)])
def test_verified_labels_are_true_actions(name, least):
    truth, eps, start = problem(name)
    out = invert(eps, start, known_model(name), threads=2)
    assert out.trust.trusted and out.trust.replayed_share > 0.98
    missing = ~eps.labelled
    assert out.verified[missing].mean() >= least and not out.verified[~missing].any()
    assert np.square(out.act - truth.act)[out.verified].max() < 1e-4
    assert (out.residual[out.verified] <= TOLERANCE).all() and np.isnan(out.residual[~missing]).all()
    assert np.isfinite(out.std[out.verified]).all() and np.isnan(out.std[~out.verified]).all()
    np.testing.assert_array_equal(out.act[~out.verified], start[~out.verified])
    assert out.facts["verified_steps"] == out.verified.sum() and out.facts["steps"] == missing.sum()


def test_clipped_velocities_are_recovered():
    truth = rollouts("walker2d", n_episodes=16, n_steps=25)
    eps, start = hide(truth, 8), noisy(truth, 0.02)
    clipped = (np.abs(eps.obs[eps.obs_row, 8:]) >= 10).any(axis=1) & ~eps.labelled
    out = invert(eps, start, known_model("walker2d"), threads=2)
    assert clipped.sum() > 20 and out.verified[clipped].mean() > 0.5
    assert np.square(out.act - truth.act)[out.verified & clipped].max() < 1e-4


@pytest.mark.parametrize("name", ["hopper", "walker2d", "halfcheetah", "maze2d-umaze-dense"])
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_known_actions_expose_wrong_masses(name, factor):
    _, eps, start = problem(name, n_episodes=12, n_steps=15)
    out = invert(eps, start, with_masses(name, factor), threads=2)
    assert not out.trust.trusted and not out.verified.any()
    assert any("is not the simulator of this data" in note for note in out.trust.notes)
    np.testing.assert_array_equal(out.act, start)


@pytest.mark.parametrize("name", ["hopper", "walker2d"])
def test_a_random_sample_exposes_wrong_masses_without_known_actions(name):
    truth = rollouts(name, n_steps=20)
    eps, start = hide(truth, 0), noisy(truth, 0.02)
    good = invert(eps, start, known_model(name), threads=2)
    assert good.trust.trusted and good.trust.inverted_share > 0.8 and good.verified.any()
    assert "only 0 known actions" in good.trust.notes[0]
    fewer = hide(truth[:4], 0)
    wrong = invert(fewer, start[: fewer.n_steps], with_masses(name, 1.1), threads=2)
    assert not wrong.trust.trusted and not wrong.verified.any()


def test_a_simulator_whose_contacts_alone_are_wrong_verifies_flight():
    truth = rollouts("hopper", n_episodes=12, n_steps=30)
    eps, start = hide(truth, 6), noisy(truth, 0.02)
    known = known_model("hopper")
    known.model.geom_friction[:, 0] *= 0.5
    out = invert(eps, start, known, threads=2)
    assert out.trust.trusted and 0.2 < out.trust.replayed_share < 0.8
    assert "reproduces only" in out.trust.notes[0]
    assert 0.2 < out.verified[~eps.labelled].mean() < 0.8
    assert np.square(out.act - truth.act)[out.verified].max() < 1e-4


def test_mazes_are_inverted_and_warned_of():
    truth, eps, start = problem("maze2d-umaze-dense")
    out = invert(eps, start, known_model("maze2d-umaze-dense"), threads=1)
    assert out.verified[~eps.labelled].mean() > 0.9
    assert np.square(out.act - truth.act)[out.verified].max() < 1e-4
    assert any("as many actuators as degrees of freedom" in note for note in out.trust.notes)
    assert not invert(*problem("hopper", n_episodes=4, n_steps=30)[1:], known_model("hopper")).trust.notes


def test_an_action_without_effect_is_not_verified():
    _, eps, start = problem("halfcheetah", n_episodes=4, n_steps=30)
    known = known_model("halfcheetah")
    known.model.actuator_gear[2] = 0
    inversion = StepInversion(eps, known, Transitions(known, 1))
    steps = np.flatnonzero(~eps.labelled)
    assert not inversion.invert(steps, start[steps].astype(float)).verified.any()


def test_threads_do_not_change_the_result():
    _, eps, start = problem("hopper", n_episodes=5)
    one, two = (invert(eps, start, known_model("hopper"), threads=n) for n in (1, 2))
    for name in ("act", "residual", "verified", "std"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def test_an_interrupted_inversion_continues(monkeypatch, cache):
    _, eps, start = problem("hopper", n_episodes=6)
    monkeypatch.setattr(module, "BLOCK", 40)
    whole = invert(eps, start, known_model("hopper"), threads=1)
    assert not any((cache / "simulator").glob("*"))
    solved, real = [], StepInversion.invert

    def stop_at_third(self, steps, first):
        if len(solved) == 2:
            raise KeyboardInterrupt
        solved.append(len(steps))
        return real(self, steps, first)

    monkeypatch.setattr(StepInversion, "invert", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        invert(eps, start, known_model("hopper"), threads=1)
    resumed, counted = [], []
    monkeypatch.setattr(StepInversion, "invert", lambda *args: resumed.append(len(args[1])) or real(*args))
    out = invert(eps, start, known_model("hopper"), threads=1, progress=counted.append)
    missing = int((~eps.labelled).sum())
    assert sum(solved) + sum(resumed) == missing == sum(counted)
    np.testing.assert_array_equal(out.act, whole.act)
    np.testing.assert_array_equal(out.residual, whole.residual)
    assert not any((cache / "simulator").glob("*"))


def test_damaged_blocks_are_solved_again(monkeypatch, cache):
    _, eps, start = problem("hopper", n_episodes=5, n_steps=30)
    monkeypatch.setattr(module.Parts, "remove", lambda self: None)
    whole = invert(eps, start, known_model("hopper"), threads=1)
    (file,) = (cache / "simulator").glob("*/*.npz")
    file.write_bytes(file.read_bytes()[:200])
    np.testing.assert_array_equal(invert(eps, start, known_model("hopper"), threads=1).act, whole.act)


def test_one_trajectory_is_enough():
    truth = rollouts("hopper", n_episodes=1)
    act = truth.act.copy()
    act[30:] = np.nan
    out = invert(truth.with_actions(act), noisy(truth, 0.02), known_model("hopper"), threads=1)
    assert out.verified[30:].mean() > 0.8


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda eps, start: (eps, start, known_model("walker2d")), "observations have size 11, .* have size 17"),
        (lambda eps, start: (eps, start[:, :2], known_model("hopper")), "actions have size 2"),
        (lambda eps, start: (eps, start[:-1], known_model("hopper")), "there are 119 labels"),
        (lambda eps, start: (eps.with_actions(start), start, known_model("hopper")), "nothing to invert"),
        (lambda eps, start: (eps, start * np.nan, known_model("hopper")), "label of step 90 is not finite"),
    ],
)
def test_bad_input_raises_one_sentence(change, message):
    _, eps, start = problem("hopper", n_episodes=4, n_steps=30)
    with pytest.raises(DataError, match=message) as error:
        invert(*change(eps, start))
    assert str(error.value).count(". ") == 0


def test_observations_that_are_not_finite_raise():
    _, eps, start = problem("hopper", n_episodes=4, n_steps=30)
    eps.obs[2 * 31 + 5] = np.inf
    with pytest.raises(DataError, match="trajectory 2 has an observation that is not finite"):
        invert(eps, start, known_model("hopper"))
