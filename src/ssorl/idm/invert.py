"""Labels by inversion of a known simulator: the action that makes MuJoCo reproduce the next observation.

This is another setting than the paper's, which knows no dynamics. The learnt label is the start of each action. A label
is verified if the simulator reproduces the next observation within TOLERANCE, and if no other action near it does.

A wrong simulator can reproduce some transitions by wrong actions: in flight, a robot with all masses scaled moves alike
under scaled torques. Hence a simulator is trusted as a whole or not at all. Where the known actions do not lead to the
recorded observations, it must not find other actions that do; without known actions, it must invert nearly all of a
random sample of steps.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssorl.data.episodes import Episodes
from ssorl.envs.models import KnownModel, Transitions
from ssorl.idm.inversion import TOLERANCE, StepInversion
from ssorl.idm.inversion_parts import Parts
from ssorl.utils.errors import DataError

Ints = NDArray[np.int64]

BLOCK = 2048  # steps that are solved and stored together

MOST_CHECKED, LEAST_CHECKED = 2000, 20  # known steps that are replayed, and how many decide
LEAST_RIGHT = 0.98  # of the known steps that would be verified, share that the known action reproduces as well
MOST_DOUBTED = 500  # known steps that are not reproduced and get inverted
PILOT = 500  # steps that decide where too few actions are known
LEAST_INVERTED = 0.8  # share of these that a trusted simulator inverts


@dataclass(frozen=True)
class Trust:
    """Whether a simulator describes the data, and what says so."""

    trusted: bool
    replayed_steps: int  # known actions that were applied to fully observed states
    replayed_share: float | None  # share of them that led to the recorded next observation
    inverted_share: float | None  # share of a random sample that could be inverted; None if the replay decided
    notes: tuple[str, ...]  # sentences for the user


@dataclass(frozen=True)
class Inverted:
    """Labels by inversion, in the environment's range."""

    act: NDArray[np.float32]  # [S, A]: the inverted action where verified, otherwise the action given
    residual: NDArray[np.float32]  # [S], least residual found; NaN where the action was known
    verified: NDArray[np.bool_]  # [S]
    std: NDArray[np.float32]  # [S, A], uncertainty of verified labels; NaN elsewhere
    trust: Trust
    simulator: str
    steps: int  # steps whose action was missing

    @property
    def facts(self) -> dict[str, Any]:
        """Return the numbers for reports."""
        return {
            "simulator": self.simulator,
            "tolerance": TOLERANCE,
            "steps": self.steps,
            "verified_steps": int(self.verified.sum()),
            "verified_share": float(self.verified.sum() / self.steps),
            "trusted": self.trust.trusted,
            "replayed_steps": self.trust.replayed_steps,
            "replayed_share": self.trust.replayed_share,
            "inverted_share": self.trust.inverted_share,
            "notes": list(self.trust.notes),
        }


def invert(
    eps: Episodes,
    labels: np.ndarray,
    simulator: KnownModel,
    known: Episodes | None = None,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Inverted:
    """Replace labels by the actions that make a simulator reproduce the data, where that succeeds.

    Results do not depend on the number of threads. If the process is stopped, the next call with the same arguments
    continues: finished blocks are kept in the cache folder until the end.

    Args:
        eps: the trajectories; steps without an action are solved.
        labels: start of each action [S, A], in the environment's range.
        simulator: the dynamics.
        known: trajectories with known actions, which decide whether the simulator is trusted; by default, `eps`.
        threads: threads of the simulator; all cores by default.
        progress: called with the number of steps done since the last call.

    Raises:
        DataError: the simulator has other sizes than the data, no action is missing, or a value is not finite.
    """
    steps = np.flatnonzero(~eps.labelled)
    _check(eps, labels, simulator, steps)
    problem = StepInversion(eps, simulator, Transitions(simulator, threads))
    trust = _replay(eps if known is None else known, simulator, problem.transitions)
    out = Inverted(
        act=np.array(labels, np.float32),
        residual=np.full(eps.n_steps, np.nan, np.float32),
        verified=np.zeros(eps.n_steps, bool),
        std=np.full(labels.shape, np.nan, np.float32),
        trust=trust,
        simulator=simulator.name,
        steps=len(steps),
    )
    if not trust.trusted:
        return _refuted(out, problem, steps, labels)
    order = steps
    if trust.replayed_steps < LEAST_CHECKED:
        pilot = np.sort(np.random.default_rng(0).permutation(steps)[:PILOT])
        order = np.concatenate([pilot, np.setdiff1d(steps, pilot)])
    parts = Parts(_key(eps, labels, simulator))
    for first in _blocks(len(order), PILOT if order is not steps else 0):
        block = order[first]
        found = parts.get(block)
        if found is None:
            found = parts.put(block, problem.invert(block, labels[block].astype(np.float64))._asdict())
        if first.start == 0 and order is not steps:
            trust = _judge_pilot(trust, found["verified"], simulator)
            if not trust.trusted:
                parts.remove()
                return _refuted(out, problem, steps, labels, trust)
        verified = found["verified"]
        out.residual[block], out.verified[block] = found["residual"], verified
        out.act[block[verified]], out.std[block[verified]] = found["act"][verified], found["std"][verified]
        if progress:
            progress(len(block))
    parts.remove()
    return replace(out, trust=trust)


def _blocks(n: int, pilot: int) -> list[slice]:
    """Return the blocks of n steps; the first one is the pilot sample, if there is one."""
    edges = [0, *([pilot] if 0 < pilot < n else []), *range(pilot + BLOCK, n, BLOCK), n]
    return [slice(a, b) for a, b in itertools.pairwise(edges) if a < b]


def check_sizes(eps: Episodes, known: KnownModel, n_act: int | None = None) -> None:
    """Raise DataError if a simulator is not that of some trajectories.

    Args:
        eps: the trajectories.
        known: the simulator.
        n_act: size of an action; by default, that of the trajectories, if they have actions.
    """
    n_act = n_act or eps.n_act or known.n_act
    for what, got, due in (("observations", eps.n_obs, known.n_obs), ("actions", n_act, known.n_act)):
        if got != due:
            raise DataError(
                f"{eps.meta.source}: its {what} have size {got}, those of the simulator {known.name} have size {due}; "
                "name the simulator of this robot"
            )


def _check(eps: Episodes, labels: np.ndarray, known: KnownModel, steps: Ints) -> None:
    """Raise DataError if the simulator, the data and the labels do not belong together."""
    source = eps.meta.source
    check_sizes(eps, known, labels.shape[1])
    if labels.shape[0] != eps.n_steps:
        raise DataError(f"{source}: has {eps.n_steps} steps, but there are {labels.shape[0]} labels; give one a step")
    if not len(steps):
        raise DataError(f"{source}: every step has an action already, so there is nothing to invert")
    if not np.isfinite(eps.obs).all():
        row = int(np.flatnonzero(~np.isfinite(eps.obs).all(axis=1))[0])
        episode = int(np.searchsorted(eps.start + np.arange(len(eps.start)), row, side="right")) - 1
        raise DataError(f"{source}: trajectory {episode} has an observation that is not finite; remove the trajectory")
    if not np.isfinite(labels[steps]).all():
        step = int(steps[~np.isfinite(labels[steps]).all(axis=1)][0])
        raise DataError(f"{source}: the label of step {step} is not finite; give a start for every missing action")


def _replay(known: Episodes, simulator: KnownModel, transitions: Transitions) -> Trust:
    """Apply known actions to recorded states and see whether the recorded next observations follow."""
    steps = np.flatnonzero(known.labelled) if known.n_act == simulator.n_act and known.n_obs == simulator.n_obs else []
    steps = np.sort(np.random.default_rng(0).permutation(steps)[:MOST_CHECKED]).astype(np.int64)
    inversion = StepInversion(known, simulator, transitions) if len(steps) else None
    residual = np.zeros(0) if inversion is None else inversion.residual(steps, known.act[steps])
    steps, residual = steps[np.isfinite(residual)], residual[np.isfinite(residual)]
    share = float((residual <= TOLERANCE).mean()) if len(residual) else None
    notes = []
    if simulator.fully_actuated:
        notes.append(
            f"warning: {simulator.name} has as many actuators as degrees of freedom, so some action fits almost any "
            "transition and the residual cannot expose a wrong model; only the replay of known actions can"
        )
    if share is None or len(residual) < LEAST_CHECKED:
        notes.append(
            f"warning: only {len(residual)} known actions can be replayed, which is too few to test the simulator; "
            f"it is trusted if it inverts {LEAST_INVERTED:.0%} of a random sample"
        )
        return Trust(True, len(residual), share, None, tuple(notes))
    right, wrong = int((residual <= TOLERANCE).sum()), _count_wrong(inversion, steps[residual > TOLERANCE])
    trusted = right >= LEAST_CHECKED and right >= LEAST_RIGHT * (right + wrong)
    if not trusted:
        notes.append(
            f"warning: {simulator.name} reproduces {share:.1%} of {len(residual)} known steps and would verify wrong "
            f"actions for {wrong / len(residual):.1%}, so it is not the simulator of this data and no label is "
            "verified; check masses, time step, frame_skip and action range"
        )
    elif share < LEAST_RIGHT:
        notes.append(
            f"note: {simulator.name} reproduces only {share:.1%} of {len(residual)} known steps, so expect as many "
            "verified labels; part of its dynamics, such as contacts, differs from the recording's"
        )
    return Trust(trusted, len(residual), share, None, tuple(notes))


def _count_wrong(inversion: StepInversion | None, steps: Ints) -> int:
    """Return for how many known steps, which their actions do not reproduce, other actions would be verified."""
    if inversion is None or not len(steps):
        return 0
    chosen = np.sort(np.random.default_rng(1).permutation(steps)[:MOST_DOUBTED])
    found = inversion.invert(chosen, inversion.eps.act[chosen].astype(np.float64))
    return round(float(found.verified.mean()) * len(steps))


def _judge_pilot(trust: Trust, verified: np.ndarray, simulator: KnownModel) -> Trust:
    """Return the trust after the inversion of a random sample."""
    share = float(verified.mean())
    good, notes = share >= LEAST_INVERTED, trust.notes
    if not good:
        notes += (
            f"warning: {simulator.name} inverts {share:.1%} of {len(verified)} random steps (needed: "
            f"{LEAST_INVERTED:.0%}), so it is not the simulator of this data and no label is verified; check masses, "
            "time step, frame_skip and action range",
        )
    return Trust(good, trust.replayed_steps, trust.replayed_share, share, notes)


def _refuted(
    out: Inverted, problem: StepInversion, steps: Ints, labels: np.ndarray, trust: Trust | None = None
) -> Inverted:
    """Return the labels as they were given, with their own residuals."""
    for first in range(0, len(steps), BLOCK):
        block = steps[first : first + BLOCK]
        out.residual[block] = problem.residual(block, labels[block].astype(np.float64))
    return replace(out, trust=trust or out.trust)


def _key(eps: Episodes, labels: np.ndarray, simulator: KnownModel) -> str:
    """Return a digest of all that decides the result."""
    digest = hashlib.sha256(simulator.digest)
    for array in (eps.obs, eps.start, eps.labelled, np.asarray(labels, np.float32)):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:32]
