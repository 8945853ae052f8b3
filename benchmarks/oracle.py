"""Measure the agents' returns with all actions known, to check every agent against published scores.

    python benchmarks/oracle.py train td3bc hopper --seeds 5      # on a GPU: snapshots of policies to --work
    python benchmarks/oracle.py judge td3bc hopper                # evaluates all of them at once, lines to --store
    python benchmarks/oracle.py table

Trains on the full-size medium-expert set with the paper's settings (--set changes some), keeps the policy and its
exponential average every --every updates, and lets each play --episodes episodes from the same start states.
"""

import argparse
import ast
import json
import subprocess
import time
from dataclasses import asdict, replace
from pathlib import Path

import jax
import numpy as np

from ssorl.agents import make
from ssorl.data import load
from ssorl.data.stats import Standardiser
from ssorl.evaluation.policy import TrainedPolicy
from ssorl.evaluation.rollout import evaluate
from ssorl.training.engine import Snapshot, TrainingRun, train_many
from ssorl.utils.files import write_npz

STORE = Path(__file__).parents[1] / "results" / "oracle.jsonl"
LEVEL = "medium-expert"


def agent_of(args):
    changes = {k: ast.literal_eval(v) for k, v in (c.split("=") for c in args.set)}
    agent = make(args.agent, args.preset, **changes)
    if hasattr(agent, "half") and agent.half is None:
        agent = replace(agent, half=jax.default_backend() != "cpu")
    return agent


def train(args) -> None:
    agent, began = agent_of(args), time.perf_counter()
    eps = load(args.data or f"sim/{args.env}-{args.level}:{args.size}")
    if hasattr(agent, "fitted_to"):
        agent = agent.fitted_to(args.env, eps)
    kept: dict[str, list] = {"at": [], "policy": [], "average": []}
    rates: list[tuple[float, int]] = []
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    loaded = time.perf_counter()

    def keep(scaler: Standardiser, curve: dict) -> dict:
        """Save all policies at every snapshot, so that a training that is stopped has results."""
        rate = sum(n for _, n in rates[2:]) / (rates[-1][0] - rates[1][0]) if len(rates) > 2 else 0.0
        about = {
            "agent": args.agent, "env": args.env, "level": args.level, "size": args.size, "settings": asdict(agent),
            "updates_per_second": round(rate), "seconds": round(time.perf_counter() - loaded),
            "loading": round(loaded - began), "device": jax.devices()[0].device_kind,
            "versions": {"jax": jax.__version__, "numpy": np.__version__}, "commit": args.commit or commit or None,
        }  # fmt: skip
        leaves = {
            f"{which}{i}": np.stack(column)
            for which in ("policy", "average")
            for i, column in enumerate(zip(*map(jax.tree.leaves, kept[which]), strict=True))
        }
        write_npz(args.work / f"{args.agent}-{args.env}{args.tag}.npz", leaves | curve | {
            "at": np.array(kept["at"]), "mean": scaler.mean, "std": scaler.std, "low": eps.meta.low,
            "high": eps.meta.high, "about": np.array(json.dumps(about)),
        })  # fmt: skip
        return about

    def look(look: Snapshot) -> None:
        if look.at > args.after or look.at == agent.updates:
            kept["at"].append(look.at)
            kept["policy"].append(jax.device_get(jax.vmap(agent.policy)(look.state)))
            kept["average"].append(jax.device_get(look.average))
            keep(look.scalers[0], {})

    runs = [TrainingRun(eps, s) for s in range(args.seeds)]
    done = train_many(agent, runs, every=args.every, callback=look, together=True, folder=args.folder,
                      progress=lambda n, _: rates.append((time.perf_counter(), n)))  # fmt: skip
    record = keep(
        done[0].scaler, {f"curve_{name}": np.stack([run.curve[name] for run in done]) for name in done[0].curve}
    )
    print(json.dumps({k: v for k, v in record.items() if k != "settings"}), flush=True)


def judge(args) -> None:
    with np.load(args.work / f"{args.agent}-{args.env}{args.tag}.npz", allow_pickle=False) as file:
        data = {name: file[name] for name in file.files}
    about = json.loads(str(data["about"]))
    agent = replace(agent_of(args), **{k: v for k, v in about["settings"].items() if k == "target"}, half=False)
    n_obs, n_act = len(data["mean"]), len(data["low"])
    shape = jax.eval_shape(lambda: agent.policy(agent.init(jax.random.key(0), n_obs, n_act)))
    scaler = Standardiser(data["mean"], data["std"])
    n_looks, n_seeds = data["policy0"].shape[:2]
    tree, n_leaves = jax.tree.structure(shape), len(jax.tree.leaves(shape))

    def player(which: str, looks: slice, seed: int) -> TrainedPolicy:
        params = jax.tree.unflatten(tree, [data[f"{which}{i}"][looks, seed].mean(0) for i in range(n_leaves)])
        return TrainedPolicy(agent, params, scaler, data["low"], data["high"])

    # Besides the two policies of each snapshot: a longer average, the mean weights of the last few snapshots.
    kinds = {"last": ("policy", 1), "average": ("average", 1)} | {f"mean{m}": ("average", m) for m in args.means}
    jobs = [
        (kind, look, seed)
        for kind, (_, m) in kinds.items()
        for look in range(m - 1, n_looks)
        if (n_looks - 1 - look) % args.stride == 0
        for seed in range(n_seeds)
    ]
    players = [player(kinds[k][0], slice(look + 1 - kinds[k][1], look + 1), seed) for k, look, seed in jobs]
    began = time.perf_counter()
    scores = evaluate(players, args.env, args.episodes)
    print(f"{len(players)} policies x {args.episodes} episodes in {time.perf_counter() - began:.0f} s", flush=True)
    with args.store.open("a") as file:
        for (kind, look, seed), own in zip(jobs, scores.normalised, strict=True):
            cell = {"kind": kind, "at": int(data["at"][look]), "seed": seed, "score": round(float(own.mean()), 3)}
            file.write(json.dumps(cell | {"episodes": [round(float(x), 2) for x in own]} | about) + "\n")


def table(args) -> None:
    cells = [json.loads(line) for line in args.store.read_text().splitlines()]
    titles = ("agent", "env", "policy", "updates", "seeds", "end", "± seeds", "± looks", "mean of looks", "± seeds")
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    rows = dict.fromkeys((c["agent"], c["settings"]["half"], c["env"], c["kind"]) for c in cells)
    for agent, half, env, kind in rows:
        mine = [
            c for c in cells if (c["agent"], c["settings"]["half"], c["env"], c["kind"]) == (agent, half, env, kind)
        ]
        looks = sorted({c["at"] for c in mine})[-args.looks :]
        by = np.array([[c["score"] for c in mine if c["at"] == at] for at in looks])  # [looks, seeds]
        who = agent if half else f"{agent} in float32"
        text = f"| {who} | {env} | {kind} | {looks[-1]:,} | {by.shape[1]} | {by[-1].mean():.1f} | {by[-1].std():.1f} "
        print(text + f"| {by.std(0).mean():.1f} | {by.mean():.1f} | {by.mean(0).std():.1f} |")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("train", "judge", "table"))
    p.add_argument("agent", nargs="?", default="td3bc")
    p.add_argument("env", nargs="?", default="hopper")
    p.add_argument("--preset", default="paper")
    p.add_argument("--set", nargs="*", default=[], help="settings to change, such as updates=50000")
    p.add_argument("--tag", default="", help="suffix of the file in --work")
    p.add_argument("--level", default=LEVEL)
    p.add_argument("--size", default="full")
    p.add_argument("--data", help="a file or dataset id instead of sim/ENV-LEVEL:SIZE")
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--every", type=int, default=10_000)
    p.add_argument("--after", type=int, default=100_000, help="save policies from this update on")
    p.add_argument("--stride", type=int, default=1, help="evaluate every STRIDE-th snapshot")
    p.add_argument("--means", type=int, nargs="*", default=[5], help="numbers of snapshots whose weights are averaged")
    p.add_argument("--looks", type=int, default=10, help="snapshots in the table's last column")
    p.add_argument("--episodes", type=int, default=30)
    p.add_argument("--folder", type=Path, help="folder for checkpoints; the same command then resumes")
    p.add_argument("--work", type=Path, default=Path("runs/oracle"))
    p.add_argument("--store", type=Path, default=STORE)
    p.add_argument("--commit")
    args = p.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    args.store.parent.mkdir(exist_ok=True)
    {"train": train, "judge": judge, "table": table}[args.what](args)


if __name__ == "__main__":
    main()
