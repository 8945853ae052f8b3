"""Compare labelled with unlabelled data before they are joined: names, rate, robot, units, order and overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ssorl.data import mismatch
from ssorl.data.episodes import Episodes, Meta
from ssorl.data.stats import join_names
from ssorl.data.validate import escaped

FPS_TOL = 0.01  # frame rates that differ by this share count as equal
UNITS = (
    (180 / np.pi, "degrees against radians (or centimetres against metres)"),
    (1000.0, "millimetres against metres"),
)
UNIT_TOL = 3.0  # a factor is named as that of two units if it differs from theirs by at most this factor


def compare(labelled: Episodes, unlabelled: Episodes) -> list[str]:
    """Return warnings about differences between two datasets that make joining them a mistake.

    Names and order of joints, robot and frame rate are compared where both declare them. From the states follow: other
    units, shifted or swapped dimensions, another rate, and states that resemble no labelled one. Where the same names
    stand in another order, call `reordered` first. Not found: swapped dimensions that resemble each other, offsets
    smaller than the range of a dimension, and a rate below twice the other where no dimension is a velocity.

    Args:
        labelled: the dataset with actions; all of its steps count.
        unlabelled: the other dataset; its actions are not read.

    Returns:
        Sentences, the most serious first; none if nothing is wrong.
    """
    if labelled.n_obs != unlabelled.n_obs:
        return [
            f"the labelled states have {labelled.n_obs} numbers and the unlabelled ones {unlabelled.n_obs}; give two "
            "files of the same robot, or choose the same columns with --state"
        ]
    out = _meta_warnings(labelled.meta, unlabelled.meta)
    rates = labelled.meta.fps, unlabelled.meta.fps
    steps = (np.arange(eps.n_steps) for eps in (labelled, unlabelled))
    return out + _state_warnings(labelled, unlabelled, *steps, judge_rate=not _differ(*rates))


def compare_parts(eps: Episodes) -> list[str]:
    """Return such warnings about the steps of one dataset that have an action against those that have none."""
    return _state_warnings(eps, eps, np.flatnonzero(eps.labelled), np.flatnonzero(~eps.labelled))


def reordered(labelled: Episodes, unlabelled: Episodes) -> Episodes:
    """Return the second dataset with its dimensions in the order of the first, if both have the same names.

    Args:
        labelled: the dataset whose order counts.
        unlabelled: the other dataset; states and actions are put in order, each where all names are known.

    Returns:
        The second dataset with a note in its metadata; itself if no order changes.
    """
    out = unlabelled
    for what, names, other in (
        ("state", labelled.meta.state_names, unlabelled.meta.state_names),
        ("action", labelled.meta.action_names, unlabelled.meta.action_names),
    ):
        order = _order(names, other)
        if order is None or len(order) != (out.n_obs if what == "state" else out.n_act):
            continue
        note = (
            f"the {what}s of {unlabelled.meta.source} were put in the order of {labelled.meta.source}: "
            f"{join_names([escaped(n) for n in names])}"
        )
        if what == "state":
            meta = replace(out.meta, state_names=names, state_parts=labelled.meta.state_parts)
            out = replace(out, obs=out.obs[:, order], meta=meta.with_notes(note))
        else:
            bounds = {k: tuple(getattr(out.meta, k)[i] for i in order) for k in ("act_low", "act_high")}
            meta = replace(out.meta, action_names=names, action_parts=labelled.meta.action_parts, **bounds)
            out = replace(out, act=out.act[:, order], meta=meta.with_notes(note))
    return out


def _order(names: Sequence[str], other: Sequence[str]) -> list[int] | None:
    """Return the place in `other` of each name; None if they are not the same names in another order."""
    if names == other or len(set(names)) != len(names) or sorted(names) != sorted(other):
        return None
    return [other.index(name) for name in names]


def _meta_warnings(a: Meta, b: Meta) -> list[str]:
    """Return warnings about names, robot and frame rate."""
    out = []
    for what, names, other in (("state", a.state_names, b.state_names), ("action", a.action_names, b.action_names)):
        if not names or not other or names == other:
            continue
        if _order(names, other) is not None:
            out.append(f"the {what}s have the same names in another order; put them in one order before you join them")
            continue
        pairs = [f"{escaped(x)} / {escaped(y)}" for x, y in zip(names, other, strict=False) if x != y]
        pairs = pairs or [f"{len(names)} names / {len(other)} names"]
        out.append(
            f"the {what}s have other names (labelled / unlabelled: {join_names(pairs, 4)}); check that both mean the "
            "same quantities in the same order"
        )
    if a.robot and b.robot and a.robot != b.robot:
        out.append(
            f"the labelled data is of the robot {escaped(a.robot)} and the unlabelled data of {escaped(b.robot)}; an "
            "inverse dynamics model of one robot does not fit another"
        )
    if _differ(a.fps, b.fps):
        out.append(
            f"the labelled data has {a.fps:g} steps per second and the unlabelled data {b.fps:g}; resample one of them"
        )
    return out


def _differ(fps: float | None, other: float | None) -> bool:
    """Return whether two frame rates are both known and differ."""
    return bool(fps and other) and abs(fps / other - 1) > FPS_TOL  # type: ignore[operator]


def _state_warnings(
    a: Episodes, b: Episodes, steps: np.ndarray, other: np.ndarray, judge_rate: bool = True
) -> list[str]:
    """Return warnings that follow from the states at these labelled and these other steps."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, "blas"):  # the products are small: more threads only wait for each other
        return _warnings_of(mismatch.sample(a, steps), mismatch.sample(b, other), a.meta, judge_rate)


def _warnings_of(known: mismatch.States, new: mismatch.States, meta: Meta, judge_rate: bool) -> list[str]:
    n, n_obs, out = min(len(known.now), len(new.now)), known.now.shape[1], []
    if n < 2:
        return []
    factors = mismatch.scale_factors(known, new)
    pairs = mismatch.swaps(known, new) if n >= mismatch.FEW else []
    fixed = new.permuted(mismatch.swapped_order(n_obs, pairs))
    # If factors remain after the swaps, these do not explain them, but other units may explain what looks like swaps.
    if pairs and ((factors == 1).all() or (mismatch.scale_factors(known, fixed) == 1).all()):
        new, factors = fixed, np.ones(n_obs)
        listed = join_names([" with ".join(_names(meta, pair)) for pair in pairs])
        out.append(
            f"dimensions of the unlabelled states seem to be swapped: {listed}; check the order of the joints in both "
            "datasets"
        )
    shifts = mismatch.gaps(known, new)
    out += _unit_warnings(meta, factors)
    shifted = np.flatnonzero((shifts != 0) & (factors == 1))
    if len(shifted):
        named = zip(_names(meta, shifted), shifts[shifted], strict=True)
        sizes = join_names([f"{name} by {shift:.3g}" for name, shift in named])
        out.append(
            f"the unlabelled states lie outside the range of the labelled ones in {_subject(meta, shifted)} "
            f"(shifted: {sizes}); check the zero positions and units of both datasets"
        )
    if n < mismatch.FEW or out:
        return out
    factor = mismatch.rate_factor(known, new) if judge_rate else 1.0
    if factor != 1:
        which, other = ("unlabelled", "labelled") if factor > 1 else ("labelled", "unlabelled")
        out.append(
            f"a step of the {which} data seems to last {max(factor, 1 / factor):.1f} times as long as one of the "
            f"{other} data, judged by how far the states move in it; check that both have the same frame rate"
        )
        return out
    share = mismatch.unlike_share(known, new)
    if share > mismatch.UNLIKE_SHARE:
        out.append(
            f"{share:.0%} of the unlabelled states are unlike any labelled one, so their labels are guesses; label "
            "some trajectories that pass through such states"
        )
    return out


def _unit_warnings(meta: Meta, factors: np.ndarray) -> list[str]:
    """Return a warning for each pair of units in which dimensions seem to differ, and one for all other factors."""
    groups: dict[str, list[int]] = {}
    for i in np.flatnonzero(factors != 1):
        size = max(factors[i], 1 / factors[i])
        unit, text = min(UNITS, key=lambda u: abs(np.log(size / u[0])))
        close = abs(np.log(size / unit)) <= np.log(UNIT_TOL)
        groups.setdefault(f"{text if close else ''}|{factors[i] > 1}", []).append(int(i))
    out = []
    for key, dims in groups.items():
        text = key.partition("|")[0]
        factor = float(np.exp(np.abs(np.log(factors[dims])).mean()))
        wider, other = ("unlabelled", "labelled") if factors[dims[0]] > 1 else ("labelled", "unlabelled")
        cause = f", as if they were {text}" if text else ""
        cure = "convert one of the datasets" if text else "check the units of both datasets"
        out.append(
            f"the {wider} states spread about {factor:,.0f} times as wide as the {other} ones in "
            f"{_subject(meta, dims)}{cause}; {cure}"
        )
    return out


def _names(meta: Meta, dims: Sequence[int] | np.ndarray) -> list[str]:
    """Return the names of dimensions of the state, or their numbers."""
    names = meta.state_names
    return [escaped(names[i]) if i < len(names) else str(i) for i in dims]


def _subject(meta: Meta, dims: Sequence[int] | np.ndarray) -> str:
    """Return words that name dimensions of the state."""
    kind = "" if meta.state_names else "dimension " if len(dims) == 1 else "dimensions "
    return kind + join_names(_names(meta, dims))
