"""How a model is shown states."""

from dataclasses import replace

import numpy as np
import pytest
from support.episodes import make_episodes

from ssorl.data import apply, coupled
from ssorl.idm import serialise
from ssorl.idm.fit import fit
from ssorl.idm.inputs import KNOTS, inputs
from ssorl.idm.label import label, labeller, predict
from ssorl.idm.model import IdmConfig

CONFIG = IdmConfig(ranks=True, differences=True, hidden=(16,), steps=40, batch=32, validate_every=20)


@pytest.fixture(scope="module")
def eps():
    whole = make_episodes([40] * 12)
    return apply(coupled(whole, 0.5, 100, 0), whole)


def test_without_ranks_states_are_standardised(eps):
    shown = inputs(eps, False)(eps.obs)
    np.testing.assert_allclose(shown.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(shown.std(0), 1, atol=1e-5)


def test_ranks_are_even_whatever_the_distribution(eps):
    """A coordinate that is nearly always within a thousandth of its stop is spread over the whole range."""
    obs = eps.obs.copy()
    obs[:, 1] = np.where(np.arange(len(obs)) % 10, 1e-3 * np.abs(obs[:, 1]), -1.0)
    odd = replace(eps, obs=obs)
    ranks = inputs(odd, True)(obs)[:, eps.n_obs :]
    np.testing.assert_allclose(ranks[:, 1].std(), 1, atol=0.05)
    near = obs[:, 1] >= 0
    assert np.ptp(inputs(odd, True)(obs)[near, 1]) < 0.02 < 1.5 < np.ptp(ranks[near, 1])
    order = np.argsort(obs[:, 1], kind="stable")
    assert (np.diff(ranks[order, 1]) >= 0).all()


def test_a_constant_and_what_lies_outside(eps):
    obs = eps.obs.copy()
    obs[:, 2] = 5.0
    how = inputs(replace(eps, obs=obs), True)
    assert how.knots.shape == (eps.n_obs, KNOTS)
    assert np.isfinite(how(obs)).all() and np.ptp(how(obs)[:, eps.n_obs + 2]) == 0
    far = how(np.full((1, eps.n_obs), 1e6, np.float32))[0, eps.n_obs :]
    np.testing.assert_allclose(far, np.sqrt(3), rtol=1e-6)


def test_labels_survive_saving(eps, tmp_path):
    ready = labeller(fit(eps, CONFIG), eps)
    serialise.save(ready, tmp_path / "idm")
    again = serialise.load(tmp_path / "idm")
    np.testing.assert_array_equal(label(again, eps).act, label(ready, eps).act)
    np.testing.assert_array_equal(again.idm.inputs.knots, ready.idm.inputs.knots)


def test_blocks_change_nothing(eps):
    """Steps share states with their neighbours, however they are cut."""
    idm, steps = fit(eps, CONFIG), np.flatnonzero(~eps.labelled)
    np.testing.assert_allclose(predict(idm, eps, steps, 256).mean, predict(idm, eps, steps, 16).mean, atol=1e-6)


def test_quantiles_that_fall_are_refused(eps, tmp_path):
    from ssorl.utils.errors import DataError
    from ssorl.utils.files import write_npz

    serialise.save(labeller(fit(eps, CONFIG), eps), tmp_path / "idm")
    with np.load(tmp_path / "idm" / "weights.npz") as file:
        arrays = {k: file[k] for k in file.files}
    arrays["knots"] = arrays["knots"][:, ::-1].copy()
    write_npz(tmp_path / "idm" / "weights.npz", arrays)
    with pytest.raises(DataError, match="quantiles that are not in ascending order"):
        serialise.load(tmp_path / "idm")
