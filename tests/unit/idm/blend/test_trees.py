"""Forests: tables equal scikit-learn's trees, and a damaged table is refused."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from ssorl.idm.blend.trees import MAX_LEAVES, MISSING, Forest, fit_forest, read_forest


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(600, 5)).astype(np.float32)
    rows[rng.random(600) < 0.1, 4] = MISSING
    targets = np.stack([np.sin(rows[:, 0]) + rows[:, 1] * rows[:, 2], (rows[:, 4] == MISSING) * 1.0], 1)
    return rows, targets


@pytest.fixture(scope="module")
def forest(problem) -> Forest:
    return fit_forest(*problem, rounds=20, seed=3)


def test_the_tables_predict_what_scikit_learn_predicts(problem, forest):
    rows, targets = problem
    fresh = np.random.default_rng(1).normal(size=(5000, 5)).astype(np.float32)
    for k in range(2):
        model = HistGradientBoostingRegressor(
            max_iter=20, learning_rate=0.1, max_leaf_nodes=MAX_LEAVES - 1, max_features=0.5, early_stopping=False,
            random_state=3 + 1000 * k,
        ).fit(rows, targets[:, k])  # fmt: skip
        assert np.allclose(forest(fresh)[:, k], model.predict(fresh), atol=1e-5)
        assert np.allclose(forest(rows)[:, k], model.predict(rows), atol=1e-5)


def test_a_row_does_not_depend_on_the_others(problem, forest):
    rows = problem[0]
    assert np.array_equal(forest(rows)[17:18], forest(rows[17:18]))


def test_the_number_of_threads_changes_no_bit(problem, forest, monkeypatch):
    monkeypatch.setattr("ssorl.idm.blend.trees.os.cpu_count", lambda: 1)
    again = fit_forest(*problem, rounds=20, seed=3)
    assert all(np.array_equal(a, b) for a, b in zip(forest[:6], again[:6], strict=True))


class Reader:
    """Arrays as a file has them."""

    def __init__(self, arrays):
        self.arrays = arrays

    def __call__(self, name, shape, dtype=np.float32, finite=True):
        return self.arrays[name]


def test_tables_survive_a_file(problem, forest):
    again = read_forest(Reader(forest.arrays("t")), "t", 5, 2)
    assert np.array_equal(again(problem[0]), forest(problem[0]))


@pytest.mark.parametrize(("name", "value"), [("feature", 5), ("feature", -1), ("target", 2), ("mask", 0)])
def test_an_index_out_of_range_is_refused(forest, name, value):
    arrays = {key: array.copy() for key, array in forest.arrays("t").items()}
    arrays[f"t/{name}"].flat[0] = value
    with pytest.raises(ValueError, match="t: a tree"):
        read_forest(Reader(arrays), "t", 5, 2)
