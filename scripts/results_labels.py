"""Sections of the results page about inverse dynamics models: scores by the error of the labels."""

import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from results_shared import IDMS, MAINS, NAMED, SCALES, TITLES, table, words
from scipy.stats import rankdata

from ssorl.report.blocks import Table
from ssorl.report.svg import Line
from ssorl.study import statistics
from ssorl.study.paper import STUDIES
from ssorl.study.report import panels
from ssorl.study.report.charts import Chart, Figure
from ssorl.study.report.files import pictures
from ssorl.study.results import StudyResults, gather, select, values


def labels_and_returns(results: list[StudyResults]) -> str:
    """Return a paragraph on the rank correlation of label error and return within each dataset."""
    parts = []
    for dataset in values(results, "dataset"):
        ss, mean = select(results, {"dataset": dataset, "variant": "ss"}), []
        for idm, quality in dict.fromkeys((entry.at["idm"], entry.at["quality"]) for entry in ss):
            seeds = select(ss, {"idm": idm, "quality": quality})
            mean.append((np.mean([entry.mse for entry in seeds]), np.mean([entry.score for entry in seeds])))
        parts.append(f"{dataset} {rank_correlation(*zip(*mean, strict=True))}")
    return (
        "Scores are of averaged weights, the product's default. Rank correlation of the labels' error and the return, "
        f"over the qualities and both models: {', '.join(parts)}. The quality of the labelled data affects both, so "
        "the correlation alone proves nothing; the table near the top compares the two models on equal splits."
    )


def gap_by_labels(store: Path) -> str:
    """Return a table of the gain by better labels, over the splits with both models' labels."""
    rows = []
    for scale in SCALES:
        for study in (STUDIES[name] for name in LABELS if name in STUDIES):
            results = [entry for entry in gather(study, scale, store, policy="average") if entry.result]
            for agent, dataset in dict.fromkeys((entry.at["agent"], entry.at["dataset"]) for entry in results):
                rows += gap_row(select(results, {"agent": agent, "dataset": dataset}), scale)
    if not rows:
        return ""
    head = ["trained", "splits", "MSE of the labels", "SS", "difference", "oracle", "of the gap", "more in"]
    return "\n\n".join(["## Do better labels close the gap?", words("page", "gap"), table(head, rows)])


def gap_row(results: list[StudyResults], scale: str) -> list[list[str]]:
    """Return the row of one agent and dataset, or [] without splits that have both models and an oracle."""
    ss = (select(results, {"variant": "ss", "idm": idm}) for idm in IDMS)
    both = [{(entry.at["quality"], entry.at["seed"]): entry for entry in entries} for entries in ss]
    pairs = [(both[0][at], both[1][at]) for at in both[0] if at in both[1]]
    bound = [entry.score for entry in select(results, {"variant": "oracle"})]
    if not pairs or not bound:
        return []
    (mse, better), (low, high) = (
        [np.mean([getattr(pair[i], name) for pair in pairs]) for i in (0, 1)] for name in ("mse", "score")
    )
    qualities = dict.fromkeys(entry.at["quality"] for entry, _ in pairs)
    by = [[[pair[i].score for pair in pairs if pair[0].at["quality"] == q] for q in qualities] for i in (1, 0)]
    gain = panels.estimate(statistics.difference(statistics.mean), *by)
    gap = np.mean(bound) - low
    at = results[0].at
    row = [
        f"{at['agent'].upper()}, {at['dataset']}, {TITLES[scale]}",
        f"{len(pairs)}",
        f"{mse:.4f} → {better:.4f}",
        f"{low:.1f} → {high:.1f}",
        f"{gain.value:.1f} [{gain.low:.1f}, {gain.high:.1f}]" if gain else "–",
        f"{np.mean(bound):.1f}",
        f"{100 * (high - low) / gap:.0f} %" if gap > 5 else "–",
        f"{sum(ours.score > theirs.score for theirs, ours in pairs)} of {len(pairs)}",
    ]
    return [row[:1] + [text.replace("-", "−") for text in row[1:]]]


class Training(NamedTuple):
    """A training of SS with the errors of its labels; scores are shares of the oracles' mean."""

    agent: str
    idm: str
    mse: float
    validation: float  # error on held-out labelled trajectories, which needs no hidden actions
    ss: float
    alone: float  # of the baseline on the same split


def trainings(store: Path) -> list[Training]:
    """Return each training of SS on robots whose baseline and oracles are finished."""
    out: dict[str, Training] = {}
    for scale in SCALES:
        for study in (STUDIES[name] for name in (*ROBOTS, "low-label", *LABELS) if name in STUDIES):
            results = [entry for entry in gather(study, scale, store, policy="average") if entry.result]
            alone = {_split(entry): entry.score for entry in results if entry.at["variant"] == "baseline"}
            best: dict[tuple, dict[str, float]] = {}
            for entry in results:
                if entry.at["variant"] == "oracle":
                    best.setdefault(_split(entry)[:2], {})[entry.hash] = entry.score
            for entry in (entry for entry in results if entry.at["variant"] == "ss"):
                at = _split(entry)
                if at in alone and at[:2] in best:
                    top = float(np.mean(list(best[at[:2]].values())))
                    errors = entry.mse, entry.result["idm"]["validation_mse"]
                    out[entry.hash] = Training(at[0], entry.at["idm"], *errors, entry.score / top, alone[at] / top)
    return list(out.values())


def _split(entry: StudyResults) -> tuple:
    return tuple(entry.at[name] for name in ("agent", "dataset", "fraction", "quality", "seed"))


def required_accuracy(store: Path, figures: Path) -> str:
    """Return a section on the scores of SS and baseline, relative to the oracle, by the error of the labels."""
    every = trainings(store)
    by = {agent: mine for agent in AGENTS if (mine := [run for run in every if run.agent == agent])}
    means = {(agent, error): binned(mine, error) for agent, mine in by.items() for error in ERRORS}
    charts = [_cloud(agent.upper(), mine, means[agent, "mse"]) for agent, mine in by.items() if means[agent, "mse"]]
    if not charts:
        return ""
    with TemporaryDirectory() as folder:
        figure, title = Figure("labels", "", "", charts), "Score against the error of the labels"
        picture, _ = pictures([figure], title, "every training", Path(folder) / "needed")
        shutil.copy(picture, figures / picture.name)
    comment = words("page", "needed").format(n=len(every), lost=f"{100 * LOST:g} %")
    texts = [f"## How good must labels be?\n\n{comment}"]
    texts.append(f"![{title}](figures/{picture.name})")
    for error, name in ERRORS.items():
        head = ["agent", name, "trainings", "SS", "labelled data alone", "SS − alone", "lost"]
        rows = [[agent.upper(), *entry.row] for agent in by for entry in means[agent, error]]
        both = (f"{agent.upper()} {rank_correlation(*_pairs(mine, error))}" for agent, mine in by.items())
        texts += [table(head, rows), f"Rank correlation of SS with this error: {', '.join(both)}."]
    return "\n\n".join([*texts, words("page", "rule")])


class Bin(NamedTuple):
    """Trainings whose labels have similar errors."""

    error: float  # root of the mean squared error
    ss: float
    alone: float
    row: list[str]


def binned(runs: list[Training], error: str) -> list[Bin]:
    """Return the ranges of an error that have enough trainings."""
    out = []
    for low, high in pairwise((*BINS, np.inf)):
        if len(within := [run for run in runs if low <= getattr(run, error) < high]) < FEWEST:
            continue
        ss, alone = ([getattr(run, name) for run in within] for name in ("ss", "alone"))
        columns = (ss, alone, np.subtract(ss, alone).tolist())
        shares = (panels.estimate_text(panels.estimate(statistics.mean, [column]), percent=True) for column in columns)
        bounds = f"{low:g} to {high:g}" if np.isfinite(high) else f"above {low:g}"
        row = [bounds, str(len(within)), *shares, str(sum(x < LOST for x in ss))]
        out.append(Bin(np.mean([getattr(run, error) for run in within]) ** 0.5, np.mean(ss), np.mean(alone), row))
    return out


def _pairs(runs: list[Training], error: str) -> tuple[list[float], list[float]]:
    return [getattr(run, error) for run in runs], [run.ss for run in runs]


ROBOTS = tuple(name for name in MAINS if name != "maze2d")  # scores in mazes have another range
LABELS = ("idm-robust", "idm-robust-agents")
ERRORS = {"mse": "MSE on the unlabelled", "validation": "MSE on labelled ones held out"}
AGENTS = ["td3bc", "dt", "cql"]
BINS = (0.0, 0.01, 0.02, 0.05, 0.1)
FEWEST = 5  # trainings in a range whose mean is shown
LOST = 0.1  # share of the oracle's score below which a training counts as lost: the robot falls at once


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> str:
    """Return the rank correlation of two lists as text."""
    return f"{np.corrcoef(rankdata(x), rankdata(y))[0, 1]:.2f}".replace("-", "−")


def _cloud(title: str, runs: list[Training], means: list[Bin]) -> Chart:
    lines = []
    for kind, idm in zip(("c6", "c3"), IDMS, strict=True):
        if mine := [run for run in runs if run.idm == idm]:
            x, y = [run.mse**0.5 for run in mine], [run.ss for run in mine]
            lines.append(Line(f"SS, {NAMED[idm]} labels", x, y, kind, joined=False))
    x = [mean.error for mean in means]
    lines.append(Line("SS, mean", x, [mean.ss for mean in means], "ss"))
    lines.append(Line("labelled data alone, mean", x, [mean.alone for mean in means], "baseline"))
    axes = ("RMS error of the proxy actions", "score / oracle's")
    return Chart(title, Table(title, (), ()), axes, lines, legend=[(line.kind, line.name) for line in lines])
