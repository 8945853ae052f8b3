"""The ledger of claims: what it takes to confirm, refute, or leave one open."""

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
    """Every place that the claims need, at the scale with three seeds, without results."""
    return gather(STUDIES["claims"], "lite", tmp_path_factory.mktemp("store"))


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """Enough for intervals of these clear results, and quick."""
    for name in ("estimate", "student"):
        monkeypatch.setattr(statistics, name, partial(getattr(statistics, name), replications=400))


def with_results(found, of=score, error=mse, keep=lambda one: True, noise=0.3):
    return [
        one._replace(result=told(one, of, error, noise)) if keep(one) else one._replace(result=None) for one in found
    ]


def told(one: StudyResults, of, error, noise) -> dict:
    seed = one.at["seed"] - 1
    return {"schema": 1, "score": of(one.at) + noise * seed, "idm": {"mse": error(one.at) * (1 + 0.01 * seed)}}


def outcome(found, number, scale="lite"):
    return claims._verdict(CLAIMS[number - 1], found, scale)


def test_every_claim_has_its_checks(empty):
    verdicts = judge(empty, "lite")
    assert [v.claim.number for v in verdicts] == list(range(1, 13)) == [c.number for c in CLAIMS]
    # By hand: 2 datasets x 3 agents x 6 q; 2 x 3; 4 shares x 3 agents x (6 q + 1); (2 + 2 + 3 + 1) datasets x 3 agents
    # and 4 mazes, two checks each; 4; 4 rivals in return, over all q and the lower half, and in error below and above;
    # 2 + 2; 4 places x 3 pairs, twice; 2 agents x 2 sizes; 2 and 1; 3.
    assert [len(v.judged) for v in verdicts] == [36, 6, 84, 2 * (8 * 3 + 4), 4, 16, 4, 12, 12, 4, 3, 3]
    for verdict in verdicts:
        for judged in verdict.judged:
            assert all(len(task) == 3 for group in judged.check.groups for task in group), judged.check.name
            assert all(judged.check.groups), judged.check.name
            assert len({j.check.name for j in verdict.judged}) == len(verdict.judged)


def test_without_results_all_is_open_and_all_is_listed(empty):
    for verdict in judge(empty, "lite"):
        assert verdict.outcome == "undecided" and verdict.counts["open"] == len(verdict.judged)
        needed = {one.hash for j in verdict.judged for group in j.check.groups for task in group for one in task}
        assert {one.hash for one in verdict.missing} == needed
        assert all(j.estimate is None and j.note == "cells are missing" for j in verdict.judged)


def test_results_as_the_paper_has_them_confirm_everything(empty):
    verdicts = judge(with_results(empty), "lite")
    assert {v.claim.number: v.outcome for v in verdicts} == dict.fromkeys(range(1, 13), "confirmed")
    line = str(verdicts[0])
    assert line.startswith(" 1. confirmed  SS beats the baseline") and "36 of 36 checks hold" in line


def test_a_smoke_run_decides_nothing(empty):
    verdict = outcome(with_results(empty), 1, "smoke")
    assert verdict.outcome == "undecided" and "smoke" in verdict.note
    assert verdict.counts["holds"] == 36  # the numbers are told all the same


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


def test_the_error_part_of_the_sixth_claim(empty):
    equal = outcome(with_results(empty, error=lambda at: 0.1), 6)
    assert equal.outcome != "confirmed"  # above q = 50 ours is to be better
    lower = outcome(with_results(empty, error=lambda at: mse(at) * (3 if at.get("idm") == "ours" else 1)), 6)
    assert lower.outcome == "refuted"


def test_one_missing_cell_leaves_a_claim_open_and_is_named(empty):
    gone = next(one for one in empty if one.at["study"] == "main-medium-expert" and one.at["variant"] == "ss")
    verdict = outcome(with_results(empty, keep=lambda one: one.hash != gone.hash), 1)
    assert verdict.outcome == "undecided" and [one.hash for one in verdict.missing] == [gone.hash]
    assert verdict.counts == {"holds": 35, "fails": 0, "open": 1}


def test_a_check_of_several_agents_is_told_of_those_that_are_there(empty):
    """CQL was not run, and of DT one seed of one place is missing: the numbers are of DT's other places."""

    def there(one):
        at = one.at
        return at.get("agent") == "dt" and (at.get("quality"), at.get("idm"), at["seed"]) != (30, "k = 0", 1)

    whole, part = (outcome(with_results(empty, noise=0, keep=k), 7) for k in (lambda one: True, there))
    first, second = part.judged[:2]
    assert (first.check.name, second.check.name) == ("k = 1 − k = 0", "k = 1 − k = 2")
    assert first.note == "cells are missing: told of the 5 of 12 places that are there" and first.says == "open"
    assert second.note == "cells are missing: told of the 6 of 12 places that are there"
    for judged, other in zip(part.judged, whole.judged, strict=True):
        assert judged.estimate == pytest.approx(other.estimate)  # samples have all places alike
    assert part.outcome == "undecided" and whole.outcome == "confirmed"

    gaps = outcome(with_results(empty, keep=lambda one: "hopper" in str(one.at["dataset"])), 12)  # of four groups
    assert [j.note[:36] for j in gaps.judged] == ["cells are missing: told of the 18 of"] * 3
    none = outcome(with_results(empty, keep=lambda one: one.at.get("variant") == "ss"), 1)  # of pairs, never both
    assert all(j.estimate is None and j.note == "cells are missing" for j in none.judged)


def test_a_claim_in_one_number_is_of_all_its_places(empty):
    """Samples without noise: what each is of can be worked out by hand."""
    whole = {v.claim.number: v.whole for v in judge(with_results(empty, noise=0), "lite")}
    assert {n: one.so_far for n, one in whole.items()} == dict.fromkeys(range(1, 13), "holds")
    # 2 datasets x 3 agents x 6 q; 2 x 3; 4 shares x 3 x 6; (8 datasets x 3 + 4 mazes) x 6; 6 q; 2 agents x 6 q, twice;
    # 2 datasets x 2 agents x 3 thirds, twice; 2 agents x 9 pairs; 2 worse thirds; 6 datasets x 6 q.
    assert [whole[n].places for n in range(1, 13)] == [36, 6, 72, 168, 6, 12, 12, 12, 12, 18, 2, 36]
    found = with_results(empty, lambda at: 100.0 if at.get("variant") == "oracle" else 7.0, noise=0)
    zero = {v.claim.number: v.whole for v in judge(found, "lite")}
    assert [zero[n].estimate.value for n in (1, 3, 4, 6, 7, 8, 9, 10, 11)] == [0] * 9
    assert zero[2].estimate.value == pytest.approx(0.93) and zero[2].so_far == "fails"
    assert zero[10].so_far == "holds"  # none is within 5
    worse = with_results(empty, lambda at: {"ss": 30.0, "baseline": 42.0}.get(at.get("variant"), 60.0), noise=0)
    first = outcome(worse, 1)
    assert first.whole.estimate.value == pytest.approx(-12) and first.whole.so_far == "fails"


def test_one_number_of_several_models_and_agents(empty):
    """IQMs by hand: 60 with one round, 10, 20, 30, 40 with the self-trained; gaps of 40, 20 and 10 %."""
    trained = dict(
        zip(("m = 2, N = 3", "m = 2, N = 5", "m = 3, N = 3", "m = 3, N = 5"), (10.0, 20.0, 30.0, 40.0), strict=True)
    )
    found = with_results(empty, lambda at: trained.get(at.get("idm"), 60.0), noise=0)
    assert outcome(found, 6).whole.estimate.value == pytest.approx(60 - 25)
    gaps = {"dt": 60.0, "cql": 80.0, "td3bc": 90.0}
    found = with_results(
        empty, lambda at: 100.0 if at.get("variant") == "oracle" else gaps.get(at.get("agent"), 0.0), noise=0
    )
    assert outcome(found, 12).whole.estimate.value == pytest.approx((0.4 + 0.2) / 2 - 0.1)


def test_one_number_of_what_is_there_so_far_decides_nothing(empty):
    verdict = outcome(with_results(empty, noise=0, keep=lambda one: one.at.get("agent") == "td3bc"), 1)
    assert verdict.whole.places == 12 and verdict.whole.so_far == "holds" and verdict.whole.says == "open"
    assert verdict.outcome == "undecided"
    nothing = outcome(empty, 1).whole
    assert nothing.estimate is None and nothing.so_far == "open" and nothing.places == 0


def test_a_counterexample_refutes_though_other_cells_are_missing(empty):
    def bad(at):
        return score(at) - 90 * (at.get("agent") == "dt" and at.get("variant") == "ss")

    found = with_results(empty, bad, keep=lambda one: one.at.get("agent") != "cql")
    verdict = outcome(found, 1)
    assert verdict.outcome == "refuted" and verdict.missing


def test_too_few_seeds_decide_nothing(empty):
    found = [one for one in with_results(empty) if one.at["seed"] < 2]
    verdict = outcome(found, 1)
    assert verdict.outcome == "undecided" and not verdict.missing
    assert verdict.judged[0].note == "only 2 seeds of a task" and verdict.judged[0].estimate is not None


def test_noise_leaves_a_claim_open(empty):
    rng = np.random.default_rng(0)
    noisy = [one._replace(result={"score": float(rng.normal(50, 10)), "idm": {"mse": 0.1}}) for one in empty]
    verdict = outcome(noisy, 1)
    # Where nothing is true, some of 36 checks fail at 95 % by chance alone; widened for their number none may.
    assert verdict.counts["open"] > 20 and verdict.outcome != "confirmed"


def test_a_single_failure_by_chance_refutes_only_if_it_is_clear_enough():
    def found(name, values):
        return [StudyResults({"study": "x", "seed": i}, f"{name}{i}", {"score": v}) for i, v in enumerate(values)]

    def verdict(ours, theirs, n):
        check = Check("x", statistics.difference(statistics.mean), ([found("a", ours)], [found("b", theirs)]), low=0.0)
        fine = Check("y", statistics.mean, ([found("c", [1.0, 1.1, 1.2])],), low=0.0)
        claim = claims.Claim(1, "", "", lambda found: iter([check] + [fine] * (n - 1)), lambda found: check)
        return claims._verdict(claim, [], "lite")

    # Differ by 5 with a standard error of 2.1: the percentile interval ends below 0, and t = -2.4 of 4 degrees of
    # freedom is far from the -4.6 that one check of ten must reach.
    vague, clear = [1.0, 2, 3], [2.9, 9, 9]
    assert verdict(vague, clear, 10).outcome == "undecided" and verdict(vague, clear, 10).counts["fails"] == 1
    assert verdict(vague, [29.0, 30, 31], 10).outcome == "refuted"


def test_the_words_for_a_range():
    def words(**limits):
        return Check("x", statistics.mean, (), **limits).claimed

    assert words(low=0.0) == "above 0"
    assert words(low=-5.0, high=5.0) == "within ±5"
    assert words(low=0.0, high=10.0) == "above 0 and below 10"
    assert words(high=0.1, unit="share") == "below 10 %"
    assert words(low=-math.inf, high=0.0) == "below 0"


def test_an_oracle_that_earns_nothing_leaves_gaps_open(empty):
    found = with_results(empty, lambda at: 0.0 if at.get("variant") == "oracle" else score(at), noise=0.0)
    verdict = outcome(found, 2)
    assert verdict.outcome == "undecided" and "earns nothing" in verdict.judged[0].note


def test_the_ledger_reads_a_store(tmp_path):
    study = STUDIES["main-medium-expert"]
    fill(tmp_path, study, "lite", keep=lambda p: p.at["agent"] == "td3bc", noise=0.3)
    verdicts = ledger(tmp_path, "lite")
    assert verdicts[0].counts == {"holds": 12, "fails": 0, "open": 24}
    assert verdicts[0].outcome == "undecided" and len(verdicts[0].missing) == 2 * 2 * 6 * 2 * 3


def test_a_part_decides_no_claim(tmp_path):
    """What holds or fails in a corner that was asked for is not what the paper says of all places."""
    study = STUDIES["main-medium-expert"]
    fill(tmp_path, study, "lite", noise=0.3)
    assert ledger(tmp_path, "lite")[0].outcome == "confirmed"
    for only in ({"agent": ["td3bc"]}, {"quality": [10]}, {"variant": ["ss"]}, {"idm": ["paper"]}):
        verdicts = ledger(tmp_path, "lite", only=only)
        assert {v.outcome for v in verdicts} == {"undecided"} and verdicts[0].note == claims.PART
    fill(tmp_path, STUDIES["self-training"], "lite", noise=0.3, keep=lambda p: p.at["idm"] == "ours")
    alone = ledger(tmp_path, "lite", only={"idm": ["ours"]})[5]  # of what is compared, one is not asked for
    assert alone.whole.estimate is None and alone.whole.says == "open"
    one = ledger(tmp_path, "lite", only={"agent": ["td3bc"]})[0]
    assert one.counts == {"holds": 12, "fails": 0, "open": 0}  # the checks themselves are told


# What a store holds -----------------------------------------------------------------------------------------


def test_further_seeds_are_found(tmp_path):
    study = STUDIES["wide-subsample"]
    fill(tmp_path, study, "smoke", seeds=3)
    found = gather(study, "smoke", tmp_path)
    assert {one.at["seed"] for one in found} == {0, 1, 2} and all(one.result for one in found)
    assert len(found) == 3 * 6 * 3 * 3
    assert {one.at["seed"] for one in gather(study, "lite", tmp_path)} == {0, 1, 2}


@pytest.mark.parametrize("own", [2, 4])
def test_further_seeds_are_found_of_a_study_with_a_number_of_its_own(tmp_path, own):
    study = Study("mine", "Mine", (Grid({"dataset": "x", "seeds": own}, {"variant": ("baseline", "ss")}),))
    fill(tmp_path, study, "lite", seeds=6)
    found = gather(study, "lite", tmp_path)
    assert sorted(one.at["seed"] for one in found) == sorted(2 * list(range(6)))
    assert len(gather(study, "lite", tmp_path, only={"seed": ["1"]})) == 2


def test_a_further_seed_of_one_point_is_missing_nowhere_else(tmp_path):
    study = STUDIES["main-medium-expert"]
    fill(tmp_path, study, "lite", noise=0.3)
    before = ledger(tmp_path, "lite")[0].counts
    fill(tmp_path, study, "lite", seeds=4, keep=lambda p: p.at["seed"] == 3 and p.at["agent"] == "dt", noise=0.3)
    verdict = ledger(tmp_path, "lite")[0]
    assert before["holds"] and verdict.counts == before and not verdict.missing
    found = gather(study, "lite", tmp_path)
    assert {one.at["agent"] for one in found if one.at["seed"] == 3} == {"dt"}


def test_seeds_of_one_task_are_together(tmp_path):
    found = gather(STUDIES["claims"], "smoke", tmp_path)
    groups = tasks(found, "main-medium-expert", agent="cql", quality=(10, 30), variant="ss")
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
def test_a_cell_without_a_result_says_why(tmp_path, text, why):
    if text is not None:
        (tmp_path / "result.json").write_text(text)
    told, reason = read(tmp_path)
    assert told is None and why in reason


def test_a_failed_cell_tells_its_last_line(tmp_path):
    (tmp_path / "error.txt").write_text("Traceback\n  somewhere\nMemoryError: too much\n\n")
    assert read(tmp_path) == (None, "failed: MemoryError: too much")


def test_numbers_that_are_none_are_missing():
    one = StudyResults({}, "x", {"score": "12", "idm": [], "curve": {"at": [0, 1], "score": [1], "q": [1, None]}})
    assert one.score is None and one.mse is None and one.curve == {"at": [0, 1], "q": [1, None]}
    assert StudyResults({}, "x", {"score": float("nan")}).score is None
    assert result(StudyResults({"seed": 0}, "x", None))["schema"] == 1
