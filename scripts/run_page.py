"""What `ssorl run` finds on the demo's data, agent by agent: keep results and redraw the table of docs/run.md.

python scripts/run_page.py RUN_FOLDER …    # keep these runs' results in results/, then redraw
python scripts/run_page.py                 # only redraw
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "results" / "demo"


def keep(folder: Path) -> None:
    """The result without what only the page draws."""
    told = json.loads((folder / "result.json").read_text())
    told["split"] = {k: v for k, v in told["split"].items() if not k.endswith("_return")}
    del told["curves"]
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
    for path in sorted(KEPT.glob("*.json")):
        told = json.loads(path.read_text())
        scores, means = told["scores"], {}
        for variant, score in scores.items():
            means[variant] = [sum(seed) / len(seed) for seed in score["returns"]]
        shown = [f"{s['mean']:.1f} [{s['low']:.1f}, {s['high']:.1f}]" for s in scores.values()]
        wins = sum(a > b for a, b in zip(means["ss"], means["baseline"], strict=True))
        closed = f"{100 * told['gap_closed']:.0f} %" if told["gap_closed"] is not None else "there is none"
        seeds = f"{told['seeds'][0]} to {told['seeds'][-1]}"
        row = [told["config"]["agent"]["name"], seeds, *shown, f"{wins} of {len(told['seeds'])}", closed]
        lines.append(f"| {' | '.join(row)} | {told['idm']['mse']:.4f} |")
    return "\n".join(lines)


def main() -> None:
    for folder in sys.argv[1:]:
        keep(Path(folder))
    page = ROOT / "docs" / "run.md"
    pattern = r"(<!-- generated: demo -->\n).*?(<!-- end -->)"
    page.write_text(re.sub(pattern, lambda m: f"{m[1]}{table()}\n{m[2]}", page.read_text(), flags=re.S))


if __name__ == "__main__":
    main()
