"""ssorl run: Algorithm 1 on a dataset, judged against baseline and oracle."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from ssorl.cli.options import Flat, Input, Json, OwnIdm, Preset, Third, arg, import_idm, note, print_json
from ssorl.evaluation import EPISODES
from ssorl.utils.errors import SsorlError

DATASET = "sim/hopper-medium-expert"
Variant = Literal["baseline", "ss", "oracle"]


@dataclass(frozen=True)
class Hidden:
    """Which actions to hide."""

    setup: Annotated[Literal["coupled", "decoupled"] | None, arg("{coupled,decoupled}", "how to draw (coupled)")] = None
    fraction: Annotated[float | None, arg("F", "coupled: share of trajectories that keep their actions (0.1)")] = None
    quality: Annotated[
        tuple[float, ...] | None, arg("Q [Q …]", "coupled: those come from the bottom Q % by return (50)")
    ] = None
    labelled_third: Annotated[Third | None, arg("{low,med,high}", "decoupled: labelled ones come from (low)")] = None
    labelled_fraction: Annotated[float | None, arg("F", "decoupled: how many, as share of the dataset (0.1)")] = None
    unlabelled_third: Annotated[Third | None, arg("{low,med,high}", "decoupled: unlabelled ones come from (high)")] = (
        None
    )
    unlabelled_fraction: Annotated[float | None, arg("F", "decoupled: how many, as share of the dataset (0.1)")] = None

    @property
    def asked(self) -> dict:
        """What was given, as the splits call it."""
        names = {"labelled_third": "labelled", "unlabelled_third": "unlabelled"}
        return {names.get(k, k): v for k, v in vars(self).items() if v is not None}


@dataclass(frozen=True)
class Run:
    """Hide most actions, fit an inverse dynamics model, label, train an agent on the union, and judge it.

    The same agent is trained on the labelled trajectories alone (baseline) and with every true action (oracle), and all
    are played in the environment. The same command goes on where it was stopped, and shows the result again once it is
    there.
    """

    RESUMES: ClassVar[bool] = True
    input: Flat[Input]
    hidden: Flat[Hidden]
    agent: Annotated[str, arg("NAME", "the offline RL method: td3bc, cql, iql, bc, dt, … (td3bc)")] = "td3bc"
    idm: Annotated[
        str | None, arg("NAME|FOLDER", "robust, paper, or a model that `ssorl label --save-idm` saved (robust)")
    ] = None
    idm_module: OwnIdm = None
    preset: Annotated[Preset, arg("{quick,paper}", "minutes on a CPU, or the published settings (quick)")] = "quick"
    seeds: Annotated[tuple[int, ...], arg("N | N N …", "how many, counted from 0; or which (1)")] = (1,)
    variants: Annotated[
        tuple[Variant, ...] | None, arg("{baseline,ss,oracle} …", "which agents to train (all that can be)")
    ] = None
    certain: Annotated[float | None, arg("F", "learn from this share of the proxies alone, the surest (all)")] = None
    env: Annotated[str | None, arg("NAME", "where policies are played; none: estimate from the data (the data's)")] = (
        None
    )
    episodes: Annotated[int | None, arg("N", f"played by each policy ({EPISODES})")] = None
    policy: Annotated[
        Literal["average", "last"], arg("{average,last}", "which weights: averaged over training or the last (average)")
    ] = "average"
    updates: Annotated[int | None, arg("N", "of each agent, in place of the preset's")] = None
    set: Annotated[tuple[str, ...], arg("NAME=VALUE …", "other settings of the agent, such as alpha=1")] = ()
    idm_updates: Annotated[int | None, arg("N", "of the inverse dynamics model, in place of the preset's")] = None
    idm_members: Annotated[int | None, arg("N", "networks in its ensemble, in place of the preset's")] = None
    tensorboard: bool = False  # write TensorBoard events too
    wandb: Annotated[str | None, arg("PROJECT", "send metrics to Weights & Biases too")] = None
    out: Annotated[Path | None, arg("FOLDER", "the run folder (one of its own in runs/)")] = None
    json: Json = False

    def run(self) -> None:
        """Load, plan, run stage by stage, tell."""
        from ssorl.cli.narrate import RunNarrator
        from ssorl.cli.tables import show_run
        from ssorl.pipeline.plan import make_plan
        from ssorl.report.summary import diverged
        from ssorl.runs.run import execute

        import_idm(self.idm_module)
        eps = self._load()
        plan = make_plan(
            eps,
            self.agent,
            self.idm,
            self.preset,
            seeds=self.seeds[0] if len(self.seeds) == 1 else self.seeds,
            variants=self.variants,
            certain=self.certain,
            env=self.env,
            episodes=self.episodes,
            policy=self.policy,
            idm_updates=self.idm_updates,
            idm_members=self.idm_members,
            settings=self._settings(),
            **self.hidden.asked,
        )
        self._warn_of_the_hours()
        command = shlex.join(["ssorl", *sys.argv[1:]])
        metrics = {"tensorboard": self.tensorboard, "wandb": self.wandb}
        with RunNarrator(eps, plan) as teller:
            done = execute(eps, plan, self.out, teller, command, metrics)
        if self.json:
            for line in diverged(done.content):  # else it is among the caveats
                note(f"ssorl: {line}")
            return print_json({"folder": str(done.folder), **done.content})
        return show_run(done.content, done.folder)

    def _load(self):
        """The trajectories; without a name the demo's."""
        one = self.input
        if (one.labelled or one.unlabelled) and self.hidden.asked:
            raise SsorlError("a split hides actions of one dataset; with two files the second has none already")
        if not (one.dataset or one.labelled or one.unlabelled):
            one = replace(one, dataset=DATASET)
        return one.load()

    def _settings(self) -> dict:
        """The agent's settings, as they were written: numbers, true and false, lists as 256,256."""
        found: dict[str, Any] = {} if self.updates is None else {"updates": self.updates}
        for text in self.set:
            name, equals, value = text.partition("=")
            if not equals:
                raise SsorlError(f"--set {text}: write NAME=VALUE, such as batch=512")
            read = _value(value)
            if name in found and found[name] != read:
                raise SsorlError(f"--set {text}: {name} is {found[name]} as well; give it once")
            found[name] = read
        return found

    def _warn_of_the_hours(self) -> None:
        import jax

        if self.preset == "paper" and jax.default_backend() == "cpu":
            note("ssorl: no GPU here, so the paper's settings take hours to days; --preset quick takes minutes")


def _value(text: str) -> Any:
    text = text.strip()
    if "," in text or text[:1] + text[-1:] in ("()", "[]"):
        return tuple(_value(part) for part in text.strip("()[]").split(",") if part)
    if text.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
