"""The side of lerobot: python lerobot_side.py FOLDER, in an environment without ssorl."""

import importlib.metadata
import json
import platform
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import torch
from lerobot.configs.types import FeatureType
from lerobot.datasets.lerobot_dataset import LeRobotDataset, LeRobotDatasetMetadata
from lerobot.datasets.utils import dataset_to_policy_features
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.factory import make_pre_post_processors

CONVERT = "lerobot.datasets.v30.convert_dataset_v21_to_v30"
SMALL = {"dim_model": 64, "n_heads": 2, "dim_feedforward": 64, "n_encoder_layers": 1, "use_vae": False, "device": "cpu"}


def opened(root: Path, expected: dict, actions: np.ndarray) -> dict:
    """Open a dataset, read every frame, and compare its actions with what is in the files."""
    dataset = LeRobotDataset("local/data", root=root, video_backend="pyav")
    assert (len(dataset), dataset.num_episodes) == (expected["frames"], expected["episodes"])
    frames = [dataset[i] for i in range(len(dataset))]
    assert np.array_equal(np.stack([frame["action"].numpy() for frame in frames]), actions)
    films = [key for key in dataset.meta.video_keys if frames[0][key].shape[0] == 3]
    assert films == dataset.meta.video_keys
    return {"frames": len(frames), "features": sorted(frames[0]), "videos": films, "tasks": len(dataset.meta.tasks)}


def one_step(root: Path) -> dict:
    """Train ACT for one update."""
    meta = LeRobotDatasetMetadata("local/data", root=root)
    features = dataset_to_policy_features(meta.features)
    outputs = {name: f for name, f in features.items() if f.type is FeatureType.ACTION}
    inputs = {name: f for name, f in features.items() if name not in outputs and name.startswith("observation")}
    config = ACTConfig(
        input_features=inputs,
        output_features=outputs,
        pretrained_backbone_weights=None,
        chunk_size=4,
        n_action_steps=4,
        **SMALL,
    )
    policy = ACTPolicy(config)
    policy.train()
    prepare, _ = make_pre_post_processors(config, dataset_stats=meta.stats)
    steps = {"action": [i / meta.fps for i in range(4)]}
    dataset = LeRobotDataset("local/data", root=root, video_backend="pyav", delta_timestamps=steps)
    batch = prepare(next(iter(torch.utils.data.DataLoader(dataset, batch_size=8))))
    optimiser = torch.optim.Adam(policy.parameters(), 1e-4)
    loss, _ = policy.forward(batch)
    loss.backward()
    optimiser.step()
    assert torch.isfinite(loss)
    return {"loss": loss.item(), "outputs": sorted(outputs)}


def converted(folder: Path) -> dict:
    """Convert the copy of v2.1 to v3.0 by lerobot's own script, in place."""
    words = ["--repo-id=local/v2.1", f"--root={folder}", "--push-to-hub=false"]
    subprocess.run([sys.executable, "-m", CONVERT, *words], check=True, capture_output=True)
    return {"version": json.loads((folder / "local" / "v2.1" / "meta" / "info.json").read_text())["codebase_version"]}


def main(folder: Path) -> None:
    """Do all checks; a failure is kept too."""
    expected, checks = json.loads((folder / "asked.json").read_text()), {}
    local = folder / "local"

    def check(name, work, *args):
        try:
            checks[name] = {"passed": True, **work(*args)}
        except Exception as err:  # whatever it is, it is the result
            traceback.print_exc()
            checks[name] = {"passed": False, "error": f"{type(err).__name__}: {err}"}
        print(name, json.dumps(checks[name]), flush=True)

    check("convert v2.1 to v3.0", converted, folder)
    for name in ("v3", "v2.1", "converted"):
        check(f"open {name}", opened, local / name, expected[name], np.load(folder / f"{name}.npy"))
    for name in ("v3", "v2.1"):
        check(f"train ACT on {name}", one_step, local / name)
    packages = ("lerobot", "torch", "datasets", "av", "numpy")
    others = {"python": platform.python_version(), **{p: importlib.metadata.version(p) for p in packages}}
    (folder / "told.json").write_text(json.dumps({"others": others, "checks": checks}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
