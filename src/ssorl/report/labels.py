"""One picture of a set of labels: how far off, whether their uncertainty is honest, and where they are weak."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ssorl.idm.calibrate import factors
from ssorl.idm.quality import summary
from ssorl.utils.files import atomic

# Told apart by colour-blind readers too: measured where labelled, expected of the proxies, measured on the proxies.
HELD_OUT, EXPECTED, TRUE, GREY = "#0072b2", "#e69f00", "#d55e00", "#bbbbbb"
SHOWN = 8  # of the worst trajectories
HEAD = {"fontsize": 15, "fontweight": "bold"}
LEGEND = {"ncols": 4, "columnspacing": 1.2, "handlelength": 1.4, "handletextpad": 0.5}
TITLES = ("How far off, by action dimension", "Does the uncertainty mean what it says?")
TITLES += ("By the return of the trajectory", "The worst trajectories")


def plot(told: dict, path: Path | str) -> None:
    """Draw what `ssorl.idm.quality.report` told; a PNG, PDF or SVG by its suffix."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 8.8))
    figure.subplots_adjust(left=0.07, right=0.97, top=0.72, bottom=0.07, hspace=0.55, wspace=0.45)
    source = str(told["data"]["source"])
    figure.text(0.03, 0.955, f"Proxy actions for {source if len(source) < 70 else '…' + source[-69:]}", **HEAD)
    figure.text(
        0.03, 0.935, "\n".join(f"•  {line}" for line in summary(told)), fontsize=10.5, va="top", linespacing=1.5
    )
    _dimensions(axes[0, 0], told)
    _coverage(axes[0, 1], told)
    _returns(axes[1, 0], told)
    _worst(axes[1, 1], told)
    for axis, title in zip(axes.flat, TITLES, strict=True):
        axis.set_title(title, loc="left", pad=24, fontsize=12, fontweight="bold")
        if axis.get_legend_handles_labels()[1]:  # above the plot, where it hides nothing
            axis.legend(frameon=False, fontsize=8.5, loc="lower left", bbox_to_anchor=(-0.02, 0.98), **LEGEND)
        axis.spines[["top", "right"]].set_visible(False)
    with atomic(path) as fresh:
        figure.savefig(fresh, dpi=150)
    plt.close(figure)


def _dimensions(axis, told: dict) -> None:
    """Error by action dimension, in percent of the action's range."""
    groups = []
    if told["validation"]:
        groups.append(("held-out", np.sqrt(told["validation"]["mse_by_dimension"]), HELD_OUT))
    groups.append(("proxies: expected", np.array(told["proxies"]["std_by_dimension"]), EXPECTED))
    if told["truth"]:
        groups.append(("proxies: measured", np.sqrt(told["truth"]["mse_by_dimension"]), TRUE))
    _bars(axis, groups, [str(i) for i in range(len(groups[0][1]))], 50)
    for i, variance in enumerate(told["model"]["labelled_variance"]):
        axis.plot([i - 0.45, i + 0.45], [50 * np.sqrt(variance)] * 2, "k:", lw=1.5, label="a constant guess" * (i == 0))
    axis.set(xlabel="action dimension", ylabel="RMS error, % of the range")


def _coverage(axis, told: dict) -> None:
    """Coverage against what it should be."""
    cover = told["coverage"]
    if cover is None:
        axis.set_axis_off()
        axis.text(0.5, 0.5, "no held-out step has a true action", ha="center", transform=axis.transAxes, color="grey")
        return
    groups = [("held-out", np.array(cover["before"]), GREY)]
    if by := factors(cover["scale"]):
        groups.append((f"× {by.replace(' to ', '–')}", np.array(cover["after"]), HELD_OUT))
    if cover["truth"]:
        groups.append(("proxies: measured", np.array(cover["truth"]), TRUE))
    _bars(axis, groups, [f"{level:.0%} interval" for level in cover["levels"]], 100)
    for i, level in enumerate(cover["levels"]):
        axis.plot([i - 0.45, i + 0.45], [100 * level] * 2, color="black", lw=1.5, label="should be" * (i == 0))
    axis.set(ylabel="% of true actions inside", ylim=(0, 100))


def _returns(axis, told: dict) -> None:
    """Error and deviation against the return of the trajectory."""
    bins = told["by_return"]
    x = [b["return"] for b in bins]
    low, high = told["model"]["labelled_returns"]
    axis.axvspan(low, high, color=HELD_OUT, alpha=0.1, lw=0, label="returns of the labelled ones")
    axis.plot(x, [50 * b["std"] for b in bins], "o-", color=EXPECTED, label="expected")
    if told["truth"]:
        axis.plot(x, [50 * b["rmse"] for b in bins], "s-", color=TRUE, label="measured")
    axis.set(xlabel="return", ylabel="RMS error, % of the range")
    axis.set_ylim(bottom=0)


def _worst(axis, told: dict) -> None:
    """The worst trajectories against the average."""
    known = told["truth"] is not None
    rows = told["worst"][:SHOWN][::-1]
    values = [50 * (row["rmse"] if known else row["std"]) for row in rows]
    axis.barh(range(len(rows)), values, color=TRUE if known else EXPECTED, height=0.7)
    axis.set_yticks(
        range(len(rows)), [f"no. {row['trajectory']}, return {row['return']:.4g}" for row in rows], fontsize=9
    )
    for i, row in enumerate(rows):
        if row["unseen_share"] >= 0.005:
            axis.text(0, i, f" {row['unseen_share']:.0%} unseen", va="center", fontsize=8, color="white")
    mean = 50 * (np.sqrt(told["truth"]["mse"]) if known else told["proxies"]["std"])
    axis.axvline(mean, color="black", lw=1.5, ls="--", label="all proxies")
    what = "measured" if known else "expected"
    axis.set(xlabel=f"RMS error, % of the range ({what})")


def _bars(axis, groups: list[tuple[str, np.ndarray, str]], names: list[str], factor: float) -> None:
    """Bars side by side; `factor` turns the values into percent."""
    width = 0.8 / len(groups)
    for i, (label, values, colour) in enumerate(groups):
        at = np.arange(len(values)) + (i - (len(groups) - 1) / 2) * width
        axis.bar(at, factor * values, width * 0.92, color=colour, label=label)
    axis.set_xticks(range(len(names)), names)
