"""A figure that shows the quality of proxy actions: error, coverage, error by return, and the worst trajectories."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ssorl.idm.calibrate import format_factors
from ssorl.idm.quality import summary
from ssorl.utils.files import atomic

# Distinct for colour-blind readers: held-out labelled steps, predicted std of proxies, measured error of proxies.
HELD_OUT, EXPECTED, TRUE, GREY = "#0072b2", "#e69f00", "#d55e00", "#bbbbbb"
N_WORST = 8  # trajectories in the last panel
HEAD = {"fontsize": 15, "fontweight": "bold"}
LEGEND = {"ncols": 4, "columnspacing": 1.2, "handlelength": 1.4, "handletextpad": 0.5}
TITLES = ("Error by action dimension", "Coverage of the intervals")
TITLES += ("Error by return of the trajectory", "Trajectories with the largest error")
ERROR = "RMS error, % of the action range"


def plot(report: dict, path: Path | str) -> None:
    """Plot a label report.

    Args:
        report: what `ssorl.idm.quality.report` returns.
        path: the file to write; its suffix (.png, .pdf or .svg) selects the format.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 8.8))
    figure.subplots_adjust(left=0.07, right=0.97, top=0.72, bottom=0.07, hspace=0.55, wspace=0.45)
    source = str(report["data"]["source"])
    figure.text(0.03, 0.955, f"Proxy actions for {source if len(source) < 70 else '…' + source[-69:]}", **HEAD)
    figure.text(
        0.03, 0.935, "\n".join(f"•  {line}" for line in summary(report)), fontsize=10.5, va="top", linespacing=1.5
    )
    _plot_dimensions(axes[0, 0], report)
    _plot_coverage(axes[0, 1], report)
    _plot_by_return(axes[1, 0], report)
    _plot_worst(axes[1, 1], report)
    for axis, title in zip(axes.flat, TITLES, strict=True):
        axis.set_title(title, loc="left", pad=24, fontsize=12, fontweight="bold")
        if axis.get_legend_handles_labels()[1]:  # above the plot, where it covers no data
            axis.legend(frameon=False, fontsize=8.5, loc="lower left", bbox_to_anchor=(-0.02, 0.98), **LEGEND)
        axis.spines[["top", "right"]].set_visible(False)
    with atomic(path) as temporary:
        figure.savefig(temporary, dpi=150)
    plt.close(figure)


def _plot_dimensions(axis, report: dict) -> None:
    """Plot the error of each action dimension, in percent of the action range."""
    groups = []
    if report["validation"]:
        groups.append(("held out", np.sqrt(report["validation"]["mse_by_dimension"]), HELD_OUT))
    groups.append(("proxies: expected", np.array(report["proxies"]["std_by_dimension"]), EXPECTED))
    if report["truth"]:
        groups.append(("proxies: measured", np.sqrt(report["truth"]["mse_by_dimension"]), TRUE))
    _plot_bars(axis, groups, [str(i) for i in range(len(groups[0][1]))], 50)
    for i, variance in enumerate(report["model"]["labelled_variance"]):
        label = "constant prediction" * (i == 0)
        axis.plot([i - 0.45, i + 0.45], [50 * np.sqrt(variance)] * 2, "k:", lw=1.5, label=label)
    axis.set(xlabel="action dimension", ylabel=ERROR)


def _plot_coverage(axis, report: dict) -> None:
    """Plot the share of true actions inside each interval against its nominal level."""
    coverage = report["coverage"]
    if coverage is None:
        axis.set_axis_off()
        axis.text(0.5, 0.5, "no held-out step has a true action", ha="center", transform=axis.transAxes, color="grey")
        return
    groups = [("held out", np.array(coverage["before"]), GREY)]
    if scaling := format_factors(coverage["scale"]):
        groups.append((f"std × {scaling}", np.array(coverage["after"]), HELD_OUT))
    if coverage["truth"]:
        groups.append(("proxies: measured", np.array(coverage["truth"]), TRUE))
    _plot_bars(axis, groups, [f"{level:.0%} interval" for level in coverage["levels"]], 100)
    for i, level in enumerate(coverage["levels"]):
        axis.plot([i - 0.45, i + 0.45], [100 * level] * 2, color="black", lw=1.5, label="nominal" * (i == 0))
    axis.set(ylabel="% of true actions inside", ylim=(0, 100))


def _plot_by_return(axis, report: dict) -> None:
    """Plot the error and the predicted std against the return of the trajectory."""
    bins = report["by_return"]
    x = [b["return"] for b in bins]
    if not bins:
        axis.set_axis_off()
        axis.text(0.5, 0.5, "the trajectories have no rewards", ha="center", transform=axis.transAxes, color="grey")
        return
    low, high = report["model"]["labelled_returns"]
    if low is not None:
        axis.axvspan(low, high, color=HELD_OUT, alpha=0.1, lw=0, label="returns of labelled trajectories")
    axis.plot(x, [50 * b["std"] for b in bins], "o-", color=EXPECTED, label="expected")
    if report["truth"]:
        axis.plot(x, [50 * b["rmse"] for b in bins], "s-", color=TRUE, label="measured")
    axis.set(xlabel="return", ylabel=ERROR)
    axis.set_ylim(bottom=0)


def _plot_worst(axis, report: dict) -> None:
    """Plot the trajectories with the largest error, and the mean over all proxies."""
    measured = report["truth"] is not None
    rows = report["worst"][:N_WORST][::-1]
    values = [50 * (row["rmse"] if measured else row["std"]) for row in rows]
    axis.barh(range(len(rows)), values, color=TRUE if measured else EXPECTED, height=0.7)
    returns = ["" if row["return"] is None else f", return {row['return']:.4g}" for row in rows]
    axis.set_yticks(
        range(len(rows)),
        [f"no. {row['trajectory']}{text}" for row, text in zip(rows, returns, strict=True)],
        fontsize=9,
    )
    for i, row in enumerate(rows):
        if row["unseen_share"] >= 0.005:
            axis.text(0, i, f" {row['unseen_share']:.0%} unseen", va="center", fontsize=8, color="white")
    mean = 50 * (np.sqrt(report["truth"]["mse"]) if measured else report["proxies"]["std"])
    axis.axvline(mean, color="black", lw=1.5, ls="--", label="all proxies")
    axis.set(xlabel=f"{ERROR} ({'measured' if measured else 'expected'})")


def _plot_bars(axis, groups: list[tuple[str, np.ndarray, str]], names: list[str], factor: float) -> None:
    """Plot groups of bars side by side; `factor` converts the values to percent."""
    width = 0.8 / len(groups)
    for i, (label, values, colour) in enumerate(groups):
        at = np.arange(len(values)) + (i - (len(groups) - 1) / 2) * width
        axis.bar(at, factor * values, width * 0.92, color=colour, label=label)
    axis.set_xticks(range(len(names)), names)
