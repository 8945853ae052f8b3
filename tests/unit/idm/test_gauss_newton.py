"""Batched least squares: linear and curved problems, bounds, points without a residual."""

import numpy as np
import pytest

from ssorl.idm.gauss_newton import Box, differences, solve, spread


def box(n, p, low=-np.inf, high=np.inf):
    return Box(np.full((n, p), low, float), np.full((n, p), high, float), np.full(p, 1e-6))


def test_linear_problems_are_solved_in_one_step_and_few_evaluations():
    rng = np.random.default_rng(0)
    matrices, truth = rng.standard_normal((50, 7, 3)), rng.standard_normal((50, 3))
    evaluated = []

    def residual(ids, x):
        evaluated.append(len(ids))
        return np.einsum("nmp,np->nm", matrices[ids], x - truth[ids])

    found = solve(residual, np.zeros((50, 3)), box(50, 3), 1e-4, 10)
    np.testing.assert_allclose(found.x, truth, atol=1e-4)
    assert sum(evaluated) <= 50 * (1 + 3 + 2)  # start, Jacobian, two steps


def test_a_curved_valley_is_followed():
    def rosenbrock(ids, x):
        return np.stack([10 * (x[:, 1] - x[:, 0] ** 2), 1 - x[:, 0]], axis=1)

    found = solve(rosenbrock, np.array([[-1.2, 1.0], [2.0, -3.0]]), box(2, 2), 1e-8, 100)
    np.testing.assert_allclose(found.x, 1, atol=1e-6)


def test_bounds_hold_and_fixed_coordinates_stay():
    asked = []

    def residual(ids, x):
        asked.append(x)
        return np.stack([x[:, 0] + x[:, 1] - 3, x[:, 1] - 2, x[:, 2] - 5], axis=1)

    limits = Box(np.array([[-1.0, -1, 4]]), np.array([[0.5, 1.5, 4]]), np.full(3, 1e-6))
    found = solve(residual, np.array([[9.0, -9, 9]]), limits, 1e-8, 50)
    np.testing.assert_allclose(found.x, [[0.5, 1.5, 4]])
    points = np.concatenate(asked)
    assert (points >= limits.low - 1e-12).all() and (points <= limits.high + 1e-12).all()
    jac = differences(residual, np.array([0]), found.x, found.residual, limits)
    np.testing.assert_allclose(jac[0], [[1, 1, 0], [0, 1, 0], [0, 0, 0]], atol=1e-6)


def test_points_without_a_residual_are_left():
    def residual(ids, x):  # a least-squares problem with its solution next to a region without residuals
        return np.where(x > 1.05, np.nan, 3 * np.exp(x) - 3 * np.e)

    found = solve(residual, np.full((1, 1), -3.0), box(1, 1), 1e-8, 100)
    np.testing.assert_allclose(found.x, 1, atol=1e-6)


def test_a_problem_without_residual_anywhere_ends():
    found = solve(lambda ids, x: np.full((len(ids), 2), np.nan), np.zeros((3, 2)), box(3, 2), 1e-8, 100)
    assert (np.abs(found.residual) >= 1e9).all() and np.isfinite(found.x).all()


@pytest.mark.parametrize("effect", [1.0, 1e-3, 0.0])
def test_the_spread_of_an_unknown_grows_as_its_effect_falls(effect):
    jacobian = np.array([[[effect, 0.0], [0.0, 2.0], [0.0, 0.0]]])
    out = spread(jacobian, np.ones((1, 2), bool))
    np.testing.assert_allclose(out[0, 1], 0.5, rtol=1e-6)
    if effect:
        np.testing.assert_allclose(out[0, 0], 1 / effect, rtol=1e-3)
    else:
        assert out[0, 0] > 1e5
    assert spread(jacobian, np.array([[False, True]]))[0, 0] == 0
