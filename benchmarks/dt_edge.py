"""Compare settings of DT's `edge`, the least distance of actions from their limits, with true and with proxy actions.

    python benchmarks/dt_edge.py walker2d --seeds 0 1    # lines to results/dt-edge.jsonl; scripts/agents_page.py draws

DT takes an action apart by atanh, which is 3.8 at 0.999 and 7.3 at 0.999999. A behaviour policy is seldom that close to
a limit; proxies are cut at it and so lie on it. Default-size medium-expert sets, the presets `quick`, a tenth of all
trajectories labelled (q = 100). Scores are means over the looks of a training's second half, every 500 updates, ten
episodes at each; `off` is the mean squared distance from the true actions of the better half of all trajectories, which
varies less: in their first hundred steps and after.
"""

import argparse
import json
import time
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import ssorl
from ssorl.agents import make
from ssorl.agents.dt import STATES
from ssorl.agents.gpt import linear
from ssorl.evaluation.policy import TrainedPolicy
from ssorl.evaluation.rollout import evaluate
from ssorl.pipeline.arguments import fit_to_task
from ssorl.training.engine import TrainingRun, train_many
from ssorl.training.tables import Dataset, make_pool, make_table
from ssorl.utils import provenance

STORE = Path(__file__).parents[1] / "results" / "dt-edge.jsonl"
LABELS = ("true", "paper-quick", "robust-quick")
EDGES = (1e-6, 1e-3, 1e-2)
EPISODES = 10


def labelled(env: str, labels: str, seed: int):
    """Return the trajectories with these actions where actions are missing."""
    eps = ssorl.load(f"sim/{env}-medium-expert")
    if labels == "true":
        return eps
    task = ssorl.split(eps, fraction=0.1, quality=100, seed=seed)
    return ssorl.label(task, ssorl.fit_idm(task, labels, seed=seed)).eps


def distance(agent, params, scaler, eps) -> dict[str, float]:
    """Return the mean squared error on the better half of the trajectories, early in a trajectory and later."""
    steps = np.flatnonzero((eps.returns > np.median(eps.returns))[eps.episode_of_step]).astype(np.int32)
    table = make_table([Dataset(eps, scaler)])
    pool = jax.tree.map(jnp.asarray, make_pool(eps, steps, len(steps)))

    @jax.jit
    def draw_batch(key):
        batch = agent.view.draw(table, pool, key)
        mean = linear(params["mean"], agent.features(params, batch, STATES))
        return jnp.square(jnp.tanh(mean) - batch.act).mean(-1), batch.time, batch.mask

    batches = [draw_batch(key) for key in jax.random.split(jax.random.key(0), 100)]
    off, time, mask = (np.concatenate(x) for x in zip(*batches, strict=True))
    return {"off_early": float(off[mask & (time < 100)].mean()), "off_later": float(off[mask & (time >= 100)].mean())}


def train_edges(env: str, labels: str, seed: int):
    """Train at each edge."""
    whole, eps = ssorl.load(f"sim/{env}-medium-expert"), labelled(env, labels, seed)
    on_it = float((np.abs(eps.scaled_actions()) > 1 - 1e-6).any(1).mean())
    for edge in EDGES:
        agent = fit_to_task(make("dt", "quick", edge=edge), env, eps)
        began, played = time.perf_counter(), []

        def play(look, agent=agent, played=played):
            if look.at > agent.updates // 2:
                trees = (look.average, jax.vmap(agent.policy)(look.state))
                first = [jax.device_get(jax.tree.map(itemgetter(0), tree)) for tree in trees]
                policies = [TrainedPolicy(agent, tree, look.scalers[0], eps.meta.low, eps.meta.high) for tree in first]
                played.append(evaluate(policies, env, EPISODES).normalised.mean(1))

        done = train_many(agent, [TrainingRun(eps, seed)], every=500, callback=play)[0]
        average, last = (round(float(x), 1) for x in np.mean(played, 0))
        record = {"env": env, "labels": labels, "edge": edge, "seed": seed, "last": last, "average": average}
        record |= distance(agent, done.average, done.scaler, whole)
        record |= {"steps_on_a_limit": round(on_it, 4), "looks": [x.round(1).tolist() for x in played]}
        yield record | {
            "seconds": round(time.perf_counter() - began),
            "settings": asdict(agent),
            **provenance.everything(),
        }


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("env")
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    p.add_argument("--labels", nargs="+", default=LABELS)
    args = p.parse_args()
    for seed in args.seeds:
        for labels in args.labels:
            for cell in train_edges(args.env, labels, seed):
                print({k: v for k, v in cell.items() if k not in ("settings", "versions", "hardware")}, flush=True)
                with STORE.open("a") as file:
                    file.write(json.dumps(cell) + "\n")


if __name__ == "__main__":
    main()
