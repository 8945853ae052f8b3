"""Update the tables of docs/agents.md from files in results/.

The files are oracle.jsonl, cells/, agent-speed.jsonl, gaits.jsonl, dt-edge.jsonl, dt-edge-run/, demo/ and
*-d3rlpy.json(l).

python scripts/agents_page.py
"""

import json
import re
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path

import numpy as np
from results_shared import PUBLISHED, table

from ssorl.agents.dt import SCALE
from ssorl.agents.dt import TARGETS as DEFAULT_TARGETS
from ssorl.study.reference import agent_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "agents.md"
TARGETS = {  # the project's targets in updates per second, by agent:batch:runs
    "td3bc:5120:1": 5900, "td3bc:5120:30": 20_000, "td3bc:256:45": 100_000, "cql:5120:1": 500, "cql:5120:5": 700,
    "dt:256:1": 300,
}  # fmt: skip
NAMED = {"min_q_weight": "min-Q weight", "target": "target return", "actor_lr": "actor's learning rate"}


def lines(name: str) -> list[dict]:
    """Return the JSON lines of files in results/ that match a pattern."""
    files = sorted((ROOT / "results").glob(name))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def changed(cell: dict) -> str:
    """Return the settings that differ from the paper's, except those with a column of their own."""
    default = asdict(agent_of(cell["agent"], {})) | (
        {"target": DEFAULT_TARGETS[cell["env"]], "scale": SCALE} if cell["agent"] == "dt" else {}
    )
    return ", ".join(
        f"{NAMED.get(k, k)} {v:g}"
        for k, v in cell["settings"].items()
        if k not in ("updates", "half") and isinstance(v, float | int) and v != default.get(k, v)
    )


def grouped(cells: list[dict]) -> dict[tuple, list[dict]]:
    """Return cells by agent, environment, changed settings, precision and updates."""
    groups: dict[tuple, list[dict]] = {}
    for c in cells:
        precision = (c["settings"]["half"] and ("bfloat16, fused" if c.get("fused") else "bfloat16")) or "float32"
        key = c["agent"], c["env"], changed(c), precision, c["settings"]["updates"]
        groups.setdefault(key, []).append(c)
    return groups


def oracles() -> dict[tuple, list[dict]]:
    """Return the stored oracles on the published medium-expert datasets."""
    return grouped([c for c in lines("oracle.jsonl") if c["level"] == "medium-expert" and "medium" not in c])


def by_look(cells: list[dict], kind: str, looks: int = 10) -> np.ndarray:
    """Return scores [looks, seeds] of one kind of policy at the last evaluations during training."""
    mine = [c for c in cells if c["kind"] == kind]
    at = sorted({c["at"] for c in mine})[-looks:]
    return np.array([[c["score"] for c in mine if c["at"] == a] for a in at])


def studied() -> dict[tuple, list[dict]]:
    """Return the oracles of the studies at the published settings, in the form of oracle.jsonl."""
    out = []
    for entry in lines("cells/*.jsonl"):
        cell, env = entry["cell"], entry["cell"]["dataset"].removeprefix("sim/").removesuffix("-medium-expert:full")
        if cell["variant"] == "oracle" and not cell["settings"] and f"{env}-medium-expert" in PUBLISHED:
            updates = agent_of(cell["agent"], {}).updates
            more = {"agent": cell["agent"], "env": env, "at": updates, "settings": {"half": True, "updates": updates}}
            out += [{**more, "kind": kind, "score": score} for kind, score in entry["result"]["scores"].items()]
    return grouped(out)


def spread(scores: np.ndarray) -> str:
    """Return mean and standard deviation over seeds as text; only the mean of a single seed."""
    return f"{scores.mean():.1f}" + (f" ± {scores.std():.1f}" if len(scores) > 1 else "")


def swing(scores: np.ndarray) -> list[str]:
    """Return mean, standard deviation, lowest and highest score of one training's evaluations as text."""
    return [str(round(float(x))) for x in (scores.mean(), scores.std(), scores.min(), scores.max())]


def oracle_table() -> str:
    """Return the table of oracles."""
    rows = []
    for (agent, env, change, precision, updates), cells in (studied() | oracles()).items():
        last, average = (by_look(cells, kind)[-1] for kind in ("last", "average"))
        at = max(c["at"] for c in cells)
        made = f"{at:,}" + (f" of {updates:,}" if at < updates else "")
        scores = map(spread, (last, average))
        rows.append(
            [
                env,
                agent,
                change,
                precision,
                made,
                str(len(last)),
                *scores,
                str(PUBLISHED[f"{env}-medium-expert"][agent]),
            ]
        )
    titles = [
        "medium-expert of",
        "agent",
        "instead of the paper's",
        "hidden layers",
        "updates",
        "seeds",
        "last weights",
    ]
    titles.append("averaged weights")
    return table([*titles, "published, on D4RL's data"], sorted(rows))


def steady_table() -> str:
    """Return the table of how much scores of TD3+BC vary during training and between seeds."""
    rows = []
    for (agent, env, change, precision, _), cells in oracles().items():
        if agent != "td3bc" or len({c["seed"] for c in cells}) == 1:  # one seed has no spread
            continue
        name = ", ".join(x for x in (env, precision if precision != "bfloat16" else "", change) if x)
        kinds = [k for k in ("last", "average", "mean5", "mean10") if any(c["kind"] == k for c in cells)]
        for kind in kinds:
            by = by_look(cells, kind)
            spreads = by.mean(), by.std(0).mean(), by[-1].std(), by.mean(0).std()
            rows.append([name, NAMES[kind], *(f"{x:.1f}" for x in spreads)])
    titles = ["TD3+BC on", "policy", "mean of ten looks", "swing of one seed between looks", "between seeds at the end"]
    return table([*titles, "between seeds, mean of ten looks"], rows)


NAMES = {
    "last": "last weights",
    "average": "exponential average, 2,000 updates",
    "mean5": "mean of 5 looks' averages",
    "mean10": "mean of 10 looks' averages",
}


def speed_table() -> str:
    """Return the table of updates per second."""
    rows, seen = [], {}
    for c in lines("agent-speed.jsonl"):
        seen[c["case"], c["half"], c.get("fused", False)] = c
    cases = list(dict.fromkeys(key[:2] for key in seen))
    # The target is shown beside the fused kernels, the default, if the case was measured with them.
    for (case, half, fused), c in sorted(seen.items(), key=lambda item: (cases.index(item[0][:2]), not item[0][2])):
        agent, batch, runs = case.split(":")
        target = TARGETS.get(case) if half is None and (fused or (case, half, True) not in seen) else None
        layers = "float32" if half is False else "bfloat16, fused" if fused else "bfloat16"
        rows.append([agent, batch, runs, layers, f"{c['updates_per_second']:,}", f"{target:,}" if target else "",
                     c["device"]])  # fmt: skip
    return table(["agent", "batch", "runs in one program", "hidden layers", "updates/s in total", "aim", "on"], rows)


def check_table() -> str:
    """Return the table of evaluations beside d3rlpy, up to the last update that both reached."""
    cells, rows = lines("oracle-d3rlpy.jsonl"), []
    where = [(c.get("agent", "td3bc"), f"{c['env']}-{c.get('level', 'medium-expert')}") for c in cells]
    for agent, dataset in dict.fromkeys(where):
        mine = [c for c, at in zip(cells, where, strict=True) if at == (agent, dataset)]
        last = min(max(c["at"] for c in mine if c["by"] == by) for by in ("ssorl", "d3rlpy"))
        for by in ("ssorl", "d3rlpy"):
            score = np.array([c["score"] for c in mine if c["by"] == by and c["at"] <= last])
            rows.append([f"{agent} on {dataset}", by, f"{len(score)}, up to {last:,}", *swing(score)])
    return table(["agent", "of", "looks", "mean", "deviation between looks", "lowest", "highest"], rows)


def gait_table() -> str:
    """Return the table of the two halves of the medium-expert datasets."""
    rows = []
    for c in lines("gaits.jsonl"):
        if c["what"] == "values":
            numbers = f"{c['length']:.0f}", f"{c['reward_a_step']:.2f}", f"{c['from_the_start']:.0f}"
            rows.append([f"{c['env']}-{c['half']}", *numbers])
    return table(["half", "steps of a trajectory", "reward a step", "discounted return from the start"], rows)


def medium_table() -> str:
    """Return the table of other hopper-medium datasets, closer to D4RL's statistics, with TD3+BC's oracles."""
    mediums = [c for c in lines("gaits.jsonl") if c["what"] == "medium"]
    cells, rows = lines("oracle.jsonl"), []
    for m in mediums:
        mine = [c for c in cells if c.get("medium") == m["name"]]
        scores = [spread(by_look(mine, kind)[-1]) for kind in ("last", "average")]
        worst, whole = f"{m['labelled'][0]:.2f}", f"{m['mean']:,.0f} ± {m['std']:,.0f}"
        figures = f"{m['length']:.0f}", f"{m['reward_a_step']:.2f}", f"{m['from_the_start']:.0f}"
        rows.append([m["name"], whole, worst, *figures, *scores])
    titles = ["hopper-medium made by", "return", "worst tenth, normalised", "steps", "reward a step"]
    return table([*titles, "discounted return from the start", "last weights", "averaged weights"], rows)


def less_table() -> str:
    """Return the table of TD3+BC's scores with lower rewards in the medium half."""
    cells, rows = [c for c in lines("gaits.jsonl") if c["what"] == "train"], []
    for less in sorted({c["less"] for c in cells}):
        for kind in ("last", "average"):
            score = np.array([c["score"] for c in cells if (c["less"], c["kind"]) == (less, kind)])
            rows.append([f"{less:.1f} less" if less else "as it is", NAMES[kind], str(len(score)), *swing(score)])
    titles = ["reward of the medium half", "policy", "looks", "mean", "deviation between looks", "lowest", "highest"]
    return table(titles, rows)


def edge_table() -> str:
    """Return the table of DT's scores by `edge`, its distance of labels from the action limits."""
    cells, rows = lines("dt-edge.jsonl"), []
    for labels in dict.fromkeys(c["labels"] for c in cells):
        for edge in sorted({c["edge"] for c in cells}):
            mine = sorted((c for c in cells if (c["labels"], c["edge"]) == (labels, edge)), key=itemgetter("seed"))
            on_it = f"{100 * np.mean([c['steps_on_a_limit'] for c in mine]):.1f} %"
            errors = [" ".join(f"{c[kind]:.3f}" for c in mine) for kind in ("off_early", "off_later")]
            scores = [" ".join(f"{c[kind]:.0f}" for c in mine) for kind in ("last", "average")]
            rows.append([labels, on_it, f"{edge:g}", *errors, *scores])
    titles = ["labels", "steps with an action on a limit", "`edge`", "off in the first 100 steps", "off later"]
    return table([*titles, "score, last weights", "averaged"], rows)


def edge_run_table() -> str:
    """Return the table of DT's `edge` in runs of the whole pipeline on hopper, seed by seed."""
    rows = []
    for edge, folder in ((1e-6, "demo"), (0.01, "dt-edge-run")):
        runs = [json.loads(path.read_text()) for path in sorted((ROOT / "results" / folder).glob("dt-*.json"))]
        scores = {v: [np.mean(x) for run in runs for x in run["scores"][v]["returns"]] for v in runs[0]["scores"]}
        rows.append([f"{edge:g}", *(f"{np.mean(x):.0f} ({' '.join(f'{y:.0f}' for y in x)})" for x in scores.values())])
    return table(["`edge`", "baseline", "SS", "oracle"], rows)


def peer_table() -> str:
    """Return the table of updates per second beside d3rlpy on a CPU."""
    stored = json.loads((ROOT / "results" / "against-d3rlpy.json").read_text())
    lines = ["| agent | networks | updates/s | d3rlpy's | ratio | aim |", "| --- | --- | --- | --- | --- | --- |"]
    for name, own in stored["agents"].items():
        rate, sizes = own["updates_per_second"], "×".join(map(str, stored["networks"][name]))
        lines.append(
            f"| {name} | {sizes} | {rate['ssorl']:.0f} | {rate['d3rlpy']:.0f} | {own['ratio']:.1f} | {own['target']} |"
        )
    return "\n".join(
        [*lines, "", f"{stored['hardware']}; {stored['versions']['ssorl']}, {stored['versions']['d3rlpy']}."]
    )


def main() -> None:
    """Write all tables into the page."""
    text = PAGE.read_text()
    for mark, body in (
        ("oracle", oracle_table()),
        ("steady", steady_table()),
        ("speed", speed_table()),
        ("peer", peer_table()),
        ("check", check_table()),
        ("gaits", gait_table()),
        ("medium", medium_table()),
        ("less", less_table()),
        ("edge", edge_table()),
        ("edge-run", edge_run_table()),
    ):
        pattern = rf"(<!-- generated: {mark} -->\n).*?(\n?<!-- end -->)"
        assert re.search(pattern, text, re.S), mark
        text = re.sub(pattern, lambda m, body=body: m[1] + body + "\n<!-- end -->", text, flags=re.S)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
