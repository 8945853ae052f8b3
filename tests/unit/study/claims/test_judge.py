"""The ledger of claims: when a claim is confirmed, refuted or undecided."""

import math
from functools import partial

import numpy as np
import pytest
from support.study_samples import fill, mse, result, score

from ssorl.study import statistics
from ssorl.study.claims import judge as claims
from ssorl.study.claims.judge import Check, judge, ledger, tasks
from ssorl.study.claims.statements import CLAIMS
from ssorl.study.grid import Grid, Study
from ssorl.study.paper import STUDIES
from ssorl.study.results import StudyResults, gather
from ssorl.study.store import read


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """Return the points that the claims need at scale lite (three seeds), without results."""
    return gather(STUDIES["claims"], "lite", tmp_path_factory.mktemp("store"))


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """Draw few resamples, which suffice for results without doubt."""
    for name in ("estimate", "student"):
        monkeypatch.setattr(statistics, name, partial(getattr(statistics, name), replications=400))


def with_results(results, of=score, error=mse, keep=lambda cell: True, noise=0.3):
    return [
        cell._replace(result=sample_result(cell, of, error, noise)) if keep(cell) else cell._replace(result=None)
        for cell in results
    ]


def sample_result(cell: StudyResults, of, error, noise) -> dict:
    seed = cell.at["seed"] - 1
    return {"schema": 1, "score": of(cell.at) + noise * seed, "idm": {"mse": error(cell.at) * (1 + 0.01 * seed)}}


def outcome(results, number, scale="lite"):
    return claims._verdict(CLAIMS[number - 1], results, scale)


def test_numbers_of_checks(empty):
    verdicts = judge(empty, "lite")
    assert [v.claim.number for v in verdicts] == list(range(1, 13)) == [c.number for c in CLAIMS]
    # By hand: 2 datasets x 3 agents x 6 q; 2 x 3; 4 shares x 3 agents x (6 q + 1); (2 + 2 + 3 + 1) datasets x 3 agents
    # and 4 mazes, two checks each; 4; 4 rivals in return, over all q and the lower half, and in error below and above;
    # 2 + 2; 4 places x 3 pairs, twice; 2 agents x 2 sizes; 2 and 1; 3.
    assert [len(v.judged) for v in verdicts] == [36, 6, 84, 2 * (8 * 3 + 4), 4, 16, 4, 12, 12, 4, 3, 3]
    for verdict in verdicts:
        for checked in verdict.judged:
            assert all(len(task) == 3 for group in checked.check.groups for task in group), checked.check.name
            assert all(checked.check.groups), checked.check.name
            assert len({j.check.name for j in verdict.judged}) == len(verdict.judged)


def test_without_results_all_checks_are_open_and_all_cells_missing(empty):
    for verdict in judge(empty, "lite"):
        assert verdict.outcome == "undecided" and verdict.counts["open"] == len(verdict.judged)
        needed = {cell.hash for j in verdict.judged for group in j.check.groups for task in group for cell in task}
        assert {cell.hash for cell in verdict.missing} == needed
        assert all(j.estimate is None and j.note == "cells are missing" for j in verdict.judged)


def test_results_like_the_papers_confirm_all_claims(empty):
    verdicts = judge(with_results(empty), "lite")
    assert {v.claim.number: v.outcome for v in verdicts} == dict.fromkeys(range(1, 13), "confirmed")
    line = str(verdicts[0])
    assert line.startswith(" 1. confirmed  SS beats the baseline") and "36 of 36 checks hold" in line


def test_scale_smoke_decides_nothing(empty):
    verdict = outcome(with_results(empty), 1, "smoke")
    assert verdict.outcome == "undecided" and "smoke" in verdict.note
    assert verdict.counts["holds"] == 36  # the checks are still reported


@pytest.mark.parametrize(
    ("number", "worse"),
    [
        (1, lambda at: -60 if (at.get("agent"), at.get("quality"), at.get("variant")) == ("cql", 70, "ss") else 0),
        (2, lambda at: -15 if (at.get("quality"), at.get("variant")) == (100, "ss") else 0),
        (3, lambda at: -80 if at.get("fraction") == 0.01 and at.get("variant") == "ss" else 0),
        (4, lambda at: -99 if str(at.get("dataset")).startswith("maze2d") and at.get("variant") == "ss" else 0),
        (5, lambda at: 30 if at.get("agent") == "dt-joint" else 0),
        (6, lambda at: 20 if str(at.get("idm")).startswith("m = ") else 0),
        (7, lambda at: 20 if at.get("idm") == "k = 2, symmetric" else 0),
        (8, lambda at: -90 if at.get("labelled") == "high" else 0),
        (9, lambda at: -90 if at.get("unlabelled") == "high" else 0),
        (10, lambda at: 100 * (at.get("labelled_fraction") or 0)),
        (11, lambda at: 100 * (at.get("unlabelled_fraction") or 0)),
        (12, lambda at: -15 if at.get("agent") == "td3bc" and at.get("variant") == "ss" else 0),
    ],
)
def test_each_claim_can_be_refuted(empty, number, worse):
    assert outcome(with_results(empty, lambda at: score(at) + worse(at)), number).outcome == "refuted"


def test_action_errors_in_claim_6(empty):
    equal = outcome(with_results(empty, error=lambda at: 0.1), 6)
    assert equal.outcome != "confirmed"  # above q = 50, one round must be better
    lower = outcome(with_results(empty, error=lambda at: mse(at) * (3 if at.get("idm") == "ours" else 1)), 6)
    assert lower.outcome == "refuted"


def test_one_missing_cell_leaves_a_claim_undecided(empty):
    gone = next(cell for cell in empty if cell.at["study"] == "main-medium-expert" and cell.at["variant"] == "ss")
    verdict = outcome(with_results(empty, keep=lambda cell: cell.hash != gone.hash), 1)
    assert verdict.outcome == "undecided" and [cell.hash for cell in verdict.missing] == [gone.hash]
    assert verdict.counts == {"holds": 35, "fails": 0, "open": 1}


def test_estimates_use_the_complete_places(empty):
    """CQL was not run, and DT lacks one seed at one place: the estimates use DT's other places."""

    def is_finished(cell):
        at = cell.at
        return at.get("agent") == "dt" and (at.get("quality"), at.get("idm"), at["seed"]) != (30, "k = 0", 1)

    whole, part = (outcome(with_results(empty, noise=0, keep=k), 7) for k in (lambda cell: True, is_finished))
    first, second = part.judged[:2]
    assert (first.check.name, second.check.name) == ("k = 1 − k = 0", "k = 1 − k = 2")
    assert first.note == "cells are missing; the estimate uses the 5 complete places of 12" and first.says == "open"
    assert second.note == "cells are missing; the estimate uses the 6 complete places of 12"
    for own, other in zip(part.judged, whole.judged, strict=True):
        assert own.estimate == pytest.approx(other.estimate)  # the samples are equal at all places
    assert part.outcome == "undecided" and whole.outcome == "confirmed"

    gaps = outcome(with_results(empty, keep=lambda cell: "hopper" in str(cell.at["dataset"])), 12)  # of four groups
    note = "cells are missing; the estimate uses the 18 complete places of"
    assert [j.note[: len(note)] for j in gaps.judged] == [note] * 3
    none = outcome(with_results(empty, keep=lambda cell: cell.at.get("variant") == "ss"), 1)  # no pair is complete
    assert all(j.estimate is None and j.note == "cells are missing" for j in none.judged)


def test_one_number_uses_all_places(empty):
    """Samples have no noise, so that the numbers can be computed by hand."""
    whole = {v.claim.number: v.whole for v in judge(with_results(empty, noise=0), "lite")}
    assert {n: number.so_far for n, number in whole.items()} == dict.fromkeys(range(1, 13), "holds")
    # 2 datasets x 3 agents x 6 q; 2 x 3; 4 shares x 3 x 6; (8 datasets x 3 + 4 mazes) x 6; 6 q; 2 agents x 6 q, twice;
    # 2 datasets x 2 agents x 3 thirds, twice; 2 agents x 9 pairs; 2 worse thirds; 6 datasets x 6 q.
    assert [whole[n].places for n in range(1, 13)] == [36, 6, 72, 168, 6, 12, 12, 12, 12, 18, 2, 36]
    results = with_results(empty, lambda at: 100.0 if at.get("variant") == "oracle" else 7.0, noise=0)
    zero = {v.claim.number: v.whole for v in judge(results, "lite")}
    assert [zero[n].estimate.value for n in (1, 3, 4, 6, 7, 8, 9, 10, 11)] == [0] * 9
    assert zero[2].estimate.value == pytest.approx(0.93) and zero[2].so_far == "fails"
    assert zero[10].so_far == "holds"  # a difference of 0 is within 5
    worse = with_results(empty, lambda at: {"ss": 30.0, "baseline": 42.0}.get(at.get("variant"), 60.0), noise=0)
    first = outcome(worse, 1)
    assert first.whole.estimate.value == pytest.approx(-12) and first.whole.so_far == "fails"


def test_one_number_of_several_models_and_agents(empty):
    """IQMs by hand: 60 with one round, 10, 20, 30, 40 with self-training; gaps of 40, 20 and 10 %."""
    trained = dict(
        zip(("m = 2, N = 3", "m = 2, N = 5", "m = 3, N = 3", "m = 3, N = 5"), (10.0, 20.0, 30.0, 40.0), strict=True)
    )
    results = with_results(empty, lambda at: trained.get(at.get("idm"), 60.0), noise=0)
    assert outcome(results, 6).whole.estimate.value == pytest.approx(60 - 25)
    gaps = {"dt": 60.0, "cql": 80.0, "td3bc": 90.0}
    results = with_results(
        empty, lambda at: 100.0 if at.get("variant") == "oracle" else gaps.get(at.get("agent"), 0.0), noise=0
    )
    assert outcome(results, 12).whole.estimate.value == pytest.approx((0.4 + 0.2) / 2 - 0.1)


def test_one_number_of_incomplete_results_decides_nothing(empty):
    verdict = outcome(with_results(empty, noise=0, keep=lambda cell: cell.at.get("agent") == "td3bc"), 1)
    assert verdict.whole.places == 12 and verdict.whole.so_far == "holds" and verdict.whole.says == "open"
    assert verdict.outcome == "undecided"
    nothing = outcome(empty, 1).whole
    assert nothing.estimate is None and nothing.so_far == "open" and nothing.places == 0


def test_a_counterexample_refutes_even_if_other_cells_are_missing(empty):
    def bad(at):
        return score(at) - 90 * (at.get("agent") == "dt" and at.get("variant") == "ss")

    results = with_results(empty, bad, keep=lambda cell: cell.at.get("agent") != "cql")
    verdict = outcome(results, 1)
    assert verdict.outcome == "refuted" and verdict.missing


def test_too_few_seeds_decide_nothing(empty):
    results = [cell for cell in with_results(empty) if cell.at["seed"] < 2]
    verdict = outcome(results, 1)
    assert verdict.outcome == "undecided" and not verdict.missing
    assert verdict.judged[0].note == "a task has only 2 seeds" and verdict.judged[0].estimate is not None


def test_noise_leaves_a_claim_undecided(empty):
    rng = np.random.default_rng(0)
    noisy = [cell._replace(result={"score": float(rng.normal(50, 10)), "idm": {"mse": 0.1}}) for cell in empty]
    verdict = outcome(noisy, 1)
    # Without any effect, some of 36 checks fail at 95 % by chance; with corrected intervals hardly any.
    assert verdict.counts["open"] > 20 and verdict.outcome != "confirmed"


def test_refutation_corrects_for_checks_and_seeds():
    def sample(name, values):
        return [StudyResults({"study": "x", "seed": i}, f"{name}{i}", {"score": v}) for i, v in enumerate(values)]

    def verdict(ours, theirs, n):
        check = Check(
            "x", statistics.difference(statistics.mean), ([sample("a", ours)], [sample("b", theirs)]), low=0.0
        )
        fine = Check("y", statistics.mean, ([sample("c", [1.0, 1.1, 1.2])],), low=0.0)
        claim = claims.Claim(1, "", "", lambda results: iter([check] + [fine] * (n - 1)), lambda results: check)
        return claims._verdict(claim, [], "lite")

    # The difference is 5 with a standard error of 2.1. The percentile interval ends below 0, but with 4 degrees of
    # freedom t = -2.4 is far from -4.6, which one check of ten must reach.
    vague, clear = [1.0, 2, 3], [2.9, 9, 9]
    assert verdict(vague, clear, 10).outcome == "undecided" and verdict(vague, clear, 10).counts["fails"] == 1
    assert verdict(vague, [29.0, 30, 31], 10).outcome == "refuted"


def test_words_for_a_claimed_range():
    def words(**limits):
        return Check("x", statistics.mean, (), **limits).claimed

    assert words(low=0.0) == "above 0"
    assert words(low=-5.0, high=5.0) == "within ±5"
    assert words(low=0.0, high=10.0) == "above 0 and below 10"
    assert words(high=0.1, unit="share") == "below 10 %"
    assert words(low=-math.inf, high=0.0) == "below 0"


def test_gaps_to_an_oracle_of_0_are_undefined(empty):
    results = with_results(empty, lambda at: 0.0 if at.get("variant") == "oracle" else score(at), noise=0.0)
    verdict = outcome(results, 2)
    assert verdict.outcome == "undecided" and "the relative gap is undefined" in verdict.judged[0].note


def test_the_ledger_reads_a_store(tmp_path):
    study = STUDIES["main-medium-expert"]
    fill(tmp_path, study, "lite", keep=lambda p: p.at["agent"] == "td3bc", noise=0.3)
    verdicts = ledger(tmp_path, "lite")
    assert verdicts[0].counts == {"holds": 12, "fails": 0, "open": 24}
    assert verdicts[0].outcome == "undecided" and len(verdicts[0].missing) == 2 * 2 * 6 * 2 * 3


def test_a_part_decides_no_claim(tmp_path):
    """The paper's claims are about all places, so selected places cannot confirm or refute them."""
    study = STUDIES["main-medium-expert"]
    fill(tmp_path, study, "lite", noise=0.3)
    assert ledger(tmp_path, "lite")[0].outcome == "confirmed"
    for only in ({"agent": ["td3bc"]}, {"quality": [10]}, {"variant": ["ss"]}, {"idm": ["paper"]}):
        verdicts = ledger(tmp_path, "lite", only=only)
        assert {v.outcome for v in verdicts} == {"undecided"} and verdicts[0].note == claims.PART
    fill(tmp_path, STUDIES["self-training"], "lite", noise=0.3, keep=lambda p: p.at["idm"] == "ours")
    alone = ledger(tmp_path, "lite", only={"idm": ["ours"]})[5]  # one side of the comparison is not selected
    assert alone.whole.estimate is None and alone.whole.says == "open"
    part = ledger(tmp_path, "lite", only={"agent": ["td3bc"]})[0]
    assert part.counts == {"holds": 12, "fails": 0, "open": 0}  # the checks are still reported


# Reading results -------------------------------------------------------------------------------------------


def test_further_seeds_are_gathered(tmp_path):
    study = STUDIES["wide-subsample"]
    fill(tmp_path, study, "smoke", seeds=3)
    results = gather(study, "smoke", tmp_path)
    assert {cell.at["seed"] for cell in results} == {0, 1, 2} and all(cell.result for cell in results)
    assert len(results) == 3 * 6 * 3 * 3
    assert {cell.at["seed"] for cell in gather(study, "lite", tmp_path)} == {0, 1, 2}


@pytest.mark.parametrize("own", [2, 4])
def test_further_seeds_of_a_study_that_sets_their_number(tmp_path, own):
    study = Study("mine", "Mine", (Grid({"dataset": "x", "seeds": own}, {"variant": ("baseline", "ss")}),))
    fill(tmp_path, study, "lite", seeds=6)
    results = gather(study, "lite", tmp_path)
    assert sorted(cell.at["seed"] for cell in results) == sorted(2 * list(range(6)))
    assert len(gather(study, "lite", tmp_path, only={"seed": ["1"]})) == 2


def test_a_further_seed_of_one_agent_adds_no_missing_cells(tmp_path):
    study = STUDIES["main-medium-expert"]
    fill(tmp_path, study, "lite", noise=0.3)
    before = ledger(tmp_path, "lite")[0].counts
    fill(tmp_path, study, "lite", seeds=4, keep=lambda p: p.at["seed"] == 3 and p.at["agent"] == "dt", noise=0.3)
    verdict = ledger(tmp_path, "lite")[0]
    assert before["holds"] and verdict.counts == before and not verdict.missing
    results = gather(study, "lite", tmp_path)
    assert {cell.at["agent"] for cell in results if cell.at["seed"] == 3} == {"dt"}


def test_tasks_group_seeds(tmp_path):
    results = gather(STUDIES["claims"], "smoke", tmp_path)
    groups = tasks(results, "main-medium-expert", agent="cql", quality=(10, 30), variant="ss")
    assert [len(group) for group in groups] == [1] * 4  # two datasets at two qualities


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "not run yet"),
        ('{"schema": 1', "not readable"),
        ("[" * 100_000, "not readable"),
        ("[]", "another version"),
        ('{"schema": 2}', "another version"),
    ],
)
def test_cells_without_a_result_give_the_reason(tmp_path, text, why):
    if text is not None:
        (tmp_path / "result.json").write_text(text)
    stored, reason = read(tmp_path)
    assert stored is None and why in reason


def test_failed_cells_give_the_last_line_of_the_error(tmp_path):
    (tmp_path / "error.txt").write_text("Traceback\n  somewhere\nMemoryError: too much\n\n")
    assert read(tmp_path) == (None, "failed: MemoryError: too much")


def test_values_that_are_no_finite_numbers_are_missing():
    cell = StudyResults({}, "x", {"score": "12", "idm": [], "curve": {"at": [0, 1], "score": [1], "q": [1, None]}})
    assert cell.score is None and cell.mse is None and cell.curve == {"at": [0, 1], "q": [1, None]}
    assert StudyResults({}, "x", {"score": float("nan")}).score is None
    assert result(StudyResults({"seed": 0}, "x", None))["schema"] == 1
