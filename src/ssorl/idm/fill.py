"""From trajectories with gaps to trajectories without: fit or reuse a model, label, tell how good the labels are."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.idm import IDMS, serialise
from ssorl.idm.base import IdmSpec
from ssorl.idm.label import Labeller, Labels, filled, label, labeller
from ssorl.idm.quality import report, report_rounds
from ssorl.idm.selftrain import self_train
from ssorl.utils.errors import DataError, SsorlError, nearest
from ssorl.utils.registry import TrustedName
from ssorl.utils.validation import check_seed

MODEL_PRESETS = ("quick", "paper")


@dataclass(frozen=True)
class LabelledData:
    """The same trajectories with an action at every step, and where the new ones come from."""

    eps: Episodes
    labels: Labels
    ready: Labeller  # the model, to be saved and used again
    report: dict

    @property
    def extras(self) -> dict[str, np.ndarray]:
        """What to write beside the actions."""
        return {"proxy": self.labels.proxy, "act_std": self.labels.std, "unseen": self.labels.unseen}


def resolve(
    name: str | IdmSpec | Labeller,
    preset: str | None = None,
    steps: int | None = None,
    members: int | None = None,
    rounds: int | None = None,
) -> IdmSpec | Labeller:
    """Return the configuration that the user chose, with changes, or the fitted model.

    Args:
        name: a built-in, registered or installed model, `module:NAME`, or the folder of a saved one; or a configuration
            or a fitted model itself.
        preset: `quick` takes NAME-quick if there is one; `paper` and None take NAME.
        steps: updates, in place of the configuration's.
        members: networks in the ensemble, in place of the configuration's.
        rounds: of self-training, which a fitted model cannot do.

    Raises:
        SsorlError: there is no such model, or it cannot be changed like this.
    """
    if preset is not None and preset not in MODEL_PRESETS:
        raise SsorlError(f"the preset of an inverse dynamics model is {preset!r}; {nearest(preset, MODEL_PRESETS)}")
    for flag, value in (("--steps", steps), ("--members", members), ("--self-train", rounds)):
        if value is not None and value < 1:
            raise SsorlError(f"{flag} is {value}; give a whole number from 1 up")
    if isinstance(name, IdmSpec):
        if type(name) not in map(type, IDMS.values()):
            IDMS.adopt(name)
        return name.resized(steps, members)
    if isinstance(name, str) and IDMS.known(name):
        quick = f"{name}-quick" if preset == "quick" and not name.endswith("-quick") else name
        return IDMS.find(quick if IDMS.known(quick) else name).resized(steps, members)
    if isinstance(name, Labeller) or Path(name).exists():
        if any(x is not None for x in (preset, steps, members, rounds)):
            what = name if isinstance(name, str) else "the model"
            raise SsorlError(
                f"{what}: is used as it was fitted, so --preset, --steps, --members and --self-train mean nothing; "
                "leave them out"
            )
        return name if isinstance(name, Labeller) else serialise.load(name)
    if ":" in name:
        return IDMS.find(TrustedName(name)).resized(steps, members)
    near = difflib.get_close_matches(name, IDMS.names(), n=1)
    hint = f"did you mean {near[0]}?" if near else f"choose {', '.join(IDMS.names())}, or the folder of a saved one"
    raise SsorlError(f"--idm {name}: no inverse dynamics model or folder has that name; {hint}")


def fill(
    eps: Episodes,
    model: IdmSpec | Labeller,
    seed: int = 0,
    rounds: int = 0,
    learn_from: Episodes | None = None,
    truth: np.ndarray | None = None,
    progress: Callable[[str, int, str], None] | None = None,
) -> LabelledData:
    """Fill every missing action, by a model fitted to the steps that have one or by one that was fitted before.

    Fitting uses `eps`, or `learn_from` where the labelled trajectories are not among those to be filled; with `rounds`
    the model is self-trained. `truth` is used for the report alone. `progress(what, n, note)` hears of `n` updates or
    steps done.
    """
    check_seed(seed, "--seed")
    if eps.labelled.all():
        raise nothing_missing(eps.meta.source)
    if isinstance(model, Labeller):
        ready, told = model, {}
    else:
        ready, told = _fitted(learn_from or eps, model, seed, rounds, truth, progress)
    labels = label(ready, eps, progress=progress and (lambda n: progress("labelling", n, "")))
    return LabelledData(filled(eps, labels, ready), labels, ready, report(eps, labels, ready, truth) | told)


def _fitted(eps: Episodes, config: IdmSpec, seed: int, rounds: int, truth, progress) -> tuple[Labeller, dict]:
    if not eps.labelled.any():
        raise nothing_to_learn(eps.meta.source)

    def tell(n: int, note: str) -> None:
        if progress:
            progress("fitting", n, note)

    if not rounds:
        return labeller(config.fit(eps, seed, tell), eps), {}
    done = self_train(eps, config, None, rounds, seed, lambda r, _: tell(config.work, f"round {r} of {rounds}"))
    # What was moved over is known by its proxies only, so `eps`, not the grown set, tells how good the last model is.
    return labeller(done[-1].idm, eps), {"rounds": report_rounds(done, eps, truth)}


def nothing_missing(source: str) -> DataError:
    """What to say where every action is known."""
    return DataError(
        f"{source}: every step has an action already, so nothing is to be filled in; to measure labels against the "
        "truth hide some actions with --fraction and --quality"
    )


def nothing_to_learn(source: str) -> DataError:
    """What to say where no action is known."""
    return DataError(
        f"{source}: no step has an action, so nothing can teach an inverse dynamics model; add labelled trajectories "
        "(--labelled) or name a model that was saved (--idm FOLDER)"
    )
