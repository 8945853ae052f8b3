"""How a policy fares by how good its labels are: what the results page tells of inverse dynamics models."""

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


def labels_and_returns(found: list[StudyResults]) -> str:
    """The rank correlation of label error and return within a dataset."""
    said = []
    for dataset in values(found, "dataset"):
        ss, mean = select(found, {"dataset": dataset, "variant": "ss"}), []
        for idm, quality in dict.fromkeys((one.at["idm"], one.at["quality"]) for one in ss):
            some = select(ss, {"idm": idm, "quality": quality})
            mean.append((np.mean([one.mse for one in some]), np.mean([one.score for one in some])))
        said.append(f"{dataset} {ranks(*zip(*mean, strict=True))}")
    return (
        "Scores are of averaged weights, the product's default. Rank correlation of the labels' error and the return, "
        f"over the qualities and both models: {', '.join(said)}. Quality moves both, so that alone proves nothing; the "
        "table near the top holds the two models against each other on the same splits."
    )


def gap(store: Path) -> str:
    """What better labels are worth: every split on which an agent was trained with the labels of both models."""
    rows = []
    for scale in SCALES:
        for study in (STUDIES[name] for name in LABELS if name in STUDIES):
            found = [one for one in gather(study, scale, store, policy="average") if one.result]
            for agent, dataset in dict.fromkeys((one.at["agent"], one.at["dataset"]) for one in found):
                rows += closed(select(found, {"agent": agent, "dataset": dataset}), scale)
    if not rows:
        return ""
    head = ["trained", "splits", "MSE of the labels", "SS", "difference", "oracle", "of the gap", "more in"]
    return "\n\n".join(["## Do better labels close the gap?", words("page", "gap"), table(head, rows)])


def closed(found: list[StudyResults], scale: str) -> list[list[str]]:
    """One row, of the splits that have both models; none if there are none."""
    ss = (select(found, {"variant": "ss", "idm": idm}) for idm in IDMS)
    both = [{(one.at["quality"], one.at["seed"]): one for one in some} for some in ss]
    pairs = [(both[0][at], both[1][at]) for at in both[0] if at in both[1]]
    bound = [one.score for one in select(found, {"variant": "oracle"})]
    if not pairs or not bound:
        return []
    (mse, better), (low, high) = (
        [np.mean([getattr(pair[i], what) for pair in pairs]) for i in (0, 1)] for what in ("mse", "score")
    )
    qualities = dict.fromkeys(one.at["quality"] for one, _ in pairs)
    by = [[[pair[i].score for pair in pairs if pair[0].at["quality"] == q] for q in qualities] for i in (1, 0)]
    told = panels.estimate(statistics.difference(statistics.mean), *by)
    way = np.mean(bound) - low
    at = found[0].at
    row = [
        f"{at['agent'].upper()}, {at['dataset']}, {TITLES[scale]}",
        f"{len(pairs)}",
        f"{mse:.4f} → {better:.4f}",
        f"{low:.1f} → {high:.1f}",
        f"{told.value:.1f} [{told.low:.1f}, {told.high:.1f}]" if told else "–",
        f"{np.mean(bound):.1f}",
        f"{100 * (high - low) / way:.0f} %" if way > 5 else "–",
        f"{sum(ours.score > theirs.score for theirs, ours in pairs)} of {len(pairs)}",
    ]
    return [row[:1] + [text.replace("-", "−") for text in row[1:]]]


class Training(NamedTuple):
    """A training of SS beside how good its labels were; scores are shares of the oracles' mean."""

    agent: str
    idm: str
    mse: float
    validation: float  # the error on labelled trajectories held out, which is known without the truth
    ss: float
    alone: float


def trainings(store: Path) -> list[Training]:
    """Every training of SS on robots that has its baseline and oracles, once."""
    out: dict[str, Training] = {}
    for scale in SCALES:
        for study in (STUDIES[name] for name in (*ROBOTS, "low-label", *LABELS) if name in STUDIES):
            found = [one for one in gather(study, scale, store, policy="average") if one.result]
            alone = {_split(one): one.score for one in found if one.at["variant"] == "baseline"}
            best: dict[tuple, dict[str, float]] = {}
            for one in found:
                if one.at["variant"] == "oracle":
                    best.setdefault(_split(one)[:2], {})[one.hash] = one.score
            for one in (one for one in found if one.at["variant"] == "ss"):
                at = _split(one)
                if at in alone and at[:2] in best:
                    top = float(np.mean(list(best[at[:2]].values())))
                    errors = one.mse, one.result["idm"]["validation_mse"]
                    out[one.hash] = Training(at[0], one.at["idm"], *errors, one.score / top, alone[at] / top)
    return list(out.values())


def _split(one: StudyResults) -> tuple:
    return tuple(one.at[name] for name in ("agent", "dataset", "fraction", "quality", "seed"))


def needed(store: Path, figures: Path) -> str:
    """How much of the oracle's score SS has, and how much the labelled data alone, by the error of the labels."""
    some = trainings(store)
    by = {agent: mine for agent in AGENTS if (mine := [one for one in some if one.agent == agent])}
    means = {(agent, error): binned(mine, error) for agent, mine in by.items() for error in ERRORS}
    charts = [_cloud(agent.upper(), mine, means[agent, "mse"]) for agent, mine in by.items() if means[agent, "mse"]]
    if not charts:
        return ""
    with TemporaryDirectory() as folder:
        figure, title = Figure("labels", "", "", charts), "Score against the error of the labels"
        picture, _ = pictures([figure], title, "every training", Path(folder) / "needed")
        shutil.copy(picture, figures / picture.name)
    told = [f"## How good must labels be?\n\n{words('page', 'needed').format(n=len(some), lost=f'{100 * LOST:g} %')}"]
    told.append(f"![{title}](figures/{picture.name})")
    for error, name in ERRORS.items():
        head = ["agent", name, "trainings", "SS", "labelled data alone", "SS − alone", "lost"]
        rows = [[agent.upper(), *one.row] for agent in by for one in means[agent, error]]
        both = (f"{agent.upper()} {ranks(*_pairs(mine, error))}" for agent, mine in by.items())
        told += [table(head, rows), f"Rank correlation of SS with this error: {', '.join(both)}."]
    return "\n\n".join([*told, words("page", "rule")])


class Bin(NamedTuple):
    """Trainings whose labels err alike."""

    error: float  # root of the mean
    ss: float
    alone: float
    row: list[str]


def binned(some: list[Training], error: str) -> list[Bin]:
    """Those ranges of an error that have enough trainings."""
    out = []
    for low, high in pairwise((*BINS, np.inf)):
        if len(within := [one for one in some if low <= getattr(one, error) < high]) < FEWEST:
            continue
        ss, alone = ([getattr(one, who) for one in within] for who in ("ss", "alone"))
        several = (ss, alone, np.subtract(ss, alone).tolist())
        shares = (panels.estimate_text(panels.estimate(statistics.mean, [one]), percent=True) for one in several)
        bounds = f"{low:g} to {high:g}" if np.isfinite(high) else f"above {low:g}"
        row = [bounds, str(len(within)), *shares, str(sum(x < LOST for x in ss))]
        out.append(Bin(np.mean([getattr(one, error) for one in within]) ** 0.5, np.mean(ss), np.mean(alone), row))
    return out


def _pairs(some: list[Training], error: str) -> tuple[list[float], list[float]]:
    return [getattr(one, error) for one in some], [one.ss for one in some]


ROBOTS = tuple(name for name in MAINS if name != "maze2d")  # scores in mazes are of another kind
LABELS = ("idm-robust", "idm-robust-agents")
ERRORS = {"mse": "MSE on the unlabelled", "validation": "MSE on labelled ones held out"}
AGENTS = ["td3bc", "dt", "cql"]
BINS = (0.0, 0.01, 0.02, 0.05, 0.1)
FEWEST = 5  # trainings of which a mean is told
LOST = 0.1  # of the oracle's score: a robot that falls at once has less


def ranks(x: Sequence[float], y: Sequence[float]) -> str:
    """Their rank correlation."""
    return f"{np.corrcoef(rankdata(x), rankdata(y))[0, 1]:.2f}".replace("-", "−")


def _cloud(title: str, some: list[Training], means: list[Bin]) -> Chart:
    lines = []
    for kind, idm in zip(("c6", "c3"), IDMS, strict=True):
        if mine := [one for one in some if one.idm == idm]:
            x, y = [one.mse**0.5 for one in mine], [one.ss for one in mine]
            lines.append(Line(f"SS, {NAMED[idm]} labels", x, y, kind, joined=False))
    x = [one.error for one in means]
    lines.append(Line("SS, mean", x, [one.ss for one in means], "ss"))
    lines.append(Line("labelled data alone, mean", x, [one.alone for one in means], "baseline"))
    axes = ("RMS error of the proxy actions", "score / oracle's")
    return Chart(title, Table(title, (), ()), axes, lines, legend=[(one.kind, one.name) for one in lines])
