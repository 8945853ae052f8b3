"""Screen the options for labels of unequal worth (docs/run.md) with quick agents on small simulated sets.

    python benchmarks/worth.py                                    # all cells that results/worth.jsonl lacks
    python benchmarks/worth.py --quality 50 --seeds 0 --agents iql
    python benchmarks/worth.py --table

A cell is one training. Labels are made once for each dataset, quality and seed, and kept in --labels. A use of proxy
actions whose training is that of `keep` (no trajectory is doubtful) is not trained.
"""

import argparse
import json
import time
from dataclasses import asdict
from itertools import product
from pathlib import Path

import numpy as np

import ssorl
from ssorl.agents import make
from ssorl.evaluation.rollout import evaluate
from ssorl.idm.fill import LabelledData
from ssorl.idm.label import Labels, filled
from ssorl.idm.serialise import load, save
from ssorl.idm.worth import LabelUse, doubtful_steps
from ssorl.pipeline.algorithm1 import SplitData, variant_runs
from ssorl.pipeline.plan import TrainingPlan
from ssorl.pipeline.scoring import trained_policy
from ssorl.training.engine import train
from ssorl.utils import provenance
from ssorl.utils.files import read_json, read_npz, write_json, write_npz

STORE = Path(__file__).parents[1] / "results" / "worth.jsonl"
DATASETS = ("sim/hopper-medium-expert:20000", "sim/walker2d-medium-expert:20000", "sim/halfcheetah-medium-expert:20000")
QUALITIES, SEEDS, AGENTS, EPISODES = (10, 50), (0, 1, 2), ("iql", "bc"), 20
USES = {
    "keep": LabelUse(),
    "drop": LabelUse("drop"),
    "weight": LabelUse("weight"),
    "label weights": LabelUse(label_weights=True),
    "true share 0.25": LabelUse(true_share=0.25),
    "true share 0.5": LabelUse(true_share=0.5),
    "label samples": LabelUse(label_samples=True),
}
KEY = ("dataset", "quality", "seed", "agent", "use")


def labels_of(task: SplitData, seed: int, folder: Path) -> LabelledData:
    """Return the labels of a split from a folder, where they are stored if they are missing."""
    if not (folder / "labels.npz").is_file():  # written last
        new = ssorl.label(task, ssorl.fit_idm(task, seed=seed, quiet=True), quiet=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        save(new.ready, folder)
        write_json(folder / "report.json", new.report)
        write_npz(folder / "labels.npz", new.labels._asdict())
    labels, ready = Labels(**read_npz(folder / "labels.npz")), load(folder)
    return LabelledData(filled(task.data, labels, ready), labels, ready, read_json(folder / "report.json"))


def run_split(dataset: str, quality: float, seed: int, agents: list[str], folder: Path) -> None:
    """Train every cell of a split that the store lacks."""
    done = {tuple(cell[k] for k in KEY) for cell in cells()}
    wanted = [
        (a, u) for a in agents for u in ("baseline", "oracle", *USES) if (dataset, quality, seed, a, u) not in done
    ]
    if not wanted:
        return
    eps = ssorl.load(dataset)
    task = ssorl.split(eps, quality=quality, seed=seed)
    labelled = labels_of(task, seed, folder / f"{dataset.replace('/', '-').replace(':', '-')}-q{quality:g}-{seed}")
    about = {"dataset": dataset, "quality": quality, "seed": seed, "mse": labelled.report["truth"]["mse"]}
    forecast = labelled.report["forecast"] or {"mse": None}
    about |= {"forecast": forecast["mse"], "doubtful_share": float(doubtful_steps(labelled).mean())}
    for name, use in wanted:
        if use in ("drop", "weight") and not doubtful_steps(labelled).any():
            continue
        agent, began = make(name, "quick"), time.process_time()
        runs = variant_runs(task, labelled, seed, None, USES.get(use), getattr(agent.view, "length", 1))
        run = runs[use if use in runs else "ss"]
        plan = TrainingPlan(agent=agent, env=eps.meta.env, episodes=EPISODES, policy="average", looks=1)
        trained = train(agent, run, every=agent.updates)
        player = trained_policy(plan, run.eps, trained)
        scores = evaluate([player], eps.meta.env or "", EPISODES).normalised
        assert scores is not None
        record = {**about, "agent": name, "use": use, "score": round(float(scores.mean()), 2)}
        print(json.dumps(record), flush=True)
        record |= {"cpu_seconds": round(time.process_time() - began), "settings": asdict(agent)}
        with STORE.open("a") as file:
            file.write(json.dumps(record | provenance.everything()) + "\n")


def cells() -> list[dict]:
    """Return the stored cells."""
    return [json.loads(line) for line in STORE.read_text().splitlines()] if STORE.is_file() else []


def table() -> str:
    """Return the mean difference of each use to `keep`, over the splits that have both and a gap of at least 10."""
    score = {tuple(cell[k] for k in KEY): cell["score"] for cell in cells()}
    lines = ["| agent | use | splits | difference to keep | better in |", "|---|---|---|---|---|"]
    for agent, use in product(AGENTS, ("baseline", *USES, "oracle")):
        gaps = []
        for key in (key for key in score if key[3:] == (agent, use)):
            keep, oracle, baseline = (score.get((*key[:4], other)) for other in ("keep", "oracle", "baseline"))
            if keep is not None and oracle is not None and baseline is not None and oracle - baseline >= 10:
                gaps.append(score[key] - keep)
        if gaps and use != "keep":
            better = f"{sum(gap > 0 for gap in gaps)} of {len(gaps)}"
            lines.append(f"| {agent} | {use} | {len(gaps)} | {np.mean(gaps):+.1f} | {better} |")
    return "\n".join(lines)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--datasets", nargs="+", default=DATASETS)
    p.add_argument("--quality", nargs="+", type=float, default=QUALITIES)
    p.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    p.add_argument("--agents", nargs="+", default=AGENTS)
    p.add_argument("--labels", type=Path, default=Path("runs/worth-labels"))
    p.add_argument("--table", action="store_true")
    args = p.parse_args()
    if args.table:
        return print(table())
    for seed, dataset, quality in product(args.seeds, args.datasets, args.quality):
        run_split(dataset, quality, seed, args.agents, args.labels)
    return None


if __name__ == "__main__":
    main()
