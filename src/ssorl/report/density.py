"""Return densities, labelled against unlabelled, as in the paper's example figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.utils.files import atomic

LABELLED, UNLABELLED = "#0072b2", "#e69f00"  # told apart by colour-blind readers too


def density(values: np.ndarray, grid: np.ndarray, bandwidth: float) -> np.ndarray:
    """A Gaussian kernel density on the grid, [len(grid)]."""
    z = (grid[:, None] - values) / bandwidth
    return np.exp(-0.5 * z**2).mean(1) / (bandwidth * np.sqrt(2 * np.pi))


def plot(eps: Episodes, path: Path | str, title: str | None = None) -> None:
    """Draw the returns of trajectories with actions against those without; a PNG, PDF or SVG by its suffix."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    norm = eps.normalised_returns()
    values, label = (eps.returns, "return") if norm is None else (norm, "normalised return")
    has = eps.labelled_share > 0
    groups = [
        (values[mask], name, colour)
        for mask, name, colour in ((has, "with actions", LABELLED), (~has, "without actions", UNLABELLED))
        if mask.any()
    ]
    # One bandwidth for both groups, so that their widths can be compared.
    width = max(values.std(), 1e-3 * max(1.0, abs(values.mean())))
    bandwidth = 0.5 * width * len(values) ** -0.2
    grid = np.linspace(values.min() - 3 * bandwidth, values.max() + 3 * bandwidth, 400)
    figure, axis = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for group, name, colour in groups:
        height = density(group, grid, bandwidth)
        axis.fill_between(grid, height, color=colour, alpha=0.25, linewidth=0)
        axis.plot(grid, height, color=colour, label=f"{name} ({len(group)})")
        axis.axvline(group.mean(), color=colour, linestyle=":", linewidth=1)
    axis.set(xlabel=label, ylabel="density", title=title or eps.meta.source)
    axis.set_ylim(bottom=0)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    with atomic(path) as fresh:
        figure.savefig(fresh, dpi=150)
    plt.close(figure)
