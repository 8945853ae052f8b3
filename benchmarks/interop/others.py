"""The side of Minari, d3rlpy and onnxruntime: python others.py FOLDER, in an environment without ssorl."""

import importlib.metadata
import json
import platform
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

UPDATES = 300
CHECKS: dict[str, dict] = {}


def check(name: str, what: Callable[[], dict]) -> None:
    """Do it and keep what it tells; a failure is kept too."""
    try:
        CHECKS[name] = {"passed": True, **what()}
    except Exception as err:  # whatever it is, it is the result
        traceback.print_exc()
        CHECKS[name] = {"passed": False, "error": f"{type(err).__name__}: {err}"}
    print(name, json.dumps(CHECKS[name]), flush=True)


def agrees(folder: Path, name: str, due: dict, returns: np.ndarray, act: np.ndarray, ended: np.ndarray) -> dict:
    """What was loaded is what ssorl wrote."""
    with np.load(folder / f"{name}.expected.npz") as want:
        assert len(returns) == due["trajectories"] and len(act) == due["steps"], (len(returns), len(act))
        assert np.array_equal(act, want["act"]), "other actions"
        assert np.array_equal(ended, want["ended"]), "other endings"
        np.testing.assert_allclose(returns, want["returns"], rtol=1e-5)
    return {"trajectories": len(returns), "steps": len(act)}


def in_minari(folder: Path, name: str, due: dict) -> dict:
    import minari

    dataset = minari.load_dataset(name)
    assert dataset.total_episodes == due["trajectories"] and dataset.total_steps == due["steps"]
    episodes = list(dataset.iterate_episodes())
    for one in dataset.sample_episodes(5):
        assert all(dataset.action_space.contains(a) for a in one.actions)
        assert all(dataset.observation_space.contains(o) for o in one.observations)
        assert len(one.observations) == len(one.actions) + 1
    if due["proxies"]:
        assert sum(int(e.infos["proxy"].sum()) for e in episodes) == due["proxies"]
    long = dataset.filter_episodes(lambda e: len(e.rewards) > 100)
    assert 0 < long.total_episodes <= due["trajectories"]
    returns = np.array([np.sum(e.rewards, dtype=np.float64) for e in episodes])
    ended = np.array([bool(e.terminations[-1]) for e in episodes])
    return agrees(folder, name, due, returns, np.concatenate([e.actions for e in episodes]), ended)


def minari_arrays(name: str) -> dict:
    """As d3rlpy's own `get_minari` takes them; that one also makes the environment, which these sets do not name."""
    import minari

    episodes = list(minari.load_dataset(name).iterate_episodes())
    columns = {"observations": [e.observations[:-1] for e in episodes], "actions": [e.actions for e in episodes]}
    columns |= {"rewards": [e.rewards for e in episodes]}
    columns |= {"terminals": [e.terminations for e in episodes], "timeouts": [e.truncations for e in episodes]}
    return {k: np.concatenate(v).astype(np.float32) for k, v in columns.items()}


def d4rl_arrays(path: Path) -> dict:
    """As D4RL's own reader takes them: every dataset of the file by its name."""
    with h5py.File(path) as file:
        found: dict[str, np.ndarray] = {}
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    assert {len(x) for x in found.values()} == {len(found["rewards"])}
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    return {k: found[k].astype(np.float32) for k in names}


def in_d3rlpy(folder: Path, name: str, due: dict) -> dict:
    import d3rlpy
    import torch

    torch.set_num_threads(1)  # such small networks gain nothing from more, which on a busy machine wait for each other
    arrays = d4rl_arrays(folder / name) if name.endswith(".hdf5") else minari_arrays(name)
    dataset = d3rlpy.dataset.MDPDataset(**arrays, action_space=d3rlpy.ActionSpace.CONTINUOUS)
    returns = np.array([e.rewards.sum(dtype=np.float64) for e in dataset.episodes])
    ended = np.array([bool(e.terminated) for e in dataset.episodes])
    act = np.concatenate([e.actions for e in dataset.episodes])
    told = agrees(folder, name, due, returns, act, ended)
    algo = d3rlpy.algos.TD3PlusBCConfig(
        observation_scaler=d3rlpy.preprocessing.StandardObservationScaler(), batch_size=256
    ).create(device="cpu:0")
    settings = {"n_steps": UPDATES, "n_steps_per_epoch": 100, "show_progress": False}
    history = algo.fit(dataset, **settings, logger_adapter=d3rlpy.logging.NoopAdapterFactory())
    losses = [{k: float(v) for k, v in metrics.items() if k.endswith("loss")} for _, metrics in history]
    assert all(np.isfinite(list(loss.values())).all() for loss in losses), losses
    played = algo.predict(arrays["observations"][:1000])
    assert played.shape == (1000, act.shape[1]) and np.isfinite(played).all() and np.abs(played).max() <= 1
    fit = float(np.mean((algo.predict(arrays["observations"][::50]) - arrays["actions"][::50]) ** 2))
    return {**told, "updates": UPDATES, "last_losses": losses[-1], "mse_to_the_data": fit}


def in_onnxruntime(folder: Path, agent: str) -> dict:
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / f"{agent}.onnx", providers=["CPUExecutionProvider"])
    with np.load(folder / f"{agent}.expected.npz") as want:
        (given,) = session.get_inputs()
        act = session.run(None, {given.name: want["obs"]})[0]
        one = session.run(None, {given.name: want["obs"][:1]})[0][0]
        assert act.shape == want["act"].shape
        error = float(max(np.abs(act - want["act"]).max(), np.abs(one - want["one"]).max()))
    assert error < 1e-5, error
    return {"states": len(act), "largest_error": error}


def main() -> None:
    folder = Path(sys.argv[1])
    asked = json.loads((folder / "asked.json").read_text())
    try:
        importlib.metadata.version("ssorl")
        raise SystemExit("ssorl is installed here; this side is to do without it")
    except importlib.metadata.PackageNotFoundError:
        pass
    for name, due in asked["datasets"].items():
        if not name.endswith(".hdf5"):
            check(f"minari: {name}", lambda name=name, due=due: in_minari(folder, name, due))
        check(f"d3rlpy: {name}", lambda name=name, due=due: in_d3rlpy(folder, name, due))
    for agent in asked["policies"]:
        check(f"onnxruntime: {agent}", lambda agent=agent: in_onnxruntime(folder, agent))
    names = ("d3rlpy", "minari", "onnxruntime", "torch", "gymnasium", "numpy", "h5py")
    versions = {"python": platform.python_version(), **{n: importlib.metadata.version(n) for n in names}}
    (folder / "told.json").write_text(json.dumps({"others": versions, "checks": CHECKS}))


if __name__ == "__main__":
    main()
