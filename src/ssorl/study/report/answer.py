"""What a study says in a sentence, and what keeps it from saying more."""

from __future__ import annotations

from ssorl.report import summary as words
from ssorl.study import statistics
from ssorl.study.grid import Study
from ssorl.study.report import panels as parts
from ssorl.study.results import StudyResults, select, values
from ssorl.study.scales import SCALES

ENOUGH = 5  # seeds of the paper


def answer(study: Study, scale: str, found: list[StudyResults]) -> str:
    """The results in one sentence."""
    cells = {one.hash for one in found if one.result}
    if not cells:
        return "No cell of this study has finished yet."
    if scale == "smoke":
        return "A smoke run: it shows that everything runs, and is no evidence of anything else."
    if {"baseline", "ss"} <= set(values(found, "variant")) and (said := _gain(found)):
        return said
    if study.by not in ("variant", "agent") and (said := _apart(study, found)):
        return said
    if study.figure in ("iqm", "mse-by-quality") and (said := _best(study, found)):
        return said
    return f"{study.title}: {len(cells):,} {'result' if len(cells) == 1 else 'results'}."


def caveats(scale: str, found: list[StudyResults]) -> list[str]:
    """What a reader must know before believing the answer."""
    cells = {one.hash: one for one in found}
    done = [one for one in cells.values() if one.result]
    failed = sum(one.why.startswith("failed") for one in cells.values())
    out = [f"Scale {scale}: {SCALES[scale].note}."]
    if len(done) < len(cells):
        lost = f", {failed:,} of them after a failure" if failed else ""
        out.append(
            f"{len(cells) - len(done):,} of {len(cells):,} cells are missing{lost}: the page shows what there is."
        )
    seeds = len(values(done, "seed"))
    if 1 < seeds < ENOUGH and any(one.score is not None for one in done):
        said = f"Intervals over {seeds} seeds are too narrow"
        if seeds < 4:  # then the lowest alone is drawn more often than in 2.5 % of the cases
            held = 100 - 100 * 2 ** (1 - seeds)
            said += f": at one place they go from the lowest to the highest, which holds the true mean in {held:g} %"
        out.append(f"{said}.")
    return out


def _gain(found: list[StudyResults]) -> str:
    """Where the unlabelled data helped, and how far from the oracle that is."""
    places = [some for _, some in _places(found)]
    above = sure = told = 0
    for some in places:
        pair = parts.paired(some, {"variant": "ss"}, {"variant": "baseline"})
        diff = parts.estimate(statistics.difference(statistics.mean), *pair)
        if diff is not None:
            told += 1
            above += diff.value > 0
            sure += diff.low > 0 and statistics.fewest(*pair) > 1
    if not told:
        return ""
    said = f"The unlabelled data helped at {above} of {told} places, with a 95 % interval above zero at {sure}"
    names = values(found, "dataset")
    some = [select(found, {"dataset": name}) for name in names] if 1 < len(names) <= FEW else [found]
    base, ss = ([parts.estimate(statistics.relative_gap, *_against(one, of)) for one in some] for of in PAIR)
    if all(base) and all(ss):
        where = [f" on {name}" for name in names] if len(some) > 1 else [""]
        own = " and ".join(f"{words.share(gap.value)}{place}" for gap, place in zip(ss, where, strict=True) if gap)
        alone = " and ".join(words.share(gap.value) for gap in base if gap)
        said += f"; the mean relative gap to having all actions is {own}, where the labelled data alone leave {alone}"
    return said + "."


PAIR = ("baseline", "ss")
FEW = 3  # datasets that a sentence can tell apart


def _against(found: list[StudyResults], variant: str) -> list:
    return parts.paired(found, {"variant": variant}, {"variant": "oracle"})


def _apart(study: Study, found: list[StudyResults]) -> str:
    """What SS earns with one of two, and with the other, over all places; and the labelled data alone, for scale."""
    ss = select(found, {"variant": "ss"})
    if len(names := values(ss, study.by)) != 2:
        return ""
    told = parts.paired(ss, *({study.by: name} for name in names))
    means = [parts.estimate(statistics.mean, one) for one in told]
    diff = parts.estimate(statistics.difference(statistics.mean), *reversed(told))
    if diff is None or not all(means):
        return ""
    each = " and ".join(
        f"{parts.text(mean)} with {parts.named(study.by, name)}" for name, mean in zip(names, means, strict=True)
    )
    base = parts.estimate(statistics.mean, parts.tasks(found, {"variant": "baseline"}))
    alone = f", {parts.text(base)} without the unlabelled data" if base else ""
    return f"In the mean over all places SS earns {each}{alone}; the difference is {parts.text(diff)}."


def _places(found: list[StudyResults]) -> list[tuple[str, list[StudyResults]]]:
    names = [name for name in parts.varied(found) if name not in ("seed", "variant")]
    return parts.split([one for one in found if one.at.get("variant") in PAIR], names)


def _best(study: Study, found: list[StudyResults]) -> str:
    """The best of those compared: what earns most, or errs least."""
    errs = study.figure == "mse-by-quality"
    if not errs and study.by != "variant" and "variant" in parts.varied(found):  # of unlike scores nothing is best
        return ""
    of = (lambda one: one.mse) if errs else parts.score
    names = [name for name in parts.varied(found) if name not in ("seed", study.by)]
    there = [one for one in found if of(one) is not None]
    places = [some for _, some in parts.split(there, names)]
    every = len(values(there, study.by))
    shared = [one for some in places if len(values(some, study.by)) == every for one in some]  # where all have been
    statistic = statistics.mean if errs else statistics.iqm
    told = {v: parts.estimate(statistic, parts.tasks(shared, {study.by: v}, of)) for v in values(shared, study.by)}
    known = {v: e for v, e in told.items() if e is not None}
    if len(known) < 2:
        return ""
    first, second = sorted(known, key=lambda v: known[v].value * (1 if errs else -1))[:2]
    text = {v: f"{parts.named(study.by, v)} ({parts.text(known[v])})" for v in (first, second)}
    apart = known[first].high < known[second].low if errs else known[first].low > known[second].high
    best = "lowest error" if errs else "highest interquartile mean"
    overlap = "" if apart else "; their intervals overlap"
    return f"Over all, {text[first]} has the {best}, before {text[second]}{overlap}."
