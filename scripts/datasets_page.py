"""Measure the simulated datasets; write the tables and the figure of docs/datasets.md and the sizes in `data list`.

    python scripts/datasets_page.py            # the first use simulates all at full size: about 10 minutes on 2 cores

The script writes everything between the `generated` marks of docs/datasets.md.
"""

import json
import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from ssorl.data import coupled, load
from ssorl.data.sim import datasets
from ssorl.data.sim.datasets import names
from ssorl.data.stats import profile
from ssorl.envs.scores import SCORES
from ssorl.report.density import UNLABELLED, density

ROOT = Path(__file__).parents[1]
# D4RL v2 (arXiv 2004.07219): mean and standard deviation of the returns of complete episodes.
D4RL = {
    "halfcheetah-medium": (4770.3, 355.8),
    "halfcheetah-medium-replay": (3093.3, 1680.7),
    "halfcheetah-expert": (10656.4, 441.7),
    "hopper-medium": (1422.1, 379.0),
    "hopper-medium-replay": (467.3, 511.0),
    "hopper-expert": (3511.4, 328.6),
    "walker2d-medium": (2852.1, 1095.4),
    "walker2d-medium-replay": (682.7, 896.0),
    "walker2d-expert": (4920.5, 136.4),
}
QUALITIES = (10, 30, 50, 70, 90, 100)
# SS-ORL (arXiv 2210.06518), mean normalised return of the labelled trajectories, 10 % labelled, by q.
PAPER = {
    "hopper-medium-replay": (0.007, 0.022, 0.05, 0.074, 0.109, 0.149),
    "walker2d-medium-replay": (-0.002, 0.005, 0.023, 0.048, 0.087, 0.156),
    "halfcheetah-medium-replay": (0.001, 0.092, 0.179, 0.202, 0.269, 0.275),
    "hopper-medium": (0.231, 0.310, 0.355, 0.388, 0.418, 0.443),
    "walker2d-medium": (0.135, 0.287, 0.44, 0.557, 0.599, 0.618),
    "halfcheetah-medium": (0.361, 0.383, 0.397, 0.396, 0.406, 0.405),
    "hopper-medium-expert": (0.252, 0.341, 0.394, 0.451, 0.594, 0.645),
    "walker2d-medium-expert": (0.201, 0.469, 0.605, 0.732, 0.791, 0.827),
    "halfcheetah-medium-expert": (0.377, 0.397, 0.405, 0.537, 0.604, 0.638),
}


def measure(name: str, size: str) -> dict:
    """Return the statistics of a simulated dataset; an empty size is the default."""
    statistics = profile(load(f"sim/{name}" + (f":{size}" if size else "")))
    return {k: statistics[k] for k in ("trajectories", "steps", "return", "normalised_return", "length")}


def d4rl_normalised(name: str) -> tuple[float, float] | None:
    """Return mean and standard deviation of D4RL's normalised returns, or None if unknown.

    For medium-expert only the mean is known, from the paper's column q = 100.
    """
    if name in D4RL:
        ref = SCORES[name.split("-")[0]]
        scale = ref.expert - ref.random
        return (D4RL[name][0] - ref.random) / scale, D4RL[name][1] / scale
    return (PAPER[name][-1], float("nan")) if name in PAPER else None


def returns_table(table: dict) -> str:
    """Return the table of returns in Markdown."""
    lines = [
        "| dataset | steps | trajectories | mean | std | min | max | D4RL mean | D4RL std | default size: mean ± std |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, sizes in table.items():
        full, small, theirs = sizes["full"], sizes["default"]["normalised_return"], d4rl_normalised(name)
        r = full["normalised_return"]
        cells = [f"{r[k]:.3f}" for k in ("mean", "std", "min", "max")]
        cells += ["", ""] if theirs is None else [f"{x:.3f}" if np.isfinite(x) else "" for x in theirs]
        cells.append(f"{small['mean']:.3f} ± {small['std']:.3f}")
        lines.append(f"| `sim/{name}` | {full['steps']:,} | {full['trajectories']:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def labelled_table() -> str:
    """Return the table of labelled returns in Markdown."""
    lines = [
        "| dataset | " + " | ".join(f"q={q}" for q in QUALITIES) + " |",
        "|---" * (len(QUALITIES) + 1) + "|",
    ]
    for name in PAPER:
        eps = load(f"sim/{name}:full")
        norm = eps.normalised_returns()
        ours = [np.mean([norm[coupled(eps, 0.1, q, seed).labelled].mean() for seed in range(5)]) for q in QUALITIES]
        cells = [f"{a:.3f} ({b:.3f})" for a, b in zip(ours, PAPER[name], strict=True)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def picture(path: Path) -> None:
    """Write the densities of the returns as a picture."""
    shown = [n for n in names() if not re.fullmatch(r"\w+-expert", n)]  # expert is half of medium-expert
    shown = [
        n for kind in ("medium", "medium-replay", "medium-expert", "dense") for n in shown if n.endswith("-" + kind)
    ]
    figure, axes = plt.subplots(4, 4, figsize=(13, 10), layout="constrained")
    axes = [
        a for row, used in zip(axes, (3, 3, 3, 4), strict=True) for a in (*row[:used], *map(_hide, row[used:])) if a
    ]
    for axis, name in zip(axes, shown, strict=True):
        values = load(f"sim/{name}:full").normalised_returns()
        width = 0.4 * max(values.std(), 1e-3) * len(values) ** -0.2
        grid = np.linspace(values.min() - 3 * width, values.max() + 3 * width, 400)
        height = density(values, grid, width)
        axis.fill_between(grid, height, color=UNLABELLED, alpha=0.3, linewidth=0)
        axis.plot(grid, height, color=UNLABELLED)
        axis.axvline(values.mean(), color=UNLABELLED, linestyle=":", label=f"ours {values.mean():.2f}")
        if (theirs := d4rl_normalised(name)) is not None:
            axis.axvline(theirs[0], color="#0072b2", linestyle="--", label=f"D4RL {theirs[0]:.2f}")
        axis.set_title(name, fontsize=10)
        axis.set_ylim(bottom=0)
        axis.set_yticks([])
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    figure.supxlabel("normalised return of a trajectory")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _hide(axis) -> None:
    axis.set_visible(False)


def main() -> None:
    """Measure all simulated datasets, and write the sizes, the picture and the page."""
    table = {name: {"default": measure(name, ""), "full": measure(name, "full")} for name in names()}
    rounded = json.loads(json.dumps(table), parse_float=lambda x: float(f"{float(x):.7g}"))
    Path(datasets.__file__).with_suffix(".json").write_text(json.dumps(rounded, indent=1) + "\n")
    picture(ROOT / "docs" / "img" / "densities.png")
    page = ROOT / "docs" / "datasets.md"
    text = page.read_text()
    for mark, body in (("returns", returns_table(table)), ("labelled", labelled_table())):
        text = re.sub(
            rf"(<!-- generated: {mark} -->\n).*?(\n<!-- end -->)",
            lambda m, body=body: m[1] + body + m[2],
            text,
            flags=re.S,
        )
    page.write_text(text)


if __name__ == "__main__":
    main()
