"""Power and rate of false verdicts of the decision rule (docs/ledger-rule.md), by Monte Carlo on simulated truth.

python scripts/ledger_power.py           # simulate, write results/ledger-power.json, draw its tables in the page
python scripts/ledger_power.py --table   # draw the tables from the stored results

The spread and the shape of the noise come from the exploratory cells in results/cells (seeds 0 to 2 at scale lite).
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import ledger_rule as rule
import numpy as np
from results_shared import ROOT, table

from ssorl.utils import provenance

OUT, PAGE = ROOT / "results" / "ledger-power.json", ROOT / "docs" / "ledger-rule.md"
SEED, REPLICATIONS, SEEDS = 0, 20_000, (3, 5, 10)
POWER, MOST = 0.8, 60  # wanted power, and the largest number of seeds that is tried
EFFECT = 10.0  # points: distance of the truth from the end of the claimed range, for a clear effect
MARKS = ("<!-- generated: power -->", "<!-- end -->")
NONE = {"better": 0.0, "far": 5.0, "reach": -5.0, "alike": 5.0}  # the truth at which `confirmed` is barely false
TRUE = {"better": 5.0, "far": 10.0, "reach": 0.0, "alike": 0.0}  # … and `refuted`
CLEAR = {"better": EFFECT, "far": rule.MARGIN + EFFECT, "reach": EFFECT - rule.MARGIN, "alike": 0.0}


@dataclass(frozen=True)
class Noise:
    """The spread of an estimand over seeds, and the residuals of its places that give it its shape."""

    estimate: float
    spread: float  # standard deviation of one seed's value
    seeds: int
    places: int
    residuals: np.ndarray  # [places, seeds], each place with mean 0

    def draw(self, rng: np.random.Generator, seeds: int, replications: int = REPLICATIONS) -> np.ndarray:
        """Return the noise of simulated seeds, [replications, seeds], with the standard deviation `spread`."""
        each = np.zeros((replications, seeds))
        for place in self.residuals:
            each += rng.choice(place, (replications, seeds))
        # Residuals are few: without the normal part, a simulated estimand could have equal seeds, with no variance.
        each /= np.sqrt((self.residuals**2).mean(1).sum())
        return self.spread * (0.9 * each + np.sqrt(1 - 0.9**2) * rng.standard_normal(each.shape))


def noise(table: rule.Table) -> Noise | None:
    """Return the noise of an estimand from its table, or None with fewer than two complete seeds."""
    values = rule.by_seed(table)
    if len(values) < rule.SEVERAL:
        return None
    matrix = np.array([[each[seed] for seed in values] for each in table.values()])
    independent = np.sqrt(matrix.var(1, ddof=1).sum()) / len(matrix)  # if the places of a seed were independent
    spread = max(float(np.std(list(values.values()), ddof=1)), float(independent))
    residuals = matrix - matrix.mean(1, keepdims=True)
    return Noise(float(np.mean(list(values.values()))), spread, len(values), len(matrix), residuals)


def decided(p: np.ndarray, level: float) -> dict[str, float]:
    """Return the shares of both verdicts at one level for each hypothesis."""
    confirmed = p[0] <= level
    refuted = ~confirmed & (p[1] <= level)
    return {"confirmed": float(confirmed.mean()), "refuted": float(refuted.mean())}


def alone(estimand: rule.Estimand, noise: Noise, level: float, rng: np.random.Generator) -> dict:
    """Return the shares of verdicts of one estimand at several truths and numbers of seeds."""
    kind = estimand.kind
    truths = {"none": NONE[kind], "true": TRUE[kind], "clear": CLEAR[kind], "estimate": noise.estimate}
    out: dict = {}
    for name, truth in truths.items():
        out[name] = {"truth": truth} | {
            str(n): decided(rule.p_values(kind, truth + noise.draw(rng, n)), level) for n in SEEDS
        }
        looks = truth + noise.draw(rng, max(rule.LOOKS))
        out[name]["looks"] = decided(rule.sequential(kind, looks), level)
    return out


def family(
    estimands: Mapping, noises: Mapping, rng: np.random.Generator, truths: Mapping[str, float], seeds: int = 0
) -> float:
    """Return how often at least one verdict of a family is false, by Holm, at the worst truths.

    Args:
        estimands: the estimands of the family.
        noises: their noise; estimands without noise are never decided.
        rng: the generator.
        truths: `NONE`, at which `confirmed` is false, or `TRUE`, at which `refuted` is false.
        seeds: seeds of a single look; 0: all looks of the rule.
    """
    p = []
    for key, estimand in estimands.items():
        if own := noises.get(key):
            values = truths[estimand.kind] + own.draw(rng, seeds or max(rule.LOOKS))
            p.append(rule.p_values(estimand.kind, values) if seeds else rule.sequential(estimand.kind, values))
        else:
            p.append(np.ones((2, REPLICATIONS)))
    return float((rule.verdicts(np.stack(p)) == (1 if truths is NONE else -1)).any(0).mean())


def enough(estimand: rule.Estimand, noise: Noise, level: float, rng: np.random.Generator) -> int | None:
    """Return the fewest seeds of one look with a probability of 0.8 of a verdict at the estimate; None: over 60."""
    for n in range(2, MOST + 1):
        values = noise.estimate + noise.draw(rng, n, REPLICATIONS // 10)
        if sum(decided(rule.p_values(estimand.kind, values), level).values()) >= POWER:
            return n
    return None


def simulate() -> dict:
    """Return the content of results/ledger-power.json, from which the tables are drawn."""
    results = rule.read(sorted((ROOT / "results" / "cells").glob("*.jsonl")))
    rng = np.random.default_rng(SEED)
    out: dict = {
        "config": {
            "replications": REPLICATIONS,
            "seed": SEED,
            "seeds": SEEDS,
            "level": rule.LEVEL,
            "family": rule.FAMILY,
            "margin": rule.MARGIN,
            "looks": rule.LOOKS,
            "swing": rule.SWING,
            "scale": rule.SCALE,
        },
        **provenance.everything(),
        "steady_oracles": {
            " ".join(place): round(swing, 1)
            for place, swing in rule.steady(results, "main-medium-expert", rule.FIRST_FRESH).items()
        },
        "oracle_swings": {
            " ".join(place): round(float(np.mean(list(each.values()))), 1)
            for place, each in rule.oracles(
                results, "main-medium-expert", rule.FIRST_FRESH, lambda result: result.swing
            ).items()
        },
    }
    for name, estimands in (("claims", rule.CLAIMS), ("parts", rule.PARTS)):
        level = rule.FAMILY / (2 * len(estimands))  # the first step of Holm's procedure, as if no other were decided
        noises = {key: noise(estimand.table(results, rule.FIRST_FRESH)) for key, estimand in estimands.items()}
        rows = []
        for key, estimand in estimands.items():
            row = {"claim": key, "estimand": estimand.name, "kind": estimand.kind, "of_places": estimand.places}
            if own := noises[key]:
                row |= {k: v for k, v in asdict(own).items() if k != "residuals"}
                row |= {"verdicts": alone(estimand, own, level, rng)}
                row["seeds_for_power"] = enough(estimand, own, level, rng)
            rows.append(row)
        out[name] = rows
        out[f"{name}_any_false"] = {
            name: {str(n or "looks"): family(estimands, noises, rng, truths, n) for n in (*SEEDS, 0)}
            for name, truths in (("none", NONE), ("true", TRUE))
        }
    return out


def draw(stored: dict) -> str:
    """Return the tables in Markdown."""
    n = stored["config"]["seeds"]
    texts = []
    for name, title in (("claims", "The twelve primaries"), ("parts", "The parts of round 1")):
        head = ["claim", "estimand", "places", "estimate ± spread of a seed"]
        head += [f"at the estimate: {', '.join(map(str, n))} seeds", f"clear effect: {', '.join(map(str, n))}"]
        head += ["all looks: estimate, clear", "seeds for 0.8", f"false: {', '.join(map(str, n))} seeds, all looks"]
        rows = []
        for row in stored[name]:
            if "verdicts" not in row:
                rows.append([str(row["claim"]), row["estimand"], f"0 of {row['of_places']}", *["–"] * 6])
                continue
            by = row["verdicts"]
            shares = [", ".join(f"{sum(by[truth][str(k)].values()):.2f}" for k in n) for truth in ("estimate", "clear")]
            looks = ", ".join(f"{sum(by[truth]['looks'].values()):.2f}" for truth in ("estimate", "clear"))
            false = [
                f"{max(by['none'][at]['confirmed'], by['true'][at]['refuted']):.4f}" for at in (*map(str, n), "looks")
            ]
            rows.append(
                [
                    str(row["claim"]),
                    row["estimand"],
                    f"{row['places']} of {row['of_places']}",
                    f"{row['estimate']:.1f} ± {row['spread']:.1f}".replace("-", "−"),
                    *shares,
                    looks,
                    str(row["seeds_for_power"] or f"over {MOST}"),
                    ", ".join(false),
                ]
            )
        level = stored["config"]["family"]
        any_false = stored[f"{name}_any_false"]
        rates = [", ".join(f"{value:.4f}" for value in any_false[truth].values()) for truth in ("none", "true")]
        texts += [
            f"{title}: probability of a verdict.",
            table(head, rows),
            f"Any false verdict of this family, by Holm, with {', '.join(map(str, n))} seeds at a single look and with "
            f"all looks: {rates[0]} with every truth where *confirmed* is barely false, {rates[1]} where *refuted* is; "
            f"the level is {level:g}.",
        ]
    swings = ", ".join(f"{name} {swing:g}" for name, swing in stored["oracle_swings"].items())
    counted = ", ".join(stored["steady_oracles"])
    texts.append(
        f"Swing of the oracles (points): {swings}. Steady, so that a comparison with them counts: {counted or 'none'}."
    )
    config, hardware = stored["config"], stored["hardware"]
    texts.append(
        f"{config['replications']:,} replications, seed {config['seed']}, commit `{stored['commit']}`, "
        f"{hardware['cpu']}, {hardware['cores']} cores."
    )
    return "\n\n".join(texts)


def main() -> None:
    """Simulate, unless `--table` is given, and write the tables into docs/ledger-rule.md."""
    if sys.argv[1:] not in ([], ["--table"]):
        sys.exit(__doc__)
    if not sys.argv[1:]:
        OUT.write_text(json.dumps(simulate(), indent=1) + "\n")
    begin, rest = PAGE.read_text().split(MARKS[0])
    body = draw(json.loads(OUT.read_text()))
    PAGE.write_text(f"{begin}{MARKS[0]}\n{body}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}")


if __name__ == "__main__":
    main()
