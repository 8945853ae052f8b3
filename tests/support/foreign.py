"""Files as other packages write them: the layouts of robomimic, ALOHA, OGBench and diffusion policy."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import h5py
import numpy as np

from ssorl.data import Episodes


def padded(eps: Episodes, values: np.ndarray) -> np.ndarray:
    """Values of steps with a row more for each trajectory, as where the last row has an action of its own."""
    out = np.zeros((len(eps.obs), *values.shape[1:]), values.dtype)
    out[eps.obs_row] = values
    return out


def robomimic(
    path: Path, eps: Episodes, next_obs: bool = True, rewards: bool = True, drop: tuple[int, ...] = ()
) -> Path:
    """Two keys of vectors and a camera; the demonstrations in `drop` have lost their actions."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = eps.n_steps
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {}})
        for e in range(len(eps)):
            one = eps[e]
            demo = data.create_group(f"demo_{e}")
            demo.attrs["num_samples"] = one.n_steps
            demo.attrs["model_file"] = "<mujoco/>"
            obs, act = (one.obs, one.act) if next_obs else (one.obs, padded(one, one.act))
            n = one.n_steps if next_obs else one.n_steps + 1
            for group, rows in (("obs", slice(0, n)), ("next_obs", slice(1, n + 1)))[: 1 + next_obs]:
                demo[f"{group}/robot0_eef_pos"] = obs[rows, :1].astype(np.float64)
                demo[f"{group}/object"] = obs[rows, 1:].astype(np.float64)
                demo[f"{group}/agentview_image"] = np.zeros((n, 2, 2, 3), np.uint8)
            demo["states"] = np.zeros((n, 5))
            if e not in drop:
                demo["actions"] = act.astype(np.float64)
            if rewards:
                demo["rewards"] = (one.rew if next_obs else padded(one, one.rew)).astype(np.float64)
            demo["dones"] = (one.terminated if next_obs else padded(one, one.terminated)).astype(np.int64)
        file["mask/train"] = np.array([b"demo_0"])
    return path


def aloha(folder: Path, eps: Episodes) -> Path:
    """A file for each episode, as ACT's `record_episodes.py` writes it."""
    folder.mkdir(parents=True)
    for e in range(len(eps)):
        one = eps[e]
        with h5py.File(folder / f"episode_{e}.hdf5", "w") as file:
            file.attrs["sim"] = True
            file["observations/qpos"] = one.obs[:, :2].astype(np.float64)
            file["observations/qvel"] = one.obs[:, 2:].astype(np.float64)
            file["observations/images/top"] = np.zeros((len(one.obs), 2, 2, 3), np.uint8)
            file["action"] = padded(one, one.act).astype(np.float64)
    return folder


def ogbench(path: Path, eps: Episodes, **arrays: np.ndarray) -> Path:
    """As OGBench's collection scripts write it."""
    ends = np.zeros(len(eps.obs), bool)
    ends[eps.start[1:] + np.arange(len(eps))] = True
    body = {"observations": eps.obs, "actions": padded(eps, eps.act), "terminals": ends}
    np.savez_compressed(path, **{**body, "qpos": eps.obs[:, :2], **arrays})
    return path


def zarr_store(path: Path, eps: Episodes, version: int = 2, zipped: bool = False, **options) -> Path:
    """As diffusion policy's ReplayBuffer writes it."""
    import zarr
    from zarr.storage import LocalStore, ZipStore

    store = ZipStore(path, mode="w") if zipped else LocalStore(path)
    root = zarr.open_group(store, mode="w", zarr_format=version)
    data, meta = root.create_group("data"), root.create_group("meta")
    arrays = {
        "agent_pos": eps.obs[:, :1],
        "block": eps.obs[:, 1:],
        "action": padded(eps, eps.act),
        "img": np.zeros((len(eps.obs), 2, 2, 3), np.uint8),
    }
    for name, rows in arrays.items():
        data.create_array(name, data=np.ascontiguousarray(rows), chunks=(7, *rows.shape[1:]), **options)
    meta.create_array("episode_ends", data=np.cumsum(eps.lengths + 1))
    store.close()
    return path


def csv_table(path: Path, eps: Episodes, delimiter: str = ",", **columns) -> Path:
    """A row for each state; the numbers are written so that float32 reads them back."""
    episode = np.repeat(np.arange(len(eps)), eps.lengths + 1)
    act, rew = padded(eps, eps.act), padded(eps, eps.rew)
    body = {f"state_{i}": eps.obs[:, i] for i in range(eps.n_obs)}
    body |= {f"action_{i}": act[:, i] for i in range(eps.n_act)}
    body |= {"reward": rew, "episode": episode, **columns}
    cells = [[str(v) if not isinstance(v, float) else repr(v) for v in np.asarray(c).tolist()] for c in body.values()]
    lines = [delimiter.join(body), *map(delimiter.join, zip(*cells, strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return path


def rezip(path: Path, **change: bytes | None) -> Path:
    """The same zip with some members replaced, added (by their names) or left out (None)."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()} | change
    with zipfile.ZipFile(path, "w") as archive:
        for name, raw in members.items():
            if raw is not None:
                archive.writestr(name, raw)
    return path
