"""The page of a study and its files: every figure of the paper from synthetic results."""

import csv
import re
import urllib.parse
from itertools import pairwise

import pytest
from markupsafe import escape
from support.study_samples import fill

from ssorl.report.markup import NARROW
from ssorl.report.svg import Bar
from ssorl.study import statistics
from ssorl.study.grid import Grid, Study
from ssorl.study.paper import STUDIES
from ssorl.study.report import charts as study_charts
from ssorl.study.report import panels as study_panels
from ssorl.study.report.answer import answer, caveats
from ssorl.study.report.page import page
from ssorl.study.report.svg import columns
from ssorl.study.results import gather

NASTY = "<script>hacked=1</script>|$x$"


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    estimate = statistics.estimate
    monkeypatch.setattr(statistics, "estimate", lambda *args, **more: estimate(*args, **{"replications": 200, **more}))


def charts(name, store, scale="lite"):
    return study_charts.figures(STUDIES[name], gather(STUDIES[name], scale, store))


def test_every_study_has_a_page(tmp_path):
    for name, study in STUDIES.items():
        html = page(study, "smoke", tmp_path).read_text()
        assert escape(study.title) in html and "smoke: no evidence" in html, name
        assert "not run yet" in html, name  # missing cells are listed with the reason


# Number of panels of each figure, counted by hand: datasets x agents, shares x agents, ...
@pytest.mark.parametrize(
    ("name", "keys", "n_panels"),
    [
        ("main-medium-expert", ["by-quality"], [6]),
        ("gap-medium-expert", ["gap"], [6]),
        ("low-label", ["by-quality", "gap"], [12, 12]),
        ("dt-joint", ["by-quality"], [1]),
        ("dt-joint-lambda", ["iqm"], [4]),
        ("self-training", ["iqm"], [2]),
        ("self-training-mse", ["mse"], [1]),
        ("labelled-quality", ["iqm"], [1]),
        ("labelled-size", ["iqm", "curves"], [2 + 6, 18]),
        ("gap-by-agent", ["gap"], [1]),
        ("densities", ["density"], [14]),
        ("labelled-returns", ["table"], [1]),
        ("maze2d", ["by-quality"], [4]),
        ("idm-robust", ["by-quality", "mse", "error"], [2, 2, 1]),
        ("idm-robust-agents", ["by-quality", "error"], [4, 2]),
    ],
)
def test_figures_have_the_panels_of_the_paper(tmp_path, name, keys, n_panels):
    fill(tmp_path, STUDIES[name], "smoke")
    drawn = charts(name, tmp_path, "smoke")
    assert [figure.key for figure in drawn] == keys
    assert [len(figure.charts) for figure in drawn] == n_panels
    assert all(chart.table.rows for figure in drawn for chart in figure.charts)


def test_lines_are_means_with_intervals_of_their_cells(tmp_path):
    study = STUDIES["main-medium-expert"]
    fill(tmp_path, study)
    (figure,) = charts(study.name, tmp_path)
    chart = figure.charts[0]
    assert chart.title == "hopper-medium-expert, DT"
    assert [(line.kind, line.x) for line in chart.lines] == [
        (v, [10, 30, 50, 70, 90, 100]) for v in ("baseline", "ss", "oracle")
    ]
    scores = [o.score for o in gather(study, "lite", tmp_path) if (o.at["dataset"], o.at["agent"], o.at["variant"],
            o.at["quality"]) == ("hopper-medium-expert", "dt", "ss", 30)]  # fmt: skip
    line = chart.lines[1]
    assert len(scores) == 3 and line.y[1] == pytest.approx(sum(scores) / 3)
    assert min(scores) <= line.low[1] < line.y[1] < line.high[1] <= max(scores)
    rows = list(csv.reader(urllib.parse.unquote(chart.table.href).split(",", 1)[1].splitlines()))
    assert rows[0] == ["q", *(f"{v}{end}" for v in ("baseline", "SS", "oracle") for end in ("", " low", " high"))]
    assert float(rows[2][4]) == pytest.approx(line.y[1], rel=1e-5)


def test_gaps_are_relative_to_the_oracle(tmp_path):
    study = STUDIES["gap-medium-expert"]
    fill(tmp_path, study, noise=0.0)
    chart = charts(study.name, tmp_path)[0].charts[0]
    assert [column.name for column in chart.columns] == [f"q = {q}" for q in (10, 30, 50, 70, 90, 100)]
    first = {bar.kind: bar.value for bar in chart.columns[0].bars}
    assert first == pytest.approx({"baseline": (92 - 14) / 92, "ss": (92 - 45) / 92})
    pooled = charts("gap-by-agent", fill(tmp_path, STUDIES["gap-by-agent"], noise=0.0))[0].charts[0]
    assert [column.name for column in pooled.columns] == ["DT", "CQL", "TD3BC"]
    # SS at q = 10 … 100 scores 45, 55, 65, 75, 85, 90 of 92 on each of six datasets, three seeds: 108 gaps. The
    # interquartile mean drops 27 at each end: all 18 of q = 10 and 9 of q = 30; all of q = 100 and 9 of q = 90.
    gaps = [1 - x / 92 for x in (55, 65, 65, 75, 75, 85)]
    assert pooled.columns[0].bars[1].value == pytest.approx(sum(gaps) / 6)


def test_gap_of_a_task_is_the_mean_of_its_seeds(tmp_path):
    study = STUDIES["gap-medium-expert"]
    earned = {"baseline": (0.0, 0.0, 0.0, 0.0, 46.0), "ss": (46.0,), "oracle": (90.0, 91.0, 92.0, 93.0, 94.0)}
    entries = [
        entry._replace(result={"schema": 1, "score": earned[entry.at["variant"]][entry.at["seed"]]})
        for entry in gather(study, "paper", tmp_path)
        if entry.at["seed"] < len(earned[entry.at["variant"]])
    ]
    base, ss = study_charts.figures(study, entries)[0].charts[0].columns[0].bars
    assert base.value == pytest.approx(0.9) and base.low < base.value < base.high  # the interquartile mean is 1
    assert ss.value == pytest.approx(0.5) and ss.low is None  # one seed has no interval


def test_grids_may_list_their_tasks_in_different_orders(tmp_path):
    """Each agent is compared with the oracle of its own task."""
    base = {"dataset": "sim/hopper-medium", "quality": 50}
    sizes = {"small": {"settings": {"updates": 10}}, "large": {"settings": {"updates": 20}}}
    first = Grid(base, {"size": sizes, "variant": ("ss",)})
    second = Grid(base, {"size": dict(reversed(sizes.items())), "variant": ("baseline", "oracle")})
    study = Study("mine", "Mine", (first, second), figure="gap", panels=())
    earned = {"ss": (50.0, 90.0), "oracle": (100.0, 200.0), "baseline": (10.0, 20.0)}
    entries = [
        entry._replace(result={"schema": 1, "score": earned[entry.at["variant"]][entry.at["size"] == "large"]})
        for entry in gather(study, "lite", tmp_path)
    ]
    ss, base = study_charts.figures(study, entries)[0].charts[0].columns[0].bars
    assert ss.value == pytest.approx((0.5 + 0.55) / 2) and base.value == pytest.approx(0.9)
    assert "gap to the oracle is 52 %; the baseline's is 90 %." in answer(study, "lite", entries)
    lone = [entry for entry in entries if entry.at["variant"] != "oracle" or entry.at["size"] == "large"]
    assert study_charts.figures(study, lone)[0].charts[0].columns[0].bars[0].value is None


def test_results_without_a_quality_are_bars(tmp_path):
    """Decoupled splits and data with gaps have no quality."""
    axes = {"labelled": ("low", "high"), "variant": ("baseline", "ss")}
    base = {"dataset": "sim/hopper-medium", "setup": "decoupled"}
    study = Study("mine", "Mine", (Grid(base, axes),), also=("mse-by-quality",), panels=("labelled",))
    fill(tmp_path, study, noise=0.0)
    scores, errors = study_charts.figures(study, gather(study, "lite", tmp_path))
    assert (scores.title, errors.title) == ("Normalised score", "Error of proxy actions")
    assert [(chart.title, [bar.value for bar in chart.bars]) for chart in scores.charts] == [
        ("labelled low", pytest.approx([32, 32])),
        ("labelled high", pytest.approx([92, 92])),
    ]
    assert [len(chart.bars) for chart in errors.charts] == [1, 1]


def test_interquartile_means_do_not_mix_variants(tmp_path):
    axes = {"agent": ("td3bc", "cql"), "quality": (10, 30), "variant": ("baseline", "ss")}
    study = Study("mine", "Mine", (Grid({"dataset": "x"}, axes),), figure="iqm", by="agent", panels=())
    fill(tmp_path, study, noise=0.0)
    (figure,) = study_charts.figures(study, gather(study, "lite", tmp_path))
    base, ss = figure.charts
    assert (base.title, ss.title) == ("Mine, baseline", "Mine, SS")
    assert [bar.value for bar in base.bars] == pytest.approx([18, 18])
    assert [bar.value for bar in ss.bars] == pytest.approx([56, 50])


def test_best_is_chosen_on_shared_grid_points(tmp_path):
    """A third with results on easy grid points only is not the best."""
    study = STUDIES["labelled-quality"]
    scores = {("low", "low"): 10.0, ("med", "low"): 20.0, ("high", "low"): 30.0, ("low", "high"): 99.0}
    entries = [
        entry._replace(result={"schema": 1, "score": score + entry.at["seed"]})
        for entry in gather(study, "lite", tmp_path)
        if (score := scores.get((entry.at["labelled"], entry.at["unlabelled"]))) is not None
    ]
    assert "labelled high (31" in (text := answer(study, "lite", entries)) and "before labelled med (21" in text
    disjoint = [e for e in entries if e.at["unlabelled"] == "high" or e.at["labelled"] == "med"]
    assert "highest" not in answer(study, "lite", disjoint)


def test_lowest_error_is_best(tmp_path):
    study, errors = STUDIES["self-training-mse"], {"ours": 0.3, "m = 2, N = 3": 0.2, "m = 3, N = 5": 0.4}
    entries = [
        entry._replace(result={"schema": 1, "idm": {"mse": errors[entry.at["idm"]] + entry.at["seed"] / 100}})
        for entry in gather(study, "lite", tmp_path)
        if entry.at["idm"] in errors
    ]
    text = answer(study, "lite", entries)
    assert text.startswith("m = 2, N = 3 (0.21 [") and "has the lowest error overall, before ours (0.31 [" in text
    assert "overlap" not in text


def test_interquartile_means_pool_a_panel(tmp_path):
    study = STUDIES["self-training"]
    fill(tmp_path, study, noise=0.0)
    everything, lower = charts(study.name, tmp_path)[0].charts
    assert (everything.title, lower.title) == ("all q together", "q ≤ 50 alone")
    # 45 … 90 for two agents and three seeds: 36 scores, without nine at each end: 6 of q = 10 and 3 of q = 30, …
    assert everything.bars[0].value == pytest.approx((3 * 55 + 6 * 65 + 6 * 75 + 3 * 85) / 18)
    # 45, 55, 65, six of each: 18 scores, without four at each end.
    assert lower.bars[0].value == pytest.approx((2 * 45 + 6 * 55 + 2 * 65) / 10)
    assert [bar.name for bar in everything.bars] == ["ours", *(f"m = {m}, N = {n}" for m in (2, 3) for n in (3, 5))]


def test_series_that_differ_in_more_than_the_quality_are_not_averaged(tmp_path):
    axes = {"idm": {"a": {"past": 0}, "b": {"past": 1}}, "quality": (10, 50), "variant": ("baseline", "ss")}
    study = Study("mine", "Mine", (Grid({"dataset": "sim/hopper-medium", "agent": "td3bc"}, axes),))
    fill(tmp_path, study, "smoke")
    (figure,) = study_charts.figures(study, gather(study, "smoke", tmp_path))
    assert [chart.title for chart in figure.charts] == ["hopper-medium, TD3BC, a", "hopper-medium, TD3BC, b"]


def test_curves_are_means_over_seeds(tmp_path):
    study = STUDIES["labelled-size"]
    fill(tmp_path, study, noise=0.0)
    chart = charts(study.name, tmp_path)[1].charts[0]
    assert chart.title == "CQL, labelled low, unlabelled low"
    assert [line.name for line in chart.lines] == ["10 % labelled", "25 % labelled", "50 % labelled"]
    assert chart.lines[0].x == [0, 500, 1000] and chart.lines[0].y == [0, 10, 20]


def test_page_of_a_partial_store(tmp_path):
    study = STUDIES["main-medium-expert"]
    fill(tmp_path, study, keep=lambda p: p.at["agent"] == "dt" and p.at["seed"] == 0 and p.at["quality"] != 30)
    broken = next(p.cell.hash for p in study.points("lite") if p.at["agent"] == "cql")
    (tmp_path / "cells" / broken).mkdir(exist_ok=True)
    (tmp_path / "cells" / broken / "error.txt").write_text("MemoryError: <b>no</b>\n")
    html = page(study, "lite", tmp_path).read_text()
    assert "failed: MemoryError: &lt;b&gt;no&lt;/b&gt;" in html and "no results yet" in html
    assert re.search(r"of 234 cells are missing, 1 of them after a failure", html)
    chart = charts(study.name, tmp_path)[0].charts[0]
    assert chart.lines[0].y[1] is None and chart.lines[0].y[0] is not None
    assert chart.lines[0].low is None  # one seed has no interval


def test_no_text_of_a_figure_is_cut_off(tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    sheets = []
    monkeypatch.setattr(plt, "close", sheets.append)
    for name in ("self-training-mse", "self-training"):  # five names below one panel; a title of 66 letters
        study, only = STUDIES[name], {"dataset": ["walker2d-medium-expert"], "quality": [10, 30, 50]}
        page(study, "lite", fill(tmp_path, study), only=only)
    for sheet in sheets:
        texts = [*sheet.legends, *(axis.title for axis in sheet.axes), *sheet.texts]
        assert all(t.get_window_extent().x0 >= 0 and t.get_window_extent().x1 <= sheet.bbox.x1 for t in texts)
    assert len(sheets) == 2 and sheets[0].legends and not sheets[1].axes[0].get_title()


def test_long_names_of_bars_do_not_overlap(tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    sheets = []
    monkeypatch.setattr(plt, "close", sheets.append)
    agents = {f"a name of an agent {i}": {"settings": {"updates": i}} for i in range(1, 5)}
    axes = {"agent": agents, "variant": ("ss", "oracle")}
    study = Study("mine", "Mine", (Grid({"dataset": "x"}, axes),), figure="gap", also=("iqm",), by="agent", panels=())
    page(study, "smoke", fill(tmp_path, study, "smoke"))
    groups = [study_charts.Column(name, [Bar("x", 0.5, "50 %", "ss")]) for name in agents]
    assert (
        ">a nam…t 1</text>" in (drawn := columns("k", "t", "d", groups, NARROW)) and "a name of an agent 1\n" in drawn
    )
    for sheet in sheets:
        axis = sheet.axes[0]
        ends = [name.get_window_extent() for name in axis.get_xticklabels()]
        assert all(a.x1 < b.x0 for a, b in pairwise(ends)) and len(ends) > 1
        assert all(axis.title.get_window_extent().x1 <= sheet.bbox.x1 for axis in sheet.axes)
        assert axis.get_window_extent().width > 0.4 * sheet.bbox.x1 / len(sheet.axes)
    assert len(sheets) == 2


def test_page_links_to_the_files_for_papers(tmp_path):
    study = STUDIES["self-training-mse"]
    path = page(study, "lite", fill(tmp_path, study))
    assert path == tmp_path / "reports" / "self-training-mse-lite.html"
    names = {p.name: p for p in path.parent.iterdir() if p.name != ".lock"}
    assert set(names) == {f"self-training-mse-lite{end}" for end in (".html", ".md", "-mse.png", "-mse.pdf")}
    assert names["self-training-mse-lite-mse.png"].read_bytes()[:4] == b"\x89PNG"
    assert names["self-training-mse-lite-mse.pdf"].read_bytes()[:4] == b"%PDF"
    for name in names:
        if name != path.name:
            assert f'href="{name}"' in path.read_text()
    lines = names["self-training-mse-lite.md"].read_text().splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert table[0].startswith("| q | ours | m = 2, N = 3 |") and len(table) == 2 + 6
    assert len({line.count("|") for line in table}) == 1


def test_numbers_of_a_table_have_the_same_decimals(tmp_path, monkeypatch):
    monkeypatch.setattr("ssorl.study.report.page.pictures", lambda *args: [])  # they take seconds
    study = STUDIES["main-medium-expert"]
    fill(tmp_path, study, "smoke")
    chart = charts(study.name, tmp_path, "smoke")[0].charts[0]
    assert {len(str(v).partition(".")[2]) for row in chart.table.rows for v in row[1:]} == {1}
    html = page(study, "smoke", tmp_path).read_text()
    axis = re.findall(r'<text x="[^"]*" y="211[^"]*"[^>]*>(\d+)<', html)
    assert axis == ["10", "30", "50", "70", "90", "100"] * 6  # where the points are
    show = study_panels.common_format([1.5, -0.02, float("nan")])
    assert [show(x) for x in (1.5, -0.0209, -0.001, float("nan"))] == ["1.50", "−0.02", "0.00", "–"]
    assert [study_panels.common_format([most])(most) for most in (0.000012, 0.5, 61.25, 12345.6)] == [
        "1.20e−05",
        "0.500",
        "61.2",
        "12,346",
    ]


def test_part_of_a_study_has_its_own_page(tmp_path, monkeypatch):
    monkeypatch.setattr("ssorl.study.report.page.pictures", lambda *args: [])  # they take seconds
    study = STUDIES["main-medium-expert"]
    fill(tmp_path, study)
    path = page(study, "lite", tmp_path, seeds=2, only={"agent": ["dt"], "quality": ["10", "50"]}, name="my study.yaml")
    assert path.name == "main-medium-expert-lite-agent-dt-quality-10-50-2-seeds.html"
    html, whole = path.read_text(), page(study, "lite", tmp_path).read_text()
    assert (
        "Return against q, medium-expert (agent dt; quality 10, 50; 2 seeds)" in html
        and "hopper-medium-expert, CQL" not in html
    )
    assert html.count("<figure") == 2 < whole.count("<figure") == 6
    text = re.sub("<[^>]*>", "", html)
    assert "ssorl study run &#39;my study.yaml&#39; --scale lite --store " in text
    assert "--seeds 2 --only agent=dt quality=10 quality=50 &amp;&amp; ssorl study report" in text
    assert ">20 of 20<" in html  # 2 datasets, 2 seeds: an oracle, and 2 others at 2 qualities


def test_averaged_weights_have_their_own_page(tmp_path, monkeypatch):
    monkeypatch.setattr("ssorl.study.report.page.pictures", lambda *args: [])  # they take seconds
    study = STUDIES["idm-robust"]
    fill(tmp_path, study, "lite", noise=0.0)
    path = page(study, "lite", tmp_path, policy="average")
    assert path.name == "idm-robust-lite-average-weights.html" and "(average weights)" in path.read_text()
    text, plain = (re.sub("<[^>]*>", "", p.read_text()) for p in (path, page(study, "lite", tmp_path)))
    assert "--policy average" in text and "--policy" not in plain
    pair = zip(gather(study, "lite", tmp_path), gather(study, "lite", tmp_path, policy="average"), strict=True)
    assert all(b.score == pytest.approx(a.score + 1) for a, b in pair)  # as in the samples


def test_answer_compares_two_idms(tmp_path):
    study = STUDIES["idm-robust"]
    of = lambda at: {"baseline": 20.0, "oracle": 90.0}.get(at["variant"], 50.0 + 10 * (at.get("idm") == "robust"))  # noqa: E731
    fill(tmp_path, study, "lite", noise=0.0, of=of)
    assert answer(study, "lite", gather(study, "lite", tmp_path)) == (
        "On average SS scores 50 with the paper's labels and 60 with robust labels, a difference of 10; the baseline "
        "scores 20."
    )
    by_quality, *_ = charts("idm-robust", tmp_path)
    names = [line.name for line in by_quality.charts[0].lines]
    assert names == ["baseline", "the paper's labels", "oracle", "robust labels"]


def test_answer_names_the_gap_of_each_dataset(tmp_path):
    """Opposite gaps of two datasets would cancel in the mean."""
    study = STUDIES["main-medium-expert"]

    def of(at):
        ss = 90.0 if at["dataset"].startswith("hopper") else 40.0
        return {"baseline": 60.0, "oracle": 80.0}.get(at["variant"], ss)

    fill(tmp_path, study, "lite", noise=0.0, of=of)
    entries = gather(study, "lite", tmp_path)
    text = answer(study, "lite", entries)
    assert "gap to the oracle is −12 % on hopper-medium-expert and 50 % on walker2d-medium-expert; the" in text
    assert text.endswith("the baseline's is 25 % and 25 %.")
    assert "hold the true mean in 75 % of the cases" in caveats("lite", entries)[-1]
    walker = [entry for entry in entries if entry.at["dataset"].startswith("walker2d")]
    assert answer(study, "lite", walker).endswith("gap to the oracle is 50 %; the baseline's is 25 %.")


def test_the_same_results_give_the_same_files(tmp_path):
    study = STUDIES["example-density"]
    folder = page(study, "lite", fill(tmp_path, study)).parent
    first = {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix}
    page(study, "lite", tmp_path)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix} == first and len(first) == 4


def test_names_from_files_are_escaped(tmp_path):
    axes = {"idm": {NASTY: {}, "b": {"past": 0}}, "quality": (10, 50)}
    grid = Grid({"dataset": "sim/hopper-medium", "agent": "td3bc"}, axes)
    for figure in ("by-quality", "iqm"):
        study = Study(f"../{NASTY}", NASTY, (grid,), NASTY, figure=figure, by="idm", panels=())
        path = page(study, "smoke", fill(tmp_path, study, "smoke"))
        assert path.parent == tmp_path / "reports" and "<script>hacked" not in path.read_text()
        assert "<script>" not in path.with_suffix(".md").read_text()


def test_the_ledger_is_a_page(tmp_path):
    fill(tmp_path, STUDIES["idm-architecture"], noise=0.3)
    path = page(STUDIES["claims"], "lite", tmp_path)
    html = path.read_text()
    assert "Of the paper&#39;s 12 claims: 1 confirmed, 0 refuted, 11 undecided." in html
    assert "7. confirmed: Windows with k = 1 beat" in html and "k = 1 − k = 0" in html
    ledger = next(part for part in path.with_suffix(".md").read_text().split("\n## ") if part.startswith("The ledger"))
    assert len(ledger.splitlines()) == 2 + 2 + 12 and "| 7 | confirmed |" in ledger


def test_ledger_has_each_claim_in_one_number(tmp_path):
    fill(tmp_path, STUDIES["idm-architecture"], noise=0.3)
    text = page(STUDIES["claims"], "lite", tmp_path).with_suffix(".md").read_text()
    assert "In one number each, results agree with 1 claim, contradict 0, and are too uncertain for 0." in text
    table = next(part for part in text.split("\n## ") if part.startswith("Each claim in one number"))
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    assert (
        len(rows) == 12 and rows[0][2:4] == ["–", "0 of 36"] and rows[6][3:] == ["12 of 12", "above 0", "as claimed |"]
    )
    assert float(rows[6][2].split()[0]) == pytest.approx(6, abs=0.5)  # the loss of k = 0 and k = 2 in the samples


def test_height_of_an_upright_bar_is_its_value():
    groups = [study_charts.Column("a", [Bar("x", 0.5, "50 %", "ss", 0.4, 0.6), Bar("y", 0.25, "25 %", "baseline")])]
    drawn = columns("k", "t", "d", groups, axes=("", "gap"), percent=True)
    heights = [float(x) for x in re.findall(r'height="([\d.]+)" class="bar"', drawn)]
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.2)
    assert "a\nx: 50 %\ny: 25 %" in drawn


def test_long_names_keep_their_ends():
    assert study_panels.shorten("hopper-medium-expert dt q = 10", 16, last=6) == "hopper-me…q = 10"
    assert study_panels.shorten("abcdef", 4) == "abc…" and study_panels.shorten("abcd", 4, 2) == "abcd"


def test_names_of_values():
    pairs = [("agent", "td3bc"), ("quality", 50), ("fraction", 0.03), ("unlabelled_fraction", 0.25), ("lambda_s", 0.1)]
    pairs += [("labelled", "low"), ("variant", "ss"), ("idm", "m = 2"), ("depth", 3), ("agent", "dt, small")]
    assert [study_panels.value_name(*pair) for pair in pairs] == [
        *("TD3BC", "q = 50", "3 % labelled", "25 % unlabelled", "λ_s = 0.1", "labelled low"),
        *("SS", "m = 2", "depth = 3", "dt, small"),
    ]


def test_scores_by_error_of_the_proxy_actions(tmp_path):
    fill(tmp_path, STUDIES["idm-robust"], "lite", noise=0.0)
    _, _, figure = charts("idm-robust", tmp_path)
    lines = {line.name: line for line in figure.charts[0].lines}
    assert set(lines) == {"the paper's labels", "robust labels"} and not any(line.joined for line in lines.values())
    assert all(
        len(line.x) == 2 * 6 for line in lines.values()
    )  # datasets x qualities; baseline and oracle have no labels
    # At q = 100 the samples have an MSE of 0.2 / (1 + 100 / 30), 96 points for SS and 92 for the oracle.
    assert lines["the paper's labels"].x[0] == pytest.approx((0.2 / (1 + 100 / 30)) ** 0.5)
    assert lines["the paper's labels"].y[0] == pytest.approx(96 / 92)


def test_temporary_files_of_a_killed_report_are_removed(tmp_path):
    leftover = tmp_path / "reports" / ".tmp-maze2d-smoke.html-x"
    leftover.mkdir(parents=True)
    (leftover / "maze2d-smoke.html").write_text("half a")
    page(STUDIES["maze2d"], "smoke", tmp_path)
    assert not leftover.exists()
