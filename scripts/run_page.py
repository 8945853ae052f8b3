"""Store results of `ssorl run` on the demo's data, and update the table of docs/run.md.

python scripts/run_page.py RUN_FOLDER …    # store these runs' results in results/demo/, then update the table
python scripts/run_page.py                 # only update the table
"""

import json
import re
import sys
from pathlib import Path

import numpy as np

from ssorl.runs.result import interval

ROOT = Path(__file__).parents[1]
STORED = ROOT / "results" / "demo"
TUNED = {"td3bc": [0, 1, 2, 3, 4]}  # seeds on which settings were chosen; the table has a separate row for them


def store(folder: Path) -> None:
    """Write the result of a run to results/demo/, without the values that only its report needs."""
    result = json.loads((folder / "result.json").read_text())
    result["split"] = {k: v for k, v in result["split"].items() if not k.endswith("_return")}
    del result["curves"]
    result.pop("sha256", None)  # the checksum of the complete file
    result["command"] = re.sub(r" --out \S+", "", result["command"])
    for score in result["scores"].values():
        score["returns"] = [[round(x, 2) for x in seed] for seed in score["returns"]]
    STORED.mkdir(parents=True, exist_ok=True)
    name = f"{result['config']['agent']['name']}-seeds-{result['seeds'][0]}-{result['seeds'][-1]}.json"
    (STORED / name).write_text(json.dumps(result, indent=1) + "\n")


def table() -> str:
    """Return the table in Markdown, one row for each agent."""
    lines = [
        "| agent | seeds | baseline | SS | oracle | SS above baseline in | gap closed | label MSE |",
        "|---" * 8 + "|",
    ]
    rows: dict[str, list[dict]] = {}
    for path in sorted(STORED.glob("*.json")):
        result = json.loads(path.read_text())
        name = result["config"]["agent"]["name"]
        rows.setdefault(f"{name}, tuned on these" if TUNED.get(name) == result["seeds"] else name, []).append(result)
    for name, runs in sorted(rows.items()):
        runs.sort(key=lambda run: run["seeds"])
        seeds = [seed for run in runs for seed in run["seeds"]]
        returns = {v: [np.array(x) for run in runs for x in run["scores"][v]["returns"]] for v in runs[0]["scores"]}
        shown = {v: interval(x) for v, x in returns.items()}
        wins = sum(a.mean() > b.mean() for a, b in zip(returns["ss"], returns["baseline"], strict=True))
        low, ss, top = (shown[v]["mean"] for v in ("baseline", "ss", "oracle"))
        closed = f"{100 * (ss - low) / (top - low):.0f} %" if top > low else "no gap"
        mse = np.average([run["idm"]["mse"] for run in runs], weights=[len(run["seeds"]) for run in runs])
        which = (
            f"{seeds[0]} to {seeds[-1]}"
            if seeds == list(range(seeds[0], seeds[-1] + 1))
            else ", ".join(map(str, seeds))
        )
        cells = [f"{s['mean']:.1f} [{s['low']:.1f}, {s['high']:.1f}]" for s in shown.values()]
        lines.append(f"| {' | '.join([name, which, *cells, f'{wins} of {len(seeds)}', closed])} | {mse:.4f} |")
    return "\n".join(lines)


def main() -> None:
    """Store the results of the given runs and write the table into docs/run.md."""
    for folder in sys.argv[1:]:
        store(Path(folder))
    page = ROOT / "docs" / "run.md"
    pattern = r"(<!-- generated: demo -->\n).*?(<!-- end -->)"
    page.write_text(re.sub(pattern, lambda m: f"{m[1]}{table()}\n{m[2]}", page.read_text(), flags=re.S))


if __name__ == "__main__":
    main()
