"""Measure labels by inversion: share verified, their error, speed, and what wrong simulators verify.

    python benchmarks/simulator_table.py                        # all cells that are missing in the store
    python benchmarks/simulator_table.py --only right --steps 20000
    python benchmarks/simulator_table.py --table

Cells are appended to results/simulator.jsonl (or --store), one line each; a second call computes only what is missing.

right: nine sets and a maze; the start is the true action plus noise as large as the error of learnt labels.
wrong: masses off by 10 % (all alike, or each body up or down), and Walker2d-v5 for data of v4. `trusted_with_labels` is
    the verdict by known actions, `trusted_without` that by a random sample; `residual_share` is what the residual alone
    would verify.
learnt: labels of robust-quick after few updates, one split each, instead of noise.
"""

import argparse
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np

from ssorl.data import apply, coupled, load
from ssorl.envs.models import KnownModel, Transitions, known_model
from ssorl.idm import IDMS
from ssorl.idm.inversion import StepInversion
from ssorl.idm.invert import PILOT, invert
from ssorl.idm.label import label, labeller

STORE = Path(__file__).parents[1] / "results" / "simulator.jsonl"
LEVELS = ("medium", "medium-replay", "medium-expert")
NOISE = {"hopper": 0.02, "walker2d": 0.07, "halfcheetah": 0.004, "maze2d-umaze-dense": 0.008}  # squared
WRONG = ("masses 0.9", "masses 1.1", "bodies", "v5")


def stored(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def key_of(cell: dict) -> tuple:
    return tuple(cell[name] for name in ("kind", "dataset", "simulator", "seed", "asked"))


def cells_of(args) -> list[dict]:
    sets = [f"{robot}-{level}" for robot in ("hopper", "walker2d", "halfcheetah") for level in LEVELS]
    mediums = [name for name in sets if name.endswith("medium")]
    named = [("right", name, "right", args.steps) for name in [*sets, "maze2d-umaze-dense"]]
    named += [
        ("wrong", name, wrong, PILOT)
        for name in sets
        for wrong in WRONG
        if (wrong != "v5" or name.startswith("walker2d")) and not name.startswith("halfcheetah")
    ]
    named += [("wrong", "halfcheetah-medium", wrong, PILOT) for wrong in WRONG[:3]]
    named += [("wrong", "maze2d-umaze-dense", wrong, PILOT) for wrong in WRONG[:3]]
    named += [("learnt", name, "right", 2000) for name in mediums]
    return [
        {"kind": kind, "dataset": name, "simulator": sim, "seed": seed, "asked": steps}
        for kind, name, sim, steps in named
        for seed in args.seeds
        if args.only in (None, kind)
    ]


def robot_of(cell: dict) -> str:
    name = cell["dataset"]
    return name if name.startswith("maze2d") else name.split("-")[0]


def simulator_of(cell: dict) -> KnownModel:
    robot, wrong = robot_of(cell), cell["simulator"]
    if wrong == "v5":
        return known_model("Walker2d-v5")
    known = known_model(robot)
    if wrong != "right":
        model = known.model
        up = np.random.default_rng(cell["seed"]).random(model.nbody) < 0.5
        factor = np.where(up, 1.1, 0.9) if wrong == "bodies" else np.full(model.nbody, float(wrong.split()[1]))
        model.body_mass[:] *= factor
        model.body_inertia[:] *= factor[:, None]
        mujoco.mj_setConst(model, mujoco.MjData(model))
        known = replace(known, name=f"{robot} with {wrong}")
    return known


def sample(whole, n: int, seed: int):
    """Return the trajectories of which only a sample of steps has no action."""
    chosen = np.random.default_rng(seed).permutation(whole.n_steps)[:n]
    act = whole.act.copy()
    act[chosen] = np.nan
    return whole.with_actions(act)


def starts(whole, cell: dict):
    """Return the data with gaps, the start of each action, and the trajectories with known actions."""
    known = apply(coupled(whole, 0.1, 50, cell["seed"]), whole)
    eps = sample(whole, cell["asked"], cell["seed"])
    if cell["kind"] == "learnt":
        spec = IDMS["robust-quick"].resized(300, 1)
        ready = labeller(spec.fit(known, cell["seed"], None), known)
        eps = eps.with_actions(np.where(known.labelled[:, None], whole.act, eps.act))  # only hidden actions are asked
        return eps, label(ready, eps).act, known
    noise = np.random.default_rng(cell["seed"]).standard_normal(whole.act.shape) * NOISE[robot_of(cell)] ** 0.5
    return eps, np.clip(whole.act + noise, -1, 1).astype(np.float32), known


def compute(cell: dict) -> dict:
    whole, sim = load(f"sim/{cell['dataset']}"), simulator_of(cell)
    eps, start, known = starts(whole, cell)
    missing = np.flatnonzero(~eps.labelled)
    wall, cpu = time.perf_counter(), time.process_time()
    out = invert(eps, start, sim, known)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    error = np.square(out.act - whole.act).mean(axis=1, dtype=np.float64)
    result = {
        "steps": len(missing),
        "start_mse": float(np.square(start - whole.act)[missing].mean(dtype=np.float64)),
        "verified_share": out.facts["verified_share"],
        "verified_mse": float(error[out.verified].mean()) if out.verified.any() else None,
        "verified_max": float(error[out.verified].max()) if out.verified.any() else None,
        "all_mse": float(error[missing].mean()),
        "replayed_share": out.trust.replayed_share,
        "trusted_with_labels": out.trust.trusted,
        "steps_per_second": len(missing) / wall,
        "steps_per_cpu_second": len(missing) / cpu,
        "load": os.getloadavg()[0],
    }
    states = sim.states(whole.obs[whole.obs_row[missing]])
    clipped = states.unknown.any(axis=1)
    if out.trust.trusted and clipped.any():
        result |= {
            "clipped_share": float(clipped.mean()),
            "verified_of_clipped": float(out.verified[missing][clipped].mean()),
        }
    if cell["kind"] == "wrong":
        nothing = eps.with_actions(np.full_like(eps.act, np.nan))
        alone = StepInversion(nothing, sim, Transitions(sim)).invert(missing, start[missing].astype(float))
        result["residual_share"] = float(alone.verified.mean())
        result["trusted_without"] = result["residual_share"] >= 0.8
        off = np.square(alone.act - whole.act[missing]).mean(axis=1)[alone.verified]
        result["residual_mse"] = float(off.mean()) if len(off) else None
    return result


def table(rows: list[dict]) -> None:
    for row in rows:
        keys = ("verified_share", "verified_mse", "verified_of_clipped", "start_mse", "all_mse", "steps_per_cpu_second")
        keys += ("steps_per_second", "replayed_share", "residual_share", "residual_mse")
        shown = {k: row[k] for k in keys if row.get(k) is not None}
        print(
            f"{row['kind']:7}{row['dataset']:27}{row['simulator']:12}", {k: float(f"{v:.3g}") for k, v in shown.items()}
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("right", "wrong", "learnt"))
    parser.add_argument("--steps", type=int, default=20_000, help="steps of each set to invert")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--table", action="store_true", help="print the stored cells and compute nothing")
    args = parser.parse_args()
    if args.table:
        return table(stored(args.store))
    done = {key_of(cell) for cell in stored(args.store)}
    for cell in cells_of(args):
        if key_of(cell) in done:
            continue
        row = cell | compute(cell) | {"mujoco": mujoco.__version__}
        with args.store.open("a") as file:
            file.write(json.dumps(row) + "\n")
        table([row])
    return None


if __name__ == "__main__":
    main()
