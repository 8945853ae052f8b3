"""Save and load fitted inverse dynamics models: a folder with `weights.npz` (no pickles) and `idm.json` (the rest).

A loaded model gives the same labels as the saved one, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ssorl.data.formats.npz import meta_from_json
from ssorl.data.validate import escaped
from ssorl.idm import spec_class
from ssorl.idm.base import NETWORK, IdmSpec
from ssorl.idm.calibrate import Calibration, Span
from ssorl.idm.label import Labeller, Taught, Validation
from ssorl.idm.limits import Limits
from ssorl.utils.errors import DataError, SsorlError
from ssorl.utils.files import DamagedError, atomic, read_json, write_json
from ssorl.utils.identity import check_names, identifying_fields
from ssorl.utils.provenance import versions
from ssorl.utils.sealed import Sealed, sealed_or_npz, write_sealed

KIND, VERSION = "ssorl inverse dynamics model", 2
LARGEST = {"n_obs": 1_000_000, "n_act": 100_000}

Spec = TypeVar("Spec", bound=IdmSpec)


def is_model(path: Path | str) -> bool:
    """Return whether a path is a folder with a saved model."""
    return (Path(path) / "idm.json").is_file()


def save(ready: Labeller, path: Path | str) -> None:
    """Write a model to a new folder, atomically.

    Args:
        ready: the model.
        path: the folder.
    """
    idm, checked, fitted = ready.idm, ready.validation, ready.calibration
    family, details = idm.config.FAMILY, idm.about()
    about = {
        "kind": KIND,
        "version": VERSION,
        **({} if family == NETWORK else {"family": family}),
        "n_obs": idm.n_obs,
        "n_act": len(ready.meta.act_low),
        "config": identifying_fields(idm.config),
        "revision": ready.revision,
        **({"details": details} if details else {}),
        "data": asdict(ready.meta),
        "taught": ready.taught._asdict(),
        "validation": checked and {**checked._asdict(), "mse": checked.mse.tolist()},
        "calibration": fitted and asdict(fitted),
        "versions": versions(),
    }
    limits = {} if ready.limits is None else {f"limits/{k}": array for k, array in ready.limits._asdict().items()}
    arrays = {**idm.arrays(), "known/low": ready.known.low, "known/high": ready.known.high, **limits}
    with atomic(path) as fresh:
        fresh.mkdir()
        write_sealed(fresh / "weights.npz", {"kind": KIND, "version": VERSION}, arrays)
        write_json(fresh / "idm.json", about)


def load(path: Path | str) -> Labeller:
    """Load a saved model, and check that all sizes in the folder agree.

    Args:
        path: the folder that `save` wrote.

    Raises:
        SsorlError: the folder is damaged or holds something else, or the family of the model is not installed.
    """
    path = Path(path)
    with _reading(path):
        about = read_json(path / "idm.json")
        if not isinstance(about, dict) or about.get("kind") != KIND:
            raise ValueError("its idm.json does not describe a model")
        if about["version"] != VERSION:
            raise ValueError(f"its version is {escaped(about['version'])}, expected {VERSION}")
        n_obs, n_act = (_count(name, about[name]) for name in ("n_obs", "n_act"))
        config = _config(path, about)
        meta = replace(meta_from_json(json.dumps(about["data"]), str(path)), source=str(about["data"]["source"]))
        if len(meta.act_low) != n_act or len(meta.act_high) != n_act:
            raise ValueError(f"its action range has {len(meta.act_low)} numbers for {n_act} actions")
        details = about.get("details", {})
        if not isinstance(details, dict):
            raise ValueError(f"its details are {escaped(details)}, expected an object")
        with sealed_or_npz(path / "weights.npz") as file:
            read = _Arrays(file)
            idm = config.restore(n_obs, n_act, read, details)
            if (idm.n_obs, idm.n_act) != (n_obs, n_act):
                raise ValueError(f"a model of {idm.n_obs} states and {idm.n_act} actions, expected {n_obs} and {n_act}")
            limits = _limits(read, n_act)
            known = Span(read("known/low", (2, n_obs)), read("known/high", (2, n_obs)))
        checks = _validation(about, n_act), _calibration(about, n_act)
        return Labeller(idm, meta, _taught(about, n_act), known, *checks, _revision(about), limits)


def _config(path: Path, about: dict) -> IdmSpec:
    family = about.get("family", NETWORK)
    if not isinstance(family, str):
        raise ValueError(f"its family is {escaped(family)}")
    try:
        kind = spec_class(family)
    except SsorlError as err:
        raise SsorlError(f"{path}: {err}") from err
    config = config_from_json(kind, about["config"])
    try:
        config.check()
    except SsorlError as err:
        raise ValueError(str(err)) from err
    return config


class _Arrays:
    """The arrays of a saved model, each checked against what the model expects."""

    def __init__(self, file: Sealed) -> None:
        self.file = file

    @property
    def names(self) -> list[str]:
        """The names of the arrays in the file."""
        return self.file.names

    def __call__(
        self, name: str, shape: Sequence[int | None], dtype: Any = np.float32, finite: bool = True
    ) -> np.ndarray:
        array = self.file.array(name)
        fits = len(shape) == array.ndim and all(n in (None, m) for n, m in zip(shape, array.shape, strict=True))
        if not fits or (dtype is not None and array.dtype != dtype):
            sizes = ", ".join("…" if n is None else str(n) for n in shape)
            expected = f"{'' if dtype is None else np.dtype(dtype)}[{sizes}]"
            raise ValueError(f"{name} is {array.dtype}{list(array.shape)}, expected {expected}")
        if finite and not np.isfinite(array).all():
            raise ValueError(f"{name} holds numbers that are not finite")
        return array


def _limits(read: _Arrays, n_act: int) -> Limits | None:
    if "limits/low" not in read.names:
        return None
    low, high = (read(f"limits/{side}", (n_act,), finite=False) for side in ("low", "high"))
    return Limits(low, high, read("limits/reach", (2, n_act)))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise any error that a damaged or foreign folder causes as a DataError."""
    try:
        yield
    except Exception as err:  # foreign bytes can cause any error
        if isinstance(err, SsorlError) and not isinstance(err, DamagedError):
            raise
        reason = f"{err!r}" if isinstance(err, KeyError) else str(err) or type(err).__name__
        raise DataError(
            f"{path}: cannot be read as a saved inverse dynamics model ({escaped(reason)}); make one with "
            "`ssorl label --save-idm`"
        ) from err


def _revision(about: dict) -> int:
    value = about.get("revision", 0)  # version 0.1 wrote none
    if type(value) is not int or value < 0:
        raise ValueError(f"revision is {escaped(value)}")
    return value


def _count(name: str, value: object) -> int:
    if type(value) is not int or not 1 <= value <= LARGEST[name]:
        raise ValueError(f"{name} is {escaped(value)}")
    return value


def config_from_json(kind: type[Spec], values: Any) -> Spec:
    """Return the configuration of class `kind` with these JSON values.

    Args:
        kind: a dataclass whose fields all have defaults.
        values: the value of each field, of the type that its default has; fields declared by `since` may be missing.

    Raises:
        ValueError: a field is missing or unknown, or a value has another type.
    """
    defaults = {f.name: f.default for f in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(values, dict):
        raise ValueError(f"its settings are {escaped(values)}, expected an object")
    if unknown := check_names(values, kind):
        raise ValueError(f"settings of another version: {escaped(', '.join(unknown))}")
    return kind(**{name: _like(name, value, defaults[name]) for name, value in values.items()})


def _like(name: str, value: object, default: object) -> Any:
    if default is None and (value is None or isinstance(value, (bool, int, float, str))):
        return value
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(_like(name, v, default[0]) for v in value)
    if type(default) is float and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        raise ValueError(f"{name} is {escaped(value)}")
    return value


def _taught(about: dict, n_act: int) -> Taught:
    entry = about["taught"]
    variance = tuple(float(x) for x in entry["variance"])
    if len(variance) != n_act:
        raise ValueError(f"it has {len(variance)} variances for {n_act} actions")
    lowest, highest = (None if entry[k] is None else float(entry[k]) for k in ("lowest", "highest"))
    return Taught(int(entry["trajectories"]), int(entry["steps"]), lowest, highest, variance)


def _validation(about: dict, n_act: int) -> Validation | None:
    entry = about["validation"]
    if entry is None:
        return None
    mse = np.array(entry["mse"], np.float32)
    if mse.shape != (n_act,):
        raise ValueError(f"it has {mse.size} validation errors for {n_act} actions")
    return Validation(int(entry["trajectories"]), int(entry["steps"]), mse, float(entry["worst"]))


def _calibration(about: dict, n_act: int) -> Calibration | None:
    entry = about["calibration"]
    if entry is None:
        return None
    levels, before, after = (tuple(float(x) for x in entry[k]) for k in ("levels", "before", "after"))
    factors = entry["scale"]  # one number for all dimensions in older files
    scale = tuple(float(x) for x in (factors if isinstance(factors, list) else [factors] * n_act))
    if len(scale) != n_act or not all(0 < x < 1e6 for x in scale) or not len(levels) == len(before) == len(after):
        raise ValueError(f"its calibration has the factors {factors} and {len(levels)} levels for {n_act} actions")
    return Calibration(levels, before, after, scale)
