"""The figures and tables of the paper (arXiv 2210.06518), each as a study."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssorl.study.grid import Axis, Grid, Study
from ssorl.study.settings import PINNED

QUALITIES = (10, 30, 50, 70, 90, 100)
AGENTS = ("dt", "cql", "td3bc")
VARIANTS = ("baseline", "ss", "oracle")
THIRDS = ("low", "med", "high")
SIZES = (0.1, 0.25, 0.5)
LAMBDAS = (1.0, 0.1, 0.01, 0.001)
LEVELS = ("medium-expert", "medium", "medium-replay")
GYM = tuple(f"{env}-{level}" for level in LEVELS for env in ("hopper", "walker2d", "halfcheetah"))
MAZES = tuple(f"maze2d-{maze}-dense" for maze in ("open", "umaze", "medium", "large"))
WIDE = "walker2d-wide"

SELF_TRAINING = {"ours": {}} | {
    f"m = {m}, N = {n}": {"idm_settings": {"members": m}, "rounds": n} for m in (2, 3) for n in (3, 5)
}
ARCHITECTURES = {f"k = {k}": {"past": k} for k in (0, 1, 2)} | {
    f"k = {k}, symmetric": {"past": k, "future": k}
    for k in (0, 1, 2)  # k = 0 is symmetric already
}
# 1 % of the 25 trajectories at scale smoke is less than one trajectory.
LARGER_SMOKE = {"smoke": {"size": "100000"}}

# The settings of the published results, so that a change of a default does not change hashes of stored results.
PUBLISHED = {"defaults": PINNED, "preset": "paper", "idm": "paper", "variant": "ss", "rounds": 0, "certain": None}


def published(base: dict[str, Any], axes: Mapping[str, Axis] | None = None) -> Grid:
    """Return a grid whose settings are pinned to those of the published results.

    Args:
        base: common settings; they override the pinned settings.
        axes: the axes.
    """
    setup = base.get("setup", "coupled")
    # `thirds` names all parameters of the decoupled setup itself.
    recipe = {"fraction": 0.1, "quality": 50} if setup == "coupled" else {}
    return Grid({**PUBLISHED, "setup": setup, **recipe, **base}, axes or {})


def main(*datasets: str, agents: tuple[str, ...] = AGENTS, **base: Any) -> tuple[Grid, ...]:
    """Return the grid of the main experiment: baseline, SS and oracle of each agent at each label quality.

    Args:
        datasets: names of simulated datasets, without sim/.
        agents: the agents.
        base: further common settings.
    """
    axes: dict[str, Axis] = {"agent": agents, "quality": QUALITIES, "variant": VARIANTS}
    return (published(base, {"dataset": sim(*datasets), **axes}),)


def sim(*names: str) -> list[str]:
    """Return dataset names with the prefix sim/."""
    return [f"sim/{name}" for name in names]


def ss(*datasets: str, agents: tuple[str, ...] = ("cql", "dt"), **axes: Axis) -> tuple[Grid, ...]:
    """Return a grid of SS agents at each label quality.

    Args:
        datasets: names of simulated datasets, without sim/.
        agents: the agents.
        axes: further axes.
    """
    return (published({}, {"dataset": sim(*datasets), "agent": agents, "quality": QUALITIES, **axes}),)


def thirds(*datasets: str, labelled: tuple[float, ...] = (0.1,), unlabelled: tuple[float, ...] = (0.1,)):
    """Return a grid of SS agents on the nine pairs of labelled and unlabelled thirds.

    Args:
        datasets: names of simulated datasets, without sim/.
        labelled: shares of trajectories that are labelled.
        unlabelled: shares of trajectories that are unlabelled.
    """
    axes: dict[str, Axis] = {"dataset": sim(*datasets), "agent": ("cql", "dt")}
    axes |= {"labelled": THIRDS, "unlabelled": THIRDS}
    axes |= {"labelled_fraction": labelled, "unlabelled_fraction": unlabelled}
    return (published({"setup": "decoupled"}, axes),)


HOPPER_ME, WALKER_ME = "hopper-medium-expert", "walker2d-medium-expert"
LOW = (published({}, {**main(WALKER_ME)[0].axes, "fraction": (0.01, 0.03, 0.05, 0.08)}),)

_ALL = [
    Study(
        "example-density",
        "Labelled and unlabelled trajectories differ in return",
        (published({"kind": "data", "dataset": f"sim/{HOPPER_ME}", "quality": 50, "seeds": 1}),),
        "introduction: densities of the returns",
        figure="density",
        panels=("dataset",),
    ),
    Study("main-medium-expert", "Return against q, medium-expert", main(HOPPER_ME, WALKER_ME), "main figure"),
    Study(
        "gap-medium-expert",
        "Relative gap to the oracle",
        main(HOPPER_ME, WALKER_ME),
        "main text: mean relative gaps",
        figure="gap",
    ),
    Study(
        "gap-one-percent",
        "Relative gap with 1 % labelled",
        main(WALKER_ME, fraction=0.01),
        "main text: relative gaps with 1 % labelled",
        figure="gap",
        scales=LARGER_SMOKE,
    ),
    Study(
        "low-label",
        "1, 3, 5 and 8 % labelled",
        LOW,
        "appendix: returns and relative gaps",
        also=("gap",),
        panels=("fraction", "agent"),
        scales=LARGER_SMOKE,
    ),
    Study(
        "dt-joint",
        "DT-Joint, which needs no proxy actions, against SS",
        (
            *main(HOPPER_ME, agents=("dt",)),
            *ss(HOPPER_ME, agents=("dt-joint",)),
            *ss(HOPPER_ME, agents=("cql", "td3bc")),
        ),
        "main text: returns against q",
        panels=("dataset",),
        by="agent",
    ),
    Study(
        "dt-joint-lambda",
        "DT-Joint by the weights of its two predictions",
        ss(
            HOPPER_ME,
            agents=("dt-joint",),
            lambda_s={x: {"settings": {"lambda_s": x}} for x in LAMBDAS},
            lambda_r={x: {"settings": {"lambda_r": x}} for x in LAMBDAS},
        ),
        "appendix: IQM over 16 pairs of weights",
        figure="iqm",
        by="lambda_r",
        panels=("lambda_s",),
    ),
    Study(
        "self-training",
        "One round against self-training of the inverse dynamics model",
        ss(WALKER_ME, idm=SELF_TRAINING),
        "main text: IQM over all q, and over q ≤ 50",
        figure="iqm",
        by="idm",
        panels=(),
    ),
    Study(
        "self-training-mse",
        "Action error of those models",
        (published({"kind": "idm"}, {"dataset": sim(WALKER_ME), "quality": QUALITIES, "idm": SELF_TRAINING}),),
        "main text: action MSE by q",
        figure="mse-by-quality",
        by="idm",
        panels=("dataset",),
    ),
    Study(
        "idm-architecture",
        "Windows of the inverse dynamics model",
        ss(WALKER_ME, idm=ARCHITECTURES),
        "main text: IQM by k, symmetric and asymmetric",
        figure="iqm",
        by="idm",
        panels=(),
    ),
    Study(
        "labelled-quality",
        "The third that the labelled trajectories come from",
        thirds(HOPPER_ME, WALKER_ME),
        "main text: IQM by labelled third",
        figure="iqm",
        by="labelled",
        panels=(),
    ),
    Study(
        "unlabelled-quality",
        "The third that the unlabelled trajectories come from",
        thirds(HOPPER_ME, WALKER_ME),
        "main text: IQM by unlabelled third",
        figure="iqm",
        by="unlabelled",
        panels=(),
    ),
    Study(
        "labelled-size",
        "How many trajectories are labelled",
        thirds(WALKER_ME, labelled=SIZES),
        "main text: IQM by size, over all and by labelled third; appendix: learning curves",
        figure="iqm",
        also=("curves",),
        by="labelled_fraction",
        panels=("agent", "labelled"),
    ),
    Study(
        "unlabelled-size",
        "How many trajectories are unlabelled",
        thirds(WALKER_ME, unlabelled=SIZES),
        "main text: IQM by size, over all and by labelled third; appendix: learning curves",
        figure="iqm",
        also=("curves",),
        by="unlabelled_fraction",
        panels=("agent", "labelled"),
    ),
    Study(
        "gap-by-agent",
        "Which agent minds missing actions least",
        main(*(name for name in GYM if not name.startswith("halfcheetah"))),
        "main text: IQM of the relative gap",
        figure="gap",
        by="agent",
        panels=(),
    ),
    Study(
        "densities",
        "Returns of the datasets",
        (published({"kind": "data", "setup": None, "seeds": 1}, {"dataset": sim(*GYM, *MAZES, WIDE)}),),
        "appendix: densities of the normalised returns",
        figure="density",
        panels=("dataset",),
    ),
    Study("main-medium", "Return against q, medium", main("hopper-medium", "walker2d-medium"), "appendix"),
    Study(
        "main-medium-replay",
        "Return against q, medium-replay",
        main("hopper-medium-replay", "walker2d-medium-replay"),
        "appendix",
    ),
    Study(
        "main-halfcheetah",
        "Return against q, halfcheetah",
        main(*(name for name in GYM if name.startswith("halfcheetah"))),
        "appendix",
    ),
    Study(
        "labelled-returns",
        "Mean return of the labelled trajectories",
        (published({"kind": "data"}, {"dataset": sim(*GYM), "quality": QUALITIES}),),
        "appendix: table",
        figure="table",
        by="quality",
        panels=(),
    ),
    Study("wide-subsample", "Return against q, a wide spread of returns", main(WIDE), "appendix"),
    Study(
        "maze2d",
        "TD3+BC in the mazes",
        main(*MAZES, agents=("td3bc",), preset="maze2d"),
        "appendix",
        panels=("dataset",),
    ),
]


# Beyond the paper: more accurate labels.
def better_labels(*agents: str) -> tuple[Grid, ...]:
    """Return the grids of the main experiment and of SS with the IDM preset `robust`, for agents."""
    return (*main(HOPPER_ME, WALKER_ME, agents=agents), *ss(HOPPER_ME, WALKER_ME, agents=agents, idm=("robust",)))


_ALL += [
    Study(
        "idm-robust",
        "SS with the labels of the paper and with robust ones",
        better_labels("td3bc"),
        also=("mse-by-quality", "score-by-error"),
        by="idm",
        panels=("dataset",),
    ),
    Study(
        "idm-robust-agents",
        "The same for CQL and DT",
        better_labels("cql", "dt"),
        also=("score-by-error",),
        by="idm",
        panels=("dataset", "agent"),
    ),
]

STUDIES: dict[str, Study] = {study.name: study for study in _ALL}

# The studies that decide the twelve claims. Relative gaps come from the same cells as returns.
_NEEDED = ("main-medium-expert", "low-label", "dt-joint", "self-training", "self-training-mse", "idm-architecture")
_NEEDED += ("labelled-quality", "labelled-size", "unlabelled-size", "gap-by-agent")
_NEEDED += ("main-medium", "main-medium-replay", "main-halfcheetah", "wide-subsample", "maze2d")
STUDIES["claims"] = Study(
    "claims",
    "The paper's claims, each confirmed, refuted or undecided",
    (),
    "what the text says of its figures",
    figure="claims",
    parts=tuple(STUDIES[name] for name in _NEEDED),
)
