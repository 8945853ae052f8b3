"""The forecast of data that was joined with other trajectories to teach the model."""

import numpy as np
import pytest
from support.systems import TINY, hide_after, linear

from ssorl.idm import outlook
from ssorl.idm.fit import fit
from ssorl.idm.forecast import Forecast
from ssorl.idm.label import labeller
from ssorl.idm.outlook import predict_error


@pytest.fixture(scope="module")
def eps():
    return hide_after(linear(n=8), 5)


@pytest.fixture(scope="module")
def ready(eps):
    from dataclasses import replace

    return labeller(fit(eps, replace(TINY, hidden=(8,), steps=20, validate_every=10)), eps)


@pytest.fixture(autouse=True)
def numbered(monkeypatch):
    """Forecast the number of each trajectory, in place of an error."""

    def forecast(eps, seed, checked, progress):
        return Forecast(0.1, 0.1, 0.1, np.zeros(eps.n_act), np.arange(len(eps), dtype=float), 0.1, 0.0)

    monkeypatch.setattr(outlook, "forecast", forecast)


def test_a_forecast_is_of_the_trajectories_that_are_labelled(eps, ready):
    assert predict_error(eps, ready).by_trajectory.tolist() == list(range(8))
    assert predict_error(eps, ready, data=eps).by_trajectory.tolist() == list(range(8))
    assert predict_error(eps, ready, data=eps[5:]).by_trajectory.tolist() == [5, 6, 7]


def test_there_is_no_forecast_of_trajectories_that_it_did_not_see(eps, ready):
    assert predict_error(eps, ready, data=eps[:3]) is None
    assert predict_error(eps[5:], ready, data=eps) is None
