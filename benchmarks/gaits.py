"""Compare the halves of medium-expert datasets, to explain why TD3+BC does well on walker2d and not on hopper.

    python benchmarks/gaits.py values                    # reward per step and discounted return of each half
    python benchmarks/gaits.py train hopper --less 0.3   # TD3+BC with a lower reward for steps of the medium half

Lines go to results/gaits.jsonl; scripts/agents_page.py draws them.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from ssorl.agents import make
from ssorl.data import load
from ssorl.data.episodes import Episodes, concat
from ssorl.evaluation.policy import TrainedPolicy
from ssorl.evaluation.rollout import evaluate
from ssorl.training.engine import Snapshot, TrainingRun, train
from ssorl.utils import provenance

STORE = Path(__file__).parents[1] / "results" / "gaits.jsonl"
GAMMA = 0.99


def keep(line: dict) -> None:
    print(json.dumps(line), flush=True)
    with STORE.open("a") as file:
        file.write(json.dumps(line | provenance.everything()) + "\n")


def discounted(eps: Episodes) -> float:
    """Return the trajectories' mean discounted return, the value of their first states."""
    age = np.arange(eps.n_steps) - eps.start[eps.episode_of_step]
    return float((eps.rew * GAMMA**age).sum() / len(eps))


def values(env: str) -> None:
    for half in ("medium", "expert"):
        eps = load(f"sim/{env}-{half}:full")
        record = {"reward_a_step": round(float(eps.rew.mean(dtype=np.float64)), 3), "from_the_start": discounted(eps)}
        keep(
            {"what": "values", "env": env, "half": half, "gamma": GAMMA, "length": float(eps.lengths.mean()), **record}
        )


def trained(env: str, less: float, updates: int, every: int, episodes: int) -> None:
    medium, expert = (load(f"sim/{env}-{half}:full") for half in ("medium", "expert"))
    eps = concat([replace(medium, rew=(medium.rew - less).astype(np.float32)), expert])
    agent = make("td3bc", batch=256, updates=updates, gamma=GAMMA)

    def look(look: Snapshot) -> None:
        for kind, tree in (("last", jax.vmap(agent.policy)(look.state)), ("average", look.average)):
            own = jax.tree.map(lambda x: x[0], tree)
            player = TrainedPolicy(agent, own, look.scalers[0], eps.meta.low, eps.meta.high)
            scores = evaluate([player], env, episodes).normalised
            assert scores is not None
            line = {"what": "train", "env": env, "less": less, "batch": 256, "seed": 0, "at": look.at, "kind": kind}
            keep(line | {"episodes": episodes, "score": round(float(scores.mean()), 1)})

    train(agent, TrainingRun(eps, 0), every=every, callback=look)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("values", "train"))
    p.add_argument("env", nargs="?", default="hopper")
    p.add_argument("--less", type=float, default=0.0, help="subtract this from each reward of the medium half")
    p.add_argument("--updates", type=int, default=100_000)
    p.add_argument("--every", type=int, default=10_000)
    p.add_argument("--episodes", type=int, default=20)
    args = p.parse_args()
    if args.what == "values":
        for env in ("hopper", "walker2d", "halfcheetah"):
            values(env)
    else:
        trained(args.env, args.less, args.updates, args.every, args.episodes)


if __name__ == "__main__":
    main()
