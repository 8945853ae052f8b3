"""Measure updates per second when many inverse dynamics models are fitted in one program.

python benchmarks/idm_speed.py                     # 30 models of the paper, in bfloat16 and in float32
python benchmarks/idm_speed.py --idm robust --fits 10
"""

import argparse
import json
import time
from dataclasses import replace
from itertools import pairwise

import jax
import numpy as np

from ssorl.data.episodes import Episodes, Meta
from ssorl.data.validate import build
from ssorl.idm import IDMS
from ssorl.idm.fit import fit_many


def noise(n_episodes: int = 200, length: int = 1000, n_obs: int = 11, n_act: int = 3) -> Episodes:
    """Return random data of hopper's shapes; the values do not affect the speed."""
    rng = np.random.default_rng(0)
    steps = n_episodes * length
    obs = rng.standard_normal((steps + n_episodes, n_obs)).astype(np.float32)
    act = rng.uniform(-1, 1, (steps, n_act)).astype(np.float32)
    lengths = np.full(n_episodes, length)
    return build(obs, act, np.zeros(steps, np.float32), np.zeros(steps, bool), lengths, Meta())


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--idm", default="paper", choices=list(IDMS))
    p.add_argument("--fits", type=int, default=30)
    p.add_argument("--chunks", type=int, default=5, help="chunks of 1000 updates, without the first")
    args = p.parse_args()
    eps = noise()
    for half in (True, False):
        config = replace(IDMS[args.idm], half=half, validate_every=1000, steps=1000 * args.chunks)
        at = []
        fit_many([(eps, s) for s in range(args.fits)], config, lambda n, _, at=at: at.append((time.perf_counter(), n)))
        rates = [n / (b - a) for (a, _), (b, n) in pairwise(at)]
        record = {"idm": args.idm, "fits": args.fits, "members": config.members, "half": half}
        record |= {"updates_per_second": round(float(np.median(rates))), "device": jax.devices()[0].device_kind}
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
