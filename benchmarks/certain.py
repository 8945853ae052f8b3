"""Measure the returns of training on the proxy actions with the lowest std only (`--certain`), with quick settings.

ssorl study run benchmarks/certain.yaml --scale paper --store STORE   # a quarter of an hour, two cores
python benchmarks/certain.py pack STORE                               # results/certain.jsonl
python benchmarks/certain.py                                          # docs/choosing-idm.md's table
"""

import json
import re
import sys
from pathlib import Path

from ssorl.study import statistics
from ssorl.utils.files import read_json

ROOT = Path(__file__).parents[1]
PACKED, PAGE = ROOT / "results" / "certain.jsonl", ROOT / "docs" / "choosing-idm.md"
SHARES = {None: "all", 0.9: "surest nine tenths", 0.5: "surest half"}


def pack(store: Path) -> None:
    with PACKED.open("w") as file:
        for folder in sorted((store / "cells").iterdir()):
            about, result = (read_json(folder / name) for name in ("cell.json", "result.json"))
            if about["cell"]["kind"] != "return":
                continue
            kept = {name: result[name] for name in ("scores", "all_returns", "idm", "timings")}
            file.write(json.dumps({**about, "result": kept}) + "\n")


def table() -> str:
    scores: dict[tuple, list[float]] = {}
    for record in map(json.loads, PACKED.read_text().splitlines()):
        cell = record["cell"]
        labels = ("robust" if cell["idm"].get("ranks") else "paper") if cell["idm"] else cell["variant"]
        where = cell["dataset"].removeprefix("sim/").partition(":")[0], labels, cell["certain"]
        scores.setdefault(where, []).append(record["result"]["scores"]["average"])
    heads = [
        "labelled alone",
        *(f"{idm}, {share}" for idm in ("paper", "robust") for share in SHARES.values()),
        "oracle",
    ]
    columns = [("baseline", None), *((idm, share) for idm in ("paper", "robust") for share in SHARES), ("oracle", None)]
    lines = [f"| dataset | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for dataset in sorted({where[0] for where in scores}):
        intervals = (statistics.estimate(statistics.mean, [scores[dataset, *column]]) for column in columns)
        lines.append(f"| {dataset} | {' | '.join(f'{x.value:.0f} [{x.low:.0f}, {x.high:.0f}]' for x in intervals)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["pack"]:
        pack(Path(sys.argv[2]))
    mark = r"(<!-- generated: certain -->\n).*?(<!-- end -->)"
    PAGE.write_text(re.sub(mark, lambda m: m[1] + table() + "\n" + m[2], PAGE.read_text(), flags=re.S))
    print(table())
