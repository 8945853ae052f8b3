"""What a result says, in a sentence, and what keeps it from saying more."""

from __future__ import annotations

import statistics

from ssorl.report.axes import Value, known

NAMES = {"baseline": "labelled data alone", "ss": "with the unlabelled data", "oracle": "all actions known"}


def score(value: Value, normalised: bool) -> str:
    """A score to be read: one decimal for normalised ones."""
    if not known(value):
        return "–"
    return _fixed(value, 1 if normalised else _digits(value))


def interval(told: dict, normalised: bool) -> str:
    """A score with its interval, as 61.2 [58.0, 64.0]."""
    return " ".join(filter(None, mean_and_ends(told, normalised)))


def mean_and_ends(told: dict, normalised: bool) -> tuple[str, str]:
    """A score, and its interval if there is one, all three numbers with as many digits."""
    mean, low, high = (told[key] for key in ("mean", "low", "high"))
    if not (known(mean) and known(low) and known(high)):
        return score(mean, normalised), ""
    digits = 1 if normalised else _digits(max(abs(mean), abs(low), abs(high)))
    return _fixed(mean, digits), f"[{_fixed(low, digits)}, {_fixed(high, digits)}]"


def share(value: Value) -> str:
    """A share as a percentage; a tenth of a percent where it is small."""
    if not known(value):
        return "–"
    percent = 100 * value
    # Adding zero takes the sign of what rounds to it.
    text = f"{round(percent, 1) + 0.0:.1f} %" if 0 < abs(percent) < 3 else f"{percent:.0f} %"
    return text.replace("-", "−")


def agent(result: dict) -> str:
    """The semi-supervised agent's name, as SS-TD3BC."""
    name = result.get("config", {}).get("agent")
    name = name.get("name") if isinstance(name, dict) else name
    return "SS-" + name.upper().replace("_", "-") if isinstance(name, str) and name else "the semi-supervised agent"


def answer(result: dict) -> str:
    """The result of a run in one sentence."""
    scores, normalised = result["scores"], result["normalised"]
    estimate = result["kind"] == "fqe"
    found = {name: told for name, told in scores.items() if known(told["mean"])}
    if "ss" not in found:
        rest = [f"{NAMES[name]} gives {interval(told, normalised)}" for name, told in found.items()]
        return f"There is no score of {agent(result)}" + (": " + ", ".join(rest) if rest else "") + "."
    reaches = "is estimated to reach" if estimate else "reaches"
    said = f"{_kept(result['split'])}, {agent(result)} {reaches} {interval(found['ss'], normalised)}"
    others = []
    if "baseline" in found:
        others.append(f"the labelled data alone gives {score(found['baseline']['mean'], normalised)}")
    if "oracle" in found:
        given = " gives" if not others else ""
        others.append(f"having all actions{given} {score(found['oracle']['mean'], normalised)}")
    if others:
        said += ", where " + " and ".join(others)
    worth = _worth(result, {name: told["mean"] for name, told in found.items()})
    return said + (f": {worth}." if worth else ".")


def caveats(result: dict) -> list[str]:
    """What a reader must know before believing the answer."""
    scores, out = result["scores"], []
    if not result["complete"]:
        out.append("This run has not finished: the page shows what there is so far.")
    out += diverged(result)
    if result["kind"] == "fqe":
        which = "every true action" if result["split"]["setup"] is not None else "the labelled steps, never to proxies"
        out.append(
            "Every score here is an estimate by fitted-Q evaluation, from the data alone: no policy was played in an "
            f"environment. The values were fitted to {which}. Estimates are of discounted returns; compare them with "
            "each other only."
        )
    elif not result["normalised"]:
        out.append("Scores are raw returns: no reference scores are known for this task.")
    if "oracle" not in scores:
        truth = result["split"]["setup"] is not None
        out.append(
            "No oracle was trained, so there is no upper bound to compare with."
            if truth
            else "The true actions of the unlabelled trajectories are not known, so there is no oracle to compare with."
        )
    out += _one_seed(result)
    if "ss" in scores and "baseline" in scores and _overlap(scores["ss"], scores["baseline"]):
        out.append("The intervals with and without the unlabelled data overlap: the difference may be chance.")
    return out


def diverged(result: dict) -> list[str]:
    """A sentence for each training whose policy has no score, of one quality or of several."""
    seeds = dict(enumerate(result.get("seeds", ())))
    lost = [
        (variant, f" at quality {cell['quality']:g}" if "cells" in result and variant != "oracle" else "", place)
        for cell in result.get("cells", [result])
        for variant, told in cell["scores"].items()
        for place, returns in enumerate(told["returns"])
        if returns and not any(map(known, returns))
    ]
    return [
        f"The training of {variant}{at}, seed {seeds.get(place, place)}, has diverged: its policy's actions are not "
        "finite, so it has no score; a smaller learning rate (--set) may help."
        for variant, at, place in dict.fromkeys(lost)  # the oracle is the same at every quality
    ]


def answer_cells(result: dict) -> str:
    """Several label qualities in one sentence."""
    both = _pairs(result)
    if not both:
        return "There is nothing to compare yet."
    above = sum(ss["mean"] > base["mean"] for base, ss in both)
    # The sign of the difference alone would count noise as a gain, so both counts are told.
    said = (
        f"The unlabelled data helped at {above} of {len(both)} label qualities, with intervals apart at {_apart(both)}"
    )
    closed = [cell["gap_closed"] for cell in result["cells"] if known(cell["gap_closed"])]
    if closed:
        where = "it" if len(closed) == len(result["cells"]) else f"where there was a gap ({len(closed)}), it"
        ends = share(closed[0]) if len(closed) == 1 else f"{share(min(closed))} to {share(max(closed))}"
        median = f" (median {share(statistics.median(closed))})" if len(closed) > 2 else ""
        said += f"; {where} closed {ends} of the gap to having all actions{median}"
    return said + "."


def caveats_cells(result: dict) -> list[str]:
    """What a reader must know before believing that."""
    out = []
    if not result["complete"]:
        out.append("This run has not finished: the page shows what there is so far.")
    out += diverged(result)
    if result["kind"] == "fqe":
        out.append("Every score here is an estimate by fitted-Q evaluation: no policy was played in an environment.")
    elif not result["normalised"]:
        out.append("Scores are raw returns: no reference scores are known for this task.")
    out += _one_seed(result)
    both = _pairs(result)
    if both and not _apart(both):
        out.append(
            "At no quality are the intervals with and without the unlabelled data apart: the differences, and the "
            "shares of the gap, may be chance."
        )
    return out


def _one_seed(result: dict) -> list[str]:
    if len(result.get("seeds", ())) != 1:
        return []
    over = "start states" if result["kind"] == "fqe" else "evaluation episodes"
    return [f"One seed: the intervals are over {over} alone, and another seed may well fall outside them."]


def _pairs(result: dict) -> list[tuple[dict, dict]]:
    """Baseline and SS of each quality that has both."""
    scores = [(cell["scores"].get("baseline"), cell["scores"].get("ss")) for cell in result["cells"]]
    return [(base, ss) for base, ss in scores if base and ss and known(base["mean"]) and known(ss["mean"])]


def _apart(both: list[tuple[dict, dict]]) -> int:
    """At how many of them SS is above the baseline, interval and all."""
    return sum(ss["mean"] > base["mean"] and not _overlap(ss, base) for base, ss in both)


def _digits(value: float) -> int:
    return 2 if abs(value) < 10 else 1 if abs(value) < 1000 else 0


def _fixed(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}".replace("-", "−")


def _kept(split: dict) -> str:
    whole = split["n_labelled"] + split["n_unlabelled"]
    if not known(split["fraction"]):
        return f"With actions in {split['n_labelled']:,} of {whole:,} trajectories"
    said = f"With the actions of {share(split['fraction'])} of the trajectories kept"
    quality = split["quality"]
    if isinstance(quality, str):  # two parts of the data: where the labelled ones come from / where the others do
        return f"{said}, labelled / unlabelled from {quality}"
    if not known(quality):
        return said
    if quality >= 100:
        return f"{said}, drawn from all"
    return f"{said}, from the worst {'half' if quality == 50 else f'{quality:g} %'}"


def _worth(result: dict, means: dict[str, float]) -> str:
    """What the unlabelled data was worth."""
    if "baseline" not in means:
        return ""
    points = " points" if result["normalised"] else ""
    gain = means["ss"] - means["baseline"]
    size = f"{score(abs(gain), result['normalised'])}{points}"
    told = "by this estimate, the unlabelled data" if result["kind"] == "fqe" else "the unlabelled data"
    if gain <= 0:
        return f"{told} did not help" if gain == 0 else f"{told} cost {size}"
    if "oracle" not in means:
        return f"{told} added {size}"
    if means["oracle"] <= means["baseline"]:
        return f"{told} added {size}, though there was no gap to close"
    closed = result["gap_closed"]
    if not known(closed):
        return f"{told} added {size}"
    return (
        f"{told} closed the whole gap ({share(closed)})" if closed >= 1 else f"{told} closed {share(closed)} of the gap"
    )


def _overlap(a: dict, b: dict) -> bool:
    ends = [told[key] for told in (a, b) for key in ("low", "high")]
    return all(map(known, ends)) and ends[0] <= ends[3] and ends[2] <= ends[1]
