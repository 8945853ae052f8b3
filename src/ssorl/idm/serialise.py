"""A fitted inverse dynamics model in a folder: `weights.npz` (nothing pickled) and `idm.json` (all the rest, to read).

A model that was saved and loaded gives the same labels, bit for bit.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ssorl.data.formats.npz import meta_from_json
from ssorl.data.formats.npz import read_array as member
from ssorl.data.stats import Standardiser
from ssorl.data.validate import escaped as shown
from ssorl.idm.calibrate import Calibration, Span
from ssorl.idm.fit import Idm
from ssorl.idm.inputs import KNOTS, Inputs
from ssorl.idm.label import Labeller, Taught, Validation
from ssorl.idm.model import IdmConfig, init, n_inputs
from ssorl.utils.errors import DataError, SsorlError
from ssorl.utils.files import DamagedError, atomic, read_json, write_json, write_npz
from ssorl.utils.provenance import versions

KIND, VERSION = "ssorl inverse dynamics model", 2
LARGEST = {"past": 1000, "future": 1000, "members": 1000, "n_obs": 1_000_000, "n_act": 100_000}


def is_model(path: Path | str) -> bool:
    """Whether it looks like a folder that `save` made."""
    return (Path(path) / "idm.json").is_file()


def save(ready: Labeller, path: Path | str) -> None:
    """Write the folder, whole or not at all."""
    idm, checked, fitted = ready.idm, ready.validation, ready.calibration
    about = {
        "kind": KIND,
        "version": VERSION,
        "n_obs": len(idm.inputs.scaler.mean),
        "n_act": len(ready.meta.act_low),
        "config": asdict(idm.config),
        "data": asdict(ready.meta),
        "taught": ready.taught._asdict(),
        "validation": checked and {**checked._asdict(), "mse": checked.mse.tolist()},
        "calibration": fitted and asdict(fitted),
        "versions": versions(),
    }
    arrays = {
        **{f"params/{k}": x for k, x in _flat(idm.params).items()},
        "scaler/mean": idm.inputs.scaler.mean,
        "scaler/std": idm.inputs.scaler.std,
        **({} if idm.inputs.knots is None else {"knots": idm.inputs.knots}),
        "diff_std": idm.diff_std,
        "known/low": ready.known.low,
        "known/high": ready.known.high,
        "curve": idm.curve,
        "best_step": idm.best_step,
        "validation": idm.validation,
    }
    with atomic(path) as fresh:
        fresh.mkdir()
        write_npz(fresh / "weights.npz", arrays)
        write_json(fresh / "idm.json", about)


def load(path: Path | str) -> Labeller:
    """Read what `save` wrote, after every size in it is found to agree with the others."""
    path = Path(path)
    with _reading(path):
        about = read_json(path / "idm.json")
        if not isinstance(about, dict) or about.get("kind") != KIND:
            raise ValueError("its idm.json is of something else")
        if about["version"] != VERSION:
            raise ValueError(f"version {shown(about['version'])} of its layout, this is {VERSION}")
        n_obs, n_act = (_count(name, about[name]) for name in ("n_obs", "n_act"))
        config = _config(about["config"])
        meta = replace(meta_from_json(json.dumps(about["data"]), str(path)), source=str(about["data"]["source"]))
        if len(meta.act_low) != n_act or len(meta.act_high) != n_act:
            raise ValueError(f"an action range of {len(meta.act_low)} numbers for {n_act} actions")
        blank = _blank(config, n_obs, n_act)
        shapes = {f"params/{k}": x.shape for k, x in _flat(blank).items()}
        shapes |= {"scaler/mean": (n_obs,), "scaler/std": (n_obs,), "diff_std": (n_inputs(config, n_obs),)}
        shapes |= {"knots": (n_obs, KNOTS)} if config.ranks else {}
        shapes |= {"known/low": (2, n_obs), "known/high": (2, n_obs)}
        with zipfile.ZipFile(path / "weights.npz") as archive:
            arrays = {name: _exactly(archive, name, shape, str(path)) for name, shape in shapes.items()}
            curve, best_step, held = (member(archive, n, str(path)) for n in ("curve", "best_step", "validation"))
        if curve.shape[:1] != (config.members,) or best_step.shape != (config.members,) or held.ndim != 1:
            raise ValueError(f"a record of training of {len(best_step)} members where {config.members} are due")
        leaves = [arrays[f"params/{k}"] for k in _flat(blank)]
        params = jax.tree.unflatten(jax.tree.structure(blank), leaves)
        scaler = Standardiser(arrays["scaler/mean"], arrays["scaler/std"])
        if not (scaler.std > 0).all() or not (arrays["diff_std"] > 0).all():
            raise ValueError("a deviation that is not positive")
        knots = arrays.get("knots")
        if knots is not None and (np.diff(knots) < 0).any():
            raise ValueError("quantiles that do not rise")
        idm = Idm(config, params, Inputs(scaler, knots), arrays["diff_std"], curve, best_step, held)
        known = Span(arrays["known/low"], arrays["known/high"])
        return Labeller(idm, meta, _taught(about, n_act), known, _validation(about, n_act), _calibration(about, n_act))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever a damaged or foreign folder leads to, as one sentence."""
    try:
        yield
    except Exception as err:  # the boundary to foreign bytes: any error there means the same to the user
        if isinstance(err, SsorlError) and not isinstance(err, DamagedError):
            raise
        reason = f"{err!r}" if isinstance(err, KeyError) else str(err) or type(err).__name__
        raise DataError(
            f"{path}: cannot be read as a saved inverse dynamics model ({shown(reason)}); make one with "
            "`ssorl label --save-idm`"
        ) from err


def _flat(tree: object) -> dict[str, np.ndarray]:
    """The leaves of nested dicts and lists by path, such as `mean/0/w`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {"/".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path): leaf for path, leaf in leaves}


def _blank(config: IdmConfig, n_obs: int, n_act: int):
    """The shapes that weights of this configuration have; nothing is computed."""
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), config.members))
    return jax.eval_shape(jax.vmap(lambda key: init(config, n_inputs(config, n_obs), n_act, key)), keys)


def _exactly(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], src: str) -> np.ndarray:
    array = member(archive, name, src)
    if array.shape != shape or array.dtype != np.float32:
        raise ValueError(f"{name} is {array.dtype}{list(array.shape)} where float32{list(shape)} is due")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds numbers that are not finite")
    return array


def _count(name: str, value: object, least: int = 1) -> int:
    if type(value) is not int or not least <= value <= LARGEST[name]:
        raise ValueError(f"{name} is {shown(value)}")
    return value


def _config(found: dict) -> IdmConfig:
    """The configuration, each value of the type that its default has."""
    defaults = {f.name: f.default for f in fields(IdmConfig)}
    if set(found) != set(defaults):
        odd = ", ".join(sorted(set(found) ^ set(defaults)))
        raise ValueError(f"settings of another version: {shown(odd)}")
    values: dict[str, Any] = {name: _like(name, found[name], default) for name, default in defaults.items()}
    for name, least in (("past", 0), ("future", 0), ("members", 1)):
        _count(name, values[name], least)
    return IdmConfig(**values)


def _like(name: str, value: object, default: object) -> Any:
    if default is None and (value is None or isinstance(value, (bool, int, float, str))):
        return value
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(_like(name, v, default[0]) for v in value)
    if type(default) is float and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        raise ValueError(f"{name} is {shown(value)}")
    return value


def _taught(about: dict, n_act: int) -> Taught:
    found = about["taught"]
    variance = tuple(float(x) for x in found["variance"])
    if len(variance) != n_act:
        raise ValueError(f"variances of {len(variance)} numbers for {n_act} actions")
    lowest, highest = float(found["lowest"]), float(found["highest"])
    return Taught(int(found["trajectories"]), int(found["steps"]), lowest, highest, variance)


def _validation(about: dict, n_act: int) -> Validation | None:
    found = about["validation"]
    if found is None:
        return None
    mse = np.array(found["mse"], np.float32)
    if mse.shape != (n_act,):
        raise ValueError(f"validation errors of {mse.size} numbers for {n_act} actions")
    return Validation(int(found["trajectories"]), int(found["steps"]), mse, float(found["worst"]))


def _calibration(about: dict, n_act: int) -> Calibration | None:
    found = about["calibration"]
    if found is None:
        return None
    levels, before, after = (tuple(float(x) for x in found[k]) for k in ("levels", "before", "after"))
    told = found["scale"]  # in older files one number, for all dimensions
    scale = tuple(float(x) for x in (told if isinstance(told, list) else [told] * n_act))
    if len(scale) != n_act or not all(0 < x < 1e6 for x in scale) or not len(levels) == len(before) == len(after):
        raise ValueError(f"a calibration by {told} of {len(levels)} levels for {n_act} actions")
    return Calibration(levels, before, after, scale)
