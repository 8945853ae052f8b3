"""The notebook API: invalid arguments raise before anything is computed."""

import pytest

import ssorl
from ssorl.utils.display import MAX_REPR
from ssorl.utils.errors import SsorlError

STEPS = {
    "split": lambda eps, **given: ssorl.split(eps, **given),
    "fit_idm": lambda eps, **given: ssorl.fit_idm(eps, **given),
    "train": lambda eps, **given: ssorl.train(eps, "bc", **given),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("seed", [-1, 2**32, 2**70, 1.5, True])
def test_invalid_seed_raises(eps, step, seed):
    with pytest.raises(SsorlError, match=r"the seed is .*; give a whole number from 0 up and below 2\*\*32"):
        STEPS[step](eps, seed=seed)


@pytest.mark.parametrize(
    ("step", "given", "words"),
    [
        ("fit_idm", {"preset": "fast"}, "'fast' is no preset of inverse dynamics models; there are auto, quick, paper"),
        ("train", {"policy": "avg"}, "policy is 'avg'; did you mean average?"),
        ("train", {"policy": "best"}, "policy is 'best'; "),
    ],
)
def test_unknown_choice_raises(eps, step, given, words):
    with pytest.raises(SsorlError, match=words):
        STEPS[step](eps, **given)


def test_a_task_has_a_short_repr():
    task = ssorl.split(ssorl.load("builtin/pointmass")[:10], fraction=0.5, seed=0)
    assert repr(task).startswith("SplitData(source='builtin/pointmass'") and len(repr(task)) <= MAX_REPR
    assert "<b>SplitData</b>" in task._repr_html_()
