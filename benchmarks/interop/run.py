"""What ssorl writes, in other people's tools: python benchmarks/interop/run.py [--python PATH]

Minari, d3rlpy and onnxruntime live in an environment of their own, which is made in a temporary folder (d3rlpy brings
torch: some gigabytes, some minutes) unless `--python` names an interpreter that has them. This side writes datasets
with `ssorl label` and `ssorl data convert` and policies with `ssorl run` and `ssorl export`, and notes what is in them;
`others.py`, in that environment and without ssorl, loads and uses them. What passed goes to results/interop.json.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

NEEDED = ("d3rlpy==2.8.1", "minari[hdf5]==0.5.4", "pillow", "onnxruntime")  # Minari's HDF5 reader imports pillow
STORE = Path(__file__).parents[2] / "results" / "interop.json"
DATA = "sim/hopper-medium-expert"
SPLIT = ["--fraction", "0.1", "--quality", "50"]
SMALL = ["--preset", "quick", "--steps", "500"]
AGENTS = ("td3bc", "iql")


def ssorl(*args: object) -> None:
    """One command of ours, as a user types it."""
    print("ssorl", *args, flush=True)
    subprocess.run([str(Path(sys.executable).with_name("ssorl")), *map(str, args)], check=True)


def environment(folder: Path) -> str:
    """The interpreter of a new environment."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *NEEDED], check=True)
    return python


def datasets(folder: Path) -> dict:
    """Four datasets, and what whoever loads them must find."""
    plain, gaps = folder / "plain.hdf5", folder / "gaps.hdf5"
    ssorl("data", "convert", DATA, "--out", plain)
    ssorl("data", "convert", DATA, "--out", folder / "plain-v0", "--to", "minari")
    ssorl("data", "split", DATA, *SPLIT, "--data", gaps, "--out", folder / "split.json")
    ssorl("label", gaps, "--out", folder / "labelled.hdf5", *SMALL, "--save-idm", folder / "idm")
    ssorl("label", gaps, "--out", folder / "labelled-v0", "--to", "minari", "--idm", folder / "idm", "--stream")

    from ssorl.data import load

    missing = int((~load(gaps).labelled).sum())
    expected = {}
    for name in ("plain.hdf5", "plain-v0", "labelled.hdf5", "labelled-v0"):
        eps = load(folder / name)
        last = eps.start[1:] - 1
        np.savez(folder / f"{name}.expected.npz", returns=eps.returns, act=eps.act, ended=eps.terminated[last])
        expected[name] = {"trajectories": len(eps), "steps": eps.n_steps, "proxies": missing * name.startswith("lab")}
    return expected


def policies(folder: Path) -> list[str]:
    """A policy an agent as ONNX, and its actions for a thousand states as `ssorl.load_policy` has them."""
    import ssorl as package
    from ssorl.data import load

    obs = load(folder / "plain.hdf5").obs[::97][:1000]
    few = ["--updates", 300, "--idm-updates", 200, "--idm-members", 1, "--variants", "ss", "--episodes", 2]
    for agent in AGENTS:
        run = folder / f"run-{agent}"
        ssorl("run", folder / "plain.hdf5", "--env", "hopper", "--agent", agent, *few, "--out", run)
        ssorl("export", run, "--out", folder / f"{agent}.onnx")
        policy = package.load_policy(run)
        one = policy(obs[0])
        np.savez(folder / f"{agent}.expected.npz", obs=obs, act=policy(obs), one=one)
    return list(AGENTS)


def main() -> None:
    args = argparse.ArgumentParser()
    args.add_argument("--python", help="an interpreter that has d3rlpy, minari and onnxruntime")
    args.add_argument("--out", type=Path, default=STORE)
    args = args.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = args.python or environment(folder / "environment")
        asked = {"datasets": datasets(folder), "policies": policies(folder)}
        (folder / "asked.json").write_text(json.dumps(asked))
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"MINARI_DATASETS_PATH": name}
        other = Path(__file__).with_name("others.py")
        subprocess.run([python, str(other), name], check=True, env=env, cwd=name)
        told = json.loads((folder / "told.json").read_text())
    from ssorl.utils.provenance import versions

    about = {"date": datetime.date.today().isoformat(), "machine": platform.machine(), "ssorl": versions()}
    args.out.write_text(json.dumps({**about, **told}, indent=1) + "\n")
    failed = [name for name, check in told["checks"].items() if not check["passed"]]
    print(f"{len(told['checks']) - len(failed)} of {len(told['checks'])} passed", *failed, sep="\n")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
