"""The list of datasets that have names, for `ssorl data list`."""

from __future__ import annotations

from pathlib import Path

from ssorl.data.collections import builtin, d4rl_download


def catalogue() -> list[dict]:
    """Return one row for each named dataset.

    Returns:
        Rows with `name`, `where` ("made here", "here" or "download") and, if known, `steps`, `trajectories` and
        `normalised_return`.
    """
    from ssorl.data.formats.minari import local_ids
    from ssorl.data.sim import datasets
    from ssorl.data.stats import profile

    rows = []
    for name in builtin.names():
        summary = profile(builtin.load_id(name))
        known = {k: summary[k] for k in ("steps", "trajectories", "normalised_return") if summary[k] is not None}
        rows.append({"name": f"builtin/{name}", "where": "made here", **known})
    for name in datasets.names():
        rows.append({"name": f"sim/{name}", "where": "made here", **(datasets.measured(name) or {})})
    for name, file in d4rl_download.FILES.items():
        local = (d4rl_download.folder() / Path(file).name).is_file()
        rows.append({"name": f"d4rl/{name}", "where": "here" if local else "download"})
    rows += [{"name": f"minari/{n}", "where": "here"} for n in local_ids()]
    return rows
