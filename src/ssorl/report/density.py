"""Density plots of returns, labelled against unlabelled trajectories, as in the paper's example figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ssorl.data.episodes import Episodes
from ssorl.utils.errors import DataError
from ssorl.utils.files import atomic

LABELLED, UNLABELLED = "#0072b2", "#e69f00"  # distinct for colour-blind readers


def density(values: np.ndarray, grid: np.ndarray, bandwidth: float) -> np.ndarray:
    """Return a Gaussian kernel density estimate.

    Args:
        values: samples [N].
        grid: points [G] at which the density is evaluated.
        bandwidth: standard deviation of the kernel.

    Returns:
        Densities [G].
    """
    z = (grid[:, None] - values) / bandwidth
    return np.exp(-0.5 * z**2).mean(1) / (bandwidth * np.sqrt(2 * np.pi))


def plot(eps: Episodes, path: Path | str, title: str | None = None) -> None:
    """Plot the return densities of labelled and unlabelled trajectories.

    Args:
        eps: the trajectories.
        path: the file to write; its suffix (.png, .pdf or .svg) selects the format.
        title: title of the plot; by default, the name of the dataset.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    if not eps.rewarded.any():
        raise DataError(
            f"{eps.meta.source}: no trajectory has rewards, so there are no returns to draw; leave out --plot"
        )
    eps = eps if eps.rewarded.all() else eps.take(eps.rewarded)
    norm = eps.normalised_returns()
    values, label = (eps.returns, "return") if norm is None else (norm, "normalised return")
    labelled = eps.labelled_share > 0
    groups = [
        (values[mask], name, colour)
        for mask, name, colour in ((labelled, "labelled", LABELLED), (~labelled, "unlabelled", UNLABELLED))
        if mask.any()
    ]
    # Both groups share a bandwidth, so that their widths can be compared.
    width = max(values.std(), 1e-3 * max(1.0, abs(values.mean())))
    bandwidth = 0.5 * width * len(values) ** -0.2
    grid = np.linspace(values.min() - 3 * bandwidth, values.max() + 3 * bandwidth, 400)
    figure, axis = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for group, name, colour in groups:
        height = density(group, grid, bandwidth)
        axis.fill_between(grid, height, color=colour, alpha=0.25, linewidth=0)
        axis.plot(grid, height, color=colour, label=f"{name} ({len(group)} trajectories)")
        axis.axvline(group.mean(), color=colour, linestyle=":", linewidth=1)
    axis.set(xlabel=label, ylabel="density", title=title or eps.meta.source)
    axis.set_ylim(bottom=0)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    with atomic(path) as temporary:
        figure.savefig(temporary, dpi=150)
    plt.close(figure)
