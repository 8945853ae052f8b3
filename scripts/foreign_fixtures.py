"""Write the small files of tests/fixtures with the packages whose formats they have.

Run it in an environment that has the package, one of the arguments at a time:

    python scripts/foreign_fixtures.py lerobot   # lerobot 0.4, and again with 0.3
    python scripts/foreign_fixtures.py zarr2     # zarr 2
    python scripts/foreign_fixtures.py zarr3     # zarr 3
"""

import shutil
import sys
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parents[1] / "tests" / "fixtures"
LENGTHS = (7, 9, 6, 8)


def trajectories(seed: int = 0):
    """A point that is pushed about: states [T, 4] and actions [T, 2] of each trajectory."""
    rng = np.random.default_rng(seed)
    for n in LENGTHS:
        act = rng.uniform(-1, 1, (n, 2)).astype(np.float32)
        speed = np.cumsum(act, axis=0) * 0.1
        place = np.cumsum(speed, axis=0) * 0.1
        yield np.concatenate([place, speed], axis=1).astype(np.float32), act


def lerobot() -> None:
    """A dataset of two tasks and a camera, in layout v3.0 by lerobot 0.4 and in v2.1 by 0.3."""
    import lerobot as package  # type: ignore[import-not-found]
    from lerobot.datasets.lerobot_dataset import LeRobotDataset  # type: ignore[import-not-found]

    old = package.__version__.startswith("0.3")
    root = FOLDER / ("lerobot-v2.1" if old else "lerobot-v3")
    shutil.rmtree(root, ignore_errors=True)
    features = {
        "observation.state": {"dtype": "float32", "shape": (4,), "names": ["x", "y", "dx", "dy"]},
        "observation.images.top": {"dtype": "video", "shape": (64, 64, 3), "names": ["height", "width", "channels"]},
        "action": {"dtype": "float32", "shape": (2,), "names": ["force.x", "force.y"]},
        "operator": {"dtype": "int64", "shape": (2,) if old else (1,), "names": None},
    }
    dataset = LeRobotDataset.create("ssorl/fixture", 20, features, root=root, robot_type="point", use_videos=True)
    for e, (states, acts) in enumerate(trajectories()):
        task, operator = ("push", "pull")[e % 2], np.array([e % 2] * (1 + old))
        for t, (state, act) in enumerate(zip(states, acts, strict=True)):
            image = np.full((64, 64, 3), 10 * e + t, np.uint8)
            frame = {"observation.state": state, "observation.images.top": image, "action": act, "operator": operator}
            if old:
                dataset.add_frame(frame, task=task)
            else:
                dataset.add_frame({**frame, "task": task})
        dataset.save_episode()
    if not old:
        dataset.finalize()
    shutil.rmtree(root / "images", ignore_errors=True)


def zarr2() -> None:
    """A zip as diffusion policy passes it around."""
    import zarr

    path = FOLDER / "zarr-v2.zarr.zip"
    path.unlink(missing_ok=True)
    with zarr.ZipStore(str(path), mode="w") as store:
        _fill(zarr.group(store))


def zarr3() -> None:
    """A zip in format 3."""
    import zarr

    path = FOLDER / "zarr-v3.zip"
    path.unlink(missing_ok=True)
    store = zarr.storage.ZipStore(str(path), mode="w")
    root = zarr.create_group(store)
    states, acts = (np.concatenate(rows) for rows in zip(*trajectories(), strict=True))
    data, meta = root.create_group("data"), root.create_group("meta")
    data.create_array("state", data=states, chunks=(16, 4), shards=(32, 4))
    data.create_array("action", data=acts, chunks=(16, 2))
    meta.create_array("episode_ends", data=np.cumsum(LENGTHS))
    store.close()


def _fill(root) -> None:
    states, acts = (np.concatenate(rows) for rows in zip(*trajectories(), strict=True))
    data, meta = root.create_group("data"), root.create_group("meta")
    data.array("state", states, chunks=(16, 4))
    data.array("action", acts, chunks=(16, 2))
    data.array("img", np.zeros((len(states), 4, 4, 3), np.uint8), chunks=(8, 4, 4, 3))
    meta.array("episode_ends", np.cumsum(LENGTHS), compressor=None)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    {"lerobot": lerobot, "zarr2": zarr2, "zarr3": zarr3}[sys.argv[1]]()
