"""The gate: every reader builds its Episodes here, so bad data is refused once and in the same words."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import RANGE_TOL, Episodes, Meta, action_range, offsets, ranges
from ssorl.data.stats import exceeds_float32, precision_warnings
from ssorl.utils.errors import DataError, SsorlError

MIN_LENGTH = 2  # one step has no neighbour for the inverse dynamics window to look at


@dataclass(frozen=True)
class ReadOptions:
    """What the caller wants of a file besides its format."""

    min_length: int = 0  # leave shorter trajectories out
    actions: bool = True  # False: treat every action as missing, without a look at it
    first: int = 0  # number of the first trajectory, where a file is read in parts: complaints name the whole file's


READ_ALL = ReadOptions()


class Raw(NamedTuple):
    """Some trajectories of a file end to end, as `build` takes them; nothing is checked yet."""

    obs: np.ndarray  # [S+E, O]
    act: np.ndarray | None  # [S, A]
    rew: np.ndarray  # [S]
    terminated: np.ndarray  # [S] bool
    lengths: np.ndarray  # [E]
    dropped: int = 0  # trajectories that lost their last step, if the metadata does not say so already
    mismatched: int = 0  # steps whose next state is stored twice and not the same
    number: np.ndarray | None = None  # [E], of each trajectory in the file, if some between them are left out


@contextmanager
def parser_errors(source: str, kind: str) -> Iterator[None]:
    """Turn whatever a parser throws at a damaged or foreign file into one sentence."""
    try:
        # What a parser grumbles about on the way is no sentence for a user; `build` tells of numbers past float32.
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except SsorlError:
        raise
    except FileNotFoundError as err:
        raise DataError(f"{source}: no such file; check the name") from err
    except PermissionError as err:
        raise DataError(f"{source}: may not be read ({err.strerror}); change its permissions or copy it") from err
    except MemoryError as err:
        raise DataError(f"{source}: asks for more memory than there is; is it a whole {kind} file?") from err
    except Exception as err:  # the boundary to foreign bytes: any parser error means the same to the user
        reason = escaped((str(err).strip().splitlines() or [type(err).__name__])[0])
        raise DataError(
            f"{source}: cannot be read as {kind} ({reason}); the file may be cut short, damaged or of another "
            "format: fetch it again or name its format with --format"
        ) from err


def first_bytes(path: Path, n: int) -> bytes:
    """The first bytes of a file; none of anything else."""
    if not path.is_file():
        return b""
    with parser_errors(str(path), "a file"), path.open("rb") as file:
        return file.read(n)


def files_below(folder: Path) -> list[Path]:
    """Every file below a folder, sorted; links are followed, and no folder is entered twice."""
    found, seen = [], set()
    for at, inner, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(at)
        if real in seen:
            inner.clear()
        else:
            seen.add(real)
            inner.sort()
            found += [Path(at, name) for name in names]
    return sorted(found)


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
    """Episodes from flat arrays after every check; `act=None` means that no action is known.

    Where `meta` gives no action range, one is assumed (see `action_range`) and marked as such.
    Trajectories shorter than `wish.min_length` are left out, which is noted. Complaints name a trajectory by its
    `number` in the file, [E]; where none are given they count on from `wish.first`.
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
        raise DataError(f"{src}: actions have shape {act.shape}; give one vector of numbers a step")
    if rew.ndim != 1 or terminated.ndim != 1:
        raise DataError(
            f"{src}: rewards have shape {rew.shape} and terminals {terminated.shape}; give one number of each a step"
        )
    for name, array, want in (
        ("observations", obs, n_steps + len(lengths)),
        ("actions", act, n_steps),
        ("rewards", rew, n_steps),
        ("terminals", terminated, n_steps),
    ):
        if len(array) != want:
            more = " (observations: one more than steps in each trajectory)" if array is obs else ""
            raise DataError(f"{src}: {len(array)} {name} where {want} are due; the arrays must be equally long{more}")
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
        meta = meta.with_notes(f"{short.sum()} trajectories shorter than {options.min_length} steps were left out")
        obs, act, rew, terminated = obs[rows], act[steps], rew[steps], terminated[steps]
        number, lengths, start = number[keep], lengths[keep], offsets(lengths[keep])
    if (lengths < MIN_LENGTH).any():
        worst = int(np.argmax(lengths < MIN_LENGTH))
        why = "" if lengths[worst] else " (it is empty, or no state follows its only one)"
        raise DataError(
            f"{src}: trajectory {number[worst]} has {lengths[worst]} step(s){why} and at least {MIN_LENGTH} are "
            f"needed; leave such trajectories out with --min-length {MIN_LENGTH}"
        )
    whole = _finite(src, "observation", obs, start + np.arange(len(start)), number)
    meta, obs = meta.with_notes(*precision_warnings(obs)), whole
    rew = _finite(src, "reward", rew[:, None], start, number)[:, 0]
    ended = np.flatnonzero(terminated)
    inner = ended[~np.isin(ended, start[1:] - 1)]
    if len(inner):
        e, t = _where(inner[0], start, number)
        raise DataError(f"{src}: trajectory {e} goes on after it terminated at step {t}; cut it there")
    act = _whole(src, act, start, number)
    if not meta.act_low:
        meta = replace(meta, **action_range(act))
    return Episodes(
        obs=obs,
        act=_within(src, act, start, meta, number),
        rew=rew,
        terminated=np.ascontiguousarray(terminated, bool),
        start=start,
        meta=meta,
    )


def with_reader_notes(meta: Meta, dropped: int = 0, mismatched: int = 0) -> Meta:
    """What to say where so many trajectories lost their last step and so many steps have two next states."""
    if dropped:
        meta = meta.with_notes(
            f"the last step of {dropped} trajectories was dropped: the state after it was not stored; "
            "whether a task ended there is lost with it, so critics expect too much near such an end"
        )
    if mismatched:
        meta = meta.with_notes(
            f"next_observations is not the observation that follows at {mismatched} steps inside trajectories: the "
            "observation was taken; check where trajectories begin"
        )
    return meta


def escaped(text: object) -> str:
    """Foreign text made fit for one line of a sentence."""
    return str(text).encode("unicode_escape").decode()[:200]


def as_floats(values: np.ndarray) -> np.ndarray:
    """As float32, or as float64 what float32 cannot hold: `build` makes that float32 too, and tells what was lost."""
    return values.astype(np.float64 if exceeds_float32(values.dtype) else np.float32, copy=False)


def _where(step: int, start: np.ndarray, number: np.ndarray) -> tuple[int, int]:
    """The number of the episode that a flat index is in, and its position there."""
    e = int(np.searchsorted(start, step, side="right")) - 1
    return int(number[e]), int(step - start[e])


def _finite(src: str, what: str, values: np.ndarray, start: np.ndarray, number: np.ndarray) -> np.ndarray:
    """The values as float32, after each is found to be a number that float32 can hold."""
    with np.errstate(over="ignore"):
        out = np.ascontiguousarray(values, np.float32)
    good = np.isfinite(out)
    if good.all():
        return out
    row, dim = np.argwhere(~good)[0]
    e, t = _where(row, start, number)
    raise DataError(
        f"{src}: trajectory {e} has the {what} {values[row, dim]} at step {t}, dimension {dim}; "
        "repair it or leave the trajectory out (only actions may be missing)"
    )


def _whole(src: str, act: np.ndarray, start: np.ndarray, number: np.ndarray) -> np.ndarray:
    """The actions as float32, after each is found to be there in full or not at all."""
    with np.errstate(over="ignore"):
        out = np.ascontiguousarray(act, np.float32)
    missing = np.isnan(out)
    half = missing.any(1) & ~missing.all(1)
    if half.any():
        e, t = _where(int(np.argmax(half)), start, number)
        raise DataError(
            f"{src}: trajectory {e} has only part of its action at step {t}; give the whole action or NaN throughout"
        )
    infinite = np.isinf(out)
    if infinite.any():
        row, dim = np.argwhere(infinite)[0]
        e, t = _where(row, start, number)
        raise DataError(
            f"{src}: trajectory {e} has the action {act[row, dim]:g} at step {t}, dimension {dim}; correct it, or "
            "write NaN where no action is known"
        )
    return out


def declare_range(eps: Episodes, low: Sequence[float], high: Sequence[float]) -> Episodes:
    """The same trajectories with the action range that their robot has; one number stands for every dimension."""
    src, n = eps.meta.source, eps.n_act
    if not n:
        raise DataError(f"{src}: has no actions whose range could be declared; leave the range out")
    low, high = (tuple(map(float, side)) * (n if len(side) == 1 else 1) for side in (low, high))
    if len(low) != n or len(high) != n:
        raise DataError(f"{src}: a range of {len(low)} dimensions was given for actions of {n}; give one, or one each")
    meta = replace(eps.meta, act_low=low, act_high=high, act_range="declared")
    return replace(eps, act=_within(src, eps.act, eps.start, meta, np.arange(len(eps))), meta=meta)


def _within(src: str, act: np.ndarray, start: np.ndarray, meta: Meta, number: np.ndarray) -> np.ndarray:
    """Actions checked against their range; what is off by rounding is put on the bound."""
    low, high = np.array(meta.act_low, np.float64), np.array(meta.act_high, np.float64)
    if low.shape != (act.shape[1],) or high.shape != low.shape or not (low <= high).all():
        raise DataError(
            f"{src}: the declared action range {meta.act_low}…{meta.act_high} does not fit {act.shape[1]} dimensions; "
            "correct it or leave it out"
        )
    slack = RANGE_TOL * np.maximum(high - low, 1e-6)
    outside = (act < low - slack) | (act > high + slack)
    if outside.any():
        row, dim = np.argwhere(outside)[0]
        e, t = _where(row, start, number)
        raise DataError(
            f"{src}: trajectory {e} has the action {act[row, dim]:g} at step {t}, dimension {dim}, outside "
            f"[{low[dim]:g}, {high[dim]:g}]; correct it or the declared range"
        )
    low32, high32 = low.astype(np.float32), high.astype(np.float32)
    if ((act < low32) | (act > high32)).any():
        act = np.clip(act, low32, high32)
    return act
