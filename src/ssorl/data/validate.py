"""Check the arrays that readers return, and build Episodes from them: all formats raise the same errors."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import RANGE_TOL, Episodes, Meta, action_range, offsets, ranges
from ssorl.data.options import READ_ALL, ReadOptions
from ssorl.data.stats import exceeds_float32, precision_warnings
from ssorl.utils.errors import DataError, SsorlError

MIN_LENGTH = 2  # steps; the window of the inverse dynamics model needs a neighbouring step


class Raw(NamedTuple):
    """Unchecked trajectories of a file, end to end: the input of `build`."""

    obs: np.ndarray  # [S+E, O]
    act: np.ndarray | None  # [S, A]
    rew: np.ndarray  # [S], NaN throughout a trajectory without rewards
    terminated: np.ndarray  # [S] bool
    lengths: np.ndarray  # [E]
    dropped: int = 0  # trajectories that lost their last step; 0 if the metadata has a note about it
    mismatched: int = 0  # steps whose stored next observation differs from the observation that follows
    number: np.ndarray | None = None  # [E] index of each trajectory in the file; None: consecutive


@contextmanager
def parser_errors(source: str, kind: str) -> Iterator[None]:
    """Turn every error of a parser in the block into DataError, and suppress its warnings.

    Args:
        source: the file, for messages.
        kind: what it should be, such as "a D4RL HDF5 file", for messages.

    Raises:
        DataError: the file is missing, unreadable, damaged, or of another kind.
    """
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():  # `build` reports values beyond float32
            warnings.simplefilter("ignore")
            yield
    except SsorlError:
        raise
    except FileNotFoundError as err:
        raise DataError(f"{source}: no such file; check the name") from err
    except PermissionError as err:
        raise DataError(f"{source}: may not be read ({err.strerror}); change its permissions or copy it") from err
    except MemoryError as err:
        raise DataError(
            f"{source}: reading it as {kind} needs more memory than is available; if the file may be damaged, "
            "fetch it again"
        ) from err
    except Exception as err:  # untrusted bytes: every error here means that the file cannot be read
        reason = escaped((str(err).strip().splitlines() or [type(err).__name__])[0])
        raise DataError(
            f"{source}: cannot be read as {kind} ({reason}); the file may be cut short, damaged or of another "
            "format: fetch it again or name its format with --format"
        ) from err


def first_bytes(path: Path, n: int) -> bytes:
    """Return the first bytes of a file; b"" if the path is not a file.

    Args:
        path: the path.
        n: largest number of bytes to return.

    Raises:
        DataError: the file cannot be read.
    """
    if not path.is_file():
        return b""
    with parser_errors(str(path), "a file"), path.open("rb") as file:
        return file.read(n)


def files_below(folder: Path) -> list[Path]:
    """Return all files in a folder and its subfolders, sorted; links are followed, each folder is entered once."""
    files, visited = [], set()
    for parent, subfolders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in visited:
            subfolders.clear()
        else:
            visited.add(real)
            subfolders.sort()
            files += [Path(parent, name) for name in names]
    return sorted(files)


def build(
    obs: np.ndarray,
    act: np.ndarray | None,
    rew: np.ndarray,
    terminated: np.ndarray,
    lengths: np.ndarray,
    meta: Meta,
    options: ReadOptions = READ_ALL,
    number: np.ndarray | None = None,
) -> Episodes:
    """Check the arrays of a file and return them as Episodes.

    Args:
        obs: observations [S+E, O].
        act: actions [S, A], NaN where missing; None if no action is known.
        rew: rewards [S], NaN throughout a trajectory without rewards.
        terminated: [S], whether each step ended the task.
        lengths: steps of each trajectory [E].
        meta: metadata; if it has no action range, `action_range` provides one.
        options: trajectories shorter than `min_length` are dropped, which the notes report.
        number: index of each trajectory in the file [E], for messages; by default they count up from `options.first`.

    Raises:
        DataError: shapes do not match, a value is not finite, an action is out of range or has only some of its
            numbers, a trajectory is too short or continues after it terminated.
    """
    src = meta.source
    if len(lengths) == 0 or len(rew) == 0:
        raise DataError(f"{src}: holds no trajectories; nothing can be learnt from an empty file")
    n_steps = int(lengths.sum())
    if obs.ndim != 2 or obs.shape[1] == 0:
        raise DataError(
            f"{src}: observations have shape {obs.shape}; flatten each one to a vector (images are not read)"
        )
    if act is None or not options.actions:
        act = np.full((n_steps, len(meta.act_low)), np.nan, np.float32)
    if act.ndim != 2:
        raise DataError(f"{src}: actions have shape {act.shape}; give one vector of numbers for each step")
    if rew.ndim != 1 or terminated.ndim != 1:
        raise DataError(
            f"{src}: rewards have shape {rew.shape} and terminals {terminated.shape}; give one number of each per step"
        )
    for name, array, expected in (
        ("observations", obs, n_steps + len(lengths)),
        ("actions", act, n_steps),
        ("rewards", rew, n_steps),
        ("terminals", terminated, n_steps),
    ):
        if len(array) != expected:
            more = " (observations: one more than steps in each trajectory)" if array is obs else ""
            raise DataError(
                f"{src}: {len(array)} {name} where {expected} are expected; the arrays must be equally long{more}"
            )
    start, number = offsets(lengths), options.first + np.arange(len(lengths)) if number is None else number
    short = lengths < options.min_length
    if short.all():
        raise DataError(
            f"{src}: all {len(lengths)} trajectories are shorter than {options.min_length} steps (the longest has "
            f"{lengths.max()}); lower --min-length"
        )
    if short.any():
        keep = np.flatnonzero(~short)
        steps, rows = ranges(start[keep], lengths[keep]), ranges(start[keep] + keep, lengths[keep] + 1)
        meta = meta.with_notes(f"{short.sum()} trajectories shorter than {options.min_length} steps were dropped")
        obs, act, rew, terminated = obs[rows], act[steps], rew[steps], terminated[steps]
        number, lengths, start = number[keep], lengths[keep], offsets(lengths[keep])
    if (lengths < MIN_LENGTH).any():
        worst = int(np.argmax(lengths < MIN_LENGTH))
        why = "" if lengths[worst] else " (it is empty, or its only step has no next observation)"
        raise DataError(
            f"{src}: trajectory {number[worst]} has {lengths[worst]} step(s){why} but needs at least {MIN_LENGTH}; "
            f"leave such trajectories out with --min-length {MIN_LENGTH}"
        )
    finite_obs = _finite(src, "observation", obs, start + np.arange(len(start)), number)
    meta, obs = meta.with_notes(*precision_warnings(obs)), finite_obs
    rew = _check_rewards(src, rew, start, number)
    ended = np.flatnonzero(terminated)
    inner = ended[~np.isin(ended, start[1:] - 1)]
    if len(inner):
        e, t = _locate(inner[0], start, number)
        raise DataError(f"{src}: trajectory {e} continues after it terminated at step {t}; cut it there")
    act = _check_actions(src, act, start, number)
    if not meta.act_low:
        meta = replace(meta, **action_range(act))
    return Episodes(
        obs=obs,
        act=_clip_to_range(src, act, start, meta, number),
        rew=rew,
        terminated=np.ascontiguousarray(terminated, bool),
        start=start,
        meta=meta,
    )


def with_reader_notes(meta: Meta, dropped: int = 0, mismatched: int = 0) -> Meta:
    """Return metadata with notes about incomplete or contradictory next observations.

    Args:
        meta: the metadata.
        dropped: number of trajectories that lost their last step.
        mismatched: number of steps whose stored next observation differs from the observation that follows.
    """
    if dropped:
        meta = meta.with_notes(
            f"the last step of {dropped} trajectories was dropped because its next observation is not stored; the "
            "information whether the task ended there is lost too, so critics overestimate values near such ends"
        )
    if mismatched:
        meta = meta.with_notes(
            f"next_observations differs from the observation that follows at {mismatched} steps inside trajectories, "
            "and the latter was used; check where trajectories begin"
        )
    return meta


def escaped(text: object) -> str:
    """Return untrusted text for use in a message: one line of ASCII, at most 200 characters."""
    return str(text).encode("unicode_escape").decode()[:200]


def as_floats(values: np.ndarray) -> np.ndarray:
    """Return values as float32, or as float64 if float32 might lose precision (`build` converts and reports this)."""
    return values.astype(np.float64 if exceeds_float32(values.dtype) else np.float32, copy=False)


def _locate(row: int, start: np.ndarray, number: np.ndarray) -> tuple[int, int]:
    """Return the number of the trajectory that a row belongs to, and the row's position in it."""
    e = int(np.searchsorted(start, row, side="right")) - 1
    return int(number[e]), int(row - start[e])


def _finite(src: str, name: str, values: np.ndarray, start: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Return values as float32; raise if one is NaN, infinite or too large for float32."""
    with np.errstate(over="ignore"):
        out = np.ascontiguousarray(values, np.float32)
    finite = np.isfinite(out)
    if finite.all():
        return out
    row, dim = np.argwhere(~finite)[0]
    e, t = _locate(row, start, number)
    raise DataError(
        f"{src}: trajectory {e} has the {name} {values[row, dim]} at step {t}, dimension {dim}; "
        "repair it or leave the trajectory out (only actions, or all rewards of a trajectory, may be missing)"
    )


def _check_rewards(src: str, rew: np.ndarray, start: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Return the rewards as float32; raise DataError if one is not finite in a trajectory that has rewards."""
    missing = np.isnan(rew)
    if not missing.any():
        return _finite(src, "reward", rew[:, None], start, number)[:, 0]
    without = np.repeat(np.logical_and.reduceat(missing, start[:-1]), np.diff(start))
    out = _finite(src, "reward", np.where(without, 0, rew)[:, None], start, number)[:, 0]
    out[without] = np.nan
    return out


def _check_actions(src: str, act: np.ndarray, start: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Return actions as float32; raise if one is infinite or has NaN in only some dimensions."""
    with np.errstate(over="ignore"):
        out = np.ascontiguousarray(act, np.float32)
    missing = np.isnan(out)
    partial = missing.any(1) & ~missing.all(1)
    if partial.any():
        e, t = _locate(int(np.argmax(partial)), start, number)
        raise DataError(
            f"{src}: trajectory {e} has only part of its action at step {t}; give the whole action, or NaN in every "
            "dimension"
        )
    infinite = np.isinf(out)
    if infinite.any():
        row, dim = np.argwhere(infinite)[0]
        e, t = _locate(row, start, number)
        raise DataError(
            f"{src}: trajectory {e} has the action {act[row, dim]:g} at step {t}, dimension {dim}; correct it, or "
            "write NaN where no action is known"
        )
    return out


def declare_range(eps: Episodes, low: Sequence[float], high: Sequence[float]) -> Episodes:
    """Return the same trajectories with a declared action range.

    Args:
        eps: the trajectories.
        low: lowest action, one number for each dimension or one for all.
        high: highest action, likewise.

    Raises:
        DataError: the sizes do not match, or an action is outside the range.
    """
    src, n = eps.meta.source, eps.n_act
    if not n:
        raise DataError(f"{src}: has no actions, so they cannot have a range; leave the range out")
    low, high = (tuple(map(float, side)) * (n if len(side) == 1 else 1) for side in (low, high))
    if len(low) != n or len(high) != n:
        raise DataError(
            f"{src}: the range has {len(low)} dimensions but the actions have {n}; give one pair of numbers for all "
            "dimensions or one for each"
        )
    meta = replace(eps.meta, act_low=low, act_high=high, act_range="declared")
    return replace(eps, act=_clip_to_range(src, eps.act, eps.start, meta, np.arange(len(eps))), meta=meta)


def _clip_to_range(src: str, act: np.ndarray, start: np.ndarray, meta: Meta, number: np.ndarray) -> np.ndarray:
    """Return actions with rounding errors beyond their range removed; raise if an action is farther outside."""
    low, high = np.array(meta.act_low, np.float64), np.array(meta.act_high, np.float64)
    if low.shape != (act.shape[1],) or high.shape != low.shape or not (low <= high).all():
        raise DataError(
            f"{src}: the declared action range {meta.act_low}…{meta.act_high} does not fit actions with "
            f"{act.shape[1]} dimensions; correct it or leave it out"
        )
    slack = RANGE_TOL * np.maximum(high - low, 1e-6)
    outside = (act < low - slack) | (act > high + slack)
    if outside.any():
        row, dim = np.argwhere(outside)[0]
        e, t = _locate(row, start, number)
        raise DataError(
            f"{src}: trajectory {e} has the action {act[row, dim]:g} at step {t}, dimension {dim}, outside "
            f"[{low[dim]:g}, {high[dim]:g}]; correct it or the declared range"
        )
    low32, high32 = low.astype(np.float32), high.astype(np.float32)
    if ((act < low32) | (act > high32)).any():
        act = np.clip(act, low32, high32)
    return act
