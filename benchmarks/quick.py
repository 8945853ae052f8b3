"""Compare quick settings of TD3+BC by how clearly they show the gain of SS: settings x variants x seeds.

    python benchmarks/quick.py labels --seeds 100 110      # on a GPU: the proxy actions of each seed
    python benchmarks/quick.py train                       # every setting of SETTINGS, policies to --work
    JAX_PLATFORMS=cpu python benchmarks/quick.py judge     # evaluates policies as they are written, lines to --store
    python benchmarks/quick.py table

The seeds are others than those that docs/run.md reports on: settings are chosen here and judged there.
"""

import argparse
import ast
import json
import time
from pathlib import Path

import jax
import numpy as np

from ssorl.agents import make
from ssorl.data import apply, coupled, load
from ssorl.evaluation.policy import TrainedPolicy
from ssorl.evaluation.rollout import evaluate
from ssorl.idm import IDMS
from ssorl.idm.fill import fill
from ssorl.idm.fit import fit_many
from ssorl.idm.label import labeller
from ssorl.training.engine import Snapshot, TrainingRun, train_many
from ssorl.utils.files import write_npz

STORE = Path(__file__).parents[1] / "results" / "quick-tuning.jsonl"
DATA, QUALITY = "sim/hopper-medium-expert", 50
LOOKS = [5_000, 10_000, 20_000]  # training ends at the last
VARIANTS = ("baseline", "ss", "oracle")
NARROW = "hidden=(128,128)"
FAST, SLOW = "critic_lr=1e-3 actor_lr=1e-3", "critic_lr=3e-4 actor_lr=3e-4"
SETTINGS = [
    f"{NARROW} {FAST}",
    f"hidden=(256,256) {FAST}",
    f"hidden=(256,256) {SLOW}",
    f"{NARROW} {FAST} norm=True",
    f"hidden=(256,256) {FAST} norm=True",
    f"hidden=(256,256) {SLOW} norm=True",
    f"{NARROW} critic_lr=1e-3 actor_lr=3e-4 norm=True",
    f"{NARROW} critic_lr=1e-3 actor_lr=3e-4",
    f"{NARROW} {FAST} norm=True alpha=1.0",
    f"{NARROW} {FAST} norm=True alpha=5.0",
    f"{NARROW} {FAST} norm=True tau=0.01",
    f"{NARROW} {FAST} norm=True policy_every=1",
    f"{NARROW} {FAST} norm=True gamma=0.98",
    f"{NARROW} {FAST} norm=True gamma=0.995",
    f"{NARROW} {FAST} norm=True batch=512",
    f"{NARROW} {FAST} alpha=1.0",
    f"{NARROW} {FAST} alpha=5.0",
    f"{NARROW} {FAST} policy_every=1",
    f"{NARROW} {FAST} gamma=0.98",
    f"{NARROW} critic_lr=2e-3 actor_lr=2e-3 norm=True",
]


def agent_of(setting: str):
    changes = {k: ast.literal_eval(v) for k, v in (c.split("=") for c in setting.split())}
    return make("td3bc", "quick", **(changes | {"updates": max(LOOKS)}))


def labels(args) -> None:
    eps = load(DATA)
    hidden = [apply(coupled(eps, 0.1, QUALITY, s), eps) for s in args.seeds]
    idms = fit_many([(d, s) for d, s in zip(hidden, args.seeds, strict=True)], IDMS["robust-quick"])
    for seed, data, idm in zip(args.seeds, hidden, idms, strict=True):
        done = fill(data, labeller(idm, data), seed, truth=eps.act)
        print(seed, "mse", done.report["truth"]["mse"], flush=True)
        write_npz(args.work / f"labels-{seed}.npz", {"act": done.eps.act, "labelled": data.labelled})


def train(args) -> None:
    eps, runs, names = load(DATA), [], []
    for seed in args.seeds:
        with np.load(args.work / f"labels-{seed}.npz", allow_pickle=False) as file:
            act, known = file["act"], file["labelled"]
        runs += [
            TrainingRun(
                eps.with_actions(np.where(known[:, None], eps.act, np.nan).astype(np.float32)),
                seed,
                np.flatnonzero(known),
            ),
            TrainingRun(eps.with_actions(act), seed),
            TrainingRun(eps, seed),
        ]
        names += [(v, seed) for v in VARIANTS]
    for place, setting in enumerate(args.settings or SETTINGS):
        agent, kept, began = agent_of(setting), {}, time.perf_counter()

        def look(look: Snapshot, kept=kept) -> None:
            if look.at in LOOKS:
                for i, leaf in enumerate(jax.tree.leaves(jax.device_get(look.average))):
                    kept[f"{look.at}-{i}"] = leaf

        scaler = train_many(agent, runs, every=LOOKS[0], callback=look)[0].scaler
        about = {
            "setting": setting,
            "device": jax.devices()[0].device_kind,
            "jax": jax.__version__,
            "commit": args.commit,
        }
        whole = {"mean": scaler.mean, "std": scaler.std, "about": np.array(json.dumps(about)),
                 "names": np.array(json.dumps(names))}  # fmt: skip
        write_npz(args.work / f"setting-{place:02}.npz", kept | whole)
        print(f"{setting}: {time.perf_counter() - began:.0f} s", flush=True)
    (args.work / "done").touch()


def judge(args) -> None:
    eps, seen = load(DATA), set()
    while True:
        over = (args.work / "done").exists()
        new = sorted(set(args.work.glob("setting-*.npz")) - seen)
        for path in new:
            seen.add(path)
            with np.load(path, allow_pickle=False) as file:
                data = {name: file[name] for name in file.files}
            judge_one(data, eps, args)
        if over and not new:
            return
        time.sleep(1)


def judge_one(data: dict, eps, args) -> None:
    from ssorl.data.stats import Standardiser

    about, names = json.loads(str(data["about"])), json.loads(str(data["names"]))
    agent = agent_of(about["setting"])
    scaler = Standardiser(data["mean"], data["std"])
    shape = jax.eval_shape(lambda: agent.policy(agent.init(jax.random.key(0), len(scaler.mean), 3)))
    tree, n = jax.tree.structure(shape), len(jax.tree.leaves(shape))
    jobs = [(at, run) for at in LOOKS for run in range(len(names))]
    players = [
        TrainedPolicy(
            agent,
            jax.tree.unflatten(tree, [data[f"{at}-{i}"][run] for i in range(n)]),
            scaler,
            eps.meta.low,
            eps.meta.high,
        )
        for at, run in jobs
    ]
    scores = evaluate(players, "hopper", args.episodes, seed=2).normalised
    with args.store.open("a") as file:
        for (at, run), own in zip(jobs, scores, strict=True):
            cell = {"variant": names[run][0], "seed": names[run][1], "at": at, "score": round(float(own.mean()), 2)}
            file.write(json.dumps(cell | about) + "\n")
    print(row(about["setting"], [json.loads(x) for x in args.store.read_text().splitlines()]), flush=True)


def row(setting: str, cells: list[dict]) -> str:
    text = f"{setting:60}"
    for at in LOOKS:
        mine = {
            v: {c["seed"]: c["score"] for c in cells if (c.get("setting"), c["at"], c["variant"]) == (setting, at, v)}
            for v in VARIANTS
        }
        if not mine["ss"]:
            continue
        gain = np.array([mine["ss"][s] - mine["baseline"][s] for s in mine["ss"]])
        means = " ".join(f"{np.mean(list(x.values())):5.1f}" for x in mine.values())
        text += f" | {at:6}: {means}  SS {(gain > 0).sum()}/{len(gain)} worst {gain.min():6.1f}"
    return text


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("labels", "train", "judge", "table"))
    p.add_argument("--seeds", type=int, nargs=2, default=(100, 110), metavar=("FIRST", "END"))
    p.add_argument("--looks", type=int, nargs="+", help="updates of snapshots; multiples of the first")
    p.add_argument("--settings", nargs="+", help="names of settings, instead of all in SETTINGS")
    p.add_argument("--episodes", type=int, default=10)
    p.add_argument("--work", type=Path, default=Path("runs/quick"))
    p.add_argument("--store", type=Path, default=STORE)
    p.add_argument("--commit")
    args = p.parse_args()
    args.seeds = list(range(*args.seeds))
    LOOKS[:] = args.looks or LOOKS
    args.work.mkdir(parents=True, exist_ok=True)
    if args.what == "table":
        cells = [json.loads(x) for x in args.store.read_text().splitlines()]
        print("\n".join(row(s, cells) for s in dict.fromkeys(c["setting"] for c in cells if "setting" in c)))
    else:
        {"labels": labels, "train": train, "judge": judge}[args.what](args)


if __name__ == "__main__":
    main()
