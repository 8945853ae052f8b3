"""Published results: scripts/results.py packs cells and draws docs/results.md from them."""

import importlib
import json

import numpy as np
import pytest
from support.paths import ROOT
from support.study_samples import fill, result

from ssorl.study import statistics
from ssorl.study import store as cells
from ssorl.study.claims.judge import ledger
from ssorl.study.paper import STUDIES
from ssorl.study.results import StudyResults

SCALES = ("paper", "lite")
ABOUT = {"hardware": {"device": "a machine"}, "commit": "abc1234", "versions": {}}


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Return scripts/results.py and its parts as one object; their output goes to a temporary folder."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    parts = [importlib.import_module(name) for name in ("results", "results_first", "results_labels", "results_shared")]
    patched: dict[str, object] = {"PACKED": tmp_path / "cells", "ROOT": tmp_path}
    patched |= {"PAGE": tmp_path / "docs" / "results.md", "FIGURES": tmp_path / "docs" / "figures"}
    modules = Patched(parts, monkeypatch)
    for name, value in patched.items():
        modules.patch(name, value)
    modules.patch("STUDIES", {n: STUDIES[n] for n in ("example-density", "maze2d")})
    estimate = statistics.estimate
    monkeypatch.setattr(statistics, "estimate", lambda *args, **more: estimate(*args, **{"replications": 200, **more}))
    return modules


class Patched:
    """Several modules as one object; `patch` sets a name in every module that has it."""

    def __init__(self, parts, monkeypatch):
        self.parts, self.monkeypatch = parts, monkeypatch

    def __getattr__(self, name):
        return next(getattr(part, name) for part in self.parts if hasattr(part, name))

    def patch(self, name, value):
        for part in self.parts:
            if hasattr(part, name):
                self.monkeypatch.setattr(part, name, value)


def finish(store, name, n):
    for point in STUDIES[name].points("paper")[:n]:
        values = {k: v for k, v in result(point).items() if k != "schema"}
        cells.write(store, point.cell, values, ABOUT)


def test_pack_and_draw(results, tmp_path):
    finish(tmp_path / "one", "maze2d", 90)  # the first of four mazes
    results.pack([tmp_path / "one"])
    (file,) = results.PACKED.iterdir()
    assert file.name == "td3bc.jsonl"
    lines = file.read_text().splitlines()
    finish(tmp_path / "two", "example-density", 1)
    results.pack([tmp_path / "one", tmp_path / "two"])  # only adds
    assert file.read_text().splitlines() == lines and len(results.packed()) == len(lines) + 1
    assert {path.name for path in results.PACKED.iterdir()} == {"td3bc.jsonl", "data.jsonl"}
    assert all("critic_loss" not in json.loads(line)["result"]["curve"] for line in lines)

    results.draw()
    page = results.PAGE.read_text()
    assert "## In short" in page and "scale lite: 12 undecided. Of the checks with all cells, 0 hold, 0 fail" in page
    assert f"{len(lines) + 1} results so far: {len(lines) + 1} on a machine at `abc1234`" in page
    for name, part in (("example-density", ""), ("maze2d", " --only dataset=maze2d-open-dense")):
        assert f"`{name}`, scale paper" in page and f"ssorl study run {name} --scale paper{part}\n" in page
    pictures = {p.name for p in results.FIGURES.iterdir()}
    whole = "maze2d-paper-dataset-maze2d-open-dense-by-quality.png"
    assert pictures == {"example-density-paper-density.png", whole}
    assert all(f"figures/{name}" in page for name in pictures)
    left = [line for line in page.splitlines() if line.startswith("| `maze2d`")]
    assert len(left) == 1 and "| 156 of 156 |" in left[0] and f"| {260 - len(lines)} of 260 |" in left[0]
    assert "| `example-density` |" not in page  # the study is complete


def test_results_of_labels_are_packed_once(results, tmp_path):
    """The result of the labels may come with the cell or later; `unpack` restores it."""
    ss = next(point for point in STUDIES["maze2d"].points("paper") if point.at["variant"] == "ss")
    values = {k: v for k, v in result(ss).items() if k != "schema"}
    labels = {**values, "score": None, "returns": [], "curve": {}}
    for store, content in (("one", {ss.cell: values, ss.cell.labels: labels}), ("two", {ss.cell.labels: labels})):
        for cell, own in content.items():
            cells.write(tmp_path / store, cell, own, ABOUT)
        results.pack([tmp_path / store])
        assert [entry["cell"]["kind"] for entry in results.packed()] == ["return"]
    results.unpack(tmp_path / "store")
    restored, why = cells.read(cells.folder(tmp_path / "store", ss.cell.labels))
    assert restored and restored["idm"]["mse"] == pytest.approx(values["idm"]["mse"], rel=1e-5), why


def test_incomplete_parts_are_not_drawn(results, tmp_path):
    study = STUDIES["dt-joint"]
    assert results.complete_part(study, "lite", tmp_path) is None
    for point in study.points("lite"):
        if point.at["agent"] == "td3bc":
            cells.write(tmp_path, point.cell, {k: v for k, v in result(point).items() if k != "schema"}, ABOUT)
    assert (
        results.complete_part(study, "lite", tmp_path) is None
    )  # the study compares agents, and one agent is no comparison
    for point in study.points("lite"):
        if point.at["agent"] == "dt-joint":
            cells.write(tmp_path, point.cell, {k: v for k, v in result(point).items() if k != "schema"}, ABOUT)
    assert results.complete_part(study, "lite", tmp_path) == {"agent": ["dt-joint", "td3bc"]}


def test_one_complete_quality_is_drawn_without_a_curve(results, tmp_path):
    store, study = tmp_path / "store", STUDIES["maze2d"]
    for point in study.points("paper"):
        if point.at["dataset"] == "maze2d-large-dense" and point.at["quality"] == 30:
            cells.write(store, point.cell, {k: v for k, v in result(point).items() if k != "schema"}, ABOUT)
    assert results.complete_part(study, "paper", store) == {"dataset": ["maze2d-large-dense"], "quality": [30]}
    unfinished = study.points("paper")[1].cell  # has a folder but no result
    (store / "cells" / unfinished.hash).mkdir()
    results.pack([store])
    results.draw()
    page = results.PAGE.read_text()
    assert "--only dataset=maze2d-large-dense quality=30\n" in page and "| 30 | " in page
    assert not list(results.FIGURES.iterdir())


def test_further_places_are_shown_beside_the_complete_part(results, tmp_path):
    study = STUDIES["maze2d"]
    for point in study.points("paper"):
        done = {"maze2d-open-dense": True, "maze2d-umaze-dense": point.at["quality"] in (10, 30)}
        if done.get(point.at["dataset"], point.at["quality"] == 50):  # of the other mazes one quality
            cells.write(tmp_path, point.cell, {k: v for k, v in result(point).items() if k != "schema"}, ABOUT)
    two = [{"dataset": ["maze2d-open-dense"]}, {"dataset": ["maze2d-umaze-dense"], "quality": [10, 30]}]
    assert results.parts_to_show(study, "paper", tmp_path) == two
    results.FIGURES.mkdir(parents=True)
    first, *both = results.draw_section(study, "paper", tmp_path, set())
    assert first.startswith("## ") and "`maze2d`, scale paper" in first
    assert [text.split(": ")[0] for text in both] == ["maze2d-open-dense", "maze2d-umaze-dense"]
    assert "quality=10 quality=30\n" in both[1]


def test_gap_row_uses_splits_with_both_models(results):
    def entry(variant: str, seed: int, score: float, **more) -> StudyResults:
        at = {"dataset": "d", "agent": "dt", "variant": variant, "quality": 10, "seed": seed, **more}
        return StudyResults(at, "", {"score": score, "idm": {"mse": 0.1 if more.get("idm") == "paper" else 0.05}})

    entries = [entry("oracle", 0, 100.0)]
    assert results.gap_row(entries, "lite") == []
    entries += [entry("ss", seed, 40.0 + seed, idm="paper") for seed in range(3)]
    entries += [entry("ss", seed, (80.0, 30.0)[seed], idm="robust") for seed in range(2)]
    (cells,) = results.gap_row(entries, "lite")
    assert cells[:4] == ["DT, d, lite", "2", "0.1000 → 0.0500", "40.5 → 55.0"]  # the third split has only one model
    assert cells[4].startswith("14.5 [") and cells[5:] == ["100.0", "24 %", "1 of 2"]
    (row,) = results.gap_row([entry("oracle", 0, 45.0), *entries[1:]], "lite")
    assert row[5:] == ["45.0", "–", "1 of 2"]


def test_scales_are_compared_at_common_places(results, tmp_path, monkeypatch):
    study = STUDIES["main-medium-expert"]
    results.patch("STUDIES", STUDIES)
    assert results.compare_scales(tmp_path) == ""

    def write(scale: str, score: float, **at) -> None:
        for point in study.points(scale):
            if all(point.at.get(axis) == value for axis, value in at.items()):
                values = {k: v for k, v in result(point).items() if k != "schema"}
                cells.write(tmp_path, point.cell, {**values, "scores": {"last": score, "average": score + 1}}, ABOUT)

    where = {"agent": "dt", "dataset": "walker2d-medium-expert", "variant": "ss"}
    write("lite", 10.0, **where, quality=10)
    write("lite", 30.0, **where, quality=50)
    write("paper", 90.0, **where, quality=90)
    assert results.compare_scales(tmp_path) == ""  # the scales have no quality in common
    write("paper", 20.0, **where, quality=50, seed=0)
    rows = [line for line in results.compare_scales(tmp_path).splitlines() if line.startswith("| DT")]
    assert rows == ["| DT | walker2d-medium-expert | ss | 50 | 3 → 1 | 30.0 → 20.0 | 31.0 → 21.0 |"]


def test_waiting_checks_are_left_out(results, monkeypatch):
    head = "| check | why open |\n| --- | --- |\n"
    tables = (
        f"## one\n\n{head}| a | cells are missing | 3 |\n| b | – | 0 |\n\n## two\n\n{head}| c | cells are missing | 3 |"
    )
    assert results.without_waiting_checks(tables, "lite") == f"## one\n\n{head}| b | – | 0 |\n"

    results.patch("WORDS", {"claims": {"lite": {"3": "Elsewhere it was run."}}})
    waits = f"{head}| c | cells are missing | 3 |"
    tables = f"## 3. points\n\n{waits}\n\n## 3. %\n\n{waits}\n\n## 4. four\n\n{waits}"
    assert results.without_waiting_checks(tables, "lite") == "## 3. points\n"  # the claim has a comment
    text = results.with_comments(results.without_waiting_checks(tables, "lite").replace("## ", "#### "), "lite")
    assert text == "#### 3. points\n\nElsewhere it was run.\n"


def test_comments_follow_the_tables_of_claims(results, monkeypatch):
    results.patch("WORDS", {"claims": {"lite": {"2": "Two lines.\n"}}})
    tables = "#### The ledger\n\n| 2 |\n\n#### 1. one\n\n| a |\n\n#### 2. two\n\n| b |"
    assert results.with_comments(tables, "paper") == tables
    assert results.with_comments(tables, "lite") == tables + "\n\nTwo lines.\n"
    twice = tables + "\n\n#### 2. two: in %\n\n| c |"
    assert results.with_comments(twice, "lite") == twice + "\n\nTwo lines.\n"  # once, under the last table


def test_training_lengths_of_oracles(results, tmp_path, monkeypatch):
    study = STUDIES["main-medium"]
    results.patch("STUDIES", {study.name: study})
    assert results.training_lengths(tmp_path) == ""  # the store is empty
    fill(tmp_path, study, noise=0.0, of=lambda at: 40.0, keep=lambda point: point.at["variant"] == "oracle")
    page = results.training_lengths(tmp_path)
    assert (
        "| TD3BC | walker2d-medium | lite | 3 | 20 | 40 | 41 | 83 |" in page
    )  # the published score on D4RL's file is 82.7
    entry = {"device": "cpu", "agent": "td3bc", "settings": {"batch": 256}, "env": "ant", "level": "medium"}
    results.patch("ORACLES", tmp_path / "oracle.jsonl")
    lines = [json.dumps({**entry, "kind": "last", "at": at, "score": at / 1000}) for at in (50_000, 100_000)]
    results.ORACLES.write_text("\n".join(lines))
    assert (
        "| updates, thousands | 50 | 100 |\n| --- | --- | --- |\n| ant-medium, last weights | 50 | 100 |"
        in results.longer_trainings()
    )


def test_unlabelled_gain_where_all_qualities_were_run(results, tmp_path, monkeypatch):
    study = STUDIES["main-medium"]
    results.patch("STUDIES", {study.name: study})
    earned = {"baseline": 30.0, "ss": 20.0, "oracle": 60.0}
    fill(tmp_path, study, noise=0.0, of=lambda at: earned[at["variant"]], keep=lambda point: point.at["agent"] == "dt")
    fill(tmp_path, study, noise=0.0, of=lambda at: 0.0, keep=lambda point: point.at.get("quality") == 10)
    page = results.unlabelled_gain(tmp_path)
    assert "| DT | hopper-medium | lite | 30 [30, 30] | 20 [20, 20] | −10 [−10, −10] | 60 [60, 60] |" in page
    assert "CQL" not in page and "Of 2 differences 0 are surely above zero, and 2 surely below." in page
    assert "Trainings of one seed" not in page  # the scores do not vary, so there is no such paragraph


def test_shared_luck_of_seeds(results):
    rng = np.random.default_rng(0)
    seeds, luck = rng.normal(size=400), rng.normal(size=(2, 6, 400))
    assert results.shared_luck(*luck) == pytest.approx(1, abs=0.2)
    assert results.shared_luck(np.tile(seeds, (6, 1)), np.zeros((6, 400))) == pytest.approx(6)
    assert results.shared_luck(luck[0] + 3, luck[0]) == pytest.approx(0)  # the difference cancels what both share
    assert results.count_sure([statistics.Estimate(5, 1, 9), statistics.Estimate(-5, -9, -1)]) == (1, 1)
    assert results.count_sure([statistics.Estimate(5, 1, 9), statistics.Estimate(-5, -9, -2)], 1.5) == (0, 1)


def test_results_in_the_readme(results, tmp_path, monkeypatch):
    results.patch("STUDIES", {"idm-robust": STUDIES["idm-robust"]})
    results.patch("README", tmp_path / "README.md")
    results.README.write_text("before\n<!-- generated: results -->\nold\n<!-- end -->\nafter\n")
    (tmp_path / "results").mkdir()
    hopper = {"dataset": "hopper-medium-expert", "quality": 50}
    errors = [{**hopper, "idm": idm, "mse": mse} for idm, mse in (("paper", 0.04), ("robust", 0.01), ("robust", 0.02))]
    (tmp_path / "results" / "idm-table.jsonl").write_text("\n".join(map(json.dumps, errors)))
    speed = {"case": "td3bc:5120:30", "fused": True, "updates_per_second": 12345, "device": "GPU"}
    (tmp_path / "results" / "agent-speed.jsonl").write_text(json.dumps(speed))
    store = tmp_path / "store"
    results.draw_readme(store)
    assert "old" in results.README.read_text()  # the store is empty
    earned = {"baseline": 20.0, "ss": 50.0, "oracle": 60.0}
    for point in STUDIES["idm-robust"].points("lite"):
        values = {k: v for k, v in result(point).items() if k != "schema"}
        score = earned[point.at["variant"]] + 10 * (point.at.get("idm") == "robust")
        cells.write(store, point.cell, {**values, "scores": {"last": 0.0, "average": score}}, ABOUT)
    results.draw_readme(store)
    page = results.README.read_text()
    assert page.startswith("before\n<!-- generated: results -->\n![") and page.endswith("<!-- end -->\nafter\n")
    assert "**20 → 60**" in page and "60 [60, 60] with all actions known" in page and "3 seeds" in page
    assert "**0.015**" in page and "leaves 0.040" in page and "**12,345/s**" in page


def test_table_of_claims_in_one_number(results, tmp_path):
    study = STUDIES["main-medium-expert"]
    assert results.claims_table(ledgers(results, tmp_path)) == ""  # the store is empty
    earned = {"baseline": 30.0, "ss": 20.0, "oracle": 60.0}
    dt = {"noise": 0.0, "of": lambda at: earned[at["variant"]], "keep": lambda point: point.at["agent"] == "dt"}
    fill(tmp_path, study, **dt)
    page = results.claims_table(ledgers(results, tmp_path))
    first, second, third = page.splitlines()[-12:-9]
    # In these samples averaged weights score one point more: the gap is 40 of 60 by the last weights, else 40 of 61.
    space = "\N{NO-BREAK SPACE}"
    assert "*mean of SS − mean of the baseline: above 0*" in first
    assert first.endswith("| ✗ −10.0<br>✗ −10.0<br>at 12 of 36 places<br>refuted: 0 hold, 12 fail, 24 open |")
    assert f"| ✗ 67{space}%<br>✗ 66{space}%<br>at 2 of 6 places<br>" in second and third.endswith("| – |")
    assert "one number* | lite |\n" in page and "the paper's training" not in page  # that scale has no results


def ledgers(results, store):
    return {(scale, policy): ledger(store, scale, policy=policy) for scale in SCALES for policy in results.POLICIES}


def test_required_accuracy_of_labels(results, tmp_path):
    study, figures = STUDIES["main-medium"], tmp_path / "figures"
    figures.mkdir()
    results.patch("STUDIES", {study.name: study})
    assert results.required_accuracy(tmp_path, figures) == ""
    errors = {10: 0.2, 30: 0.06, 50: 0.03, 70: 0.015, 90: 0.004, 100: 0.002}
    scores = {10: 4.0, 30: 25.0, 50: 40.0, 70: 48.0, 90: 49.0, 100: 50.0}  # the oracle has 50

    def values(point):
        sample = {k: v for k, v in result(point, 0.0).items() if k != "schema"}
        score = {"oracle": 50.0, "baseline": 10.0}.get(point.at["variant"], scores.get(point.at["quality"]))
        error = {
            "mse": errors[point.at["quality"]],
            "validation_mse": 0.001 * scores[point.at["quality"]],
            "by_round": [],
        }
        return {**sample, "scores": {"last": 0.0, "average": score}, "idm": error}

    for point in study.points("lite"):
        if point.at["agent"] == "td3bc" and (point.at["variant"], point.at["quality"]) != ("baseline", 50):
            cells.write(tmp_path, point.cell, values(point), ABOUT)
    page = results.required_accuracy(tmp_path, figures)
    # Two datasets with three seeds; q = 90 and 100 are in one range; q = 50 has no baseline.
    first, second = (part.splitlines() for part in page.split("labelled ones held out |"))
    assert [line for line in first if line.startswith("| TD3BC")] == [
        "| TD3BC | 0 to 0.01 | 12 | 99 % [98 %, 100 %] | 20 % | 79 % [78 %, 80 %] | 0 |",
        "| TD3BC | 0.01 to 0.02 | 6 | 96 % | 20 % | 76 % | 0 |",
        "| TD3BC | 0.05 to 0.1 | 6 | 50 % | 20 % | 30 % | 0 |",
        "| TD3BC | above 0.1 | 6 | 8 % | 20 % | −12 % | 6 |",
    ]
    held_out = [line.split(" | ")[1:3] for line in second if line.startswith("| TD3BC")]
    assert held_out == [["0 to 0.01", "6"], ["0.02 to 0.05", "18"], ["0.05 to 0.1", "6"]]
    assert "Rank correlation of SS with this error: TD3BC −1.00." in first
    assert "Rank correlation of SS with this error: TD3BC 1.00." in second
    assert "All 30 trainings" in page and (figures / "needed-labels.png").stat().st_size
