"""Evaluate d3rlpy's TD3+BC or CQL on our data and simulator, to find whether low scores come from our code.

    python benchmarks/oracle_d3rlpy.py data hopper FOLDER                       # standardised as for our agents
    PATH/TO/d3rlpy/python benchmarks/oracle_d3rlpy.py train FOLDER --seed 0     # an environment that has d3rlpy
    python benchmarks/oracle_d3rlpy.py judge hopper FOLDER --seed 0             # appends to results/oracle-d3rlpy.jsonl
    python benchmarks/oracle_d3rlpy.py ours hopper FOLDER --seed 0              # our training, evaluated likewise

`--level medium` is of hopper-medium and so on. Both sides have batch 256. TD3+BC has two hidden layers of 256 and the
settings of its paper; CQL (--agent cql) our `quick` preset, for a CPU: two of 128, three actions of each kind, weight
5, no Lagrange multiplier. `judge` may run while `train` does: it judges the weights that are there and not in the
store yet.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

STORE = Path(__file__).parents[1] / "results" / "oracle-d3rlpy.jsonl"
LAYERS = 3
LEVEL = "medium-expert"  # level of lines without one


def data(name: str, folder: Path) -> None:
    from ssorl.data import load
    from ssorl.data.stats import standardiser

    eps = load(f"sim/{name}:full")
    last = np.zeros(eps.n_steps, bool)
    last[eps.start[1:] - 1] = True
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(
        folder / "data.npz",
        observations=standardiser(eps)(eps.obs)[eps.obs_row],
        actions=eps.scaled_actions(),
        rewards=eps.rew[:, None],
        terminals=eps.terminated.astype(np.float32),
        timeouts=(last & ~eps.terminated).astype(np.float32),
    )


def theirs(name: str):
    import d3rlpy  # type: ignore[import-not-found]

    if name == "td3bc":
        nets = d3rlpy.models.encoders.VectorEncoderFactory([256, 256])
        return d3rlpy.algos.TD3PlusBCConfig(actor_encoder_factory=nets, critic_encoder_factory=nets)
    nets = d3rlpy.models.encoders.VectorEncoderFactory([128, 128])
    return d3rlpy.algos.CQLConfig(
        actor_learning_rate=1e-4,
        critic_learning_rate=3e-4,
        temp_learning_rate=3e-4,
        alpha_learning_rate=0.0,
        initial_alpha=1.0,
        conservative_weight=5.0,
        n_action_samples=3,
        actor_encoder_factory=nets,
        critic_encoder_factory=nets,
    )


def train(folder: Path, name: str, seed: int, updates: int, every: int, threads: int) -> None:
    import d3rlpy  # type: ignore[import-not-found]
    import torch  # type: ignore[import-not-found]

    torch.set_num_threads(threads)
    d3rlpy.seed(seed)
    with np.load(folder / "data.npz") as file:
        dataset = d3rlpy.dataset.MDPDataset(**file)
    config = theirs(name)
    agent = config.create(device="cpu:0")
    agent.build_with_dataset(dataset)
    began = time.perf_counter()
    for at in range(every, updates + 1, every):
        for _ in range(every):
            agent.update(dataset.sample_transition_batch(config.batch_size))
        # The last layer of CQL's policy is that of the standard deviation, which the evaluation does not need.
        arrays = [p.detach().numpy() for p in agent.impl.policy.parameters()]
        path = folder / f"{seed}-{at}.npz"
        np.savez(path.with_suffix(".part.npz"), *arrays)
        path.with_suffix(".part.npz").rename(path)
        print(at, f"{at / (time.perf_counter() - began):.0f} updates/s", [a.shape for a in arrays], flush=True)


def ours(dataset: str, folder: Path, name: str, seed: int, updates: int, every: int) -> None:
    import jax

    from ssorl.agents import make
    from ssorl.data import load
    from ssorl.training.engine import TrainingRun, train

    agent = make(name, "quick" if name == "cql" else "paper", batch=256, updates=updates)

    def look(seen) -> None:
        actor = jax.tree.map(lambda x: np.asarray(x[0]), seen.state.actor)
        if name == "cql":
            actor[-1] = {k: np.split(x, 2, axis=-1)[0] for k, x in actor[-1].items()}
        arrays = [a for layer in actor for a in (layer["w"].T, layer["b"])]
        np.savez(folder / f"ours-{seed}-{seen.at}.npz", *arrays)
        print(seen.at, flush=True)

    train(agent, TrainingRun(load(f"sim/{dataset}:full"), seed), every=every, callback=look)


def judge(env: str, level: str, folder: Path, name: str, seed: int, episodes: int, by: str) -> None:
    from ssorl.agents import make
    from ssorl.data import load
    from ssorl.data.stats import standardiser
    from ssorl.evaluation.policy import TrainedPolicy
    from ssorl.evaluation.rollout import evaluate
    from ssorl.utils import provenance

    eps = load(f"sim/{env}-{level}:full")
    scaler, agent = standardiser(eps), make("td3bc", batch=256)
    lines = [json.loads(line) for line in STORE.read_text().splitlines()] if STORE.exists() else []
    done = {(c["by"], c.get("agent", "td3bc"), c["env"], c.get("level", LEVEL), c["seed"], c["at"]) for c in lines}
    begin = f"{seed}-" if by == "d3rlpy" else f"ours-{seed}-"
    for path in sorted(folder.glob(f"{begin}*[0-9].npz"), key=lambda p: int(p.stem.split("-")[-1])):
        at = int(path.stem.split("-")[-1])
        if (by, name, env, level, seed, at) in done:
            continue
        with np.load(path) as file:
            arrays = [file[name] for name in file.files]
        layers = [{"w": arrays[2 * i].T, "b": arrays[2 * i + 1]} for i in range(LAYERS)]
        player = TrainedPolicy(agent, layers, scaler, eps.meta.low, eps.meta.high)
        scores = evaluate([player], env, episodes).normalised
        assert scores is not None
        record = {"by": by, "agent": name, "env": env, "level": level, "seed": seed, "at": at}
        record["score"] = round(float(scores.mean()), 2)
        record |= {"episodes": scores[0].round(1).tolist(), "d3rlpy": "2.8.1", "batch": 256, **provenance.everything()}
        with STORE.open("a") as store:
            store.write(json.dumps(record) + "\n")
        print(by, env, level, seed, at, record["score"], flush=True)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("data", "train", "ours", "judge"))
    p.add_argument("words", nargs="+", help="[ENV] FOLDER")
    p.add_argument("--level", default=LEVEL)
    p.add_argument("--agent", choices=("td3bc", "cql"), default="td3bc")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--updates", type=int, default=100_000)
    p.add_argument("--every", type=int, default=10_000)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--episodes", type=int, default=30)
    args = p.parse_args()
    folder, dataset = Path(args.words[-1]), f"{args.words[0]}-{args.level}"
    if args.what == "data":
        data(dataset, folder)
    elif args.what == "train":
        train(folder, args.agent, args.seed, args.updates, args.every, args.threads)
    elif args.what == "ours":
        ours(dataset, folder, args.agent, args.seed, args.updates, args.every)
    else:
        for by in ("d3rlpy", "ssorl"):
            judge(args.words[0], args.level, folder, args.agent, args.seed, args.episodes, by)


if __name__ == "__main__":
    main()
