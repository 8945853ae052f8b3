"""The gate: every reader builds its Episodes here, so bad data is refused once and in the same words."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import ROUNDING, Episodes, Meta, action_range, offsets, ranges
from ssorl.errors import DataError, SsorlError

MIN_LENGTH = 2  # one step has no neighbour for the inverse dynamics window to look at


@dataclass(frozen=True)
class Wish:
    """What the caller wants of a file besides its format."""

    min_length: int = 0  # leave shorter trajectories out
    actions: bool = True  # False: treat every action as missing, without a look at it
    first: int = 0  # number of the first trajectory, where a file is read in parts: complaints name the whole file's


ANY = Wish()


class Trajectory(NamedTuple):
    """One trajectory as a reader finds it."""

    obs: np.ndarray  # [T+1, O], or [T, O] where the last observation is unknown
    act: np.ndarray | None  # [T, A], NaN where missing; None = no actions at all
    rew: np.ndarray  # [T]
    terminated: bool


class Raw(NamedTuple):
    """Some trajectories of a file end to end, as `build` takes them; nothing is checked yet."""

    obs: np.ndarray  # [S+E, O]
    act: np.ndarray | None  # [S, A]
    rew: np.ndarray  # [S]
    terminated: np.ndarray  # [S] bool
    lengths: np.ndarray  # [E]
    dropped: int = 0  # trajectories that lost their last step, if the metadata does not say so already


@contextmanager
def reading(source: str, kind: str) -> Iterator[None]:
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
        reason = shown((str(err).strip().splitlines() or [type(err).__name__])[0])
        raise DataError(
            f"{source}: cannot be read as {kind} ({reason}); the file may be cut short, damaged or of another "
            "format: fetch it again or name its format with --format"
        ) from err


def head(path: Path, n: int) -> bytes:
    """The first bytes of a file; none of anything else."""
    if not path.is_file():
        return b""
    with reading(str(path), "a file"), path.open("rb") as file:
        return file.read(n)


def build(
    obs: np.ndarray,
    act: np.ndarray | None,
    rew: np.ndarray,
    terminated: np.ndarray,
    lengths: np.ndarray,
    meta: Meta,
    wish: Wish = ANY,
) -> Episodes:
    """Episodes from flat arrays after every check; `act=None` means that no action is known.

    Where `meta` gives no action range, one is assumed (see `action_range`) and marked as such.
    Trajectories shorter than `wish.min_length` are left out, which is noted.
    """
    src = meta.source
    if len(lengths) == 0 or len(rew) == 0:
        raise DataError(f"{src}: holds no trajectories; nothing can be learnt from an empty file")
    n_steps = int(lengths.sum())
    if obs.ndim != 2 or obs.shape[1] == 0:
        raise DataError(
            f"{src}: observations have shape {obs.shape}; flatten each one to a vector (images are not read)"
        )
    if act is None or not wish.actions:
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
    start = offsets(lengths)
    short = lengths < wish.min_length
    if short.all():
        raise DataError(
            f"{src}: all {len(lengths)} trajectories are shorter than {wish.min_length} steps (the longest has "
            f"{lengths.max()}); lower --min-length"
        )
    if short.any():
        keep = np.flatnonzero(~short)
        steps, rows = ranges(start[keep], lengths[keep]), ranges(start[keep] + keep, lengths[keep] + 1)
        meta = meta.noting(f"{short.sum()} trajectories shorter than {wish.min_length} steps were left out")
        kept = replace(wish, min_length=0)
        return build(obs[rows], act[steps], rew[steps], terminated[steps], lengths[keep], meta, kept)
    if (lengths < MIN_LENGTH).any():
        worst = int(np.argmax(lengths < MIN_LENGTH))
        raise DataError(
            f"{src}: trajectory {wish.first + worst} has {lengths[worst]} step(s) and at least {MIN_LENGTH} are "
            f"needed; leave such trajectories out with --min-length {MIN_LENGTH}"
        )
    obs = _finite(src, "observation", obs, start + np.arange(len(start)), wish.first)
    rew = _finite(src, "reward", rew[:, None], start, wish.first)[:, 0]
    ended = np.flatnonzero(terminated)
    inner = ended[~np.isin(ended, start[1:] - 1)]
    if len(inner):
        e, t = _where(inner[0], start, wish.first)
        raise DataError(f"{src}: trajectory {e} goes on after it terminated at step {t}; cut it there")
    act = _whole(src, act, start, wish.first)
    if not meta.act_low:
        meta = replace(meta, **action_range(act))
    return Episodes(
        obs=obs,
        act=_within(src, act, start, meta, wish.first),
        rew=rew,
        terminated=np.ascontiguousarray(terminated, bool),
        start=start,
        meta=meta,
    )


def join(trajectories: Iterable[Trajectory], meta: Meta, wish: Wish = ANY) -> Episodes:
    """Episodes from trajectories one by one; those whose last observation is unknown lose their last step."""
    raw = gather(trajectories, meta, wish)
    if raw.dropped:
        meta = meta.noting(dropped_note(raw.dropped))
    return build(raw.obs, raw.act, raw.rew, raw.terminated, raw.lengths, meta, wish)


def gather(trajectories: Iterable[Trajectory], meta: Meta, wish: Wish = ANY) -> Raw:
    """Trajectories end to end, each found to have the shape of the others."""
    src, parts, dropped = meta.source, [], 0
    n_act = len(meta.act_low)
    for e, (obs, act, rew, terminated) in enumerate(trajectories, wish.first):
        obs, rew = floats(src, e, "observations", obs), floats(src, e, "rewards", rew)
        rew = rew[:, 0] if rew.ndim == 2 and rew.shape[1] == 1 else rew
        if obs.ndim == 1:
            obs = obs[:, None]
        if obs.ndim != 2 or rew.ndim != 1:
            raise DataError(
                f"{src}: trajectory {e} has observations of shape {obs.shape} and rewards of shape {rew.shape}; "
                "give [steps, size] and [steps]"
            )
        if not wish.actions:
            act = None
        if act is not None:
            act = floats(src, e, "actions", act)
            act = act[:, None] if act.ndim == 1 else act
            if act.ndim != 2:
                raise DataError(f"{src}: trajectory {e} has actions of shape {act.shape}; give [steps, size]")
            if len(act) != len(rew):
                raise DataError(
                    f"{src}: trajectory {e} has {len(act)} actions but {len(rew)} rewards; they must be equally many"
                )
        if len(obs) == len(rew):  # the state after the last action was never stored: drop, never invent
            rew, terminated, dropped = rew[:-1], False, dropped + 1
            act = None if act is None else act[:-1]
        if len(obs) != len(rew) + 1:
            raise DataError(
                f"{src}: trajectory {e} has {len(obs)} observations and {len(rew)} rewards; "
                "as many, or one more observation, are due"
            )
        if parts and obs.shape[1] != parts[0][0].shape[1]:
            raise DataError(
                f"{src}: trajectory {e} has observations of size {obs.shape[1]}, trajectory {wish.first} of size "
                f"{parts[0][0].shape[1]}; put different robots into different files"
            )
        if act is not None and n_act and act.shape[1:] != (n_act,):
            raise DataError(
                f"{src}: trajectory {e} has actions of shape {act.shape[1:]}, others of ({n_act},); "
                "put different robots into different files"
            )
        n_act = n_act if act is None else act.shape[1]
        parts.append((obs, act, rew, terminated))
    if not parts:
        raise DataError(f"{src}: holds no trajectories; nothing can be learnt from an empty file")
    lengths = np.array([len(p[2]) for p in parts])
    ended = np.zeros(int(lengths.sum()), bool)
    ended[np.cumsum(lengths)[lengths > 0] - 1] = np.array([bool(p[3]) for p in parts])[lengths > 0]
    acts = [
        np.full((n, n_act), np.nan, np.float32) if p[1] is None else p[1] for n, p in zip(lengths, parts, strict=True)
    ]
    obs, rew = np.concatenate([p[0] for p in parts]), np.concatenate([p[2] for p in parts])
    return Raw(obs, np.concatenate(acts) if n_act else None, rew, ended, lengths, dropped)


def dropped_note(n: int) -> str:
    """What to say where the last step of `n` trajectories could not be kept."""
    return f"the last step of {n} trajectories was dropped: the state after it was not stored"


def shown(text: object) -> str:
    """Foreign text made fit for one line of a sentence."""
    return str(text).encode("unicode_escape").decode()[:200]


def ending(src: str, episode: int, flags: object, n_steps: int) -> bool:
    """Whether a trajectory terminated, from one flag a step (or none at all)."""
    if flags is None:
        return False
    ended = floats(src, episode, "terminals", flags).reshape(-1)
    if len(ended) != n_steps:
        raise DataError(
            f"{src}: trajectory {episode} has {len(ended)} terminals but {n_steps} rewards; they must be equally many"
        )
    inner = np.flatnonzero(ended[:-1])
    if inner.size:
        raise DataError(f"{src}: trajectory {episode} goes on after it terminated at step {inner[0]}; cut it there")
    return bool(ended[-1:].any())


def floats(src: str, episode: int, what: str, array: object) -> np.ndarray:
    """What a reader found for one trajectory as float32, or a sentence that names it."""
    try:
        out = np.asarray(array)
        if out.dtype.kind not in "fiub":
            raise ValueError(f"dtype {out.dtype}")
        return out.astype(np.float32, copy=False)
    except (ValueError, TypeError) as err:
        raise DataError(
            f"{src}: the {what} of trajectory {episode} are not an array of numbers ({shown(err)}); save them as one"
        ) from err


def _where(step: int, start: np.ndarray, first: int) -> tuple[int, int]:
    """Episode, counted from `first`, and position inside it of a flat index."""
    e = int(np.searchsorted(start, step, side="right")) - 1
    return first + e, int(step - start[e])


def _finite(src: str, what: str, values: np.ndarray, start: np.ndarray, first: int) -> np.ndarray:
    """The values as float32, after each is found to be a number that float32 can hold."""
    with np.errstate(over="ignore"):
        out = np.ascontiguousarray(values, np.float32)
    good = np.isfinite(out)
    if good.all():
        return out
    row, dim = np.argwhere(~good)[0]
    e, t = _where(row, start, first)
    raise DataError(
        f"{src}: trajectory {e} has the {what} {values[row, dim]} at step {t}, dimension {dim}; "
        "repair it or leave the trajectory out (only actions may be missing)"
    )


def _whole(src: str, act: np.ndarray, start: np.ndarray, first: int) -> np.ndarray:
    """The actions as float32, after each is found to be there in full or not at all."""
    with np.errstate(over="ignore"):
        out = np.ascontiguousarray(act, np.float32)
    missing = np.isnan(out)
    half = missing.any(1) & ~missing.all(1)
    if half.any():
        e, t = _where(int(np.argmax(half)), start, first)
        raise DataError(
            f"{src}: trajectory {e} has only part of its action at step {t}; give the whole action or NaN throughout"
        )
    infinite = np.isinf(out)
    if infinite.any():
        row, dim = np.argwhere(infinite)[0]
        e, t = _where(row, start, first)
        raise DataError(
            f"{src}: trajectory {e} has the action {act[row, dim]:g} at step {t}, dimension {dim}; correct it, or "
            "write NaN where no action is known"
        )
    return out


def _within(src: str, act: np.ndarray, start: np.ndarray, meta: Meta, first: int) -> np.ndarray:
    """Actions checked against their range; what is off by rounding is put on the bound."""
    low, high = np.array(meta.act_low, np.float64), np.array(meta.act_high, np.float64)
    if low.shape != (act.shape[1],) or high.shape != low.shape or not (low <= high).all():
        raise DataError(
            f"{src}: the declared action range {meta.act_low}…{meta.act_high} does not fit {act.shape[1]} dimensions; "
            "correct it or leave it out"
        )
    slack = ROUNDING * np.maximum(high - low, 1e-6)
    outside = (act < low - slack) | (act > high + slack)
    if outside.any():
        row, dim = np.argwhere(outside)[0]
        e, t = _where(row, start, first)
        raise DataError(
            f"{src}: trajectory {e} has the action {act[row, dim]:g} at step {t}, dimension {dim}, outside "
            f"[{low[dim]:g}, {high[dim]:g}]; correct it or the declared range"
        )
    low32, high32 = low.astype(np.float32), high.astype(np.float32)
    if ((act < low32) | (act > high32)).any():
        act = np.clip(act, low32, high32)
    return act
