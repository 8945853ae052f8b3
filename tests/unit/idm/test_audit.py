"""`ssorl.audit`: each fault of a simulated arm is found in the right trajectories, and a sound arm has none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.action_faults import SIZES, STRENGTHS, arm, faulty

import ssorl
from ssorl.data import repair
from ssorl.data.episodes import Episodes
from ssorl.idm.audit import KINDS, audit
from ssorl.utils.errors import DataError, SsorlError

SURE = dict.fromkeys(SIZES, STRENGTHS[1:])


@pytest.fixture(scope="module")
def sound() -> Episodes:
    return arm(30, seed=3)


def kinds(result) -> set[str]:
    return {finding.kind for finding in result.findings}


def test_a_sound_arm_has_no_finding(sound):
    result = audit(sound)
    assert result.findings == () and min(result.explained) > 0.99


def test_the_kinds_are_those_of_the_faults():
    assert set(KINDS) == set(SIZES)


@pytest.mark.parametrize("kind", sorted(SIZES))
@pytest.mark.parametrize("strength", STRENGTHS[1:])
def test_each_fault_is_found_in_its_trajectories(sound, kind, strength):
    data, bad = faulty(sound, kind, strength, 0.3)
    findings = [f for f in audit(data).findings if f.kind == kind]
    named = set().union(*(f.trajectories for f in findings))
    assert len(named & set(bad.tolist())) >= 0.75 * len(bad)
    assert not named - set(bad.tolist())


@pytest.mark.parametrize("lag", [-2, 1, 3])
def test_the_lag_is_exact_and_its_cure_repairs_it(sound, lag):
    bad = [2, 5, 11, 17, 20]
    late = repair.shift_actions(sound, lag, bad)
    (finding,) = audit(late).findings
    assert (finding.kind, finding.value, finding.trajectories) == ("lag", lag, tuple(bad))
    assert f"--shift-actions={-lag} --trajectories 2,5,11,17,20" in finding.cure
    repaired = repair.shift_actions(late, -lag, bad)
    both = repaired.labelled
    assert np.array_equal(repaired.act[both], sound.act[both])
    assert not audit(repaired).findings


def test_a_lag_that_all_share_is_an_observation():
    result = audit(arm(30, lag=2))
    assert "lag" not in kinds(result)
    assert [o.value for o in result.observations if o.kind == "lag"] == [-2]


@pytest.mark.parametrize(
    ("change", "undo", "kind"),
    [
        (lambda e, n: repair.flip(e, [1], n), lambda e, n: repair.flip(e, [1], n), "flipped"),
        (lambda e, n: repair.permute(e, [2, 0, 1, 3], n), None, "permuted"),
        (lambda e, n: repair.scale(e, [0.5], n), lambda e, n: repair.scale(e, [2.0], n), "rescaled"),
    ],
)
def test_what_a_finding_says_undoes_the_fault(sound, change, undo, kind):
    bad = list(range(0, 30, 4))
    broken = change(sound, bad)
    (finding,) = audit(broken).findings
    assert finding.kind == kind and finding.trajectories == tuple(bad)
    if kind == "permuted":
        mended = repair.permute(broken, finding.value, bad)
    elif kind == "rescaled":
        assert finding.value == pytest.approx(0.5, rel=0.05)
        mended = undo(broken, bad)
    else:
        assert finding.dimension == 1
        mended = undo(broken, bad)
    assert np.allclose(mended.act, sound.act, atol=1e-6)


def test_trajectories_are_numbered_as_in_the_dataset(sound):
    data, bad = faulty(sound, "flipped", "strong", 0.2)
    hidden = repair.forget_actions(data, [0, 1, 2])
    found = {n for f in audit(hidden).findings for n in f.trajectories}
    assert found == set(bad.tolist()) - {0, 1, 2}


def test_partly_known_actions_are_judged(sound):
    data, _ = faulty(sound, "flipped", "strong", 0.2)
    act = data.act.copy()
    act[5::17] = np.nan
    assert kinds(audit(replace(data, act=act))) == {"flipped"}


def test_exact_copies_in_all_trajectories_are_found(sound):
    act = sound.obs[sound.obs_row + 1]
    result = audit(replace(sound, act=act.astype(np.float32)))
    assert {(f.kind, f.dimension, f.value) for f in result.findings} == {("next_state", d, d) for d in range(4)}
    assert all(f.trajectories == tuple(range(30)) for f in result.findings)


NAMES = tuple(f"{joint}.pos" for joint in ("base", "elbow", "wrist", "hand"))


def test_names_reveal_faults_of_all_trajectories(sound):
    assert not audit(sound, NAMES, NAMES).findings
    (finding,) = audit(repair.flip(sound, [2]), NAMES, NAMES).findings
    assert (finding.kind, finding.dimension, len(finding.trajectories)) == ("flipped", 2, 30)
    assert "--trajectories" not in finding.cure
    wrong = repair.permute(sound, [1, 0, 2, 3])
    assert [f.kind for f in audit(wrong).findings] == []
    (finding,) = audit(wrong, NAMES, NAMES).findings
    assert (finding.kind, finding.value) == ("permuted", [1, 0, 2, 3])
    named = wrong.with_meta(action_names=NAMES, state_names=NAMES)
    assert [f.kind for f in audit(named).findings] == ["permuted"]


def test_saturation_is_no_fault(sound):
    act = np.clip(2.5 * sound.act, -1, 1)
    result = audit(replace(sound, act=act))
    assert "clipped" not in kinds(result)
    assert {o.dimension for o in result.observations if o.kind == "clipped"} == {0, 1, 2, 3}


def test_bad_input_gets_one_sentence(sound):
    none = repair.forget_actions(sound)
    with pytest.raises(DataError, match="no step has an action"):
        audit(none)
    with pytest.raises(DataError, match="only trajectory 4 has actions"):
        audit(repair.forget_actions(sound, [n for n in range(30) if n != 4]))
    with pytest.raises(SsorlError, match="2 action names were given for 4 dimensions"):
        audit(sound, ("a", "b"), NAMES)


def test_two_short_trajectories_get_the_exact_checks(sound):
    result = ssorl.audit(sound[:2])
    assert isinstance(result.as_json()["findings"], tuple | list)
    tiny = arm(3, t=6)
    assert any("too few steps" in o.text for o in audit(tiny).observations)
