"""Everything that can be named: what `ssorl data list` tells."""

from __future__ import annotations

from pathlib import Path

from ssorl.data.collections import d4rl_download, pointmass


def catalogue() -> list[dict]:
    """One row a dataset: its name, where it is (here, a download, made on use), sizes and returns where known."""
    from ssorl.data.formats.minari import local_ids
    from ssorl.data.sim import datasets
    from ssorl.data.stats import profile

    rows = []
    for name in pointmass.names():
        told = profile(pointmass.load_id(name))
        known = {k: told[k] for k in ("steps", "trajectories", "normalised_return")}
        rows.append({"name": f"builtin/{name}", "where": "made here", **known})
    for name in datasets.names():
        rows.append({"name": f"sim/{name}", "where": "made here", **(datasets.known(name) or {})})
    for name, file in d4rl_download.FILES.items():
        there = (d4rl_download.folder() / Path(file).name).is_file()
        rows.append({"name": f"d4rl/{name}", "where": "here" if there else "download"})
    rows += [{"name": f"minari/{n}", "where": "here"} for n in local_ids()]
    return rows
