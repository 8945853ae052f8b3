"""What ssorl writes for lerobot, opened by lerobot: python benchmarks/interop/lerobot_datasets.py --python PATH

`--python` names an interpreter that has lerobot 0.4 and no ssorl. This side labels datasets that lerobot wrote itself
(tests/fixtures) with `ssorl label --into`, and converts another with `--to lerobot`; the other side (`lerobot_side.py`)
opens them offline, reads every frame with its video, converts v2.1 to v3.0 with lerobot's own script, and trains ACT
for one step. What passed goes to results/interop-lerobot.json.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
STORE = ROOT / "results" / "interop-lerobot.json"
FIXTURES = ROOT / "tests" / "fixtures"
SMALL = ["--preset", "quick", "--steps", "20", "--members", "2"]


def ssorl(*args: object) -> None:
    """Run one command of ssorl, as a user types it."""
    print("ssorl", *args, flush=True)
    subprocess.run([str(Path(sys.executable).with_name("ssorl")), *map(str, args)], check=True)


def without_actions(source: Path, target: Path) -> Path:
    """Copy a dataset and hide the actions of all episodes but the first."""
    shutil.copytree(source, target)
    for file in (target / "data").rglob("*.parquet"):
        table = pq.read_table(file)
        hide = table.column("episode_index").to_numpy() > 0
        at, field = table.column_names.index("action"), table.schema.field("action")
        rows = [None if h else row for h, row in zip(hide, table.column("action").to_pylist(), strict=True)]
        pq.write_table(table.set_column(at, field, pa.array(rows, field.type)), file)
    return target


def main() -> None:
    """Write the datasets, let lerobot open them, and keep what passed."""
    args = argparse.ArgumentParser()
    args.add_argument("--python", required=True, help="an interpreter that has lerobot 0.4")
    args.add_argument("--out", type=Path, default=STORE)
    args = args.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for version in ("v3", "v2.1"):
            bare = without_actions(FIXTURES / f"lerobot-{version}", folder / f"bare-{version}")
            known = FIXTURES / f"lerobot-{version}"
            ssorl("label", "--labelled", known, "--unlabelled", bare, "--into", folder / "local" / version, *SMALL)
        ssorl("data", "convert", "builtin/pointmass", folder / "local" / "converted", "--to", "lerobot")
        from ssorl.data import load

        expected = {}
        for version in ("v3", "v2.1", "converted"):
            columns = ["action", "episode_index"] + ["action_is_proxy"] * (version != "converted")
            files = sorted((folder / "local" / version / "data").rglob("*.parquet"))
            table = pa.concat_tables([pq.read_table(file, columns=columns) for file in files])
            np.save(folder / f"{version}.npy", np.array(table.column("action").to_pylist(), np.float32))
            expected[version] = {
                "frames": table.num_rows,
                "episodes": len(set(table.column("episode_index").to_pylist())),
            }
            assert load(folder / "local" / version).labelled.all()
        (folder / "asked.json").write_text(json.dumps(expected))
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
        side = Path(__file__).with_name("lerobot_side.py")
        subprocess.run([args.python, str(side), name], check=True, env=env, cwd=name)
        told = json.loads((folder / "told.json").read_text())
    from ssorl.utils.provenance import versions

    about = {"date": datetime.date.today().isoformat(), "machine": platform.machine(), "ssorl": versions()}
    args.out.write_text(json.dumps({**about, **told}, indent=1) + "\n")
    failed = [name for name, check in told["checks"].items() if not check["passed"]]
    print(f"{len(told['checks']) - len(failed)} of {len(told['checks'])} passed", *failed, sep="\n")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
