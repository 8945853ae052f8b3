"""Concatenate trajectories that a reader yields one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes, Meta
from ssorl.data.validate import READ_ALL, Raw, ReadOptions, as_floats, build, escaped, with_reader_notes
from ssorl.utils.errors import DataError


class Trajectory(NamedTuple):
    """One unchecked trajectory of a file."""

    obs: np.ndarray  # [T+1, O], or [T, O] if the last observation is unknown
    act: np.ndarray | None  # [T, A], NaN where missing; None without actions
    rew: np.ndarray  # [T]
    terminated: bool
    mismatched: int = 0  # steps whose stored next observation differs from the observation that follows


def join(trajectories: Iterable[Trajectory], meta: Meta, options: ReadOptions = READ_ALL) -> Episodes:
    """Return trajectories as Episodes; if the last observation of one is unknown, its last step is dropped.

    Args:
        trajectories: the trajectories.
        meta: metadata of the file.
        options: options of reading.

    Raises:
        DataError: a trajectory fails a check.
    """
    raw = gather(trajectories, meta, options)
    return build(*raw[:5], with_reader_notes(meta, raw.dropped, raw.mismatched), options)


def gather(trajectories: Iterable[Trajectory], meta: Meta, options: ReadOptions = READ_ALL) -> Raw:
    """Return trajectories end to end, for `build`; if the last observation of one is unknown, its last step is dropped.

    Args:
        trajectories: the trajectories.
        meta: metadata of the file.
        options: options of reading.

    Raises:
        DataError: an array is not numeric, or shapes do not match.
    """
    src, parts, dropped, mismatched = meta.source, [], 0, 0
    n_act, reference = len(meta.act_low), None  # reference: index and observation size of the first trajectory
    for e, (obs, act, rew, terminated, n_mismatched) in enumerate(trajectories, options.first):
        obs, rew = float_array(src, e, "observations", obs), float_array(src, e, "rewards", rew)
        rew = rew[:, 0] if rew.ndim == 2 and rew.shape[1] == 1 else rew
        if obs.ndim == 1:
            obs = obs[:, None]
        if obs.ndim != 2 or rew.ndim != 1:
            raise DataError(
                f"{src}: trajectory {e} has observations of shape {obs.shape} and rewards of shape {rew.shape}; "
                "give [steps, size] and [steps]"
            )
        if not options.actions:
            act = None
        if act is not None:
            act = float_array(src, e, "actions", act)
            act = act[:, None] if act.ndim == 1 else act
            if act.ndim != 2:
                raise DataError(f"{src}: trajectory {e} has actions of shape {act.shape}; give [steps, size]")
            if len(act) != len(rew):
                raise DataError(
                    f"{src}: trajectory {e} has {len(act)} actions but {len(rew)} rewards; the numbers must be equal"
                )
        if len(obs) == len(rew) == 0:  # an empty array has no valid size; a row of NaN is inserted below
            parts.append((None, None, rew, False))
            continue
        if len(obs) == len(rew):  # the last next observation is not stored: drop the step rather than invent one
            rew, terminated, dropped = rew[:-1], False, dropped + 1
            act = None if act is None else act[:-1]
        if len(obs) != len(rew) + 1:
            raise DataError(
                f"{src}: trajectory {e} has {len(obs)} observations and {len(rew)} rewards; give as many observations "
                "as rewards, or one more"
            )
        reference = reference or (e, obs.shape[1])
        if obs.shape[1] != reference[1]:
            raise DataError(
                f"{src}: trajectory {e} has observations of size {obs.shape[1]}, trajectory {reference[0]} of size "
                f"{reference[1]}; put different robots into different files"
            )
        if act is not None and n_act and act.shape[1:] != (n_act,):
            raise DataError(
                f"{src}: trajectory {e} has actions of size {act.shape[1]}, others of size {n_act}; "
                "put different robots into different files"
            )
        n_act = n_act if act is None else act.shape[1]
        mismatched += n_mismatched
        parts.append((obs, act, rew, terminated))
    if reference is None:
        raise DataError(f"{src}: holds no trajectories; nothing can be learnt from an empty file")
    lengths = np.array([len(p[2]) for p in parts])
    ended = np.zeros(int(lengths.sum()), bool)
    ended[np.cumsum(lengths)[lengths > 0] - 1] = np.array([bool(p[3]) for p in parts])[lengths > 0]
    acts = [
        np.full((n, n_act), np.nan, np.float32) if p[1] is None else p[1] for n, p in zip(lengths, parts, strict=True)
    ]
    none = np.full((1, reference[1]), np.nan, np.float32)
    obs = np.concatenate([none if p[0] is None else p[0] for p in parts])
    rew = np.concatenate([p[2] for p in parts])
    return Raw(obs, np.concatenate(acts) if n_act else None, rew, ended, lengths, dropped, mismatched)


def is_terminated(src: str, episode: int, flags: object, n_steps: int) -> bool:
    """Return whether a trajectory terminated.

    Args:
        src: name of the file, for messages.
        episode: index of the trajectory, for messages.
        flags: one flag per step [T], or None for no termination.
        n_steps: number of steps T.

    Raises:
        DataError: the number of flags is wrong, or a flag before the last step is set.
    """
    if flags is None:
        return False
    ended = float_array(src, episode, "terminals", flags).reshape(-1)
    if len(ended) != n_steps:
        raise DataError(
            f"{src}: trajectory {episode} has {len(ended)} terminals but {n_steps} rewards; the numbers must be equal"
        )
    inner = np.flatnonzero(ended[:-1])
    if inner.size:
        raise DataError(f"{src}: trajectory {episode} continues after it terminated at step {inner[0]}; cut it there")
    return bool(ended[-1:].any())


def float_array(src: str, episode: int, name: str, array: object) -> np.ndarray:
    """Return a value from a file as an array of float32, or float64 where `as_floats` needs it.

    Args:
        src: name of the file, for messages.
        episode: index of the trajectory, for messages.
        name: name of the array, for messages.
        array: the value.

    Raises:
        DataError: the value is not an array of numbers.
    """
    try:
        out = np.asarray(array)
        if out.dtype.kind not in "fiub":
            raise ValueError(f"dtype {out.dtype}")
        return as_floats(out)
    except (ValueError, TypeError) as err:
        raise DataError(
            f"{src}: the {name} of trajectory {episode} are not an array of numbers ({escaped(err)}); save them as one"
        ) from err
