"""Trajectories that a file holds one by one, put end to end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ssorl.data.episodes import Episodes, Meta
from ssorl.data.validate import READ_ALL, Raw, ReadOptions, as_floats, build, escaped, with_reader_notes
from ssorl.utils.errors import DataError


class Trajectory(NamedTuple):
    """One trajectory as a reader finds it."""

    obs: np.ndarray  # [T+1, O], or [T, O] where the last observation is unknown
    act: np.ndarray | None  # [T, A], NaN where missing; None = no actions at all
    rew: np.ndarray  # [T]
    terminated: bool
    mismatched: int = 0  # steps whose next state is stored twice and not the same


def join(trajectories: Iterable[Trajectory], meta: Meta, options: ReadOptions = READ_ALL) -> Episodes:
    """Episodes from trajectories one by one; those whose last observation is unknown lose their last step."""
    raw = gather(trajectories, meta, options)
    return build(*raw[:5], with_reader_notes(meta, raw.dropped, raw.mismatched), options)


def gather(trajectories: Iterable[Trajectory], meta: Meta, options: ReadOptions = READ_ALL) -> Raw:
    """Trajectories end to end, each found to have the shape of the others."""
    src, parts, dropped, mismatched = meta.source, [], 0, 0
    n_act, sized = len(meta.act_low), None  # sized: the first trajectory that is not empty
    for e, (obs, act, rew, terminated, n_torn) in enumerate(trajectories, options.first):
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
                    f"{src}: trajectory {e} has {len(act)} actions but {len(rew)} rewards; they must be equally many"
                )
        if len(obs) == len(rew) == 0:  # of no size that could be trusted: a row is made for it below
            parts.append((None, None, rew, False))
            continue
        if len(obs) == len(rew):  # the state after the last action was never stored: drop, never invent
            rew, terminated, dropped = rew[:-1], False, dropped + 1
            act = None if act is None else act[:-1]
        if len(obs) != len(rew) + 1:
            raise DataError(
                f"{src}: trajectory {e} has {len(obs)} observations and {len(rew)} rewards; "
                "as many, or one more observation, are due"
            )
        sized = sized or (e, obs.shape[1])
        if obs.shape[1] != sized[1]:
            raise DataError(
                f"{src}: trajectory {e} has observations of size {obs.shape[1]}, trajectory {sized[0]} of size "
                f"{sized[1]}; put different robots into different files"
            )
        if act is not None and n_act and act.shape[1:] != (n_act,):
            raise DataError(
                f"{src}: trajectory {e} has actions of shape {act.shape[1:]}, others of ({n_act},); "
                "put different robots into different files"
            )
        n_act = n_act if act is None else act.shape[1]
        mismatched += n_torn
        parts.append((obs, act, rew, terminated))
    if sized is None:
        raise DataError(f"{src}: holds no trajectories; nothing can be learnt from an empty file")
    lengths = np.array([len(p[2]) for p in parts])
    ended = np.zeros(int(lengths.sum()), bool)
    ended[np.cumsum(lengths)[lengths > 0] - 1] = np.array([bool(p[3]) for p in parts])[lengths > 0]
    acts = [
        np.full((n, n_act), np.nan, np.float32) if p[1] is None else p[1] for n, p in zip(lengths, parts, strict=True)
    ]
    none = np.full((1, sized[1]), np.nan, np.float32)
    obs = np.concatenate([none if p[0] is None else p[0] for p in parts])
    rew = np.concatenate([p[2] for p in parts])
    return Raw(obs, np.concatenate(acts) if n_act else None, rew, ended, lengths, dropped, mismatched)


def is_terminated(src: str, episode: int, flags: object, n_steps: int) -> bool:
    """Whether a trajectory terminated, from one flag a step (or none at all)."""
    if flags is None:
        return False
    ended = float_array(src, episode, "terminals", flags).reshape(-1)
    if len(ended) != n_steps:
        raise DataError(
            f"{src}: trajectory {episode} has {len(ended)} terminals but {n_steps} rewards; they must be equally many"
        )
    inner = np.flatnonzero(ended[:-1])
    if inner.size:
        raise DataError(f"{src}: trajectory {episode} continues after it terminated at step {inner[0]}; cut it there")
    return bool(ended[-1:].any())


def float_array(src: str, episode: int, what: str, array: object) -> np.ndarray:
    """What a reader found for one trajectory, not yet checked, or a sentence that names it."""
    try:
        out = np.asarray(array)
        if out.dtype.kind not in "fiub":
            raise ValueError(f"dtype {out.dtype}")
        return as_floats(out)
    except (ValueError, TypeError) as err:
        raise DataError(
            f"{src}: the {what} of trajectory {episode} are not an array of numbers ({escaped(err)}); save them as one"
        ) from err
