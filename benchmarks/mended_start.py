"""Test whether self-trained labels harm policies at the start of episodes: labels of two models, swapped only there.

    python benchmarks/mended_start.py label --quality 100 --seeds 0 1     # two sets of labels per split, into --work
    python benchmarks/mended_start.py train bc --quality 100 --seeds 0 1  # lines to results/mended-start.jsonl
    python benchmarks/mended_start.py                                     # docs/idm.md's table

Default-size walker2d-medium-expert, a tenth labelled, the model `paper-quick`: after one round, and after
self-training with m = 2, N = 3. A policy is played at every look, since near a fall it changes from one to the next.
"""

import argparse
import json
import re
import time
from dataclasses import asdict
from itertools import product
from pathlib import Path

import jax
import numpy as np

import ssorl
from ssorl.agents import make
from ssorl.data.episodes import Episodes
from ssorl.evaluation.policy import TrainedPolicy
from ssorl.evaluation.rollout import evaluate
from ssorl.idm import IDMS
from ssorl.idm.label import predict
from ssorl.idm.selftrain import self_train
from ssorl.training.engine import Snapshot, TrainingRun, train
from ssorl.utils import provenance
from ssorl.utils.files import read_npz, write_npz

ROOT = Path(__file__).parents[1]
STORE, PAGE = ROOT / "results" / "mended-start.jsonl", ROOT / "docs" / "idm.md"
ENV, MEMBERS, ROUNDS = "walker2d", 2, 3
START = 100  # steps of an episode
FALLEN = 10  # score below which the walker fell soon after its start
SETTINGS = {
    "bc": {"preset": "paper", "hidden": (256, 256), "batch": 256, "updates": 30_000},
    "dt": {"preset": "quick"},
}
VARIANTS = {  # labels of the first steps, and of the others
    "one round": ("once", "once"),
    "self-trained": ("last", "last"),
    "self-trained, start of one round": ("once", "last"),
    "one round, start self-trained": ("last", "once"),
    "self-trained, start true": ("true", "last"),
    "self-trained, as many others true": ("last", "some true"),
}


def split(quality: float, seed: int):
    return ssorl.split(ssorl.load(f"sim/{ENV}-medium-expert"), fraction=0.1, quality=quality, seed=seed)


def label(work: Path, quality: float, seed: int) -> None:
    task = split(quality, seed)
    rounds = self_train(task.data, IDMS["paper-quick"], MEMBERS, ROUNDS, seed)
    steps = np.flatnonzero(~task.data.labelled)
    write_npz(work / f"{quality:g}-{seed}.npz", {n: predict(r.idm, task.data, steps).mean for n, r in
                                     (("once", rounds[0]), ("last", rounds[-1]))})  # fmt: skip


def labelled(work: Path, quality: float, seed: int, variant: str) -> tuple[Episodes, float]:
    """Return the trajectories with this variant's labels, and the squared error of the labels."""
    task, stored = split(quality, seed), read_npz(work / f"{quality:g}-{seed}.npz")
    eps, steps = task.data, np.flatnonzero(~task.data.labelled)
    true = task.whole.scaled_actions()
    at = (np.arange(eps.n_steps) - eps.start[eps.episode_of_step])[steps]
    early = at < START
    labels = {name: np.clip(stored[name], -1, 1) for name in ("once", "last")} | {"true": true[steps]}
    mended = np.random.default_rng(seed).permutation(np.flatnonzero(~early))[: early.sum()]
    labels["some true"] = labels["last"].copy()
    labels["some true"][mended] = true[steps[mended]]
    first, others = (labels[name] for name in VARIANTS[variant])
    filled = np.where(early[:, None], first, others)
    act = eps.act.copy()
    act[steps] = filled  # walker2d's actions are in [-1, 1] without scaling
    return eps.with_actions(act), float(np.square(filled - true[steps]).mean())


def learn(name: str, work: Path, quality: float, seed: int, variant: str, episodes: int) -> dict:
    began, agent = time.perf_counter(), make(name, **SETTINGS[name])
    eps, mse = labelled(work, quality, seed, variant)
    agent = agent.fitted_to(ENV, eps) if hasattr(agent, "fitted_to") else agent
    at, scores = [], []

    def look(look: Snapshot) -> None:
        params = jax.device_get(jax.tree.map(lambda x: x[0], jax.vmap(agent.policy)(look.state)))
        player = TrainedPolicy(agent, params, look.scalers[0], eps.meta.low, eps.meta.high)
        at.append(look.at)
        scores.append(round(float(evaluate([player], ENV, episodes).normalised.mean()), 2))

    train(agent, TrainingRun(eps, seed), every=agent.updates // 10, callback=look)
    return {
        "agent": name, "env": ENV, "quality": quality, "seed": seed, "variant": variant, "mse": mse, "start": START,
        "at": at, "scores": scores, "episodes": episodes, "settings": asdict(agent), "members": MEMBERS,
        "rounds": ROUNDS, "seconds": round(time.perf_counter() - began), **provenance.everything(),
    }  # fmt: skip


def table() -> str:
    """Print a row for each variant: means over seeds and the snapshots of the second half of a training."""
    records = [json.loads(line) for line in STORE.read_text().splitlines()]
    agents = list(dict.fromkeys(record["agent"] for record in records))
    heads = ["q", "labels", "MSE"]
    heads += [f"{name.upper()}{what}" for name in agents for what in (": score", " of each seed", ": fallen")]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for quality, variant in product(sorted({record["quality"] for record in records}), VARIANTS):
        mine = [record for record in records if (record["quality"], record["variant"]) == (quality, variant)]
        row = [f"{quality:g}", variant, f"{np.mean([record['mse'] for record in mine]):.3f}"]
        for name in agents:
            scores = [record["scores"] for record in mine if record["agent"] == name]
            late = np.array([x[len(x) // 2 :] for x in scores])
            if not late.size:
                row += ["–"] * 3
                continue
            each = ", ".join(f"{x:.0f}" for x in late.mean(1))
            row += [f"{late.mean():.0f}", each, f"{(late < FALLEN).sum()} of {late.size}"]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", nargs="?", choices=("label", "train", "table"), default="table")
    p.add_argument("agent", nargs="?", choices=SETTINGS, default="bc")
    p.add_argument("--quality", type=float, default=100)
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    p.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    p.add_argument("--episodes", type=int, default=10)
    p.add_argument("--work", type=Path, default=Path("runs/mended-start"))
    args = p.parse_args()
    if args.what == "label":
        for seed in args.seeds:
            label(args.work, args.quality, seed)
        return
    for seed in args.seeds if args.what == "train" else ():
        for variant in args.variants:
            record = learn(args.agent, args.work, args.quality, seed, variant, args.episodes)
            print(seed, variant, round(record["mse"], 4), record["scores"], record["seconds"], flush=True)
            with STORE.open("a") as file:
                file.write(json.dumps(record) + "\n")
    mark = r"(<!-- generated: mended-start -->\n).*?(<!-- end -->)"
    PAGE.write_text(re.sub(mark, lambda m: m[1] + table() + "\n" + m[2], PAGE.read_text(), flags=re.S))
    print(table())


if __name__ == "__main__":
    main()
