"""What `ssorl audit` finds: each fault in 10, 30 and 50 % of 60 trajectories at three strengths, and clean subsets.

    python benchmarks/audit_table.py --max-seconds 600     # continues where it stopped
    python benchmarks/audit_table.py --sets arm --kinds lag flipped
    python benchmarks/audit_table.py --table               # only print

Thresholds were tuned on hopper- and walker2d-medium-expert and the arm, and on clean subsets of the other robots'
medium-expert and of hopper's and walker2d's medium-replay; halfcheetah-medium-replay and the Minari set were not looked
at. Results are appended to results/audit.jsonl. `found`: a finding of the kind names at least half of the faulty
trajectories and more faulty than sound ones. At 50 %, nothing says which half is wrong, so the other half counts too.
"""

import argparse
import json
import re
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.action_faults import SIZES, STRENGTHS, arm, faulty

from ssorl.data import load, save
from ssorl.idm.audit import audit

STORE = Path(__file__).parents[1] / "results" / "audit.jsonl"
DOCS = Path(__file__).parents[1] / "docs" / "audit.md"
SIM = ("hopper-medium-expert", "walker2d-medium-expert", "halfcheetah-medium-expert")
SIM += ("hopper-medium-replay", "walker2d-medium-replay")
SETS = (*SIM, "halfcheetah-medium-replay", "arm", "minari")
TUNED = ("hopper-medium-expert", "walker2d-medium-expert", "arm")
SHARES = (0.1, 0.3, 0.5)
SIZE = 60
DRAWS = 20


def load_set(name: str):
    if name == "arm":
        return arm(200)
    if name != "minari":
        return load(f"sim/{name}")
    with tempfile.TemporaryDirectory() as folder:  # a maze, written by Minari's own library and read again
        path = Path(folder) / "maze"
        save(load("sim/maze2d-umaze-dense"), path, "minari")
        return load(path)


def subset(eps, *seed: object):
    rng = np.random.default_rng(zlib.crc32(repr(seed).encode()))
    return eps.take(np.sort(rng.choice(len(eps), min(SIZE, len(eps)), replace=False)))


def stored(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def key(cell: dict) -> tuple:
    return tuple(cell[name] for name in ("set", "kind", "strength", "share", "draw"))


def measure(eps, cell: dict) -> dict:
    data = subset(eps, *key(cell))
    bad = np.zeros(0, int)
    if cell["kind"]:
        data, bad = faulty(data, cell["kind"], cell["strength"], cell["share"], cell["draw"])
    began = time.process_time()
    findings = audit(data).findings
    seconds = time.process_time() - began
    true = set(bad.tolist())
    rows, found, exact = [], False, set()
    for f in findings:
        hits, extra = len(true & set(f.trajectories)), len(set(f.trajectories) - true)
        rows.append({"kind": f.kind, "dimension": f.dimension, "value": f.value, "hits": hits, "extra": extra})
        if f.kind == cell["kind"]:
            rest = len(data) - len(true)
            right = hits >= 0.5 * len(true) and hits > extra
            found |= right or (cell["share"] == 0.5 and extra >= 0.5 * rest and extra > hits)
            if f.kind == "lag" and f.value == SIZES["lag"][STRENGTHS.index(cell["strength"])]:
                exact |= true & set(f.trajectories)
    out = {**cell, "faulty": len(true), "trajectories": len(data), "found": found, "findings": rows}
    return {**out, "lag_exact": len(exact) if cell["kind"] == "lag" else None, "seconds": round(seconds, 2)}


def cells_of(name: str, kinds: list[str]) -> list[dict]:
    clean = [{"set": name, "kind": None, "strength": None, "share": 0, "draw": i} for i in range(DRAWS)]
    return ([] if "clean" not in kinds else clean) + [
        {"set": name, "kind": kind, "strength": strength, "share": share, "draw": 0}
        for strength in STRENGTHS[::-1]
        for share in SHARES
        for kind in SIZES
        if kind in kinds
    ]


def table(cells: list[dict]) -> str:
    names = [n for n in SETS if any(c["set"] == n for c in cells)]
    lines = ["| kind | " + " | ".join(names) + " | weak, all sets |", "|---" * (len(names) + 2) + "|"]
    for kind in SIZES:
        row = []
        for name in names:
            own = [c for c in cells if c["set"] == name and c["kind"] == kind and c["strength"] != "weak"]
            row.append(f"{sum(c['found'] for c in own)}/{len(own)}" if own else "")
        weak = [c for c in cells if c["kind"] == kind and c["strength"] == "weak"]
        lines.append(f"| {kind} | " + " | ".join(row) + f" | {sum(c['found'] for c in weak)}/{len(weak)} |")
    clean = [
        f"{sum(bool(c['findings']) for c in cells if c['set'] == n and not c['kind'])}"
        f"/{sum(1 for c in cells if c['set'] == n and not c['kind'])}"
        for n in names
    ]
    lines.append("| clean draws with a finding | " + " | ".join(clean) + " | |")
    for title, chosen in (("tuned on", TUNED), ("judged on", [n for n in names if n not in TUNED])):
        own = [c for c in cells if c["kind"] and c["strength"] != "weak" and c["set"] in chosen]
        if own:
            share = np.mean([c["found"] for c in own])
            lines += ["", f"Middle and strong, sets {title}: {share:.1%} of {len(own)} found."]
    lags = [c for c in cells if c["kind"] == "lag"]
    if lags:
        exact, n = sum(c["lag_exact"] for c in lags), sum(c["faulty"] for c in lags)
        lines += ["", f"Lag exact in {exact / n:.1%} of {n} trajectories."]
    return "\n".join([*lines, "", f"Median CPU seconds an audit: {np.median([c['seconds'] for c in cells]):.2f}."])


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    p.add_argument("--kinds", nargs="+", default=["clean", *SIZES])
    p.add_argument("--max-seconds", type=float, default=float("inf"), help="begin no cell after so many")
    p.add_argument("--store", type=Path, default=STORE)
    p.add_argument("--table", action="store_true", help="only print what is stored")
    p.add_argument("--docs", action="store_true", help="put the table into docs/audit.md")
    args = p.parse_args()
    done, began = {key(c) for c in stored(args.store)}, time.process_time()
    for name in [] if args.table else args.sets:
        cells = [c for c in cells_of(name, args.kinds) if key(c) not in done]
        if not cells:
            continue
        eps = load_set(name)
        for cell in cells:
            if time.process_time() - began > args.max_seconds:
                break
            line = json.dumps(measure(eps, cell))
            with args.store.open("a") as file:
                file.write(line + "\n")
    body = table(stored(args.store))
    print(body)
    if args.docs:
        text = DOCS.read_text()
        pattern = re.compile(r"(<!-- generated: audit -->\n).*?(<!-- end -->)", re.S)
        DOCS.write_text(pattern.sub(lambda m: f"{m[1]}\n{body}\n\n{m[2]}", text))


if __name__ == "__main__":
    main()
