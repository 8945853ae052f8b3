"""The result of a study in one or two sentences, and the caveats that a reader must know."""

from __future__ import annotations

from ssorl.report.summary import share
from ssorl.study import statistics
from ssorl.study.grid import Study
from ssorl.study.report import panels
from ssorl.study.results import StudyResults, select, values
from ssorl.study.scales import SCALES

PAPER_SEEDS = 5
PAIR = ("baseline", "ss")
MAX_DATASETS = 3  # that the sentence names one by one


def answer(study: Study, scale: str, entries: list[StudyResults]) -> str:
    """Return the results of a study in one or two sentences.

    Args:
        study: the study.
        scale: name of the scale.
        entries: results of its grid points.
    """
    finished = {entry.hash for entry in entries if entry.result}
    if not finished:
        return "No cell of this study has finished yet."
    if scale == "smoke":
        return "A smoke run: it shows that everything runs, and its scores are no evidence."
    if set(PAIR) <= set(values(entries, "variant")) and (text := _gain(entries)):
        return text
    if study.by not in ("variant", "agent") and (text := _compare_two(study, entries)):
        return text
    if study.figure in ("iqm", "mse-by-quality") and (text := _best(study, entries)):
        return text
    return f"{study.title}: {len(finished):,} {'result' if len(finished) == 1 else 'results'}."


def caveats(scale: str, entries: list[StudyResults]) -> list[str]:
    """Return what a reader must know before relying on the results of a study, one sentence each."""
    cells = {entry.hash: entry for entry in entries}
    finished = [entry for entry in cells.values() if entry.result]
    failed = sum(entry.why.startswith("failed") for entry in cells.values())
    out = [f"Scale {scale}: {SCALES[scale].note}."]
    if len(finished) < len(cells):
        failures = f", {failed:,} of them after a failure" if failed else ""
        missing = len(cells) - len(finished)
        out.append(f"{missing:,} of {len(cells):,} cells are missing{failures}; the page shows the finished cells.")
    seeds = len(values(finished, "seed"))
    if 1 < seeds < PAPER_SEEDS and any(entry.score is not None for entry in finished):
        text = f"Intervals over {seeds} seeds are too narrow"
        if seeds < 4:  # a resample repeats the lowest seed only with a probability above 2.5 %
            covered = 100 - 100 * 2 ** (1 - seeds)
            text += ": for a single task they go from the lowest to the highest seed and hold the true mean in "
            text += f"{covered:g} % of the cases"
        out.append(f"{text}.")
    return out


def _gain(entries: list[StudyResults]) -> str:
    """Say where SS scores above the baseline, and their gaps to the oracle."""
    above = sure = compared = 0
    for _, group in _grid_points(entries):
        pair = panels.paired(group, {"variant": "ss"}, {"variant": "baseline"})
        gain = panels.estimate(statistics.difference(statistics.mean), *pair)
        if gain is not None:
            compared += 1
            above += gain.value > 0
            sure += gain.low > 0 and statistics.fewest(*pair) > 1
    if not compared:
        return ""
    text = f"SS scores above the baseline at {above} of {compared} grid points, at {sure} of them with a 95 % interval "
    text += "above zero"
    names = values(entries, "dataset")
    groups = [select(entries, {"dataset": name}) for name in names] if 1 < len(names) <= MAX_DATASETS else [entries]
    baseline, ss = (
        [panels.estimate(statistics.relative_gap, *_with_oracle(group, variant)) for group in groups]
        for variant in PAIR
    )
    if all(baseline) and all(ss):
        where = [f" on {name}" for name in names] if len(groups) > 1 else [""]
        own = " and ".join(f"{share(gap.value)}{name}" for gap, name in zip(ss, where, strict=True) if gap)
        base = " and ".join(share(gap.value) for gap in baseline if gap)
        text += f". Its mean relative gap to the oracle is {own}; the baseline's is {base}"
    return text + "."


def _with_oracle(entries: list[StudyResults], variant: str) -> list:
    return panels.paired(entries, {"variant": variant}, {"variant": "oracle"})


def _grid_points(entries: list[StudyResults]) -> list[panels.Panel]:
    """Group baseline and SS of all seeds by the other axes of the grid."""
    axes = [axis for axis in panels.varying(entries) if axis not in ("seed", "variant")]
    return panels.group_by([entry for entry in entries if entry.at.get("variant") in PAIR], axes)


def _compare_two(study: Study, entries: list[StudyResults]) -> str:
    """Compare the mean scores of SS for two values of the compared axis, with the baseline for scale."""
    ss = select(entries, {"variant": "ss"})
    if len(names := values(ss, study.by)) != 2:
        return ""
    scores = panels.paired(ss, *({study.by: name} for name in names))
    means = [panels.estimate(statistics.mean, group) for group in scores]
    difference = panels.estimate(statistics.difference(statistics.mean), *reversed(scores))
    if difference is None or not all(means):
        return ""
    both = " and ".join(
        f"{panels.estimate_text(mean)} with {panels.value_name(study.by, name)}"
        for name, mean in zip(names, means, strict=True)
    )
    base = panels.estimate(statistics.mean, panels.tasks(entries, {"variant": "baseline"}))
    baseline = f"; the baseline scores {panels.estimate_text(base)}" if base else ""
    return f"On average SS scores {both}, a difference of {panels.estimate_text(difference)}{baseline}."


def _best(study: Study, entries: list[StudyResults]) -> str:
    """Name the best two of the compared values: the highest scores, or the lowest errors."""
    errors = study.figure == "mse-by-quality"
    if not errors and study.by != "variant" and "variant" in panels.varying(entries):  # not comparable across variants
        return ""
    of = (lambda entry: entry.mse) if errors else panels.score
    axes = [axis for axis in panels.varying(entries) if axis not in ("seed", study.by)]
    known = [entry for entry in entries if of(entry) is not None]
    n = len(values(known, study.by))
    # Compare on the grid points that every value has.
    groups = [group for _, group in panels.group_by(known, axes) if len(values(group, study.by)) == n]
    shared = [entry for group in groups for entry in group]
    statistic = statistics.mean if errors else statistics.iqm
    estimates = {
        value: result
        for value in values(shared, study.by)
        if (result := panels.estimate(statistic, panels.tasks(shared, {study.by: value}, of))) is not None
    }
    if len(estimates) < 2:
        return ""
    first, second = sorted(estimates, key=lambda value: estimates[value].value * (1 if errors else -1))[:2]
    a, b = estimates[first], estimates[second]
    separate = a.high < b.low if errors else a.low > b.high
    names = [f"{panels.value_name(study.by, v)} ({panels.estimate_text(estimates[v])})" for v in (first, second)]
    best = "lowest error" if errors else "highest interquartile mean"
    overlap = "" if separate else "; their intervals overlap"
    return f"{names[0]} has the {best} overall, before {names[1]}{overlap}."
