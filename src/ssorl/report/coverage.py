"""Which unlabelled states are covered by labels now, and which would be after a suggestion."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ssorl.idm.suggest import Suggestions
from ssorl.utils.files import atomic

GREY, NOW, THEN = "#bbbbbb", "#0072b2", "#d55e00"  # distinguishable with colour blindness
MOST = 3_000


def plot(result: Suggestions, path: Path | str) -> None:
    """Draw unlabelled, labelled and suggested transitions in two dimensions to a PNG, PDF or SVG.

    Args:
        result: result of `ssorl.suggest`.
        path: the file.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cover = result.cover
    assert cover is not None
    chosen = np.concatenate(cover.chosen) if cover.chosen else np.zeros((0, cover.targets.shape[1]))
    figure, axis = plt.subplots(figsize=(6.4, 4.8), layout="constrained")
    for points, name, colour, size in (
        (cover.targets, "unlabelled", GREY, 6),
        (cover.labelled, "labelled", NOW, 6),
        (chosen, "suggested", THEN, 12),
    ):
        if len(points):
            thin = points[:: max(1, len(points) // MOST)]
            second = thin[:, 1] if thin.shape[1] > 1 else np.zeros(len(thin))
            axis.scatter(thin[:, 0], second, s=size, color=colour, label=name, linewidths=0)
    for number, points in enumerate(cover.chosen, 1):
        middle = points[len(points) // 2]
        axis.annotate(str(number), (middle[0], middle[1] if len(middle) > 1 else 0), color=THEN, fontweight="bold")
    axis.set(xlabel="first principal component", ylabel="second", title=result.source)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    with atomic(path) as temporary:
        figure.savefig(temporary, dpi=150)
    plt.close(figure)
