"""The sentences of a run's page and of the terminal: the answer and the caveats."""

from pathlib import Path

import pytest
from support.page_samples import parent, result, small

from ssorl.cli.tables import show_run
from ssorl.report.page import render, render_cells
from ssorl.report.summary import answer, answer_cells, caveats, caveats_cells, interval, share


def with_means(**values) -> dict:
    return small(means=values)


def test_answer():
    assert answer(small()) == (
        "SS-TD3BC reaches 61.2 [57.5, 64.9] with 10 % of the trajectories labelled, drawn from the lowest 50 % by "
        "return; the baseline reaches 34.0 and the oracle 91.0. The unlabelled data closed 48 % of the gap between "
        "baseline and oracle."
    )


@pytest.mark.parametrize(
    ("sample", "end"),
    [
        (with_means(baseline=34.0, ss=20.0, oracle=91.0), "The unlabelled data lowered the score by 14.0 points."),
        (with_means(baseline=34.0, ss=34.0, oracle=91.0), "The unlabelled data did not change the score."),
        (with_means(baseline=34.0, ss=99.5, oracle=91.0), "closed the whole gap (115 %) between baseline and oracle."),
        (
            with_means(baseline=34.0, ss=61.2),
            "; the baseline reaches 34.0. The unlabelled data raised the score by 27.2 points.",
        ),
        (small(scores={k: small()["scores"][k] for k in ("ss", "oracle")}), " by return; the oracle reaches 91.0."),
        (
            with_means(baseline=34.0, ss=40.0, oracle=30.0),
            "raised the score by 6.0 points, though the oracle is not above the baseline.",
        ),
        (small(scores={}), "There is no score of SS-TD3BC."),
    ],
)
def test_end_of_answer(sample, end):
    assert answer(sample).endswith(end)


def test_fqe_scores_are_called_estimates():
    sample = small(means={"baseline": -41.23, "ss": -12.34}, kind="fqe", normalised=False)
    assert "is estimated to reach −12.3 [−15.3, −9.4]" in answer(sample)
    assert answer(sample).endswith("By this estimate, the unlabelled data raised the score by 28.9.")
    assert "fitted-Q evaluation" in caveats(sample)[0] and "fitted to all true actions" in caveats(sample)[0]
    sample["split"]["setup"] = None
    assert "fitted to the labelled steps, never to proxy actions" in caveats(sample)[0]
    assert render(sample).count("estimate") >= 5


@pytest.mark.parametrize(
    ("split", "text"),
    [
        ({"quality": 30}, " with 10 % of the trajectories labelled, drawn from the lowest 30 % by return; "),
        ({"quality": 100}, " with 10 % of the trajectories labelled, drawn from all; "),
        ({"quality": None, "fraction": 0.01}, " with 1.0 % of the trajectories labelled; "),
        (
            {"quality": "low / high"},
            " with 10 % of the trajectories labelled (labelled / unlabelled trajectories from the thirds low / high by "
            "return); ",
        ),
        ({"fraction": None, "quality": None}, " with 320 of 3,213 trajectories labelled; "),
    ],
)
def test_answer_names_the_split(split, text):
    sample = small()
    sample["split"] |= split
    assert text in answer(sample)


def test_caveats():
    assert caveats(small()) == []
    one_seed = caveats(result(seeds=1, episodes=2, points=3))
    assert len(one_seed) == 1 and one_seed[0].startswith("One seed: the intervals are over evaluation episodes only")
    assert any("overlap" in line for line in caveats(with_means(baseline=60.0, ss=61.2, oracle=91.0)))
    assert any("not finished" in line for line in caveats(small(complete=False)))
    without_oracle = small(scores={k: v for k, v in small()["scores"].items() if k != "oracle"}, idm=None)
    assert any("No oracle was trained" in line for line in caveats(without_oracle))
    gaps = without_oracle | {"split": without_oracle["split"] | {"setup": None}}
    assert any("true actions of the unlabelled trajectories are not known" in line for line in caveats(gaps))
    assert any("raw returns" in line for line in caveats(small(normalised=False)))
    sample = with_means(baseline=34.0, ss=61.2)
    assert caveats(sample) == ["No oracle was trained, so there is no upper bound to compare with."]
    sample["split"]["setup"] = None
    assert "are not known" in caveats(sample)[0]


def test_diverged_training_is_named():
    sample = small() | {"seeds": [3, 8]}
    sample["scores"]["ss"]["returns"][1] = [None, None]
    line = "The training of ss, seed 8, has diverged: the actions of its policy are not finite, so it has no score"
    assert caveats(sample)[0].startswith(line) and line in render(sample)
    several = parent((10, 50)) | {"seeds": [3, 8]}
    for cell in several["cells"]:
        cell["scores"]["oracle"] = cell["scores"]["oracle"] | {"returns": [[float("nan")], [1.0]]}
    several["cells"][1]["scores"]["ss"] = several["cells"][1]["scores"]["ss"] | {"returns": [[1.0], [None]]}
    assert [line.split(" has ")[0] for line in caveats_cells(several)] == [
        "The training of oracle, seed 3,",
        "The training of ss at quality 50, seed 8,",
    ]


def test_answer_over_several_qualities():
    sample = parent((10, 50, 100))
    assert answer_cells(sample) == (
        "SS scores above the baseline at 3 of 3 label qualities, at 3 of them with intervals that do not overlap; it "
        "closes 14 % to 95 % of the gap between baseline and oracle (median 28 %)."
    )
    sample["cells"][0]["scores"]["ss"] = sample["cells"][0]["scores"]["baseline"]
    assert "at 2 of 3 label qualities, at 2 of them with intervals that do not overlap" in answer_cells(sample)
    assert 'href="q50/report.html"' in render_cells(sample)
    sample["cells"][0]["gap_closed"] = None
    assert answer_cells(sample).endswith(
        "; where there is a gap (2 qualities), it closes 28 % to 95 % of the gap between baseline and oracle."
    )
    assert caveats_cells(sample) == []
    for cell in sample["cells"]:
        cell["scores"]["baseline"] |= {"low": 0.0, "high": 100.0}
    assert "overlap at every label quality" in caveats_cells(sample)[0]
    one_seed = caveats_cells(sample | {"seeds": [3]})
    assert one_seed[0].startswith("One seed: the intervals are over evaluation episodes only")
    assert "One seed" not in caveats_cells(sample | {"seeds": [3, 8]})[0]


def test_interval_has_one_number_of_decimals():
    assert interval({"mean": 9.8, "low": 8.123, "high": 11.0}, False) == "9.8 [8.1, 11.0]"
    assert interval({"mean": 2500.4, "low": 900.2, "high": 3100.0}, False) == "2,500 [900, 3,100]"
    assert interval({"mean": 61.25, "low": None, "high": 3.0}, True) == "61.2"


def test_share_has_no_negative_zero():
    assert [share(x) for x in (-0.0004, 0.0, 0.004, -0.021, 0.5, -0.5, None)] == [
        *("0.0 %", "0 %", "0.4 %", "−2.1 %", "50 %", "−50 %", "–")
    ]


# In the terminal ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 60, 80])
def test_terminal_cuts_no_number(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    sample = small(normalised=False)
    sample["scores"]["ss"] |= {"mean": -12345.6, "low": -12999.9, "high": 9.87}
    show_run(sample, Path("runs/x"))
    out = capsys.readouterr().out
    table = "".join(out.partition("SS-TD3BC")[0].split())
    assert "…" not in out and "−12,346" in table
    assert width == 40 or "[−13,000,10]" in table  # with as many digits as on the page


def test_terminal_suggests_a_command_that_works(capsys):
    sample = parent((10, 50)) | {"seeds": [3, 8]}  # it does not name the environment, so no video is suggested
    show_run(sample, Path("a b/[x]"))
    assert capsys.readouterr().out.endswith("next: ssorl evaluate 'a b/[x]/q10'\n")
