"""What `ssorl run` finds on the demo's data, agent by agent: keep results and redraw the table of docs/run.md.

python scripts/run_page.py RUN_FOLDER …    # keep these runs' results in results/, then redraw
python scripts/run_page.py                 # only redraw
"""

import json
import re
import sys
from pathlib import Path

import numpy as np

from ssorl.runs.result import interval

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "results" / "demo"
TUNED = {"td3bc": [0, 1, 2, 3, 4]}  # seeds that settings were chosen by; they have a row of their own


def keep(folder: Path) -> None:
    """The result without what only the page draws."""
    told = json.loads((folder / "result.json").read_text())
    told["split"] = {k: v for k, v in told["split"].items() if not k.endswith("_return")}
    del told["curves"]
    told.pop("sha256", None)  # of the whole
    told["command"] = re.sub(r" --out \S+", "", told["command"])
    for score in told["scores"].values():
        score["returns"] = [[round(x, 2) for x in seed] for seed in score["returns"]]
    KEPT.mkdir(parents=True, exist_ok=True)
    name = f"{told['config']['agent']['name']}-seeds-{told['seeds'][0]}-{told['seeds'][-1]}.json"
    (KEPT / name).write_text(json.dumps(told, indent=1) + "\n")


def table() -> str:
    lines = [
        "| agent | seeds | baseline | SS | oracle | SS above baseline in | gap closed | label MSE |",
        "|---" * 8 + "|",
    ]
    rows: dict[str, list[dict]] = {}
    for path in sorted(KEPT.glob("*.json")):
        told = json.loads(path.read_text())
        name = told["config"]["agent"]["name"]
        rows.setdefault(f"{name}, tuned on these" if TUNED.get(name) == told["seeds"] else name, []).append(told)
    for name, some in sorted(rows.items()):
        some.sort(key=lambda told: told["seeds"])
        seeds = [seed for told in some for seed in told["seeds"]]
        returns = {v: [np.array(x) for told in some for x in told["scores"][v]["returns"]] for v in some[0]["scores"]}
        shown = {v: interval(x) for v, x in returns.items()}
        wins = sum(a.mean() > b.mean() for a, b in zip(returns["ss"], returns["baseline"], strict=True))
        low, ss, top = (shown[v]["mean"] for v in ("baseline", "ss", "oracle"))
        closed = f"{100 * (ss - low) / (top - low):.0f} %" if top > low else "there is none"
        mse = np.average([told["idm"]["mse"] for told in some], weights=[len(told["seeds"]) for told in some])
        which = (
            f"{seeds[0]} to {seeds[-1]}"
            if seeds == list(range(seeds[0], seeds[-1] + 1))
            else ", ".join(map(str, seeds))
        )
        cells = [f"{s['mean']:.1f} [{s['low']:.1f}, {s['high']:.1f}]" for s in shown.values()]
        lines.append(f"| {' | '.join([name, which, *cells, f'{wins} of {len(seeds)}', closed])} | {mse:.4f} |")
    return "\n".join(lines)


def main() -> None:
    for folder in sys.argv[1:]:
        keep(Path(folder))
    page = ROOT / "docs" / "run.md"
    pattern = r"(<!-- generated: demo -->\n).*?(<!-- end -->)"
    page.write_text(re.sub(pattern, lambda m: f"{m[1]}{table()}\n{m[2]}", page.read_text(), flags=re.S))


if __name__ == "__main__":
    main()
