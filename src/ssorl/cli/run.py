"""ssorl run: Algorithm 1 on a dataset, compared with baseline and oracle."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro

from ssorl.cli.options import (
    QUALITY_HELP,
    DataOptions,
    Fraction,
    Future,
    IdmModule,
    Json,
    LabelledFraction,
    LabelledThird,
    Past,
    Preset,
    SoftLimits,
    UnlabelledFraction,
    UnlabelledThird,
    WhenDoubtful,
    arg,
    flag,
    import_idm,
    note,
    print_json,
)
from ssorl.evaluation import EPISODES
from ssorl.utils.errors import SsorlError

if TYPE_CHECKING:
    from ssorl.data import Episodes

DATASET = "sim/hopper-medium-expert"
Variant = Literal["baseline", "ss", "oracle"]


Once = tyro.conf.FlagCreatePairsOff[bool]  # an option without its opposite


@dataclass(frozen=True)
class RunSplitOptions:
    """Which actions to hide, by one of the paper's setups."""

    setup: Annotated[
        Literal["coupled", "decoupled"] | None, arg("{coupled,decoupled}", "how to draw the split", "coupled")
    ] = None
    fraction: Fraction = None
    quality: Annotated[tuple[float, ...] | None, arg("Q [Q …]", f"{QUALITY_HELP}; each Q is a separate result", 50)] = (
        None
    )
    labelled_third: LabelledThird = None
    labelled_fraction: LabelledFraction = None
    unlabelled_third: UnlabelledThird = None
    unlabelled_fraction: UnlabelledFraction = None

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the options that the user gave, as arguments of `make_plan`."""
        names = {"labelled_third": "labelled", "unlabelled_third": "unlabelled"}
        return {names.get(name, name): value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class RunModelOptions:
    """The model that estimates the missing actions."""

    idm: Annotated[
        str | None, arg("NAME|FOLDER", "blend, robust, paper, or a model saved by `ssorl label --save-idm`", "blend")
    ] = None
    idm_module: IdmModule = None
    idm_updates: Annotated[int | None, arg("N", "updates, in place of the preset's")] = None
    idm_members: Annotated[int | None, arg("N", "networks in the ensemble, in place of the preset's")] = None
    past: Past = None
    future: Future = None
    soft_limits: SoftLimits = False
    certain: Annotated[
        float | None, arg("F", "train only on this share of proxy actions, lowest predicted std first", "all")
    ] = None

    when_doubtful: WhenDoubtful = "keep"
    label_weights: Annotated[Once, flag("weigh each proxy action by its predicted variance")] = False
    true_share: Annotated[
        float | None, arg("F", "share of true actions in the batches of SS", "their share of the data")
    ] = None
    label_samples: Annotated[Once, flag("draw proxy actions from their distribution, in place of its mean")] = False

    @property
    def use(self) -> dict[str, Any]:
        """Return how SS uses proxy actions, as arguments of `make_plan`."""
        return {k: getattr(self, k) for k in ("when_doubtful", "label_weights", "true_share", "label_samples")}


@dataclass(frozen=True)
class RunAgentOptions:
    """The agent, and which of its trainings to do."""

    agent: Annotated[str, arg("NAME", "td3bc, cql, iql, bc, dt, dt-joint or MODULE:CLASS", "td3bc")] = "td3bc"
    preset: Annotated[
        Preset, arg("{auto,quick,paper}", "quick: minutes on a CPU; paper: as published; auto: by the machine", "auto")
    ] = "auto"
    updates: Annotated[int | None, arg("N", "updates of each training, in place of the preset's")] = None
    set: Annotated[tuple[str, ...], arg("NAME=VALUE …", "other settings of the agent, such as alpha=1")] = ()
    seeds: Annotated[tuple[int, ...], arg("N [N …]", "number of seeds, counted from 0; or several seeds", 1)] = (1,)
    variants: Annotated[
        tuple[Variant, ...] | None, arg("{baseline,ss,oracle} …", "which trainings to do", "all that are possible")
    ] = None
    policy: Annotated[
        Literal["average", "last"], arg("{average,last}", "evaluate averaged weights, or the last ones", "average")
    ] = "average"

    def settings(self) -> dict[str, Any]:
        """Return the agent's settings by name.

        Raises:
            SsorlError: an entry of `--set` is not NAME=VALUE, or a setting has two values.
        """
        settings: dict[str, Any] = {} if self.updates is None else {"updates": self.updates}
        for text in self.set:
            name, equals, value = text.partition("=")
            if not equals:
                raise SsorlError(f"--set {text}: write NAME=VALUE, such as batch=512")
            parsed = parse_value(value)
            if name in settings and settings[name] != parsed:
                raise SsorlError(f"--set {text}: {name} is {settings[name]} as well; give it once")
            settings[name] = parsed
        return settings


@dataclass(frozen=True)
class RunEvaluationOptions:
    """How policies are evaluated."""

    env: Annotated[
        str | None, arg("NAME", "environment; none: estimate values by fitted-Q evaluation", "the data's")
    ] = None
    episodes: Annotated[int | None, arg("N", "episodes of each policy", EPISODES)] = None


@dataclass(frozen=True)
class Run:
    """Run Algorithm 1, and compare it with baseline and oracle.

    The steps: split the dataset; fit an inverse dynamics model to the labelled trajectories; label the others with
    proxy actions; train the agent on both (ss), on the labelled trajectories only (baseline), and on all true actions
    (oracle); evaluate the policies. A command that was stopped resumes when it is given again; once it is finished, it
    shows its result again.
    """

    RESUMES: ClassVar[bool] = True
    data: DataOptions
    split: RunSplitOptions
    model: Annotated[RunModelOptions, tyro.conf.arg(name="inverse dynamics model")]
    agent: RunAgentOptions
    evaluation: RunEvaluationOptions
    out: Annotated[Path | None, arg("FOLDER", "the run folder", "a new one in runs/")] = None
    tensorboard: Annotated[bool, flag("also write TensorBoard events")] = False
    wandb: Annotated[str | None, arg("PROJECT", "also send metrics to Weights & Biases")] = None
    json: Json = False

    def run(self) -> None:
        """Load the data, run the plan, and print the result."""
        from ssorl.cli.narrate import RunNarrator
        from ssorl.cli.tables import show_run
        from ssorl.pipeline.plan import make_plan
        from ssorl.report.summary import diverged
        from ssorl.runs.run import execute

        model, agent = self.model, self.agent
        import_idm(model.idm_module)
        eps = self._load()
        plan = make_plan(
            eps,
            agent.agent,
            model.idm,
            agent.preset,
            seeds=agent.seeds[0] if len(agent.seeds) == 1 else agent.seeds,
            variants=agent.variants,
            certain=model.certain,
            env=self.evaluation.env,
            episodes=self.evaluation.episodes,
            policy=agent.policy,
            idm_updates=model.idm_updates,
            idm_members=model.idm_members,
            past=model.past,
            future=model.future,
            soft_limits=model.soft_limits or None,
            settings=agent.settings(),
            **model.use,
            **self.split.arguments,
        )
        _warn_slow_on_cpu(agent.preset)
        command = shlex.join(["ssorl", *sys.argv[1:]])
        metrics = {"tensorboard": self.tensorboard, "wandb": self.wandb}
        with RunNarrator(eps, plan) as narrator:
            result = execute(eps, plan, self.out, narrator, command, metrics)
        if self.json:
            for line in diverged(result.content):  # without --json it is printed with the caveats
                note(f"ssorl: {line}")
            return print_json({"folder": str(result.folder), **result.content})
        return show_run(result.content, result.folder)

    def _load(self) -> Episodes:
        """Return the trajectories; by default, those of the demo."""
        data = self.data
        if (data.labelled or data.unlabelled) and self.split.arguments:
            raise SsorlError(
                "a split hides actions of one dataset, but of two files the second has none; leave out the split "
                "options"
            )
        if not (data.dataset or data.labelled or data.unlabelled):
            data = replace(data, dataset=DATASET)
        return data.load()


def _warn_slow_on_cpu(preset: str) -> None:
    import jax

    if preset == "paper" and jax.default_backend() == "cpu":
        note("ssorl: there is no GPU, so --preset paper takes hours to days; --preset quick takes minutes")


def parse_value(text: str) -> Any:
    """Return the value of a setting: a number, true, false, none, a list such as 256,256, or a string."""
    text = text.strip()
    if "," in text or text[:1] + text[-1:] in ("()", "[]"):
        return tuple(parse_value(part) for part in text.strip("()[]").split(",") if part)
    if text.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
