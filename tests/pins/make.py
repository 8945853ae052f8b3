"""Make the fixtures of this folder. Those in v01/ were made by version 0.1 and must never be made again by a later one.

python tests/pins/make.py v01     # the files that version 0.1 wrote; refused by any other version
python tests/pins/make.py cells   # cells.json: study cells and their hashes; likewise
python tests/pins/make.py api     # api.json: the public names and signatures; run it after a deliberate change
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

HERE = Path(__file__).parent
OLD = HERE / "v01"
CELLS = Path(__file__).parents[2] / "results" / "cells"
TINY_IDM = {
    "hidden": (8,),
    "steps": 60,
    "batch": 128,
    "lr": 3e-3,
    "schedule": "cosine",
    "dropout": 0.0,
    "validate_every": 30,
    "members": 2,
    "ranks": True,
    "differences": True,
}
DEFAULTS = {"idm": "robust", "preset": "quick"}  # of version 0.1; later versions have others
RUN = DEFAULTS | {
    "agent": "bc",
    "fraction": 0.25,
    "episodes": 2,
    "settings": {"hidden": (8,), "batch": 16, "updates": 20},
}
STOPPED = RUN | {"seeds": [3], "variants": ["baseline", "ss"]}  # in the second training, `ss`
STOPPED_AT = 12  # of 20 updates
SMALL = {
    "bc": {"hidden": (8,)},
    "cql": {"hidden": (8,), "n_actions": 2},
    "dt": {"layers": 1, "heads": 1, "width": 16, "context": 3, "max_time": 128, "warmup": 2},
    "dt-joint": {"layers": 1, "heads": 1, "width": 16, "context": 3, "max_time": 128, "warmup": 2, "unlabelled": 4},
    "iql": {"hidden": (8,)},
    "td3bc": {"hidden": (8,)},
}
SAC = {"env": "pointmass", "seeds": (0, 1), "n_envs": 2, "warmup": 16, "hidden": (8, 8), "batch": 8, "utd": 0.5}
SAC |= {"capacity": 128, "eval_every": 32, "eval_episodes": 2, "threads": 1}
SAC_STEPS = 48  # when it was stopped


@contextmanager
def tiny_idm() -> Iterator[None]:
    """Let a run fit a tiny model where it is not told which."""
    from ssorl.idm import IDMS
    from ssorl.idm.model import IdmConfig

    name, before = "robust-quick", IDMS["robust-quick"]
    IDMS[name] = IdmConfig(**TINY_IDM)  # type: ignore[arg-type]
    try:
        yield
    finally:
        IDMS[name] = before


def fixed_obs(n_obs: int = 4) -> np.ndarray:
    """Observations [6, O] that are the same everywhere."""
    return np.sin(np.arange(6 * n_obs, dtype=np.float32)).reshape(6, n_obs).astype(np.float32)


def answers(policy) -> np.ndarray:
    """Its actions [4, 6, A] in four steps of six environments, so that an agent's memory matters."""
    obs = fixed_obs()
    policy.reset()
    return np.stack([policy(obs * (1 - 0.2 * step), 0.1 * step) for step in range(4)])


# Files of version 0.1 --------------------------------------------------------------------------------------


def make_v01() -> None:
    """Write every file that a later version must read."""
    import ssorl

    if not ssorl.__version__.startswith("0.1."):
        raise SystemExit(f"these files are of version 0.1, this is {ssorl.__version__}; they stay as they are")
    shutil.rmtree(OLD, ignore_errors=True)
    OLD.mkdir()
    os.chdir(OLD)
    from ssorl.data import load, save

    save(load("builtin/pointmass")[:16], Path("data.npz"))
    with tiny_idm():
        _models()
        _runs()
    _policies()
    _behaviour()


def _models() -> None:
    import ssorl
    from ssorl.idm import serialise

    task = ssorl.split(ssorl.load("data.npz"), fraction=0.25, seed=0)
    task.split.save("split.json")
    model = ssorl.fit_idm(task)
    serialise.save(model, "idm")
    done = ssorl.label(task, model)
    np.savez("labels.npz", act=done.eps.act, std=done.labels.std, proxy=done.labels.proxy, labelled=task.data.labelled)


def _runs() -> None:
    import ssorl
    from ssorl.pipeline.hooks import Listener

    ssorl.run("data.npz", out="run", **RUN)

    class Stop(Listener):
        """Stop as a user would, once the second training has a checkpoint in its middle."""

        done = 0

        def progress(self, what: str, n: int, note: str = "") -> None:
            self.done += n if what == "training" else 0
            if self.done > 20 + STOPPED_AT:
                raise KeyboardInterrupt

    try:
        ssorl.run("data.npz", out="stopped", watch=Stop(), **STOPPED)
    except KeyboardInterrupt:
        pass
    else:
        raise SystemExit("the run was not stopped")
    for name in ("run", "stopped"):
        (OLD / name / "report.html").unlink(missing_ok=True)  # large, and drawn again from result.json
        for lock in (OLD / name).rglob(".lock"):
            lock.unlink()


def _policies() -> None:
    import ssorl
    from ssorl.evaluation.policy_file import save_policy

    eps, acts = ssorl.load("data.npz"), {}
    for name, settings in SMALL.items():
        policy = ssorl.train(eps, name, batch=8, updates=4, **settings)
        player = policy.player
        save_policy(
            Path("policies") / f"{name}.npz",
            player.agent,
            player.params,
            player.scaler,
            player.act_low,
            player.act_high,
            policy.env,
            {"pin": name},
        )
        acts[name] = answers(policy)
    np.savez("actions.npz", **acts)


def _behaviour() -> None:
    from ssorl.data.sim.policy import from_weights, save
    from ssorl.data.sim.train import TrainConfig, train

    train(TrainConfig(steps=SAC_STEPS, **SAC), Path("sac"))  # type: ignore[arg-type]
    rng, sizes = np.random.default_rng(0), [(4, 8), (8,), (8, 8), (8,), (8, 4), (4,)]
    policy = from_weights([rng.normal(size=size).astype(np.float16) for size in sizes], -np.ones(2), np.ones(2))
    save(Path("behaviour.npz"), policy, {"env": "pointmass"})
    np.savez("behaviour-actions.npz", act=policy.mean(fixed_obs()))
    for lock in Path("sac").rglob(".lock"):
        lock.unlink()


# Study cells -----------------------------------------------------------------------------------------------

# How a hash may be made: (study, scale, what to look for in the cell), the first cell of each that was published.
WANTED = [
    ("main-medium-expert", "lite", {"agent": "td3bc", "variant": "baseline"}),
    ("main-medium-expert", "lite", {"agent": "td3bc", "variant": "ss"}),
    ("main-medium-expert", "lite", {"agent": "td3bc", "variant": "oracle"}),
    ("main-medium-expert", "lite", {"agent": "cql", "variant": "ss"}),
    ("main-medium-expert", "lite", {"agent": "cql", "variant": "oracle"}),
    ("main-medium-expert", "lite", {"agent": "dt", "variant": "baseline"}),
    ("main-medium-expert", "lite", {"agent": "dt", "variant": "ss"}),
    ("main-medium-expert", "paper", {"agent": "td3bc", "variant": "ss"}),
    ("main-medium-expert", "paper", {"agent": "td3bc", "variant": "oracle"}),
    ("gap-by-agent", "lite", {"agent": "td3bc", "dataset": "sim/walker2d-medium-replay:full"}),
    ("gap-by-agent", "lite", {"agent": "dt", "seed": 2}),
    ("gap-by-agent", "paper", {"variant": "baseline", "seed": 4}),
    ("gap-one-percent", "lite", {"variant": "ss"}),
    ("gap-one-percent", "paper", {}),
    ("gap-medium-expert", "lite", {"seed": 1, "variant": "baseline"}),
    ("low-label", "lite", {"agent": "td3bc", "recipe": {"fraction": 0.03, "quality": 90}}),
    ("low-label", "paper", {}),
    ("dt-joint", "lite", {"agent": "dt-joint"}),
    ("dt-joint", "paper", {}),
    ("dt-joint-lambda", "lite", {"agent": "dt-joint", "seed": 1}),
    ("self-training", "lite", {"rounds": 3}),
    ("self-training", "lite", {"rounds": 5}),
    ("self-training", "paper", {}),
    ("idm-architecture", "lite", {"variant": "ss", "seed": 0}),
    ("idm-architecture", "paper", {}),
    ("labelled-quality", "lite", {"setup": "decoupled", "agent": "dt"}),
    ("unlabelled-quality", "lite", {"setup": "decoupled", "seed": 2}),
    ("labelled-size", "lite", {"setup": "decoupled"}),
    ("unlabelled-size", "lite", {"setup": "decoupled", "seed": 1}),
    ("labelled-returns", "lite", {"kind": "data"}),
    ("labelled-returns", "paper", {"kind": "data", "seed": 4}),
    ("densities", "lite", {"kind": "data", "setup": None}),
    ("example-density", "paper", {"kind": "data"}),
    ("main-medium", "lite", {"seed": 1}),
    ("main-medium-replay", "lite", {"seed": 2}),
    ("main-halfcheetah", "lite", {"variant": "oracle"}),
    ("wide-subsample", "lite", {"dataset": "sim/walker2d-wide:full"}),
    ("maze2d", "lite", {"variant": "baseline"}),
    ("maze2d", "lite", {"variant": "ss", "seed": 2}),
    ("idm-robust", "lite", {"variant": "ss"}),
    ("idm-robust", "paper", {"variant": "ss", "seed": 3}),
    ("idm-robust-agents", "lite", {"agent": "dt"}),
]
# Others that nobody has published, such as those of the kind `idm`.
UNPUBLISHED = [
    ("self-training-mse", "lite", {"kind": "idm", "rounds": 5}),
    ("self-training-mse", "paper", {"kind": "idm", "rounds": 0}),
    ("self-training-mse", "smoke", {"kind": "idm", "seed": 0}),
    ("main-medium-expert", "smoke", {"agent": "dt"}),
]
OWN = [  # settings of studies of one's own, with the scale
    ("lite", {"dataset": "sim/hopper-medium", "agent": "iql", "variant": "ss", "idm": "robust", "certain": 0.5}),
    ("paper", {"dataset": "sim/hopper-medium", "agent": "bc", "preset": "quick", "variant": "baseline"}),
    ("smoke", {"dataset": "data/own.npz", "agent": "bc", "env": "Hopper-v5", "settings": {"hidden": [64, 64]}}),
    ("lite", {"dataset": "sim/maze2d-umaze-dense:50000", "agent": "td3bc", "setup": None, "variant": "oracle"}),
    ("paper", {"dataset": "builtin/pointmass", "agent": "cql", "policy": "average", "looks": 3, "episodes": 7}),
    ("smoke", {"dataset": "builtin/pointmass", "kind": "idm", "past": 2, "future": 1, "members": 3, "rounds": 2}),
    ("lite", {"dataset": "builtin/pointmass", "setup": "decoupled", "labelled": "high", "idm_settings": {"beta": 1.0}}),
]


def make_cells() -> None:
    """Pick cells and write them with the hashes they have in version 0.1."""
    import ssorl
    from ssorl.study.grid import Cell, digest, resolve
    from ssorl.study.paper import STUDIES
    from ssorl.study.scales import SCALES

    if not ssorl.__version__.startswith("0.1."):
        raise SystemExit(f"these hashes are of version 0.1, this is {ssorl.__version__}; they stay as they are")
    lines = [json.loads(line) for file in sorted(CELLS.glob("*.jsonl")) for line in file.read_text().splitlines()]
    published = {Cell.from_json(line["cell"]).hash for line in lines}
    found, taken = [], set()
    for known, wanted in ((True, WANTED), (False, UNPUBLISHED)):
        for study, scale, like in wanted:
            cells = [c for c in STUDIES[study].cells(scale, 5) if c.hash not in taken]
            cells = [c for c in cells if like.items() <= _plain(c).items() and (c.hash in published) == known]
            if not cells:
                raise SystemExit(f"{study} at {scale} has no cell left like {like}")
            cell = cells[len(cells) // 2]
            taken.add(cell.hash)
            about = {"study": study, "scale": scale, "published": known, "idm_hash": cell.idm_hash}
            found.append({"hash": cell.hash, **about, "cell": cell.as_json()})
    own = [(scale, asked, resolve(asked, SCALES[scale])) for scale, asked in OWN]
    told = {
        "cells": found,
        "own": [{"hash": c.hash, "scale": s, "settings": a, "cell": c.as_json()} for s, a, c in own],
        "studies": {
            study: {scale: digest(sorted(c.hash for c in STUDIES[study].cells(scale))) for scale in SCALES}
            for study in STUDIES
            if study != "claims"
        },
    }
    (HERE / "cells.json").write_text(json.dumps(told, indent=1) + "\n")


def _plain(cell) -> dict:
    return json.loads(json.dumps(cell.as_json()))


# Run folders' names ----------------------------------------------------------------------------------------

CONFIGS = [
    {},
    {"agent": "cql", "preset": "paper", "seeds": 3},
    {"agent": "dt", "quality": [10, 50], "env": "none"},
    {"agent": "dt-joint", "episodes": 7},
    {"agent": "iql", "setup": "decoupled", "labelled": "med", "unlabelled_fraction": 0.3},
    {"agent": "bc", "settings": {"hidden": [32, 16], "updates": 100}, "certain": 0.5, "policy": "last"},
    {"agent": "td3bc", "idm": "paper", "idm_updates": 70, "idm_members": 2, "variants": ["ss", "oracle"], "seeds": [7]},
    {"agent": "td3bc", "fraction": 0.5, "quality": 100},
]


def folder_name(choices: dict, at: Path) -> str:
    """The name of the folder that a run in the folder `at` is given; the run is stopped as soon as it has one."""
    import ssorl
    from ssorl.pipeline.hooks import Listener

    class OpenedError(Exception):
        pass

    class Stop(Listener):
        name = ""

        def has_opened(self, folder: Path, begun: bool, finished: bool) -> None:
            self.name = folder.name
            raise OpenedError

    stop, before = Stop(), Path.cwd()
    os.chdir(at)
    try:
        ssorl.run(OLD / "data.npz", watch=stop, **choices)
    except OpenedError:
        pass
    finally:
        os.chdir(before)
    return stop.name


def make_names() -> None:
    """Write the folders' names."""
    import tempfile

    with tempfile.TemporaryDirectory() as at:
        names = [{"folder": folder_name(choices, Path(at)), "choices": choices} for choices in CONFIGS]
    (HERE / "folders.json").write_text(json.dumps(names, indent=1) + "\n")


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) == 2 else ""
    if what == "v01":
        make_v01()
        make_names()
    elif what == "cells":
        make_cells()
    elif what == "api":
        from surface import describe

        (HERE / "api.json").write_text(json.dumps(describe(), indent=1) + "\n")
    else:
        raise SystemExit(__doc__)
