"""The result of a run in one or two sentences, and the caveats that a reader must know."""

from __future__ import annotations

import statistics

from ssorl.idm.outlook import doubtful_sentence
from ssorl.report.axes import Value, known

NAMES = {"baseline": "baseline", "ss": "SS", "oracle": "oracle"}
DESCRIPTIONS = {
    "baseline": "labelled data only",
    "ss": "labelled data and proxy actions",
    "oracle": "all true actions",
}
QUALITY_AXIS = "label quality (lowest q % by return)"


def score(value: Value, normalised: bool) -> str:
    """Return a score as text: with one decimal if normalised, else with about three digits."""
    if not known(value):
        return "–"
    return _fixed(value, 1 if normalised else _decimals(value))


def interval(entry: dict, normalised: bool) -> str:
    """Return a score with its interval, such as "61.2 [58.0, 64.0]".

    Args:
        entry: entry of `scores` in result.json, with `mean`, `low` and `high`.
        normalised: whether scores are normalised.
    """
    return " ".join(filter(None, mean_and_ends(entry, normalised)))


def mean_and_ends(entry: dict, normalised: bool) -> tuple[str, str]:
    """Return a score and its interval as two texts with the same number of decimals.

    Args:
        entry: entry of `scores` in result.json, with `mean`, `low` and `high`.
        normalised: whether scores are normalised.

    Returns:
        The mean, and "[low, high]" or "" if there is no interval.
    """
    mean, low, high = (entry[key] for key in ("mean", "low", "high"))
    if not (known(mean) and known(low) and known(high)):
        return score(mean, normalised), ""
    decimals = 1 if normalised else _decimals(max(abs(mean), abs(low), abs(high)))
    return _fixed(mean, decimals), f"[{_fixed(low, decimals)}, {_fixed(high, decimals)}]"


def share(value: Value) -> str:
    """Return a share as a percentage, with one decimal below 3 %."""
    if not known(value):
        return "–"
    percent = 100 * value
    # Adding zero turns -0.0 into 0.0.
    text = f"{round(percent, 1) + 0.0:.1f} %" if 0 < abs(percent) < 3 else f"{percent:.0f} %"
    return text.replace("-", "−")


def agent(result: dict) -> str:
    """Return the name of the semi-supervised agent, such as "SS-TD3BC"."""
    name = result.get("config", {}).get("agent")
    name = name.get("name") if isinstance(name, dict) else name
    return "SS-" + name.upper().replace("_", "-") if isinstance(name, str) and name else "the semi-supervised agent"


def answer(result: dict) -> str:
    """Return the result of a run in one or two sentences."""
    normalised = result["normalised"]
    scores = {variant: entry for variant, entry in result["scores"].items() if known(entry["mean"])}
    if "ss" not in scores:
        rest = [f"the {NAMES[variant]} reaches {interval(entry, normalised)}" for variant, entry in scores.items()]
        return f"There is no score of {agent(result)}" + (": " + " and ".join(rest) if rest else "") + "."
    reaches = "is estimated to reach" if result["kind"] == "fqe" else "reaches"
    text = f"{agent(result)} {reaches} {interval(scores['ss'], normalised)} {_split(result['split'])}"
    others = {v: score(scores[v]["mean"], normalised) for v in ("baseline", "oracle") if v in scores}
    if others:
        first, *second = others
        text += f"; the {first} reaches {others[first]}" + "".join(f" and the {v} {others[v]}" for v in second)
    gain = _gain(result, {variant: entry["mean"] for variant, entry in scores.items()})
    return f"{text}. {gain}".rstrip()


def caveats(result: dict) -> list[str]:
    """Return what a reader must know about a run before relying on its result, one sentence or two each."""
    scores, hidden = result["scores"], result["split"]["setup"] is not None
    out = _unfinished(result) + diverged(result)
    if result["kind"] == "fqe":
        steps = "all true actions" if hidden else "the labelled steps, never to proxy actions"
        out.append(
            "All scores are estimates by fitted-Q evaluation from the data alone; no policy was rolled out in an "
            f"environment. The values were fitted to {steps}. They estimate discounted returns, so compare them only "
            "with each other."
        )
    out += _raw_returns(result)
    if "oracle" not in scores:
        out.append(
            "No oracle was trained, so there is no upper bound to compare with."
            if hidden
            else "The true actions of the unlabelled trajectories are not known, so there is no oracle to compare with."
        )
    out += _one_seed(result) + _doubtful(result)
    if "ss" in scores and "baseline" in scores and _overlap(scores["ss"], scores["baseline"]):
        out.append("The intervals of SS and the baseline overlap, so their difference may be chance.")
    return out


def diverged(result: dict) -> list[str]:
    """Return a sentence for each training that diverged, in a result of one quality or of several."""
    seeds = dict(enumerate(result.get("seeds", ())))
    failed = [
        (variant, f" at quality {cell['quality']:g}" if "cells" in result and variant != "oracle" else "", place)
        for cell in result.get("cells", [result])
        for variant, entry in cell["scores"].items()
        for place, returns in enumerate(entry["returns"])
        if returns and not any(map(known, returns))
    ]
    return [
        f"The training of {variant}{quality}, seed {seeds.get(place, place)}, has diverged: the actions of its policy "
        "are not finite, so it has no score; a smaller learning rate (--set) may help."
        for variant, quality, place in dict.fromkeys(failed)  # the oracle is the same at every quality
    ]


def answer_cells(result: dict) -> str:
    """Return the result over several label qualities in one sentence."""
    pairs = _pairs(result)
    if not pairs:
        return "There are no results to compare yet."
    above = sum(ss["mean"] > base["mean"] for base, ss in pairs)
    # Counting positive differences alone would count noise as gains, so the text names both counts.
    text = f"SS scores above the baseline at {above} of {len(pairs)} label qualities, "
    text += f"at {_separate(pairs)} of them with intervals that do not overlap"
    closed = [cell["gap_closed"] for cell in result["cells"] if known(cell["gap_closed"])]
    if closed:
        where = "it" if len(closed) == len(result["cells"]) else f"where there is a gap ({len(closed)} qualities), it"
        ends = share(closed[0]) if len(closed) == 1 else f"{share(min(closed))} to {share(max(closed))}"
        median = f" (median {share(statistics.median(closed))})" if len(closed) > 2 else ""
        text += f"; {where} closes {ends} of the gap between baseline and oracle{median}"
    return text + "."


def caveats_cells(result: dict) -> list[str]:
    """Return what a reader must know before relying on the result over several label qualities."""
    out = _unfinished(result) + diverged(result)
    if result["kind"] == "fqe":
        out.append("All scores are estimates by fitted-Q evaluation; no policy was rolled out in an environment.")
    out += _raw_returns(result) + _one_seed(result)
    pairs = _pairs(result)
    if pairs and not _separate(pairs):
        out.append(
            "The intervals of SS and the baseline overlap at every label quality, so the differences and the shares of "
            "the gap may be chance."
        )
    return out


def _unfinished(result: dict) -> list[str]:
    return [] if result["complete"] else ["This run has not finished; the page shows its results so far."]


def _raw_returns(result: dict) -> list[str]:
    if result["kind"] == "fqe" or result["normalised"]:
        return []
    return ["Scores are raw returns, because no reference scores are known for this task."]


def _one_seed(result: dict) -> list[str]:
    if len(result.get("seeds", ())) != 1:
        return []
    over = "start states" if result["kind"] == "fqe" else "evaluation episodes"
    return [f"One seed: the intervals are over {over} only, and the score of another seed may lie outside them."]


def _doubtful(result: dict) -> list[str]:
    """Return what was done with the proxy actions of doubtful trajectories, given the first seed's numbers."""
    entry = (result["idm"] or {}).get("doubtful")
    if not entry or entry["action"] == "keep":
        return []
    sentence = doubtful_sentence({**entry, **{k: entry[k][0] for k in ("trajectories", "proxy_actions")}})
    seed = f" (seed {result['seeds'][0]})" if len(result["seeds"]) > 1 else ""
    return [f"{sentence[:1].upper()}{sentence[1:]}{seed}."] if sentence else []


def _pairs(result: dict) -> list[tuple[dict, dict]]:
    """Return the scores of baseline and SS at each quality that has both."""
    scores = [(cell["scores"].get("baseline"), cell["scores"].get("ss")) for cell in result["cells"]]
    return [(base, ss) for base, ss in scores if base and ss and known(base["mean"]) and known(ss["mean"])]


def _separate(pairs: list[tuple[dict, dict]]) -> int:
    """Count the pairs whose SS is above the baseline with an interval that does not overlap the baseline's."""
    return sum(ss["mean"] > base["mean"] and not _overlap(ss, base) for base, ss in pairs)


def _overlap(a: dict, b: dict) -> bool:
    ends = [entry[key] for entry in (a, b) for key in ("low", "high")]
    return all(map(known, ends)) and ends[0] <= ends[3] and ends[2] <= ends[1]


def _decimals(value: float) -> int:
    return 2 if abs(value) < 10 else 1 if abs(value) < 1000 else 0


def _fixed(value: float, decimals: int) -> str:
    return f"{value:,.{decimals}f}".replace("-", "−")


def _split(split: dict) -> str:
    """Return how many trajectories are labelled, and how they were drawn."""
    n_all = split["n_labelled"] + split["n_unlabelled"]
    if not known(split["fraction"]):
        return f"with {split['n_labelled']:,} of {n_all:,} trajectories labelled"
    text = f"with {share(split['fraction'])} of the trajectories labelled"
    quality = split["quality"]
    if isinstance(quality, str):  # a decoupled split: the thirds by return of its two parts
        return f"{text} (labelled / unlabelled trajectories from the thirds {quality} by return)"
    if not known(quality):
        return text
    return f"{text}, drawn from " + ("all" if quality >= 100 else f"the lowest {quality:g} % by return")


def _gain(result: dict, means: dict[str, float]) -> str:
    """Return what the unlabelled data changed as a sentence, or nothing without a baseline."""
    if "baseline" not in means:
        return ""
    subject = "By this estimate, the unlabelled data" if result["kind"] == "fqe" else "The unlabelled data"
    gain, closed = means["ss"] - means["baseline"], result["gap_closed"]
    size = score(abs(gain), result["normalised"]) + (" points" if result["normalised"] else "")
    if gain == 0:
        return f"{subject} did not change the score."
    if gain < 0:
        return f"{subject} lowered the score by {size}."
    if "oracle" in means and means["oracle"] <= means["baseline"]:
        return f"{subject} raised the score by {size}, though the oracle is not above the baseline."
    if "oracle" not in means or not known(closed):
        return f"{subject} raised the score by {size}."
    part = f"the whole gap ({share(closed)})" if closed >= 1 else f"{share(closed)} of the gap"
    return f"{subject} closed {part} between baseline and oracle."
