"""Trajectories with missing actions: the container, file formats, and splits."""

from ssorl.data.episodes import Episodes, Meta, concat
from ssorl.data.formats import load, load_pair, save
from ssorl.data.split import Split, apply, coupled, decoupled, truth, wide

__all__ = ["Episodes", "Meta", "Split", "apply", "concat", "coupled", "decoupled"]
__all__ += ["load", "load_pair", "save", "truth", "wide"]
