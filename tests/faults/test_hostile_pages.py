"""Text from files is escaped on the pages of runs and studies, from end to end."""

from __future__ import annotations

from dataclasses import replace

from support.study_samples import fill
from support.systems import TINY

from ssorl.idm import IDMS
from ssorl.runs.run import run
from ssorl.study.grid import Grid, Study
from ssorl.study.report.page import page

NASTY = "<script>alert(1)</script><img src=x onerror=alert(1)>"
SMALL = {"hidden": (8,), "batch": 16, "updates": 20}


def harmless(html: str) -> None:
    assert "<script>alert" not in html and "<img src=x" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_run_page_escapes_text_of_the_data(pointmass, tmp_path, monkeypatch):
    """The page shows the source, the environment and the command."""
    monkeypatch.setitem(IDMS, "robust-quick", replace(TINY, hidden=(8,), steps=60, validate_every=30))
    monkeypatch.setitem(IDMS, "blend-quick", replace(TINY, hidden=(8,), steps=60, validate_every=30))
    monkeypatch.setattr("ssorl.pipeline.scoring.FQE_UPDATES", 30)
    eps = pointmass[:40].with_meta(source=NASTY, env=NASTY, notes=(NASTY,))
    done = run(eps, tmp_path / "r", agent="bc", fraction=0.2, settings=SMALL, command=NASTY)
    harmless((done.folder / "report.html").read_text())
    assert done.content["title"] == done.content["command"] == NASTY


def test_study_page_escapes_text_of_its_files(tmp_path):
    """The page shows the name of the data file, the title, labels of axes, and errors of cells."""
    axes = {"idm": {NASTY: {}, "other": {"past": 0}}, "quality": (10, 50)}
    base = {"dataset": f"{NASTY}.npz", "agent": "td3bc"}
    study = Study("mine", NASTY, (Grid(base, axes),), figure="by-quality", by="idm", panels=("dataset",))
    path = page(study, "smoke", fill(tmp_path, study, "smoke"))
    harmless(path.read_text())
    assert "<script>alert" not in path.with_suffix(".md").read_text()
    for result in tmp_path.glob("cells/*/result.json"):
        result.unlink()
        result.with_name("error.txt").write_text(f"ValueError: {NASTY}\n")
    html = page(study, "smoke", tmp_path).read_text()
    harmless(html)
    assert "failed: ValueError: &lt;script&gt;" in html
